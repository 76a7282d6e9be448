"""A batch by key and pane: its *segments*, the runs of rows of one key in one pane.

Where segments begin follows from a few numbers for each key (panes of tuples), or from where the edges of panes fall among
times that ascend: no row is read for it, unless there are several keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.streams.windows.state.columns import Array
from tidegate.streams.windows.state.keys import Groups

FEW = 8  # rows per pane, on average, from which searching for the edges costs less than dividing


class Cuts(NamedTuple):
    """Where segments begin and end (among the rows by key), the key (its place in the batch) and the pane of each.

    ``first``, ``last``: of each key its first and its last segment.
    """

    starts: Array
    ends: Array
    key: Array
    pane: Array
    first: Array
    last: Array


def by_count(groups: Groups, seen: Array, lengths: Array, pane: int) -> Cuts:
    """Panes of tuples. ``seen``: how many rows of each key came before."""
    low = seen // pane
    number = (seen + (lengths - 1)) // pane
    number -= low - 1
    last = number.cumsum()
    first = last - number
    last -= 1
    key = np.arange(len(number)).repeat(number)
    panes = np.arange(len(key))
    panes += (low - first).take(key)
    starts = panes * pane
    starts += (groups.starts - seen).take(key)
    starts[first] = groups.starts  # the rest of an existing pane
    ends = np.empty_like(starts)
    ends[:-1], ends[-1:] = starts[1:], groups.ends[-1:]
    return Cuts(starts, ends, key, panes, first, last)


def of_one_pane(groups: Groups, pane: int) -> Cuts:
    """All rows in one pane."""
    key = np.arange(len(groups.starts))
    return Cuts(groups.starts, groups.ends, key, np.full(len(key), pane, "i8"), key, key)


def by_time(groups: Groups, times: Array, pane: int) -> Cuts:
    """Panes of time; ``times``, of the rows before they were grouped, ascend."""
    rows = len(times)
    low, high = int(times[0]) // pane, int(times[-1]) // pane
    if low == high:
        return of_one_pane(groups, low)
    if (high - low + 1) * FEW > rows:
        panes = times // pane
        return _changes(groups, panes if groups.order is None else panes[groups.order])
    numbers = np.arange(low, high + 1)
    edges = np.zeros(len(numbers) + 1, "i8")
    edges[1:-1], edges[-1] = np.searchsorted(times, numbers[1:] * pane), rows
    lengths = edges[1:] - edges[:-1]
    if groups.order is not None:
        return _changes(groups, np.repeat(numbers, lengths)[groups.order])
    filled = np.flatnonzero(lengths)
    starts, first = edges[filled], np.zeros(1, "i8")
    last = first + (len(filled) - 1)
    return Cuts(starts, starts + lengths[filled], np.zeros(len(filled), "i8"), numbers[filled], first, last)


def _changes(groups: Groups, panes: Array) -> Cuts:
    """Cut where the key or the pane changes."""
    changes = panes[1:] != panes[:-1]
    changes[groups.starts[1:] - 1] = True
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    ends = np.append(starts[1:], len(panes))
    key = np.searchsorted(groups.starts, starts, side="right") - 1
    first, last = np.searchsorted(starts, groups.starts), np.searchsorted(ends, groups.ends)
    return Cuts(starts, ends, key, panes[starts], first, last)
