"""Tickets: what ``push`` and ``call`` hand back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from tidegate.errors import TidegateError

_registering = threading.Lock()  # one for all: few tickets are waited for, and the others never take it


class Ticket(msgspec.Struct, eq=False):
    """A push or a call on its way. ``done`` when every execution it caused has finished.

    ``result()`` waits and returns what a called procedure returned (None for a push), or raises what undid it.
    ``await ticket`` does the same in asyncio. ``duplicate`` says that a push was a repeat and changed nothing.

    One object each, with nothing of its own that the garbage collector would have to look at: clients that do not wait
    keep many of them. (A ``Struct`` because its constructor is not Python.)
    """

    _wait: Callable[[Ticket, float | None], None]
    _event: threading.Event | None = None
    _callbacks: list[Callable[[Ticket], None]] | None = None
    ids: tuple[int, ...] = ()
    duplicate: bool = False
    done: bool = False
    error: TidegateError | None = None
    pending: int = 0
    stopped: bool = False  # it can't go on for now, for the reason in ``error``
    value: Any = None

    @property
    def batch_ids(self) -> list[int]:
        """The ids that the batches of a push got, one per key value."""
        return list(self.ids)

    def result(self, timeout_s: float | None = None) -> Any:
        """What the call returned, once it has; raises Aborted, ProcedureFailed or StillWaiting."""
        if not (self.done or self.stopped):
            self._wait(self, timeout_s)
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, callback: Callable[[Ticket], None]) -> None:
        """Call ``callback(ticket)`` once when it is done or stopped by an error (at once if it is)."""
        with _registering:
            self._callbacks = [*(self._callbacks or ()), callback]
        if self.done or self.stopped:  # looked at after registering: whoever finishes now sees the callback
            self._tell()

    def event(self) -> threading.Event:
        """Set when done or stopped by an error; for waiting in another thread."""
        with _registering:
            if self._event is None:
                self._event = threading.Event()
        if self.done or self.stopped:
            self._event.set()
        return self._event

    def finish(self) -> None:
        """The last execution has finished."""
        self.done = True
        self._tell()

    def stop(self, error: TidegateError) -> None:
        """It can't go on for now: its dataflow is halted, or the engine closed. Whoever waits gets the error."""
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
        if self._event is not None:
            self._event.set()
        if self._callbacks is not None:
            with _registering:
                callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks or ():
                callback(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not (self.done or self.stopped):
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def set_done() -> None:
                if not future.done():
                    future.set_result(None)

            def wake(_: Ticket) -> None:
                loop.call_soon_threadsafe(set_done)

            self.add_done_callback(wake)
            yield from future
        return self.result()

    def __repr__(self) -> str:
        state = "duplicate" if self.duplicate else "failed" if self.error else "done" if self.done else "waiting"
        return f"<Ticket {state}{' ' + str(self.batch_ids) if self.batch_ids else ''}>"
