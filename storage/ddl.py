"""From DDL to schemas. DuckDB itself reads the DDL, in an empty scratch database, so that we accept what it accepts."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb

from tidegate.errors import DeclarationError, StatementError
from tidegate.storage.schema import Check, Column, Index, Relation, TableSchema
from tidegate.storage.types import column_type

if TYPE_CHECKING:
    import sqlalchemy as sa


OURS = "database_name = current_database() AND schema_name = current_schema()"  # not DuckDB's own views, whatever their names

MOST_KNOWN = 1_000
_KNOWN: dict[str, tuple[Column, ...]] = {}  # columns by their text: asking DuckDB takes longer than creating the table
_DEFINES = re.compile(r"\b(type|macro|function)\b", re.IGNORECASE)


class Scratch:
    """An empty in-memory DuckDB with the declared tables and streams: it reads DDL and binds statements.

    Nothing is ever stored in it. Each app has one; a DuckDB connection serves one thread at a time, so callers hold
    ``lock`` while engines are running.
    """

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": "1"})
        self.relations: set[str] = set()
        self._own_words = False  # types or macros of the app's own: columns of the same text may mean something else
        self.lock = threading.RLock()

    @contextmanager
    def tentatively(self) -> Iterator[None]:
        """Definitions made inside are kept only if no error is raised."""
        self.connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("SET enable_external_access = false")

    def define_table(self, ddl: str, partition_by: tuple[str, ...] = ()) -> TableSchema:
        """Run CREATE TABLE (and CREATE INDEX) text; return the schema of the one table it creates."""
        before = self._tables()
        self._own_words = self._own_words or bool(_DEFINES.search(ddl))
        try:
            self.connection.execute(ddl)
        except duckdb.Error as error:
            taken = "; the name is taken, choose another" if "already exists" in str(error) else ""
            raise DeclarationError(
                f"DuckDB refuses this DDL: {error}{taken}{_reserved(error)}\n  {_shorten(ddl)}", ddl=ddl
            ) from None
        created = self._tables() - before
        if len(created) != 1:
            raise DeclarationError(
                f"expected one CREATE TABLE, but this creates {len(created)} tables: {_shorten(ddl)}", ddl=ddl
            )
        return self._read_schema(created.pop(), partition_by)

    def define_relation(self, name: str, columns: str) -> Relation:
        """The relation ``name`` with columns given as in CREATE TABLE: ``"phone BIGINT, contestant INTEGER"``."""
        try:
            self.connection.execute(f"CREATE TABLE {quote(name)} ({columns})")
        except duckdb.Error as error:
            raise DeclarationError(
                f"stream {name}: DuckDB refuses its columns {columns!r}: {error}{_reserved(error)}", stream=name
            ) from None
        self.relations.add(name)
        known = None if self._own_words else _KNOWN.get(columns)
        if known is None:
            known = self._columns(name)
            if not self._own_words and len(_KNOWN) < MOST_KNOWN:
                _KNOWN[columns] = known
        return Relation(name, known)

    def define_view(self, name: str, sql: str) -> tuple[tuple[str, str], ...]:
        """Let the view be bound by those that follow; its columns, with DuckDB's names of their types."""
        try:
            self.connection.execute(f"CREATE VIEW {quote(name)} AS {sql}")
            found = self.connection.sql(sql)
        except duckdb.Error as error:
            raise DeclarationError(f"view {name}: {error}", view=name) from None
        return tuple(zip(found.columns, map(str, found.types), strict=True))

    def interval(self, text: str) -> dt.timedelta:
        """The length of time that an expression without columns stands for; ValueError if it has none, or no fixed one."""
        parts = (
            f"SELECT v, datepart('month', v) + 12 * datepart('year', v) FROM (SELECT CAST(({text}) AS INTERVAL) AS v)"
        )
        try:
            with self.lock:
                found = self.connection.execute(parts).fetchone()
        except duckdb.Error as error:
            raise ValueError(f"{text} is no length of time ({str(error).partition(chr(10))[0]})") from None
        if found is None or found[0] is None or found[1]:
            raise ValueError(f"{text} has no fixed length")
        length: dt.timedelta = found[0]
        return length

    @cached_property
    def aggregates(self) -> frozenset[str]:
        """The names of DuckDB's aggregates."""
        with self.lock:
            rows = self.connection.execute(
                "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'aggregate'"
            ).fetchall()
        return frozenset(name for (name,) in rows)

    def shape(self, sql: str) -> list[tuple[str, str]]:
        """The columns that a query gives, with DuckDB's names of their types."""
        try:
            found = self.connection.sql(sql)
        except duckdb.Error as error:
            raise StatementError(str(error).partition("\n\nLINE")[0], sql=sql) from None
        return list(zip(found.columns, map(str, found.types), strict=True))

    def forget(self, name: str) -> None:
        """A relation that was defined is not declared after all."""
        self.connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")
        self.relations.discard(name)

    def define_window(self, relation: Relation) -> None:
        """Let statements read the rows of a window, which has the columns of its stream."""
        columns = ", ".join(f"{quote(column.name)} {column.type.sql}" for column in relation.columns)
        self.connection.execute(f"CREATE OR REPLACE TABLE {quote(relation.name)} ({columns})")

    def _tables(self) -> set[str]:
        return {
            name
            for (name,) in self.connection.execute(f"SELECT table_name FROM duckdb_tables() WHERE {OURS}").fetchall()
        }

    def _columns(self, table: str) -> tuple[Column, ...]:
        rows = self.connection.execute(
            'SELECT name, "type", NOT "notnull", dflt_value FROM pragma_table_info(?) ORDER BY cid', [quote(table)]
        ).fetchall()  # duckdb_columns() looks at every table and view there is, which takes 15 ms
        stored = self.connection.execute(
            f"SELECT sql FROM duckdb_tables() WHERE table_name = ? AND {OURS}", [table]
        ).fetchall()
        if any("GENERATED ALWAYS AS" in text for (text,) in stored):
            raise DeclarationError(
                f"table {table} has a generated column, which is not supported; compute it in the procedure or in a query",
                table=table,
            )
        found = []
        for name, kind, nullable, default in rows:
            try:
                found.append(Column(name, column_type(kind), nullable, default))
            except DeclarationError as error:
                raise DeclarationError(f"{table}.{name}: {error}", table=table, column=name) from None
        return tuple(found)

    def _read_schema(self, table: str, partition_by: tuple[str, ...]) -> TableSchema:
        primary_key: tuple[str, ...] = ()
        checks: list[Check] = []
        indexes: list[Index] = []
        for kind, text, expression, columns in self.connection.execute(
            "SELECT constraint_type, constraint_text, expression, constraint_column_names "
            f"FROM duckdb_constraints() WHERE table_name = ? AND {OURS}",
            [table],
        ).fetchall():
            if kind == "PRIMARY KEY":
                primary_key = tuple(columns)
            elif kind == "CHECK":
                checks.append(Check(expression, tuple(columns)))
            elif kind == "UNIQUE":
                indexes.append(Index(text, tuple(columns), unique=True))
            elif kind == "FOREIGN KEY":
                raise DeclarationError(
                    f"table {table}: FOREIGN KEY is not supported (it would need locks on both tables); "
                    f"check the reference in the procedure and declare the read",
                    table=table,
                )
        for name, unique, expressions in self.connection.execute(
            f"SELECT index_name, is_unique, expressions FROM duckdb_indexes() WHERE table_name = ? AND {OURS}", [table]
        ).fetchall():
            indexes.append(Index(name, self._index_columns(table, name, expressions), unique))
        columns = self._columns(table)
        names = [column.name for column in columns]
        for unknown in sorted(set(partition_by) - set(names)):
            raise DeclarationError(
                f"table {table} has no column {unknown!r} to partition by; it has {', '.join(names)}", table=table
            )
        return TableSchema(
            name=table,
            columns=columns,
            primary_key=primary_key,
            checks=tuple(checks),
            indexes=tuple(indexes),
            partition_by=partition_by,
        )

    def _index_columns(self, table: str, index: str, expressions: str) -> tuple[str, ...]:
        names = [part.strip().strip("'").strip('"') for part in expressions.strip("[]").split(",")]
        known = {column.name for column in self._columns(table)}
        if not set(names) <= known:
            raise DeclarationError(
                f"index {index} on {table} is over an expression ({expressions}); index plain columns", table=table
            )
        return tuple(names)


def from_sqlalchemy(table: sa.Table) -> str:
    """The DDL of a SQLAlchemy ``Table``, in DuckDB's dialect.

    Only the schema is used: client-side defaults (``default=``) are refused because a procedure could not
    replay them; say ``server_default=`` instead.
    """
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CheckConstraint, UniqueConstraint

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    parts = []
    for column in table.columns:
        if column.default is not None:
            raise DeclarationError(
                f"{table.name}.{column.name} has a client-side default; use server_default= so that it is SQL",
                table=table.name,
            )
        if column.computed is not None or column.identity is not None:
            raise DeclarationError(
                f"{table.name}.{column.name} is computed or an identity column, which is not supported; give its value in "
                f"the procedure",
                table=table.name,
            )
        kind = column.type.compile(dialect)
        kind = re.sub(r" WITHOUT TIME ZONE", "", kind).replace("BYTEA", "BLOB").replace("JSONB", "JSON")
        part = f"{quote(column.name)} {kind}"
        if not column.nullable:
            part += " NOT NULL"
        if column.server_default is not None:
            part += f" DEFAULT {_server_default(column.server_default, dialect)}"
        parts.append(part)
    if table.primary_key.columns:
        parts.append(f"PRIMARY KEY ({_names(table.primary_key.columns)})")
    constraints = {*table.constraints, *(found for column in table.columns for found in column.constraints)}
    for constraint in sorted(constraints, key=lambda c: (type(c).__name__, str(c.name or ""))):
        if isinstance(constraint, UniqueConstraint):
            parts.append(f"UNIQUE ({_names(constraint.columns)})")
        elif isinstance(constraint, CheckConstraint):
            parts.append(
                f"CHECK ({constraint.sqltext.compile(dialect=dialect, compile_kwargs={'literal_binds': True})})"
            )
    if table.foreign_keys:
        raise DeclarationError(
            f"table {table.name}: foreign keys are not supported; check them in the procedure", table=table.name
        )
    ddl = [f"CREATE TABLE {quote(table.name)} ({', '.join(parts)})"]
    for index in sorted(table.indexes, key=lambda i: str(i.name)):
        unique = "UNIQUE " if index.unique else ""
        ddl.append(f"CREATE {unique}INDEX {quote(str(index.name))} ON {quote(table.name)} ({_names(index.columns)})")
    return "; ".join(ddl)


def quote(name: str) -> str:
    """A SQL identifier, quoted.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def _names(columns: Iterable[Any]) -> str:
    return ", ".join(quote(column.name) for column in columns)


def _server_default(default: Any, dialect: Any) -> str:
    arg = default.arg
    if isinstance(arg, str):
        return "'" + arg.replace("'", "''") + "'"
    return str(arg.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _shorten(sql: str, limit: int = 200) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _reserved(error: duckdb.Error) -> str:
    """A column called ``at`` or ``end`` is a syntax error; DuckDB's text does not say what to do about it."""
    found = re.search(r'syntax error at or near "(\w+)"', str(error))
    return (
        f'\nIf {found[1]} is a name: it is also an SQL keyword; write "{found[1]}", or choose another' if found else ""
    )
