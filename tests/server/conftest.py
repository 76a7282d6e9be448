"""Real server processes on free ports, stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """``start(**asked)``: a server of this test's own."""
    servers: list[Server] = []

    def make(**asked: Any) -> Server:
        servers.append(Server(tmp_path / f"server-{len(servers)}.log", **asked))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A durable server with queries, shared by the tests of a file."""
    folder = tmp_path_factory.mktemp("server")
    server = Server(folder / "server.log", data=str(folder / "data"), queries=True)
    yield server
    server.stop()
    server.assert_no_errors()
