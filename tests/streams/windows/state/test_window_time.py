"""Event time: the reorder buffer, late rows, the watermark over several sources, watermarks that come with batches."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import (
    ANY_ORDER,
    BY,
    EVENTS,
    IN_ORDER,
    KINDS,
    SECOND,
    Batches,
    Ran,
    batched,
    by_definition,
    drawn_rows,
    run,
    run_fresh,
    specs,
    split_again,
)  # fmt: skip

import tidegate
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows import open_state, window

FEW = settings(max_examples=15, deadline=None)
each_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("batches", "delta")])


def at(seconds: float) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)


def row(number: int, seconds: float, source: str | None = None, quiet: bool = False) -> Any:
    tick = int(seconds)
    rest = (None, None, None, None, None, None, None, 0.0, 0, None)
    return EVENTS.conform((number, at(seconds), tick, at(seconds).date(), 0.0, source, None, False, quiet, *rest))


def ids(ran: Ran, name: str = "id") -> list[list[int]]:
    """Which rows are in each window that fired."""
    return [[int(r.split(f"{name}=")[1].split(",")[0]) for r in w.rows] for w in ran.fired]


# ---- the reorder buffer


@each_kind
@FEW
@given(data=st.data())
def test_disorder_within_the_delay_makes_no_difference(kind: str, data: Any) -> None:
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY)), delay="5s"), "spec")
    rows = data.draw(drawn_rows(IN_ORDER), "rows")
    lag = st.integers(0, 5)
    arrived = sorted(rows, key=lambda r: r.at + dt.timedelta(seconds=data.draw(lag)))
    in_order = sorted(arrived, key=lambda r: r.at)
    ran = run_fresh(spec, data.draw(batched(arrived), "batches"))
    assert ran.late == []
    assert ran == run_fresh(spec, [(in_order, 0)])
    assert ran == by_definition(spec, [(in_order, 0)])


def test_a_row_waits_until_none_before_it_can_come() -> None:
    spec = window("s", count=2, on="at", delay="2s")
    state = open_state(spec, EVENTS)
    assert ids(run(state, [([row(0, 1), row(1, 3)], 0)])) == []  # watermark 1 s: row 0 is there, row 1 waits
    assert ids(run(state, [([row(2, 2)], 0)])) == []
    assert ids(run(state, [([row(3, 6)], 0)])) == [[0, 2]]  # watermark 4 s: rows 2 and 1, in this order


# ---- late rows


@each_kind
@pytest.mark.parametrize("late", ["drop", "adjust"])
@FEW
@given(data=st.data())
def test_late_rows_are_told_and_treated_as_declared(kind: str, late: str, data: Any) -> None:
    delay = data.draw(st.sampled_from([None, "1s", "4s"]), "delay")
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY)), delay=delay, late=late), "spec")
    rows = data.draw(drawn_rows(ANY_ORDER), "rows")
    batches = data.draw(batched(rows), "batches")
    ran = run_fresh(spec, batches)
    assert ran == by_definition(spec, batches)
    assert run_fresh(spec, data.draw(batched(rows), "other batches")) == ran


@each_kind
@FEW
@given(data=st.data())
def test_a_late_row_can_abort_its_batch(kind: str, data: Any) -> None:
    spec = data.draw(specs(kind, (), delay="1s", late="raise"), "spec")
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER), "rows")), "batches")
    state = open_state(spec, EVENTS)
    accepted: Batches = []
    fired: list[Any] = []
    for batch in batches:
        if by_definition(spec, [*accepted, batch]).late:
            before = state.save()
            with pytest.raises(tidegate.DataError, match="late"):
                state.slide(*batch)
            assert state.save() == before
        else:
            fired.extend(run(state, [batch]).fired)
            accepted.append(batch)
    assert fired == by_definition(spec, accepted).fired


def test_lateness_is_judged_row_by_row() -> None:
    spec = window("s", time="2s", on="at", late="drop")
    one = run_fresh(spec, [([row(0, 1), row(1, 9), row(2, 5)], 0)])
    two = run_fresh(spec, [([row(0, 1)], 0), ([row(1, 9)], 0), ([row(2, 5)], 0)])
    assert one == two
    assert len(one.late) == 1
    assert ids(one) == [[0]]


def test_an_adjusted_row_counts_at_the_watermark() -> None:
    spec = window("s", time="2s", on="at", late="adjust")
    ran = run_fresh(spec, [([row(0, 1), row(1, 9), row(2, 5), row(3, 10)], 0)])
    assert ids(ran) == [[0], [1, 2]]
    assert len(ran.late) == 1


# ---- several sources


@each_kind
@FEW
@given(data=st.data())
def test_the_slowest_source_that_is_awake_holds_the_watermark(kind: str, data: Any) -> None:
    idle = data.draw(st.sampled_from([None, "1s", "4s"]), "idle")
    by = data.draw(st.sampled_from(BY))
    spec = data.draw(specs(kind, by, delay=data.draw(st.sampled_from([None, "2s"])), source="k", idle=idle), "spec")
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER, 60), "rows"), 3 * SECOND), "batches")
    batches = [batch for batch in batches if batch[0]]
    ran = run_fresh(spec, batches)
    assert ran == by_definition(spec, batches)
    assert run_fresh(spec, data.draw(split_again(batches), "split again")) == ran


def test_a_silent_source_is_left_out_after_a_while() -> None:
    spec = window("s", time="2s", on="at", source="k", idle="10s")
    state = open_state(spec, EVENTS)
    assert ids(run(state, [([row(0, 1, "a"), row(1, 1, "b")], 0)])) == []
    assert ids(run(state, [([row(2, 5, "a")], 10 * SECOND)])) == []  # b was heard 10 s ago: not longer
    assert ids(run(state, [([row(3, 5, "a")], 11 * SECOND)])) == [[0, 1]]  # the watermark is a's: 5 s
    ran = run(
        state, [([row(4, 3, "b"), row(5, 7, "a")], 12 * SECOND)]
    )  # b is back: late, and holds the watermark again
    assert len(ran.late) == 1
    assert ids(ran) == []
    assert ids(run(state, [([row(6, 6, "b")], 12 * SECOND)])) == [[2, 3]]


def test_a_source_that_speaks_again_is_not_late_because_it_was_silent() -> None:
    spec = window("s", time="2s", on="at", source="k", idle="10s")
    state = open_state(spec, EVENTS)
    run(state, [([row(0, 1, "b")], 0), ([row(1, 9, "a")], 5 * SECOND)])
    # nothing has come since b could be left out: it speaks before that shows
    ran = run(state, [([row(2, 2, "b")], 12 * SECOND)])
    assert ran.late == []


def test_the_watermark_never_goes_back() -> None:
    spec = window("s", time="1s", on="at", source="k")
    state = open_state(spec, EVENTS)
    run(state, [([row(0, 5, "a")], 0)])
    ran = run(state, [([row(1, 2, "b")], 0)])  # a new source that is behind: its row is late
    assert len(ran.late) == 1


# ---- watermarks that come with batches


@each_kind
@FEW
@given(data=st.data())
def test_a_watermark_moves_time_after_the_rows_of_its_batch(kind: str, data: Any) -> None:
    by = data.draw(st.sampled_from(BY))
    spec = data.draw(specs(kind, by, delay=data.draw(st.sampled_from(["1s", "6s"]))), "spec")
    rows = data.draw(drawn_rows(data.draw(st.sampled_from([IN_ORDER, ANY_ORDER]))), "rows")
    marks = st.sampled_from([None, None, 0, 3, 7, 12])
    batches: list[Any] = []
    for came, now_us in data.draw(batched(rows), "batches"):
        mark = data.draw(marks, "mark")
        batches.append((came, now_us) if mark is None else (came, now_us, mark * SECOND))
    if data.draw(st.booleans(), "ends"):
        batches.append(((), 0, END))
    ran = run_fresh(spec, batches)
    assert ran == by_definition(spec, batches)
    apart = [part for batch in batches for part in ([(*batch[:2],), ((), *batch[1:])] if batch[2:] else [batch])]
    assert run_fresh(spec, apart) == ran


@each_kind
@FEW
@given(data=st.data())
def test_nothing_that_is_still_to_fire_begins_before_what_is_held_back(kind: str, data: Any) -> None:
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY)), delay="1s", late="drop"), "spec")
    if spec.kind not in ("time", "landmark", "session", "slide_by_tuple", "slide_by_time") or spec.on is None:
        return
    state, promised = open_state(spec, EVENTS), NEVER
    batches: list[Any] = data.draw(batched(data.draw(drawn_rows(IN_ORDER), "rows")), "batches")
    for batch in [*batches, ((), 0, 12 * SECOND), ((), 0, END)]:
        slide = state.slide(*batch)
        for fired in slide.windows:
            begin = fired.start if spec.kind != "slide_by_tuple" else fired.end - spec.size
            assert begin >= promised
        assert slide.held_back() >= promised
        promised = slide.held_back()
        slide.commit()
        assert state.still().held_back() == promised
    assert promised == END


def test_a_watermark_fires_what_ends_before_it() -> None:
    spec = window("s", time="2s", on="at", delay="100s")
    batches: Any = [([row(0, 1), row(1, 3)], 0), ((), 0, 4 * SECOND), ([row(3, 3)], 0)]
    ran = run_fresh(spec, batches)
    assert ids(ran) == [[0], [1]]
    assert len(ran.late) == 1


# ---- time columns


@pytest.mark.parametrize("on", ["at", "day", "tick"])
def test_time_can_be_a_timestamp_a_date_or_an_integer(on: str) -> None:
    lengths: dict[str, Any] = {"time": 3, "slide": 1} if on == "tick" else {"time": "3d", "slide": "1d"}
    spec = window("s", on=on, **lengths)
    rows = [row(n, seconds) for n, seconds in enumerate([0, 86_400, 3 * 86_400, 9 * 86_400])]
    ticking = [r._replace(tick=r.tick // 86_400) for r in rows]
    assert ids(run_fresh(spec, [(ticking, 0)])) == [[0], [0, 1], [0, 1], [1, 2], [2], [2]]
