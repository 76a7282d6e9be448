"""Plain views: a query under a name, for procedures, ``engine.query`` and the SQL endpoint. Nothing is stored for them.

A view is checked when it is declared, against the tables and views declared before it. Where a query names it, its text takes
the name's place, so that both see the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp

from tidegate.errors import DeclarationError, StatementError
from tidegate.storage.sql.parameters import for_sqlglot
from tidegate.storage.sql.parsing import Verbatim, parse

if TYPE_CHECKING:
    from tidegate.dataflows.app import App


@dataclass(frozen=True)
class PlainView:
    """A declared view: its query, over tables only, and its columns as (name, type of DuckDB)."""

    name: str
    sql: str
    columns: tuple[tuple[str, str], ...]
    tables: tuple[str, ...] = ()  # that it reads


def declare_view(app: App, name: str, sql: str) -> PlainView:
    """The view, if its query is one that can be asked at any time and gives the same for the same tables."""
    if not isinstance(sql, str):
        raise DeclarationError(f"view {name}: its query is SQL text, got {sql!r}", view=name)
    whole = with_views(sql.rstrip().rstrip(";"), app.views)
    try:
        parsed = parse(whole, app.tables, {}, app.scratch)
    except StatementError as error:
        raise DeclarationError(f"view {name}: {error}", view=name) from None
    if parsed.kind != "select":
        raise DeclarationError(f"view {name} is a SELECT, not {parsed.kind.upper()}: {sql}", view=name)
    if parsed.parameters.names:
        raise DeclarationError(f"view {name} has a parameter; a view is asked as it is: {sql}", view=name)
    if parsed.draws:
        raise DeclarationError(
            f"view {name} depends on time or chance ({', '.join(parsed.draws)}); give the value in the query of the view: {sql}",
            view=name,
        )
    return PlainView(name, whole, _columns(app, name, whole), tuple(sorted(parsed.tables)))


def _columns(app: App, name: str, sql: str) -> tuple[tuple[str, str], ...]:
    columns = app.scratch.define_view(name, sql)
    names = [column.lower() for column, _ in columns]
    if doubled := sorted({column for column in names if names.count(column) > 1}):
        raise DeclarationError(f"view {name} has two columns {doubled[0]}; name them with AS", view=name)
    return columns


def read_through(views: Mapping[str, PlainView], reads: Any) -> list[Any]:
    """What a procedure reads: the tables behind each view that it names."""
    found: list[Any] = []
    for like in [reads] if isinstance(reads, str) or not isinstance(reads, Iterable) else reads:
        found += views[like].tables if isinstance(like, str) and like in views else [like]
    return list(dict.fromkeys(found))


def with_views(sql: str, views: Mapping[str, PlainView]) -> str:
    """The statement with the queries of views in the place of their names."""
    if not views:
        return sql
    try:
        tree = sqlglot.parse_one(for_sqlglot(sql), dialect=Verbatim)
    except sqlglot.errors.SqlglotError:
        return sql  # whoever prepares it says what is wrong with it
    known = {name.lower(): view for name, view in views.items()}
    defined = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    named = [t for t in tree.find_all(exp.Table) if not t.db and t.name.lower() in known.keys() - defined]
    for table in named:
        view = known[table.name.lower()]
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
        query = sqlglot.parse_one(for_sqlglot(view.sql), dialect=Verbatim)
        subquery = exp.Subquery(this=query, alias=alias.copy())
        for key in ("joins", "laterals", "pivots", "sample"):
            if table.args.get(key):
                subquery.set(
                    key, [part.copy() for part in table.args[key]] if key != "sample" else table.args[key].copy()
                )
        table.replace(subquery)
    return tree.sql(dialect="duckdb") if named else sql
