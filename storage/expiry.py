"""Rows that expire: hidden from reads as soon as they are due, removed inside the transactions that write to their table.

A row is due when the time in its column, plus the declared duration, is not later than the reader's ``now``: for a transaction
that is the logged time of its batch, so a replay hides and removes the same rows. Whatever asks a view for rows asks the
:class:`ExpiringReader`; versions, merges and the base know nothing of it and hold the rows that were not removed yet.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.errors import DeclarationError
from tidegate.storage.ordered import Range
from tidegate.storage.readers import Reader, check_partition, not_known
from tidegate.storage.schema import Expiry, Index, Key, Row, TableSchema
from tidegate.storage.versions import VersionedTable

if TYPE_CHECKING:
    from tidegate.storage.database import Database
    from tidegate.storage.indexes import SecondaryIndex
    from tidegate.storage.view import View

REMOVED = 100  # due rows that a transaction removes besides two for each row that it wrote
_FIRST = dt.datetime(1, 1, 1)
_ALL = dt.datetime(9999, 12, 31) - _FIRST
AHEAD = 16  # this part of the duration is read ahead from a table that is not in memory


def expiring(table: str, columns: dict[str, str], column: str, after: dt.timedelta) -> Expiry:
    """What ``expire=(column, after)`` declares, checked."""
    if column not in columns:
        raise DeclarationError(
            f"table {table}: expire names the column {column!r}; it has {', '.join(columns)}",
            table=table,
            column=column,
        )
    if columns[column] not in {"timestamp", "date"}:
        raise DeclarationError(
            f"table {table}: rows expire by a TIMESTAMP or DATE column, and {column} is neither; store the time as TIMESTAMP",
            table=table,
            column=column,
        )
    if after <= dt.timedelta(0):
        raise DeclarationError(f"table {table}: rows expire after a positive duration, got {after}", table=table)
    return Expiry(column, after)


def expiry_indexes(schema: TableSchema, expiry: Expiry) -> list[Index]:
    """The indexes by which due rows are found, in the whole table and in one partition, unless there are such."""
    wanted: list[tuple[str, ...]] = [(expiry.column,)]
    if schema.partition_by and expiry.column not in schema.partition_by:
        wanted.append((*schema.partition_by, expiry.column))
    known = {index.columns for index in schema.indexes}
    return [
        Index(f"{schema.name}_{'_'.join(columns)}_expiry", columns, unique=False)
        for columns in wanted
        if columns not in known
    ]


class ExpiringReader(Reader):
    """Another reader's access to a table whose rows expire, without those that are due."""

    __slots__ = ("_after", "_dated", "_earliest", "_place_of_time", "_plain", "by_partition", "by_time", "inner")

    def __init__(self, inner: Reader) -> None:
        super().__init__(inner.table, inner.write)
        schema = inner.table.schema
        assert schema.expiry is not None
        self.inner = inner
        column, self._after = schema.expiry.column, schema.expiry.after
        self._place_of_time = schema.index_of[column]
        self._dated = schema.column(column).type.family == "date"
        self._earliest = _FIRST + min(self._after, _ALL)
        self._plain = inner.newest is not not_known  # what is newest is what it sees, above ``table.straight``
        self.by_time = _index(inner.table, (column,))
        parts = schema.partition_by
        self.by_partition = _index(inner.table, (*parts, column)) if parts and column not in parts else None
        self.whole = False
        self.newest = not_known
        self.constraints = (check_partition, *self.constraints)
        self.changes = {}
        self.counts = {}

    def cut(self, view: View) -> Any:
        """Rows with this value or an earlier one are due."""
        now = view.now
        moment = now - self._after if now >= self._earliest else _FIRST
        return moment.date() if self._dated else moment

    def shows(self, view: View, row: Row) -> bool:
        value = row[self._place_of_time]
        return value is None or value > self.cut(view)

    def get(self, view: View, key: Key) -> Any:
        key = self.table.schema.conform_key(key)
        if not self.inner.whole:
            self.inner.check(view, key)
        row = self.row(view, key)
        return None if row is None else self.named(row)

    absent = get

    def row(self, view: View, key: Key) -> Row | None:
        row = None
        if self._plain and self.name not in view.writes:
            held = self.table
            row = held.newest_held(key)
            if (row is None and not held.lacks(key)) or held.straight >= view.position:
                row = self.inner.row(view, key)
        else:
            row = self.inner.row(view, key)
        return row if row is None or self.shows(view, row) else None

    def old(self, view: View, key: Key) -> Row | None:
        """Due or not: what is committed, for a copy that other views use too."""
        return self.inner.old(view, key)

    def replaced(self, view: View, key: Key) -> Row | None:
        if not self.inner.whole:
            self.inner.check(view, key)
        return self.row(view, key)

    def sees_all(self, view: View, position: int, commit: int) -> bool:
        return self.inner.sees_all(view, position, commit)

    def partitions(self, view: View) -> Collection[Any] | None:
        return self.inner.partitions(view)

    def check(self, view: View, key: Key) -> None:
        self.inner.check(view, key)

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        return self.inner.inside(view, keys)


# ---- removing


def remove_due(view: View, reader: ExpiringReader) -> None:
    """Delete the first rows that are due, a bounded number, if the view has written to the table.

    Which ones follows from the table and ``view.now`` alone: the earliest, by key where times are equal, in each
    partition that the view may touch.
    """
    table = reader.table
    written = view.writes.get(table.name)
    if not written:
        return
    limit = reader.cut(view)
    if table.complete:
        evictions, least = table.evictions, reader.by_time.least()
        if (least is None or least > limit) and table.complete and table.evictions == evictions:
            return
    most = REMOVED + 2 * len(written)
    while True:
        evictions = _load_due(view.database, table, limit)
        keys = [key for _, key in zip(range(most), _due(view, reader, limit, written), strict=False)]
        if table.evictions == evictions:
            break
    if keys:
        view.put_all(table.name, dict.fromkeys(keys))


def _due(view: View, reader: ExpiringReader, limit: Any, written: Collection[Key]) -> Iterator[Key]:
    partitions = reader.partitions(view)
    if partitions is None or reader.by_partition is None:
        index, ranges = reader.by_time, [Range(high=limit)]
    else:
        index = reader.by_partition
        several = len(index.places) > 2
        ranges = [Range(part if several else (part,), high=limit) for part in sorted(partitions)]
    for wanted in ranges:
        for value in index.walk(wanted):
            for key in sorted(reader.inside(view, index.candidates(value))):
                row = reader.inner.row(view, key) if key not in written else None
                if row is not None and index.value_of(row) == value:
                    yield key


def _index(table: VersionedTable, columns: tuple[str, ...]) -> SecondaryIndex:
    return next(index for index in table.indexes if index.columns == columns)


def _load_due(database: Database, table: VersionedTable, limit: Any) -> int:
    """Have all due rows in memory; returns the number of evictions for which that holds.

    Of a table that is not held whole, those that are due soon are loaded as well, to ask DuckDB less often.
    """
    expiry = table.schema.expiry
    assert expiry is not None
    while True:
        evictions = table.mark()
        if database.hold(table):
            return evictions
        known, until = table.due_loaded
        if known == evictions and until is not None and limit <= until:
            return evictions
        start = until if known == evictions else None
        end = limit + max(expiry.after / AHEAD, dt.timedelta(days=1) if type(limit) is dt.date else dt.timedelta(0))
        table.take(partial(database.base.between, table.schema, expiry.column, start, end))
        if table.evictions == evictions:
            table.due_loaded = (evictions, end)
            return evictions
