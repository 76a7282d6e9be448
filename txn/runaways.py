"""Stopping procedures that do not end: one thread per engine looks at what runs, and stops what runs for too long.

An execution pays nothing for it. It is in ``Runtime.running`` anyway while its procedures run; the lookout sees it there
again and again and, after the deadline, puts a :class:`Stop` in its place. An execution that finds something other than
itself there when it ends has been stopped::

    running[thread]   txn ────────────────────────▶ Stop ─────────────▶ (removed by the execution)
                       seen   seen   seen   seen     │ Expired is raised, queries are interrupted
                      └────────── deadline ─────────┘

A procedure that spends its time in the engine is stopped at its next access to a table: its tables are replaced by
one that raises Expired. From outside, Expired may be raised only while the thread is in user code: see
:mod:`tidegate.txn.watchdog`. There the transaction says when that is; here the stack does. Looking at it and raising are
one step (:func:`_raise_at`): in between, the thread could go on into the engine. A thread whose innermost frame is user
code gets the exception in that frame, at the entry of what it calls next, or after it has returned, in ``Runtime``
(which expects it), but never in the middle of the engine: Python looks for such exceptions at the entry of every
function, after calls, and in loops.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
from collections.abc import Callable
from itertools import repeat
from operator import itemgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import ref

from tidegate.clock import SystemClock
from tidegate.mutex import Flag
from tidegate.txn.positions import describe
from tidegate.txn.watchdog import INSIST, POLL_S, Expired, drop_pending

if TYPE_CHECKING:
    from tidegate.storage.database import Database
    from tidegate.txn.runtime import Runtime
    from tidegate.txn.transaction import Transaction

log = logging.getLogger("tidegate")

LOOK_S = 1.0  # between two looks, at most
LOOKS = 4  # within a deadline, at least

_CALLER = "tidegate.txn.runtime"  # calls procedures
_FUNCTIONS = "tidegate.streams.windows.declare.functions"  # calls the functions of windows
_WINDOWS = "tidegate.streams.windows."
_TAKES_ROWS = ("tidegate.storage.schema", "tidegate.txn.transaction")
_THEIRS = ("tidegate.examples.", "tidegate.testing.", "tidegate.benchmarks.")  # user code that comes with the engine

_set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Seen(NamedTuple):
    """An execution that was running at several looks in a row; ``since``: the first of them."""

    txn: Transaction
    since: float


class _Stopped:
    """The tables of an execution that is being stopped: looking one up, which every access begins with, raises Expired."""

    def get(self, table: str) -> NoReturn:
        raise Expired

    __getitem__ = get

    def keys(self) -> NoReturn:
        raise Expired


_STOPPED: Any = _Stopped()


class Stop:
    """An execution that is being stopped. It takes the place of its transaction in ``Runtime.running``."""

    def __init__(self, txn: Transaction, thread: int, database: Database, limit_s: float) -> None:
        self.txn = txn
        self.limit_s = limit_s
        self.where = ""  # the line of user code it was at
        self._thread = thread
        self._database = database
        self._lock = threading.Lock()  # a plain one: Expired may be raised at any instruction of one written in Python
        self._over = False
        self._patience = 0

    @property
    def procedure(self) -> str:
        return self.txn.procedure

    def act(self) -> bool:
        """Raise Expired if the thread is in user code, else interrupt the query it may be running. False: it has ended."""
        with self._lock:
            if self._over:
                return False
            frame = sys._current_frames().get(self._thread)
            if frame is None or not in_user_code(frame):
                self._database.interrupt(self._thread)
                self.txn.access = _STOPPED  # it may be in the engine whenever we look: stop it at its next access
            elif self._patience:
                self._patience -= 1
            elif _raise_at(self._thread, frame):
                self._patience = INSIST
            return True

    def end(self) -> None:
        """The execution has left its procedures: from here on nothing is raised or interrupted. Called by its thread.

        Expired may still be on its way, once.
        """
        try:
            self._end()
        except Expired:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._over = True
        drop_pending(self._thread)
        self._database.discard_connection()  # an interrupted connection may fail the next query, too


class Lookout:
    """Looks at what an engine's threads run. ``limit_s``: how long an execution may run; None: as long as it takes.

    ``look`` does what is to be done now; the lookout's own thread calls it. ``told`` is called at every look.
    """

    def __init__(self, runtime: Runtime, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.seen: dict[int, Seen] = {}
        self.told: Callable[[], None] = lambda: None
        self._runtime = runtime
        self._clock = SystemClock()  # real time, whatever the clock of the engine: procedures take real time
        self._stops: list[Stop] = []
        self._closed = Flag()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(
            target=_watch, args=(ref(self), self._closed, self._pause_s()), name="tidegate-lookout", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop looking. May be called more than once, and by the thread itself (which closes an engine)."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def running(self) -> list[tuple[Transaction, float]]:
        """What was running at the last look and still is, with the seconds since it was first seen."""
        now, at_work = self._clock.monotonic(), dict(self._runtime.running)
        return [(s.txn, now - s.since) for thread, s in list(self.seen.items()) if _is_at(at_work.get(thread), s.txn)]

    def _pause_s(self) -> float:
        if self._stops:
            return POLL_S
        return LOOK_S if self.limit_s is None else min(LOOK_S, self.limit_s / LOOKS)

    def look(self) -> None:
        """Note what runs, begin to stop what has run for too long, and go on with what is being stopped."""
        now, before = self._clock.monotonic(), self.seen
        at_work = dict(self._runtime.running)
        self.seen = {}
        for thread, what in at_work.items():
            txn = what.txn if isinstance(what, Stop) else what
            known = before.get(thread)
            self.seen[thread] = seen = known if known is not None and known.txn is txn else Seen(txn, now)
            if what is txn and self._is_too_long(txn, now - seen.since):
                self._begin(txn, thread)
        self._stops = [stop for stop in self._stops if stop.act()]
        self.told()

    def _is_too_long(self, txn: Transaction, seconds: float) -> bool:
        unit = txn.unit
        return self.limit_s is not None and seconds >= self.limit_s and unit.deadline_s is None and not unit.unlimited

    def _begin(self, txn: Transaction, thread: int) -> None:
        assert self.limit_s is not None
        stop, running = Stop(txn, thread, self._runtime.database, self.limit_s), self._runtime.running
        stop.where = _line(sys._current_frames().get(thread))
        try:
            if (
                running[thread] is txn
            ):  # no other thread can run between this and the next line: there is no call in between
                running[thread] = stop
                self._stops.append(stop)
        except KeyError:  # it has just ended
            return
        if running.get(thread) is stop:
            log.error(
                "procedure %s has run for more than %g s at position %s%s and is being stopped%s",
                txn.procedure,
                self.limit_s,
                describe(txn.position),
                "" if txn.batch_id is None else f" (batch {txn.batch_id})",
                stop.where,
                extra={"facts": {"procedure": txn.procedure, "position": describe(txn.position)}},
            )


def _watch(found: ref[Lookout], closed: Flag, pause_s: float) -> None:
    """What the thread does. It holds on to nothing: an engine that is dropped without being closed can be collected."""
    while not closed.wait(pause_s):
        lookout = found()
        if lookout is None:
            return
        try:
            lookout.look()
        except Exception:
            log.exception("looking at what runs failed; it is tried again")
        pause_s = lookout._pause_s()
        del lookout


def _is_at(what: Any, txn: Transaction) -> bool:
    return what is txn or (isinstance(what, Stop) and what.txn is txn)


def in_user_code(frame: FrameType) -> bool:
    """Is this innermost frame of a thread inside a procedure, or a window's function, with no engine code in between?"""
    at: FrameType | None = frame
    below: FrameType | None = None  # the frame that ``at`` called
    in_window = False
    while at is not None:
        name = at.f_globals.get("__name__", "")
        if name == _CALLER:
            return below is not None
        if name in _TAKES_ROWS and below is not None:  # a generator's rows are taken before anything else is done
            pass
        elif _is_engine(name):
            in_window = in_window or (name == _FUNCTIONS and below is not None and not _is_numeric(below))
            if not in_window or not name.startswith(_WINDOWS):
                return False
        at, below = at.f_back, at
    return False


def _is_engine(name: str) -> bool:
    return name.startswith("tidegate.") and not name.startswith(_THEIRS)


def _is_numeric(frame: FrameType) -> bool:
    """Libraries that the engine's own functions use."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("numpy", "pyarrow")


def _line(frame: FrameType | None) -> str:
    """The innermost line outside of the engine and of installed libraries, as text for a message."""
    while frame is not None and frame.f_globals.get("__name__", "") != _CALLER:
        path = frame.f_code.co_filename
        if not _is_engine(frame.f_globals.get("__name__", "")) and "site-packages" not in path and path[:1] != "<":
            return f" (line {frame.f_lineno} of {path})"
        frame = frame.f_back
    return ""


def _raise_at(thread: int, frame: FrameType) -> bool:
    """Raise Expired in ``thread`` if ``frame`` is its innermost frame at this moment; returns whether it was.

    All of it is one call without Python code inside, so no other thread runs between the look and the raise. A garbage
    collection would call destructors, which are Python code.
    """
    innermost = map(id, map(itemgetter(thread), iter(sys._current_frames, None)))
    raised = map(_set_exception, repeat(thread), map({id(frame): Expired}.__getitem__, innermost))
    collects = gc.isenabled()
    gc.disable()
    try:
        return bool(next(raised))
    except KeyError:
        return False
    finally:
        if collects:
            gc.enable()
