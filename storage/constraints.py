"""CHECK and DEFAULT of a table, compiled where we can match DuckDB's meaning, otherwise evaluated by DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
from sqlglot import exp

from tidegate.errors import ConstraintError, StatementError
from tidegate.storage.arrow import arrow_table, tupled
from tidegate.storage.schema import Check, Column, Row, TableSchema
from tidegate.storage.sql.codes import Fold, NotCompilable, Scope
from tidegate.storage.sql.draws import draw
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.parameters import to_duckdb
from tidegate.storage.sql.parsing import parse_expression
from tidegate.storage.sql.semantics import Fallback

if TYPE_CHECKING:
    from tidegate.storage.sql.connection import BaseConnection
    from tidegate.storage.view import View

Default = Callable[["View"], Any]


def folding(execute: Callable[[str], Any]) -> Fold:
    """Evaluates constants with a DuckDB connection's ``execute``."""

    def fold(sql: str) -> tuple[Any, str]:
        try:
            found = execute(f"SELECT {sql}, typeof({sql})").fetchall()[0]
        except duckdb.Error:
            raise NotCompilable from None
        return found[0], str(found[1])

    return fold


class Checks:
    """The CHECK constraints of one table."""

    def __init__(self, schema: TableSchema, connection: BaseConnection) -> None:
        self.schema = schema
        scope = Scope().add(schema, schema.name, "row")
        self._checks = [(check, _compiled(check, scope, connection)) for check in schema.checks]

    def enforce(self, rows: Sequence[Row], connection: Callable[[], BaseConnection]) -> None:
        """Raise ConstraintError for the first row that a CHECK is false for (NULL passes, as in SQL)."""
        for check, holds in self._checks:
            refused = _first_false(rows, holds) if holds is not None else _FALLBACK
            if refused is _FALLBACK:
                refused = self._ask(check, rows, connection())
            if refused is not None:
                raise ConstraintError(
                    f"{self.schema.name} has CHECK ({check.expression}), which is false for {tuple(refused)!r}",
                    relation=self.schema.name,
                    constraint="CHECK",
                    key=self.schema.key_of(refused),
                    check=check.expression,
                )

    def _ask(self, check: Check, rows: Sequence[Row], connection: BaseConnection) -> Row | None:
        """The first row for which DuckDB finds the CHECK false, all rows in one query."""
        if not rows:
            return None
        names = [f'CAST(r."{c.name}" AS {c.type.sql}) AS "{c.name}"' for c in self.schema.columns]
        places = arrow_table(self.schema, rows).append_column("tg:place", [range(len(rows))])
        connection.show("tg_checked", places)
        table = f'(SELECT {", ".join(names)}, "tg:place" FROM tg_checked AS r) AS "{self.schema.name}"'
        sql = f'SELECT min("tg:place") FROM {table} WHERE NOT ({check.expression})'
        try:
            found = connection.cursor.execute(sql).fetchall()[0]
        except duckdb.Error as error:
            raise StatementError(
                f"CHECK ({check.expression}) of {self.schema.name}: {str(error).splitlines()[0]}",
                sql=check.expression,
            ) from None
        return None if found[0] is None else rows[found[0]]


_FALLBACK: Any = object()


def _compiled(check: Check, scope: Scope, connection: BaseConnection) -> Any:
    try:
        tree, draws = parse_expression(check.expression, f"CHECK ({check.expression})")
        if draws:
            return None
        compiler = Compiler(scope, folding(connection.cursor.execute), 0)
        code = compiler.value(tree)
        return compiler.function(code.text, "row, p=()") if code.family == "boolean" else None
    except (NotCompilable, StatementError):
        return None


def _first_false(rows: Sequence[Row], holds: Callable[[Row], Any]) -> Any:
    try:
        for row in rows:
            if holds(row) is False:
                return row
    except Fallback:
        return _FALLBACK
    return None


def prepare_default(column: Column, connection: BaseConnection) -> Default:
    """The function that gives a column's DEFAULT; a constant is evaluated once."""
    assert column.default is not None
    what = f"DEFAULT {column.default} of {column.name}"
    tree, draws = parse_expression(column.default, what)
    sql = f"SELECT CAST({tree.sql('duckdb')} AS {column.type.sql})"
    if isinstance(tree, exp.Placeholder) and _DIRECT.get(draws[0]) == column.type.sql:
        return lambda view: draw(view, draws[0])
    if draws:
        return lambda view: _evaluate(
            view.database.connection(),
            sql,
            {f"p{i}": to_duckdb(draw(view, kind)) for i, kind in enumerate(draws)},
            column,
        )
    value = _evaluate(connection, sql, {}, column)
    return lambda view: value


_DIRECT = {"now": "TIMESTAMP", "today": "DATE", "time": "TIME", "random": "DOUBLE", "uuid": "UUID"}


def _evaluate(connection: BaseConnection, sql: str, given: dict[str, Any], column: Column) -> Any:
    try:
        found = connection.cursor.execute(sql, given).fetchall()[0]
    except duckdb.Error as error:
        raise StatementError(f"DEFAULT of {column.name}: {str(error).splitlines()[0]}", sql=sql) from None
    return None if found[0] is None else column.type.coerce(tupled(found[0]))
