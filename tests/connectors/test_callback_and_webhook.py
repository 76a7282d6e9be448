"""At-least-once sinks: the stable id is there, failures are told, a batch not taken comes again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from every_type import NULLS, ROW

from tidegate import App, Batch, Engine
from tidegate.connectors.callback import CallbackSink
from tidegate.connectors.http.webhook import WebhookSink
from tidegate.errors import SinkError

Open = Callable[..., Engine]


class Receiver(ThreadingHTTPServer):
    """Answers with the next of ``answers`` (then 200), and keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/in"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((dict(self.headers.items()), body))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status:
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"so it is")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_callback_gets_each_batch_with_its_stable_id(types: App, open_engine: Open) -> None:
    engine = open_engine(types)
    got: list[Any] = []
    delivery = engine.deliver("everything", CallbackSink(lambda batch: got.append((batch.stable_id, len(batch)))))
    engine.push("incoming", [ROW, NULLS, ROW])
    assert delivery.pump() == 2
    assert got == [(("everything", 4, 1), 2), (("everything", 5, 1), 1)]


def test_a_callback_that_raises_is_called_again_with_the_same_batch(words: App, open_engine: Open) -> None:
    engine = open_engine(words)
    calls: list[Any] = []

    def once_broken(batch: Batch) -> None:
        calls.append(batch.stable_id)
        if len(calls) == 1:
            raise RuntimeError("not now")

    delivery = engine.deliver("words", CallbackSink(once_broken))
    engine.push("incoming", [("a",)])
    engine.push("incoming", [("b",)])
    with pytest.raises(SinkError, match="not now"):
        delivery.pump()
    assert delivery.pump() == 2
    assert calls == [("words", None, 1), ("words", None, 1), ("words", None, 2)]


def test_a_webhook_gets_json_and_the_id(types: App, open_engine: Open, receiver: Receiver) -> None:
    engine = open_engine(types)
    delivery = engine.deliver("everything", WebhookSink(receiver.url, headers={"Authorization": "Bearer x"}))
    engine.push("incoming", [ROW], batch_id=17)
    delivery.pump()
    ((headers, body),) = receiver.got
    assert headers["Tidegate-Batch"] == "everything/4/17"
    assert headers["Authorization"] == "Bearer x"
    assert (body["stream"], body["key"], body["batch_id"]) == ("everything", 4, 17)
    row = body["rows"][0]
    assert (row["price"], row["moment"], row["many"]) == (
        "12345.60",
        "2026-01-02T03:04:05.000678",
        [1, None, 3],
    )


@pytest.mark.parametrize(
    ("status", "told"),
    [(500, "answered 500 .*so it is"), (302, "redirect is not followed"), (0, "no connection")],
)
def test_a_webhook_that_refuses_gets_it_again(
    words: App, open_engine: Open, receiver: Receiver, status: int, told: str
) -> None:
    engine = open_engine(words)
    delivery = engine.deliver("words", WebhookSink(receiver.url, timeout_s=30))
    engine.push("incoming", [("a",)])
    receiver.answers = [status]
    with pytest.raises(SinkError, match=told):
        delivery.pump()
    assert delivery.pump() == 1
    assert [headers["Tidegate-Batch"] for headers, _ in receiver.got] == ["words//1"] * 2


def test_a_webhook_takes_web_addresses_only() -> None:
    for wrong in ("file:///etc/passwd", "example.org", "http://"):
        with pytest.raises(SinkError, match="http:// or https://"):
            WebhookSink(wrong)


def test_nobody_listens(words: App, open_engine: Open) -> None:
    engine = open_engine(words)
    delivery = engine.deliver("words", WebhookSink("http://127.0.0.1:9/", timeout_s=1))
    engine.push("incoming", [("a",)])
    with pytest.raises(SinkError, match=r"Connection refused.*sent again"):
        delivery.pump()
