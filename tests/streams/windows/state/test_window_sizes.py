"""Windows of many panes, streams of many keys, batches of many rows: other ways through the code than small ones take."""

from __future__ import annotations

import math
import random
import tracemalloc
from typing import Any

import naive
import naive_aggregates as by_hand
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import Batches, results

import tidegate
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare.aggregates import (
    Aggregate,
    Count,
    Distinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Stddev,
    Sum,
    Variance,
)

READINGS = Relation(
    "s",
    (
        Column("at", column_type("BIGINT"), nullable=False),
        Column("k", column_type("INTEGER"), nullable=False),
        Column("v", column_type("DOUBLE")),
        Column("n", column_type("INTEGER"), nullable=False),
    ),
)
NUMERIC: dict[str, Aggregate] = {
    "rows": Count(), "values": Count("v"), "sum": Sum("v"), "mean": Mean("v"), "min": Min("v"), "max": Max("v"),
    "variance": Variance("v"), "stddev": Stddev("v"), "first": First("n"), "last": Last("n"), "sum_n": Sum("n"),
}  # fmt: skip
SUMMARIES: dict[str, Aggregate] = {"median": Quantile("v", 0.5), "distinct": Distinct("n"), "max": Max("v")}
SOME = settings(max_examples=8, deadline=None)


def stream(dice: random.Random, length: int, keys: int, step: int) -> list[Any]:
    """Rows whose time goes on by up to ``step``, now and then by far more."""
    rows, at = [], dice.choice([0, -1_000])
    for _ in range(length):
        at += dice.randrange(step + 1) if dice.random() < 0.98 else 50 * step
        value = None if dice.random() < 0.1 else dice.choice([dice.gauss(100, 5), float(dice.randrange(5)), -0.0])
        rows.append(READINGS.conform((at, dice.randrange(keys), value, dice.randrange(-9, 9))))
    return rows


def cut_up(dice: random.Random, rows: list[Any]) -> Batches:
    batches, place = [], 0
    while place < len(rows):
        size = dice.choice([0, 1, 5, 40, 300])
        batches.append((rows[place : place + size], 0))
        place += size
    return batches


def wanted(name: str, window: naive.Fired) -> Any:
    values, numbers = [r.v for r in window.rows], [r.n for r in window.rows]
    return {
        "rows": lambda: len(values),
        "values": lambda: len(by_hand.present(values)),
        "sum": lambda: by_hand.total(values),
        "mean": lambda: by_hand.mean(values),
        "min": lambda: by_hand.least(values),
        "max": lambda: by_hand.greatest(values),
        "variance": lambda: by_hand.variance(values),
        "stddev": lambda: by_hand.stddev(values),
        "first": lambda: numbers[0],
        "last": lambda: numbers[-1],
        "sum_n": lambda: sum(numbers),
        "median": lambda: by_hand.quantile(0.5)(values),
        "distinct": lambda: by_hand.distinct(numbers),
    }[name]()


def assert_as_defined(spec: Any, batches: Batches, found: list[Any]) -> None:
    fired = naive.expected(spec, batches).fired
    assert [tuple(row[: len(spec.by) + 3]) for row in found] == [(*w.key, w.number, w.start, w.end) for w in fired]
    for row, w in zip(found, fired, strict=True):
        scale = math.fsum(abs(r.v) for r in w.rows if r.v is not None) ** 2
        for name in spec.compute.named:
            right = wanted(name, w)
            assert by_hand.same(getattr(row, name), right, scale), (
                f"{name} of {w.number}: {getattr(row, name)}, {right}"
            )


@pytest.mark.parametrize("compute", [NUMERIC, SUMMARIES], ids=["fields", "summaries"])
@pytest.mark.parametrize("by", [(), ("k",)], ids=["whole", "by k"])
@pytest.mark.parametrize("kind", ["count", "time", "landmark", "landmark by count"])
@SOME
@given(seed=st.integers(0, 10**6), size=st.integers(20, 150), slide=st.integers(1, 9))
def test_windows_of_many_panes(kind: str, by: tuple[str, ...], compute: Any, seed: int, size: int, slide: int) -> None:
    dice = random.Random(seed)
    rows = stream(dice, dice.choice([30, 300]), 3, dice.choice([1, 4]))
    options: dict[str, Any] = {
        "count": {"count": size, "slide": slide},
        "time": {"time": size, "slide": slide, "on": "at"},
        "landmark": {"landmark": size // slide * slide + slide, "slide": slide, "on": "at"},
        "landmark by count": {"landmark": size // slide * slide + slide, "slide": slide},
    }[kind]
    spec = window("s", by=by, compute=compute, **options)
    batches = cut_up(dice, rows)
    found = results(spec, batches, READINGS)
    assert_as_defined(spec, batches, found)
    for other in ([(rows, 0)], cut_up(dice, rows)):
        assert list(map(repr, results(spec, other, READINGS))) == list(map(repr, found))


@pytest.mark.parametrize("compute", [NUMERIC, SUMMARIES], ids=["fields", "summaries"])
@pytest.mark.parametrize("kind", ["count", "time"])
@SOME
@given(seed=st.integers(0, 10**6))
def test_windows_of_many_panes_survive_abort_and_restore(kind: str, compute: Any, seed: int) -> None:
    dice = random.Random(seed)
    options: dict[str, Any] = {"count": {"count": 90, "slide": 2}, "time": {"time": 90, "slide": 2, "on": "at"}}[kind]
    spec = window("s", by="k", compute=compute, **options)
    batches = cut_up(dice, stream(dice, 400, 3, 2))
    state, found = open_state(spec, READINGS), []
    for rows, now_us in batches:
        before = state.save()
        state.slide(rows[::-1] if kind == "count" else rows[: len(rows) // 2], now_us)  # never committed
        assert state.save() == before
        if dice.random() < 0.3:
            state = open_state(spec, READINGS)
            state.restore(before)
        slide = state.slide(rows, now_us)
        found.extend(slide.results)
        slide.commit()
    assert list(map(repr, found)) == list(map(repr, results(spec, batches, READINGS)))


@pytest.mark.parametrize("compute", [None, NUMERIC, SUMMARIES], ids=["rows", "fields", "summaries"])
@pytest.mark.parametrize("kind", ["count", "batches", "time", "many panes", "session", "landmark"])
def test_thousands_of_keys_that_come_and_go(kind: str, compute: Any) -> None:
    options: dict[str, Any] = {
        "count": {"count": 2},
        "batches": {"batches": 2},
        "time": {"time": 20, "slide": 10, "on": "at"},
        "many panes": {"time": 66, "slide": 64, "on": "at"},
        "session": {"session": 5, "on": "at"},
        "landmark": {"landmark": 40, "slide": 10, "on": "at"},
    }[kind]
    spec = window("s", by="k", compute=compute, **options)
    dice = random.Random(kind)
    rows = [READINGS.conform((n // 10, n // 3 + dice.randrange(4), float(n % 7), n % 5)) for n in range(6_000)]
    batches: Batches = [(rows[i : i + 700], 0) for i in range(0, len(rows), 700)]
    state, found, most = open_state(spec, READINGS), [], 0
    for batch, now_us in batches:
        slide = state.slide(batch, now_us)
        found.extend(slide.results if compute else slide.windows)
        slide.commit()
        most = max(most, state.held())
    if kind != "count":  # there, a key waits for its second row for ever
        assert most <= 1_500
    if compute:
        assert_as_defined(spec, batches, found)
    else:
        fired = [(w.number, w.key, w.start, w.end, list(w.rows)) for w in naive.expected(spec, batches).fired]
        assert [(w.number, w.key, w.start, w.end, list(w.rows)) for w in found] == fired


# ---- very many panes


def test_the_memory_of_many_panes_follows_the_rows_and_is_told() -> None:
    tracemalloc.start()
    try:
        state = open_state(window("s", count=10**8, slide=1, by="k", compute={"n": Count(), "sum": Sum("v")}), READINGS)
        for i in range(10):
            state.slide(tuple(READINGS.conform((i, k, 0.5, i)) for k in range(3))).commit()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10_000_000
    assert 0.5 * taken < state.bytes_held() < 1.5 * taken


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 2**40, "slide": 1}, "each row would be in 1,099,511,627,776 windows.*larger slide"),
        ({"batches": 2**30, "slide": 1}, "each row would be in 1,073,741,824 windows"),
        ({"time": 2**30, "slide": 1, "on": "at"}, "each row would be in 1,073,741,824 windows"),
        ({"time": 2**30 + 1, "slide": 2**28, "on": "at"}, "a window would have 1,073,741,825.*divides the range"),
        ({"landmark": 2**30, "slide": 1, "on": "at"}, "each reset would be after 1,073,741,824 windows"),
        ({"count": 3, "slide": 2**61}, r"its slide is .*lengths go up to 2\*\*60"),
    ],
)
def test_windows_that_nothing_could_work_through_are_refused_when_declared(options: dict[str, Any], words: str) -> None:
    app = tidegate.App("impossible")
    app.stream("s", '"at" BIGINT NOT NULL, k INTEGER NOT NULL, v DOUBLE, n INTEGER NOT NULL', border=True)
    with pytest.raises(tidegate.errors.DeclarationError, match=f"procedure look: window wide.*{words}"):

        @app.procedure(inputs="s", windows={"wide": window("s", compute={"n": Count()}, **options)})
        def look(txn: Any, s: Any) -> None: ...

    assert app.procedures == {}


def test_long_windows_without_overlap_are_fine() -> None:
    state = open_state(window("s", count=2**40, by="k", compute={"n": Count()}), READINGS)
    state.slide(tuple(READINGS.conform((i, 1, 0.5, i)) for i in range(50))).commit()
    assert state.held() == 1
