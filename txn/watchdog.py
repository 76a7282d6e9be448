"""Aborting an execution that runs past the deadline its procedure declares.

A separate thread waits alongside the execution. At the deadline it raises Expired inside the thread that runs the
procedure, at the next Python instruction, whatever that is. It does so only while that thread is in user code: in the
middle of engine code it would leave a lock held, a DuckDB transaction open or a table half in memory for those that
come next. While the thread is in the engine, the DuckDB query it may be running is interrupted, and Expired is raised
when the engine returns to the procedure::

    the procedure        ───┐     ┌────────┐        ┌───   Expired may be raised at any instruction
    the engine              └─────┘        └────────┘      Expired waits; queries are interrupted
                          txn.get(…)    txn.execute(…)

:func:`user_code` and :func:`engine_code` are the two crossings. A procedure that declares no
deadline has none of this; the engine's own deadline is in :mod:`tidegate.txn.runaways`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from tidegate.mutex import Flag
from tidegate.storage.database import Database

POLL_S = 0.01  # an interrupt misses a query that has not quite begun, so it is repeated while one may run
INSIST = 100  # polls after which Expired is raised again in a procedure that swallowed or lost it


class Expired(BaseException):
    """Raised inside a procedure at its deadline. Not an Exception, so that ``except Exception`` does not swallow it."""


class Watch:
    """The watch over one execution, made and released by the thread that runs it.

    Expired is never raised from outside after ``enter`` or ``end``: unwinding at the end of the procedure is safe from
    it. In user code it is raised again every second: Python drops an exception that arrives while a destructor or a
    garbage collector callback runs. ``expired``: the deadline passed before it was released.
    """

    def __init__(self, database: Database, deadline_s: float) -> None:
        self.expired = False
        self.inside = True  # is the thread in the engine? Only that thread changes it
        self._patience = 0  # polls until Expired is raised from outside (again)
        self._database = database
        self._connection = database.connection()
        self._thread = threading.get_ident()
        self._lock = (
            threading.Lock()
        )  # a plain one: Expired may be raised at any instruction of a lock written in Python
        self._released = Flag()
        self._deadline_s = deadline_s

    def start(self) -> None:
        threading.Thread(target=self._wait, name="tidegate-deadline", daemon=True).start()

    def enter(self) -> None:
        """The thread enters the engine. Raises Expired instead if the deadline has passed; then nothing has changed."""
        with self._lock:
            if self.expired:
                drop_pending(self._thread)
                raise Expired
            self.inside = True

    def leave(self) -> None:
        """The thread goes (back) to user code."""
        with self._lock:
            self.inside = False
            if self.expired:
                self._patience = INSIST
                raise Expired

    def end(self) -> None:
        """The procedure has ended. Raises Expired if the deadline has passed; from then on nothing is raised from
        outside.
        """
        try:
            self._enter_for_good()
        except Expired:  # raised from outside just before
            self._enter_for_good()
            raise

    def _enter_for_good(self) -> None:
        with self._lock:
            self.inside = True
            if self.expired:
                drop_pending(self._thread)
                raise Expired

    def release(self) -> None:
        """The execution has ended, or waits."""
        with self._lock:
            self._released.set()
        if self.expired:
            drop_pending(self._thread)
            self._database.discard_connection()  # an interrupted connection may fail the next query, too

    def _wait(self) -> None:
        wait_s = self._deadline_s
        while not self._released.wait(wait_s):
            self._expire()
            wait_s = POLL_S

    def _expire(self) -> None:
        with self._lock:
            if self._released.is_set():
                return
            self.expired = True
            if self.inside:
                self._connection.cursor.interrupt()
            elif self._patience:
                self._patience -= 1
            else:
                self._patience = INSIST
                _raise_in(self._thread, Expired)


def user_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A procedure as the engine calls it: while it runs, the thread is in user code."""

    @wraps(function)
    def run(txn: Any, *arguments: Any, **named: Any) -> Any:
        watch: Watch | None = txn.watch
        if watch is None:
            return function(txn, *arguments, **named)
        try:
            watch.leave()
            return function(txn, *arguments, **named)
        finally:
            watch.end()

    return run


def engine_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a transaction as a procedure calls it: while it runs, the thread is in the engine."""

    @wraps(method)
    def run(txn: Any, *arguments: Any, **named: Any) -> Any:
        watch: Watch | None = txn.watch
        if watch is None or watch.inside:  # not watched (a replay), or one method calls another
            return method(txn, *arguments, **named)
        arguments = tuple(list(a) if isinstance(a, Iterator) else a for a in arguments)  # a generator is user code
        watch.enter()
        try:
            return method(txn, *arguments, **named)
        finally:
            watch.leave()

    return run


def drop_pending(thread: int) -> None:
    """If an exception from outside is on its way to the thread, it does not arrive any more."""
    _raise_in(thread, None)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    target = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
