"""What an open engine changes in its Python process, so that pauses stay short; put back when the last one closes.

Two pauses of Python itself were longer than anything the engine does. The cyclic garbage collector now and then walks
through everything there is, which for the libraries alone takes tens of milliseconds: what exists when an engine opens is
set aside (``gc.freeze``), and a walk then sees only what came since. And a thread that computes lets others in every 5 ms
only, while the thread of the log asks for its turn several times for each group of records: 1 ms instead.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable

SWITCH_INTERVAL_S = 0.001

_lock = threading.Lock()
_open = 0  # engines that have asked for it
_interval_before = 0.0


def tune() -> Callable[[], None]:
    """An engine opens. Returns what to call when it is closed; more than once does no harm."""
    global _open, _interval_before
    with _lock:
        if not _open:
            _interval_before = sys.getswitchinterval()
            if _interval_before > SWITCH_INTERVAL_S:
                sys.setswitchinterval(SWITCH_INTERVAL_S)
        _open += 1
        gc.freeze()
    asked = [True]

    def untune() -> None:
        if asked:
            asked.clear()
            _restore()

    return untune


def _restore() -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            if _interval_before > SWITCH_INTERVAL_S:
                sys.setswitchinterval(_interval_before)
            gc.unfreeze()
