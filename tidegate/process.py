"""What an open engine changes in its Python process, so that pauses stay short; put back when the last one closes.

Now and then the cyclic garbage collector walks through everything there is, which for the libraries alone takes tens of
milliseconds: longer than anything the engine does. What exists when an engine opens is set aside (``gc.freeze``), and a
walk then sees only what came since. That still includes the dictionaries of the tables, entry by entry, so such walks are
made ``RARER`` times less often. The short ones, which find nearly all garbage there is, stay as frequent as they were.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable

RARER = 20

_lock = threading.Lock()
_open = 0  # engines that have asked for it
_thresholds: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None  # of the collector: before, and since

atexit.register(gc.unfreeze)  # an engine may still be open then: what it holds is to be taken apart in order


def tune() -> Callable[[], None]:
    """An engine opens. Returns what to call when it is closed; more than once does no harm."""
    global _open, _thresholds
    with _lock:
        _open += 1
        gc.freeze()
        if _thresholds is None:
            before = gc.get_threshold()
            _thresholds = before, (before[0], before[1], before[2] * RARER)
            gc.set_threshold(*_thresholds[1])
    asked = [True]

    def untune() -> None:
        if asked:
            asked.clear()
            _restore()

    return untune


def _restore() -> None:
    global _open, _thresholds
    with _lock:
        _open -= 1
        if not _open:
            gc.unfreeze()
            assert _thresholds is not None
            before, since = _thresholds
            _thresholds = None
            if gc.get_threshold() == since:  # else somebody else has set them
                gc.set_threshold(*before)
