"""Finding equal keys with times in reach, whole columns at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.keys import Key, grouped

NO_KEY = -1  # a key with NULL in it equals nothing


class KeyCodes:
    """Numbers for join keys, so that comparing two keys is comparing two numbers."""

    def __init__(self) -> None:
        self.codes: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self.codes)

    def of(self, columns: Columns, names: list[str]) -> Array:
        """The code of each row's key. Keys seen for the first time get a new one."""
        if not names:
            return np.zeros(len(columns), "i8")
        groups = grouped(columns, names)
        known = np.empty(len(groups.keys), "i8")
        for place, key in enumerate(groups.keys):
            known[place] = NO_KEY if None in key else self.codes.setdefault(key, len(self.codes))
        if groups.order is None:
            return np.empty(0, "i8")
        codes = np.empty(len(columns), "i8")
        codes[groups.order] = np.repeat(known, groups.ends - groups.starts)
        return codes


def matches(codes: Array, low: Array, high: Array, other_codes: Array, other_x: Array) -> tuple[Array, Array]:
    """Pairs (i, j) with ``codes[i] == other_codes[j]`` and ``low[i] <= other_x[j] <= high[i]``, by i.

    The others are sorted by (code, x); the partners of i are then a run, which two binary searches find. To search for
    both at once, x is replaced by its rank among all x.
    """
    mine = np.flatnonzero((codes != NO_KEY) & np.isin(codes, other_codes))
    theirs = np.flatnonzero((other_codes != NO_KEY) & np.isin(other_codes, codes))
    if not len(mine) or not len(theirs):
        return np.empty(0, "i8"), np.empty(0, "i8")
    x = other_x[theirs]
    values = np.unique(x)
    base = len(values) + 1
    place = other_codes[theirs] * base + np.searchsorted(values, x)
    order = np.argsort(place, kind="stable")
    place = place[order]
    start = codes[mine] * base
    first = np.searchsorted(place, start + np.searchsorted(values, low[mine], "left"))
    last = np.searchsorted(place, start + np.searchsorted(values, high[mine], "right"))
    which, within = spread(first, last - 1)
    return mine[which], theirs[order[within]]


def spread(first: Array, last: Array) -> tuple[Array, Array]:
    """Every whole number of the ranges ``first[i] .. last[i]``, with the i it belongs to."""
    counts = np.maximum(last - first + 1, 0)
    which = np.repeat(np.arange(len(first)), counts)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, first[which] + offset


class Found:
    """Results being collected: a row of each side (-1: none), the window they share, and their sort key."""

    def __init__(self) -> None:
        self._parts: list[list[Array]] = []

    def add(self, left: Any, right: Any, window: Any, *order: Any) -> None:
        """More results; a single number applies to all of them."""
        columns = np.broadcast_arrays(*(np.asarray(part, "i8") for part in (left, right, window, *order)))
        if columns[0].size:
            self._parts.append([np.atleast_1d(column) for column in columns])

    def ordered(self) -> tuple[Array, Array, Array] | None:
        """The left rows, right rows and windows of all results, in order; None when there are none."""
        if not self._parts:
            return None
        left, right, window, *order = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        by = np.lexsort(order[::-1])
        return left[by], right[by], window[by]
