"""The replica process: a copy of the tables, fed by the engine, queried by everyone else.

Started by tidegate.replica.supervisor with three inherited sockets: the feed, a listener for queries from the engine's
process, and (perhaps) a listener for PostgreSQL clients. The listeners belong to the engine's process and outlive this
one: clients that connect during a restart wait. It ends when the feed is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import traceback
from dataclasses import replace
from typing import Any

from tidegate.guard.door import Door, Line
from tidegate.replica.catalog.tables import declare_catalog
from tidegate.replica.frames import Frame, Kind, from_ipc, pack, receive
from tidegate.replica.freshness import Freshness
from tidegate.replica.limits import Limits
from tidegate.replica.local import LocalQueries
from tidegate.replica.mirror import Mirror, tables_of
from tidegate.replica.running import Work
from tidegate.replica.statements import Statements
from tidegate.replica.system_views import SystemViews
from tidegate.replica.wire.scram import Verifier
from tidegate.replica.wire.server import ENTERING, PostgresServer

ALIVE_EVERY_S = 0.2
NICE = 5  # the engine's transactions have priority
SPARE = 128  # descriptors for everything but connections
LOCAL = 512  # queries of the engine's process at a time


class Replica:
    """Everything in the replica process, around one event loop."""

    def __init__(self, feed: socket.socket, configured: dict[str, Any]) -> None:
        self._feed = feed
        self._sending = threading.Lock()
        self._loop = asyncio.get_running_loop()
        limits = Limits(**configured["limits"])
        _, for_clients = places(limits.connections)
        self.limits = replace(limits, connections=min(limits.connections, for_clients - for_clients // 3))
        self.mirror = Mirror(
            tables_of(configured["tables"]),
            tables_of(configured["views"]),
            int(self.limits.memory_mb * 0.8),
            self.limits.threads,
            self.limits.history_merges,
            self.limits.history_rows,
            configured["plain"],
        )
        declare_catalog(self.mirror)
        self.mirror.lock_down()
        self.work = Work(self.mirror, Statements(self.mirror, self.limits.statement_bytes), self.limits)
        asked = [view for view in self.mirror.views if view != "frontier"]
        self.views = SystemViews(asked, lambda request, names: self.say(Kind.WANT_VIEWS, request=request, views=names))
        self.freshness = Freshness(
            lambda request: self.say(Kind.AWAKE, request=request), lambda: self.say(Kind.RESTING), self._position
        )
        self.local = LocalQueries(self.work, self.views, self.freshness)
        self.postgres = PostgresServer(
            self.work, self.views, self.freshness, self.limits, _users(configured["users"]), _tls(configured["tls"])
        )
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()

    def say(self, kind: Kind, **facts: Any) -> None:
        """Send to the engine's process; from any thread."""
        with self._sending:
            try:
                self._feed.sendall(pack(kind, facts))
            except OSError:
                pass  # the feed's thread notices

    def follow(self) -> None:
        """Apply what the engine sends; runs on its own thread until the engine is gone.

        If a change can't be applied the copy would be wrong: the process ends, and the next one starts from a full
        copy.
        """
        try:
            while (frame := receive(self._feed)) is not None:
                self._apply(frame)
        except Exception:
            traceback.print_exc()
            os._exit(1)
        self._loop.call_soon_threadsafe(self.gone.set)

    def _apply(self, frame: Frame) -> None:
        mirror, facts = self.mirror, frame.facts
        if frame.kind is Kind.BEGIN:
            mirror.begin(facts["number"], facts["position"], facts["fresh"])
        elif frame.kind is Kind.DELETE:
            mirror.delete(facts["table"], from_ipc(frame.body))
        elif frame.kind is Kind.INSERT:
            mirror.insert(facts["table"], from_ipc(frame.body))
        elif frame.kind is Kind.PUBLISH:
            mirror.publish()
            self._loop.call_soon_threadsafe(self.ready.set)
            self._loop.call_soon_threadsafe(self.freshness.arrived)
        elif frame.kind is Kind.FRESH:
            self._loop.call_soon_threadsafe(self.freshness.told, facts["request"], facts["position"])
        elif frame.kind is Kind.VIEW:
            mirror.show_view(facts["view"], from_ipc(frame.body))
        elif frame.kind is Kind.VIEWED:
            self._loop.call_soon_threadsafe(self.views.arrived, facts["request"])
        elif frame.kind is Kind.END:
            self._loop.call_soon_threadsafe(self._farewell, facts["reason"])

    def _position(self) -> int:
        frontier = self.mirror.frontier
        return -1 if frontier is None else frontier.position

    def _farewell(self, reason: str) -> None:
        self.postgres.end_all(reason)
        self.say(Kind.FAREWELL)

    async def report(self) -> None:
        """Report regularly that the event loop is alive, and what can't be stopped."""
        while True:
            self.freshness.look(self.work.running > 0)
            frontier = self.mirror.frontier
            self.say(
                Kind.ALIVE,
                overdue_s=self.work.overdue_s(),
                running=self.work.running,
                connections=self.postgres.connections,
                position=None if frontier is None else frontier.position,
            )
            await asyncio.sleep(ALIVE_EVERY_S)


def _users(told: dict[str, Any] | None) -> dict[str, tuple[Verifier, tuple[str, ...] | None]] | None:
    if told is None:
        return None
    return {
        name: (Verifier(**verifier), None if tables is None else tuple(tables))
        for name, (verifier, tables) in told.items()
    }


def _tls(files: list[str] | None) -> ssl.SSLContext | None:
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*files)
    return context


async def run(feed: socket.socket, local: socket.socket, postgres: socket.socket | None) -> None:
    """Serve until the engine is gone."""
    configured = await asyncio.to_thread(receive, feed)
    if configured is None or configured.kind is not Kind.CONFIGURE:
        return
    replica = Replica(feed, configured.facts)
    threading.Thread(target=replica.follow, name="feed", daemon=True).start()
    tasks = [asyncio.ensure_future(replica.report()), asyncio.ensure_future(replica.work.watch())]
    tasks.append(asyncio.ensure_future(replica.postgres.watch()))
    gone = asyncio.ensure_future(replica.gone.wait())
    ready = asyncio.ensure_future(replica.ready.wait())
    await asyncio.wait((gone, ready), return_when=asyncio.FIRST_COMPLETED)
    if not gone.done():
        for_local, for_clients = places(replica.limits.connections)
        inside = Door(local, for_local, "queries of the server", shows_out=False)
        inside.open(lambda: Line(inside, replica.local.serve))
        if postgres is not None:
            outside = Door(postgres, for_clients, "PostgreSQL connections")
            outside.open(lambda: Line(outside, replica.postgres.serve, 1 << 18))
        replica.say(Kind.READY)
    await gone
    for task in tasks:
        task.cancel()


def places(connections: int) -> tuple[int, int]:
    """For how many connections of the engine's process, and of PostgreSQL clients, there are descriptors."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return LOCAL, connections + ENTERING
    free = files - min(SPARE, files // 2)
    for_local = min(LOCAL, free // 2)
    return for_local, min(connections + ENTERING, free - for_local)


def confine(memory_mb: int, connections: int) -> None:
    """Give up what this process does not need: writing files, core dumps, new privileges, more memory than its share.

    The address space is bounded well above the resident memory the supervisor watches, because libraries and threads
    reserve much that they never touch: it stops what grows faster than the supervisor can react.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    space = (memory_mb * 2 + 2_048) << 20
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    files = connections + ENTERING + LOCAL + SPARE
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = files if most == resource.RLIM_INFINITY else min(files, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.nice(NICE)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the engine


def main(arguments: list[str]) -> None:
    """``feed local postgres memory_mb connections``: descriptors (-1: none) and bounds."""
    feed, local, postgres, memory_mb, connections = map(int, arguments)
    confine(memory_mb, connections)
    sockets = [None if number < 0 else socket.socket(fileno=number) for number in (feed, local, postgres)]
    assert sockets[0] is not None
    assert sockets[1] is not None
    asyncio.run(run(sockets[0], sockets[1], sockets[2]))
    os._exit(0)  # it does not wait for workers that can't be stopped
