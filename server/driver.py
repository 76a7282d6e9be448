"""Driving the engine from an event loop: one thread calls it, and results come back in groups.

    handler ──job──▶ queue ──▶ engine thread: engine.push(…) ──▶ done ──one wake-up for many──▶ handlers' futures
                                        └─ ticket ──▶ log thread syncs, ticket is done ──▶ done ─┘

No handler ever waits for the engine's lock, and the engine never waits for a handler. The queue is bounded: when it is
full, work is refused with Overloaded instead of piling up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tidegate.engine.engine import Engine
from tidegate.engine.fed import Fed
from tidegate.errors import EngineClosed, FeedHalted, Overloaded, ServerError
from tidegate.txn.entries import Call
from tidegate.txn.ticket import Ticket

log = logging.getLogger("tidegate.server")

T = TypeVar("T")
Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]

FEEDS = 4  # bulk requests that run at the same time; others wait
TICK_S = 0.1  # how often time passes when idle, if nothing is due sooner


@dataclass(frozen=True)
class Accepted:
    """An accepted push: ``ticket`` for its outcome, ``sequence`` the last sequence number it was given."""

    ticket: Ticket
    sequence: int


class Mailbox:
    """Carries outcomes from any thread into the event loop, waking it once for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None = None) -> None:
        """Resolve ``future`` in the loop. Callable from any thread, under any lock."""
        self._done.append((future, value, error))
        if not self._woken:  # set after the append: a flush that has not begun yet will see it
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed: there are no waiters left
                pass

    def _flush(self) -> None:
        self._woken = False
        while self._done:
            future, value, error = self._done.popleft()
            if future.done():  # its client has gone
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def _as_error(error: BaseException) -> Exception:
    """An error that is safe to raise in the event loop, where a SystemExit from a procedure would end the server."""
    if isinstance(error, Exception):
        return error
    return ServerError(f"a procedure raised {error!r} and was stopped; the status shows what is halted", status=500)


class Driver:
    """The one thread that calls the engine. Created in the event loop that uses it."""

    def __init__(self, engine: Engine, capacity: int = 10_000) -> None:
        self.engine = engine
        self.capacity = capacity
        self.refused = 0
        self.pushed: dict[str, int] = dict.fromkeys(engine.borders, 0)  # batches accepted here, by stream
        self.calls = 0
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._feeding = ThreadPoolExecutor(FEEDS, "tidegate-feed")
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tidegate-engine", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return self._jobs.qsize()

    async def do(self, job: Callable[[], T]) -> T:
        """Run ``job`` on the engine's thread, after those queued before it."""
        if self._closed:
            raise EngineClosed("the server is stopping; try again when it is back")
        if self._jobs.qsize() >= self.capacity:
            raise Overloaded(
                f"{self.capacity} requests are already waiting for the engine; try again in a moment",
                capacity=self.capacity,
            )
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((job, future))
        return await future

    async def push(
        self,
        stream: str,
        rows: Any,
        batch_id: int | None,
        source: str | None,
        offset: Any,
        after: Any,
        digest: str | None,
    ) -> Accepted:
        """Push a batch; returns when it is accepted and on disk. The ticket has its outcome."""
        engine = self.engine

        def job() -> tuple[Ticket, Ticket | None, int]:
            place = {"source": source, "offset": offset, "after": after}
            ticket = engine.push(stream, rows, batch_id, timeout_s=0, digest=digest, **place)
            with engine.lock:
                self.pushed[stream] += len(ticket.batch_ids)
                return ticket, self._on_disk(ticket), engine.sequence

        return await self._accepted(job)

    async def submit(self, call: Call) -> Accepted:
        """Call a procedure; returns when the call is accepted and on disk."""
        engine = self.engine

        def job() -> tuple[Ticket, Ticket | None, int]:
            ticket = engine.acceptance.call(call, 0)  # never waits for room: answers arrive on this thread, too
            with engine.lock:
                self.calls += 1
                return ticket, self._on_disk(ticket), engine.sequence

        return await self._accepted(job)

    async def pass_time(self, act: Callable[[], Ticket]) -> Accepted:
        """Advance or finish streams; returns when that is accepted and on disk."""
        engine = self.engine

        def job() -> tuple[Ticket, Ticket | None, int]:
            ticket = act()
            with engine.lock:
                return ticket, self._on_disk(ticket), engine.sequence

        return await self._accepted(job)

    async def feed(self, stream: str, rows: list[Any], size: int, source: str | None, offset: Any, after: Any) -> Fed:
        """Feed rows. That may wait for room, so it has its own threads: answers make room, and arrive on this one."""

        def job() -> Fed:
            try:
                fed = self.engine.feed(stream, rows, size=size, source=source, offset=offset, after=after)
            except FeedHalted as halted:
                self.pushed[stream] += halted.result.batches
                raise
            except BaseException as error:
                raise _as_error(error) from error
            with self.engine.lock:
                self.pushed[stream] += fed.batches
            return fed

        return await self._loop.run_in_executor(self._feeding, job)

    async def _accepted(self, job: Callable[[], tuple[Ticket, Ticket | None, int]]) -> Accepted:
        try:
            ticket, on_disk, sequence = await self.do(job)
        except Overloaded:
            self.refused += 1
            raise
        if on_disk is not None:
            await self.finished(on_disk)
            if on_disk.error is not None:  # the log failed: it is unknown whether it is on disk
                raise on_disk.error
        return Accepted(ticket, sequence)

    def _on_disk(self, ticket: Ticket) -> Ticket | None:
        """A ticket that is done when everything logged so far is on disk; None when there is nothing to wait for."""
        durable = self.engine.durable
        if durable is None or ticket.done:
            return None
        synced = Ticket(self.engine.teller)
        durable.acknowledge(synced)
        return synced

    async def finished(self, ticket: Ticket, timeout_s: float | None = None) -> bool:
        """Wait until the ticket is done or stopped; False when ``timeout_s`` seconds were not enough."""
        if ticket.done or ticket.stopped:
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        ticket.listen(lambda _: self._mailbox.put(future, None))
        if timeout_s is None:
            await future
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        engine = self.engine
        threads = engine.config.executor == "threads"  # its workers let time pass themselves
        while True:
            try:
                found = self._jobs.get(timeout=None if threads else engine.acceptance.pause_s(TICK_S))
            except Empty:
                self._tick()
                continue
            if found is None:
                return
            job, future = found
            if future.cancelled():  # its client left before it was begun
                continue
            try:
                value = job()
            except BaseException as error:
                self._mailbox.put(future, None, _as_error(error))
            else:
                self._mailbox.put(future, value)

    def _tick(self) -> None:
        try:
            if self.engine.acceptance.idle_s() is not None:
                self.engine.tick()
        except Exception:  # a failed log or a full disk: the next request reports it
            log.debug("checking deadlines failed", exc_info=True)

    async def close(self) -> None:
        """Finish what is queued, then stop."""
        self._closed = True
        self._jobs.put(None)
        self._feeding.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._thread.join)
