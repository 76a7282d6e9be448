"""A server for other processes of the same user on this machine: on a Unix socket, in a thread of the engine's process.

The same endpoints as over the network. The socket is in a directory that only this user can enter, so there are no
tokens. SQL is answered by the engine itself, at its newest committed state: a process that can open the socket could
read the engine's memory anyway.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.engine.engine import Engine
from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.guard.door import room_for
from tidegate.mutex import Flag
from tidegate.server.app import make_app
from tidegate.server.protocol import BoundedServer
from tidegate.server.settings import Settings
from tidegate.server.tokens import load_tokens

BODY_BYTES = 1 << 30
ROWS = 1 << 40
CLOSE_S = 5
CONNECTIONS = 200


class LocalServer:
    """Listens until it is closed; use it in a ``with`` block. ``url`` is for :func:`tidegate.connect`."""

    def __init__(self, engine: Engine) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tidegate-"))  # for this user only
        self.path = self._directory / "engine.sock"
        self.url = f"unix:{self.path}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        self._socket.listen(128)
        settings = Settings(body_bytes=BODY_BYTES, body_rows=ROWS, row_limit=ROWS)
        application = make_app(engine, settings, load_tokens(None, None), EngineQueries(engine), None)
        self._server = _ThreadServer(
            application,
            settings,
            self._socket,
            room_for(CONNECTIONS),
            application.let_go,
            loop="asyncio",
            timeout_graceful_shutdown=CLOSE_S,
        )
        self._thread = threading.Thread(target=self._run, name="tidegate-local-server", daemon=True)
        self._thread.start()
        if not self._server.ready.wait(30) or not self._server.started:
            self.close()
            raise TidegateError("the local server did not start; its log says why")

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.ready.set()

    def close(self) -> None:
        """End the requests under way and stop listening. The engine stays open."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ThreadServer(BoundedServer):
    """Runs beside the main thread, which waits until it is ready."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ready = Flag()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class EngineQueries:
    """Answers SQL with the engine's own ``query``, each request in a thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def status(self) -> dict[str, Any]:
        return {"ready": True, "local": True}

    async def query(
        self,
        sql: str,
        parameters: list[Any] | dict[str, Any] | None,
        *,
        row_limit: int,
        timeout_s: float,
        as_of: int | None,
        user: str,
        tables: tuple[str, ...] | None,
    ) -> tuple[pa.Schema, AsyncIterator[pa.RecordBatch]]:
        if as_of is not None:
            raise QueryFailed(f"the state at {as_of} is not kept here: a local server answers at the newest state")
        table = await asyncio.to_thread(self._run, sql, parameters)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            for batch in table.slice(0, row_limit).to_batches(max_chunksize=64_000):
                yield batch

        return table.schema, batches()

    def _run(self, sql: str, parameters: list[Any] | dict[str, Any] | None) -> pa.Table:
        try:
            if isinstance(parameters, dict):
                return self._engine.query(sql, **parameters).arrow
            return self._engine.query(sql, *(parameters or ())).arrow
        except TidegateError as error:
            raise QueryRefused(str(error), sql=sql) from None
