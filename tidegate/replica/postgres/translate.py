"""A client's statement in DuckDB's dialect, with PostgreSQL's answers: names, operators, functions, the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlglot
from sqlglot import exp

from tidegate.errors import QueryFailed
from tidegate.replica import text
from tidegate.replica.catalog.rewrite import at_catalog, catalog_text, mentions_catalog
from tidegate.replica.postgres.functions import WRAPPERS, change, substring
from tidegate.replica.postgres.grammar import parsed
from tidegate.replica.postgres.kinds import Bind, Kinds
from tidegate.replica.postgres.names import name_columns
from tidegate.replica.postgres.operators import CHANGES
from tidegate.replica.postgres.sources import function_source, unnested

_ORDER: dict[type[exp.Expr], Callable[..., exp.Expr]] = {
    **CHANGES,
    exp.Anonymous: change,
    exp.Table: function_source,
    exp.Unnest: unnested,
    exp.Substring: lambda node, kinds: substring(
        node.this, node.args.get("start") or exp.Literal.number(1), node.args.get("length")
    ),
    exp.StrPosition: lambda node, kinds: _position(node),
}


def translated(sql: str, bind: Bind) -> tuple[str, tuple[bool, ...]]:
    """The statement for DuckDB, and which of its columns are computed. ``bind``: the types of a query's columns, once it
    is checked.
    """
    catalog = mentions_catalog(sql)
    tree = parsed(catalog_text(sql) if catalog else sql)
    try:
        values = isinstance(tree, exp.Values)
        tree = _selected(tree)
        name_columns(tree)
        computed = (True,) * len(tree.expressions) if values else _computed(tree)
        if catalog:
            tree = at_catalog(tree)
        _change(tree, Kinds(bind))
        return text.show_parameters(tree.sql(dialect="duckdb")), computed
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        told = (str(error).splitlines() or ["too deeply nested"])[0]
        raise QueryFailed(f"this can't be answered: {told}", sqlstate="0A000") from None


_LIKE_THEIRS = ("coalesce", "nullif", "greatest", "least", "first_value", "last_value", "nth_value", "lag", "lead")
_NAMES = (exp.CurrentSchema, exp.CurrentCatalog, exp.CurrentUser, exp.SessionUser)


def _computed(tree: exp.Expr) -> tuple[bool, ...]:
    """For each column of the result: text of unbounded length and numeric of any scale, because it is computed?"""
    select = tree.find(exp.Select)
    if select is None or any(column.is_star for column in select.expressions):
        return ()
    return tuple(_is_computed(column.unalias()) for column in select.expressions)


def _is_computed(node: exp.Expr) -> bool:
    if isinstance(node, (exp.Paren, exp.Window, exp.Filter)):
        return _is_computed(node.this)
    if isinstance(node, exp.Cast):
        return node.to.is_type("text")
    if isinstance(node, exp.Anonymous) and str(node.this).lower() in _LIKE_THEIRS:
        return all(map(_is_computed, node.expressions))
    if isinstance(node, exp.Case):
        results = [*(branch.args["true"] for branch in node.args["ifs"]), node.args.get("default")]
        return all(_is_computed(result) for result in results if result is not None)
    return not isinstance(node, (exp.Column, exp.Subquery, *_NAMES))


def _selected(tree: exp.Expr) -> exp.Expr:
    """``VALUES`` as a SELECT of its columns, which are called column1, column2 …"""
    if not isinstance(tree, exp.Values):
        return tree
    names = [exp.to_identifier(f"column{i + 1}") for i in range(len(tree.expressions[0].expressions))]
    tree.set("alias", exp.TableAlias(this=exp.to_identifier("v"), columns=names))
    return exp.Select(expressions=[exp.column(name.copy()) for name in names], from_=exp.From(this=tree))


def _change(tree: exp.Expr, kinds: Kinds) -> None:
    """Every node, after what it depends on."""
    for node in list(_inside_out(tree)):
        if node.parent is None or isinstance(node.parent, exp.Dot):
            continue
        how = _ORDER.get(type(node))
        if how is None:
            continue
        changed = how(node, kinds)
        if changed is not node:
            node.replace(changed)


_FIRST = ("with_", "from_", "joins", "laterals")  # a column's type is known once the sources are translated


def _inside_out(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Children before parents, sources before what reads them, and FILTER and OVER before the call they belong to."""
    waiting: list[tuple[exp.Expr, bool]] = [(tree, False)]
    while waiting:
        node, visited = waiting.pop()
        if visited:
            yield node
            continue
        waiting.append((node, True))
        last = isinstance(node, WRAPPERS)
        rank = {key: place - len(_FIRST) for place, key in enumerate(_FIRST)}
        children = sorted(
            node.iter_expressions(), key=lambda c: rank.get(c.arg_key or "", last and c.arg_key == "this")
        )
        waiting += [(child, False) for child in reversed(children)]


def _position(node: exp.StrPosition) -> exp.Expr:
    call = exp.Anonymous(this="strpos", expressions=[node.this.copy(), node.args["substr"].copy()])
    return exp.Cast(this=call, to=exp.DataType.build("INTEGER", dialect="duckdb"))
