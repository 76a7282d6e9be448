"""ORDER BY, LIMIT and OFFSET of a compiled SELECT. Ties are in the order of the output columns, as DuckDB is told to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.storage.schema import Row
from tidegate.storage.sql.codes import Code, NotCompilable
from tidegate.storage.sql.expressions import COMPARABLE
from tidegate.storage.sql.lookups import SoleTable, order_all
from tidegate.storage.sql.semantics import Fallback

Pair = tuple[Row, Any]  # a stored row, and the result row made from it
_SORTABLE = COMPARABLE | {"single"}


@dataclass(frozen=True)
class SortKey:
    """One entry of ORDER BY: the column at ``place`` of the stored row or, if ``output``, of the result row."""

    place: int
    output: bool
    descending: bool
    nulls_first: bool


def sort_keys(sole: SoleTable, tree: exp.Expression, codes: Sequence[Code]) -> list[SortKey]:
    order = tree.args.get("order")
    return [_sort_key(sole, node, tree.expressions, codes) for node in order.expressions] if order is not None else []


def _sort_key(
    sole: SoleTable, node: exp.Expression, outputs: Sequence[exp.Expression], codes: Sequence[Code]
) -> SortKey:
    if not isinstance(node, exp.Ordered) or node.args.get("with_fill"):
        raise NotCompilable
    place, output = _sorted_by(sole, node.this, outputs, codes)
    family = (codes[place] if output else sole.scope.find(node.this)).family
    if family not in _SORTABLE:
        raise NotCompilable
    return SortKey(place, output, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def _sorted_by(
    sole: SoleTable, node: exp.Expression, outputs: Sequence[exp.Expression], codes: Sequence[Code]
) -> tuple[int, bool]:
    """(place, of the result row?) of what an entry of ORDER BY names."""
    if isinstance(node, exp.Literal) and node.is_int and 1 <= int(node.this) <= len(codes):
        return int(node.this) - 1, True
    if not isinstance(node, exp.Column):
        raise NotCompilable
    named = [place for place, entry in enumerate(outputs) if entry.alias.lower() == node.name.lower()]
    if node.table or not named:
        return int(sole.scope.find(node).text[4:-1]), False
    if len(outputs) != len(codes):  # a * among them
        raise NotCompilable
    return named[0], True


def sorter(keys: Sequence[SortKey], codes: Sequence[Code]) -> Callable[[list[Pair]], None]:
    """A function that puts pairs in order."""
    ties = order_all(codes)
    parts = [(_part(key), key.descending) for key in reversed(keys)]

    def sort(pairs: list[Pair]) -> None:
        pairs.sort(key=lambda pair: ties(pair[1]))
        for part, descending in parts:
            pairs.sort(key=part, reverse=descending)

    return sort


def _part(key: SortKey) -> Callable[[Pair], Any]:
    """NaN is above every number; NULLs go where they are asked for, also when the order is reversed."""
    side, place, null_is = int(key.output), key.place, key.nulls_first == key.descending

    def part(pair: Pair) -> Any:
        value = pair[side][place]
        return ((value is None) is null_is, value is not None and value != value, value)

    return part


# ---- LIMIT and OFFSET

Count = Callable[[tuple[Any, ...]], Any]


def limit_of(sole: SoleTable, tree: exp.Expression) -> Count | None:
    return _count(sole, tree.args.get("limit"), exp.Limit)


def offset_of(sole: SoleTable, tree: exp.Expression) -> Count | None:
    return _count(sole, tree.args.get("offset"), exp.Offset)


def _count(sole: SoleTable, clause: Any, kind: type[exp.Expression]) -> Count | None:
    """The number of rows that a clause gives, from the parameters. DuckDB answers for anything but a plain number."""
    if clause is None:
        return None
    if type(clause) is not kind or any(value for name, value in clause.args.items() if name != "expression"):
        raise NotCompilable
    node = clause.expression
    if not isinstance(node, exp.Placeholder) and not (isinstance(node, exp.Literal) and node.is_int):
        raise NotCompilable
    given = sole.compiler.function(sole.compiler.value(node).text, "p")

    def count(values: tuple[Any, ...]) -> int:
        number = given(values)
        if type(number) is not int or number < 0:
            raise Fallback
        return number

    return count
