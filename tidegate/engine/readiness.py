"""Does an engine accept work? Tests what it can actually do: a real write, and its lock within a time limit."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.errors import TidegateError, text_of

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.txn.log.files import Files

PROBE = "ready.probe"  # a file among the segments of the log
LOCK_S = 2.0  # nothing holds the engine's lock that long


def reasons_not_to(engine: Engine) -> list[str]:
    """Why it can't accept work now; empty when it can. Takes seconds if something is stuck."""
    why = []
    try:
        engine.merger.check()
    except TidegateError as error:
        why.append(str(error))
    if engine.directory is not None:
        try:
            _write(engine.directory.files)
        except OSError as error:
            why.append(f"a file in {engine.directory.path} could not be written and synced: {text_of(error)}")
    if engine.lock.acquire(timeout=LOCK_S):
        engine.lock.release()
    else:
        why.append(f"the engine is busy or stuck: its lock could not be acquired for {LOCK_S:g} seconds")
    return why


def _write(files: Files) -> None:
    """Create, write, sync and remove a small file where the log is."""
    with suppress(FileNotFoundError, KeyError):
        files.remove(PROBE)  # left by a process that was killed
    file = files.create(PROBE)
    try:
        file.write(b"tidegate", 0)
        file.sync()
    finally:
        file.close()
        files.remove(PROBE)
