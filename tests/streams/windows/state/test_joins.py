"""Joins of two streams against their definitions, in every interleaving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_joins import Event, Naive, Result

import tidegate
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.joins import JoinSpec, join
from tidegate.streams.windows.state.join_state import JoinState

FEW = settings(max_examples=60, deadline=None)
ANY_STEP = st.integers(-3, 5)
LEFT = Relation(
    "a",
    (
        Column("id", column_type("BIGINT"), nullable=False),
        Column("k", column_type("VARCHAR")),
        Column("g", column_type("INTEGER")),
        Column("t", column_type("BIGINT"), nullable=False),
    ),
)
RIGHT = Relation("b", (*LEFT.columns, Column("extra", column_type("DOUBLE"))))
KEYS = [("x", 1), ("x", 2), ("y", 1), (None, 1), ("x", None)]
ON: list[Any] = [(), "k", ("k", "g"), {"k": "k", "g": "g"}, {"g": "g"}]


def left(number: int, t: int, key: int = 0) -> Any:
    return LEFT.conform((number, *KEYS[key], t))


def right(number: int, t: int, key: int = 0) -> Any:
    return RIGHT.conform((number, *KEYS[key], t, number / 2))


def opened(spec: JoinSpec) -> JoinState:
    return JoinState(spec, LEFT, RIGHT)


def told(rows: list[Any]) -> list[tuple[Any, ...]]:
    """The result rows as (left id, right id, window start)."""
    return [(row.a_id, row.b_id, getattr(row, "window_start", None)) for row in rows]


def by_definition(spec: JoinSpec, results: list[Result]) -> list[tuple[Any, ...]]:
    return [
        (
            None if r.left is None else r.left.id,
            None if r.right is None else r.right.id,
            None if r.window is None else r.window * spec.slide,
        )
        for r in results
    ]


def run(state: JoinState, events: list[Event]) -> list[tuple[Any, ...]]:
    """Every other batch of the left stream, and the others of the right one, come as columns."""
    found = []
    for place, (one, two, now_us) in enumerate(events):
        sides = [one, two]
        sides[place % 2] = ColumnRows.of_rows(state.relations[place % 2], sides[place % 2])
        slide = state.slide(sides, now_us)
        found += told(slide.results or [])
        slide.commit()
    return found


@st.composite
def specs(draw: st.DrawFn, mode: str, **fixed: Any) -> JoinSpec:
    options: dict[str, Any] = {"on": draw(st.sampled_from(ON)), "mode": mode}
    small = st.integers(1, 6)
    kind = draw(st.sampled_from(["within", "before_after", "windows"]))
    if kind == "within":
        options["within"] = draw(st.integers(0, 6))
    elif kind == "before_after":
        options["within"] = (draw(st.integers(0, 6)), draw(st.integers(0, 6)))
    else:
        options |= {"time": draw(small), "slide": draw(small)}
    inner = mode == "best_effort" and kind == "windows"
    options["how"] = "inner" if inner else draw(st.sampled_from(["inner", "left", "full"]))
    options["delay"] = draw(st.sampled_from([None, 1, 4]))
    options["late"] = draw(st.sampled_from(["drop", "adjust"]))
    return join("a", "b", left_time="t", right_time="t", **{**options, **fixed})


@st.composite
def streams(draw: st.DrawFn, step: st.SearchStrategy[int] = ANY_STEP) -> tuple[list[Any], list[Any]]:
    """Rows of both streams, each with its own rhythm."""
    found: list[list[Any]] = []
    for make in (left, right):
        t, rows = draw(st.integers(-5, 5)), []
        for number in range(draw(st.integers(0, 14))):
            t += draw(step)
            rows.append(make(number, t, draw(st.integers(0, len(KEYS) - 1))))
        found.append(rows)
    return found[0], found[1]


@st.composite
def interleaved(draw: st.DrawFn, rows: tuple[list[Any], list[Any]]) -> list[Event]:
    """Both streams in batches, one of either or of both at a time."""
    events: list[Event] = []
    place, now_us = [0, 0], 0
    while place[0] < len(rows[0]) or place[1] < len(rows[1]):
        sizes = draw(st.sampled_from([(1, 0), (0, 1), (3, 0), (0, 4), (2, 2), (50, 0), (0, 50), (50, 50)]))
        parts = [rows[side][place[side] : place[side] + sizes[side]] for side in (0, 1)]
        place = [place[0] + len(parts[0]), place[1] + len(parts[1])]
        if parts[0] or parts[1]:
            events.append((parts[0], parts[1], now_us))
        now_us += draw(st.sampled_from([0, 1, 3]))
    return events


# ---- against the definitions


@pytest.mark.parametrize("mode", ["coordinated", "best_effort"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_results_are_those_of_the_definition_after_every_batch(mode: str, data: Any) -> None:
    spec = data.draw(specs(mode), "spec")
    events = data.draw(interleaved(data.draw(streams(), "streams")), "events")
    state, naive = opened(spec), Naive(spec)
    found: list[tuple[Any, ...]] = []
    for event in events:
        naive.take(event)
        found += run(state, [event])
        assert found == by_definition(spec, naive.results())
    assert (state.fired, state.late) == (len(found), len(naive.late))
    assert [row for _, row in state.late_rows] == naive.late


@FEW
@given(data=st.data())
def test_a_silent_stream_is_not_waited_for_when_declared_so(data: Any) -> None:
    idle = data.draw(st.integers(1, 3), "idle")
    spec = data.draw(specs("coordinated"), "spec")
    spec = JoinSpec(**{**{f: getattr(spec, f) for f in spec.__dataclass_fields__}, "idle_us": idle})
    events = data.draw(interleaved(data.draw(streams(), "streams")), "events")
    state, naive = opened(spec), Naive(spec)
    found: list[tuple[Any, ...]] = []
    for event in events:
        naive.take(event)
        found += run(state, [event])
        assert found == by_definition(spec, naive.results())
    assert state.late == len(naive.late)


# ---- what must not matter


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_coordinated_results_do_not_depend_on_the_interleaving(data: Any) -> None:
    """Two interleavings, two ways to cut batches, and disorder within the delay: the same results in the same order."""
    spec = data.draw(specs("coordinated", delay=4), "spec")
    rows = data.draw(streams(st.integers(1, 4)), "streams")
    flush = ([left(99, 1_000, 4)], [right(99, 1_000, 4)], 0)
    outcomes = []
    for _ in range(2):
        lags = [{r.id: data.draw(st.integers(0, 4)) for r in side} for side in rows]
        shuffled = [sorted(side, key=lambda r, lag=lag: r.t + lag[r.id]) for side, lag in zip(rows, lags, strict=True)]
        events = data.draw(interleaved((shuffled[0], shuffled[1])), "events")
        state = opened(spec)
        found = run(state, [*events, flush])
        assert state.late == 0
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


@FEW
@given(data=st.data())
def test_best_effort_depends_on_arrival_but_not_on_batches(data: Any) -> None:
    spec = data.draw(specs("best_effort"), "spec")
    events = data.draw(interleaved(data.draw(streams(), "streams")), "events")
    one_by_one: list[Event] = []
    for ones, twos, now_us in events:
        one_by_one += [([row], [], now_us) for row in ones] + [([], [row], now_us) for row in twos]
    assert run(opened(spec), events) == run(opened(spec), one_by_one)


# ---- transactions and checkpoints


@pytest.mark.parametrize("mode", ["coordinated", "best_effort"])
@FEW
@given(data=st.data())
def test_a_slide_that_is_not_committed_leaves_no_trace(mode: str, data: Any) -> None:
    spec = data.draw(specs(mode), "spec")
    events = data.draw(interleaved(data.draw(streams(), "streams")), "events")
    state = opened(spec)
    committed = []
    for event in events:
        before = state.save()
        slide = state.slide(event[:2], event[2])
        assert state.save() == before
        if data.draw(st.booleans()):
            slide.commit()
            committed.append(event)
    again = opened(spec)
    run(again, committed)
    assert state.contents() == again.contents()


@pytest.mark.parametrize("mode", ["coordinated", "best_effort"])
@FEW
@given(data=st.data())
def test_a_restored_join_goes_on_where_it_was(mode: str, data: Any) -> None:
    spec = data.draw(specs(mode), "spec")
    events = data.draw(interleaved(data.draw(streams(), "streams")), "events")
    cut = data.draw(st.integers(0, len(events)))
    state = opened(spec)
    found = run(state, events[:cut])
    restored = opened(spec)
    restored.restore(state.save())
    assert restored.contents() == state.contents()
    assert (restored.fired, restored.late, restored.watermark) == (state.fired, state.late, state.watermark)
    assert list(restored.late_rows) == list(state.late_rows)
    assert found + run(restored, events[cut:]) == run(opened(spec), events)


def test_late_rows_can_abort_the_batch() -> None:
    state = opened(join("a", "b", on="k", within=2, left_time="t", right_time="t", late="raise"))
    run(state, [([left(0, 10)], [], 0)])
    before = state.save()
    with pytest.raises(tidegate.DataError, match=r"1 row\(s\) of a came too late.*3 units behind.*delay="):
        state.slide(([left(1, 7)], []), 0)
    assert state.save() == before


# ---- how much is held


def test_only_what_can_still_match_is_held() -> None:
    for mode in ("coordinated", "best_effort"):
        state = opened(join("a", "b", on="k", within=5, left_time="t", right_time="t", mode=mode))
        most = 0
        for t in range(300):
            run(state, [([left(t, t)], [], 0), ([], [right(t, t)], 0)])
            most = max(most, state.held())
        assert most <= 14
        assert len(state._codes) < 10


def test_keys_that_nobody_has_any_more_are_forgotten() -> None:
    relation = Relation("a", (Column("k", column_type("BIGINT")), Column("t", column_type("BIGINT"), nullable=False)))
    other = Relation("b", relation.columns)
    state = JoinState(join("a", "b", on="k", within=5, left_time="t", right_time="t"), relation, other)
    for t in range(0, 6_000, 20):
        rows = [relation.conform((t + i, t + i)) for i in range(20)]
        state.slide((rows, [other.conform(tuple(row)) for row in rows]), 0).commit()
    assert len(state._codes) < 1_200
    assert state.fired >= 5_980


def test_a_stalled_stream_is_held_for_when_coordinated_and_not_when_best_effort() -> None:
    for mode, held in (("coordinated", 200), ("best_effort", 6)):
        state = opened(join("a", "b", on="k", within=5, left_time="t", right_time="t", mode=mode))
        run(state, [([left(t, t)], [], 0) for t in range(200)])
        assert state.held() == held


def test_rows_without_a_key_are_held_only_to_come_out_alone() -> None:
    inner = opened(join("a", "b", on="k", within=5, left_time="t", right_time="t"))
    outer = opened(join("a", "b", on="k", within=5, left_time="t", right_time="t", how="left"))
    for state, found in ((inner, []), (outer, [(1, None, None)])):
        events: list[Event] = [([left(1, 0, 3)], [right(1, 0, 3)], 0), ([left(2, 50)], [right(2, 50)], 0)]
        assert run(state, events) == found
    assert inner.held() == 2


# ---- many rows


@pytest.mark.parametrize("mode", ["coordinated", "best_effort"])
def test_many_rows_give_what_duckdb_gives(mode: str) -> None:
    import duckdb

    rng = np.random.default_rng(5)
    n = 30_000
    a = [
        LEFT.conform((i, f"k{key}", None, t))
        for i, (key, t) in enumerate(zip(rng.integers(0, 500, n), range(n), strict=True))
    ]
    b = [
        RIGHT.conform((i, f"k{key}", None, t, None))
        for i, (key, t) in enumerate(zip(rng.integers(0, 500, n), range(n), strict=True))
    ]
    state = opened(join("a", "b", on="k", within=400, left_time="t", right_time="t", mode=mode))
    events: list[Event] = []
    for start in range(0, n, 3_000):
        events += [(a[start : start + 3_000], [], 0), ([], b[start : start + 3_000], 0)]
    events.append(([LEFT.conform((-1, None, None, 10**6))], [RIGHT.conform((-1, None, None, 10**6, None))], 0))
    found = run(state, events)
    arrow = [pa_table(rows) for rows in (a, b)]
    connection = duckdb.connect()
    connection.register("l", arrow[0])
    connection.register("r", arrow[1])
    expected = connection.execute(
        "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k AND abs(l.t - r.t) <= 400 "
        "ORDER BY greatest(l.t, r.t), l.t, l.id, r.t, r.id"
    ).fetchall()
    pairs = [(one, two) for one, two, _ in found]
    if mode == "coordinated":
        assert pairs == expected
    else:  # within 3,000 the streams are further apart than 400: what has been forgotten is not matched
        assert set(pairs) < set(expected)
        assert len(set(pairs)) == len(pairs) > 0


def pa_table(rows: list[Any]) -> Any:
    import pyarrow as pa

    return pa.table({"id": [r.id for r in rows], "k": [r.k for r in rows], "t": [r.t for r in rows]})


# ---- columns of the result


def columns_of(**options: Any) -> list[tuple[str, str, bool]]:
    state = opened(join("a", "b", left_time="t", right_time="t", within=1, **options))
    return [(c.name, c.type.sql, c.nullable) for c in state.output.relation.columns]


def test_columns_of_both_sides_those_joined_on_once() -> None:
    assert [name for name, _, _ in columns_of(on="k")] == ["a_id", "k", "a_g", "a_t", "b_id", "b_g", "b_t", "extra"]
    assert [name for name, _, _ in columns_of(on={"k": "k", "g": "g"})] == [
        "a_id",
        "k",
        "g",
        "a_t",
        "b_id",
        "b_t",
        "extra",
    ]
    assert ("b_id", "BIGINT", True) in columns_of(on="k", how="left")
    assert ("a_id", "BIGINT", False) in columns_of(on="k", how="left")
    assert ("a_id", "BIGINT", True) in columns_of(on="k", how="full")


def test_columns_can_be_chosen_and_named() -> None:
    assert columns_of(on="k", select=["k", "b.id", "extra"]) == [
        ("k", "VARCHAR", True),
        ("b_id", "BIGINT", False),
        ("extra", "DOUBLE", True),
    ]
    assert [name for name, _, _ in columns_of(on="k", select={"order": "a.id", "paid": "b.t"})] == ["order", "paid"]


def test_a_column_joined_on_is_that_of_the_row_that_is_there() -> None:
    state = opened(join("a", "b", on="k", within=1, left_time="t", right_time="t", how="full", select=["k", "b_id"]))
    run_on = [([left(1, 0)], [right(5, 9, 2)], 0), ([left(2, 99)], [right(6, 99)], 0)]
    rows = []
    for one, two, now_us in run_on:
        slide = state.slide((one, two), now_us)
        rows += [tuple(row) for row in slide.results or []]
        slide.commit()
    assert rows == [("x", None), ("y", 5)]


# ---- refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of within= .* and time="),
        ({"within": 1, "time": 2}, "exactly one of within="),
        ({"within": 1, "slide": 2}, "slide= goes with time="),
        ({"within": -1}, "within must be at least 0"),
        ({"within": (1, 2, 3)}, r"two \(before, after\)"),
        ({"within": 1, "delay": "3s"}, "use one of the two throughout"),
        ({"within": 1, "how": "right"}, "how must be 'inner' or 'left' or 'full', got 'right'"),
        ({"within": 1, "mode": "fast"}, "mode must be 'coordinated' or 'best_effort'"),
        ({"within": 1, "late": "keep"}, "late must be 'drop'"),
        ({"within": 1, "mode": "best_effort", "idle": "1s"}, "no side waits for a silent stream"),
        ({"time": 1, "mode": "best_effort", "how": "left"}, "only mode='coordinated' can tell"),
        ({"within": 1, "select": "id"}, "select lists columns"),
        ({"within": 1, "select": ["nothing"]}, "select names 'nothing'; there are a_id, .*extra"),
        ({"within": 1, "select": {"x": "a.id", "y": "b.extra", "z": "c.id"}}, "select names 'c.id'"),
        ({"within": 1, "select": ["a.id", "a_id"]}, "two columns of the result would be called a_id"),
        ({"within": 1, "on": "missing"}, "names column 'missing'; stream a has id, k, g, t"),
        ({"within": 1, "on": {"k": "g"}}, "a.k is VARCHAR and b.g is INTEGER"),
        ({"within": 1, "on": {"k": "extra"}}, "must be of one type that can be a key"),
        ({"within": 1, "left_time": "k"}, "a.k is VARCHAR; a time must be"),
        ({"within": 1, "left_time": "g"}, "g may be NULL; declare it NOT NULL in stream a"),
        ({"within": "1s"}, "a.t is BIGINT, so lengths are whole numbers"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(tidegate.DeclarationError, match=text):
        opened(join("a", "b", **{"left_time": "t", "right_time": "t", **options}))


def test_a_stream_is_not_joined_with_itself() -> None:
    with pytest.raises(tidegate.DeclarationError, match="joined with itself"):
        join("a", "a", within=1, left_time="t", right_time="t")


def test_how_it_reads() -> None:
    told = str(join("a", "b", on={"k": "key"}, time="10s", slide="5s", left_time="t", right_time="u", how="full"))
    assert told == "full join on k = key in windows of 10s slide 5s of t and u"
    told = str(join("a", "b", within=("0s", "3s"), left_time="t", right_time="u", mode="best_effort"))
    assert told == "inner join from 0us before to 3s after of t and u best effort"
