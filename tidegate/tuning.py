"""What an open engine changes in its Python process, so that pauses stay short; restored when the last one closes.

From time to time the cyclic garbage collector walks through all objects, which for the libraries alone takes tens of
milliseconds: longer than anything the engine does. What exists when an engine opens is set aside (``gc.freeze``), and a
walk then sees only newer objects. That still includes the dictionaries of the tables, entry by entry, so such walks are
made ``RARER`` times less often. The short ones, which find nearly all garbage, stay as frequent as before.

While there are listeners for acknowledgements, threads switch every millisecond instead of every five: between pushes
that follow each other without a pause, the log thread needs a turn to report that a group is on disk. Switching costs
some throughput, so it is not done without listeners.
"""

from __future__ import annotations

import atexit
import gc
import math
import sys
import threading
from collections.abc import Callable
from typing import Protocol

RARER = 20
QUICK_S = 0.001

_lock = threading.Lock()
_open = 0  # engines that have asked for it
_thresholds: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None  # of the collector: before, and now
_seen = (0, 0)  # counts of full and short collections at the last known full one

atexit.register(gc.unfreeze)  # an engine may still be open then: what it holds must be destroyed in order


def tune() -> Callable[[], None]:
    """An engine opens. Returns what to call when it is closed; calling it twice is harmless."""
    global _open, _thresholds
    with _lock:
        before = gc.get_threshold() if _thresholds is None else _thresholds[0]
        _make_up_for(before)
        _open += 1
        if _open == 1:
            gc.freeze()
        if _thresholds is None:
            _thresholds = before, (before[0], before[1], before[2] * RARER)
            gc.set_threshold(*_thresholds[1])
    asked = [True]

    def untune() -> None:
        if asked:
            asked.clear()
            _restore()

    return untune


def _make_up_for(thresholds: tuple[int, int, int]) -> None:
    """Run a full collection now where one would have been due without us: freezing resets the collector's counts, so in
    a process that opens one engine after another it would never run, and the remains of closed engines would stay.
    """
    global _seen
    short, _, full = (generation["collections"] for generation in gc.get_stats())
    if full != _seen[0]:
        _seen = full, short
    elif short - _seen[1] >= thresholds[1] * thresholds[2] and gc.isenabled():
        gc.collect()
        _seen = full + 1, short


def _restore() -> None:
    global _open, _thresholds
    with _lock:
        _open -= 1
        if not _open:
            gc.unfreeze()
            assert _thresholds is not None
            before, since = _thresholds
            _thresholds = None
            if gc.get_threshold() == since:  # otherwise other code has set them
                gc.set_threshold(*before)


class Listened(Protocol):
    """Knows whether a listener for a ticket was added since the last check."""

    listened: bool


class Turns:
    """The switch interval of threads, for one engine with a log: ``step`` is called after every group."""

    _lock = threading.Lock()
    _quick = 0  # engines that want it
    _before = 0.0

    def __init__(self, teller: Listened) -> None:
        self._teller = teller
        self._wanted = False

    def step(self) -> None:
        listened, self._teller.listened = self._teller.listened, False
        if listened is not self._wanted:
            self._want(listened)

    def close(self) -> None:
        self._want(False)

    def _want(self, wanted: bool) -> None:
        with Turns._lock:
            if wanted is self._wanted:
                return  # another thread was here
            self._wanted = wanted
            Turns._quick += 1 if wanted else -1
            interval = sys.getswitchinterval()
            if wanted and Turns._quick == 1 and interval > QUICK_S:
                Turns._before = interval
                sys.setswitchinterval(QUICK_S)
            elif not wanted and not Turns._quick:
                if Turns._before and math.isclose(interval, QUICK_S):  # otherwise other code has set it
                    sys.setswitchinterval(Turns._before)
                Turns._before = 0.0
