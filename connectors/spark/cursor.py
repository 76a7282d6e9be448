"""Where a Spark query stands: which of its micro-batches are in the engine, decided by our own cursor.

Spark may run a micro-batch again after a crash, and numbers from 0 again under another query id when it gets a new checkpoint
directory. So the offset of a source is the query *and* the number of its last micro-batch, recorded in the transaction of that
batch, and a push leads from one offset to the next or is refused:

    offset        micro-batch n of query q
    nothing       n = 0: push                  n > 0: refused, the engine lacks what Spark has counted as done
    (q, m)        n = m + 1: push              n <= m: in already         n > m + 1: refused, as above
    (p, m)        refused, unless the new query was announced (``new_checkpoint``) and begins at 0

Independent of Spark itself: values in, decisions out. Only :class:`Patience` waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.client import Client
from tidegate.engine.engine import Engine
from tidegate.errors import BatchError, DiskFull, EngineClosed, Overloaded, ServerError
from tidegate.mutex import Flag

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
AWAY = (None, 429, 503, 507)  # HTTP status of a server that is unreachable or overloaded: worth another try


@dataclass(frozen=True)
class Step:
    """A push that leads a source from one offset to the next."""

    source: str
    after: dict[str, Any] | None
    offset: dict[str, Any]


def next_step(
    source: str, offset: Any, query: str, batch: int, new_checkpoint: bool = False, *, gaps: bool = False
) -> Step | None:
    """The step that micro-batch ``batch`` of ``query`` is; None when it was already made. Raises when it can't be made.

    ``gaps``: micro-batches without rows are not seen at all, so a missing one says nothing.
    """
    known = offset if isinstance(offset, dict) and "query" in offset else None
    if known is not None and known["query"] == query and batch <= known["batch"]:
        return None
    step = Step(source, offset, {"query": query, "batch": batch})
    facts = {"source": source, "position": offset, "query": query, "batch": batch}
    if offset is not None and (known is None or known["query"] != query):
        if new_checkpoint and batch == 0:
            return step
        raise BatchError(
            f"source {source!r} was fed by another query ({offset!r}); this one is {query}, at micro-batch {batch}. "
            "Its checkpoint directory is new or a different one, so Spark would read from the beginning what the "
            "engine already has. Start it with the old checkpoint directory; or, if its input is new, under another "
            "source name or with new_checkpoint=True",
            **facts,
        )
    missing = 0 if known is None else known["batch"] + 1
    if batch != missing and not gaps:
        raise BatchError(
            f"Spark sends micro-batch {batch} for source {source!r}, but the engine has not seen micro-batch "
            f"{missing}: the engine is older than Spark's checkpoint (in memory, restored from a backup, or another "
            "directory). Open the right directory, or start with a new checkpoint directory and another source name "
            "to read everything again",
            **facts,
        )
    return step


class Patience:
    """Waits for an engine that has no room or is unreachable; that is how back-pressure reaches Spark."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._stop = Flag()
        self.waited_s = 0.0

    def stop(self) -> None:
        """Makes all waiters give up."""
        self._stop.set()

    def insist(self, attempt: Callable[[], T]) -> T:
        """What ``attempt`` returns, tried again while the engine can't take it."""
        began = time.monotonic()
        pause_s = FIRST_PAUSE_S
        while True:
            if self._stop.is_set():
                raise EngineClosed("the pipeline was stopped; the micro-batch is sent again when it is restarted")
            try:
                return attempt()
            except (Overloaded, DiskFull, ServerError) as error:
                if isinstance(error, ServerError) and error.status not in AWAY:
                    raise
                if self._timeout_s is not None and time.monotonic() - began > self._timeout_s:
                    raise
            self._stop.wait(pause_s)
            self.waited_s += pause_s
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def make_step(engine: Engine | Client, stream: str, rows: Any, step: Step) -> None:
    """Push the rows as one atomic batch together with the new offset; returns when both are on disk."""
    given: dict[str, Any] = {"source": step.source, "offset": step.offset, "after": step.after}
    if isinstance(engine, Client):
        engine.push(stream, rows, wait=False, **given)
        return
    engine.push(stream, rows, **given)
    if engine.durable is not None:
        engine.durable.sync()
