"""Addresses, headers and passwords are not in errors, logs and views; a webhook's target can't hold us up or fill memory."""

from __future__ import annotations

import json
import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tills import tills

import tidegate
from tidegate.connectors.http.webhook import WebhookSink
from tidegate.connectors.shared.toml_file import _check_type
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import SinkError

SECRETS = ("hunter2", "XYZZYpath", "tok3nquery", "s3cretheader")
HEADERS = {"Authorization": "Bearer s3cretheader"}


def url(port: int) -> str:
    return f"http://me:hunter2@127.0.0.1:{port}/services/XYZZYpath?token=tok3nquery"


@contextmanager
def target(answer: Callable[[socket.socket, bytes], None]) -> Iterator[int]:
    """A server that gets each request, as far as it has come with the first read, and does with the connection what it likes."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    if request := connection.recv(65536):
                        answer(connection, request)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        with socket.create_connection(listening.getsockname()):
            pass
        listening.close()
        thread.join(20)


def says(status: str, body: Callable[[bytes], bytes] = lambda request: b"") -> Callable[[socket.socket, bytes], None]:
    def answer(connection: socket.socket, request: bytes) -> None:
        told = body(request)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(told)}\r\n\r\n".encode() + told)

    return answer


def nothing_shown(*texts: str) -> None:
    for text in texts:
        for secret in SECRETS:
            assert secret not in text, text


@pytest.mark.parametrize(
    "answer",
    [
        says("500 Failed", lambda request: request),  # an error page that quotes the request
        says("400 hunter2"),
        says("302 Found\r\nLocation: http://127.0.0.1:9/?token=tok3nquery"),
        lambda connection, request: connection.sendall(b"s3cretheader XYZZYpath\r\n\r\n"),  # no HTTP
        lambda connection, request: None,
    ],
)
def test_nothing_secret_is_shown(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with target(answer) as port, tidegate.open(tills()) as engine:
        sink = WebhookSink(url(port), headers=HEADERS, timeout_s=5)
        delivery = engine.deliver("sums", sink)
        engine.push("sales", [("a", 1)])
        with pytest.raises(SinkError) as refused:
            delivery.pump()
        shown = engine.query("FROM tidegate.deliveries").rows
        nothing_shown(
            repr(sink), repr(delivery), str(refused.value), repr(vars(refused.value)), str(shown), caplog.text
        )
        nothing_shown("".join(traceback.format_exception(refused.value)))
        assert f"http://127.0.0.1:{port}/…" in str(refused.value)


def test_the_login_of_an_address_is_sent() -> None:
    came: list[bytes] = []
    with target(says("200 OK", lambda request: came.append(request) or b"")) as port, tidegate.open(tills()) as engine:  # type: ignore[func-returns-value]
        delivery = engine.deliver("sums", WebhookSink(f"http://me:hunter2@127.0.0.1:{port}/in?a=1"))
        engine.push("sales", [("a", 1)])
        assert delivery.pump() == 1
    assert came[0].startswith(b"POST /in?a=1 HTTP/1.1\r\n")
    assert b"Authorization: Basic bWU6aHVudGVyMg==" in came[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: WebhookSink("ftp://me:hunter2@host/XYZZYpath"),
        lambda: WebhookSink("https://me:hunter2@host:port/XYZZYpath"),
        lambda: WebhookSink("https://host/XYZZYpath tok3nquery"),
        lambda: WebhookSink("https://host/", headers={"Authorization": "Bearer s3cretheader\n"}),
        lambda: SqlSink("postgresql//me:hunter2@host/db", "t"),
        lambda: SqlSink("nosuch://me:hunter2@host/db?password=tok3nquery", "t"),
        lambda: _check_type("sink.headers", ["s3cretheader"], "Mapping[str, str]"),
    ],
)
def test_nothing_secret_is_shown_when_it_is_declared_wrongly(make: Callable[[], Any]) -> None:
    with pytest.raises(tidegate.TidegateError) as refused:
        make()
    told: BaseException | None = refused.value
    while told is not None:  # as a traceback shows them; without its lines, which quote this file
        nothing_shown(str(told), repr(vars(told)))
        told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)


def test_a_redirect_takes_the_secret_nowhere() -> None:
    came: list[bytes] = []
    with target(says("200 OK", lambda request: came.append(request) or b"")) as other:  # type: ignore[func-returns-value]
        redirect = says(f"307 Elsewhere\r\nLocation: http://127.0.0.1:{other}/")
        with target(redirect) as port, tidegate.open(tills()) as engine:
            delivery = engine.deliver("sums", WebhookSink(url(port), headers=HEADERS))
            engine.push("sales", [("a", 1)])
            with pytest.raises(SinkError, match="not followed"):
                delivery.pump()
    assert not came


def endless(connection: socket.socket, request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 500 Failed\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def endless_headers(connection: socket.socket, request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")


def dripping(beginning: bytes) -> Callable[[socket.socket, bytes], None]:
    def drip(connection: socket.socket, request: bytes) -> None:
        connection.sendall(beginning)
        while not threading.Event().wait(0.02):
            connection.sendall(b"x")

    return drip


@pytest.mark.parametrize(
    "answer",
    [
        endless,
        endless_headers,
        dripping(b"HTTP/1.1 500 Failed\r\nContent-Length: 100000\r\n\r\n"),
        dripping(b"HTTP/1.1 200 OK\r\nX-Slow: "),
        dripping(b""),
    ],
)
def test_a_target_that_never_ends_its_answer(answer: Any) -> None:
    """It fails within the timeout, whatever comes."""
    with target(answer) as port, tidegate.open(tills()) as engine:
        delivery = engine.deliver("sums", WebhookSink(f"http://127.0.0.1:{port}/", timeout_s=0.5))
        engine.push("sales", [("a", 1)])
        with pytest.raises(SinkError):
            delivery.pump()
        assert len(delivery) == 1


def test_an_endless_answer_of_success_is_a_success() -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(json.dumps(["x"] * 1000).encode())

    with target(answer) as port, tidegate.open(tills()) as engine:
        delivery = engine.deliver("sums", WebhookSink(f"http://127.0.0.1:{port}/", timeout_s=5))
        engine.push("sales", [("a", 1)])
        assert delivery.pump() == 1
