"""Closing an engine from anywhere: outside its work at once, inside it as soon as that work has ended.

``close()`` waits for threads, and these may wait for a lock that the calling thread holds. A procedure, a callback, a
sink and a signal handler run in the middle of the engine's work, perhaps with its locks held. There ``close()`` returns
at once, and a separate thread closes the engine when that work has ended. The interpreter waits for that thread before
it exits, so a signal handler may run ``engine.close(); sys.exit()``.

The stack tells whether it is called from inside: a closing engine has time for that, and no other call pays for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

from tidegate.errors import EngineClosed, TidegateError
from tidegate.outside.ingestion import close_ingestions

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

LOOK_S = 0.005  # between two checks whether the work has ended

_open: weakref.WeakSet[Engine] = weakref.WeakSet()  # engines of this process that are not closed yet
os.register_at_fork(after_in_child=_open.clear)


def close_at_exit(engine: Engine) -> None:
    """Should nobody close it, it is closed when the interpreter exits."""
    _open.add(engine)


@atexit.register
def _close_what_is_open() -> None:
    for engine in [engine for engine in _open if not engine.closed]:
        log.warning(
            "the engine of %s is still open as the process exits, and is closed now; open it in a with block, or call close()",
            engine.app.name,
        )
        try:
            engine.close()
        except Exception as error:
            log.error("closing the engine of %s failed: %s", engine.app.name, error)


def close_engine(engine: Engine) -> None:
    """Close it, or have it closed. One thread closes; others that call meanwhile return when it is closed.

    If interrupted, it has released the files, or does so when called again.
    """
    inside = _work_around(engine, sys._getframe(1).f_back)  # the caller of Engine.close, if any
    if inside is not None:
        _close_later(engine, inside)
        return
    with engine.ending:
        if engine.closed:
            let_go(engine)
        else:
            _close_now(engine)


def _close_now(engine: Engine) -> None:
    if engine.ticker is not None:
        engine.ticker.close()
    engine.watching.close()
    close_ingestions(engine)
    engine.teller.drain()
    with engine.turn, engine.lock:
        engine.closed = True
        engine.executor.ended.notify_all()  # pushes that wait for room
    for batcher in tuple(engine.batchers):
        if len(batcher):
            log.warning("closing the engine with unpushed rows in %s; close a batcher before its engine", batcher)
    try:
        engine.outbox.close()
        engine.executor.close()
        engine.merger.close()
        engine.merger.merge()
    finally:
        engine.executor.stop_waiting(
            lambda left: EngineClosed(f"the engine was closed before {left} could finish: it {left.reason}")
        )
        let_go(engine)


def abandon(engine: Engine) -> None:
    """Release everything as a crash would: no merge, nothing finished."""
    if engine.ticker is not None:
        engine.ticker.close()
    engine.watching.close()
    close_ingestions(engine)
    engine.closed = True
    engine.executor.close()
    engine.merger.close()
    let_go(engine)


def let_go(engine: Engine) -> None:
    """Close everything that is open, in the right order, even if one of them fails; may be called more than once."""
    with ExitStack() as stack:
        stack.callback(engine.teller.close)
        stack.callback(engine.untune)
        if hasattr(engine, "lookout"):
            stack.callback(engine.lookout.close)
        if engine.directory is not None:
            stack.callback(engine.directory.close)
        if hasattr(engine, "outbox"):
            stack.callback(engine.outbox.topics.close)
        if hasattr(engine, "database"):
            stack.callback(engine.database.close)
        if engine.durable is not None:
            stack.callback(engine.durable.close)
        if hasattr(engine, "merger"):
            stack.callback(engine.merger.end)


def stop_if_torn(engine: Engine) -> None:
    """An exception came out of the engine's work: if it left a step half done, tell all waiters at once."""
    if engine.halfway.through is not None or engine.halfway.entering is not None:
        with engine.turn, engine.lock:  # another thread may be in the middle of a step
            engine.executor.stop_if_torn()


def _work_around(engine: Engine, frame: FrameType | None) -> FrameType | None:
    """The outermost frame in which this thread entered the engine's work: every call from there on is inside; else
    None.
    """
    found = None
    if frame is not None and frame.f_code is type(engine).__exit__.__code__:
        frame = frame.f_back
    while frame is not None:
        ours = frame.f_code.co_varnames[:1] == ("self",) and frame.f_globals.get("__name__", "").startswith("tidegate.")
        if ours and _is_part(engine, frame.f_locals.get("self")):
            found = frame
        frame = frame.f_back
    return found


def _is_part(engine: Engine, thing: Any) -> bool:
    writer = None if engine.durable is None else engine.durable.writer
    parts = (engine, engine.executor, engine.merger, engine.durable, writer, engine.teller)
    whole = (getattr(thing, name, None) for name in ("_engine", "_outbox", "_teller"))
    return (
        any(thing is part for part in parts if part is not None)
        or any(thing is one for one in (*engine.ingestions.values(), *engine.outbox.deliveries.values()))
        or any(one is engine or one is engine.outbox or one is engine.teller for one in whole)
    )


def _close_later(engine: Engine, work: FrameType) -> None:
    """Close it on a separate thread when ``work`` of this thread has ended."""
    thread, name = threading.get_ident(), work.f_code.co_qualname
    own = threading.current_thread().name.startswith("tidegate-")  # one of ours: closing waits for those anyway

    def close() -> None:
        while not own and _at_work(thread, work):
            time.sleep(LOOK_S)
        try:
            engine.close()
        except Exception:
            log.exception("closing the engine of %s failed", engine.app.name)

    try:
        threading.Thread(target=close, name="tidegate-close").start()
    except RuntimeError as error:  # the interpreter is exiting
        raise TidegateError(
            f"close() was called inside {name} while the interpreter exits, so it can't be deferred until that ends ({error}); "
            f"close the engine earlier, or leave it open: what was acknowledged is recovered on opening"
        ) from None
    log.info("close() was called inside %s: the engine of %s closes as soon as that ends", name, engine.app.name)


def _at_work(thread: int, work: FrameType) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame is not work:
        frame = frame.f_back
    return frame is not None
