"""Entries: what the engine accepts is what its log stores.

Every way in (a push, a feed, a call, a deadline that passed, a replay) creates one of these values. The engine numbers
it, adds the time and logs it; then an executor gives it its place in the order::

    push · feed · call · deadline ─┐
                                   ├─▶ Rows | Call ─▶ numbered, logged ─▶ Work ─▶ Executor.place
    the log, replayed ─────────────┘

``record_of`` and ``Entries.read`` are inverses of each other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tidegate.errors import CorruptionError, DataError, shown
from tidegate.storage.codec import RowCodec, check_depth, from_json, to_json, writable
from tidegate.storage.jsontext import DEPTH
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.log.record import Called, Fed, Pushed, RawFed, Record, to_us
from tidegate.txn.program import UnitProgram


class Rows(NamedTuple):
    """Rows that arrive together on a border stream, checked and split into batches. They are one record, so a crash
    can't separate them.

    ``parts``: (key, rows) of each batch; splitting every ``size`` rows by key gives the same parts again. ``batch_id``:
    the id of the only batch, if its sender chose it. ``source``: is at ``offset`` from then on.
    """

    border: Border
    parts: Sequence[tuple[Any, tuple[Any, ...]]]
    size: int = 1
    rows: Sequence[Any] | None = None
    batch_id: int | None = None
    source: str | None = None
    offset: Any = None


class Call(NamedTuple):
    """A call of an OLTP procedure: its arguments, the partitions they name, and the arguments as the log stores them."""

    unit: UnitProgram
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    partitions: dict[str, tuple[Any, ...]]
    written: tuple[Any, Any] | None = None


Entry = Rows | Call


class Work(NamedTuple):
    """An entry with its sequence numbers, ``first`` to ``last``: one per batch, or one for a call.

    ``together``: all batches are admitted before any of them runs.
    """

    first: int
    last: int
    time: dt.datetime
    batches: Sequence[Batch] = ()
    call: Call | None = None
    together: bool = True


def record_of(entry: Entry, work: Work) -> Record:
    """How the log stores it: ``Pushed`` for a single batch, else ``Fed`` (without rows, if only the offset advances)."""
    if isinstance(entry, Call):
        assert entry.written is not None
        return Called(work.first, to_us(work.time), entry.unit.name, *entry.written)
    source, batches = entry.source, work.batches
    offset = None if source is None else to_json(entry.offset)
    if len(batches) == 1:
        batch, explicit = batches[0], entry.batch_id is not None
        return Pushed(
            work.first, to_us(work.time), entry.border.name, batch.id, list(batch.rows), explicit, source, offset
        )
    rows: Any = entry.rows or [row for batch in batches for row in batch.rows]  # any sequence is encoded as a list
    together = work.together or not batches
    return Fed(work.first, to_us(work.time), entry.border.name, max(entry.size, 1), rows, source, offset, together)


class Entries:
    """Reads entries from the log of an app."""

    def __init__(
        self, borders: Mapping[str, Border], units: Mapping[str, UnitProgram], codecs: Mapping[str, RowCodec]
    ) -> None:
        self._borders = borders
        self._units = units
        self._codecs = codecs

    def read(self, record: Pushed | Fed | Called) -> Entry:
        if isinstance(record, Called):
            unit = self._units[record.procedure]
            named = {name: from_json(value) for name, value in record.named.items()}
            return Call(unit, *unit.members[0].bind_call(from_json(record.arguments), named))
        border, codec = self._borders[record.stream], self._codecs[record.stream]
        offset = None if record.source is None else from_json(record.offset)
        if isinstance(record, Pushed):
            parts = list(border.split(codec.unpack(record.rows)).items())
            batch_id = record.batch_id if record.explicit else None
            return Rows(border, parts, 1, None, batch_id, record.source, offset)
        rows = codec.read(record.rows) if isinstance(record, RawFed) else codec.unpack(record.rows)
        return Rows(border, border.split_into(rows, record.size), record.size, rows, None, record.source, offset)


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
