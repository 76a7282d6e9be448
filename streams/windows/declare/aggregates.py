"""Aggregates over a window's rows. NULLs do not count, as in SQL; over no values the result is NULL (a count is 0).

Each can be computed from its panes: some from a few numbers per pane (``fields``), the others from
a summary of each pane's values.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np

from tidegate.errors import DataError, DeclarationError
from tidegate.storage.schema import Relation
from tidegate.storage.types import ColumnType, column_type
from tidegate.streams.windows.state.columns import Array, Columns, dtype_of
from tidegate.streams.windows.state.fields import (
    Counted,
    Earliest,
    Field,
    Greatest,
    Latest,
    Least,
    Moments,
    Summed,
    SummedWhole,
)

Partials = Mapping[tuple[str, str | None], Array]


class Aggregate(ABC):
    """One value per window. ``column``: what it is over."""

    families: frozenset[str] | None = None  # types it is defined for; None: all

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    @property
    def name(self) -> str:
        return re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def __repr__(self) -> str:
        others = [f"{name}={value!r}" for name, value in vars(self).items() if name != "column" and value is not None]
        return f"{self.name}({', '.join([self.column or '', *others] if others else [self.column or ''])})"

    def type(self, relation: Relation) -> ColumnType:
        """The type of the result."""
        assert self.column is not None
        return relation.column(self.column).type

    def check(self, relation: Relation) -> None:
        """Refuse a column it is not defined for."""
        if self.column is None:
            return
        kind = relation.column(self.column).type
        if self.families is not None and kind.family not in self.families:
            raise DeclarationError(
                f"{self!r}: {relation.name}.{self.column} is {kind.sql}; {self.name} is for columns of type "
                f"{', '.join(sorted(self.families))}"
            )

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        """What to keep per pane when numbers are enough for these columns; None when a summary is needed."""
        return None

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        """Results from merged fields, and the mask of those that are not NULL."""
        raise NotImplementedError

    @abstractmethod
    def summary(self, columns: Columns) -> Any:
        """What is needed of one pane."""

    @abstractmethod
    def value(self, summaries: Sequence[Any]) -> Any:
        """The result for a window from the summaries of its panes, in order."""

    def _numbers(self, relation: Relation) -> np.dtype[Any] | None:
        """The numpy type of the column, when it is one that fields can hold."""
        assert self.column is not None
        dtype = dtype_of(relation.column(self.column))
        return None if dtype == np.dtype(object) or dtype == np.dtype("u8") or dtype == np.dtype("M8[D]") else dtype

    def _present(self, columns: Columns) -> Array:
        """The column's values that are not NULL."""
        assert self.column is not None
        values, mask = columns.values[self.column], columns.valid[self.column]
        if mask is not None:
            return values[mask]
        if values.dtype != np.dtype(object):
            return values
        present = [v for v in values if v is not None]
        return np.fromiter(present, object, len(present))


NUMBERS = frozenset({"integer", "float", "decimal"})
PLAIN_NUMBERS = frozenset({"integer", "float"})
DIGITS = Context(prec=60)  # enough to add up any DECIMAL exactly
NAN = float("nan")  # as a dictionary key, always this one


def _held(dtype: np.dtype[Any]) -> str:
    return "f8" if dtype.kind == "f" else "i8"


class Count(Aggregate):
    """Rows, or values of a column that are not NULL."""

    def type(self, relation: Relation) -> ColumnType:
        return column_type("BIGINT")

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        if self.column is not None and dtype_of(relation.column(self.column)) == np.dtype(object):
            return None
        return (Counted(self.column),)

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        return partials["Counted", self.column], None

    def summary(self, columns: Columns) -> int:
        return len(columns) if self.column is None else len(self._present(columns))

    def value(self, summaries: Sequence[int]) -> int:
        return sum(summaries)


class _OverValues(Aggregate):
    """Keeps the number of values beside its own field."""

    field: type[Field]

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        dtype = self._numbers(relation)
        if dtype is None:
            return None
        return Counted(self.column), self.field(self.column, _held(dtype))

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        found = _as_column(relation, self.column, partials[self.field.__name__, self.column])
        if found.dtype.kind == "f":
            found = found + 0.0  # of the two zeros, always the same one
        return found, partials["Counted", self.column] > 0


def _as_column(relation: Relation, column: str | None, held: Array) -> Array:
    """Values from a field in the type of their column."""
    dtype = dtype_of(relation.column(str(column)))
    return held.view(dtype) if dtype.kind == "M" else held.astype(dtype, copy=False)


class Sum(Aggregate):
    """The sum: of floats added one by one in order, of whole numbers and decimals exact."""

    families = NUMBERS

    def type(self, relation: Relation) -> ColumnType:
        kind = super().type(relation)
        if kind.family == "decimal":
            return column_type(f"DECIMAL(38,{kind.sql.rstrip(')').rpartition(',')[2]})")
        return column_type("DOUBLE" if kind.family == "float" else "BIGINT")

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        dtype = self._numbers(relation)
        assert self.column is not None
        if dtype is None:
            return None
        return Counted(self.column), Summed(self.column, "f8") if dtype.kind == "f" else SummedWhole(self.column)

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        counted = partials["Counted", self.column]
        if ("Summed", self.column) in partials:
            return partials["Summed", self.column], counted > 0
        totals = SummedWhole.totals(partials["SummedWhole", self.column])
        return np.array([self._fitting(total) for total in totals], "i8"), counted > 0

    def summary(self, columns: Columns) -> Any:
        values = self._present(columns)
        if not len(values):
            return None
        if values.dtype.kind == "f":
            return float(np.bincount(np.zeros(len(values), "i8"), values)[0])
        return _added(values.tolist())

    def value(self, summaries: Sequence[Any]) -> Any:
        return self._fitting(_added(summaries))

    def _fitting(self, total: Any) -> Any:
        if isinstance(total, int) and not -(2**63) <= total < 2**63:
            raise DataError(
                f"{self!r} is {total}, too large for a BIGINT; make the stream's column a DOUBLE, or sum in a larger "
                "unit",
                column=self.column,
            )
        return total


def _added(parts: Sequence[Any]) -> Any:
    total: Any = None
    for one in parts:
        if one is not None:
            total = one if total is None else DIGITS.add(total, one) if isinstance(one, Decimal) else total + one
    return total


class Mean(Sum):
    """The mean, as DOUBLE."""

    def type(self, relation: Relation) -> ColumnType:
        return column_type("DOUBLE")

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        counted = partials["Counted", self.column]
        if ("Summed", self.column) in partials:
            return partials["Summed", self.column] / np.maximum(counted, 1), counted > 0
        totals = SummedWhole.totals(partials["SummedWhole", self.column])
        return np.array([t / max(n, 1) for t, n in zip(totals, counted.tolist(), strict=True)], "f8"), counted > 0

    def summary(self, columns: Columns) -> Any:
        return len(self._present(columns)), super().summary(columns)

    def value(self, summaries: Sequence[Any]) -> Any:
        n = sum(count for count, _ in summaries)
        return float(_added([total for _, total in summaries]) / n) if n else None


class Min(_OverValues):
    field = Least

    def summary(self, columns: Columns) -> Any:
        return _extreme(min, np.fmin, self._present(columns))

    def value(self, summaries: Sequence[Any]) -> Any:
        present = [s for s in summaries if s is not None]
        return min(present, key=_ordered) if present else None


class Max(_OverValues):
    field = Greatest

    def summary(self, columns: Columns) -> Any:
        return _extreme(max, np.maximum, self._present(columns))

    def value(self, summaries: Sequence[Any]) -> Any:
        present = [s for s in summaries if s is not None]
        return max(present, key=_ordered) if present else None


def _ordered(value: Any) -> tuple[bool, Any]:
    """Sorts as SQL does: NaN after every number."""
    return (True, 0.0) if value != value else (False, value)


def _extreme(python: Any, ufunc: np.ufunc, values: Array) -> Any:
    if not len(values):
        return None
    if values.dtype.kind == "f":
        return float(ufunc.reduce(values)) + 0.0
    return python(values.tolist(), key=_ordered)


class Variance(Aggregate):
    """Sample variance (n − 1); NULL for fewer than two values."""

    families = PLAIN_NUMBERS

    def type(self, relation: Relation) -> ColumnType:
        return column_type("DOUBLE")

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        assert self.column is not None
        return None if self._numbers(relation) is None else (Moments(self.column),)

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        n, _, squares = Moments.central(partials["Moments", self.column])
        return squares / np.maximum(n - 1, 1), n > 1

    def summary(self, columns: Columns) -> Any:
        values = self._present(columns).astype("f8")
        n = len(values)
        if not n:
            return np.zeros(4)
        zeros = np.zeros(n, "i8")
        with np.errstate(all="ignore"):
            off = values - values[0]
            squares = off * off
        return np.array([n, values[0], np.bincount(zeros, off)[0], np.bincount(zeros, squares)[0]])

    def value(self, summaries: Sequence[Any]) -> Any:
        field = Moments(str(self.column))
        merged, yes = np.zeros(4), np.ones((), bool)
        for one in summaries:
            merged = field.merge(merged, one, yes, yes)
        n, _, squares = Moments.central(merged)
        return float(squares / (n - 1)) if n > 1 else None


class Stddev(Variance):
    """Sample standard deviation; NULL for fewer than two values."""

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        variance, valid = super().finish(relation, partials)
        return np.sqrt(variance), valid

    def value(self, summaries: Sequence[Any]) -> Any:
        variance = super().value(summaries)
        return None if variance is None else math.sqrt(variance)


class First(Aggregate):
    """The first row's value, NULL included."""

    field: type[Field] = Earliest

    def fields(self, relation: Relation) -> tuple[Field, ...] | None:
        dtype = self._numbers(relation)
        assert self.column is not None
        if dtype is None or relation.column(self.column).nullable:
            return None
        return (self.field(self.column, _held(dtype)),)

    def finish(self, relation: Relation, partials: Partials) -> tuple[Array, Array | None]:
        return _as_column(relation, self.column, partials[self.field.__name__, self.column]), None

    def summary(self, columns: Columns) -> Any:
        assert self.column is not None
        return columns.slice(0, 1).python(self.column)

    def value(self, summaries: Sequence[Any]) -> Any:
        return next((s[0] for s in summaries if s), None)


class Last(First):
    """The last row's value, NULL included."""

    field = Latest

    def summary(self, columns: Columns) -> Any:
        assert self.column is not None
        return columns.slice(max(len(columns) - 1, 0), len(columns)).python(self.column)

    def value(self, summaries: Sequence[Any]) -> Any:
        return next((s[0] for s in reversed(summaries) if s), None)


class Quantile(Aggregate):
    """The ``q``-quantile, interpolated between neighbours, as SQL's ``quantile_cont``.

    With ``error`` it is one of the values, whose rank is off by at most ``error`` times their number; each pane then
    keeps only about 1/(2·error) of its values.
    """

    families = PLAIN_NUMBERS

    def __init__(self, column: str, q: float, error: float | None = None) -> None:
        super().__init__(column)
        if not 0 <= q <= 1:
            raise DeclarationError(f"quantile({column}, {q}): q must be between 0 and 1; the median is 0.5")
        if error is not None and not 0 < error < 0.5:
            raise DeclarationError(
                f"quantile({column}, {q}, error={error}): error is a share of the rows, between 0 and 0.5"
            )
        self.q = q
        self.error = error

    def type(self, relation: Relation) -> ColumnType:
        return column_type("DOUBLE")

    def summary(self, columns: Columns) -> Any:
        values = np.sort(self._present(columns).astype("f8"))
        if self.error is None:
            return values
        step = max(1, int(2 * self.error * len(values)))
        starts = np.arange(0, len(values), step)
        weights = np.minimum(step, len(values) - starts)
        return values[starts + weights // 2], weights

    def value(self, summaries: Sequence[Any]) -> Any:
        if self.error is None:
            return self._between(np.sort(np.concatenate([*summaries, np.empty(0)])))
        values = np.concatenate([v for v, _ in summaries])
        if not len(values):
            return None
        weights = np.concatenate([w for _, w in summaries])
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        return float(values[order][np.searchsorted(ranks, self.q * ranks[-1], side="left").clip(0, len(values) - 1)])

    def _between(self, values: Array) -> float | None:
        """The value at rank q·(n − 1) of sorted values, NaN last."""
        if not len(values):
            return None
        rank = self.q * (len(values) - 1)
        low = float(values[math.floor(rank)])
        high = float(values[math.ceil(rank)])
        if low == high or rank == math.floor(rank) or math.isinf(low):
            return low
        return low + (high - low) * (rank - math.floor(rank))


class Distinct(Aggregate):
    """How many different values."""

    def type(self, relation: Relation) -> ColumnType:
        return column_type("BIGINT")

    def summary(self, columns: Columns) -> Any:
        values = self._present(columns)
        return set(values.tolist()) if values.dtype == np.dtype(object) else np.unique(values)

    def value(self, summaries: Sequence[Any]) -> Any:
        if summaries and isinstance(summaries[0], set):
            return len(set().union(*summaries))
        return len(np.unique(np.concatenate(summaries))) if len(summaries) else 0


class TopK(Aggregate):
    """The ``k`` largest values, largest first."""

    def __init__(self, column: str, k: int) -> None:
        super().__init__(column)
        if not isinstance(k, int) or k < 1:
            raise DeclarationError(f"{self.name}({column}, {k!r}): k must be a positive whole number")
        self.k = k

    def type(self, relation: Relation) -> ColumnType:
        return column_type(f"{super().type(relation).sql}[]")

    def summary(self, columns: Columns) -> Any:
        return sorted(self._present(columns).tolist(), key=_ordered, reverse=True)[: self.k]

    def value(self, summaries: Sequence[Any]) -> Any:
        values = [value for summary in summaries for value in summary]
        return tuple(sorted(values, key=_ordered, reverse=True)[: self.k]) or None


class MostCommon(TopK):
    """The ``k`` most frequent values, the most frequent first; of equally frequent ones the smaller first."""

    def summary(self, columns: Columns) -> Any:
        return Counter(NAN if v != v else v for v in self._present(columns).tolist())

    def value(self, summaries: Sequence[Any]) -> Any:
        counts: Counter[Any] = Counter()
        for summary in summaries:
            counts.update({NAN if v != v else v: n for v, n in summary.items()})
        ranked = sorted(counts.items(), key=lambda item: (-item[1], _ordered(item[0])))
        return tuple(value for value, _ in ranked[: self.k]) or None
