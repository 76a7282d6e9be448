"""Results are rows and columns alike: the same values, whoever made them, in whatever split the rows came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from window_cases import EVENTS, Drawn, rows_of

from tidegate import DataError, join, window
from tidegate import windows as w
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.declare.declared import open_window
from tidegate.streams.windows.state.columns import Columns

COMPUTE = {"n": w.count(), "mean": w.mean("x"), "peak": w.max("i"), "last_seen": w.max("seen")}
KINDS = {
    "numbers per pane": window("s", count=2, by="k", compute=COMPUTE),
    "many panes": window("s", count=35, slide=1, by=("k", "g"), compute=COMPUTE),
    "summaries": window("s", count=2, slide=1, by="k", compute={"middle": w.median("x"), "names": w.distinct("name")}),
    "a function": window("s", count=3, compute=w.whole(lambda extent: (len(extent), None), "n BIGINT, nothing DOUBLE")),
}


def slide_of(spec: Any, rows: int = 120) -> Any:
    drawn = [Drawn(n % 5, n % 3, n % 7 == 0, n % 8) for n in range(rows)]
    return open_state(spec, EVENTS).slide(rows_of(drawn, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_hold_what_rows_hold(kind: str) -> None:
    one, two = slide_of(KINDS[kind]), slide_of(KINDS[kind])
    results = one.results
    assert len(results) > 10
    names = type(results[0])._fields
    for place, name in enumerate(names):
        column, mask = two.results[name], two.results.columns.valid[name]  # asked for before any row was
        valid = np.ones(len(column), bool) if mask is None else mask
        expected = [row[place] for row in results]
        found = [v if ok else None for v, ok in zip(column.tolist(), valid.tolist(), strict=True)]
        assert found == expected, name
    table = two.results.to_arrow()
    assert [tuple(row.values()) for row in table.to_pylist()] == [tuple(row) for row in results]
    assert results == two.results == list(results)
    assert results[-1] == results[len(results) - 1]
    assert results[2:4] == tuple(results)[2:4]
    assert one.rows == tuple(results)


@pytest.mark.parametrize("kind", [{"count": 2}, {"batches": 1}, {"landmark": 4, "slide": 2}])
def test_values_of_a_column_without_nulls_are_counted(kind: dict[str, Any]) -> None:
    """Nothing else is computed of the column: its values are as many as the rows."""
    results = slide_of(window("s", compute={"n": w.count("small")}, **kind), 12).results
    assert [row.n for row in results] == [row.window_end - row.window_start for row in results] or kind == {
        "batches": 1
    }
    assert sum(row.n for row in results) in (12, 3 * (2 + 4))


def test_columns_of_one_batch_stay_as_they_were_when_the_next_one_is_in() -> None:
    state = open_state(KINDS["numbers per pane"], EVENTS)
    first = state.slide(rows_of([Drawn(0, n % 2, False, n % 8) for n in range(8)], 0))
    first.commit()
    state.slide(rows_of([Drawn(0, 2 - n % 3, False, 1) for n in range(30)], 0)).commit()
    assert [row.k for row in first.results] == first.results["k"].tolist()
    again = open_state(KINDS["numbers per pane"], EVENTS)
    assert first.results == list(again.slide(rows_of([Drawn(0, n % 2, False, n % 8) for n in range(8)], 0)).results)


def test_a_column_that_is_not_there_is_told() -> None:
    with pytest.raises(DataError, match="no column 'man'; did you mean 'mean'"):
        slide_of(KINDS["numbers per pane"]).results["man"]


def test_results_of_a_join_have_columns_too() -> None:
    sides = {name: Relation(name, (Column("at", column_type("BIGINT"), False), Column("v", column_type("DOUBLE"), False)))
             for name in ("a", "b")}  # fmt: skip
    spec = join("a", "b", left_time="at", right_time="at", within=1)
    state: Any = open_window(spec, sides)
    results = state.slide(([(1, 0.5), (9, 0.5)], [(1, 1.5), (9, 2.5)])).results
    assert len(results) == 1
    assert results["b_v"].tolist() == [row.b_v for row in results] == [1.5]


LEVELS = Relation("levels", (Column("v", column_type("DOUBLE"), nullable=False),))


@pytest.mark.parametrize("kind", ["count", "batches"])
def test_long_panes_add_up_to_the_same_bits_as_short_batches(kind: str) -> None:
    """Long runs are added up in another way than short ones."""
    values = np.random.default_rng(3).normal(0, 1e6, 12_000) ** 3
    values[[5_000, 11_000]] = -0.0, np.inf
    more = {"count": 4_000, "slide": 2_000} if kind == "count" else {"batches": 1}
    compute = {"total": w.sum("v"), "mean": w.mean("v"), "low": w.min("v")}

    def totals(size: int) -> list[Any]:
        state: Any = open_state(window("levels", compute=compute, **more), LEVELS)
        found = []
        for low in range(0, len(values), size):
            part = values[low : low + size]
            slide = state.slide(Columns(LEVELS, len(part), {"v": part}, {"v": None}))
            found += [tuple(row) for row in slide.results]
            slide.commit()
        return found

    expected = []
    for low in range(0, 12_000 - 3_999, 2_000) if kind == "count" else range(0, 12_000, 3_000):
        total = 0.0
        panes = [values[a : a + 2_000] for a in (low, low + 2_000)] if kind == "count" else [values[low : low + 3_000]]
        for pane in panes:
            one = 0.0
            for value in pane.tolist():
                one += value
            total += one
        expected.append(total)
    splits = (12_000, 700, 3_333) if kind == "count" else (3_000,)
    for size in splits:
        assert [row[3] for row in totals(size)] == expected
