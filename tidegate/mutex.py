"""The engine's locks, and the one order in which a thread may take them.

    ENTRY ─▶ MERGING ─▶ TURN ─▶ GATE ─▶ ENGINE ─▶ LOADING ─▶ PLACING ─▶ SYNCING ─▶ BUFFER ─▶ LEAF

A thread that holds a lock may wait only for locks further to the right, so no two threads can wait for each other.
Trying a lock without waiting is always allowed, and so is taking a lock again that the thread holds. Procedures run
with no lock beyond TURN held: whatever they do can take every lock it needs.

In production these are the plain locks of ``threading``. After :func:`watch`, which tests, the simulation and the crash test
call, a lock taken out of order raises :class:`OutOfOrder`, whether or not another thread holds it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Rank(IntEnum):
    """What a lock guards; a smaller rank is taken first."""

    ENTRY = 1  # a batcher's rows, a subscription's reader: around calls of the engine
    MERGING = 2  # one merge or backup at a time
    TURN = 3  # a serial engine's executions, from entering to their end
    GATE = 4  # the base and the changes above it are switched together
    ENGINE = 5  # scheduler, commits, acknowledgements
    LOADING = 6  # one thread reads a whole table
    PLACING = 7  # rows of a table are loaded and evicted
    SYNCING = 8  # one thread writes the log
    BUFFER = 9  # records waiting for the log
    LEAF = 10  # nothing is taken inside


class OutOfOrder(AssertionError):
    """A lock was taken out of order: with another thread involved this could hang forever."""


watched = False
violations: list[str] = []  # of all threads: a background thread may have no caller to raise to
_held = threading.local()


def watch() -> None:
    """From now on, new locks check the order in which they are taken. For tests."""
    global watched
    watched = True


def mutex(rank: Rank) -> Any:
    """A lock that a thread takes once at a time."""
    return _Watched(rank, threading.Lock(), reentrant=False) if watched else threading.Lock()


def reentrant(rank: Rank) -> Any:
    """A lock that its holder may take again."""
    return _Watched(rank, threading.RLock(), reentrant=True) if watched else threading.RLock()


def outside_locks(function: Callable[P, R], rank: Rank) -> Callable[P, R]:
    """``function``, which runs user code: while watched, threads that hold more than ``rank`` may not call it."""
    if not watched:
        return function

    @wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        beyond = [held.rank for held in _stack() if held.rank > rank]
        if beyond:
            _violated(f"{function.__qualname__} is called while {_names(beyond)} is held")
        return function(*arguments, **named)

    return checked


class Flag:
    """An event for other threads, which stays usable if an exception from outside comes in the middle of setting it.

    (``threading.Event`` takes a lock in Python. Ctrl-C between taking and keeping it leaves it locked, and whoever sets or
    waits next hangs. Here everything is a single call into C, and what was interrupted can be done again.)
    """

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: deque[Any] = (
            deque()
        )  # a lock for each thread that waits, which that thread holds until it is woken

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for waiting in tuple(self._waiting):
            try:
                waiting.release()
            except RuntimeError:  # it has been woken before
                pass

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return when it is set, or when the time is over; says whether it was set."""
        if self._set:
            return True
        woken = threading.Lock()
        woken.acquire()
        self._waiting.append(woken)
        try:
            return self._set or woken.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        finally:
            self._waiting.remove(woken)


class _Watched:
    """A lock that knows its rank. It has everything a ``threading.Condition`` needs of a lock."""

    def __init__(self, rank: Rank, lock: Any, reentrant: bool) -> None:
        self.rank = rank
        self._lock = lock
        self._reentrant = reentrant

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        stack = _stack()
        if blocking and not (self._reentrant and self in stack):
            beyond = [held.rank for held in stack if held.rank >= self.rank]
            if beyond:
                _violated(f"{self.rank.name} is taken while {_names(beyond)} is held")
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            stack.append(self)
        return taken

    def release(self) -> None:
        self._lock.release()
        stack = _stack()
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is self:
                del stack[place]
                return

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def _is_owned(self) -> bool:
        return self in _stack()

    def _release_save(self) -> int:
        """Release it however often it was taken: a condition waits."""
        count = _stack().count(self)
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


def _stack() -> list[_Watched]:
    found: list[_Watched] | None = getattr(_held, "stack", None)
    if found is None:
        found = _held.stack = []
    return found


def _names(ranks: list[Rank]) -> str:
    return " and ".join(rank.name for rank in dict.fromkeys(ranks))


def _violated(what: str) -> None:
    told = f"{what} (thread {threading.current_thread().name}); tidegate/mutex.py has the order"
    violations.append(told)
    raise OutOfOrder(told)
