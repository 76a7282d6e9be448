"""Work on its own thread that is retried after a failure: what ingestions and deliveries have in common."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.errors import EngineClosed, TidegateError
from tidegate.mutex import Flag

log = logging.getLogger("tidegate")

FIRST_PAUSE_S = 0.1  # after a failure; doubled with every further one
LONGEST_PAUSE_S = 30.0


def repeat(step: Callable[[], bool], stop: Flag, passing: tuple[type[Exception], ...]) -> None:
    """Call ``step`` until it returns False, ``stop`` is set or the engine has closed.

    After an error of ``passing`` it pauses, 0.1 s, doubled each time up to 30 s, and continues; a ``fatal`` one ends
    it.
    """
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        try:
            if not step():
                return
            pause_s = FIRST_PAUSE_S
        except passing as error:
            if getattr(error, "fatal", False):
                return
            stop.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        except EngineClosed:
            return


def in_background(
    kind: str, name: str, run: Callable[[], None], ended: Callable[[Exception | None], None]
) -> threading.Thread:
    """Run on a thread that is started here. ``ended``: called at the end, with an unexpected error, if any."""

    def logged() -> None:
        unexpected: Exception | None = None
        try:
            run()
        except BaseException as error:  # sys.exit() as well: it ends this thread's work, and nothing else
            unexpected = error if isinstance(error, Exception) else TidegateError(f"{kind} {name} raised {error!r}")
            log.exception(
                "%s %s has stopped; it continues from the same place when the engine is next opened", kind, name
            )
        ended(unexpected)

    thread = threading.Thread(target=logged, name=f"tidegate-{kind}-{name}", daemon=True)
    thread.start()
    return thread
