"""The door of a server: how many connections it has room for, and which one makes room when it is full.

Descriptors are shared by connections and files. Files go first: a merge that can't open its file is worse than a client
that waits. So a server accepts only as many connections as leave enough descriptors for files. When all places are
taken, the longest idle connection is closed, those that were never served before others; when none is idle, new ones
wait in the kernel's queue until a place is free.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable

from tidegate.errors import TidegateError

log = logging.getLogger("tidegate.guard.door")

RESERVED = 256  # descriptors for files: log, base and its WAL, generations, backups, replica, connectors, Spark
LEAST = 8  # the fewest connections worth serving
PAUSE_S = 0.5  # pause after the system had no descriptor left
SAY_EVERY_S = 30.0
SHUTDOWN_S = 5.0  # of a TLS connection whose peer does not answer
SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def room_for(connections: int, each: int = 1) -> int:
    """How many connections, at most ``connections`` of ``each`` descriptors, leave enough for files.

    Raises the process's soft limit as far as needed and the hard limit allows.
    """
    used, (soft, hard) = _open_now(), resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = used + RESERVED + connections * each
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (OSError, ValueError):  # some systems allow less than they report
            pass
    free = soft - used
    found = min(connections, (free - min(RESERVED, free // 2)) // each)
    if found < LEAST:
        raise TidegateError(
            f"this process may open {soft} descriptors and has {used} open: too few for connections beside its files. Allow it "
            f"more: ulimit -n {wanted}, or LimitNOFILE={wanted} in its systemd unit",
            limit=soft,
        )
    if found < connections:
        log.warning(
            "%d connections at a time instead of %d: this process may open %d descriptors, and keeps some for files. For all "
            "of them: ulimit -n %d",
            found,
            connections,
            soft,
            wanted,
        )
    return found


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 64


class Door:
    """Accepts the connections of one listening socket, ``limit`` at a time. Lives in an event loop from ``open`` on.

    Protocols report the state of their connections: ``enter``, ``busy``, ``idle``, ``leave``, each with the transport.
    ``shows_out``: False for an internal door, where every connection has work to do.
    """

    def __init__(self, sock: socket.socket, limit: int, what: str, *, shows_out: bool = True) -> None:
        self._sock = sock
        self._limit = limit
        self._what = what
        self._shows_out = shows_out
        self._guests: set[object] = set()  # transports, and tasks of those being accepted
        self._strangers: dict[object, Callable[[], object]] = {}  # never served yet: how to close them
        self._idle: dict[object, Callable[[], object]] = {}  # those that have been served, longest idle first
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said_at = -SAY_EVERY_S
        self.shown_out = 0

    def open(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        """Start accepting connections, each with its own ``protocol()``."""
        self._sock.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._run(protocol, tls, handshake_s))

    def close(self) -> None:
        """Accept no more. Open ones stay."""
        if self._task is not None:
            self._task.cancel()

    # ---- called by protocols

    def enter(self, transport: asyncio.BaseTransport) -> None:
        self._guests.add(transport)
        self._strangers[transport] = transport.abort  # type: ignore[attr-defined]

    def busy(self, transport: asyncio.BaseTransport) -> None:
        """It is being served: it stays."""
        if self._strangers.pop(transport, None) is None:
            self._idle.pop(transport, None)

    def idle(self, transport: asyncio.BaseTransport) -> None:
        """It is no longer being served."""
        if transport in self._guests:
            self._idle[transport] = transport.abort  # type: ignore[attr-defined]
            self._changed.set()

    def leave(self, guest: object) -> None:
        self._guests.discard(guest)
        self._strangers.pop(guest, None)
        self._idle.pop(guest, None)
        self._changed.set()

    # ---- accepting

    async def _run(
        self, protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None, handshake_s: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while len(self._guests) >= self._limit:
                shown_out = self._make_room()
                self._say("all %d %s are taken; %s", self._limit, self._what, _WHAT_NOW[shown_out])
                self._changed.clear()
                await self._changed.wait()
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                if error.errno in SCARCE:
                    shown_out = self._make_room()
                    self._say("no descriptor is left for %s (%s); %s", self._what, error.strerror, _WHAT_NOW[shown_out])
                    await asyncio.sleep(PAUSE_S)
                continue  # otherwise the client is already gone
            task = loop.create_task(self._take_in(connection, protocol, tls, handshake_s))
            self._guests.add(task)
            self._strangers[task] = task.cancel
            task.add_done_callback(self.leave)

    async def _take_in(
        self,
        connection: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        handshake_s: float | None,
    ) -> None:
        more = {} if tls is None else {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection, ssl=tls, **more)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.debug("a connection failed before it was served: %s", error)

    def _make_room(self) -> bool:
        """Close the longest idle connection; False when none is idle."""
        for waiting in (self._strangers, self._idle) if self._shows_out else ():
            for guest in waiting:
                self.shown_out += 1
                waiting.pop(guest)()
                return True
        return False

    def _say(self, text: str, *facts: object) -> None:
        """Warn from time to time: a flood of clients must not become a flood of log lines."""
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            log.warning(text, *facts)


class Line(asyncio.StreamReaderProtocol):
    """A connection as a pair of streams: ``serve(reader, writer, stays)``; after ``stays()`` it need not make room."""

    def __init__(
        self,
        door: Door,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]], Awaitable[None]],
        buffered: int = 1 << 16,
    ) -> None:
        self._door = door
        self._first: asyncio.BaseTransport | None = None  # the one below TLS, if there is TLS
        super().__init__(asyncio.StreamReader(buffered), lambda reader, writer: serve(reader, writer, self._stays))

    def _stays(self) -> None:
        if self._first is not None:
            self._door.busy(self._first)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._first = transport
        self._door.enter(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._door.leave(self._first)


_WHAT_NOW = {True: "the longest idle one is closed", False: "new ones wait until one is free"}
