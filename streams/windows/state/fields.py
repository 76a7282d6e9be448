"""Partial aggregates as numpy arrays: one element per pane.

A pane is folded row by row, in order, continuing from what was there: its partial does not depend on how its rows were
split into batches. Partials are merged in the order of their panes, in a way that depends on the panes' numbers alone.
So a window's result is the same, to the last bit, whatever the batches were. NaN and infinity are values like any other:
callers that fold or merge turn off numpy's warnings about them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from tidegate.streams.windows.state.columns import Array, Columns

Has = Any  # which panes have rows, as an array; None where no field of the window needs it
FieldName = tuple[str, str | None]  # its kind, and the column it is of
Partials = dict[FieldName, Array]
ROWS: FieldName = ("Counted", None)  # the field that says how many rows a pane has


class Segments:
    """Rows in runs of one pane each: where each begins and ends, and the segment of every row (ascending)."""

    def __init__(self, starts: Array, ends: Array) -> None:
        self.starts = starts
        self.ends = ends
        self.number = len(starts)

    @cached_property
    def ids(self) -> Array:
        return np.repeat(np.arange(self.number), self.ends - self.starts)

    @cached_property
    def places(self) -> Array:
        """``ids`` with one leading place for what each segment continues from."""
        return np.concatenate([np.arange(self.number), self.ids])


class Field(ABC):
    """One number (or a few) per pane. Equal fields of several aggregates are kept once."""

    width = 1
    asks = False  # does a merge need to know which panes have rows?

    def __init__(self, column: str | None, dtype: Any = None) -> None:
        self.column = column
        self.dtype = np.dtype(dtype)
        self.name = type(self).__name__, column

    def empty(self, count: int) -> Array:
        """Partials of ``count`` panes without rows."""
        array = np.empty(count if self.width == 1 else (count, self.width), self.dtype)
        array[:] = self.identity()
        return array

    @abstractmethod
    def identity(self) -> Any:
        """The partial of a pane without rows."""

    @abstractmethod
    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        """The segments' partials, continuing from ``carried`` where ``continued`` says there is something."""

    @abstractmethod
    def merge(self, one: Array, two: Array, has_one: Has, has_two: Has) -> Array:
        """The partials of panes ``one`` followed by ``two``; either may have no rows."""

    def merged(self, table: Array, has: Has) -> Array:
        """Panes ``table[0]``, ``table[1]``, … merged from left to right."""
        total: Array = table[0]
        some = None if has is None else has[0]
        for i in range(1, len(table)):
            total = self.merge(total, table[i], some, None if has is None else has[i])
            some = None if has is None else some | has[i]
        return total

    def scan(self, table: Array, has: Has) -> None:
        """Of each row of ``table``, merged partials of the first, the first two, … in their place."""
        some = None if has is None else has[:, 0]
        for i in range(1, table.shape[1]):
            now = None if has is None else has[:, i]
            table[:, i] = self.merge(table[:, i - 1], table[:, i], some, now)
            some = None if now is None else some | now

    def scan_back(self, table: Array, has: Has) -> None:
        """Of each row of ``table``, merged partials of all, all but the first, … in their place, from the last one backwards."""
        some = None if has is None else has[:, -1]
        for i in range(table.shape[1] - 2, -1, -1):
            now = None if has is None else has[:, i]
            table[:, i] = self.merge(table[:, i], table[:, i + 1], now, some)
            some = None if now is None else some | now

    def _values(self, columns: Columns, segments: Segments) -> tuple[Array, Array, bool]:
        """The column's values that are not NULL, the segment of each, and whether none was NULL."""
        assert self.column is not None
        values, mask = _plain(columns.values[self.column]), columns.valid[self.column]
        if mask is None:
            return values, segments.ids, True
        return values[mask], segments.ids[mask], False


def _plain(values: Array) -> Array:
    """Times as whole numbers, everything else as it is."""
    return values.view("i8") if values.dtype.kind == "M" else values


class _Ufunc(Field):
    """A field whose merge is a numpy ufunc. ``in_order``: the order of merging matters."""

    ufunc: np.ufunc
    in_order = False

    def merge(self, one: Array, two: Array, has_one: Has, has_two: Has) -> Array:
        merged: Array = self.ufunc(one, two)
        return merged

    def merged(self, table: Array, has: Has) -> Array:
        # numpy sums the floats of one column in a different order than those of several; accumulate does not
        found: Array = self.ufunc.accumulate(table, axis=0)[-1] if self.in_order else self.ufunc.reduce(table, axis=0)
        return found

    def scan(self, table: Array, has: Has) -> None:
        self.ufunc.accumulate(table, axis=1, out=table)

    def scan_back(self, table: Array, has: Has) -> None:
        backwards = table[:, ::-1]
        self.ufunc.accumulate(backwards, axis=1, out=backwards)


class Counted(_Ufunc):
    """How many rows, or how many values that are not NULL."""

    ufunc = np.add

    def __init__(self, column: str | None = None) -> None:
        super().__init__(column, "i8")

    def identity(self) -> int:
        return 0

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        if self.column is None or columns.valid[self.column] is None:
            new: Array = segments.ends - segments.starts
        else:
            new = np.bincount(segments.ids[columns.valid[self.column]], minlength=segments.number)
        return np.add(carried, new)


class Summed(_Ufunc):
    """The sum of floats, added one by one in order."""

    ufunc = np.add
    in_order = True

    def identity(self) -> float:
        return 0

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        """numpy adds in its own order, but subtracts in the order given: −(((−c − a) − b) − …) is ((c + a) + b) + …
        to the last bit, except for the signs of zero and NaN, which are made the same here.
        """
        assert self.column is not None
        values, mask = columns.values[self.column], columns.valid[self.column]
        values = values.copy() if mask is None else np.where(mask, values, 0.0)
        values[segments.starts] = -(carried + values[segments.starts])
        found = 0.0 - np.subtract.reduceat(values, segments.starts)
        return np.where(np.isnan(found), np.nan, found)


class SummedWhole(_Ufunc):
    """The exact sum of whole numbers, as two: of their upper and of their lower 32 bits."""

    ufunc = np.add
    width = 2

    def __init__(self, column: str) -> None:
        super().__init__(column, "i8")

    def identity(self) -> int:
        return 0

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        values, ids, whole = self._values(columns, segments)
        halves = values >> 32, values & 0xFFFFFFFF
        total = carried.copy()
        for place, half in enumerate(halves):
            if whole:
                total[:, place] += np.add.reduceat(half, segments.starts)
            else:
                np.add.at(total[:, place], ids, half)
        return total

    @staticmethod
    def totals(partials: Array) -> list[int]:
        """The sums."""
        return [(high << 32) + low for high, low in partials.tolist()]


class _Extreme(_Ufunc):
    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        assert self.column is not None
        if columns.valid[self.column] is None:
            values = _plain(columns.values[self.column]).astype(self.dtype, copy=False)
            folded: Array = self.ufunc(carried, self.ufunc.reduceat(values, segments.starts))
            return folded
        values, ids, _ = self._values(columns, segments)
        found = carried.copy()
        self.ufunc.at(found, ids, values.astype(self.dtype, copy=False))
        return found


class Least(_Extreme):
    """The smallest value; NaN counts as larger than any number, as in SQL."""

    ufunc = np.fmin

    def identity(self) -> Any:
        return np.nan if self.dtype.kind == "f" else np.iinfo(self.dtype).max


class Greatest(_Extreme):
    """The largest value; NaN counts as larger than any number, as in SQL."""

    ufunc = np.maximum

    def identity(self) -> Any:
        return -np.inf if self.dtype.kind == "f" else np.iinfo(self.dtype).min


class _Chosen(Field):
    """The value of one row, which can't be NULL."""

    asks = True

    def identity(self) -> Any:
        return 0

    def _all(self, columns: Columns) -> Array:
        assert self.column is not None
        return _plain(columns.values[self.column])


class Earliest(_Chosen):
    """The first row's value."""

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        return np.where(continued, carried, self._all(columns)[segments.starts])

    def merge(self, one: Array, two: Array, has_one: Has, has_two: Has) -> Array:
        return np.where(has_one, one, two)


class Latest(_Chosen):
    """The last row's value."""

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        found: Array = self._all(columns)[segments.ends - 1]
        return found

    def merge(self, one: Array, two: Array, has_one: Has, has_two: Has) -> Array:
        return np.where(has_two, two, one)


class Moments(Field):
    """n, K, Σ(x−K), Σ(x−K)² around K, the pane's first value; merging moves K to the mean (Chan's formula)."""

    width = 4

    def __init__(self, column: str) -> None:
        super().__init__(column, "f8")

    def identity(self) -> float:
        return 0.0

    def fold(self, columns: Columns, segments: Segments, carried: Array, continued: Array) -> Array:
        values, ids, _ = self._values(columns, segments)
        values = values.astype("f8", copy=False)
        count = segments.number
        found = carried.copy()
        new, place = np.unique(ids, return_index=True)  # ids ascend
        fresh = found[new, 0] == 0
        found[new[fresh], 1] = values[place[fresh]]
        off = values - found[ids, 1]
        squares = off * off
        places = segments.places if len(ids) == len(segments.ids) else np.concatenate([np.arange(count), ids])
        found[:, 0] += np.bincount(ids, minlength=count)
        found[:, 2] = np.bincount(places, np.concatenate([found[:, 2], off]), count)
        found[:, 3] = np.bincount(places, np.concatenate([found[:, 3], squares]), count)
        return found

    def merge(self, one: Array, two: Array, has_one: Has, has_two: Has) -> Array:
        n1, mean1, m1 = self.central(one)
        n2, mean2, m2 = self.central(two)
        n = n1 + n2
        with np.errstate(all="ignore"):
            share = np.where(n > 0, n2 / n, 0.0)
            between = mean2 - mean1
            squares = m1 + m2 + between * between * n1 * share
            merged = np.stack([n, mean1 + between * share, np.zeros_like(n), squares], -1)
        merged = np.where((n1 == 0)[..., None], two, merged)
        return np.where((n2 == 0)[..., None], one, merged)

    @staticmethod
    def central(partials: Array) -> tuple[Array, Array, Array]:
        """n, the mean, and the sum of squared distances from it."""
        n, k, s1, s2 = (partials[..., i] for i in range(4))
        with np.errstate(all="ignore"):
            off = np.where(n > 0, s1 / n, 0.0)
            return n, k + off, np.maximum(s2 - s1 * off, 0.0)
