"""What one execution may see and change: the tables at its position, under its own uncommitted writes.

A :class:`View` is where row access lives. Every read goes write set → versions → base; every write goes to the write
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
from tidegate.storage.access import Access, Updating
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.schema import Column, Key, Relation, Row
from tidegate.storage.updates import update_each
from tidegate.storage.violations import being_updated, duplicate_key, outside, read_only, taken_value, undeclared

if TYPE_CHECKING:
    from tidegate.storage.database import Database

WriteIndex = Mapping[tuple[str, str], tuple[int, dict[Any, list[Key]]]]  # own writes, by table and index
NOTHING: Mapping[Any, Any] = MappingProxyType({})
WriteSet = dict[str, dict[Key, Row | None]]


class View:
    """Tables as of ``position``, restricted to ``access``, with private writes on top.

    ``relations`` are extra named rows that SQL may read (the input batch, windows). ``now``, ``random`` and ``uuid`` are what
    SQL's functions of these names return.
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
        access: Mapping[str, Access],
        *,
        procedure: str = "query",
        partitions: Mapping[str, tuple[Any, ...]] | None = None,
        commit: int = 0,
    ) -> None:
        self.database = database
        self.position = position
        self.access = access
        self._procedure = procedure
        self.partitions = partitions or {}
        self.commit = commit
        self.writes: WriteSet = {}
        self._indexed: WriteIndex = NOTHING
        self.relations: Mapping[str, tuple[Relation, Sequence[Row]]] = NOTHING

    @property
    def procedure(self) -> str:
        """Who it is that reads or writes, for error messages."""
        return self._procedure

    # ---- reading

    def get(self, table: str, key: Key) -> Any:
        """The row with this primary key, or None.

        The key of a table with several key columns is a tuple in their order.
        """
        try:
            access = self.access[table]
            if table in self.writes and key in self.writes[table]:
                return self.writes[table][key]
            newest = access.newest  # the interpreter would look for a method, were it called as access.newest(…)
            row = newest(key)
        except (KeyError, TypeError):  # an undeclared table; a key that can't be one
            return self._get_slowly(self.access.get(table) or self.undeclared(table), key)
        if row is None:
            return self._get_absent(access, key)
        named = access.named
        if access.table.straight >= self.position:
            row = access.table.read(key, self.position)
            return None if row is None else named(row)
        return named(row)

    def _get_absent(self, access: Access, key: Key) -> Row | None:
        """A key without a row in memory that may be read straight away."""
        table = access.table
        whole = access.plain and table.complete and table.straight < self.position
        if whole and table.schema.conform_key(key) is key:
            return None  # every row is in memory, and it was looked up in its stored form
        return self._get_slowly(access, key)

    def _get_slowly(self, access: Access, key: Key) -> Row | None:
        """A key that is absent, oddly typed, outside the partition or not in memory."""
        table = access.table
        key = table.schema.conform_key(key)
        if access.by_key:
            self.check_partition(access, key)
        written = self.writes.get(table.name)
        if written is not None and key in written:
            return written[key]
        row = self.read_below(access, key)
        return None if row is None else access.named(row)

    def read_below(self, access: Access, key: Key) -> Row | None:
        """The committed row this execution sees, its own writes aside."""
        if access.committed:
            return access.table.read_committed(key, self.commit)
        return access.table.read(key, self.position)

    def scan(self, table: str, **equals: Any) -> list[Any]:
        """All visible rows in key order, or those whose columns equal the given values (by index where there is one).

        A NULL equals nothing, as in SQL.
        """
        access = self.access.get(table) or self.undeclared(table)
        return list(map(access.named, self._where(access, equals)))

    def count(self, table: str, /, **equals: Any) -> int:
        """How many rows ``scan(table, **equals)`` gives. With an index on these columns it does not look at them."""
        access = self.access.get(table) or self.undeclared(table)
        alone = len(equals) == 1
        names: Any
        names, value = equals.popitem() if alone else (tuple(equals), tuple(equals.values()))
        held = access.table
        if names in held.indexed and access.plain and table not in self.writes:
            found = held.indexed[names].count(value)
            if found is not None and held.complete and held.straight < self.position:
                return found
        return len(self._where(access, {names: value} if alone else equals))

    def _where(self, access: Access, equals: Mapping[str, Any]) -> list[Row]:
        """The visible rows whose columns equal these values, in key order."""
        schema = access.table.schema
        wanted = {name: schema.check_value(schema.column(name), value) for name, value in equals.items()}
        index = access.table.index_on(wanted) if wanted else None
        keys: Iterable[Key]
        if index is not None:
            values = tuple(wanted[name] for name in index.columns)
            self.database.cover(access.table, index, values)
            keys = self.index_keys(access, index, values)
        else:
            self.database.load_all(access.table)
            keys = {**dict.fromkeys(access.table.rows), **dict.fromkeys(self.writes.get(schema.name, ()))}
        if access.by_key:
            partition = self._partition(access)
            keys = [key for key in keys if schema.partition_of(key) == partition]
        if None in wanted.values():
            return []
        rows = self.visible(access, sorted(keys))
        for name, value in wanted.items():
            place = schema.index_of[name]
            rows = [row for row in rows if row[place] == value]
        return rows

    def visible(self, access: Access, keys: Iterable[Key]) -> list[Row]:
        """The rows with these stored keys that this execution sees."""
        table, newest, position = access.table, access.newest, self.position
        written = self.writes.get(table.name, ())
        rows = []
        for key in keys:
            row = newest(key) if key not in written else None
            if row is None or table.straight >= position:
                row = self.row(access, key)
            if row is not None:
                rows.append(row)
        return rows

    def index_keys(self, access: Access, index: SecondaryIndex, values: tuple[Any, ...]) -> Collection[Key]:
        """Keys that may have these indexed values in this view (callers check the row they see)."""
        if None in values:
            return ()
        value = values if len(values) > 1 else values[0]
        written = self._written_index(access.table.name, index).get(value)
        return {*index.candidates(value), *written} if written else index.candidates(value)

    def forget_written_index(self) -> None:
        """The write set changed other than by writing more."""
        self._indexed = NOTHING

    def _written_index(self, table: str, index: SecondaryIndex) -> dict[Any, list[Key]]:
        """Own writes by indexed value, kept up as new keys are written; a key written again starts it afresh."""
        written = self.writes.get(table)
        if not written:
            return {}
        seen, found = self._indexed.get((table, index.name), (0, {}))
        if seen < len(written):
            for key, row in islice(written.items(), seen, None):
                if row is not None:
                    found.setdefault(index.value_of(row), []).append(key)
            self._indexed = {**self._indexed, (table, index.name): (len(written), found)}
        return found

    def row(self, access: Access, key: Key) -> Row | None:
        """The visible row with this stored key, unchecked: for keys that came from the table itself."""
        written = self.writes.get(access.table.name)
        if written is not None and key in written:
            return written[key]
        return self.read_below(access, key)

    def rows_of(self, name: str) -> tuple[Relation, Sequence[Row]]:
        """The rows of a stream or window that SQL names: private, so only those that this execution was given."""
        found = self.relations.get(name)
        if found is None:
            raise AccessError(
                f"procedure {self.procedure} reads {name} in SQL, which is none of its inputs, outputs or windows; a stream "
                f"is seen by its producer and its consumers only",
                procedure=self.procedure,
                relation=name,
            )
        return found

    # ---- what SQL's functions of these names return; a transaction says

    @property
    def now(self) -> dt.datetime:
        """The moment, naive UTC."""
        raise self._no_transaction("now()")

    @property
    def random(self) -> Any:
        """The dice: something with ``random()``."""
        raise self._no_transaction("random()")

    def uuid(self) -> UUID:
        """A fresh UUID."""
        raise self._no_transaction("uuid()")

    def _no_transaction(self, function: str) -> StatementError:
        return StatementError(
            f"{function} takes its value from a transaction, and a query outside of one has none; pass the value as a parameter"
        )

    # ---- writing

    def insert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        """Insert one row, given as a sequence in column order, a dict, or keyword arguments; returns it as stored."""
        access = self.access.get(table)
        if access is None or not access.write:
            access = self.writable(table)
        conform, key_of, newest = access.conform, access.key_of, access.newest
        new = conform(values if row is None else row, self)
        key = key_of(new)
        if access.free and table not in self.writes and newest(key) is None:
            held = access.table
            if held.complete and held.straight < self.position:
                self.writes[table] = {key: new}
                return new
        return self._insert(access, key, new)

    def insert_stored(self, access: Access, new: Row) -> Row:
        """Insert a row whose values are in their stored form already."""
        access.table.schema.check_required(new)
        return self._insert(access, access.key_of(new), new)

    def _insert(self, access: Access, key: Key, new: Row) -> Row:
        if access.by_key:
            self.check_partition(access, key)
        if self.row_for_write(access, key) is not None:
            raise duplicate_key(access.table.schema, key)
        if access.table.guarded:
            self._check_constraints(access, key, new, None)
        self.put(access.table.name, key, new)
        return new

    def upsert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        """Insert the row, or replace the one with its primary key; returns it as stored."""
        access = self.writable(table)
        schema = access.table.schema
        new = schema.conform(values if row is None else row, self)
        key = schema.key_of(new)
        if access.by_key:
            self.check_partition(access, key)
        if access.table.guarded:
            self._check_constraints(access, key, new, self.row_for_write(access, key))
        self.put(table, key, new)
        return new

    def update(self, table: str, key: Key, /, **changes: Any) -> Any:
        """Change columns of the row with this primary key; returns the new row, or None when there is no such row."""
        writes = self.writes
        try:  # what get() does, without naming a row that nobody sees
            access = self.access[table]
            change = access.changes[tuple(changes)]  # there are none if the table may not be written just like that
            written = writes.get(table)
            newest = access.newest
            old = newest(key) if written is None or key not in written else written[key]
        except (KeyError, TypeError):  # not written so before; an undeclared table; a key that can't be one
            return self._update_slowly(table, key, changes)
        if old is None or access.table.straight >= self.position:
            return self._update_slowly(table, key, changes)
        new = change(old, changes)
        key_of = access.key_of
        if written is None:
            writes[table] = {key_of(old): new}
        elif self._indexed:
            self.put(table, key_of(old), new)
        else:
            written[key_of(old)] = new
        return new

    def _update_slowly(self, table: str, key: Key, changes: dict[str, Any]) -> Any:
        """``update`` where the row has to be looked for, or constraints have to agree."""
        access = self.writable(table)
        old = self.get(table, key)
        if old is None:
            return None
        new = access.table.schema.change(tuple(changes))(old, changes)
        key = access.key_of(old)
        if access.guarded:
            self._check_constraints(access, key, new, old)
        self.put(table, key, new)
        return new

    def delete(self, table: str, key: Key) -> bool:
        """Delete the row with this primary key; False when there is none."""
        access = self.access.get(table)
        if access is None or not access.write:
            access = self.writable(table)
        old = self.get(table, key)
        if old is None:
            return False
        self.put(table, access.key_of(old), None)
        return True

    # ---- writing many rows

    def delete_where(self, table: str, /, **equals: Any) -> int:
        """Delete the rows that ``scan(table, **equals)`` gives, all rows without a condition; returns how many.

        Much cheaper than deleting them one by one.
        """
        access = self.writable(table)
        rows = self._where(access, equals)
        self.put_all(table, dict.fromkeys(map(access.key_of, rows)))
        return len(rows)

    def update_each(self, table: str, keys: Iterable[Key], /, **changes: Any) -> list[Any]:
        """Change columns of the rows with these primary keys, one after the other; returns the new rows.

        A change is a value, or a function that makes it from the row::

            txn.update_each("beds", [visit.bed for visit in ended], free=lambda bed: bed.free + 1)

        A key that comes twice is changed twice; one without a row is passed over. When a row is refused, none is changed. A
        function may read all tables of the procedure, and write to the others.
        Much cheaper than ``get`` and ``update`` for each.
        """
        return update_each(self, self.writable(table), keys, changes)

    def put_checked(self, access: Access, key: Key, new: Row, old: Row | None) -> None:
        """Write ``new`` over ``old`` after the table's constraints agree."""
        access.table.schema.check_required(new)
        if access.table.guarded:
            self._check_constraints(access, key, new, old)
        self.put(access.table.name, key, new)

    def _check_constraints(self, access: Access, key: Key, new: Row, old: Row | None) -> None:
        schema = access.table.schema
        if schema.checks:
            self.database.check_row(schema, new)
        for index in access.table.indexes:
            if index.unique:
                self.check_unique(access, index, key, new, old)

    def put(self, table: str, key: Key, row: Row | None) -> None:
        written = self.writes.get(table)
        if written is None:
            self.writes[table] = {key: row}
        else:
            if self._indexed and key in written:
                self._indexed = NOTHING
            written[key] = row

    def put_all(self, table: str, rows: dict[Key, Row | None]) -> None:
        """``put`` for many rows; they are the view's from now on."""
        written = self.writes.get(table)
        if written is None:
            if rows:
                self.writes[table] = rows
        else:
            if self._indexed and not written.keys().isdisjoint(rows):
                self._indexed = NOTHING
            written.update(rows)

    def check_unique(self, access: Access, index: SecondaryIndex, key: Key, new: Row, old: Row | None) -> None:
        value = index.value_of(new)
        if value is None or (old is not None and index.value_of(old) == value):
            return
        values = value if len(index.places) > 1 else (value,)
        self.database.cover(access.table, index, values)
        for other in self.index_keys(access, index, values):
            row = self.row(access, other)
            if other != key and row is not None and index.value_of(row) == value:
                raise taken_value(access.table.schema, index, value, other, key)

    def default(self, column: Column) -> Any:
        """The value of a column's DEFAULT, evaluated in this execution."""
        return self.database.default(self, column)

    def row_for_write(self, access: Access, key: Key) -> Row | None:
        """The row that a write to this stored key would replace."""
        table = access.table
        written = self.writes.get(table.name)
        if written is not None and key in written:
            return written[key]
        if key not in table.rows and table.complete:  # in this order: complete ends before a row is evicted
            return None
        return table.read(key, self.position)

    # ---- access

    def writable(self, table: str) -> Access:
        """The access to a table that is about to be written."""
        access = self.access.get(table) or self.undeclared(table)
        if not access.write:
            raise (being_updated if isinstance(self.access, Updating) else read_only)(self.procedure, table)
        return access

    def undeclared(self, table: str) -> Access:
        raise undeclared(self.procedure, table, self.database.tables)

    def _partition(self, access: Access) -> tuple[Any, ...]:
        return self.partitions[access.table.name]

    def in_partition(self, access: Access, rows: Iterable[Row]) -> list[Row]:
        """Those of ``rows`` that belong to the partition this execution works on."""
        schema = access.table.schema
        mine = self._partition(access)
        return [row for row in rows if schema.partition_of(schema.key_of(row)) == mine]

    def check_partition(self, access: Access, key: Key) -> None:
        schema = access.table.schema
        mine = self._partition(access)
        if schema.partition_of(key) != mine:
            raise outside(self.procedure, schema, mine, key)
