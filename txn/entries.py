"""Entries: what the engine accepts is what its log stores.

Every way in (a push, a feed, a call, a deadline that passed, a halted dataflow that continues, a replay) creates one of
these values. The engine numbers it, adds the time and logs it; then an executor gives it its place in the order::

    push · feed · advance · call · timer · deadline · resume · requeue ─┐
                                                                        ├─▶ an entry ─▶ numbered, logged ─▶ Work ─▶ place
    the log, replayed ──────────────────────────────────────────────────┘

``record_of`` and ``Entries.read`` are inverses of each other. (Structs, because every push makes two.)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, final

import msgspec

from tidegate.dataflows.partitions import Partitions
from tidegate.errors import CorruptionError, DataError, shown
from tidegate.storage.codec import RowCodec, check_depth, from_json, to_json, writable
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.columnar import Given
from tidegate.storage.jsontext import DEPTH
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.streams.watermarks import END
from tidegate.txn.execution import Execution
from tidegate.txn.log.record import Advanced, Called, Fed, Pushed, RawFed, Record, Requeued, Resumed, to_us
from tidegate.txn.log.writer import LogWriter
from tidegate.txn.positions import Position
from tidegate.txn.program import UnitProgram


@final
class Rows(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Rows that arrive together on a border stream, checked and split into batches. They are one record, so a crash
    can't separate them.

    ``parts``: (key, rows) of each batch; splitting every ``size`` rows by key gives the same parts again. ``batch_id``:
    the id of the only batch, if its sender chose it. ``source``: is at ``offset`` from then on. ``timers``: the ids of those
    whose rows these are; empty if they are times of a schedule.
    """

    border: Border
    parts: list[tuple[Any, Given]]
    size: int = 1
    rows: Sequence[Any] | None = None
    batch_id: int | None = None
    source: str | None = None
    offset: Any = None
    timers: Sequence[str] | None = None


@final
class Call(msgspec.Struct, frozen=True, eq=False):
    """A call of an OLTP procedure: its arguments, the partitions they name, and the arguments as the log stores them."""

    unit: UnitProgram
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    partitions: Partitions
    written: tuple[Any, Any] | None = None


@final
class Resume(msgspec.Struct, frozen=True, eq=False):
    """A halted dataflow continues, for all its keys or for these. ``skip``: without the batches it is halted in front
    of, which become dead letters.
    """

    dataflow: str
    keys: tuple[Any, ...] | None = None
    skip: bool = False


@final
class Requeue(msgspec.Struct, frozen=True, eq=False):
    """The batch of a dead letter is accepted again, as new work. ``letter``: the position at which it was put aside."""

    border: Border
    key: Any
    rows: Given
    letter: str


@final
class Advance(msgspec.Struct, frozen=True, eq=False):
    """Time has come to ``to`` on a border stream, for these keys (None: every key so far): no earlier row follows."""

    border: Border
    to: int
    batch_id: int | None = None
    keys: tuple[Any, ...] | None = None

    def batches(self) -> list[Batch]:
        """Accept it: a batch without rows for each key."""
        border = self.border
        if self.to == END:
            border.finished = True
        known = [None] if border.key is None else list(border.sequences)
        return [border.advance(key, self.to, self.batch_id) for key in (known if self.keys is None else self.keys)]


Entry = Rows | Call | Resume | Requeue | Advance


class Resumption(msgspec.Struct, frozen=True, eq=False):
    """What a resumed dataflow continues with: executions with the positions they had, and those that were skipped."""

    moved: Sequence[tuple[Position, Execution]]
    skipped: Sequence[Execution]


class Work(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An entry with its sequence numbers, ``first`` to ``last``: one per batch, one for a call, one for each batch that
    a resumed dataflow continues with.

    ``together``: all batches are admitted before any of them runs.
    """

    first: int
    last: int
    time: dt.datetime
    batches: Sequence[Batch] = ()
    call: Call | None = None
    together: bool = True
    resumption: Resumption | None = None


def write_down(entry: Entry, work: Work, log: LogWriter) -> None:
    """Log the entry."""
    log.append(record_of(entry, work))


def record_of(entry: Entry, work: Work) -> Record:
    """How the log stores it: ``Pushed`` for a single batch, else ``Fed`` (without rows, if only the offset advances)."""
    if type(entry) is not Rows:
        return _other_record(entry, work)
    source, batches = entry.source, work.batches
    offset = None if source is None else to_json(entry.offset)
    if len(batches) == 1 and entry.timers is None:
        batch, explicit = batches[0], entry.batch_id is not None
        packed: Any = list(batch.rows) if type(batch) is Batch else batch.given.packed()  # type: ignore[union-attr]
        return Pushed(work.first, to_us(work.time), entry.border.name, batch.id, packed, explicit, source, offset)
    rows: Any = entry.rows or [row for batch in batches for row in batch.rows]  # any sequence is encoded as a list
    if type(rows) is ColumnRows:
        rows = rows.packed()
    together = work.together or not batches
    facts = (work.first, to_us(work.time), entry.border.name, max(entry.size, 1), rows, source, offset, together)
    return Fed(*facts, None if entry.timers is None else list(entry.timers))


def _other_record(entry: Call | Resume | Requeue | Advance, work: Work) -> Record:
    if type(entry) is Call:
        assert entry.written is not None
        return Called(work.first, to_us(work.time), entry.unit.name, *entry.written)
    if type(entry) is Requeue:
        (batch,) = work.batches
        return Requeued(work.first, to_us(work.time), batch.stream, batch.id, list(batch.rows), entry.letter)
    if type(entry) is Advance:
        keys = None if entry.keys is None else [to_json(key) for key in entry.keys]
        at = to_us(work.time)
        return Advanced(work.first, at, entry.border.name, entry.to, entry.batch_id, keys, work.together)
    assert type(entry) is Resume
    assert work.resumption is not None
    keys = None if entry.keys is None else [to_json(key) for key in entry.keys]
    skipped = [execution.position for execution in work.resumption.skipped]
    return Resumed(entry.dataflow, [[old, e.position] for old, e in work.resumption.moved], keys, skipped or None)


class Entries:
    """Reads entries from the log of an app."""

    def __init__(
        self, borders: Mapping[str, Border], units: Mapping[str, UnitProgram], codecs: Mapping[str, RowCodec]
    ) -> None:
        self._borders = borders
        self._units = units
        self._codecs = codecs

    def read(self, record: Pushed | Fed | Called | Resumed | Requeued | Advanced) -> Entry:
        if isinstance(record, Resumed):
            keys = None if record.keys is None else tuple(from_json(key) for key in record.keys)
            return Resume(record.dataflow, keys, record.skipped is not None)
        if isinstance(record, Called):
            unit = self._units[record.procedure]
            named = {name: from_json(value) for name, value in record.named.items()}
            return Call(unit, *unit.members[0].bind_call(from_json(record.arguments), named))
        border, codec = self._borders[record.stream], self._codecs[record.stream]
        if isinstance(record, Advanced):
            named_keys = None if record.keys is None else tuple(from_json(key) for key in record.keys)
            return Advance(border, record.to, record.batch_id, named_keys)
        if isinstance(record, Requeued):
            ((key, rows),) = border.split(codec.unpack(record.rows)).items()
            return Requeue(border, key, rows, record.letter)
        offset = None if record.source is None else from_json(record.offset)
        if isinstance(record, Pushed):
            parts = list(border.split(codec.unpack(record.rows)).items())
            batch_id = record.batch_id if record.explicit else None
            return Rows(border, parts, 1, None, batch_id, record.source, offset)
        rows = codec.read(record.rows) if isinstance(record, RawFed) else codec.unpack(record.rows)
        parts = border.split_into(rows, record.size)
        return Rows(border, parts, record.size, rows, None, record.source, offset, record.timers)


# ---- arguments in the log


def as_logged(
    procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, Any], tuple[Any, ...], dict[str, Any]]:
    """A call's arguments as the bytes that its record will hold, and as a replay sees them (lists as tuples), so that
    the first run sees the same values.
    """
    try:
        listed, mapped = to_json(arguments), {name: to_json(value) for name, value in named.items()}
        for value in (*listed, *mapped.values()):
            check_depth(value)
        written = msgspec.Raw(msgspec.msgpack.encode(listed)), msgspec.Raw(msgspec.msgpack.encode(mapped))
        return written, from_json(listed), {name: from_json(value) for name, value in mapped.items()}
    except (CorruptionError, ValueError, OverflowError, TypeError, RecursionError):
        raise _unloggable(procedure, arguments, named) from None


def _unloggable(procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> DataError:
    """The error that says which argument can't be logged, and why."""
    for name, value in (dict(enumerate(arguments)) | named).items():
        try:
            writable(name)
            writable(value)
        except ValueError as error:
            which = f"number {name + 1}" if isinstance(name, int) else repr(name)
            return DataError(
                f"argument {which} of {procedure} can't be written to the log: {error}; pass numbers, text, bytes, dates, "
                f"decimals, lists and dicts of them, at most {DEPTH} levels deep (got {shown(value)})",
                relation=procedure,
                value=value,
            )
    return DataError(f"the arguments of {procedure} can't be written to the log", relation=procedure)
