"""Aggregates written as SQL: ``SELECT patient, avg(value) AS mean FROM window GROUP BY patient``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlglot
from sqlglot import exp

from tidegate.errors import StatementError
from tidegate.storage.sql.parameters import for_sqlglot
from tidegate.streams.windows.declare import aggregates as a
from tidegate.streams.windows.declare.functions import Aggregates

ONE_COLUMN: dict[type[exp.Expression], Callable[[str], a.Aggregate]] = {
    exp.Sum: a.Sum,
    exp.Avg: a.Mean,
    exp.Min: a.Min,
    exp.Max: a.Max,
    exp.Variance: a.Variance,
    exp.Stddev: a.Stddev,
    exp.StddevSamp: a.Stddev,
    exp.First: a.First,
    exp.Last: a.Last,
    exp.Median: lambda column: a.Quantile(column, 0.5),
}
WITH_NUMBER: dict[type[exp.Expression], Callable[[str, Any], a.Aggregate]] = {
    exp.PercentileCont: a.Quantile,
    exp.ApproxQuantile: lambda column, q: a.Quantile(column, q, error=0.01),
}
KNOWN = (
    "count, sum, avg, min, max, max(…, k), variance, stddev, first, last, median, quantile_cont, approx_quantile, "
    "count(DISTINCT …)"
)


def aggregates_of(sql: str, by: tuple[str, ...]) -> Aggregates:
    """The aggregates a SELECT over ``window`` names; its GROUP BY columns are the window's ``by``."""
    try:
        select = sqlglot.parse_one(for_sqlglot(sql), dialect="duckdb")
    except sqlglot.ParseError as error:
        raise StatementError(f"compute= is not valid SQL: {error}", sql=sql) from None
    if not isinstance(select, exp.Select):
        raise _refused(sql, "it is not a SELECT")
    source = select.args.get("from_") or select.args.get("from")
    if source is None or not isinstance(source.this, exp.Table) or source.this.name != "window":
        raise _refused(sql, "it must read FROM window, which stands for the rows of one window")
    extra = [
        name
        for name in ("where", "having", "joins", "order", "limit", "distinct", "with_", "with")
        if select.args.get(name)
    ]
    if extra:
        raise _refused(
            sql, f"{extra[0].upper().rstrip('_')} is not allowed in it; filter and order the results in the procedure"
        )
    group = select.args.get("group")
    grouped = tuple(_column(sql, item) for item in group.expressions) if group is not None else ()
    if by and grouped and set(by) != set(grouped):
        raise _refused(
            sql, f"it groups by {', '.join(grouped)}, but the window is by={', '.join(by)}; leave one of the two out"
        )
    named: dict[str, a.Aggregate] = {}
    for item in select.expressions:
        inner = item.unalias()
        if isinstance(inner, exp.Column):
            if inner.name not in (grouped or by):
                raise _refused(sql, f"{inner.name} is neither aggregated nor grouped by")
            if item.alias_or_name != inner.name:
                raise _refused(sql, f"{inner.name} keeps its name in the results; leave out AS {item.alias}")
        else:
            named[item.alias or _name(inner)] = _aggregate(sql, inner)
    return Aggregates(named, grouped or by)


def _aggregate(sql: str, item: exp.Expression) -> a.Aggregate:
    if isinstance(item, exp.Count):
        inner = item.this
        if inner is None or isinstance(inner, exp.Star):
            return a.Count()
        if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
            return a.Distinct(_column(sql, inner.expressions[0]))
        return a.Count(_column(sql, inner))
    more = [inner for inner in item.iter_expressions() if inner is not item.this]  # whatever sqlglot calls them
    if isinstance(item, exp.Max) and len(more) == 1 and more[0].is_int:
        return a.TopK(_column(sql, item.this), int(more[0].this))
    if type(item) in ONE_COLUMN and not more:
        return ONE_COLUMN[type(item)](_column(sql, item.this))
    if type(item) in WITH_NUMBER:
        number = item.args.get("quantile") or item.expression
        if isinstance(number, exp.Literal) and not number.is_string:
            return WITH_NUMBER[type(item)](_column(sql, item.this), float(number.this))
    raise _refused(sql, f"{item.sql(dialect='duckdb')} is not one of the aggregates it knows ({KNOWN})")


def _column(sql: str, item: Any) -> str:
    if not isinstance(item, exp.Column):
        raise _refused(
            sql,
            f"{item.sql(dialect='duckdb')} is not a plain column; compute it in the procedure that emits the stream",
        )
    return item.name


def _name(item: exp.Expression) -> str:
    """What DuckDB would call a column without AS, turned into an identifier."""
    told = "".join(letter if letter.isalnum() else "_" for letter in item.sql(dialect="duckdb").lower())
    return told.replace("____", "_").strip("_") or "value"


def _refused(sql: str, why: str) -> StatementError:
    return StatementError(
        f"compute= can't run {sql!r}: {why}. For anything else, give a function: whole(f, returns='…')", sql=sql
    )
