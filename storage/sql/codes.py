"""What a compiled expression is made of: Python code with its SQL type, and the columns it may name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.storage.schema import Column, Relation

# evaluates a constant SQL expression: its value and its type, or raises NotCompilable
Fold = Callable[[str], tuple[Any, str]]


class NotCompilable(Exception):
    """This expression is left to DuckDB."""


@dataclass(frozen=True)
class Code:
    """A Python expression and the SQL type of its value.

    ``family`` is that of :mod:`tidegate.storage.types`, or ``null`` (a bare NULL), ``param`` (a parameter whose type
    follows from its place) or ``string`` (a quoted literal, which takes the type of its neighbour). ``bounds`` is the
    range of an integer type; a literal has none, it adapts to the column it meets.
    """

    text: str
    family: str
    nullable: bool = False
    bounds: tuple[int, int] | None = None
    sql: str | None = None
    literal: str = ""


class Scope:
    """The columns an expression may name, as code."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], Code] = {}

    def add(self, relation: Relation, alias: str, variable: str, bare: bool = True) -> Scope:
        """Columns of ``relation`` read from ``variable``, named with the qualifier ``alias`` or, if
        ``bare``, without.
        """
        for place, column in enumerate(relation.columns):
            code = column_code(column, f"{variable}[{place}]")
            self._columns[alias.lower(), column.name.lower()] = code
            if bare:
                self._columns["", column.name.lower()] = code
        return self

    def find(self, node: exp.Column) -> Code:
        if node.args.get("db") or (node.table, node.name) == ("", ""):
            raise NotCompilable
        code = self._columns.get((node.table.lower(), node.name.lower()))
        if code is None:
            raise NotCompilable
        return code


def column_code(column: Column, text: str) -> Code:
    kind = column.type
    family = "single" if kind.sql == "FLOAT" else kind.family
    bounds = (kind.low, kind.high) if family == "integer" else None
    return Code(text, family, column.nullable, bounds, kind.sql)


def is_constant(node: exp.Expression) -> bool:
    """Is this always the same value? (Calls are not examined: they might be aggregates.)"""
    return not any(node.find_all(exp.Column, exp.Placeholder, exp.Query, exp.Star, exp.Anonymous))


def conjuncts(node: exp.Expression | None) -> list[exp.Expression]:
    """The conditions that AND joins at the top of a WHERE."""
    if node is None:
        return []
    if isinstance(node, exp.Where):
        return conjuncts(node.this)
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]
