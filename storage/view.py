"""What one execution may see and change: the tables at its position, under its own uncommitted writes.

A :class:`View` implements row access. Every read goes write set → versions → base; every write goes to the write
set, after types, NOT NULL, PRIMARY KEY, UNIQUE and CHECK have been satisfied, so a refused row changes nothing.
Dropping the view is a rollback.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.errors import AccessError, StatementError
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.readers import Reader, Updating
from tidegate.storage.schema import Column, Key, Relation, Row
from tidegate.storage.updates import update_each
from tidegate.storage.violations import being_updated, check_asked, duplicate_key, outside, read_only, undeclared

if TYPE_CHECKING:
    from tidegate.storage.database import Database

WriteIndex = Mapping[tuple[str, str], tuple[int, SecondaryIndex]]  # own writes, by table and index
NOTHING: Mapping[Any, Any] = MappingProxyType({})
WriteSet = dict[str, dict[Key, Row | None]]


class View:
    """Tables as of ``position``, restricted to ``access``, with private writes on top.

    ``partitions``: for each table that is not declared whole, the values of its partition column (tuples of them, if there
    are several columns) that may be touched. ``relations`` are extra named rows that SQL may read (the input batch,
    windows). ``now``, ``random`` and ``uuid`` are what SQL's functions of these names return.
    """

    __slots__ = (
        "_indexed",
        "_procedure",
        "access",
        "commit",
        "database",
        "partitions",
        "position",
        "relations",
        "writes",
    )

    def __init__(
        self,
        database: Database,
        position: int,
        access: Mapping[str, Reader],
        *,
        procedure: str = "query",
        partitions: Mapping[str, Collection[Any]] | None = None,
        commit: int = 0,
    ) -> None:
        self.database = database
        self.position = position
        self.access = access
        self._procedure = procedure
        self.partitions: Mapping[str, Collection[Any]] = partitions or {}
        self.commit = commit
        self.writes: WriteSet = {}
        self._indexed: WriteIndex = NOTHING
        self.relations: Mapping[str, tuple[Relation, Sequence[Row]]] = NOTHING

    @property
    def procedure(self) -> str:
        """The procedure that reads or writes, for error messages."""
        return self._procedure

    # ---- reading

    def get(self, table: str, key: Key) -> Any:
        """The row with this primary key, or None.

        The key of a table with several key columns is a tuple in their order.
        """
        try:
            reader = self.access[table]
            if table in self.writes and key in self.writes[table]:
                row = self.writes[table][key]
                if reader.whole or (
                    row is not None and reader.place is not None and row[reader.place] in self.partitions[table]
                ):
                    return row
                return reader.get(self, key)  # it was deleted, or another member of a nested transaction wrote it
            newest = reader.newest  # called as reader.newest(…), the interpreter would look for a method
            row = newest(key)
        except (KeyError, TypeError):  # an undeclared table, or an unhashable key
            return (self.access.get(table) or self.undeclared(table)).get(self, key)
        if row is None:
            return reader.absent(self, key)
        if reader.place is not None and row[reader.place] not in self.partitions[table]:
            raise self._outside(reader, row)
        named = reader.named
        if reader.table.straight >= self.position:
            row = reader.table.read(key, self.position)
            return None if row is None else named(row)
        return named(row)

    def scan(self, table: str, **equals: Any) -> list[Any]:
        """All visible rows in key order, or those whose columns equal the given values (by index where there is one).

        A NULL equals nothing, as in SQL.
        """
        reader = self.access.get(table) or self.undeclared(table)
        return list(map(reader.named, self._where(reader, equals)))

    def count(self, table: str, /, **equals: Any) -> int:
        """How many rows ``scan(table, **equals)`` gives. With an index on these columns it does not read the rows."""
        reader = self.access.get(table) or self.undeclared(table)
        alone = len(equals) == 1
        names: Any
        names, value = equals.popitem() if alone else (tuple(equals), tuple(equals.values()))
        if names in reader.counts and table not in self.writes:
            held = reader.table
            evictions = held.evictions
            if held.complete:
                found = reader.counts[names].count(value)
                if found is not None and held.evictions == evictions and held.straight < self.position:
                    return found
        return len(self._where(reader, {names: value} if alone else equals))

    def _where(self, reader: Reader, equals: Mapping[str, Any]) -> list[Row]:
        """The visible rows whose columns equal these values, in key order."""
        schema = reader.table.schema
        wanted = {name: schema.check_value(schema.column(name), value) for name, value in equals.items()}
        chosen = reader.partitions(self)
        if chosen is not None:
            asked = [((name,), [(wanted[name],)]) for name in schema.partition_by if name in wanted]
            check_asked(self.procedure, schema, chosen, asked)
        index = reader.table.index_on(wanted) if wanted else None
        keys: Collection[Key]
        if index is not None:
            values = tuple(wanted[name] for name in index.columns)
            keys = self.index_keys(reader, index, values)
        else:
            keys = dict.fromkeys([*self.database.all_keys(reader.table), *self.writes.get(schema.name, ())])
        if None in wanted.values():
            return []
        rows = self.visible(reader, sorted(reader.inside(self, keys)))
        for name, value in wanted.items():
            place = schema.index_of[name]
            rows = [row for row in rows if row[place] == value]
        return rows

    def visible(self, reader: Reader, keys: Iterable[Key]) -> list[Row]:
        """The rows with these stored keys that this execution sees."""
        table, newest, position = reader.table, reader.newest, self.position
        written = self.writes.get(table.name, ())
        rows = []
        for key in keys:
            row = newest(key) if key not in written else None
            if row is None or table.straight >= position:
                row = reader.row(self, key)
            if row is not None:
                rows.append(row)
        return rows

    def index_keys(self, reader: Reader, index: SecondaryIndex, values: tuple[Any, ...]) -> Collection[Key]:
        """Keys that may have these indexed values in this view (callers check the row they see)."""
        if None in values:
            return ()
        value = values if len(values) > 1 else values[0]
        written = self.written_index(reader.name, index)
        committed = self.database.keys_with(reader.table, index, values)
        own = written.candidates(value) if written is not None else ()
        return {*committed, *own} if own else committed

    def forget_written_index(self) -> None:
        """The write set changed in another way than by adding writes."""
        self._indexed = NOTHING

    def written_index(self, table: str, index: SecondaryIndex) -> SecondaryIndex | None:
        """Own writes in such an index, extended as new keys are written; rebuilt when a key is written again."""
        written = self.writes.get(table)
        if not written:
            return None
        seen, found = self._indexed.get((table, index.name), (0, None))
        if found is None:
            found = index.empty()
        if seen < len(written):
            for key, row in islice(written.items(), seen, None):
                if row is not None:
                    found.add(row, key)
            self._indexed = {**self._indexed, (table, index.name): (len(written), found)}
        return found

    def rows_of(self, name: str) -> tuple[Relation, Sequence[Row]]:
        """The rows of a stream or window that SQL names: private, so only those that this execution was given."""
        found = self.relations.get(name)
        if found is None:
            raise AccessError(
                f"procedure {self.procedure} reads {name} in SQL, which is not one of its inputs, outputs or windows; "
                "a stream is seen by its producer and its consumers only",
                procedure=self.procedure,
                relation=name,
            )
        return found

    # ---- what SQL's functions of these names return, given by the transaction

    @property
    def now(self) -> dt.datetime:
        """The current time, naive UTC."""
        raise self._no_transaction("now()")

    @property
    def random(self) -> Any:
        """The random generator: an object with ``random()``."""
        raise self._no_transaction("random()")

    def uuid(self) -> UUID:
        """A fresh UUID."""
        raise self._no_transaction("uuid()")

    def _no_transaction(self, function: str) -> StatementError:
        return StatementError(
            f"{function} takes its value from the transaction, and this query runs outside of one; pass the value as "
            "a parameter"
        )

    # ---- writing

    def insert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        """Insert one row, given as a sequence in column order, a dict, or keyword arguments; returns it as stored."""
        reader = self.access.get(table)
        if reader is None or not reader.write:
            reader = self.writable(table)
        conform, key_of, newest = reader.conform, reader.key_of, reader.newest
        new = conform(values if row is None else row, self)
        key = key_of(new)
        if not reader.constraints and table not in self.writes:
            held = reader.table
            evictions = held.evictions
            if held.complete and newest(key) is None and held.evictions == evictions and held.straight < self.position:
                if reader.place is not None and new[reader.place] not in self.partitions[table]:
                    raise self._outside(reader, new)
                self.writes[table] = {key: new}
                return new
        return self._insert(reader, key, new)

    def insert_stored(self, reader: Reader, new: Row) -> Row:
        """Insert a row whose values are in their stored form already."""
        reader.table.schema.check_required(new)
        return self._insert(reader, reader.key_of(new), new)

    def _insert(self, reader: Reader, key: Key, new: Row) -> Row:
        if reader.replaced(self, key) is not None:
            raise duplicate_key(reader.table.schema, key)
        for constraint in reader.constraints:
            constraint(self, reader, key, new, None)
        self.put(reader.name, key, new)
        return new

    def upsert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        """Insert the row, or replace the one with its primary key; returns it as stored."""
        reader = self.writable(table)
        new = reader.conform(values if row is None else row, self)
        if reader.place is not None and new[reader.place] not in self.partitions[table]:
            raise self._outside(reader, new)
        key = reader.key_of(new)
        if reader.constraints:
            old = reader.replaced(self, key)
            for constraint in reader.constraints:
                constraint(self, reader, key, new, old)
        self.put(table, key, new)
        return new

    def update(self, table: str, key: Key, /, **changes: Any) -> Any:
        """Change columns of the row with this primary key; returns the new row, or None when there is no such row."""
        writes = self.writes
        try:  # what get() does, without making a named row that is not returned
            reader = self.access[table]
            change = reader.changes[tuple(changes)]  # there are none if writes to the table need more checks
            newest = reader.newest
            if table in writes:
                written = writes[table]
                old = written[key] if key in written else newest(key)
            else:
                written, old = None, newest(key)
        except (KeyError, TypeError):  # columns not changed together before, an undeclared table, or an unhashable key
            return self._update_slowly(table, key, changes)
        if old is None or reader.table.straight >= self.position:
            return self._update_slowly(table, key, changes)
        if reader.place is not None and old[reader.place] not in self.partitions[table]:
            raise self._outside(reader, old)
        new = change(old, changes)
        key_of = reader.key_of
        if written is None:
            writes[table] = {key_of(old): new}
        elif self._indexed:
            self.put(table, key_of(old), new)
        else:
            written[key_of(old)] = new
        return new

    def _update_slowly(self, table: str, key: Key, changes: dict[str, Any]) -> Any:
        """``update`` where the row has to be looked up, or constraints have to be checked."""
        reader = self.writable(table)
        old = self.get(table, key)
        if old is None:
            for name in changes:
                reader.table.schema.column(name)
            return None
        new = reader.table.schema.change(tuple(changes))(old, changes)
        key = reader.key_of(old)
        for constraint in reader.constraints:
            constraint(self, reader, key, new, old)
        self.put(table, key, new)
        return new

    def delete(self, table: str, key: Key) -> bool:
        """Delete the row with this primary key; False when there is none."""
        reader = self.access.get(table)
        if reader is None or not reader.write:
            reader = self.writable(table)
        old = self.get(table, key)
        if old is None:
            return False
        self.put(table, reader.key_of(old), None)
        return True

    # ---- writing many rows

    def delete_where(self, table: str, /, **equals: Any) -> int:
        """Delete the rows that ``scan(table, **equals)`` gives, all rows without a condition; returns how many.

        Much cheaper than deleting them one by one.
        """
        reader = self.writable(table)
        rows = self._where(reader, equals)
        self.put_all(table, dict.fromkeys(map(reader.key_of, rows)))
        return len(rows)

    def update_each(self, table: str, keys: Iterable[Key], /, **changes: Any) -> list[Any]:
        """Change columns of the rows with these primary keys, one after the other; returns the new rows.

        A change is a value, or a function that makes it from the row::

            txn.update_each("beds", [visit.bed for visit in ended], free=lambda bed: bed.free + 1)

        A key that comes twice is changed twice; one without a row is skipped. When a row is refused, none is changed. A
        function may read all tables of the procedure, and write to the others.
        Much cheaper than ``get`` and ``update`` for each.
        """
        return update_each(self, self.writable(table), keys, changes)

    def put_checked(self, reader: Reader, key: Key, new: Row, old: Row | None) -> None:
        """Write ``new`` over ``old`` once the table's constraints are satisfied."""
        reader.table.schema.check_required(new)
        for constraint in reader.constraints:
            constraint(self, reader, key, new, old)
        self.put(reader.name, key, new)

    def put(self, table: str, key: Key, row: Row | None) -> None:
        written = self.writes.get(table)
        if written is None:
            self.writes[table] = {key: row}
        else:
            if self._indexed and key in written:
                self._indexed = NOTHING
            written[key] = row

    def put_all(self, table: str, rows: dict[Key, Row | None]) -> None:
        """``put`` for many rows; the view owns them from now on."""
        written = self.writes.get(table)
        if written is None:
            if rows:
                self.writes[table] = rows
        else:
            if self._indexed and not written.keys().isdisjoint(rows):
                self._indexed = NOTHING
            written.update(rows)

    def default(self, column: Column) -> Any:
        """The value of a column's DEFAULT, evaluated in this execution."""
        return self.database.default(self, column)

    # ---- access

    def writable(self, table: str) -> Reader:
        """The access to a table that is about to be written."""
        reader = self.access.get(table) or self.undeclared(table)
        if not reader.write:
            raise (being_updated if isinstance(self.access, Updating) else read_only)(self.procedure, table)
        return reader

    def undeclared(self, table: str) -> Reader:
        raise undeclared(self.procedure, table, self.database.tables)

    def _outside(self, reader: Reader, row: Row) -> AccessError:
        """The error for a row outside the partitions this execution works on."""
        return outside(self.procedure, reader.table.schema, self.partitions[reader.name], reader.key_of(row))
