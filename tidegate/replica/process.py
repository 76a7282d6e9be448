"""The query replica, as the engine's process sees it: start, stop, ask."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.forking import own
from tidegate.guard.addresses import is_loopback
from tidegate.guard.private import check_secret
from tidegate.mutex import Flag
from tidegate.replica.frames import Frame, Kind, from_ipc, pack, read_frame, receive, schema_from_ipc, values_to_ipc
from tidegate.replica.limits import Limits
from tidegate.replica.supervisor import Supervisor
from tidegate.replica.wire.scram import Verifier

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

START_S = 120.0
RESTARTED = "57P01"  # SQLSTATE when the replica ended before it answered
POSITION = b"tidegate.position"  # in the metadata of an answer's schema

Parameters = Sequence[Any] | Mapping[str, Any]


class ReplicaProcess:
    """A separate process that answers SQL over a copy of the engine's tables, at the position of the last merge.

    ``pg_port``: also serve the PostgreSQL protocol there (0: any free port, see ``pg_address``; None: not at all).
    ``passwords``: user -> password; without them every user may read, which is allowed on loopback only.
    ``tables``: user -> patterns of the tables (and ``tidegate.*`` views) it may read; without them, all.
    ``tls``: files with the certificate (chain) and its key.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits | None = None,
        *,
        pg_host: str = "127.0.0.1",
        pg_port: int | None = None,
        tls: tuple[str | Path, str | Path] | None = None,
        passwords: Mapping[str, str] | None = None,
        tables: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.limits = limits if limits is not None else Limits()
        if pg_port is not None and passwords is None and not is_loopback(pg_host):
            raise TidegateError(
                f"the SQL endpoint would be open to everyone who reaches {pg_host}; give passwords (or tokens), or "
                "listen on 127.0.0.1"
            )
        self._engine = engine
        self._pg = None if pg_port is None else (pg_host, pg_port)
        users = None
        if passwords is not None:
            scopes = tables or {}
            users = {user: (Verifier.of(p).facts(), scopes.get(user)) for user, p in passwords.items()}
        files = None if tls is None else [str(Path(file).resolve()) for file in tls]
        for file in files or ():
            if not Path(file).is_file():
                raise TidegateError(f"there is no file {file}; tls takes the certificate and its key", path=file)
        if files is not None:
            check_secret(Path(files[1]), "the key of the TLS certificate")
        self._configured = {"users": users, "tls": files}
        self._asking: Counter[str] = Counter()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._listeners: list[socket.socket] = []
        self._supervisor: Supervisor | None = None
        own(self)

    def left_behind(self) -> None:
        """In a forked child: the parent removes the folder with the socket."""
        if self._folder is not None:
            self._folder._finalizer.detach()  # type: ignore[attr-defined]

    # ---- running

    def start(self, timeout_s: float = START_S) -> ReplicaProcess:
        """Start it; returns when it has its copy and answers."""
        if self._supervisor is not None:
            raise TidegateError("the replica is already running")
        self._engine.check_open()
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-replica-")
        local = socket.socket(socket.AF_UNIX)
        local.bind(self._path)
        os.chmod(self._path, 0o600)
        local.listen(1_024)
        self._listeners = [local]
        try:
            if self._pg is not None:
                self._listeners.append(_listen(*self._pg))
            self._supervisor = Supervisor(self._engine, self.limits, self._configured, self._listeners)
            self._supervisor.start()
            if not self._supervisor.wait_ready(timeout_s):
                why = self._supervisor.last_trouble or "it is still reading the tables"
                raise TidegateError(f"the query replica did not start within {timeout_s:g} s: {why}")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it. Its sessions are notified; the engine continues."""
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        for listener in self._listeners:
            listener.close()
        self._listeners = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> ReplicaProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pg_address(self) -> tuple[str, int] | None:
        """Where PostgreSQL clients connect: host and port."""
        if len(self._listeners) < 2:
            return None
        host, port = self._listeners[1].getsockname()[:2]
        return host, port

    @property
    def position(self) -> int | None:
        """The position of its newest copy, as last reported; None before the first."""
        child = None if self._supervisor is None else self._supervisor.child
        found = None if child is None else child.alive.get("position")
        return None if found is None else int(found)

    @property
    def status(self) -> dict[str, Any]:
        """Its last report: for health checks and metrics."""
        supervisor = self._supervisor
        child = None if supervisor is None else supervisor.child
        if supervisor is None or child is None:
            return {"ready": False, "restarts": 0}
        return {
            "ready": child.ready.is_set() and child.process.poll() is None,
            "restarts": supervisor.starts - 1,
            "last_trouble": supervisor.last_trouble,
            "process": child.process.pid,
            "memory_mb": round(child.resident_mb()),
            "position": child.alive.get("position"),
            "behind": max(0, supervisor.feed.position - (child.alive.get("position") or 0)),
            "running": child.alive.get("running", 0),
            "connections": child.alive.get("connections", 0),
        }

    @property
    def _path(self) -> str:
        if self._folder is None:
            raise TidegateError("the query replica is not running; call start() first")
        return f"{self._folder.name}/query"

    # ---- asking

    async def query(
        self,
        sql: str,
        parameters: Parameters | None = None,
        *,
        row_limit: int | None = None,
        timeout_s: float | None = None,
        as_of: int | None = None,
        user: str = "server",
        tables: Sequence[str] | None = None,
    ) -> tuple[pa.Schema, AsyncIterator[pa.RecordBatch]]:
        """Answer one SELECT: the schema (its metadata has ``tidegate.position``), then the rows as they come.

        Raises QueryRefused when the statement is not allowed, QueryFailed when it can't be answered. ``row_limit``: at
        most this many rows (more than ``Limits.rows`` are an error); ``timeout_s``: less time than allowed, never more.
        ``as_of``: a sequence number, see :meth:`position`. ``user``: on whose behalf, for a fair share; ``tables``: what it
        may read. Closing the iterator cancels the query.
        """
        request = _request(sql, parameters, row_limit, timeout_s, as_of, user, tables)
        if self._asking[user] >= self.limits.waiting:
            raise QueryFailed(
                f"{user!r} has {self.limits.waiting} queries running or waiting, which is the limit; try again when "
                "one is done",
                sqlstate="53400",
            )
        self._asking[user] += 1
        try:
            return await self._answer(request, timeout_s, user)
        except BaseException:
            self._answered(user)
            raise

    def _answered(self, user: str) -> None:
        self._asking[user] -= 1
        if not self._asking[user]:
            del self._asking[user]

    async def _answer(
        self, request: bytes, timeout_s: float | None, user: str
    ) -> tuple[pa.Schema, AsyncIterator[pa.RecordBatch]]:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(request)
            await writer.drain()
            async with asyncio.timeout(self._patience(timeout_s)):
                schema = self._schema(await read_frame(reader))
        except TimeoutError:
            writer.close()
            raise self._no_answer() from None
        except BaseException:
            writer.close()
            raise

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            try:
                while (table := self._rows(await read_frame(reader))) is not None:
                    for batch in table.to_batches():
                        yield batch
            finally:
                writer.close()
                self._answered(user)

        return schema, batches()

    def query_sync(
        self,
        sql: str,
        parameters: Parameters | None = None,
        *,
        row_limit: int | None = None,
        timeout_s: float | None = None,
        as_of: int | None = None,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The same, without asyncio."""
        request = _request(sql, parameters, row_limit, timeout_s, as_of)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(self._patience(timeout_s))
        try:
            connection.connect(self._path)
            connection.sendall(request)
            schema = self._schema(receive(connection))
        except TimeoutError:
            connection.close()
            raise self._no_answer() from None
        except BaseException:
            connection.close()
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            with connection:
                while (table := self._rows(receive(connection))) is not None:
                    yield from table.to_batches()

        return schema, batches()

    def wait_for(self, position: int, timeout_s: float = 30.0) -> bool:
        """Wait until the replica shows ``position`` (for instance ``engine.sequence``); False when it takes too long."""
        waiting = Flag()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                _, batches = self.query_sync("SELECT position FROM tidegate.frontier")
                if int(next(batches)[0][0].as_py()) >= position:
                    return True
            except QueryFailed as error:
                if error.sqlstate != RESTARTED:
                    raise
            if time.monotonic() > deadline:
                return False
            waiting.wait(0.02)

    def _patience(self, timeout_s: float | None) -> float:
        """How long an answer may take to start: its own time, plus that of a kill and a restart."""
        limits = self.limits
        asked = limits.timeout_s if timeout_s is None else min(timeout_s, limits.timeout_s)
        return asked + limits.grace_s + START_S

    def _schema(self, frame: Frame | None) -> pa.Schema:
        found = self._checked(frame)
        schema = schema_from_ipc(found.body)
        told = {POSITION: str(found.facts["position"]).encode()}
        return schema.with_metadata({**(schema.metadata or {}), **told})

    def _rows(self, frame: Frame | None) -> pa.Table | None:
        found = self._checked(frame)
        return None if found.kind is Kind.DONE else from_ipc(found.body)

    def _checked(self, frame: Frame | None) -> Frame:
        if frame is None:
            raise self._no_answer()
        if frame.kind is Kind.ERROR:
            kind = QueryRefused if frame.facts["refused"] else QueryFailed
            raise kind(frame.facts["message"], sqlstate=frame.facts["sqlstate"])
        return frame

    def _no_answer(self) -> QueryFailed:
        trouble = None if self._supervisor is None else self._supervisor.last_trouble
        why = f" ({trouble})" if trouble else ""
        return QueryFailed(f"the query replica ended before it answered{why}; ask again", sqlstate=RESTARTED)


def _request(
    sql: str,
    parameters: Parameters | None,
    row_limit: int | None,
    timeout_s: float | None,
    as_of: int | None,
    user: str = "server",
    tables: Sequence[str] | None = None,
) -> bytes:
    parameters = () if parameters is None else parameters
    named = isinstance(parameters, Mapping)
    names = list(parameters) if isinstance(parameters, Mapping) else [str(i) for i in range(len(parameters))]
    values = list(parameters.values()) if isinstance(parameters, Mapping) else list(parameters)
    facts: dict[str, Any] = {"sql": sql, "row_limit": row_limit, "timeout_s": timeout_s, "as_of": as_of, "named": named}
    facts |= {"user": user, "tables": None if tables is None else list(tables)}
    try:
        body: bytes | memoryview = values_to_ipc(values, names) if values else b""
    except (pa.ArrowException, TypeError) as error:
        raise QueryFailed(f"a parameter can't be sent: {error}", sqlstate="22023") from None
    return pack(Kind.QUERY, facts, body)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise TidegateError(f"can't listen on {host}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise TidegateError(f"can't listen on {host}:{port}: {error}; choose another port") from None
    return listener
