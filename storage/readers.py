"""Readers: a procedure's declared access to a table, bound to the table once.

============================  ==================================================================
:class:`Reader`               all rows, as of the execution's position
:class:`PartitionReader`      the same, and only the rows of the partitions in ``View.partitions``
:class:`CompositeReader`      the same, for a table that is partitioned by several columns
:class:`CommittedReader`      all rows of the newest committed state; never waits, never writes
:class:`ExpiringReader`       any of them, without rows that are due (:mod:`tidegate.storage.expiry`)
============================  ==================================================================

Nearly every row that is read or changed is in memory and has no older versions. ``View.get``, ``insert`` and ``update``
handle those themselves, from the attributes of a reader, the same way for a table and for partitions by one column.
Everything else is a method here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.schema import Change, Key, Row
from tidegate.storage.versions import VersionedTable
from tidegate.storage.violations import outside, taken_value

if TYPE_CHECKING:
    from typing import Self

    from tidegate.storage.view import View

# raises if the table may not have this row under this key in place of the old one
Constraint = Callable[["View", "Reader", Key, Row, Row | None], None]


class Reader:
    """Access to all rows of one table, as of the execution's position.

    Attributes: ``newest(key)``, the newest row if it is in memory, valid as it is above ``table.straight``; ``whole``,
    whether all rows may be touched; ``place``, the column that alone says whether a row may be; ``changes``, functions
    that change columns, by column names, cached as they are needed, empty where a change needs more checks; ``counts``,
    the indexes whose entries are the visible rows; ``constraints``, what to ask before a write: CHECKs and UNIQUE indexes.
    """

    __slots__ = (
        "changes",
        "conform",
        "constraints",
        "counts",
        "key_of",
        "name",
        "named",
        "newest",
        "place",
        "table",
        "whole",
        "write",
    )

    def __init__(self, table: VersionedTable, write: bool) -> None:
        schema = table.schema
        self.table = table
        self.name = schema.name
        self.write = write
        self.whole = True
        self.place: int | None = None
        self.newest: Callable[[Key], Row | None] = table.newest_held
        self.named = schema.named
        self.key_of = schema.key_of
        self.conform = schema.conform
        self.constraints: tuple[Constraint, ...] = _constraints(table)
        self.changes: Mapping[tuple[str, ...], Change] = schema.changes if write and not self.constraints else {}
        self.counts: Mapping[str | tuple[str, ...], SecondaryIndex] = table.indexed

    def closed(self) -> Self:
        """The same access, read-only."""
        reader = copy(self)
        reader.write, reader.changes = False, {}
        return reader

    # ---- reading

    def get(self, view: View, key: Key) -> Any:
        """The row with this key, given in any form, as ``view`` sees it; or None."""
        key = self.table.schema.conform_key(key)
        if not self.whole:
            self.check(view, key)
        written = view.writes.get(self.name)
        if written is not None and key in written:
            return written[key]
        row = self.old(view, key)
        return None if row is None else self.named(row)

    def absent(self, view: View, key: Key) -> Any:
        """``get`` where ``newest`` has nothing, and the view has not written the key."""
        table = self.table
        if table.lacks(key) and table.straight < view.position and table.schema.conform_key(key) is key:
            if not self.whole:
                self.check(view, key)
            return None  # every row is in memory, and the key was in its stored form
        return self.get(view, key)

    def row(self, view: View, key: Key) -> Row | None:
        """The visible row with this stored key, unchecked: for keys that came from the table itself."""
        written = view.writes.get(self.name)
        if written is not None and key in written:
            return written[key]
        return self.old(view, key)

    def old(self, view: View, key: Key) -> Row | None:
        """The committed row that ``view`` sees under its own writes."""
        return self.table.read(key, view.position)

    def replaced(self, view: View, key: Key) -> Row | None:
        """The row that a write to this stored key would replace."""
        table = self.table
        written = view.writes.get(self.name)
        if written is not None and key in written:
            return written[key]
        if table.lacks(key):
            return None
        return table.read(key, view.position)

    def shows(self, view: View, row: Row) -> bool:
        """May ``view`` see this row at its time?"""
        return True

    def sees_all(self, view: View, position: int, commit: int) -> bool:
        """Does ``view`` see what was committed up to this position, and by this commit?"""
        return view.position > position

    # ---- partitions

    def partitions(self, view: View) -> Collection[Any] | None:
        """The partitions that ``view`` is restricted to, see :class:`View`; None: all."""
        return None

    def check(self, view: View, key: Key) -> None:
        """Raise AccessError when this stored key is outside the partitions."""

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        """Those of the stored keys that are inside the partitions."""
        return keys


class PartitionReader(Reader):
    """Access to the rows of some partitions, as of the execution's position. One column says which a row is in."""

    __slots__ = ("value_of",)

    def __init__(self, table: VersionedTable, write: bool) -> None:
        super().__init__(table, write)
        schema = table.schema
        (column,) = schema.partition_by
        self.whole = False
        self.place = schema.index_of[column]
        self.counts = {}
        # the value of the partition column in a stored key; None: that is the key
        self.value_of = itemgetter(schema.primary_key.index(column)) if len(schema.primary_key) > 1 else None

    def replaced(self, view: View, key: Key) -> Row | None:
        self.check(view, key)
        return super().replaced(view, key)

    def partitions(self, view: View) -> Collection[Any] | None:
        return view.partitions[self.name]

    def check(self, view: View, key: Key) -> None:
        mine = view.partitions[self.name]
        if (key if self.value_of is None else self.value_of(key)) not in mine:
            raise outside(view.procedure, self.table.schema, mine, key)

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        value_of, mine = self.value_of, view.partitions[self.name]
        if value_of is None:
            return [key for key in keys if key in mine]
        return [key for key in keys if value_of(key) in mine]


class CompositeReader(Reader):
    """Access to the rows of some partitions of a table that is partitioned by several columns: every access is checked by a
    method here.
    """

    __slots__ = ()

    def __init__(self, table: VersionedTable, write: bool) -> None:
        super().__init__(table, write)
        self.whole = False
        self.newest = not_known
        self.constraints = (check_partition, *self.constraints)
        self.changes = {}
        self.counts = {}

    absent = Reader.get

    def replaced(self, view: View, key: Key) -> Row | None:
        self.check(view, key)
        return super().replaced(view, key)

    def partitions(self, view: View) -> Collection[Any] | None:
        return view.partitions[self.name]

    def check(self, view: View, key: Key) -> None:
        schema, mine = self.table.schema, view.partitions[self.name]
        if schema.partition_of(key) not in mine:
            raise outside(view.procedure, schema, mine, key)

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        partition_of, mine = self.table.schema.partition_of, view.partitions[self.name]
        return [key for key in keys if partition_of(key) in mine]


class CommittedReader(Reader):
    """Access to all rows of the newest state that was committed when the execution began."""

    __slots__ = ()

    def __init__(self, table: VersionedTable) -> None:
        super().__init__(table, write=False)
        self.newest = not_known
        self.counts = {}

    absent = Reader.get

    def old(self, view: View, key: Key) -> Row | None:
        return self.table.read_committed(key, view.commit)

    def sees_all(self, view: View, position: int, commit: int) -> bool:
        return view.commit >= commit


class Updating(dict[str, Reader]):
    """The access of a function that ``update_each`` calls: it must not write to the table being updated."""


def not_known(key: Key) -> None:
    """The newest row may not be what a reader of a commit sees."""


def _constraints(table: VersionedTable) -> tuple[Constraint, ...]:
    """What a write to the table has to satisfy besides types, NOT NULL and the primary key."""
    unique = [partial(_check_unique, index) for index in table.indexes if index.unique]
    return (_check_row, *unique) if table.schema.checks else tuple(unique)


def check_partition(view: View, reader: Reader, key: Key, new: Row, old: Row | None) -> None:
    reader.check(view, key)


def _check_row(view: View, reader: Reader, key: Key, new: Row, old: Row | None) -> None:
    view.database.check_row(reader.table.schema, new)


def _check_unique(index: SecondaryIndex, view: View, reader: Reader, key: Key, new: Row, old: Row | None) -> None:
    value = index.value_of(new)
    if value is None or (old is not None and index.value_of(old) == value):
        return
    values = value if len(index.places) > 1 else (value,)
    for other in view.index_keys(reader, index, values):
        row = reader.row(view, other)
        if other != key and row is not None and index.value_of(row) == value:
            raise taken_value(reader.table.schema, index, value, other, key)
