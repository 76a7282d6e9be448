"""Functions in FROM: one column, which has the name of the alias; a function of one value gives one row."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidegate.replica.postgres.functions import INT4, SAME
from tidegate.replica.postgres.kinds import Kinds
from tidegate.replica.postgres.operators import cast

_ROWS = ("generate_series", "generate_subscripts", "unnest")


def function_source(node: exp.Table, kinds: Kinds) -> exp.Expr:
    """``FROM f(…) AS a`` as PostgreSQL has it."""
    call = node.this
    if not isinstance(call, exp.Anonymous) or node.args.get("ordinality"):
        return node
    name, alias = str(call.this).lower(), node.args.get("alias")
    if alias is not None and len(alias.columns) > 1:
        return node
    if name in _ROWS:
        target = _series(kinds.of(*call.expressions)) if name == "generate_series" else None
        if target is None:
            return _column_named(node, alias)
        given = exp.Table(
            this=call.copy(), alias=exp.TableAlias(this=exp.to_identifier("tg_g"), columns=[exp.to_identifier("tg_x")])
        )
        inner = exp.Select(
            expressions=[_called(cast(exp.column("tg_x"), target), node, name)], from_=exp.From(this=given)
        )
    elif name in SAME or name in INT4:
        inner = exp.Select(expressions=[_called(call.copy(), node, name)])
    else:
        return node
    source = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(node.alias or name, quoted=True)))
    if node.args.get("joins"):
        source.set("joins", [join.copy() for join in node.args["joins"]])
    return source


def _series(kinds: Sequence[str | None]) -> str | None:
    """The type of a series where DuckDB has another one."""
    if set(kinds) <= {"int2", "int4"}:
        return "INTEGER"
    return "TIMESTAMPTZ" if "date" in kinds and "timestamp" not in kinds else None


def _called(value: exp.Expr, node: exp.Table, name: str) -> exp.Expr:
    alias = node.args.get("alias")
    column = alias.columns[0].name if alias is not None and alias.columns else node.alias or name
    return exp.Alias(this=value, alias=exp.to_identifier(column, quoted=True))


def _column_named(node: exp.Expr, alias: exp.TableAlias | None) -> exp.Expr:
    if alias is not None and alias.this is not None and not alias.columns:
        alias.set("columns", [exp.to_identifier(alias.name, quoted=True)])
    return node


def unnested(node: exp.Unnest, kinds: Kinds) -> exp.Expr:
    """``FROM unnest(…) AS a``."""
    return _column_named(node, node.args.get("alias"))
