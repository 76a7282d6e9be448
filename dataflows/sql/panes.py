"""Aggregates of a windowed query that can be kept per pane while rows arrive, instead of by SQL over the window's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.dataflows.sql.windows import Windowed
from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.storage.sql.parsing import function_name
from tidegate.streams.windows import WindowSpec, result_relation
from tidegate.streams.windows.declare import aggregates as a
from tidegate.streams.windows.declare.checks import check_columns
from tidegate.streams.windows.declare.functions import Aggregates
from tidegate.streams.windows.declare.kinds import LABELS

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

KNOWN: dict[str, Callable[[str], a.Aggregate]] = {
    "sum": a.Sum,
    "avg": a.Mean,
    "mean": a.Mean,
    "min": a.Min,
    "max": a.Max,
    "variance": a.Variance,
    "var_samp": a.Variance,
    "stddev": a.Stddev,
    "stddev_samp": a.Stddev,
    "first": a.First,
    "last": a.Last,
    "median": lambda column: a.Quantile(column, 0.5),
}
BY_GROUP = ("time", "landmark")  # kinds whose windows are the same for all groups


def in_panes(
    app: App, one: Windowed, tree: exp.Select, found: list[exp.Anonymous]
) -> tuple[WindowSpec, exp.Select] | None:
    """The window with what to compute, and the query over its results; None if SQL over the rows has to do it."""
    relation = app.streams[one.stream].relation
    if any(tree.args.get(part) for part in ("where", "joins", "qualify")) or tree.find(exp.Window, exp.Subquery):
        return None
    by = _grouping(tree, one, relation)
    if by is None or (one.spec.kind not in BY_GROUP and set(by) != set(one.spec.by)):
        return None
    computed: dict[str, a.Aggregate] = {}
    places: list[tuple[exp.Anonymous, str]] = []
    for call in found:
        aggregate = _aggregate(call, relation)
        if aggregate is None:
            return None
        name = next((n for n, other in computed.items() if repr(other) == repr(aggregate)), f"tg_a{len(computed)}")
        computed[name] = aggregate
        places.append((call, name))
    try:
        if not computed:
            computed["tg_a0"] = a.Count()
        spec = replace(one.spec, by=by, compute=Aggregates(computed, by))
        check_columns(spec, relation, "panes")
        result_relation(spec, relation, one.name)
    except DeclarationError:
        return None
    rewritten = _over_results(tree, places)
    return (spec, rewritten) if rewritten is not None else None


def _grouping(tree: exp.Select, one: Windowed, relation: Relation) -> tuple[str, ...] | None:
    group = tree.args.get("group")
    if group is not None and any(value for name, value in group.args.items() if name != "expressions"):
        return None
    by = list(one.spec.by)
    for node in group.expressions if group is not None else ():
        if not isinstance(node, exp.Column) or _is_alias(tree, node):
            return None
        name = next((c for c in relation.index_of if c.lower() == node.name.lower()), None)
        if name is None:
            if node.name.lower() not in LABELS:
                return None
        elif name not in by:
            by.append(name)
    return tuple(by)


def _is_alias(tree: exp.Select, column: exp.Column) -> bool:
    """Is this the name of an expression in SELECT?"""
    return any(
        isinstance(node, exp.Alias)
        and node.alias.lower() == column.name.lower()
        and not isinstance(node.this, exp.Column)
        for node in tree.expressions
    )


def _aggregate(call: exp.Anonymous, relation: Relation) -> a.Aggregate | None:
    name, arguments = function_name(call), call.expressions
    if isinstance(call.parent, exp.Filter) or len(arguments) > 1:
        return None
    if name == "count" and (not arguments or isinstance(arguments[0], exp.Star)):
        return a.Count()
    if not arguments:
        return None
    argument, distinct = arguments[0], False
    if isinstance(argument, exp.Distinct) and len(argument.expressions) == 1:
        argument, distinct = argument.expressions[0], True
    if not isinstance(argument, exp.Column):
        return None
    column = next((c for c in relation.index_of if c.lower() == argument.name.lower()), None)
    if column is None:
        return None
    if name == "count":
        return a.Distinct(column) if distinct else a.Count(column)
    return KNOWN[name](column) if name in KNOWN and not distinct else None


def _over_results(tree: exp.Select, places: list[tuple[exp.Anonymous, str]]) -> exp.Select | None:
    """The query without GROUP BY: aggregates are columns, HAVING is WHERE."""
    for call, name in places:
        column: Any = exp.column(exp.to_identifier(name, quoted=True))
        if isinstance(call.parent, exp.Select) and call.arg_key == "expressions":
            column = exp.alias_(column, call.sql("duckdb"), quoted=True)
        call.replace(column)
    having = tree.args.get("having")
    tree.set("group", None)
    tree.set("having", None)
    if having is not None:
        tree.set("where", exp.Where(this=having.this.copy()))
    return tree
