"""How much memory a window holds: what the state says is what the allocator says."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidegate import join, window
from tidegate import windows as w
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.state.join_state import JoinState
from tidegate.streams.windows.state.sizes import SAMPLE, bytes_of

READINGS = Relation(
    "s",
    (
        Column("t", column_type("BIGINT"), nullable=False),
        Column("k", column_type("BIGINT"), nullable=False),
        Column("name", column_type("VARCHAR"), nullable=False),
        Column("v", column_type("DOUBLE"), nullable=False),
    ),
)
OTHER = Relation("o", READINGS.columns)
SUMS = {"total": w.sum("v"), "high": w.max("v")}


def rows(low: int, high: int) -> list[Any]:
    dice = random.Random(low)
    return [READINGS.row(n, 1_000 + n % 500, f"reading number {n}", dice.random()) for n in range(low, high)]


def of(**options: Any) -> Callable[[], Any]:
    return lambda: open_state(window("s", **options), READINGS)


STATES: dict[str, Callable[[], Any]] = {
    "rows by count": of(count=4_000),
    "rows by batches": of(batches=20),
    "few panes": of(time=4_000, slide=500, on="t", by="k", compute=SUMS),
    "many panes": of(time=4_000, slide=2, on="t", by="k", compute=SUMS),
    "many panes by count": of(count=1_000, slide=1, by="k", compute=SUMS),
    "landmark": of(landmark=5_000, slide=10, on="t", by="k", compute=SUMS),
    "pane summaries": of(time=4_000, slide=100, on="t", compute={"median": w.median("v")}),
    "columns": of(session=4_000, on="t", by="k"),
    "reorder buffer": of(time=10, on="t", delay=4_000, compute=SUMS),
    "join": lambda: JoinState(join("s", "o", on="k", within=4_000, left_time="t", right_time="t"), READINGS, OTHER),
}


def slid(state: Any, count: int) -> Any:
    for low in range(0, count, 200):
        new = rows(low, low + 200)
        state.slide((new, []) if isinstance(state, JoinState) else new).commit()
    return state


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_a_state_says_what_it_takes(make: Callable[[], Any]) -> None:
    slid(make(), 1_000)  # what is made once for all is made
    gc.collect()
    tracemalloc.start()
    try:
        state = make()
        empty, said = tracemalloc.get_traced_memory()[0], state.bytes_held()
        slid(state, 8_000)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - empty
    finally:
        tracemalloc.stop()
    assert taken > 20_000
    assert state.bytes_held() - said == pytest.approx(taken, rel=0.2)


def test_a_restored_state_takes_no_more() -> None:
    for make in (STATES["many panes"], STATES["columns"], STATES["rows by count"]):
        state, again = make(), make()
        state.slide(rows(0, 3_000)).commit()
        again.restore(state.save())
        assert again.held() == state.held()
        assert again.bytes_held() <= 1.2 * state.bytes_held()


def test_arrays_count_once_and_with_all_they_keep_alive() -> None:
    array = np.zeros(100_000)
    assert 800_000 <= bytes_of(array[:10], array[50:60].reshape(2, 5), [array]) <= 801_000


def test_many_objects_are_estimated_from_some() -> None:
    texts = [f"text {n:06}" for n in range(50 * SAMPLE)]
    assert bytes_of(texts) == pytest.approx(sum(map(bytes_of, texts)) + bytes_of([None] * len(texts)), rel=0.02)
    objects = np.fromiter(texts, object, len(texts))
    assert bytes_of(objects) == pytest.approx(bytes_of(texts), rel=0.02)


def test_nothing_takes_nothing() -> None:
    assert bytes_of(None, True) == 0
    assert bytes_of([], {}, ()) < 300
