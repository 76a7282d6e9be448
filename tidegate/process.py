"""What an open engine changes in its Python process, so that pauses stay short; put back when the last one closes.

Now and then the cyclic garbage collector walks through everything there is, which for the libraries alone takes tens of
milliseconds: longer than anything the engine does. What exists when an engine opens is set aside (``gc.freeze``), and a
walk then sees only what came since.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable

_lock = threading.Lock()
_open = 0  # engines that have asked for it

atexit.register(gc.unfreeze)  # an engine may still be open then: what it holds is to be taken apart in order


def tune() -> Callable[[], None]:
    """An engine opens. Returns what to call when it is closed; more than once does no harm."""
    global _open
    with _lock:
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
            gc.unfreeze()
