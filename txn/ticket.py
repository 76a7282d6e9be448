"""Tickets: what ``push`` and ``call`` hand back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

from tidegate.errors import TidegateError


class Ticket:
    """A push or a call on its way. ``done`` when every execution it caused has finished.

    ``result()`` waits and returns what a called procedure returned (None for a push), or raises what undid it.
    ``await ticket`` does the same in asyncio. ``duplicate`` says that a push was a repeat and changed nothing.
    """

    __slots__ = ("_callbacks", "_event", "_wait", "batch_ids", "done", "duplicate", "error", "pending", "value")

    def __init__(self, wait: Callable[[Ticket, float | None], None]) -> None:
        self._wait = wait
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[Ticket], None]] | None = None
        self.batch_ids: list[int] = []
        self.duplicate = False
        self.done = False
        self.error: TidegateError | None = None
        self.pending = 0
        self.value: Any = None

    def result(self, timeout_s: float | None = None) -> Any:
        """What the call returned, once it has; raises Aborted, ProcedureFailed or StillWaiting."""
        if not self.done:
            self._wait(self, timeout_s)
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, callback: Callable[[Ticket], None]) -> None:
        """Call ``callback(ticket)`` when it is done (at once if it is)."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def event(self) -> threading.Event:
        """Set when done; for waiting in another thread."""
        if self._event is None:
            self._event = threading.Event()
            if self.done:
                self._event.set()
        return self._event

    def finish(self) -> None:
        """The last execution has finished."""
        self.done = True
        if self._event is not None:
            self._event.set()
        if self._callbacks is not None:
            for callback in self._callbacks:
                callback(self)
            self._callbacks = None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
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
