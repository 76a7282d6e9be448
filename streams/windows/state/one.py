"""Fields and aggregates one row at a time: what :mod:`.fields` does to arrays, to the last bit, with plain Python numbers.

For a few rows, an array costs more than what is done with it. Here a pane's partial is a list with a number (or a tuple
of them) for each field. Both paths read and write the same arrays, this one as memory views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

from tidegate.storage.schema import Column, Relation
from tidegate.streams.windows.declare import aggregates as agg
from tidegate.streams.windows.declare.functions import Aggregates
from tidegate.streams.windows.state.columns import dtype_of
from tidegate.streams.windows.state.fields import (
    ROWS,
    Counted,
    Earliest,
    Field,
    FieldName,
    Greatest,
    Latest,
    Least,
    Moments,
    Summed,
    SummedWhole,
)
from tidegate.streams.windows.state.values import Row, at_micros, micros

NAN = float("nan")
Fold = Callable[[Any, Row], Any]
Finish = Callable[[list[Any]], Any]


class OneField(NamedTuple):
    """A field's partial of no rows, of a pane and one more row, of several panes (all with rows) in order."""

    empty: Any
    fold: Fold
    merged: Callable[[Sequence[Any]], Any]


# ---- fields


def one_field(field: Field, relation: Relation, whole: bool) -> OneField:
    """What this field does, one row at a time. ``whole``: as the aggregates do for a window that has no panes."""
    if isinstance(field, Counted):
        return OneField(0, _counting(field.column, relation), sum)
    assert field.column is not None
    column, place = relation.column(field.column), relation.index_of[field.column]
    match field:
        case Summed():
            fold = _summing_plainly(place) if whole else _summing(place)
            return OneField(0.0, fold, partial(reduce, add))  # one by one; Python's sum may compensate
        case SummedWhole():
            return OneField((0, 0), _summing_whole(place), _added_pairs)
        case Moments():
            return OneField((0.0, 0.0, 0.0, 0.0), _moments(place), _merged_moments)
    value = _held(column, place)
    empty = field.empty(1).item()
    match field:
        case Least():
            return OneField(empty, lambda carried, row: _least(carried, value(row)), partial(reduce, _least))
        case Greatest():
            return OneField(empty, lambda carried, row: _greatest(carried, value(row)), partial(reduce, _greatest))
        case Earliest():  # a pane that has rows has a first one
            return OneField(
                None, lambda carried, row: value(row) if carried is None else carried, lambda panes: panes[0]
            )
        case Latest():
            return OneField(None, lambda carried, row: value(row), lambda panes: panes[-1])
    raise NotImplementedError(field.name)


def _held(column: Column, place: int) -> Callable[[Row], Any]:
    """A column's value as a field holds it; None for NULL."""
    kind = dtype_of(column).kind
    if kind == "M":
        return lambda row: None if row[place] is None else micros(row[place])
    if kind == "b":
        return lambda row: None if row[place] is None else int(row[place])
    return lambda row: row[place]


def _counting(name: str | None, relation: Relation) -> Fold:
    if name is None or not relation.column(name).nullable:
        return lambda carried, row: carried + 1
    place = relation.index_of[name]
    return lambda carried, row: carried if row[place] is None else carried + 1


def _summing(place: int) -> Fold:
    def fold(carried: float, row: Row) -> float:
        value = row[place]
        if value is None:
            return carried
        total: float = carried + value
        return total if total == total else NAN

    return fold


def _summing_plainly(place: int) -> Fold:
    return lambda carried, row: carried if row[place] is None else carried + row[place]


def _summing_whole(place: int) -> Fold:
    def fold(carried: tuple[int, int], row: Row) -> tuple[int, int]:
        value = row[place]
        return carried if value is None else (carried[0] + (value >> 32), carried[1] + (value & 0xFFFFFFFF))

    return fold


def _added_pairs(panes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(pane[0] for pane in panes), sum(pane[1] for pane in panes)


def _least(one: Any, two: Any) -> Any:
    """NaN counts as larger than any number."""
    return one if two is None or two != two or one <= two else two


def _greatest(one: Any, two: Any) -> Any:
    return one if two is None or one != one or one >= two else two


Four = tuple[float, float, float, float]


def _moments(place: int) -> Fold:
    def fold(carried: Four, row: Row) -> Four:
        if row[place] is None:
            return carried
        n, k, s1, s2 = carried
        value = float(row[place])
        if n == 0:
            k = value
        off = value - k
        return n + 1, k, s1 + off, s2 + off * off

    return fold


def _central(moments: Four) -> tuple[float, float, float]:
    n, k, s1, s2 = moments
    off = s1 / n if n > 0 else 0.0
    squares = s2 - s1 * off
    return n, k + off, squares if squares != squares or squares > 0.0 else 0.0


def _merged_moments(panes: Sequence[Four]) -> Four:
    total = panes[0]
    for pane in panes[1:]:
        n1, mean1, m1 = _central(total)
        n2, mean2, m2 = _central(pane)
        if n1 == 0:
            total = pane
        elif n2:
            n = n1 + n2
            share, between = n2 / n, mean2 - mean1
            total = n, mean1 + between * share, 0.0, m1 + m2 + between * between * n1 * share
    return total


# ---- aggregates


class OneByOne:
    """The aggregates of a window, one row at a time. ``fields``: what is held of a pane."""

    def __init__(
        self, aggregates: Aggregates, relation: Relation, fields: Sequence[Field], whole: bool = False
    ) -> None:
        one = [one_field(field, relation, whole) for field in fields]
        self.empty = [field.empty for field in one]
        self.folds = [field.fold for field in one]
        self.mergers = [field.merged for field in one]
        self.places = {field.name: place for place, field in enumerate(fields)}
        self.rows = self.places.get(ROWS, len(fields))  # where the number of rows is, among merged partials
        self.finishing = [self._finish(aggregate, relation) for aggregate in aggregates.named.values()]
        if len(one) == 1:
            (fold,) = self.folds
            self.folded = lambda partial, row: [fold(partial[0], row)]  # type: ignore[method-assign]

    def folded(self, partial: list[Any], row: Row) -> list[Any]:
        """The partial with one more row."""
        return [fold(held, row) for fold, held in zip(self.folds, partial)]  # noqa: B905

    def merged(self, pane: list[Any], behind: list[Any] | None) -> list[Any]:
        """A pane's partials and those of what follows it."""
        return (
            pane if behind is None else [merge(pair) for merge, *pair in zip(self.mergers, pane, behind, strict=True)]
        )

    def results(self, merged: list[Any], rows: int) -> list[Any]:
        """What the aggregates show of these partials, of ``rows`` rows."""
        if self.rows == len(merged):
            merged.append(rows)
        return [finish(merged) for finish in self.finishing]

    def _finish(self, aggregate: agg.Aggregate, relation: Relation) -> Finish:
        name = aggregate.column
        counted = self.places.get(("Counted", name), self.rows)
        if isinstance(aggregate, agg.Count):
            return lambda merged: merged[counted]
        assert name is not None
        column = relation.column(name)
        if isinstance(aggregate, agg.Variance):
            at, rooted = self.places["Moments", name], isinstance(aggregate, agg.Stddev)
            return lambda merged: _variance(merged[at], rooted)
        if isinstance(aggregate, agg.Sum):
            return self._finish_sum(aggregate, name, counted)
        assert isinstance(aggregate, (agg.Min, agg.Max, agg.First))
        shown, at = _shown(column), self.places[aggregate.field.__name__, name]
        if isinstance(aggregate, agg.First):
            return lambda merged: shown(merged[at])
        if dtype_of(column).kind == "f":
            return lambda merged: merged[at] + 0.0 if merged[counted] else None  # of the two zeros, always the same one
        return lambda merged: shown(merged[at]) if merged[counted] else None

    def _finish_sum(self, aggregate: agg.Sum, name: str, counted: int) -> Finish:
        mean = isinstance(aggregate, agg.Mean)
        if ("Summed", name) in self.places:
            at = self.places["Summed", name]
            if mean:
                return lambda merged: merged[at] / merged[counted] if merged[counted] else None
            return lambda merged: merged[at] if merged[counted] else None
        at = self.places["SummedWhole", name]

        def finish(merged: list[Any]) -> Any:
            if not merged[counted]:
                return None
            high, low = merged[at]
            total = (high << 32) + low
            return total / merged[counted] if mean else aggregate._fitting(total)

        return finish


def whole_of(aggregates: Aggregates, relation: Relation) -> OneByOne | None:
    """Those of a window without panes; None where some need more than a few numbers."""
    fields: dict[FieldName, Field] = {ROWS: Counted()}
    for aggregate in aggregates.named.values():
        needed = aggregate.fields(relation)
        if needed is None:
            return None
        fields.update((field.name, field) for field in needed)
    return OneByOne(aggregates, relation, list(fields.values()), whole=True)


def _shown(column: Column) -> Callable[[Any], Any]:
    """What is held of a column, as the value that it shows."""
    kind = dtype_of(column).kind
    return at_micros if kind == "M" else bool if kind == "b" else lambda held: held


def _variance(moments: Four, rooted: bool) -> float | None:
    n, _, squares = _central(moments)
    if n <= 1:
        return None
    return math.sqrt(squares / (n - 1)) if rooted else squares / (n - 1)
