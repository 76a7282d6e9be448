"""Sums of floats: added one by one in order, to the last bit, however rows are split into batches."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.state.columns import Columns
from tidegate.streams.windows.state.fields import Segments, Summed

READINGS = Relation("s", (Column("v", column_type("DOUBLE")),))
NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 1e16, 1.0, -1e16, 0.1, math.inf, -math.inf]))


def one_by_one(values: list[float | None]) -> float:
    total = 0.0
    for value in values:
        total += 0.0 if value is None else value
    return total


def folded(batches: list[list[float | None]]) -> float:
    """One pane, batch after batch."""
    field, carried = Summed("v", "f8"), np.zeros(1)
    with np.errstate(all="ignore"):
        for rows in batches:
            columns = Columns.of_rows(READINGS, [(value,) for value in rows])
            segments = Segments(np.array([0]), np.array([len(rows)]))
            carried = field.fold(columns, segments, carried, np.ones(1, bool))
    return float(carried[0])


def bits(number: float) -> bytes:
    return struct.pack("d", math.nan if math.isnan(number) else number)


@settings(deadline=None)
@given(values=st.lists(NUMBERS, min_size=1, max_size=40), cuts=st.lists(st.integers(1, 39), max_size=4, unique=True))
def test_a_pane_is_added_up_one_by_one(values: list[float | None], cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    found = folded([values[a:b] for a, b in pairwise(edges)])
    assert struct.pack("d", found) == bits(one_by_one(values))


def test_many_rows_are_added_up_one_by_one_too() -> None:
    """numpy's own sum, of pairs of pairs, would give other bits."""
    values = np.random.default_rng(1).normal(size=20_000).tolist()
    assert folded([values[:7_777], values[7_777:]]) == one_by_one(values) != float(np.sum(values))


def test_several_panes_at_once_do_not_mix() -> None:
    values = [0.1, 0.2, 0.3, 1e16, 1.0, -1e16]
    columns = Columns.of_rows(READINGS, [(value,) for value in values])
    segments = Segments(np.array([0, 1, 3]), np.array([1, 3, 6]))
    found = Summed("v", "f8").fold(columns, segments, np.array([0.5, 0.0, 0.25]), np.ones(3, bool))
    assert found.tolist() == [0.5 + 0.1, 0.2 + 0.3, ((0.25 + 1e16) + 1.0) - 1e16]
