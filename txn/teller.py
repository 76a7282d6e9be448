"""Calling back those who left a callback with a ticket.

Callbacks are somebody else's code: they push, wait, raise. A ticket gets done in the middle of something, with the
engine's lock held: there a callback that pushes would overtake the push that is being made, and one that raises would leave
it half made. So an engine has a thread for them, while there are any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tidegate.mutex import Rank, mutex

if TYPE_CHECKING:
    from tidegate.txn.ticket import Ticket

log = logging.getLogger("tidegate")

IDLE_S = 1.0  # how long the thread stays without work
PATIENCE_S = 5.0  # how long a closing engine waits for a callback before it says so


class Teller:
    """Where the tickets of an engine are waited for (``wait``), and who calls their callbacks, one after another."""

    def __init__(self, wait: Callable[[Ticket, float | None], None]) -> None:
        self.wait = wait
        self.listened = False  # has somebody asked to hear of a ticket, since this was last looked at?
        self._guard = mutex(Rank.LEAF)
        self._caller: _Caller | None = None  # under the guard: one who is there takes what is put

    def call(self, callback: Callable[[Ticket], None], ticket: Ticket) -> None:
        """Have ``callback(ticket)`` called, after those before it. From any thread, under any lock."""
        self._put(lambda: callback(ticket))

    def drain(self) -> None:
        """Return when everything that was to be called by now has been (at once, when a callback asks for it)."""
        caller = self._caller
        if caller is None or caller.thread is threading.current_thread():
            return
        reached = threading.Event()
        self._put(reached.set)
        if not reached.wait(PATIENCE_S):
            log.warning("a callback of a ticket has been at work for %g s; closing waits for it", PATIENCE_S)
            reached.wait()

    def close(self) -> None:
        """Call what is left, and let go of the thread. (A callback that comes later still is called.)"""
        with self._guard:
            caller, self._caller = self._caller, None
            if caller is not None:
                caller.calls.put(None)
        if caller is not None and caller.thread is not threading.current_thread():
            caller.thread.join()

    def _put(self, call: Callable[[], None]) -> None:
        with self._guard:
            if self._caller is None:
                self._caller = _Caller(self)
            self._caller.calls.put(call)

    def leave(self, caller: _Caller) -> bool:
        """It has had nothing to do for a while: may it go?"""
        with self._guard:
            if not caller.calls.empty():
                return False
            if self._caller is caller:
                self._caller = None
            return True


class _Caller:
    """A thread, and what it is to call."""

    def __init__(self, teller: Teller) -> None:
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._teller = teller
        self.thread = threading.Thread(target=self._run, name="tidegate-teller", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_S)
            except Empty:
                if self._teller.leave(self):
                    return
                continue
            if call is None:
                return
            try:
                call()
            except BaseException:  # sys.exit() as well: it would end this thread
                log.exception("a callback of a ticket failed; the engine goes on without it")
