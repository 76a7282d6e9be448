"""What is halted: shown to people, who resume it or skip the batch it stopped in front of."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tidegate.engine.closing import stop_if_torn
from tidegate.errors import TidegateError, unknown
from tidegate.streams.batch import Batch
from tidegate.txn.entries import Requeue
from tidegate.txn.journal import taken_by
from tidegate.txn.kept import KeptRows, rows_of_text
from tidegate.txn.positions import describe
from tidegate.txn.scheduler import halt_of
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


@dataclass(frozen=True)
class Halted:
    """A dataflow that is halted, for ``key`` if it has keys. ``batches``: what it stopped in front of, by stream.
    ``waiting``: how many executions are parked, with it. ``trace``: where in the app's code it failed.
    """

    dataflow: str
    key: Any
    position: str
    unit: str
    procedure: str
    batch_id: int | None
    error: str
    trace: str
    waiting: int
    at: dt.datetime
    batches: dict[str, Batch]


def halted(engine: Engine) -> list[Halted]:
    """Everything that is halted now. The caller holds the engine's lock."""
    scheduler = engine.scheduler
    waiting = Counter(map(halt_of, scheduler.parked.values()))
    found = []
    for (dataflow, key), front in scheduler.halted.items():
        failure = front.context.failure
        procedure = front.unit.members[0].name if failure is None else failure.procedure
        inputs = {stream: batch for stream, batch in front.inputs.items() if batch is not None}
        found.append(
            Halted(
                dataflow,
                key,
                describe(front.position),
                front.unit.name,
                procedure,
                front.batch_id,
                "unknown" if failure is None else str(failure),
                "" if failure is None else failure.trace,
                waiting[dataflow, key],
                front.context.time,
                {batch.stream: batch for batch in taken_by(front.unit, procedure, inputs)},
            )
        )
    return found


def halted_rows(engine: Engine) -> Iterator[tuple[Any, ...]]:
    """The rows of ``tidegate.halted``."""
    for h in halted(engine):
        key = None if h.key is None else str(h.key)
        rows = KeptRows(h.batches.values())
        facts = (h.dataflow, key, h.position, h.unit, h.procedure, h.batch_id, h.error, h.trace, h.waiting, h.at)
        yield *facts, rows.text, rows.count, rows.truncated


def continue_halted(engine: Engine, dataflow: str | None, key: Any, skip: bool) -> None:
    """Resume a halted dataflow, or all; or skip what it is halted in front of. ``key``: for one key, unless UNSET."""
    keys = None if key is UNSET else (key,)
    try:
        with engine.turn:
            engine.check_open()
            engine.halfway.check_entry()
            halted = dict.fromkeys(name for name, one in engine.scheduler.halted if keys is None or one == key)
            for name in halted if dataflow is None else [dataflow]:
                engine.acceptance.resume(name, keys, skip)
        engine.executor.wake()
    except BaseException:
        stop_if_torn(engine)
        raise


def requeue(engine: Engine, letter: str) -> Ticket:
    """See :meth:`Engine.requeue`."""
    try:
        with engine.turn:
            engine.check_open()
            ticket = engine.acceptance.requeue(_entry_of(engine, letter))
        engine.merger.look()
    except BaseException:
        stop_if_torn(engine)
        raise
    return ticket


def _entry_of(engine: Engine, letter: str) -> Requeue:
    """The batch of a dead letter, as new work; raises where others would work on it twice."""
    letters = [one for one in engine.journal.dead_letters if one.position == letter]
    if not letters:
        raise unknown(
            "requeue", "dead letter at position", letter, {str(d.position) for d in engine.journal.dead_letters}
        )
    stream = letters[0].stream
    if stream is None:
        raise TidegateError(
            f"dead letter {letter} is a call of {letters[0].procedure}; its caller got the error, call it again"
        )
    border = engine.borders.get(stream)
    readers = [unit.name for unit in engine.graph.caused_by.get(stream, ()) if stream in unit.inputs]
    if border is None or len(letters) > 1 or len(readers) > 1:
        why = f"{', '.join(readers)} read it, and others than {letters[0].procedure} have worked on it already"
        if border is None:
            why = "its stream is fed by a procedure, which has worked on its batch already"
        elif len(letters) > 1:
            why = f"it needs batches of {', '.join(str(one.stream) for one in letters)} with the same id"
        raise TidegateError(
            f"dead letter {letter} on {stream} can't be requeued: {why}. Read its rows in tidegate.dead_letters, and push what "
            f"is to be done again yourself",
            letter=letter,
        )
    parts = border.split(rows_of_text(border.relation, letters[0].rows))
    if not parts:
        raise TidegateError(
            f"dead letter {letter} on {stream} has no rows: a watermark made windows fire, and they still hold theirs. Advance "
            f"the stream again",
            letter=letter,
        )
    ((key, rows),) = parts.items()
    return Requeue(border, key, rows, letter)
