"""A server that stops while the engine is busy: whoever waits gets an answer that says so."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import tidegate
from tidegate import App
from tidegate.server.local import LocalServer


def test_requests_that_wait_behind_a_long_procedure_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.server.local.CLOSE_S", 0.1)
    began, may_end = threading.Event(), threading.Event()
    app = App("busy")

    @app.procedure()
    def linger(txn: Any) -> None:
        began.set()
        may_end.wait(60)

    with tidegate.open(app) as engine, ThreadPoolExecutor() as others:
        server = LocalServer(engine)
        transport = httpx.HTTPTransport(uds=str(server.path))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            called = others.submit(client.post, "/v1/procedures/linger", json={})
            began.wait(60)
            asked = others.submit(client.get, "/v1/position", params={"source": "till"})
            while not client.get("/v1/status").json()["requests_waiting"]:
                pass
            closing = others.submit(server.close)
            answers = [called.result(60), asked.result(60)]
            may_end.set()
            closing.result(60)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert [answer.json()["error"]["type"] for answer in answers] == ["EngineClosed", "EngineClosed"]
