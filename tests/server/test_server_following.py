"""Following streams: SSE and WebSocket, resumable by cursor, by name with acknowledgement; slow readers; kills."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

import tidegate
from tidegate.client.calls import EventReader, ServerEvent
from tidegate.errors import CursorGone, DataError, DeclarationError, TakenOver


@contextmanager
def events(server: Server, path: str, **headers: str) -> Iterator[Iterator[ServerEvent]]:
    with server.http() as http, http.stream("GET", path, headers=headers) as got:
        assert got.status_code == 200, got.read()
        assert got.headers["content-type"].startswith("text/event-stream")
        reader = EventReader()
        yield (event for line in got.iter_lines() if (event := reader.line(line)) is not None)


def push(server: Server, *items: str) -> None:
    with server.http() as http:
        for item in items:
            assert http.post("/v1/streams/orders/batches", json=[[item, 0]]).json()["done"]


def item_of(event: ServerEvent) -> str:
    assert event.kind == "batch", event
    return str(json.loads(event.data)["rows"][0]["item"])


def test_events_resume_at_the_cursor(shared: Server) -> None:
    path = "/v1/streams/shipments/events"
    with events(shared, path) as seen:
        opened = next(seen)
        assert opened.kind == "open"
        push(shared, "a", "b", "c")
        assert item_of(next(seen)) == "a"
        second = next(seen)
        facts = json.loads(second.data)
        assert (facts["stream"], facts["key"], facts["cursor"]) == ("shipments", None, second.id)
        assert facts["position"].endswith(".0")
    push(shared, "d")
    assert second.id is not None
    with events(shared, path, **{"last-event-id": second.id}) as seen:
        assert next(seen).kind == "open"
        assert [item_of(next(seen)), item_of(next(seen))] == ["c", "d"]
    with events(shared, f"{path}?cursor={opened.id}") as seen:
        next(seen)
        assert [item_of(next(seen)) for _ in range(4)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("cursor", ["nonsense", "00000000.1", "x.99999999999999999999", ".", "1.-1"])
def test_a_cursor_that_leads_nowhere_is_gone(shared: Server, cursor: str) -> None:
    with shared.http() as http:
        got = http.get(f"/v1/streams/shipments/events?cursor={cursor}")
        assert got.status_code == 410
        assert "under a name" in got.json()["error"]["message"]


def test_only_what_procedures_emit_can_be_followed(shared: Server) -> None:
    with shared.http() as http:
        for stream in ("orders", "nothing"):
            assert http.get(f"/v1/streams/{stream}/events").status_code == 404
        assert http.get("/v1/streams/shipments/events?name=").status_code == 422
    with shared.client() as client, pytest.raises(DeclarationError, match="interior stream"):
        client.subscribe("orders")


def test_websocket_resumes_at_the_cursor(shared: Server) -> None:
    url = shared.url.replace("http", "ws") + "/v1/streams/shipments/socket"
    with websocket(url) as ws:
        assert json.loads(ws.recv())["event"] == "open"
        push(shared, "e", "f")
        first = json.loads(ws.recv())
        assert first["rows"] == [{"item": "e", "pieces": 0}]
    with websocket(f"{url}?cursor={first['cursor']}") as ws:
        ws.recv()
        assert json.loads(ws.recv())["rows"][0]["item"] == "f"
        ws.send("nonsense")
        ended = json.loads(ws.recv())
        assert ended["event"] == "end"
        with pytest.raises(ConnectionClosed):
            ws.recv()
    with websocket(f"{url}?cursor=gone") as ws:
        assert json.loads(ws.recv())["type"] == "CursorGone"


def test_what_is_on_disk_when_it_commits_is_sent_at_once(start: Callable[..., Server], tmp_path: Path) -> None:
    """The log ends with a mark then, which is not synced before something else is: nobody may wait for it."""
    server = start(data=str(tmp_path / "data"), engine={"sync": "always"})
    with server.client() as client, client.subscribe("shipments") as tail:
        named = client.subscribe_durably("shipments", "named")
        for item in ("a", "b"):
            client.push("orders", [(item, 0)])
            for seen in (tail, named):
                batch = seen.get(60)
                assert batch is not None
                assert batch[0].item == item
            named.ack(batch)
        named.close()


def test_a_named_subscriber_acknowledges_over_the_websocket(shared: Server) -> None:
    url = shared.url.replace("http", "ws") + "/v1/streams/shipments/socket?name=ws"
    with websocket(url) as ws:
        ws.recv()
        push(shared, "g", "h", "i")
        got = [json.loads(ws.recv()) for _ in range(3)]
        ws.send(json.dumps({"cursors": [got[1]["cursor"]], "up_to": True}))
        push(shared, "j")
        assert json.loads(ws.recv())["rows"][0]["item"] == "j"
    with websocket(url) as ws:
        ws.recv()
        assert [json.loads(ws.recv())["rows"][0]["item"] for _ in range(2)] == ["i", "j"]


def test_a_named_subscriber_acknowledges_by_its_last_event_id(shared: Server) -> None:
    path = "/v1/streams/shipments/events?name=sse"
    with events(shared, path) as seen:
        next(seen)
        push(shared, "k", "l", "m")
        assert item_of(next(seen)) == "k"
        last = next(seen).id
        assert last is not None
    with events(shared, path, **{"last-event-id": last}) as seen:
        next(seen)
        assert item_of(next(seen)) == "m"
    with shared.http() as http:
        (facts,) = [s for s in http.get("/v1/subscriptions").json()["subscriptions"] if s["name"] == "sse"]
        assert (facts["stream"], facts["waiting"]) == ("shipments", 1)
        assert http.post("/v1/subscriptions/sse/ack", json={"cursors": ["?"]}).status_code == 422
        assert http.post("/v1/subscriptions/nobody/ack", json={"cursors": []}).status_code == 404
        assert http.delete("/v1/subscriptions/sse").json() == {"removed": "sse"}
        assert http.delete("/v1/subscriptions/sse").status_code == 404


def test_the_newer_connection_takes_over(shared: Server) -> None:
    with shared.client() as client:
        first = client.subscribe_durably("shipments", "twice")
        second = client.subscribe_durably("shipments", "twice")
        push(shared, "n")
        batch = second.get(10)
        assert batch is not None
        with pytest.raises(TakenOver):
            first.get(10)
        second.ack(batch)
        second.ack(batch)  # once more changes nothing
        second.close()
        first.close()
        client.unsubscribe("twice")


def test_a_named_subscription_needs_no_connection(shared: Server) -> None:
    """Look at what waits, from any process, as often as you like; acknowledge it; it is gone."""
    with shared.client() as client:
        assert client.waiting("shipments", "pulled") == []
        for item in "abc":
            push(shared, item)
        for _ in range(2):
            found = client.waiting("shipments", "pulled", 2)
            assert [batch[0].item for _, batch in found] == ["a", "b"]
        client.acknowledge("pulled", [cursor for cursor, _ in found])
        assert [batch[0].item for _, batch in client.waiting("shipments", "pulled")] == ["c"]
        client.unsubscribe("pulled")
        with shared.http() as http:
            assert http.get("/v1/subscriptions/pulled/batches").status_code == 422
            assert http.get("/v1/subscriptions/pulled/batches?stream=shipments&limit=0").status_code == 422
            assert http.get("/v1/subscriptions/pulled/batches?stream=nothing").status_code in (404, 422)


def test_the_client_subscribes_gets_and_follows(shared: Server) -> None:
    with shared.client() as client, client.subscribe("shipments") as seen:
        assert seen.get() is None
        push(shared, "o", "p")
        first = seen.get(10)
        assert first is not None
        assert first.rows == (("o", 0),)
        assert next(seen.follow())[0].item == "p"
        assert list(seen) == []
        push(shared, "q")
        with client.subscribe("shipments", cursor=seen.cursor) as later:
            got = later.get(10)
            assert got is not None
            assert got[0].item == "q"
        with pytest.raises(CursorGone):
            client.subscribe("shipments", cursor="gone")


def test_asyncio_has_the_same_methods(shared: Server) -> None:
    async def work() -> None:
        async with tidegate.connect_async(shared.url) as client:
            named = client.subscribe_durably("shipments", "async")
            first = asyncio.ensure_future(anext(named))
            while not any(s["name"] == "async" for s in (await client.status())["subscriptions"]):
                await asyncio.sleep(0.01)
            ticket = await client.push("orders", [("r", 0)])
            assert ticket.done
            assert await ticket is None
            batch = await first
            assert batch[0].item == "r"
            await named.ack(batch)
            assert (await client.status())["subscriptions"][-1]["waiting"] == 0
            assert await client.call("deliver", "async", 2) == 2
            assert await (await client.submit("echo", 7)) == 7
            assert (await client.feed("orders", [("r", 0)] * 20, size=5)).batches == 4
            assert (await client.query("SELECT 1 + ?", 2)).scalar() == 3
            alert = await client.push("alerts", [(99,)])
            assert not alert.done
            (question,) = [q for q in await client.questions() if q.key == 99]
            await client.answer(question, give=False)
            await alert
            with pytest.raises(DataError):
                await client.push("orders", [(1, 2, 3)])
            with pytest.raises(tidegate.TidegateError, match="no name"):
                await client.subscribe("shipments").ack([])

    asyncio.run(work())


def test_a_subscriber_that_does_not_read_is_let_go_and_holds_up_nobody(start: Callable[..., Server]) -> None:
    server = start(settings={"buffer_batches": 50, "stall_s": 0.5})
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sendall(b"GET /v1/streams/shipments/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"200 OK" in raw.recv(2000)
    socket_url = server.url.replace("http", "ws") + "/v1/streams/shipments/socket"
    with (
        websocket(socket_url, max_queue=1, ping_interval=None, close_timeout=0.2),
        server.client() as client,
        client.subscribe("shipments") as reader,
    ):
        long = "x" * 20_000
        read = 0
        for number in range(800):
            client.push("orders", [(f"{number}{long}", 0)])
            read += len(list(reader))
        deadline = time.monotonic() + 30
        while client.status()["subscribers"]["shipments"]["subscribers"] > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.status()["subscribers"]["shipments"]["subscribers"] == 1
        while read < 800 and reader.get(10) is not None:
            read += 1
        assert read == 800
    raw.close()
    with server.http() as http:
        assert "tidegate_subscribers_dropped_total" in http.get("/metrics").text


def test_a_reader_that_is_a_little_slow_is_told_its_cursor(start: Callable[..., Server]) -> None:
    server = start(settings={"buffer_batches": 5, "stall_s": 10})
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(b"GET /v1/streams/shipments/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"200 OK" in raw.recv(2000)
    pushed = 1_000
    with server.client() as client:
        client.feed("orders", ((f"{number} {'x' * 10_000}", 0) for number in range(pushed)))
        text = b""
        raw.settimeout(10)
        while b"event: end" not in text and (part := raw.recv(1 << 20)):
            text += part
        cursor = [line for line in text.decode(errors="replace").splitlines() if line.startswith("id: ")][-1][4:]
        assert '"type":"Overloaded"' in text.decode(errors="replace")
        got = text.count(b"event: batch")
        assert 0 < got < pushed
        with client.subscribe("shipments", cursor=cursor) as rest:
            missed = 0
            while got + missed < pushed and rest.get(10) is not None:
                missed += 1
        assert got + missed == pushed
    raw.close()


def test_kill_and_restart_delivers_exactly_once(start: Callable[..., Server], tmp_path: Path) -> None:
    """Pushes with batch-ids and a named subscriber go on across three kills: nothing lost, nothing twice."""
    server = start(data=str(tmp_path / "data"))
    port, count = server.port, 240
    got: list[int] = []
    failure: list[BaseException] = []

    def pushes() -> None:
        try:
            with server.client(retry_s=60) as client:
                for number in range(1, count + 1):
                    assert client.push("orders", [(str(number), 0)], batch_id=number).result() is None
        except BaseException as error:
            failure.append(error)

    with server.client(retry_s=60) as client:
        subscription = client.subscribe_durably("shipments", "till")
        pusher = threading.Thread(target=pushes)
        pusher.start()
        for stop_after in (30, 90, 150):
            while len(got) < stop_after:
                got += _taken(subscription)
            server.kill()
            server.start(port)
        while len(got) < count and not failure:
            got += _taken(subscription)
        pusher.join()
        assert not failure
        assert got == list(range(1, count + 1))
        assert subscription.get(0.3) is None
        subscription.close()
        assert client.status()["subscriptions"][0]["waiting"] == 0
    with server.client() as client, client.subscribe_durably("shipments", "till") as again:
        assert again.get(0.3) is None


def _taken(subscription: Any) -> list[int]:
    batches = subscription.take(20, 5)
    subscription.ack(batches)
    return [batch.id for batch in batches]


def test_a_tail_says_when_a_restart_broke_it(start: Callable[..., Server]) -> None:
    server = start()
    port = server.port
    with server.client() as client, client.subscribe("shipments") as seen:
        push(server, "a")
        assert seen.get(10) is not None
        server.kill()
        server.start(port)
        with pytest.raises(CursorGone):
            seen.get(20)


def test_stopping_tells_everyone_and_ends(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(data=str(tmp_path / "data"))
    with events(server, "/v1/streams/shipments/events") as seen:
        next(seen)
        server.process.terminate()
        ended = [event.kind for event in _until_closed(seen)]
        assert ended == ["end"]
    assert server.stop() == 0


def _until_closed(seen: Iterator[ServerEvent]) -> Iterator[ServerEvent]:
    try:
        yield from seen
    except httpx.HTTPError:
        return
