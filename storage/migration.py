"""Stored tables in another shape: which changes keep every value, and how the base is rewritten.

A changed table is a query over the stored one: every column is a stored column, converted to a wider type, or one value
for all rows. The same query is asked whether a new constraint holds, by those who only want to know, and makes the new
table, so both see the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from tidegate.crashpoints import crash_point
from tidegate.errors import BaseDamaged, TidegateError
from tidegate.storage.arrow import tupled
from tidegate.storage.base import BASE_SCHEMA, META, STAMP, base_name
from tidegate.storage.ddl import Scratch, quote
from tidegate.storage.schema import Column, TableSchema
from tidegate.storage.sql.parsing import parse_expression
from tidegate.storage.types import ColumnType, column_type

SHOWN = 3  # offending rows that an error names
_TEMPORARY = "tidegate_new_"  # no app has a table of such a name

# each of them holds every value of those before it
_WIDER = (
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    ("UTINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    ("USMALLINT", "INTEGER", "BIGINT"),
    ("UINTEGER", "BIGINT"),
    ("FLOAT", "DOUBLE"),
)


def is_wider(stored: str, declared: str) -> bool:
    """Does the type ``declared`` hold every value of ``stored`` as an equal value?

    >>> is_wider("INTEGER", "BIGINT"), is_wider("DECIMAL(10,2)", "DECIMAL(18,4)"), is_wider("DATE", "TIMESTAMP")
    (True, True, False)
    """
    if any(stored in types and declared in types[types.index(stored) :] for types in _WIDER):
        return True
    old, new = column_type(stored), column_type(declared)
    if old.family == new.family == "decimal":
        (precision, scale), (wider, finer) = _digits(old), _digits(new)
        return finer >= scale and wider - finer >= precision - scale
    if old.family == new.family == "list":
        assert old.element is not None
        assert new.element is not None
        return old.element == new.element or is_wider(old.element.sql, new.element.sql)
    return old == new


def _digits(kind: ColumnType) -> tuple[int, int]:
    return kind.arrow.precision, kind.arrow.scale


def constant_default(column: Column, scratch: Scratch) -> Any:
    """The value that a column's DEFAULT gives every row; ValueError says why there is none."""
    assert column.default is not None
    tree, draws = parse_expression(column.default, f"DEFAULT {column.default} of {column.name}")
    if draws:
        raise ValueError(f"DEFAULT {column.default} has another value each time")
    try:
        with scratch.lock:
            sql = f"SELECT CAST({tree.sql('duckdb')} AS {column.type.sql})"
            ((value,),) = scratch.connection.execute(sql).fetchall()
    except duckdb.Error as error:
        raise ValueError(f"DEFAULT {column.default}: {str(error).splitlines()[0]}") from None
    return None if value is None else column.type.coerce(tupled(value))


@dataclass(frozen=True)
class Source:
    """Where the values of a column come from: the stored column at ``place``, or ``fill`` for every row."""

    column: Column
    place: int | None = None
    fill: Any = None

    def of(self, row: Sequence[Any]) -> Any:
        value = self.fill if self.place is None else row[self.place]
        return None if value is None else self.column.type.coerce(value)


@dataclass(frozen=True)
class Reshape:
    """A stored table (its name and columns) and what becomes of it."""

    stored: str
    columns: tuple[str, ...]
    schema: TableSchema
    sources: tuple[Source, ...]
    converted: bool = False  # does a column get another type?

    @property
    def rewritten(self) -> bool:
        """Is there more to do than to rename it and to add empty columns at its end?"""
        kept, added = self.sources[: len(self.columns)], self.sources[len(self.columns) :]
        same = [source.place for source in kept] == list(range(len(self.columns)))
        return not same or self.converted or any(source.fill is not None for source in added)

    def row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A stored row in its new shape."""
        return tuple([source.of(values) for source in self.sources])

    @property
    def query(self) -> str:
        """The stored rows in their new shape."""
        parts = []
        for source in self.sources:
            column = source.column
            stored = column.default if source.fill is not None else "NULL"
            if source.place is not None:
                stored = quote(self.columns[source.place])
            parts.append(f"CAST({stored} AS {column.type.sql}) AS {quote(column.name)}")
        return f"SELECT {', '.join(parts)} FROM {BASE_SCHEMA}.{quote(self.stored)}"


@dataclass(frozen=True)
class Trial:
    """A constraint that stored rows may break. ``broken``: SQL that is true for a row that does; ``unique``: columns."""

    reshape: Reshape
    told: str
    broken: str | None = None
    unique: tuple[str, ...] = ()

    def offenders(self, connection: duckdb.DuckDBPyConnection) -> str | None:
        """How many rows break it, and the first of them, in words; None: none does."""
        schema = self.reshape.schema
        rows = f"({self.reshape.query}) AS {quote(schema.name)}"
        if self.broken is not None:
            chosen = f"SELECT * FROM {rows} WHERE {self.broken}"
        else:
            names = ", ".join(map(quote, self.unique))
            given = " AND ".join(f"{quote(name)} IS NOT NULL" for name in self.unique)
            chosen = f"SELECT * FROM {rows} WHERE {given} QUALIFY count(*) OVER (PARTITION BY {names}) > 1"
        order = ", ".join(map(quote, [*self.unique, *schema.primary_key]))
        try:
            ((count,),) = connection.execute(f"SELECT count(*) FROM ({chosen})").fetchall()
            first = connection.execute(f"{chosen} ORDER BY {order} LIMIT {SHOWN}").fetchall() if count else []
        except duckdb.Error as error:
            return f"DuckDB can't tell: {str(error).splitlines()[0]}"
        if not count:
            return None
        told = "1 stored row breaks it" if count == 1 else f"{count:,} stored rows break it"
        return f"{told}: {', '.join(map(repr, first))}" + (", …" if count > SHOWN else "")


class StoredBase:
    """A base file that no engine has open; connected to when it is needed.

    ``read_only``: for those who only look: not even DuckDB's own files are touched.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            try:
                self._connection = duckdb.connect(str(self.path), self.read_only, config={"threads": "1"})
            except duckdb.Error as error:
                raise BaseDamaged(f"DuckDB can't open {self.path}: {str(error).splitlines()[0]}") from None
            self._connection.execute("SET TimeZone = 'UTC'")
        return self._connection

    def __enter__(self) -> StoredBase:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def facts(self) -> dict[str, Any]:
        """What is stored beside the tables; nothing before the first merge."""
        try:
            found = self.connection.execute(f"FROM {META}").fetchall()
        except duckdb.CatalogException:
            return {}
        return {name: json.loads(value) for name, value in found}

    def count(self, table: str) -> int:
        """How many rows a stored table has."""
        found = self.connection.execute(f"SELECT count(*) FROM {BASE_SCHEMA}.{quote(table)}").fetchall()[0]
        return int(found[0])

    def offenders(self, trial: Trial) -> str | None:
        """How many rows break a constraint, and the first of them, in words; None: none does."""
        return trial.offenders(self.connection)

    def migrate(
        self,
        reshapes: Sequence[Reshape],
        created: Iterable[TableSchema],
        dropped: Iterable[str],
        facts: Mapping[str, Any],
    ) -> None:
        """Give the base its new tables and facts, in one transaction: a kill leaves the old base or the new one."""
        self.connection.execute("BEGIN TRANSACTION")
        try:
            self._replace(reshapes, dropped)
            for schema in created:
                columns = ", ".join(f"{quote(column.name)} {column.type.sql}" for column in schema.columns)
                self.connection.execute(f"DROP TABLE IF EXISTS {base_name(schema)}")  # of an app that never merged
                self.connection.execute(f"CREATE TABLE {base_name(schema)} ({columns})")
            self.connection.execute(f"DELETE FROM {META}")
            facts = {name: value for name, value in facts.items() if name != STAMP}
            names, texts = list(facts), [json.dumps(value) for value in facts.values()]
            self.connection.execute(f"INSERT INTO {META} SELECT unnest(?), unnest(?)", [names, texts])
            crash_point("migration-before-commit")
            self.connection.execute("COMMIT")
        except duckdb.Error as error:
            _roll_back(self.connection)
            raise TidegateError(
                f"the tables in {self.path} could not be given their new shape ({str(error).splitlines()[0]}); nothing was "
                f"changed. Fix the cause and open it again, or open it with the old code",
                path=self.path,
            ) from error
        except BaseException:
            _roll_back(self.connection)
            raise
        crash_point("migration-after-commit")

    def _replace(self, reshapes: Sequence[Reshape], dropped: Iterable[str]) -> None:
        """Under temporary names first: a table may get the name that another one had."""
        run = self.connection.execute
        for number, reshape in enumerate(reshapes):
            if reshape.rewritten:
                run(f"CREATE TABLE {BASE_SCHEMA}.{_TEMPORARY}{number} AS {reshape.query}")
                run(f"DROP TABLE {BASE_SCHEMA}.{quote(reshape.stored)}")
            else:
                run(f"ALTER TABLE {BASE_SCHEMA}.{quote(reshape.stored)} RENAME TO {_TEMPORARY}{number}")
            crash_point("migration-between-tables")
        for table in dropped:
            run(f"DROP TABLE {BASE_SCHEMA}.{quote(table)}")
        for number, reshape in enumerate(reshapes):
            run(f"ALTER TABLE {BASE_SCHEMA}.{_TEMPORARY}{number} RENAME TO {quote(reshape.schema.name)}")
            for source in () if reshape.rewritten else reshape.sources[len(reshape.columns) :]:
                column = f"{quote(source.column.name)} {source.column.type.sql}"
                run(f"ALTER TABLE {base_name(reshape.schema)} ADD COLUMN {column}")


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        pass  # DuckDB has rolled back itself
