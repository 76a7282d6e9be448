"""Statements that find their rows by a range of an index, or take the first ones in its order: compiled to row access.

The index only narrows down which rows to look at; the whole WHERE is then asked of each row that the view sees. Only tables
held in memory are read this way, and only up to ``MOST`` values: DuckDB is the faster one for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any

from sqlglot import exp

from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.ordered import Range
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Key, Row
from tidegate.storage.sql.codes import NotCompilable, column_code, conjuncts
from tidegate.storage.sql.lookups import Find, SoleTable, equalities, find_among, find_rows
from tidegate.storage.sql.ordering import SortKey
from tidegate.storage.sql.semantics import Fallback
from tidegate.storage.view import View

MOST = 10_000  # values of an index that a SELECT looks at one by one

_Sign = type[exp.Expression]
_BELOW: dict[_Sign, bool] = {exp.LT: True, exp.LTE: False}  # column < value: is the bound itself left out?
_ABOVE: dict[_Sign, bool] = {exp.GT: True, exp.GTE: False}
_TURNED: dict[_Sign, _Sign] = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}
_MAY_FAIL = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Cast)  # of a row that would not be looked at

Walk = Callable[[View, tuple[Any, ...], int], list[Row]]  # (view, parameters, how many are enough)
Bounds = Callable[[tuple[Any, ...]], Range | None]  # from the parameters; None: no row is in it


@dataclass(frozen=True)
class Span:
    """A part of an index. ``fixed``: how many of its first columns are equal; ``left``: those that are not compared."""

    number: int
    bounds: Bounds
    fixed: int
    left: tuple[int, ...]


def find_by(sole: SoleTable, where: exp.Expression | None, most: int | None = None) -> tuple[Find, str]:
    """How to get the rows that ``where`` selects: by equality, by what a subquery finds, or else by a range.

    ``most``: leave it to DuckDB when the range has more values.
    """
    try:
        return find_rows(sole, where)
    except NotCompilable:
        conditions = conjuncts(where)
        if any(condition.args.get("query") is not None for condition in conditions):
            return find_among(sole, conditions), "subquery"
        span = _best_span(sole, conditions, _compared(sole, conditions))
        return _find_in(sole.schema.name, span, _matching(sole, conditions), most), "index range"


def walk_by(sole: SoleTable, where: exp.Expression | None, keys: Sequence[SortKey]) -> Walk:
    """How to get the first rows that ``where`` selects, in the order of an index, and those that tie with the last."""
    conditions = conjuncts(where)
    equal = _compared(sole, conditions)
    moving = [key for key in keys if key.place not in equal]
    if (
        not moving
        or any(key.output for key in keys)
        or len({key.descending for key in moving}) > 1
        or any(condition.find(*_MAY_FAIL) for condition in conditions)
    ):
        raise NotCompilable
    span, lacking = _ordered_span(sole, conditions, equal, [key.place for key in moving])
    if lacking and moving[0].nulls_first:
        raise NotCompilable
    walk = _walk_in(sole.schema.name, span, _matching(sole, conditions), moving[0].descending, len(moving))

    def complete(view: View, values: tuple[Any, ...], enough: int) -> list[Row]:
        found = walk(view, values, enough)
        if lacking and len(found) < enough:
            raise Fallback
        return found

    return complete if lacking else walk


def _matching(sole: SoleTable, conditions: Sequence[exp.Expression]) -> Callable[[Row, tuple[Any, ...]], bool]:
    return sole.compiler.function(sole.compiler.predicate(conditions))  # type: ignore[no-any-return]


def _compared(sole: SoleTable, conditions: Sequence[exp.Expression]) -> dict[int, exp.Expression]:
    """What columns must be equal to, by the column's place."""
    return {place: other for place, (_, other) in equalities(sole, conditions).items()}


def _best_span(sole: SoleTable, conditions: Sequence[exp.Expression], equal: dict[int, exp.Expression]) -> Span:
    """The index that narrows the rows down most: the one with most columns compared."""
    spans = []
    for number, index in enumerate(sole.schema.indexes):
        places = [sole.schema.index_of[name] for name in index.columns]
        span, compared = _span(sole, number, places, conditions, equal)
        if compared and _all_inside(sole, span):
            spans.append((compared, -number, span))
    if not spans:
        raise NotCompilable
    return max(spans, key=lambda found: found[:2])[2]


def _ordered_span(
    sole: SoleTable, conditions: Sequence[exp.Expression], equal: dict[int, exp.Expression], order: Sequence[int]
) -> tuple[Span, bool]:
    """The index that is in the order of the columns at these places where its first columns are equal. Also, whether
    rows with a NULL, which come last, may be missing in it.
    """
    for number, index in enumerate(sole.schema.indexes):
        places = [sole.schema.index_of[name] for name in index.columns]
        span, _ = _span(sole, number, places, conditions, equal)
        left = places[span.fixed :]
        if left[: len(order)] == list(order):
            if _all_inside(sole, span):
                return span, False
            if left == list(order) and len(left) == 1:
                return span, True
    raise NotCompilable


def _all_inside(sole: SoleTable, span: Span) -> bool:
    """Are all rows of the range in the index? A row with a NULL in a column that is not compared would be missing."""
    return not any(sole.schema.columns[place].nullable for place in span.left)


def _span(
    sole: SoleTable,
    number: int,
    places: Sequence[int],
    conditions: Sequence[exp.Expression],
    equal: dict[int, exp.Expression],
) -> tuple[Span, int]:
    """What is compared of the index, and how many of its columns are."""
    prefix = []
    for place in places:
        if place not in equal:
            break
        prefix.append(_bound(sole, place, equal[place]))
    lows: list[tuple[str, bool]] = []
    highs: list[tuple[str, bool]] = []
    rest = tuple(places[len(prefix) :])
    if rest:
        for condition in conditions:
            _add_bounds(sole, rest[0], condition, lows, highs)
    low, above = lows[0] if lows else ("None", False)
    high, below = highs[0] if highs else ("None", False)
    parts = sole.compiler.function(f"(({''.join(f'{text}, ' for text in prefix)}), {low}, {high})", "p")
    has_low, has_high = bool(lows), bool(highs)

    def bounds(values: tuple[Any, ...]) -> Range | None:
        first, start, end = parts(values)
        if None in first or (has_low and start is None) or (has_high and end is None):
            return None
        return Range(first, start, above, end, below)

    ranged = has_low or has_high
    return Span(number, bounds, len(prefix), rest[1:] if ranged else rest), len(prefix) + ranged


def _bound(sole: SoleTable, place: int, other: exp.Expression) -> str:
    """Code for the value that the column is compared with; it can be compared with stored ones."""
    column = sole.schema.columns[place]
    return sole.compiler.comparable(column_code(column, ""), other)


def _add_bounds(
    sole: SoleTable, place: int, condition: exp.Expression, lows: list[tuple[str, bool]], highs: list[tuple[str, bool]]
) -> None:
    """The bounds that a condition sets to the column at ``place``."""
    sides: list[tuple[Any, _Sign, Any]]
    if isinstance(condition, exp.Between) and not condition.args.get("symmetric"):
        low, high = condition.args["low"], condition.args["high"]
        sides = [(condition.this, exp.GTE, low), (condition.this, exp.LTE, high)]
    elif (sign := type(condition)) in _TURNED:
        sides = [
            (condition.this, sign, condition.args["expression"]),
            (condition.args["expression"], _TURNED[sign], condition.this),
        ]
    else:
        return
    for column, side, other in sides:
        if not isinstance(column, exp.Column) or any(other.find_all(exp.Column, exp.Query)):
            continue
        if sole.scope.find(column).text != f"row[{place}]":
            continue
        try:
            text = _bound(sole, place, other)
        except NotCompilable:
            continue
        if side in _ABOVE:
            lows.append((text, _ABOVE[side]))
        else:
            highs.append((text, _BELOW[side]))


# ---- running


def _find_in(table: str, span: Span, matches: Any, most: int | None) -> Find:
    """All rows of the range that match. ``most``: leave it to DuckDB when the range has more values."""

    def find(view: View, values: tuple[Any, ...]) -> list[Row]:
        reader = view.access.get(table) or view.undeclared(table)
        wanted = span.bounds(values)
        if wanted is None:
            return []
        index = reader.table.indexes[span.number]
        keys = _Held(view, reader).keys(index, wanted, most)
        return [row for row in view.visible(reader, reader.inside(view, keys)) if matches(row, values)]

    return find


def _walk_in(table: str, span: Span, matches: Any, descending: bool, order: int) -> Walk:
    """A function that gives the first ``enough`` rows of the range that match and, beyond them, those that are equal to the
    last in the first ``order`` columns that are not compared.
    """

    def walk(view: View, values: tuple[Any, ...], enough: int) -> list[Row]:
        reader = view.access.get(table) or view.undeclared(table)
        wanted = span.bounds(values)
        if wanted is None or not enough:
            return []
        index = reader.table.indexes[span.number]
        held = _Held(view, reader)
        start = len(wanted.prefix)
        wide = len(index.places) > 1
        found: list[Row] = []
        for _, group in groupby(
            held.walk(index, wanted, descending), key=lambda v: v[start : start + order] if wide else v
        ):
            if len(found) >= enough:
                break
            for value in group:
                keys = reader.inside(view, held.candidates(index, value))
                rows = view.visible(reader, keys)
                found += [row for row in rows if index.value_of(row) == value and matches(row, values)]
        held.check()
        return found

    return walk


class _Held:
    """A table that is in memory, all of it, for as long as it is read."""

    def __init__(self, view: View, reader: Reader) -> None:
        self._view = view
        self._reader = reader
        self._evictions = reader.table.mark()
        if not view.database.hold(reader.table):
            raise Fallback

    def check(self) -> None:
        """Raise unless no row was evicted since."""
        if self._reader.table.evictions != self._evictions:
            raise Fallback

    def keys(self, index: SecondaryIndex, wanted: Range, most: int | None) -> set[Key]:
        """The keys of all rows that may be in the range."""
        values = index.values_in(wanted, None if most is None else most + 1)
        if most is not None and len(values) > most:
            raise Fallback
        keys = {key for value in values for key in index.candidates(value)}
        self.check()
        written = self._view.written_index(self._reader.name, index)
        if written is not None:
            keys.update(key for value in written.values_in(wanted) for key in written.candidates(value))
        return keys

    def walk(self, index: SecondaryIndex, wanted: Range, descending: bool) -> Iterator[Any]:
        """The distinct values in the range, in order."""
        values = index.walk(wanted, descending)
        written = self._view.written_index(self._reader.name, index)
        if written is not None:
            values = merge(values, written.values_in(wanted, None, descending), reverse=descending)
        last: Any = None
        for number, value in enumerate(values):
            if number > MOST:
                raise Fallback
            if number == 0 or value != last:
                yield value
            last = value

    def candidates(self, index: SecondaryIndex, value: Any) -> set[Key]:
        written = self._view.written_index(self._reader.name, index)
        return {*index.candidates(value), *(written.candidates(value) if written is not None else ())}
