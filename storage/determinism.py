"""Making a query's answer independent of the physical order of rows.

Merges rewrite tables, so that the order in which DuckDB scans rows is an accident. Three things would let it show, and
are rewritten here:

- the order of the result: no ORDER BY becomes ORDER BY ALL, and an ORDER BY is completed by all output columns;
- LIMIT and DISTINCT ON, which pick rows by order: completed likewise, in subqueries too;
- aggregates whose answer depends on the order of their input (sums of floating-point numbers, first, list, ...): they
  are given ORDER BY their own arguments.

Ties inside window functions (``row_number() OVER (ORDER BY x)`` with equal x), and ORDER BY with LIMIT over ``*`` in
a subquery that can't be bound on its own, remain the author's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

# number of output columns of a query, or None when it can't be told
Width = Callable[[exp.Expression], int | None]

_SENSITIVE_NODES = (
    exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.First, exp.Last,
    exp.AnyValue, exp.ArrayAgg, exp.GroupConcat, exp.ArgMax, exp.ArgMin, exp.Corr, exp.CovarPop, exp.CovarSamp,
    exp.Skewness, exp.Kurtosis, exp.Mode, exp.ApproxQuantile, exp.RegrSlope,
)  # fmt: skip
_SENSITIVE_NAMES = {
    "list", "string_agg", "listagg", "product", "fsum", "sumkahan", "kahan_sum", "favg", "first", "last", "arbitrary",
    "entropy", "mode", "json_group_array", "json_group_object", "json_group_structure", "max_by", "min_by", "argmax",
    "argmin", "arg_max_null", "arg_min_null", "regr_slope", "regr_intercept", "regr_r2", "regr_sxx", "regr_sxy",
    "regr_syy", "regr_avgx", "regr_avgy", "approx_quantile", "reservoir_quantile", "approx_top_k", "kurtosis_pop",
    "sem", "array_agg", "group_concat", "histogram_exact", "skewness", "kurtosis", "covar_pop", "covar_samp", "corr",
    "map_from_entries_agg", "any_value", "avg", "sum", "mean", "var_pop", "var_samp", "stddev_pop", "stddev_samp",
}  # fmt: skip
_EXACT = {"integer", "boolean"}


def stabilize(tree: exp.Expression, families: Mapping[str, set[str]], width: Width) -> exp.Expression:
    """``tree`` (changed in place) with every dependence on row order removed, its top level totally ordered.

    ``families``: for every column name in reach, the type families it may have.
    """
    for node in list(tree.find_all(exp.Func)):
        if isinstance(node, _SENSITIVE_NODES) or _name(node) in _SENSITIVE_NAMES:
            _order_aggregate(node, families)
    for query in list(tree.find_all(exp.Query)):
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


def _name(node: exp.Expression) -> str:
    if isinstance(node, (exp.Anonymous, exp.AnonymousAggFunc)):
        return str(node.this).lower()
    return ""


def _picks_by_order(query: exp.Expression) -> bool:
    distinct = query.args.get("distinct")
    return bool(query.args.get("limit") or query.args.get("offset") or (distinct is not None and distinct.args.get("on")))


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


def _order_aggregate(node: exp.Expression, families: Mapping[str, set[str]]) -> None:
    """Give an aggregate ORDER BY its arguments, after the ORDER BY it may have."""
    if isinstance(node.parent, exp.Window) or (
        isinstance(node.parent, (exp.Filter, exp.IgnoreNulls)) and isinstance(node.parent.parent, exp.Window)
    ):
        return
    holder_key, last = _last_argument(node)
    if holder_key is None or last is None:
        return
    arguments = _arguments(node)
    if isinstance(node, (exp.Sum, exp.Avg)) and all(_is_exact(argument, families) for argument in arguments):
        return
    ties = [exp.Ordered(this=a.copy(), nulls_first=False) for a in arguments if not isinstance(a, exp.Literal)]
    if not ties:
        return
    if isinstance(last, exp.Order):
        for tie in ties:
            last.append("expressions", tie)
        return
    wrapped = exp.Order(this=last.copy(), expressions=ties)
    if holder_key == "expressions":
        node.set("expressions", [*node.expressions[:-1], wrapped])
    else:
        node.set(holder_key, wrapped)


def _last_argument(node: exp.Expression) -> tuple[str | None, exp.Expression | None]:
    """Where sqlglot keeps the argument that carries an aggregate's ORDER BY."""
    if isinstance(node, (exp.Anonymous, exp.AnonymousAggFunc)):
        return ("expressions", node.expressions[-1]) if node.expressions else (None, None)
    if isinstance(node, exp.GroupConcat):
        return "this", node.this
    for key in ("quantile", "expression"):
        if isinstance(node.args.get(key), exp.Expression):
            return key, node.args[key]
    return ("this", node.this) if isinstance(node.this, exp.Expression) else (None, None)


def _arguments(node: exp.Expression) -> list[exp.Expression]:
    found = node.expressions if isinstance(node, (exp.Anonymous, exp.AnonymousAggFunc)) else [
        node.args[key] for key in ("this", "expression") if isinstance(node.args.get(key), exp.Expression)
    ]
    plain: list[exp.Expression] = []
    for argument in found:
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
