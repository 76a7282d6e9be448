"""Readers: a procedure's declared access to a table, bound to the table once.

============================  ==================================================================
:class:`Reader`               all rows, as of the execution's position
:class:`PartitionReader`      the same, and only the rows of one partition: the one in ``View.partitions``
:class:`CommittedReader`      all rows of the newest committed state; never waits, never writes
============================  ==================================================================

Nearly every row that is read or changed is in memory and has no older versions. ``View.get``, ``insert`` and ``update``
handle those themselves, from the attributes of a reader, the same way for a table and for a partition. Everything else
is a method here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial
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

    Attributes: ``newest(key)``, the newest row if it is in memory, valid as it is above ``table.straight``; ``place``,
    the column that says whether a row is in the partition, None where all are; ``changes``, functions that change
    columns, by column names, cached as they are needed, empty where a change needs more checks; ``counts``, the indexes
    whose entries are the visible rows; ``constraints``, the CHECKs and UNIQUE indexes to ask before a write.
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
        "write",
    )

    def __init__(self, table: VersionedTable, write: bool) -> None:
        schema = table.schema
        self.table = table
        self.name = schema.name
        self.write = write
        self.place: int | None = None
        self.newest: Callable[[Key], Row | None] = table.newest_held
        self.named = schema.named
        self.key_of = schema.key_of
        self.conform = schema.conform
        self.constraints = _constraints(table)
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
        if self.place is not None:
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
            if self.place is not None:
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

    def sees_all(self, view: View, position: int, commit: int) -> bool:
        """Does ``view`` see what was committed up to this position, and by this commit?"""
        return view.position > position

    # ---- the partition

    def partition(self, view: View) -> tuple[Any, ...]:
        """The partition that ``view`` is restricted to, empty if there is none."""
        return ()

    def check(self, view: View, key: Key) -> None:
        """Raise AccessError when this stored key is outside the partition."""

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        """Those of the stored keys that are inside the partition."""
        return keys


class PartitionReader(Reader):
    """Access to the rows of one partition, as of the execution's position."""

    __slots__ = ()

    def __init__(self, table: VersionedTable, write: bool) -> None:
        super().__init__(table, write)
        (column,) = table.schema.partition_by
        self.place = table.schema.index_of[column]
        self.counts = {}

    def replaced(self, view: View, key: Key) -> Row | None:
        self.check(view, key)
        return super().replaced(view, key)

    def partition(self, view: View) -> tuple[Any, ...]:
        return view.partitions[self.name]

    def check(self, view: View, key: Key) -> None:
        schema, mine = self.table.schema, view.partitions[self.name]
        if schema.partition_of(key) != mine:
            raise outside(view.procedure, schema, mine, key)

    def inside(self, view: View, keys: Collection[Key]) -> Collection[Key]:
        partition_of, mine = self.table.schema.partition_of, view.partitions[self.name]
        return [key for key in keys if partition_of(key) == mine]


class CommittedReader(Reader):
    """Access to all rows of the newest state that was committed when the execution began."""

    __slots__ = ()

    def __init__(self, table: VersionedTable) -> None:
        super().__init__(table, write=False)
        self.newest = _unknown
        self.counts = {}

    absent = Reader.get

    def old(self, view: View, key: Key) -> Row | None:
        return self.table.read_committed(key, view.commit)

    def sees_all(self, view: View, position: int, commit: int) -> bool:
        return view.commit >= commit


class Updating(dict[str, Reader]):
    """The access of a function that ``update_each`` calls: it must not write to the table being updated."""


def _unknown(key: Key) -> None:
    """The newest row may not be what a reader of a commit sees."""


def _constraints(table: VersionedTable) -> tuple[Constraint, ...]:
    """What a write to the table has to satisfy besides types, NOT NULL and the primary key."""
    unique = [partial(_check_unique, index) for index in table.indexes if index.unique]
    return (_check_row, *unique) if table.schema.checks else tuple(unique)


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
