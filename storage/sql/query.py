"""Queries that DuckDB answers, over the tables as one execution sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
from sqlglot import exp

from tidegate.errors import DataError, StatementError, TidegateError
from tidegate.storage.arrow import tupled
from tidegate.storage.base import META
from tidegate.storage.ddl import Scratch, quote
from tidegate.storage.schema import Relation, Row, TableSchema
from tidegate.storage.sql.connection import BaseConnection, value_of
from tidegate.storage.sql.determinism import stabilize
from tidegate.storage.sql.feeding import Text
from tidegate.storage.sql.overlay import limits_of, show_relation, show_table, source_of
from tidegate.storage.sql.parameters import to_duckdb
from tidegate.storage.sql.parsing import REFUSED_FUNCTIONS, TABLE_FUNCTIONS, refused_function, refused_source
from tidegate.storage.view import View

if TYPE_CHECKING:
    from tidegate.storage.database import Database

Extra = Mapping[str, tuple[Relation, Sequence[Row]]]
_NONE: Extra = MappingProxyType({})


class _Ready(NamedTuple):
    """A query to run. ``again``: its text with ``given`` as parameters, if ``sql`` reads them from a row."""

    sql: str
    given: dict[str, Any]
    again: Callable[[], str] | None


class Query:
    """A SELECT over named relations, made deterministic, bound once and run many times."""

    def __init__(
        self,
        tree: exp.Expression,
        tables: Mapping[str, TableSchema],
        relations: Mapping[str, Relation],
        scratch: Scratch,
        sql: str,
        stores: str | None = None,
    ) -> None:
        self.sql = sql
        self._stores = stores  # the table for its result: a value that does not fit is then bad data, not bad SQL
        self.tables = dict(tables)
        self.relations = dict(relations)
        self._scratch = scratch.connection
        families = self._families(tree)
        self._written = Text(stabilize(tree.copy(), families, self._width), families)
        self._bind()

    # ---- declaring

    def _families(self, tree: exp.Expression) -> dict[str, set[str]]:
        """Type families by column name; a name that is also an alias somewhere may be anything."""
        found: dict[str, set[str]] = {}
        for relation in [*self.tables.values(), *self.relations.values()]:
            for column in relation.columns:
                found.setdefault(column.name.lower(), set()).add(column.type.family)
        for node in tree.find_all(exp.Alias, exp.TableAlias):
            names = [node.alias] if isinstance(node, exp.Alias) else [c.name for c in node.args.get("columns") or []]
            for name in names:
                found.setdefault(name.lower(), set()).add("?")
        return found

    def _width(self, query: exp.Expression) -> int | None:
        bare = query.copy()
        for node in list(bare.find_all(exp.Placeholder)):
            node.replace(exp.Null())
        try:
            described = self._scratch.execute(f"{self._empty_tables()}SELECT * FROM ({bare.sql('duckdb')}) LIMIT 0")
            return len(described.description)
        except duckdb.Error:
            stars = any(e.find(exp.Star, exp.Anonymous) for e in query.expressions)
            return None if stars else len(query.expressions) or None

    def _empty_tables(self) -> str:
        entries = []
        for relation in [*self.tables.values(), *self.relations.values()]:
            nulls = ", ".join(f"CAST(NULL AS {c.type.sql}) AS {quote(c.name)}" for c in relation.columns)
            entries.append(f"{quote('tg:' + relation.name)} AS (SELECT {nulls} LIMIT 0)")
        return f"WITH {', '.join(entries)} " if entries else ""

    def _bind(self) -> None:
        """Have DuckDB bind the text that will run, and refuse functions that would make it unrepeatable."""
        empty = self._empty_tables().removeprefix("WITH ").rstrip()
        ctes, body = self._written.parts("")
        text = self._whole([*([empty] if empty else []), *ctes], body)
        try:
            self._scratch.execute(f"PREPARE tidegate_query AS {text}")
            self._scratch.execute("DEALLOCATE tidegate_query")
            found = self._scratch.execute("SELECT json_serialize_sql($1)", [text]).fetchall()[0]
        except duckdb.Error as error:
            raise self.failed(error) from None
        for node in _walk(json.loads(found[0])):
            self._refuse(node)

    def _refuse(self, node: dict[str, Any]) -> None:
        name = str(node.get("function_name", "")).lower()
        if node.get("type") == "TABLE_FUNCTION":
            called = str(node["function"].get("function_name", "")).lower()
            if called not in TABLE_FUNCTIONS:
                raise refused_source(called, self.sql)
        elif node.get("class") == "FUNCTION":
            arguments = node.get("arguments") or node.get("children") or []
            if name in REFUSED_FUNCTIONS or (name == "age" and len(arguments) == 1):
                raise refused_function(name, self.sql)

    # ---- running

    def rows(self, view: View, values: Sequence[Any], extra: Extra = _NONE) -> list[tuple[Any, ...]]:
        """The answer as plain tuples."""
        lists, rows = self._run(view, values, extra, BaseConnection.rows)
        if lists:
            rows = [tuple(tupled(v) if i in lists else v for i, v in enumerate(row)) for row in rows]
        return rows  # type: ignore[no-any-return]

    def arrow(self, view: View, values: Sequence[Any], names: Sequence[str]) -> pa.Table:
        """The answer as an Arrow table."""
        table = self._run(view, values, {}, _fetch_arrow)
        return table.rename_columns(list(names))

    def _run(self, view: View, values: Sequence[Any], extra: Extra, fetch: Any) -> Any:
        database = view.database
        connection = database.connection()
        try:
            if not database.concurrent:
                return self._fetched(connection, self._text(view, connection, values, extra), fetch)
            with database.base.gate:
                published = database.base.published
                text = self._text(view, connection, values, extra)
            try:
                found = self._fetched(connection, text, fetch)
            except duckdb.Error:
                if database.base.published == published:
                    raise
            if database.base.published == published:
                return found
            return self._run_in_snapshot(view, connection, values, extra, fetch)
        except duckdb.Error as error:
            raise self._with_set_aside(database, self.failed(error)) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
            raise self._with_set_aside(database, StatementError(f"{error}\n  {self.sql}", sql=self.sql)) from None
        except BaseException:  # Ctrl-C, or some other signal
            database.discard_connection()
            raise

    def _fetched(self, connection: BaseConnection, text: _Ready, fetch: Any) -> Any:
        if text.again is None:
            return fetch(connection, text.sql, text.given)
        try:
            return fetch(connection, text.sql, {})
        except duckdb.Error:
            found = fetch(connection, text.again(), text.given)
            self._written.refuse()
            return found

    def _run_in_snapshot(
        self, view: View, connection: BaseConnection, values: Sequence[Any], extra: Extra, fetch: Any
    ) -> Any:
        """A merge was published while the query ran: run it again, with snapshot and overlay fixed at one moment.

        Merges are rare, so the first try runs without its own transaction, which would cost more than many queries.
        """
        with view.database.base.gate:
            text = self._text(view, connection, values, extra)
            connection.cursor.execute("BEGIN TRANSACTION READ ONLY")
            connection.cursor.execute(f"SELECT count(*) FROM {META}").fetchall()
        try:
            return self._fetched(connection, text, fetch)
        finally:
            connection.cursor.execute("ROLLBACK")

    def _text(self, view: View, connection: BaseConnection, values: Sequence[Any], extra: Extra) -> _Ready:
        """What to run, everything it reads having been shown to DuckDB."""
        given = {name: to_duckdb(values[int(name[1:])]) for name in self._written.names}
        accesses = {name: view.access.get(name) or view.undeclared(name) for name in self.tables}
        limits = {name: limits_of(view, access, f"k{number}") for number, (name, access) in enumerate(accesses.items())}
        for limit in chain.from_iterable(limits.values()):
            given.update(limit.values)
        forms: dict[str, Any] = {name: show_table(view, connection, access) for name, access in accesses.items()}
        for name in self.relations:
            relation, rows = extra.get(name) or view.rows_of(name)
            show_relation(connection, relation, rows)
            forms[name] = relation

        def text(row: str) -> str:
            def value(name: str) -> str:
                return value_of(row, name) if row else f"${name}"

            ctes, body = self._written.parts(row)
            entries = []
            for name, form in forms.items():
                source = source_of(self.tables.get(name), form, limits.get(name, ()), value)
                entries.append(f"{quote('tg:' + name)} AS NOT MATERIALIZED ({source})")
            return self._whole([*entries, *ctes], body)

        row = self._written.shown(connection, given)
        return _Ready(text(row), given, partial(text, "") if row else None)

    def _whole(self, entries: Sequence[str], body: str) -> str:
        return (f"{self._written.opening}{', '.join(entries)} " if entries else "") + body

    def _with_set_aside(self, database: Database, error: TidegateError) -> TidegateError:
        """A row that DuckDB refuses in merges, it refuses in a query as well: that is then the likely cause."""
        found = database.base.aside.of(self.tables)
        if not found:
            return error
        told = "; ".join(map(str, found[:3])) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        return StatementError(
            f"{error}\nSQL that DuckDB runs can't read these rows, because DuckDB refused them in a merge: {told}. "
            "Read, change or delete them by key in a procedure; tidegate.set_aside lists them",
            sql=self.sql,
        )

    def failed(self, error: duckdb.Error) -> StatementError | DataError:
        told = str(error).strip().splitlines()[0]
        if self._stores is not None and isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException)):
            return DataError(
                f"a new value does not fit table {self._stores}: {told}\n  {self.sql}", relation=self._stores
            )
        return StatementError(f"{told}\n  {self.sql}", sql=self.sql)


def _fetch_arrow(connection: BaseConnection, text: str, given: dict[str, Any]) -> pa.Table:
    return connection.cursor.sql(text, params=given or None).to_arrow_table()


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)
