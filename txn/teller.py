"""Calling the callbacks of tickets.

Callbacks are user code: they push, wait, raise. A ticket becomes done in the middle of other work, with the engine's
lock held: a callback that pushes there would overtake the push in progress, and one that raises would leave it half
done. So an engine has a thread for callbacks, while there are any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tidegate.mutex import Flag, Rank, mutex

if TYPE_CHECKING:
    from tidegate.txn.ticket import Ticket

log = logging.getLogger("tidegate")

IDLE_S = 1.0  # how long the thread stays alive without work
PATIENCE_S = 5.0  # how long a closing engine waits for a callback before it logs that it waits


class Teller:
    """Waits for the tickets of an engine (``wait``), and calls their callbacks, one after another."""

    def __init__(self, wait: Callable[[Ticket, float | None], None]) -> None:
        self.wait = wait
        self.listened = False  # has a listener been added to a ticket since this was last read?
        self._guard = mutex(Rank.LEAF)
        self._caller: _Caller | None = None  # under the guard: if there is one, it takes what is put

    def call(self, callback: Callable[[Ticket], None], ticket: Ticket) -> None:
        """Queue ``callback(ticket)`` to be called after those before it. From any thread, under any lock."""
        self._put(lambda: callback(ticket))

    def drain(self) -> None:
        """Return when all callbacks queued so far have been called (at once, when called from a callback)."""
        caller = self._caller
        if caller is None or caller.thread is threading.current_thread():
            return
        reached = Flag()
        self._put(reached.set)
        if not reached.wait(PATIENCE_S):
            log.warning("a ticket callback has been running for %g s; closing waits for it", PATIENCE_S)
            reached.wait()

    def close(self) -> None:
        """Call what is left and end the thread. (A callback that comes later is still called.)"""
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
        """The caller has been idle for a while: may its thread end?"""
        with self._guard:
            if not caller.calls.empty():
                return False
            if self._caller is caller:
                self._caller = None
            return True


class _Caller:
    """A thread and its queue of calls."""

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
                log.exception("a ticket callback failed; the engine continues")
