"""Requests find their handler, odd paths find none, and a handler that fails is a 500 that says nothing of the inside."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tidegate.server.gate import Gate, first_of_each
from tidegate.server.metrics import Metrics
from tidegate.server.routing import Direct
from tidegate.server.settings import Settings
from tidegate.server.sites import host_name
from tidegate.server.table import ENDPOINTS
from tidegate.server.tokens import Tokens


async def _otherwise(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is left for others")


DIRECT = Direct(ENDPOINTS, lambda: None, _otherwise)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_endpoint_is_found_with_its_parameters(endpoint: Any) -> None:
    names = [segment[1:-1] for segment in endpoint.path.split("/") if segment.startswith("{")]
    path = endpoint.path
    for name in names:
        path = path.replace(f"{{{name}}}", f"a {name}")
    assert DIRECT.find(endpoint.method, path) == (endpoint, {name: f"a {name}" for name in names})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/query"),
        ("GET", "/v1/query/"),
        ("GET", "/v1"),
        ("GET", "//health"),
        ("GET", "/v1/tickets/"),
        ("GET", "/v1/tickets/a/b"),
        ("GET", "/v1/{}"),
        ("GET", "/v1/status/GET "),
        ("GET", "/console/../app.py"),
        ("GET", ""),
        ("OPTIONS", "*"),
    ],
)
def test_what_is_not_in_the_table_is_left_to_others(method: str, path: str) -> None:
    assert DIRECT.find(method, path) is None


def test_of_a_header_sent_twice_the_first_counts() -> None:
    assert first_of_each([(b"host", b"a"), (b"x", b"\xff"), (b"host", b"b")]) == {"host": "a", "x": "ÿ"}


@pytest.mark.parametrize(
    ("host", "name"),
    [("LocalHost:80", "localhost"), ("[::1]:8080", "::1"), ("a@b", ""), ("a:b", ""), ("a/b", ""), ("", ""), ("[", "")],
)
def test_names_of_hosts(host: str, name: str) -> None:
    assert host_name(host) == name


def test_a_handler_that_fails_is_logged_and_told_without_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret")

    gate = Gate(broken, Settings(), Tokens(), Metrics(), lambda: None)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/status")

    logger = logging.getLogger("tidegate.server")
    logger.addHandler(caplog.handler)
    try:
        answer = asyncio.run(ask())
    finally:
        logger.removeHandler(caplog.handler)
    assert answer.status_code == 500
    assert "its log has the details" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert "secret" in caplog.text
