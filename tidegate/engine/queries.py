"""Queries from outside a transaction: read-only SQL over tables and system views, at the newest committed state."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp

from tidegate.dataflows.views import with_views
from tidegate.engine.result import Result
from tidegate.engine.system_views import VIEWS
from tidegate.errors import StatementError, unknown
from tidegate.mutex import Rank, mutex
from tidegate.storage.ddl import Scratch
from tidegate.storage.expiry import ExpiringReader
from tidegate.storage.readers import CommittedReader, Reader
from tidegate.storage.sql.parameters import for_sqlglot
from tidegate.storage.sql.statements import Statement, prepare
from tidegate.storage.versions import VersionedTable
from tidegate.storage.view import View

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

REMEMBERED = 256  # statements; parsing and binding one takes about ten times as long as running it
LONGEST = 20_000  # characters of a statement that is worth caching


class QueryView(View):
    """The newest committed state of every table, for a reader outside any transaction."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine, access: Mapping[str, Reader]) -> None:
        super().__init__(engine.database, 0, access, procedure="query", commit=engine.database.commits)
        self._engine = engine

    @property
    def now(self) -> dt.datetime:
        return self._engine.clock.now()


class Queries:
    """The query path of one engine. It caches the last statements used: an engine's schemas never change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._access = {name: _reader(table) for name, table in engine.database.tables.items()}
        self._guard = mutex(Rank.LEAF)
        self._prepared: OrderedDict[str, Statement] = OrderedDict()

    def run(self, sql: Any, parameters: Any) -> Result:
        """Run a SELECT over tables and system views as one consistent state."""
        engine = self._engine
        statement = self._statement(sql)
        with engine.lock:
            view = QueryView(engine, self._access)
            view.relations = {
                name: (VIEWS[name].relation, [tuple(row) for row in VIEWS[name].rows(engine)])
                for name in statement.relations
            }
            engine.executor.hold_snapshot(view.commit)
        try:
            return Result(statement.arrow(view, parameters))
        finally:
            with engine.lock:
                engine.executor.release_snapshot(view.commit)

    def _statement(self, sql: Any) -> Statement:
        if not isinstance(sql, str):
            return self._prepare(sql)
        with self._guard:
            known = self._prepared.get(sql)
            if known is not None:
                self._prepared.move_to_end(sql)
                return known
        statement = self._prepare(_flat_names(with_views(sql, self._engine.app.views)))
        if len(sql) <= LONGEST:
            with self._guard:
                self._prepared[sql] = statement
                if len(self._prepared) > REMEMBERED:
                    self._prepared.popitem(last=False)
        return statement

    def _prepare(self, sql: Any) -> Statement:
        app = self._engine.app
        with app.scratch.lock:
            statement = prepare(
                sql, app.tables, {name: v.relation for name, v in VIEWS.items()}, _scratch(app.scratch, sql)
            )
        if statement.kind != "select":
            raise StatementError(
                f"query() only reads, but this is {statement.kind.upper()}; change tables in a procedure: engine.call(…)",
                sql=statement.sql,
            )
        return statement


def _reader(table: VersionedTable) -> Reader:
    reader = CommittedReader(table)
    return reader if table.schema.expiry is None else ExpiringReader(reader)


def _flat_names(sql: str) -> str:
    """``tidegate.locks`` as the relation ``tidegate_locks``."""
    try:
        tree = sqlglot.parse_one(for_sqlglot(sql), dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return sql  # prepare() says what is wrong with it
    views = [t for t in tree.find_all(exp.Table) if t.db.lower() == "tidegate"]
    for table in views:
        name = f"tidegate_{table.name.lower()}"
        if name not in VIEWS:
            raise unknown("query", "system view", f"tidegate.{table.name}", [n.replace("_", ".", 1) for n in VIEWS])
        table.replace(exp.alias_(exp.to_table(name), table.alias or table.name, table=True))
    for column in tree.find_all(exp.Column) if views else ():
        if column.text("db").lower() == "tidegate":  # tidegate.locks.mode
            column.set("db", None)
    return tree.sql(dialect="duckdb") if views else sql


def _scratch(scratch: Scratch, sql: Any) -> Scratch:
    """The app's scratch database, with the system views that the statement may name. All of them take DuckDB 30 ms."""
    text = sql.lower() if isinstance(sql, str) else None
    for name, view in VIEWS.items():
        if name not in scratch.relations and (text is None or name in text):
            scratch.define_relation(name, ", ".join(f'"{c.name}" {c.type.sql}' for c in view.relation.columns))
    return scratch
