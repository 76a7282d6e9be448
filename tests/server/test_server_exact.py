"""Nothing is taken for something else on its way: large integers, answers to questions, parameters, hosts, frames."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from server_process import Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tidegate.errors import BatchError, NotAsked, QuestionChanged

BIG = 2**53 + 1


# ---- integers that no double can hold


def test_large_integers_are_text_in_every_json(shared: Server) -> None:
    row = {"big": BIG, "unsigned": 2**64 - 1, "numbers": [1], "small": 7}
    with shared.http() as http, shared.client() as client:
        following = client.subscribe("everything")
        with connect(shared.url.replace("http", "ws") + "/v1/streams/everything/socket") as ws:
            ws.recv()
            pushed = http.post("/v1/streams/anything/batches", json=[row], params={"batch_id": BIG}).json()
            assert pushed["batch_ids"] == [str(BIG)]
            told = json.loads(ws.recv())
        assert (told["batch_id"], told["rows"][0]["big"]) == (str(BIG), str(BIG))
        assert (told["rows"][0]["unsigned"], told["rows"][0]["small"]) == (str(2**64 - 1), 7)
        batch = following.get(30)
        following.close()
        assert batch is not None
        assert (batch.id, batch[0].big, batch[0].unsigned) == (BIG, BIG, 2**64 - 1)
        found = http.post("/v1/query", json={"sql": f"SELECT {BIG} AS big, 7 AS small"}).json()
        assert found["rows"] == [[str(BIG), 7]]
        assert client.query(f"SELECT {BIG}").scalar() == BIG
        late = http.post("/v1/streams/anything/batches", json=[row], params={"batch_id": BIG - 1})
        assert late.json()["error"]["facts"]["last_id"] == str(BIG)
        with pytest.raises(BatchError) as refused:
            client.push("anything", [row], batch_id=BIG - 1)
        assert refused.value.last_id == BIG  # type: ignore[attr-defined]
        streams = {s["stream"]: s for s in http.get("/v1/status").json()["streams"]}
        assert streams["anything"]["last_batch_id"] == str(BIG)


def test_text_is_taken_for_an_integer_column(shared: Server) -> None:
    with shared.http() as http, shared.client() as client, client.subscribe("everything") as following:
        for row in ({"big": str(BIG + 10)}, [None, str(BIG + 12), *[None] * 14]):
            body = {"rows": [row], "batch_id": str(2**60 + len(row))}
            got = http.post("/v1/streams/anything/batches", json=body).json()
            assert got["batch_ids"] == [body["batch_id"]], got
        kept = [following.get(30), following.get(30)]
        assert [batch[0].big for batch in kept if batch is not None] == [BIG + 10, BIG + 12]
        for wrong in ("1.0", "1e3", " 1", "0x1", "", "01"):
            got = http.post("/v1/streams/anything/batches", json=[{"big": wrong}])
            assert (got.status_code, "anything.big" in got.text) == (422, True), got.text


def test_values_without_a_column_are_exact_when_tagged(shared: Server) -> None:
    with shared.http() as http, shared.client() as client:
        assert client.call("echo", [BIG, {"a": 2**63}]) == (BIG, {"a": 2**63})
        path = "/v1/procedures/echo"
        assert http.post(path, json={"arguments": [BIG]}).json()["value"] == str(BIG)
        tagged = {"arguments": [{"integer": str(BIG)}], "encoding": "tagged"}
        assert http.post(path, json=tagged).json()["value"] == {"integer": str(BIG)}
        assert http.post(path, json={**tagged, "arguments": [{"integer": "1.5"}]}).status_code == 422
        client.push("orders", [("tea", 0)], source="nanoseconds", offset={"at": BIG})
        assert client.position("nanoseconds") == {"at": BIG}
        assert http.get("/v1/position?source=nanoseconds").json()["offset"] == {"at": str(BIG)}


# ---- answers


def ask(server: Server, patient: int) -> dict[str, Any]:
    with server.http() as http:
        http.post("/v1/streams/alerts/batches", json=[[patient]])
        (question,) = (q for q in http.get("/v1/questions").json()["questions"] if q["key"] in (patient, str(patient)))
    return dict(question)


def test_only_an_open_question_is_answered(shared: Server) -> None:
    with shared.http() as http:
        question = ask(shared, 900)
        path = f"/v1/questions/decisions/{question['batch_id']}"
        for at, patient in ((path, 901), ("/v1/questions/decisions/77", 900)):
            got = http.post(at, params={"digest": question["digest"]}, json={"patient": patient, "give": True})
            assert (got.status_code, got.json()["error"]["type"]) == (404, "NotAsked")
            assert "is not open" in got.text
            assert f"batch {question['batch_id']} of key 900" in got.text
        unnamed = http.post(path, json={"patient": 900, "give": True})
        assert (unnamed.status_code, "?digest= the question's digest" in unnamed.text) == (422, True)
        assert http.post(path, params={"digest": question["digest"]}, json={"patient": 900, "give": True}).json()[
            "done"
        ]


def test_an_answer_that_names_its_question_reaches_no_other(shared: Server) -> None:
    """The second patient's question has the same batch-id, and the same key to whoever rounds it."""
    with shared.http() as http:
        meant, other = ask(shared, BIG + 100), ask(shared, BIG + 99)
        assert meant["batch_id"] == other["batch_id"]
        assert (meant["key"], other["key"]) == (str(BIG + 100), str(BIG + 99))
        path = f"/v1/questions/decisions/{meant['batch_id']}"
        named = {"question": meant["question"], "digest": meant["digest"]}
        rounded = http.post(path, params=named, json={"patient": float(meant["key"]), "give": True})
        assert rounded.status_code == 422  # 9007199254741092.0 is no integer
        wrong = http.post(path, params=named, json={"patient": int(other["key"]), "give": True})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (409, "BatchError")
        assert "rounded in transit" in wrong.text
        assert {q["question"] for q in http.get("/v1/questions").json()["questions"]} >= {
            meant["question"],
            other["question"],
        }
        assert http.post(path, params=named, json={"patient": meant["key"], "give": True}).json()["done"]
        left = {q["question"] for q in http.get("/v1/questions").json()["questions"]}
        assert other["question"] in left
        assert meant["question"] not in left
        http.post(path, params={"digest": other["digest"]}, json={"patient": other["key"], "give": False})


def test_of_two_doctors_the_second_is_told(shared: Server) -> None:
    with shared.client() as client:
        client.push("alerts", [(910,)])
        (question,) = (q for q in client.questions() if q.key == 910)
        assert not client.answer(question, give=True).duplicate
        again = client.answer(
            question, give=True
        )  # the same answer: a repeat of a request that got lost looks like this
        assert again.duplicate
        assert [o.state for o in again.original] == ["done"]
        with pytest.raises(BatchError, match="that answer stands, and this one was not accepted") as told:
            client.answer(question, give=False)
        assert not isinstance(told.value, NotAsked)
        with shared.http() as http:
            path, shown = f"/v1/questions/decisions/{question.batch_id}", {"digest": question.digest}
            second = http.post(path, params=shown, json={"patient": 910, "give": False})
            assert second.status_code == 409


def test_a_question_keeps_its_name_across_a_restart(start: Callable[..., Server], tmp_path: Any) -> None:
    server = start(data=str(tmp_path / "data"))
    before = ask(server, BIG)
    server.kill()
    server.start(server.port)
    with server.http() as http:
        (after,) = http.get("/v1/questions").json()["questions"]
        assert (after["question"], after["digest"]) == (before["question"], before["digest"])
        path = f"/v1/questions/decisions/{after['batch_id']}"
        row = {"patient": after["key"], "give": False}
        named = {"question": before["question"], "digest": before["digest"]}
        assert http.post(path, params=named, json=row).json()["done"]


def test_an_answer_counts_only_for_what_was_shown(shared: Server) -> None:
    with shared.client() as client, shared.http() as http:
        client.push("alerts", [(930,)])
        (question,) = (q for q in client.questions() if q.key == 930)
        stale = replace(question, digest="0" * 32)
        with pytest.raises(QuestionChanged, match=r"Nothing was accepted. Now it shows .*'patient': 930") as refused:
            client.answer(stale, give=True)
        assert (refused.value.digest, refused.value.batch_id) == (question.digest, question.batch_id)
        path = f"/v1/questions/decisions/{question.batch_id}"
        got = http.post(path, params={"digest": stale.digest}, json={"patient": 930, "give": True})
        assert (got.status_code, got.json()["error"]["type"]) == (409, "QuestionChanged")
        assert next(q for q in client.questions() if q.key == 930).digest == question.digest
        assert client.answer(question, give=False).done


def test_a_question_is_asked_anew(shared: Server) -> None:
    with shared.client() as client, shared.http() as http:
        client.push("alerts", [(940,)])
        (question,) = (q for q in client.questions() if q.key == 940)
        client.reask(question)
        (again,) = (q for q in client.questions() if q.key == 940)
        assert (again.id, again.digest) == (question.id, question.digest), "the same code asks the same"
        with pytest.raises(QuestionChanged):
            client.reask(replace(question, digest="0" * 32))
        with pytest.raises(NotAsked, match="nothing to ask anew"):
            client.reask(replace(question, id="0" * 16))
        path = f"/v1/questions/decisions/{question.batch_id}/reask"
        assert http.post(path, params={"question": question.id}).status_code == 422
        assert client.answer(again, give=False).done


def test_an_answer_may_be_pushed_before_its_question(shared: Server) -> None:
    with shared.client() as client:
        client.push("decisions", [(920, True)], batch_id=1)
        again = client.push("decisions", [(920, True)], batch_id=1)
        assert [(o.batch_id, o.key, o.state) for o in again.original] == [(1, 920, "waiting")]
        assert client.push("alerts", [(920,)]).done


# ---- repeats


def test_a_repeat_tells_what_became_of_the_original(shared: Server) -> None:
    with shared.http() as http:

        def twice(stream: str, rows: list[Any], batch_id: int) -> dict[str, Any]:
            path = f"/v1/streams/{stream}/batches"
            first = http.post(path, json={"rows": rows, "batch_id": batch_id})
            assert first.json()["original"] is None
            again = http.post(path, json={"rows": rows, "batch_id": batch_id})
            assert again.json()["duplicate"]
            (original,) = again.json()["original"]
            return dict(original)

        assert twice("orders", [["tea", 0]], 10**9)["state"] == "done"
        aborted = twice("orders", [["no such tea", 4]], 10**9 + 1)
        assert (aborted["state"], "ship: " in aborted["reason"]) == ("aborted", True)
        assert "pieces >= 0" in aborted["reason"]
        dead = twice("bad", [[1]], 10**9)
        assert (dead["state"], "spoilt" in dead["reason"]) == ("dead_letter", True)
        waiting = twice("alerts", [[930]], 10**9)
        assert waiting["state"] == "waiting"
        assert "waits for its batch on stream decisions" in waiting["reason"]
        assert (waiting["batch_id"], waiting["key"]) == (10**9, 930)


# ---- parameters


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("POST", "/v1/streams/orders/batches?bach_id=7", "did you mean 'batch_id'?"),
        ("POST", "/v1/streams/orders/feed?batch_id=7", "takes size, source, offset, after"),
        ("POST", "/v1/streams/orders/batches?wait=true&wait=false", "'wait' is given twice"),
        ("GET", "/v1/status?verbose=1", "takes none"),
        ("GET", "/v1/questions?limit=5", "no parameter 'limit'"),
        ("GET", "/v1/graph?format=json&formt=svg", "did you mean 'format'?"),
        ("GET", "/health?deep=1", "takes none"),
        ("GET", "/openapi.json?pretty", "no parameter 'pretty'"),
        ("HEAD", "/v1/streams/shipments/events?curser=1", ""),
        ("GET", "/v1/streams/shipments/events?curser=1", "did you mean 'cursor'?"),
        ("POST", "/v1/streams/orders/batches?source=%ED%A0%80&offset=1", "not UTF-8"),  # a lone surrogate
        ("POST", "/v1/streams/orders/batches?source=%FF&offset=1", "not UTF-8"),
        ("DELETE", "/v1/subscriptions/%FF", "the path is not UTF-8"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(shared: Server, method: str, path: str, text: str) -> None:
    with shared.http() as http:
        got = http.request(method, path, headers={"content-type": "application/json"}, content=b"[]")
        assert got.status_code == 400, got.text
        assert text in got.text


def test_every_endpoint_refuses_what_it_does_not_know(shared: Server) -> None:
    from tidegate.server.table import ENDPOINTS

    with shared.http() as http:
        for endpoint in ENDPOINTS:
            path = endpoint.path.replace("{stream}", "orders").replace("{", "").replace("}", "")
            got = http.request(endpoint.method, f"{path}?no_such=1")
            assert (got.status_code, "no_such" in got.text) == (400, True), (endpoint, got.text)


def test_a_feed_takes_no_batch_id_in_its_body(shared: Server) -> None:
    with shared.http() as http:
        got = http.post("/v1/streams/orders/feed", json={"rows": [["tea", 0]], "batch_id": 7})
        assert (got.status_code, "numbers them itself" in got.text) == (422, True), got.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"rows": [["tea", 1]], "rows": []}', 422),
        (b'[{"item": "tea", "pieces": 1, "pieces": 2}]', 422),
        (b'[{"item": "tea", "pieces": 1, "p\\u0069eces": 2}]', 422),  # the same key, written otherwise
        (b'[{"item": "a \\"pieces\\": 1", "pieces": 1}]', 200),
        (b'{"rows": [{"item": "10:30", "pieces": 1}], "batch_id": null}', 200),
    ],
)
def test_a_key_that_is_given_twice_is_refused(shared: Server, body: bytes, status: int) -> None:
    with shared.http() as http:
        got = http.post("/v1/streams/orders/batches", content=body, headers={"content-type": "application/json"})
    assert (got.status_code, "the same key twice" in got.text) == (status, status == 422), got.text


@pytest.mark.parametrize("line", [b'{"item": "tea", "pieces": 1, "item": "milk"}\n', b'{"item": "a:b", "pieces": 1}\n'])
def test_a_key_that_is_given_twice_in_a_line(shared: Server, line: bytes) -> None:
    with shared.http() as http:
        got = http.post(
            "/v1/streams/orders/batches", content=line * 3, headers={"content-type": "application/x-ndjson"}
        )
    assert ("the same key twice" in got.text) == (b"milk" in line), got.text


# ---- hosts and frames


def test_two_hosts_are_refused(shared: Server) -> None:
    for path in (b"/health", b"/v1/streams/shipments/socket"):
        with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as line:
            line.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
            got = line.recv(4096)
        assert got.startswith(b"HTTP/1.1 400"), got
        assert b"two Host headers" in got


@pytest.mark.parametrize(
    ("address", "status"),
    [
        (b"http://localhost/health", b"200"),
        (b"http://evil.example/health", b"400"),
        (b"http://localhost@evil.example/health", b"400"),
        (b"ftp://localhost/health", b"400"),
        (b"/health?at=http://evil.example", b"400"),  # a path, with a parameter that it does not take
        (b"/health", b"200"),
    ],
)
def test_a_whole_address_names_the_host_of_the_header(shared: Server, address: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as line:
        line.sendall(b"GET " + address + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        got = line.recv(4096)
    assert got.startswith(b"HTTP/1.1 " + status), got
    assert (b"different hosts" in got) == (status == b"400" and not address.startswith(b"/"))


def test_a_socket_says_what_it_does_not_take(shared: Server) -> None:
    url = shared.url.replace("http", "ws") + "/v1/streams/shipments/socket"
    with connect(f"{url}?name=binary") as ws:
        ws.recv()
        ws.send(b"\x00\x01")
        told = json.loads(ws.recv())
        assert (told["event"], "binary frame" in told["message"]) == ("end", True)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003
    with connect(f"{url}?curser=1") as ws:
        told = json.loads(ws.recv())
        assert (told["event"], "did you mean 'cursor'?" in told["message"]) == ("end", True)
    assert httpx.get(f"{shared.url}/health").status_code == 200
