"""Making a query's answer independent of the physical order of rows.

Merges rewrite tables, so the order in which DuckDB scans rows is arbitrary. Three things would expose it, and are
rewritten here:

- the order of the result: no ORDER BY becomes ORDER BY ALL, and an ORDER BY is completed by all output
  columns;
- LIMIT and DISTINCT ON, which pick rows by order: completed likewise, in subqueries too;
- aggregates whose answer depends on the order of their input (sums of floating-point numbers, first, list,
  ...): they
  are given ORDER BY their own arguments.

Ties inside window functions (``row_number() OVER (ORDER BY x)`` with equal x), and ORDER BY with LIMIT over
``*`` in a subquery that can't be bound on its own, are left to the author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from tidegate.storage.sql.parsing import function_name

# number of output columns of a query, or None when it can't be told
Width = Callable[[exp.Expression], int | None]

_SENSITIVE = {
    "any_value", "approx_quantile", "approx_top_k", "arbitrary", "arg_max", "arg_max_null", "arg_min",
    "arg_min_null", "argmax", "argmin", "array_agg", "avg", "corr", "covar_pop", "covar_samp", "entropy",
    "favg", "first", "fsum", "group_concat", "histogram_exact", "json_group_array", "json_group_object",
    "json_group_structure", "kahan_sum", "kurtosis", "kurtosis_pop", "last", "list", "listagg", "max_by",
    "mean", "min_by", "mode", "product", "regr_avgx", "regr_avgy", "regr_intercept", "regr_r2",
    "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "reservoir_quantile", "sem", "skewness", "stddev",
    "stddev_pop", "stddev_samp", "string_agg", "sum", "sumkahan", "var_pop", "var_samp", "variance",
}  # fmt: skip
_SUMS = {"sum", "avg", "mean"}
_EXACT = {"integer", "boolean"}


def stabilize(tree: exp.Expression, families: Mapping[str, set[str]], width: Width) -> exp.Expression:
    """``tree`` (changed in place) with every dependence on row order removed, its top level totally ordered.

    ``families``: for every column name in reach, the type families it may have.
    """
    for node in list(tree.find_all(exp.Anonymous)):
        if function_name(node) in _SENSITIVE and node.expressions:
            _order_aggregate(node, families)
    queries: list[Any] = list(tree.find_all(exp.Query))
    for query in queries:
        if query is not tree and _picks_by_order(query):
            _order_query(query, width)
    if not isinstance(tree, (exp.Select, exp.SetOperation)):
        tree = exp.select("*").from_(_as_subquery(tree))
    _order_query(tree, width)
    return tree


def _as_subquery(tree: exp.Expression) -> exp.Expression:
    if isinstance(tree, exp.Values):
        return exp.Subquery(this=exp.select("*").from_(tree), alias=exp.TableAlias(this=exp.to_identifier("q")))
    return tree if isinstance(tree, exp.Subquery) else exp.Subquery(this=tree)


def _picks_by_order(query: exp.Expression) -> bool:
    distinct = query.args.get("distinct")
    by_first = isinstance(distinct, exp.Distinct) and distinct.args.get("on")
    return bool(query.args.get("limit") or query.args.get("offset") or by_first)


def _order_query(query: exp.Expression, width: Width) -> None:
    order = query.args.get("order")
    if order is None:
        query.set("order", exp.Order(expressions=[exp.Ordered(this=exp.Var(this="ALL"), nulls_first=False)]))
        return
    keys = order.expressions
    if len(keys) == 1 and isinstance(keys[0].this, exp.Var) and str(keys[0].this.this).upper() == "ALL":
        return
    columns = width(query)
    if columns is not None:
        for place in range(1, columns + 1):
            order.append("expressions", exp.Ordered(this=exp.Literal.number(place), nulls_first=False))


def _order_aggregate(node: exp.Anonymous, families: Mapping[str, set[str]]) -> None:
    """Give an aggregate ORDER BY its arguments, after the ORDER BY it may have."""
    if node.find_ancestor(exp.Window, exp.Query) is not node.find_ancestor(exp.Query):
        return
    arguments = _arguments(node)
    if function_name(node) in _SUMS and all(_is_exact(argument, families) for argument in arguments):
        return
    ties = [exp.Ordered(this=a.copy(), nulls_first=False) for a in arguments if not isinstance(a, exp.Literal)]
    last = node.expressions[-1]
    if isinstance(last, exp.Order):
        for tie in ties:
            last.append("expressions", tie)
    elif ties:
        node.set("expressions", [*node.expressions[:-1], exp.Order(this=last.copy(), expressions=ties)])


def _arguments(node: exp.Anonymous) -> list[exp.Expression]:
    """What is aggregated, without DISTINCT and ORDER BY."""
    plain: list[exp.Expression] = []
    for argument in node.expressions:
        inner = argument.this if isinstance(argument, exp.Order) else argument
        plain += inner.expressions if isinstance(inner, exp.Distinct) else [inner]
    return plain


def _is_exact(node: exp.Expression, families: Mapping[str, set[str]]) -> bool:
    """Is this an integer or boolean for certain? Then sums of it do not depend on order."""
    if isinstance(node, exp.Column):
        return families.get(node.name.lower(), {"?"}) <= _EXACT
    if isinstance(node, exp.Literal):
        return bool(node.is_int)
    if isinstance(node, (exp.Add, exp.Sub, exp.Mul)):
        return _is_exact(node.this, families) and _is_exact(node.expression, families)
    if isinstance(node, (exp.Paren, exp.Neg)):
        return _is_exact(node.this, families)
    return False
