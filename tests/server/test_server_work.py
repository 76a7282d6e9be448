"""Work over HTTP: pushes in every format, calls, answers, tickets, idempotency, and refusals that say why."""

from __future__ import annotations

import datetime as dt
import io
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from server_process import Server

from tidegate.errors import (
    Aborted,
    BatchError,
    DataError,
    DeclarationError,
    Overloaded,
    ProcedureFailed,
    StillWaiting,
    TidegateError,
)

ROW = {
    "small": -7,
    "big": 2**62,
    "unsigned": 2**64 - 1,
    "ratio": 0.1,
    "price": Decimal("12.50"),
    "word": "naïve ☂ \x00 text",
    "yes": True,
    "moment": dt.datetime(2026, 3, 1, 12, 30, 0, 123456),
    "day": dt.date(2026, 3, 1),
    "hour": dt.time(1, 2, 3),
    "lasts": dt.timedelta(days=3, seconds=7, microseconds=5),
    "raw": b"\x00\xff",
    "name": uuid.UUID(int=7),
    "facts": '{"a":[1,null]}',
    "numbers": (1, None, 3),
    "prices": (Decimal("1.00"), None),
}


def ipc(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write(table)
    return sink.getvalue()


def test_json_in_every_shape(shared: Server) -> None:
    with shared.http() as http:
        for body in ([["tea", 0]], [{"item": "tea", "pieces": 0}], {"rows": [["tea", 0]]}):
            got = http.post("/v1/streams/orders/batches", json=body)
            assert got.status_code == 200, got.text
            assert got.json()["done"] is True
            assert len(got.json()["batch_ids"]) == 1


def test_ndjson_and_arrow(shared: Server) -> None:
    with shared.http() as http:
        text = '{"item": "tea", "pieces": 0}\n\n["cake", 0]\n'
        got = http.post("/v1/streams/orders/batches", content=text, headers={"content-type": "application/x-ndjson"})
        assert got.json()["done"] is True
        table = pa.table({"item": ["tea", "cake"], "pieces": pa.array([0, 0], pa.int32())})
        kind = {"content-type": "application/vnd.apache.arrow.stream"}
        got = http.post("/v1/streams/orders/batches?source=arrow&offset=17", content=ipc(table), headers=kind)
        assert got.json()["done"] is True, got.text
        assert http.get("/v1/position?source=arrow").json() == {"source": "arrow", "offset": 17}


def test_every_type_comes_back_as_it_went_in(shared: Server) -> None:
    with shared.client() as client, client.subscribe("everything") as seen:
        client.push("anything", [ROW])
        nothing = {"big": 1}
        client.push("anything", [nothing, {**ROW, "big": 2, "ratio": float("inf")}])
        first = seen.get(10)
        assert first is not None
        assert first[0]._asdict() == ROW
        second = seen.get(10)
        assert second is not None
        assert second[0]._asdict() == {**dict.fromkeys(ROW), "big": 1}
        assert second[1].ratio == float("inf")
        aware = dt.datetime(2026, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
        client.push("anything", pa.table({"big": [3], "moment": pa.array([aware]), "name": [str(uuid.UUID(int=9))]}))
        third = seen.get(10)
        assert third is not None
        assert (third[0].moment, third[0].name) == (dt.datetime(2026, 1, 1), uuid.UUID(int=9))


def test_a_batch_id_makes_a_push_idempotent(shared: Server) -> None:
    with shared.client() as client:
        first = client.push("alerts", [(500,)], batch_id=10, wait=False)
        assert first.batch_ids == [10]
        assert not first.duplicate
        again = client.push("alerts", [(500,)], batch_id=10, wait=False)
        assert again.duplicate
        with pytest.raises(BatchError, match="comes too late"):
            client.push("alerts", [(500,)], batch_id=9)
        client.push("orders", [("ids", 0)], batch_id=10**9)
        with pytest.raises(BatchError, match="other rows") as refused:
            client.push("orders", [("ids", 1)], batch_id=10**9)
        assert refused.value.last_id == 10**9  # type: ignore[attr-defined]


def test_an_aborted_push_says_so(shared: Server) -> None:
    with shared.client() as client:
        ticket = client.push("orders", [("nothing", 5)])
        assert ticket.done
        assert isinstance(ticket.error, Aborted)
        assert ticket.error.procedure == "ship"  # type: ignore[attr-defined]
        with pytest.raises(Aborted, match="pieces >= 0"):
            ticket.result()


def test_calls_return_and_raise(shared: Server) -> None:
    with shared.client() as client:
        assert client.call("deliver", "coffee", pieces=3) == 3
        value = (1, Decimal("2.5"), dt.date(2026, 1, 1), None, b"x", {"k": (1,)})
        assert client.call("echo", value) == value
        with pytest.raises(Aborted, match="whole number"):
            client.call("deliver", 1, 1)
        with pytest.raises(ProcedureFailed, match="as it must"):
            client.call("fail")
        with pytest.raises(DeclarationError, match="did you mean 'deliver'"):
            client.call("delive")
        with pytest.raises(TidegateError, match="push there instead"):
            client.call("ship")
        with pytest.raises(DataError, match="got the wrong arguments"):
            client.call("deliver")
        assert client.submit("echo", 5).result(60) == 5
    with shared.http() as http:
        assert http.post("/v1/procedures/echo", json={"arguments": [[1, {"a": None}]]}).json()["value"] == [
            1,
            {"a": None},
        ]


def test_a_question_is_listed_answered_and_the_ticket_ends(shared: Server) -> None:
    with shared.client() as client:
        alert = client.push("alerts", [(7,)])
        assert not alert.done
        with pytest.raises(StillWaiting):
            alert.result(0.05)
        (question,) = [q for q in client.questions() if q.key == 7]
        assert question.stream == "decisions"
        assert question.batches["proposals"].rows == ((7, 1),)
        client.answer(question, give=True)
        assert alert.result(60) is None
        assert alert.done
        with shared.http() as http:
            second = http.post("/v1/streams/alerts/batches", json=[[7]]).json()
            path = f"/v1/questions/decisions/{second['batch_ids'][0]}"
            assert http.post(path, json={"give": True}).status_code == 422
            (shown,) = [q["digest"] for q in http.get("/v1/questions").json()["questions"] if q["key"] == 7]
            assert http.post(path, params={"digest": shown}, json={"patient": 7, "give": False}).json()["done"] is True
            assert http.post("/v1/questions/orders/1", json={}).status_code == 404
            assert http.get(f"/v1/tickets/{second['ticket']}").json()["done"] is True
            assert http.get("/v1/tickets/none").status_code == 404


def test_feed_is_the_bulk_way_in(shared: Server) -> None:
    with shared.client() as client:
        assert client.feed("orders", (("bulk", 0) for _ in range(5_000)), size=10).batches == 500
        with pytest.raises(DataError) as refused:
            client.feed("orders", [("bulk", 0)] * 5 + [("bulk", "x")])
        assert refused.value.fed == 5  # type: ignore[attr-defined]


def test_sources_go_on_from_their_offset(shared: Server) -> None:
    with shared.client() as client:
        assert client.position("till") is None
        client.push("orders", [("tea", 0)], source="till", offset={"file": "a", "line": 3})
        assert client.position("till") == {"file": "a", "line": 3}


def test_a_step_of_a_source_counts_once_however_it_is_sent(shared: Server) -> None:
    table = pa.table({"item": ["step"], "pieces": pa.array([1], pa.int32())})
    with shared.client() as client:
        for number, rows in enumerate(([("step", 1)], table, [])):
            at = {"source": "steps", "offset": {"step": number}, "after": {"step": number - 1} if number else None}
            assert not client.push("orders", rows, **at).duplicate
            assert client.push("orders", rows, **at).duplicate
            assert client.position("steps") == {"step": number}
        with pytest.raises(BatchError, match="out of turn"):
            client.push("orders", table, source="steps", offset={"step": 9}, after={"step": 8})


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "text"),
    [
        ("orders/batches", "application/json", b"{", 422, "does not fit"),
        ("orders/batches", "application/json", b'{"rows": 1}', 422, "Expected `array`"),
        ("orders/batches", "application/json", b'{"rows": [], "x": 1}', 422, "unknown field"),
        ("orders/batches", "application/json", b"[" * 100_000, 422, "100,000 levels deep"),
        ("orders/batches", "application/json", b'[["tea", "x"]]', 422, "orders.pieces"),
        ("orders/batches", "application/json", b'["tea"]', 422, "tuple, list or dict"),
        ("orders/batches", "application/json", b'[["tea", null]]', 422, "NOT NULL"),
        ("orders/batches", "application/json", b'"\xff"', 422, "does not fit"),
        ("orders/batches?batch_id=1e3", "application/json", b"[]", 422, "whole number"),
        ("orders/batches?wait=maybe", "application/json", b"[]", 422, "true or false"),
        ("orders/batches?timeout_s=nan", "application/json", b"[]", 422, "seconds"),
        ("orders/batches?offset=1", "application/json", b"[]", 422, "source"),
        ("orders/batches", "application/x-ndjson", b"[1, 2]\n{\n", 422, "line 2"),
        ("orders/batches", "application/vnd.apache.arrow.stream", b"nonsense" * 9, 422, "Arrow"),
        ("orders/batches", "text/plain", b"[]", 415, "not 'text/plain'"),
        ("shipments/batches", "application/json", b"[]", 400, "interior"),
        ("nowhere/batches", "application/json", b"[]", 404, "no border stream"),
        ("decisions/batches", "application/json", b'[{"patient": 1, "give": true}]', 409, "batch_id="),
        ("orders/feed?size=0", "application/json", b"[]", 400, "positive"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    shared: Server, path: str, kind: str, body: bytes, status: int, text: str
) -> None:
    with shared.http() as http:
        got = http.post(f"/v1/streams/{path}", content=body, headers={"content-type": kind})
        assert got.status_code == status, got.text
        assert text in got.json()["error"]["message"]


@pytest.mark.parametrize(
    ("table", "options", "text"),
    [
        (
            pa.table({"item": ["a"] * 9, "pieces": [0] * 9}),
            {"options": pa.ipc.IpcWriteOptions(compression="zstd")},
            "compress",
        ),
        (pa.table({"item": pa.array(["a"]).dictionary_encode(), "pieces": [0]}), {}, "dictionary"),
        (pa.table({"item": pa.array(["a"], pa.string_view()), "pieces": [0]}), {}, "string_view"),
        (pa.table({"item": pa.nulls(3_000_000), "pieces": pa.nulls(3_000_000)}), {}, "at most"),
    ],
)
def test_arrow_that_could_unfold_is_refused(
    shared: Server, table: pa.Table, options: dict[str, Any], text: str
) -> None:
    with shared.http() as http:
        kind = {"content-type": "application/vnd.apache.arrow.stream"}
        got = http.post("/v1/streams/orders/batches", content=ipc(table, **options), headers=kind)
        assert got.status_code == 422
        assert text in got.json()["error"]["message"]


def test_damaged_arrow_is_refused_whatever_is_damaged(shared: Server) -> None:
    good = ipc(pa.table({"item": ["tea", "cake"], "pieces": pa.array([0, 0], pa.int32())}))
    kind = {"content-type": "application/vnd.apache.arrow.stream"}
    with shared.http() as http:
        for place in range(0, len(good), 7):
            bad = bytearray(good)
            bad[place] ^= 0xFF
            got = http.post("/v1/streams/orders/batches", content=bytes(bad), headers=kind)
            assert got.status_code in (200, 422), (place, got.text)


def test_what_fills_tables_again_is_not_for_clients(shared: Server) -> None:
    with shared.client() as client, shared.http() as http:
        for name in ("tidegate_restore", "tidegate_snapshot_followed"):
            with pytest.raises(DeclarationError, match=f"no procedure '{name}'|{name}"):
                client.call(name, "followed", [["from outside"]])
            assert name not in http.get("/openapi.json").text
            assert name not in http.get("/v1/app").text
        assert client.query("SELECT * FROM followed").rows == []


def test_dead_letters_and_aborts_are_told(shared: Server) -> None:
    with shared.client() as client:
        ticket = client.push("bad", [(1,)])
        assert isinstance(ticket.error, ProcedureFailed)
        refused = client.push("orders", [("none of this is left", 1)])
        assert isinstance(refused.error, Aborted)
        status = client.status()
        assert status["recent_dead_letters"][0]["stream"] == "bad"
        assert status["recent_aborts"][0]["procedure"] == "ship"
        assert status["dead_letters"] >= 1


def test_threads_wait_for_the_outcome_and_not_for_people(start: Callable[..., Server]) -> None:
    server = start(engine={"executor": "threads", "workers": 2})
    with server.client() as client:
        assert client.push("orders", [("tea", 0)]).done
        assert client.call("deliver", "tea", 4) == 4
        alert = client.push("alerts", [(1,)])
        assert not alert.done
        client.answer(client.questions()[0], give=True)
        assert alert.result(60) is None


def test_with_threads_a_full_engine_still_takes_answers(start: Callable[..., Server]) -> None:
    """Calls are refused and feeds wait; neither may stand in the way of the answer that makes room."""
    server = start(engine={"executor": "threads", "workers": 2, "capacity": 2})
    with server.client(retry_s=0) as client, ThreadPoolExecutor(1) as other:
        alerts = [client.push("alerts", [(patient,)]) for patient in (1, 2)]
        with pytest.raises(Overloaded):
            client.call("deliver", "tea", 1)
        fed = other.submit(client.feed, "orders", [("tea", 0)] * 5)
        for question in client.questions():
            client.answer(question, give=False)
        assert fed.result(20).batches == 5
        assert all(alert.result(60) is None for alert in alerts)
        assert client.call("deliver", "tea", 1) == 1


def test_questions_are_listed_while_a_procedure_runs(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start()
    with server.client() as client, ThreadPoolExecutor(1) as other:
        client.push("alerts", [(1,)])
        called = other.submit(client.call, "stay", str(tmp_path))
        while not (tmp_path / "here").exists() and not called.done():
            time.sleep(0.02)
        assert [question.stream for question in client.questions()] == ["decisions"]
        (tmp_path / "go").touch()
        assert called.result() is None


def test_a_full_engine_refuses_and_a_busy_one_still_answers(start: Callable[..., Server]) -> None:
    server = start(engine={"capacity": 3})
    with server.client(retry_s=0) as client, server.http() as http:
        for patient in range(3):
            client.push("alerts", [(patient,)])
        with pytest.raises(Overloaded):
            client.push("alerts", [(4,)])
        got = http.post("/v1/streams/alerts/batches", json=[[5]])
        assert (got.status_code, got.headers["retry-after"]) == (503, "1")
        client.answer(client.questions()[0], give=True)
        slow = client.submit("linger", 1.5)
        assert http.get("/health").json()["healthy"] is True
        assert slow.result(60) is None
        assert "tidegate_overloaded_total 2.0" in http.get("/metrics").text
