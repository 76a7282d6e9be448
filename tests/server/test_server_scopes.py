"""What a token may use: streams, procedures, tables, subscriptions and sources, by name; and how much of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from server_process import Server
from websockets.sync.client import connect as websocket

from tidegate.errors import NotAllowed, TidegateError
from tidegate.guard.scopes import matches
from tidegate.server.tokens import digest_of, parse_tokens

TOKENS = {name: f"tg_{name}_{'0' * 30}" for name in ("till", "desk", "narrow", "listed", "admin")}


def entry(name: str, roles: str = '"push", "call", "query"', more: str = "") -> str:
    digest = digest_of(TOKENS[name]).hex()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nroles = [{roles}]\n{more}\n'


FILE = (
    entry("till")
    + entry("desk")
    + entry("narrow", more='streams = ["orders", "ship*"]\nprocedures = ["echo"]')
    + entry("listed", more='subscriptions = ["shared"]\nsources = ["meter.*"]\ntables = ["stock"]')
    + entry("admin", '"admin"')
)
LIMITS = {"subscriptions": 3, "followers": 2, "tickets": 2}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scopes")
    server = Server(
        folder / "server.log", tokens=FILE, data=str(folder / "data"), settings={"port": 0, **LIMITS}, queries=True
    )
    yield server
    server.stop()
    server.assert_no_errors()


def as_(server: Server, name: str) -> httpx.Client:
    return server.http(headers={"authorization": f"Bearer {TOKENS[name]}"})


def refusal(answer: httpx.Response, status: int = 403) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def test_streams_and_procedures(guarded: Server) -> None:
    with as_(guarded, "narrow") as http:
        assert http.post("/v1/streams/orders/batches", json=[["tea", 0]]).status_code == 200
        assert http.post("/v1/procedures/echo", json={}).status_code == 200
        for method, path in (
            ("POST", "/v1/streams/alerts/batches"),
            ("POST", "/v1/streams/alerts/feed"),
            ("GET", "/v1/streams/everything/events"),
            ("HEAD", "/v1/streams/everything/events"),
            ("POST", "/v1/questions/decisions/1"),
            ("POST", "/v1/procedures/deliver"),
            ("POST", "/v1/streams/no_such_stream/batches"),
        ):
            answer = http.request(method, path, json=[{"patient": 1}])
            assert answer.status_code == 403, path
            assert method == "HEAD" or "its entry in the tokens file says" in refusal(answer)
        assert "orders" in refusal(http.post("/v1/streams/alerts/batches", json=[]))
    address = guarded.url.replace("http", "ws") + "/v1/streams/everything/socket"
    headers = {"authorization": f"Bearer {TOKENS['narrow']}"}
    with pytest.raises(Exception, match=r"403|1008"), websocket(address, additional_headers=headers) as ws:
        ws.recv()


def test_questions_of_other_streams_are_not_shown(guarded: Server) -> None:
    with as_(guarded, "desk") as desk, as_(guarded, "narrow") as narrow:
        assert desk.post("/v1/streams/alerts/batches?wait=false", json=[{"patient": 77}]).status_code == 202
        while not desk.get("/v1/questions").json()["questions"]:
            pass
        assert narrow.get("/v1/questions").json() == {"questions": []}
        assert "may see only some" in refusal(narrow.get("/v1/status"))
        assert desk.get("/v1/status").status_code == 200
        question = desk.get("/v1/questions").json()["questions"][0]
        path, shown = f"/v1/questions/decisions/{question['batch_id']}", {"digest": question["digest"]}
        assert desk.post(path, params=shown, json={"patient": 77, "give": False}).status_code == 200


def test_a_subscription_belongs_to_the_token_whose_name_it_has(guarded: Server) -> None:
    with as_(guarded, "till") as till, as_(guarded, "desk") as desk, as_(guarded, "admin") as admin:
        begin = "/v1/subscriptions/till:out/batches?stream=shipments"
        assert till.get(begin).json() == {"batches": []}
        till.post("/v1/streams/orders/batches", json=[["tea", 0]])
        batches = till.get(begin).json()["batches"]
        assert len(batches) == 1
        ack = {"cursors": [batches[0]["cursor"]]}
        assert "may not use 'till:out' of subscriptions" in refusal(desk.get(begin))
        assert "'desk:'" in refusal(desk.post("/v1/subscriptions/till:out/ack", json=ack))
        assert refusal(desk.delete("/v1/subscriptions/till:out"))
        assert refusal(desk.get("/v1/streams/shipments/events?name=till:out"))
        assert desk.get("/v1/subscriptions").json() == {"subscriptions": []}
        assert till.get(begin).json()["batches"] == batches, "nobody else acknowledged it"
        assert admin.get(begin).json()["batches"] == batches
        assert [s["name"] for s in admin.get("/v1/subscriptions").json()["subscriptions"]] == ["till:out"]
        assert till.post("/v1/subscriptions/till:out/ack", json=ack).json() == {"acknowledged": 1}
        assert till.delete("/v1/subscriptions/till:out").status_code == 200
    address = guarded.url.replace("http", "ws") + "/v1/streams/shipments/socket?name=till:out"
    with websocket(address, additional_headers={"authorization": f"Bearer {TOKENS['desk']}"}) as ws:
        assert "may not use" in ws.recv()


def test_listed_names(guarded: Server) -> None:
    with as_(guarded, "listed") as http:
        assert http.get("/v1/subscriptions/shared/batches?stream=shipments").status_code == 200
        assert refusal(http.get("/v1/subscriptions/listed/batches?stream=shipments"))
        assert http.delete("/v1/subscriptions/shared").status_code == 200


def test_a_source_belongs_to_the_token_whose_name_it_has(guarded: Server) -> None:
    place = "/v1/streams/orders/batches?source={}&offset={}"
    with as_(guarded, "till") as till, as_(guarded, "desk") as desk, as_(guarded, "listed") as listed:
        assert till.post(place.format("till:scanner", 7), json=[["tea", 0]]).status_code == 200
        assert "sources" in refusal(desk.post(place.format("till:scanner", 99), json=[["tea", 0]]))
        assert refusal(desk.post(place.replace("batches", "feed").format("till", 99), json=[["tea", 0]]))
        body = {"rows": [["tea", 0]], "source": "till:scanner", "offset": 99}
        assert refusal(desk.post("/v1/streams/orders/batches", json=body))
        assert refusal(desk.get("/v1/position?source=till:scanner"))
        assert till.get("/v1/position?source=till:scanner").json() == {"source": "till:scanner", "offset": 7}
        assert listed.post(place.format("meter.7", 1), json=[["tea", 0]]).status_code == 200
        assert refusal(listed.post(place.format("listed", 1), json=[["tea", 0]]))


def test_tables(guarded: Server) -> None:
    with as_(guarded, "listed") as listed, as_(guarded, "narrow") as narrow, as_(guarded, "till") as till:
        stock, kept = {"sql": "SELECT count(*) FROM stock"}, {"sql": "SELECT count(*) FROM kept"}
        assert till.post("/v1/query", json=kept).status_code == 200
        assert listed.post("/v1/query", json=stock).status_code == 200
        assert "may not read kept" in refusal(listed.post("/v1/query", json=kept), 422)
        assert "may not read tidegate.merges" in refusal(
            listed.post("/v1/query", json={"sql": "SELECT * FROM tidegate.merges"}), 422
        )
        assert "its tables are none" in refusal(narrow.post("/v1/query", json=stock), 422)
        assert narrow.post("/v1/query", json={"sql": "SELECT 1"}).status_code == 200


def test_quotas(guarded: Server) -> None:
    with as_(guarded, "till") as till, as_(guarded, "desk") as desk:
        for number in range(LIMITS["subscriptions"]):
            assert till.get(f"/v1/subscriptions/till:{number}/batches?stream=shipments").status_code == 200
        assert "has 3 named subscriptions" in refusal(till.get("/v1/subscriptions/till/batches?stream=shipments"))
        assert desk.get("/v1/subscriptions/desk/batches?stream=shipments").status_code == 200
        assert till.delete("/v1/subscriptions/till:0").status_code == 200
        assert till.get("/v1/subscriptions/till/batches?stream=shipments").status_code == 200
        events = "/v1/streams/shipments/events"
        with till.stream("GET", events) as first, till.stream("GET", events) as second:
            assert (first.status_code, second.status_code) == (200, 200)
            assert "follows 2 streams already" in refusal(till.get(events), 503)
            with desk.stream("GET", events) as other:
                assert other.status_code == 200


def test_tickets_belong_to_who_got_them(guarded: Server) -> None:
    with as_(guarded, "till") as till, as_(guarded, "desk") as desk, as_(guarded, "admin") as admin:
        alert = "/v1/streams/alerts/batches?wait=false"
        tickets = [till.post(alert, json=[{"patient": 100 + i}]).json()["ticket"] for i in range(3)]
        kept = desk.post(alert, json=[{"patient": 200}]).json()["ticket"]
        assert [till.get(f"/v1/tickets/{t}").status_code for t in tickets] == [404, 202, 202], "two at a time"
        assert desk.get(f"/v1/tickets/{tickets[2]}").status_code == 404
        assert desk.get(f"/v1/tickets/{kept}").status_code == 202
        assert admin.get(f"/v1/tickets/{tickets[2]}").status_code == 202


def test_wrong_tokens_wait_and_the_right_one_does_not(start: Callable[..., Server]) -> None:
    """The answers to wrong tokens are held back; those to the right one, from the same address, come before them."""
    server = start(tokens=FILE)
    wrong = {"authorization": "Bearer tg_wrong"}
    order: list[str | int] = []

    def guess() -> None:
        with server.http(headers=wrong) as guessing:
            order.append(guessing.get("/v1/app").status_code)

    for _ in range(5):
        guess()
    assert order == [401] * 5
    threads = [threading.Thread(target=guess) for _ in range(5)]
    for thread in threads:
        thread.start()
    with as_(server, "till") as till:
        for _ in range(3):
            assert till.get("/v1/app").status_code == 200
        order.append("right")
    for thread in threads:
        thread.join()
    held_back = [answer for answer in order[5:] if answer != 429]  # 429: so many at once are not even held back
    assert held_back[0] == "right"
    assert 401 in held_back
    assert 429 in order


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('streams = "orders"', "streams must be a list of names"),
        ("tables = [1]", "tables must be a list of names"),
        ('topics = ["a"]', "topics is not a field"),
    ],
)
def test_scopes_are_checked(more: str, told: str) -> None:
    with pytest.raises(TidegateError, match=told):
        parse_tokens(entry("till", more=more), "tokens.toml")


def test_admins_have_no_scope_and_names_no_colon() -> None:
    with pytest.raises(TidegateError, match="admin may do everything"):
        parse_tokens(entry("till", '"admin"', 'streams = ["a"]'), "tokens.toml")
    with pytest.raises(TidegateError, match="can't contain a colon"):
        parse_tokens(entry("till").replace('"till"', '"till:3"'), "tokens.toml")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("meter.*", "meter.7", True),
        ("meter.*", "meterx7", False),
        ("*", "", True),
        ("*.out", "a.b.out", True),
        ("a*a", "a", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("a**c", "abc", True),
        ("a?c", "abc", False),
        ("[a]", "a", False),
    ],
)
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert matches([pattern], name) is fits


def test_a_long_name_is_no_burden() -> None:
    assert not matches(["*a" * 30 + "b"], "a" * 100_000)


def test_the_client_says_so_too(guarded: Server) -> None:
    with guarded.client(TOKENS["desk"]) as client, pytest.raises(NotAllowed, match="may not use"):
        client.subscribe_durably("shipments", "till:out").get(timeout_s=5)
