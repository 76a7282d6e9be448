"""Tickets: what ``push`` and ``submit`` return."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from tidegate.errors import TidegateError
from tidegate.mutex import Flag
from tidegate.txn.teller import Teller

log = logging.getLogger("tidegate")

_registering = threading.Lock()  # shared by all: few tickets are waited for, and the others never take it


class Original(msgspec.Struct, frozen=True):
    """What became of a batch that was accepted before and is pushed again.

    ``state``: done, waiting, aborted, dead_letter or halted, with the ``reason``; unknown if it is not kept (any more).
    """

    batch_id: int | None
    key: Any
    state: str
    reason: str | None = None


class Ticket(msgspec.Struct, eq=False):
    """A push or a call in progress. ``done`` when it is accepted (on disk, with a directory) and all it caused has
    ended.

    ``result()`` waits and returns what a called procedure returned (None for a push), or raises what undid it.
    ``await ticket`` does the same in asyncio. ``duplicate``: the push was a repeat and changed nothing. ``original``:
    what became of the batches it repeats.

    A single object, without containers of its own that the garbage collector would have to visit: clients that do not
    wait keep many of them. (A ``Struct``, because its constructor is not written in Python.)
    """

    _teller: Teller
    _event: Flag | None = None
    _listeners: list[Callable[[Ticket], None]] | None = None
    ids: tuple[int, ...] = ()
    duplicate: bool = False
    done: bool = False
    error: TidegateError | None = None
    pending: int = 1  # things left to happen; the first: it is accepted, and on disk if there is one
    stopped: bool = False  # it can't continue for now, for the reason in ``error``
    value: Any = None
    look: Callable[[], list[Original]] | None = None

    @property
    def original(self) -> list[Original]:
        """What became of the batches that were accepted before, as far as is known now; empty for a new push."""
        return [] if self.look is None else self.look()

    @property
    def batch_ids(self) -> list[int]:
        """The ids that the batches of a push got, one per key value."""
        return list(self.ids)

    def result(self, timeout_s: float | None = None) -> Any:
        """What the call returned, once it has; raises Aborted, ProcedureFailed or StillWaiting."""
        if not (self.done or self.stopped):
            self._teller.wait(self, timeout_s)
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, callback: Callable[[Ticket], None]) -> None:
        """Call ``callback(ticket)`` once, when it is done or stopped by an error (right away, if it already is).

        A thread of the engine calls callbacks one after another, in the order in which tickets become done, and never
        in the middle of other work: a callback may push, call and wait. What it raises is logged.
        """
        self.listen(lambda ticket: ticket._teller.call(callback, ticket))

    def listen(self, listener: Callable[[Ticket], None]) -> None:
        """Like ``add_done_callback``, but called at once, with the engine's lock held: only for passing the news on."""
        self._teller.listened = True
        with _registering:
            self._listeners = [*(self._listeners or ()), listener]
        if self.done or self.stopped:  # checked after registering: whoever finishes it now sees the listener
            self._tell()

    def event(self) -> Flag:
        """Set when done or stopped by an error; for waiting in another thread."""
        with _registering:
            if self._event is None:
                self._event = Flag()
        if self.done or self.stopped:
            self._event.set()
        return self._event

    def expect(self) -> None:
        """One more thing has to happen before it is done."""
        self.pending += 1

    def arrive(self, error: TidegateError | None = None, value: Any = None) -> None:
        """One of those things has happened; the first error among them becomes the ticket's."""
        if error is not None and self.error is None:
            self.error = error
        if value is not None:
            self.value = value
        self.pending -= 1
        if not self.pending:
            self.done = True
            if self._listeners is not None or self._event is not None:
                self._tell()

    def stop(self, error: TidegateError) -> None:
        """It can't continue for now: its dataflow is halted, or the engine closed. Waiters get the error."""
        self.error = self.error or error
        self.stopped = True
        self._tell()

    def resume(self) -> None:
        """What stopped it is resolved."""
        self.stopped = False
        self.error = None
        if self._event is not None:
            self._event.clear()

    def _tell(self) -> None:
        """Listeners first: by the time a waiter wakes up, the callbacks have been started."""
        if self._listeners is not None:
            with _registering:
                listeners, self._listeners = self._listeners, None
            for listener in listeners or ():
                try:
                    listener(self)
                except BaseException:  # an event loop that has been closed, for example
                    log.warning("the waiter of %s is gone", self, exc_info=True)
        if self._event is not None:
            self._event.set()

    def __await__(self) -> Generator[Any, None, Any]:
        if not (self.done or self.stopped):
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def set_done() -> None:
                if not future.done():
                    future.set_result(None)

            def wake(_: Ticket) -> None:
                loop.call_soon_threadsafe(set_done)

            self.listen(wake)
            yield from future
        return self.result()

    def __repr__(self) -> str:
        state = "duplicate" if self.duplicate else "failed" if self.error else "done" if self.done else "waiting"
        return f"<Ticket {state}{' ' + str(self.batch_ids) if self.batch_ids else ''}>"
