"""Aborting an execution that runs past its deadline.

A watchdog thread raises Expired inside the thread that runs the procedure, at its next Python instruction, and
interrupts the DuckDB query it may be in. Started only when some procedure declares ``deadline_s``.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tidegate.txn.transaction import Transaction


class Watchdog:
    """Watches at most one transaction per thread. ``watch`` and ``release`` bracket the user's code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timers: dict[int, threading.Timer] = {}

    def watch(self, txn: Transaction, deadline_s: float) -> None:
        thread = threading.get_ident()
        cursor = txn.database.cursor()
        timer = threading.Timer(deadline_s, self._expire, (thread, txn, cursor))
        timer.daemon = True
        with self._lock:
            self._timers[thread] = timer
        timer.start()

    def release(self, txn: Transaction) -> None:
        """The user's code has returned; an exception on its way to this thread is called back."""
        thread = threading.get_ident()
        with self._lock:
            timer = self._timers.pop(thread, None)
            if timer is not None:
                timer.cancel()
            elif txn.expired:
                _raise_in(thread, None)

    def _expire(self, thread: int, txn: Transaction, cursor: Any) -> None:
        with self._lock:
            if self._timers.pop(thread, None) is not None:
                txn.expired = True
                cursor.interrupt()
                _raise_in(thread, Expired)


class Expired(BaseException):
    """Raised inside a procedure at its deadline. Not an Exception, so that ``except Exception`` does not swallow it."""


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    target = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
