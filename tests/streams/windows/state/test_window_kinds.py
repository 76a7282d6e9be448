"""Every kind of window, against its definition in naive.py."""

from __future__ import annotations

from typing import Any

import naive
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
    TIMED,
    batched,
    by_definition,
    drawn_rows,
    plain,
    run,
    run_fresh,
    specs,
    split_again,
)  # fmt: skip

from tidegate.streams.windows import open_state, window

ON: dict[str, list[str | None]] = {kind: ["at", "tick", "day"] for kind in TIMED} | {
    "landmark": ["at", "tick", "day", None]
}
FEW = settings(max_examples=15, deadline=None)
each_kind = pytest.mark.parametrize("kind", KINDS)
each_by = pytest.mark.parametrize("by", BY, ids=lambda by: "by " + ",".join(by) if by else "whole")


@each_by
@each_kind
@FEW
@given(data=st.data())
def test_windows_are_those_of_the_definition_however_rows_are_split(kind: str, by: tuple[str, ...], data: Any) -> None:
    on = data.draw(st.sampled_from(ON.get(kind, ["at", None])), "on")
    spec = data.draw(specs(kind, by, on), "spec")
    rows = data.draw(drawn_rows(ANY_ORDER if on is None else IN_ORDER), "rows")
    batches = data.draw(batched(rows), "batches")
    ran = run_fresh(spec, batches)
    assert ran == by_definition(spec, batches)
    if kind != "batches":
        other = data.draw(batched(rows), "other batches")
        assert run_fresh(spec, other) == ran
        assert run_fresh(spec, [(rows, 0)]) == ran
        assert run_fresh(spec, [([row], 0) for row in rows]) == ran


@each_by
@pytest.mark.parametrize("kind", TIMED)
@FEW
@given(data=st.data())
def test_without_a_column_time_is_arrival(kind: str, by: tuple[str, ...], data: Any) -> None:
    more = {"landmark": "4s", "slide": "2s"} if kind == "landmark" else {}
    spec = window("s", by=by, **more) if more else data.draw(specs(kind, by, None), "spec")
    rows = data.draw(drawn_rows(ANY_ORDER), "rows")
    batches = [batch for batch in data.draw(batched(rows, 7 * SECOND), "batches") if batch[0]]
    ran = run_fresh(spec, batches)
    assert ran == by_definition(spec, batches)
    assert run_fresh(spec, data.draw(split_again(batches), "split again")) == ran


@each_kind
@FEW
@given(data=st.data())
def test_a_slide_that_is_dropped_leaves_no_trace(kind: str, data: Any) -> None:
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY)), delay=None if kind in ("delta", "batches") else "2s"))
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER), "rows")), "batches")
    state = open_state(spec, EVENTS)
    fired: list[Any] = []
    for rows, now_us in batches:
        before = state.save()
        for _ in range(data.draw(st.integers(0, 2))):
            state.slide(rows[::-1], now_us)
        tried = state.slide(rows, now_us)
        assert state.save() == before
        assert [plain(w) for w in tried.windows] == [plain(w) for w in state.slide(rows, now_us).windows]
        fired.extend(plain(w) for w in tried.windows)
        tried.commit()
    assert fired == by_definition(spec, batches).fired


@each_by
@each_kind
@FEW
@given(data=st.data())
def test_a_saved_state_goes_on_elsewhere(kind: str, by: tuple[str, ...], data: Any) -> None:
    spec = data.draw(specs(kind, by, delay=None if kind in ("delta", "batches") else "3s"))
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER), "rows")), "batches")
    cut = data.draw(st.integers(0, len(batches)), "saved after")
    first = open_state(spec, EVENTS)
    before = run(first, batches[:cut])
    saved = first.save()
    assert isinstance(saved, bytes)
    second = open_state(spec, EVENTS)
    second.restore(saved)
    assert second.held() == first.held()
    assert second.save() == saved
    after, uninterrupted = run(second, batches[cut:]), run(first, batches[cut:])
    assert after == uninterrupted
    definition = by_definition(spec, batches)
    assert before.fired + after.fired == definition.fired
    assert before.late + after.late == definition.late


@each_by
@each_kind
@FEW
@given(data=st.data())
def test_a_state_holds_only_what_a_window_to_come_can_hold(kind: str, by: tuple[str, ...], data: Any) -> None:
    spec = data.draw(specs(kind, by, delay=None if kind in ("delta", "batches") else "3s"))
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER, 60), "rows")), "batches")
    state = open_state(spec, EVENTS)
    for pushed in range(len(batches)):
        run(state, batches[pushed : pushed + 1])
        outcome = naive.expected(spec, batches[: pushed + 1])
        shown = len(outcome.fired[-1].rows) if spec.plain and outcome.fired else 0  # SQL still reads the newest window
        assert state.held() <= len(outcome.open) + shown, f"after {pushed + 1} batches"


@each_by
@pytest.mark.parametrize("kind", ["count", "batches", "time", "session", "punctuated"])
@FEW
@given(data=st.data())
def test_no_row_is_lost(kind: str, by: tuple[str, ...], data: Any) -> None:
    """Windows that tile: each row is in one that fired, or held, or late."""
    options: dict[str, Any] = {
        "count": {"count": 3}, "batches": {"batches": 2}, "time": {"time": "3s"}, "session": {"session": "2s"},
        "punctuated": {"until": "mark"},
    }[kind]  # fmt: skip
    if kind != "batches":
        options |= {"on": "at", "delay": "1s", "late": data.draw(st.sampled_from(["drop", "adjust"]))}
    spec = window("s", by=by, **options)
    rows = data.draw(drawn_rows(ANY_ORDER), "rows")
    batches = data.draw(batched(rows), "batches")
    state = open_state(spec, EVENTS)
    ran = run(state, batches)
    held = len(naive.expected(spec, batches).open) if spec.plain else state.held()
    dropped = len(ran.late) if spec.late == "drop" else 0
    assert sum(len(w.rows) for w in ran.fired) + held + dropped == len(rows)
