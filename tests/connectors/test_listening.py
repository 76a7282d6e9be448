"""Sources that listen refuse what the server's gate refuses, and hold out against senders that lie, drip and crowd."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tills import tills, total
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import connect

import tidegate
from tidegate.connectors.http import listening
from tidegate.connectors.http import source as http_source
from tidegate.connectors.http.source import HttpSource, WebSocketSource
from tidegate.connectors.shared.waiting_line import WaitingLine
from tidegate.errors import Overloaded, SourceError
from tidegate.outside.rejects import declare_rejected

ROW = b'{"till": "a", "cents": 1}'
Kind = type[HttpSource] | type[WebSocketSource]


@contextmanager
def listening_to(source: Any) -> Iterator[tidegate.Engine]:
    app = tills()
    declare_rejected(app)
    with tidegate.open(app) as engine:
        engine.ingest("sales", source, background=True)
        yield engine


def raw(port: int, data: bytes, end: bool = False) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Send bytes as they are; the status, headers and JSON of the answer, read to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def request(*headers: str, body: bytes = ROW, length: str | None = "") -> bytes:
    given = list(headers) if any(h.lower().startswith("host:") for h in headers) else ["Host: localhost", *headers]
    if length is not None:
        given.append(f"Content-Length: {length or len(body)}")
    return "\r\n".join(["POST / HTTP/1.1", *given, "", ""]).encode() + body


@pytest.mark.parametrize("kind", [HttpSource, WebSocketSource])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_need_a_token(kind: Kind, host: str) -> None:
    with pytest.raises(SourceError, match="give token=") as refused:
        kind(0, host)
    assert refused.value.fatal
    kind(0, host, token="tg_secret")
    with pytest.raises(SourceError, match="empty"):
        kind(0, token=" ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Host: evil.example",), 421),
        (("Host: localhost", "Host: evil.example"), 400),
        (("Host: ",), 421),
        (("Origin: http://evil.example",), 403),
        (("Origin: null",), 403),
        (("Sec-Fetch-Site: cross-site",), 403),
        (("Authorization: Bearer wrong",), 401),
        (("Authorization: Basic secret",), 401),
    ],
)
def test_strangers_are_refused(headers: tuple[str, ...], status: int) -> None:
    source = HttpSource(0, token="secret")
    with listening_to(source) as engine:
        right = () if any(h.startswith("Authorization") for h in headers) else ("Authorization: Bearer secret",)
        assert raw(source.port, request(*headers, *right))[0] == status
        assert raw(source.port, request())[0] == 401
        assert raw(source.port, request("Authorization: Bearer secret"))[0] == 200
        assert total(engine) == 1


def test_names_and_pages_can_be_allowed() -> None:
    source = HttpSource(0, allow_hosts=["till.example"], allow_origins=["https://shop.example"])
    with listening_to(source):
        assert raw(source.port, request("Host: till.example"))[0] == 200
        assert raw(source.port, request("Origin: https://shop.example"))[0] == 200
        assert (
            raw(source.port, request(f"Host: localhost:{source.port}", f"Origin: http://localhost:{source.port}"))[0]
            == 200
        )


CHUNKED = b"19\r\n" + ROW + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(length=None), 411),
        (request("Transfer-Encoding: chunked", body=CHUNKED, length=None), 411),
        (request("Transfer-Encoding: chunked", body=CHUNKED), 411),
        (request(length="-1"), 400),
        (request(length="1e2"), 400),
        (request(length="٣"), 400),
        (request("Content-Length: 3"), 400),
        (request(length=str(http_source.LARGEST + 1)), 413),
        (request(length="9" * 4000), 413),
        (request(length="1000"), 400),
        (request("X-Long: " + "x" * 60_000), 431),
        (request(*(f"X-{i}: {'x' * 900}" for i in range(90))), 431),
    ],
)
def test_bodies_and_headers_are_bounded_whatever_is_announced(data: bytes, status: int) -> None:
    source = HttpSource(0)
    with listening_to(source) as engine:
        assert raw(source.port, data, end=True)[0] == status
        assert raw(source.port, request())[0] == 200
        assert total(engine) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 400),
        (b"[" * 300 + b"]" * 300, 400),
        (b'{"till": ' * 500 + b"1" + b"}" * 500, 400),
        (b"[" + b"[]," * 20_000 + b"[]]", 413),
        (b"{}\n" * 20_000, 413),
        (b"\xff\xfe", 400),
        (b'"\\ud800"', 400),
        (b"", 400),
    ],
)
def test_what_is_sent_is_bounded_in_depth_and_number(body: bytes, status: int) -> None:
    source = HttpSource(0)
    with listening_to(source) as engine:
        if body:
            assert raw(source.port, request(body=body))[0] == status
        assert raw(source.port, request())[0] == 200
        assert total(engine) == 1


def test_dripping_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that sends a byte now and then is cut off, in the headers and in the body."""
    monkeypatch.setattr(listening, "HEADER_S", 0.3)
    monkeypatch.setattr(listening, "BODY_S", 0.3)
    source = HttpSource(0)
    with listening_to(source):
        for beginning in (b"POST / HTTP/1.1\r\nX-Slow: ", request(body=b"", length="100000")):
            with socket.create_connection(("127.0.0.1", source.port), timeout=20) as connection:
                connection.sendall(beginning)
                stop = threading.Event()

                def drip(connection: socket.socket = connection, stop: threading.Event = stop) -> None:
                    try:
                        while not stop.wait(0.02):
                            connection.sendall(b"x")
                    except OSError:
                        pass

                thread = threading.Thread(target=drip)
                thread.start()
                try:
                    while connection.recv(65536):
                        pass
                except ConnectionError:
                    pass
                finally:
                    stop.set()
                    thread.join()


def test_a_crowd_is_told_to_come_again() -> None:
    """With every place taken, the next one hears so at once, and threads do not grow in number."""
    source = HttpSource(0, connections=2)
    with listening_to(source):
        held = [socket.create_connection(("127.0.0.1", source.port), timeout=20) for _ in range(2)]
        for one in held:
            one.sendall(b"POST / HTTP/1.1\r\n")
        status = 0
        while status != 503:  # the server takes connections in turn
            status, headers, told = raw(source.port, b"")
        assert headers["retry-after"] == "1"
        assert "too many connections" in told["error"]
        before = threading.active_count()
        for _ in range(20):
            assert raw(source.port, b"")[0] == 503
        assert threading.active_count() <= before
        for one in held:
            one.close()
        while (status := raw(source.port, request())[0]) == 503:
            pass
        assert status == 200


def test_waiting_messages_are_bounded_by_bytes() -> None:
    line = WaitingLine(1000, capacity_bytes=100)
    with line.room(60), pytest.raises(Overloaded, match="60 bytes are already waiting"), line.room(41):
        pass
    with line.room(100):
        pass


def test_too_many_bytes_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = HttpSource(0)
    with listening_to(source):
        source._line._capacity_bytes = 100
        status, headers, _ = raw(source.port, request(length="101", body=b""))
        assert status == 429
        assert headers["retry-after"] == "1"
        for _ in range(20):  # what is on disk makes room
            assert raw(source.port, request())[0] == 200


# ---- WebSocket


def said(port: int, *messages: str | bytes, **options: Any) -> list[dict[str, Any]]:
    with connect(f"ws://localhost:{port}", **options) as connection:
        answers = []
        for message in messages:
            connection.send(message)
            answers.append(json.loads(connection.recv(timeout=20)))
        return answers


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"additional_headers": {"Authorization": "Bearer wrong"}}, 401),
        ({"additional_headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ({"additional_headers": {"Host": "evil.example"}}, 400),
    ],
)
def test_strangers_are_refused_on_a_websocket(options: dict[str, Any], status: int) -> None:
    source = WebSocketSource(0, token="secret")
    right = {"Authorization": "Bearer secret"}
    with listening_to(source) as engine:
        given = {**options, "additional_headers": {**right, **options.get("additional_headers", {})}}
        with pytest.raises(InvalidStatus) as refused:
            said(source.port, "", **given)
        assert refused.value.response.status_code == status
        assert said(source.port, ROW.decode(), additional_headers=right) == [{"accepted": 1, "rejected": 0}]
        assert total(engine) == 1


def test_messages_on_a_websocket_are_bounded() -> None:
    source = WebSocketSource(0)
    with listening_to(source) as engine:
        deep, many, good = said(source.port, "[" * 300 + "]" * 300, "{}\n" * 20_000, ROW)
        assert "levels deep" in deep["error"]
        assert "at most" in many["error"]
        assert good["accepted"] == 1
        with pytest.raises(ConnectionClosed) as closed:
            said(source.port, b" " * (http_source.LARGEST_MESSAGE + 1))
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert total(engine) == 1


def test_a_crowd_of_websockets_is_told_to_come_again() -> None:
    source = WebSocketSource(0, connections=1)
    with listening_to(source):
        with connect(f"ws://localhost:{source.port}") as first:
            status, headers, _ = raw(source.port, b"")
            assert (status, headers["retry-after"]) == (503, "1")
            first.send(ROW)
            assert json.loads(first.recv())["accepted"] == 1
        while True:  # the place is free as soon as the server has seen the end of the other
            try:
                assert said(source.port, ROW)[0]["accepted"] == 1
                break
            except (InvalidStatus, InvalidMessage, ConnectionClosed, OSError):
                pass
