"""Windows of many panes: the same results as merging every pane each time, and the same bits in any split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import window
from tidegate import windows as w
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import WindowSpec, open_state
from tidegate.streams.windows.state import panes
from tidegate.streams.windows.state.blocks import BlockState
from tidegate.streams.windows.state.panes import PaneState
from tidegate.streams.windows.state.results import Results

READINGS = Relation(
    "s",
    (
        Column("t", column_type("BIGINT"), nullable=False),
        Column("k", column_type("BIGINT"), nullable=False),
        Column("v", column_type("DOUBLE"), nullable=False),
        Column("n", column_type("INTEGER")),
    ),
)
COMPUTE = {
    "rows": w.count(), "there": w.count("n"), "total": w.sum("v"), "whole": w.sum("n"), "mean": w.mean("v"),
    "low": w.min("n"), "high": w.max("v"), "spread": w.variance("v"), "begin": w.first("v"), "end": w.last("v"),
}  # fmt: skip


def results(state: Any, batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for rows in batches:
        state.slide(
            [(-1, 0, 0.5, None)] if rows and rows[0][0] >= 0 and state.spec.kind == "count" else rows
        )  # dropped
        slide = state.slide(rows)
        found.extend(tuple(row) for row in slide.results)
        slide.commit()
        again = type(state)(state.spec, READINGS, state.results)
        again.restore(state.save())
        state = again
    return found


@st.composite
def cases(draw: Any) -> tuple[WindowSpec, list[tuple[Any, ...]], list[int]]:
    slide = draw(st.integers(1, 3))
    size = slide * draw(st.integers(1, 12)) + draw(st.integers(0, 2))
    by: Any = draw(st.sampled_from([(), "k"]))
    kind = draw(st.sampled_from(["count", "batches", "time"]))
    more = {"on": "t"} if kind == "time" else {}
    spec = window("s", slide=slide, by=by, compute=COMPUTE, **{kind: size}, **more)
    count = draw(st.integers(0, 60))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 5, 40, 10**12]), min_size=count, max_size=count))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    rows = [
        (int(t), int(rng.integers(0, 3)), float(rng.normal()), None if rng.random() < 0.2 else int(rng.integers(-9, 9)))
        for t in np.cumsum(gaps)
    ]
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
    return spec, rows, cuts


def split(rows: list[tuple[Any, ...]], cuts: list[int]) -> list[list[tuple[Any, ...]]]:
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_blocks_give_what_panes_give(case: tuple[WindowSpec, list[tuple[Any, ...]], list[int]]) -> None:
    spec, rows, cuts = case
    batches = split(rows, cuts)
    found = results(BlockState(spec, READINGS, Results(spec, READINGS)), batches)
    wanted = results(PaneState(spec, READINGS, Results(spec, READINGS)), batches)
    labels = len(spec.by) + 3
    assert [row[:labels] for row in found] == [row[:labels] for row in wanted]
    for one, two in zip(found, wanted, strict=True):
        for a, b in zip(one[labels:], two[labels:], strict=True):
            assert a == b if a is None or b is None else a == pytest.approx(b, rel=1e-9, abs=1e-9)
    if spec.kind != "batches":
        other = results(BlockState(spec, READINGS, Results(spec, READINGS)), split(rows, [len(rows) // 3] * 2))
        assert other == found


def test_many_panes_are_kept_in_blocks_and_few_in_a_ring() -> None:
    few, many = (
        window("s", count=n, slide=1, compute=COMPUTE) for n in (panes.MERGED_DIRECTLY, panes.MERGED_DIRECTLY + 1)
    )
    assert type(open_state(few, READINGS)) is PaneState
    assert type(open_state(many, READINGS)) is BlockState
