"""Subscribers of a server: committed batches, encoded once, handed to any number of connections.

    commit ──▶ queue ──▶ fan-out thread: waits until they are on disk, encodes ──▶ event loop ──▶ tails

A **tail** follows a stream from now on. Its buffer is bounded; a subscriber that falls behind is dropped with the
cursor of the last batch it got, and may reconnect with it while the server still holds what followed. Nothing here can
delay a commit, which only puts the batch into a queue, and that queue is bounded too. Named subscribers are in
``tidegate.server.named``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.errors import CursorGone, Overloaded
from tidegate.streams.batch import Batch
from tidegate.txn.positions import describe
from tidegate.txn.ticket import Ticket
from tidegate.wire import RowWire, batch_facts, speak

log = logging.getLogger("tidegate.server")

QUEUED = 50_000  # batches between commits and the fan-out thread; beyond that, tails have a gap and are dropped
AT_ONCE = 500  # batches encoded before the event loop is notified
KEPT = 10_000  # batches of a stream kept for subscribers that reconnect
KEPT_BYTES = 16 << 20
CLOSING_S = 0.2  # how often a thread that waits for the disk checks whether to stop
LINGER_S = 60.0  # how long a stream without followers is kept


@dataclass(frozen=True, slots=True)
class Event:
    """One batch for subscribers: its cursor, and its JSON."""

    number: int
    cursor: str
    data: bytes


class Tail:
    """One connection that follows a stream. Lives in the event loop."""

    def __init__(self, stream: str, capacity: int, capacity_bytes: int, missed: list[Event]) -> None:
        self.stream = stream
        self.lost: str | None = None  # why it was dropped
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._events = missed  # kept by the feed anyway: they don't count against the capacity
        self._extra = len(missed)
        self._bytes = 0
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        if self.lost is not None:
            return
        if len(self._events) - self._extra >= self._capacity or self._bytes + len(event.data) > self._capacity_bytes:
            self.lose(f"it did not read fast enough: {len(self._events)} batches were waiting for it")
            return
        self._events.append(event)
        self._bytes += len(event.data)
        self._arrived.set()

    def lose(self, why: str) -> None:
        """It gets what is buffered, and then the reason why there is no more."""
        self.lost = self.lost or why
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """What has arrived, waiting up to ``timeout_s`` seconds; Overloaded when later batches were not kept."""
        if not self._events and self.lost is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        self._arrived.clear()
        events, self._events, self._bytes, self._extra = self._events, [], 0, 0
        if not events and self.lost is not None:
            raise Overloaded(
                f"this subscriber of {self.stream} was dropped: {self.lost}. Reconnect with the last cursor, or "
                "subscribe under a name to lose nothing",
                stream=self.stream,
            )
        return events


class Feed:
    """One stream that someone follows, or did a moment ago. Lives in the event loop."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number  # of the newest event
        self.kept: deque[Event] = deque()
        self.kept_bytes = 0
        self.tails: set[Tail] = set()

    def publish(self, event: Event) -> None:
        self.number = event.number
        self.kept.append(event)
        self.kept_bytes += len(event.data)
        while len(self.kept) > KEPT or self.kept_bytes > KEPT_BYTES:
            self.kept_bytes -= len(self.kept.popleft().data)
        for tail in self.tails:
            tail.put(event)


class Feeds:
    """All feeds of a server, and the thread between commits and the event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.run = secrets.token_hex(4)  # cursors of another run are not valid here
        self.wires = {s.name: RowWire(s.relation) for s in engine.app.streams.values()}
        self.emitted: dict[str, int] = {s.name: 0 for s in engine.app.streams.values() if not s.border}
        self.feeds: dict[str, Feed] = {}
        self._numbers: dict[str, int] = {}  # of the newest event of a stream; the fan-out thread's
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[str, int, int, Batch] | Callable[[], None] | None] = SimpleQueue()
        self._listeners: dict[str, Callable[[int, Batch], None]] = {}
        self._gaps: set[str] = set()
        self._closing = False
        self._count_emitted()
        self._thread = threading.Thread(target=self._run, name="tidegate-fan-out", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return self._queue.qsize()

    def _count_emitted(self) -> None:
        """Count what is committed to every interior stream: a dictionary entry for each batch, for rates."""
        counts = self.emitted

        def count(_: int, batch: Batch) -> None:
            counts[batch.relation.name] += 1

        with self.engine.lock:
            for name in counts:
                self.engine.runtime.listen(name, count)

    # ---- the event loop

    async def tail(self, stream: str, cursor: str | None, capacity: int, capacity_bytes: int) -> Tail:
        """Follow ``stream`` from now on, or from just after ``cursor``."""
        if stream not in self.emitted:
            self.engine.check_emitted(stream)
        feed = self.feeds.get(stream)
        if feed is None:
            feed = self.feeds[stream] = Feed(stream, self._numbers.get(stream, 0))
            await asyncio.to_thread(self._listen, stream)
        tail = Tail(stream, capacity, capacity_bytes, self._since(feed, cursor))
        feed.tails.add(tail)
        return tail

    def _since(self, feed: Feed, cursor: str | None) -> list[Event]:
        if cursor is None:
            return []
        run, _, number = cursor.rpartition(".")
        after = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else -1
        missed = feed.number - after
        if run != self.run or not 0 <= missed <= len(feed.kept):
            raise CursorGone(
                f"the server does not hold what came after cursor {cursor!r} on {feed.name} (any more): it keeps only "
                f"the last {KEPT} batches, until it is restarted. Start without a cursor, or subscribe under a name "
                "to miss nothing",
                stream=feed.name,
                cursor=cursor,
            )
        return list(feed.kept)[len(feed.kept) - missed :]

    def leave(self, tail: Tail) -> None:
        """The connection is gone; the feed stays for a while, in case it reconnects."""
        feed = self.feeds[tail.stream]
        feed.tails.discard(tail)
        if not feed.tails:
            self._loop.call_later(LINGER_S, self._forget, feed)

    def _forget(self, feed: Feed) -> None:
        if not feed.tails and self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]
            self._loop.run_in_executor(None, self._unlisten, feed.name)

    def cursor(self, stream: str) -> str:
        """The cursor of a subscriber that has seen everything so far."""
        return f"{self.run}.{self.feeds[stream].number}"

    def _publish(self, events: list[tuple[str, Event]]) -> None:
        for stream, event in events:
            if stream in self.feeds:
                self.feeds[stream].publish(event)

    def _skip(self, stream: str, number: int) -> None:
        """The batch ``number`` of a stream was not kept: its followers are dropped, and no cursor crosses the gap."""
        feed = self.feeds.get(stream)
        if feed is not None:
            feed.kept.clear()
            feed.kept_bytes = 0
            feed.number = number
            for tail in feed.tails:
                tail.lose("the stream was faster than the server could send it")

    # ---- any thread

    def _listen(self, stream: str) -> None:
        outbox, queue, gaps = self.engine.outbox, self._queue, self._gaps

        def receive(position: int, batch: Batch) -> None:
            """Called inside the commit: only queues."""
            if queue.qsize() >= QUEUED or stream in gaps:  # what comes after a gap is not kept either
                gaps.add(stream)
            else:
                queue.put((stream, outbox.lsn(), position, batch))

        with self.engine.lock:
            if stream not in self._listeners:
                self._listeners[stream] = receive
                self.engine.runtime.listen(stream, receive)

    def _unlisten(self, stream: str) -> None:
        with self.engine.lock:
            if stream not in self.feeds and stream in self._listeners:
                self.engine.runtime.unlisten(stream, self._listeners.pop(stream))

    def call(self, job: Callable[[], None]) -> None:
        """Run ``job`` on the fan-out thread, after what is queued."""
        self._queue.put(job)

    # ---- the fan-out thread

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            batches: list[tuple[str, int, int, Batch]] = []
            while True:
                if callable(item):
                    break
                batches.append(item)
                if len(batches) >= AT_ONCE or self._queue.empty():
                    item = None
                    break
                item = self._queue.get()
                if item is None:
                    return
            try:
                self._pass_on(batches)
                if callable(item):
                    item()
            except Exception:
                if self._loop.is_closed():
                    return
                log.exception("serving a subscriber failed; the others are not affected")

    def _pass_on(self, batches: list[tuple[str, int, int, Batch]]) -> None:
        if batches and self._on_disk(batches[-1][1]):
            self._loop.call_soon_threadsafe(self._publish, [self._event(*batch) for batch in batches])
        while self._gaps and self._queue.empty():
            stream = next(iter(self._gaps))
            number = self._numbers[stream] = self._numbers.get(stream, 0) + 1
            self._gaps.discard(stream)
            self._loop.call_soon_threadsafe(self._skip, stream, number)

    def _event(self, stream: str, lsn: int, position: int, batch: Batch) -> tuple[str, Event]:
        number = self._numbers[stream] = self._numbers.get(stream, 0) + 1
        cursor = f"{self.run}.{number}"
        facts = {**batch_facts(self.wires[stream], batch), "position": describe(position), "cursor": cursor}
        return stream, Event(number, cursor, speak(facts))

    def _on_disk(self, lsn: int) -> bool:
        """Wait until no crash can undo anything up to here; False when that will never be.

        It waits for the next group commit instead of requesting one: subscribers must not make pushes slower.
        """
        durable = self.engine.durable
        if durable is None or durable.writer.synced >= lsn:
            return True
        synced = Ticket(self.engine.teller)
        with self.engine.lock:
            durable.acknowledge(synced, lsn)
        event = synced.event()
        while not event.wait(CLOSING_S):
            if self._closing:
                return False
        return synced.error is None

    def facts(self) -> dict[str, Any]:
        """Buffers of subscribers, for metrics and people."""
        return {
            name: {"subscribers": len(feed.tails), "buffered": max((len(tail) for tail in feed.tails), default=0)}
            for name, feed in self.feeds.items()
        }

    def let_go(self) -> None:
        """Tell everyone that the server is stopping."""
        for feed in self.feeds.values():
            for tail in feed.tails:
                tail.lose("the server is stopping")

    async def close(self) -> None:
        """Stop the thread; the engine's listeners go with the engine."""
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
