"""What a question shows, kept from the moment it is asked until its transaction ends.

A person decides on what was shown. So whatever happens in between (a restart, a retry, new code), the members in front of
the question do not run again: the transaction continues from what they had done. The log has a record of it
(:class:`~tidegate.txn.log.record.Asked`), and a checkpoint holds the same record.

If its dataflow halts behind the question, the transaction loses its locks and has to begin anew, at another position.
Then only the digest is kept: the answer counts if the members in front do again what was shown.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.dataflows.graph import Unit
from tidegate.errors import Aborted, RecoveryRefused
from tidegate.storage.codec import from_json, to_json, widened
from tidegate.storage.schema import Relation
from tidegate.storage.view import WriteSet
from tidegate.streams.batch import Batch
from tidegate.streams.windows.state.results import Slide
from tidegate.txn.log.record import Asked
from tidegate.txn.positions import Position, describe
from tidegate.txn.timers import PLACE, restored_changes, saved_changes

if TYPE_CHECKING:
    from tidegate.txn.program import Program, UnitProgram
    from tidegate.txn.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Point:
    """What a transaction had done when its next member had to wait. It continues from here, any number of times.

    ``slides``: those of its windows; what is missing is computed again, from the same batches.
    """

    cursor: int
    attempts: int
    writes: WriteSet
    emitted: dict[str, Batch]
    slides: dict[tuple[str, str], Slide]
    random: Any = None  # the state of the generator, if it was used


@dataclass(frozen=True, slots=True)
class Shown:
    """A question: the stream that answers it, the procedure that waits, and the digest of what it shows.

    ``at``: when it was asked, by the monotonic clock of this process. ``point``: None if it was answered, but its
    dataflow halted before the transaction ended.
    """

    stream: str
    procedure: str
    digest: str
    at: float
    point: Point | None


def digest_of(stream: str, key: Any, batch_id: int | None, emitted: Mapping[str, Batch], writes: WriteSet) -> str:
    """The digest of a question: which one it is, the batches that it shows, and the rows it would change."""
    batches = [[name, to_json(list(batch.rows))] for name, batch in sorted(emitted.items())]
    changes = [
        [table, sorted(msgspec.msgpack.encode([to_json(key), to_json(row)]) for key, row in rows.items())]
        for table, rows in sorted(writes.items())
        if rows
    ]
    told = msgspec.msgpack.encode([stream, to_json(key), batch_id, batches, changes])
    return hashlib.blake2b(told, digest_size=16).hexdigest()


def show(txn: Transaction, stream: str, at: float) -> Shown:
    """The question that a transaction asks now, whose next member waits for ``stream``."""
    digest = digest_of(stream, txn.key, txn.batch_id, txn.emitted, txn.writes)
    return Shown(stream, txn.unit.members[txn.cursor].name, digest, at, txn.point())


def answered(questions: tuple[Shown, ...]) -> tuple[Shown, ...]:
    """What remains of them when the transaction has to begin anew."""
    return tuple(replace(question, point=None) for question in questions)


def check_answers(txn: Transaction, program: Program) -> None:
    """Abort a transaction that began anew, if the question that ``program`` has the answer to would show something else now."""
    for question in getattr(txn, "shown", ()):
        if question.point is None and question.stream in program.awaited:
            now = digest_of(question.stream, txn.key, txn.batch_id, txn.emitted, txn.writes)
            if now != question.digest:
                reason = (
                    f"the answer on {question.stream} was given to a question with digest {question.digest}; its dataflow "
                    f"halted before the answer took effect, and now the question would show something else (digest {now}). "
                    f"Push the batch again under a new id, to be asked anew"
                )
                raise Aborted(
                    f"{program.name} aborted at position {describe(txn.position)}: {reason}",
                    procedure=program.name,
                    reason=reason,
                    position=txn.position,
                )


# ---- in the log and in checkpoints


def record_of(position: Position, question: Shown, unit: UnitProgram) -> Asked:
    """A question as the log and checkpoints store it."""
    point = question.point
    if point is None:
        return Asked(position, question.stream, question.procedure, question.digest)
    writes = {
        table: [
            [to_json(row) for row in rows.values() if row is not None],
            [to_json(key) for key, row in rows.items() if row is None],
        ]
        for table, rows in point.writes.items()
    }
    emitted = {stream: to_json(list(batch.rows)) for stream, batch in point.emitted.items()}
    front = [member.name for member in unit.members[: point.cursor]]
    return Asked(
        position,
        question.stream,
        question.procedure,
        question.digest,
        front,
        writes,
        emitted,
        point.random,
        point.attempts,
        saved_changes(point.slides.get(PLACE, ())),  # type: ignore[arg-type]
    )


def read_record(record: Asked, unit: UnitProgram, batch_id: int | None, key: Any, at: float) -> Shown:
    """The question of a record, asked (again) at ``at``."""
    if record.writes is None or record.emitted is None:
        return Shown(record.stream, record.procedure, record.digest, at, None)
    why = misfit(record, unit.unit)
    if why is not None:
        raise RecoveryRefused(
            f"{unit.name} waits at position {describe(record.position)} for an answer on {record.stream}, but the app has "
            f"changed so that it can't continue: {why}. Open it with the app that asked, let the question be answered, then "
            f"change the app",
            changed=[unit.name],
        )
    assert batch_id is not None
    relations: dict[str, Relation] = {name: r for member in unit.members for name, r in member.outputs.items()}
    tables = {name: reader.table.schema for member in unit.members for name, reader in member.access.items()}
    writes: WriteSet = {}
    for name, (rows, deleted) in record.writes.items():
        found = [widened(tables[name], from_json(row)) for row in rows]
        writes[name] = {tables[name].key_of(row): row for row in found} | {from_json(gone): None for gone in deleted}
    emitted = {
        name: Batch(relations[name], batch_id, tuple(widened(relations[name], from_json(row)) for row in rows), key)
        for name, rows in record.emitted.items()
    }
    cursor = [member.name for member in unit.members].index(record.procedure)
    slides: dict[tuple[str, str], Any] = {}
    if record.timers is not None:
        slides[PLACE] = restored_changes(unit.timers, record.position, record.timers)
    point = Point(cursor, record.attempts, writes, emitted, slides, record.random)
    return Shown(record.stream, record.procedure, record.digest, at, point)


def misfit(record: Asked, unit: Unit) -> str | None:
    """Why a question can't continue in the unit as it is declared now, if so. Members added in front of it are skipped."""
    names = [member.name for member in unit.members]
    taken = {member.name: member.inputs for member in unit.members}
    if record.stream not in unit.awaited or record.stream not in taken.get(record.procedure, ()):
        return f"{unit.name} no longer has {record.procedure} waiting for {record.stream}"
    behind = [name for name in record.front if name in names[names.index(record.procedure) :]]
    if behind:
        return f"{', '.join(behind)} ran before the question, but now comes after it"
    written = {access.table for access in unit.access if access.write}
    for what, known, needed in (("emits to", unit.outputs, record.emitted), ("writes", written, record.writes)):
        for name in needed or ():
            if name not in known:
                return f"{unit.name} no longer {what} {name}"
    return None


def random_state(generator: random.Random | None) -> Any:
    """The state of a generator as the log stores it; None if there is none."""
    if generator is None:
        return None
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def random_at(state: Any) -> random.Random | None:
    """The generator in this state."""
    if state is None:
        return None
    version, numbers, gauss = state
    generator = random.Random()
    generator.setstate((version, tuple(numbers), gauss))
    return generator
