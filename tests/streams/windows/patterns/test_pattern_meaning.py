"""What a pattern matches, in examples small enough to check by eye."""

from __future__ import annotations

from typing import Any

import pattern_cases as cases
import pytest

from tidegate import pattern
from tidegate.errors import DataError
from tidegate.streams.watermarks import END
from tidegate.streams.windows.patterns.state import PatternState

KINDS = {name: f"kind = '{name}'" for name in "abcdx"}


def events(text: str) -> list[Any]:
    """``a1 b2``: kind and v; times are places."""
    return [cases.EVENTS.conform((1, at, one[0], int(one[1:] or 0))) for at, one in enumerate(text.split())]


def opened(match: str, **options: Any) -> PatternState:
    within = options.pop("within", 100)
    used = {name: KINDS[name] for name in KINDS if name in match.replace("AND", "")}
    define = {**used, **options.pop("define", {})}
    return PatternState(
        pattern("ev", match=match, on="t", within=within, define=define, **options), {"ev": cases.EVENTS}
    )


def found(match: str, text: str, **options: Any) -> list[str]:
    state = opened(match, **options)
    slide = state.slide(tuple(events(text)))
    return [" ".join(f"{row.kind}{row.v}" for row in one.rows) for one in slide.matches]


def test_which_rows_a_match_may_pass_over() -> None:
    rows = "a1 a2 b1 x0 b2"
    assert found("SEQ(a, b)", rows, select="any") == ["a1 b1", "a2 b1", "a1 b2", "a2 b2"]
    assert found("SEQ(a, b)", rows, select="next") == ["a1 b1", "a2 b1"]
    assert found("SEQ(a, b)", rows, select="strict") == ["a2 b1"]


def test_where_the_next_match_may_begin() -> None:
    rows = "a1 a2 b1 a3 b2"
    assert found("SEQ(a, b)", rows) == ["a1 b1", "a2 b1", "a3 b2"]
    assert found("SEQ(a, b)", rows, after="past_last") == ["a1 b1", "a3 b2"]
    assert found("SEQ(a, b)", rows, select="any", after="to_next") == ["a1 b1", "a2 b1", "a3 b2"]
    assert found("SEQ(a, b, a)", "a1 b1 a2 b2 a3", after="to_last(a)") == ["a1 b1 a2", "a2 b2 a3"]


def test_a_row_that_is_consumed_serves_one_match() -> None:
    assert found("SEQ(a, b)", "a1 a2 b1 b2", select="any", consume="b") == ["a1 b1", "a1 b2"]
    assert found("SEQ(a, b)", "a1 a2 b1 b2", select="any", consume=["a", "b"]) == ["a1 b1", "a2 b2"]


def test_repeated_elements_and_aggregates_over_them() -> None:
    assert found("SEQ(a, b+, c)", "a1 b1 b2 c1") == ["a1 b1 b2 c1"]
    assert found("SEQ(a, b{2}, c)", "a1 b1 c1 b2 c2") == ["a1 b1 b2 c2"]
    larger = {"c": "kind = 'c' AND v > 2 * avg(b.v)"}
    assert found("SEQ(a, b+, c)", "a1 b1 b3 c4 c5", define=larger) == ["a1 b1 b3 c5"]


def test_a_rising_run() -> None:
    rising = {"b": "kind = 'b' AND v > prev(v)", "c": "kind = 'b' AND v < last(b.v)"}
    assert found("SEQ(a, b{2,}, c)", "a1 b2 b5 b7 b3", select="strict", define=rising) == ["a1 b2 b5 b7 b3"]


def test_negation_in_the_middle() -> None:
    assert found("SEQ(a, !x, b)", "a1 x0 b1 a2 b2") == ["a2 b2"]
    assert found("SEQ(a, !OR(x, c), b)", "a1 c0 b1 a2 b2") == ["a2 b2"]


def test_absence_comes_out_when_its_time_is_over_even_in_silence() -> None:
    state = opened("SEQ(a, !b)", within=3)
    state.slide(tuple(events("a1 c0")), 0).commit()
    assert state.held() == 1
    assert not state.slide((), 0, 2).matches
    late = state.slide((), 0, 3)
    assert [tuple(row) for row in late.results] == [(1, 0, 0)]
    assert late.slid
    late.commit()
    assert state.held() == 0
    assert not state.runs
    assert not state.dues


def test_what_times_out_is_told() -> None:
    state = opened("SEQ(a, b)", within=3, timeout=True)
    slide = state.slide(tuple(events("a1 a2 b1 a3")), 0)
    assert not slide.timed_out
    slide.commit()
    (over,) = state.slide((), 0, END).timed_out
    assert over.id is None
    assert [row.v for row in over["a"]] == [3]


def test_in_any_order_and_one_of_several() -> None:
    assert found("AND(a, b)", "a1 b1") == ["a1 b1"]
    assert found("SEQ(AND(a, b), c)", "b1 a1 c1") == ["b1 a1 c1"]
    assert found("SEQ(a, OR(b, c))", "a1 c1") == ["a1 c1"]


def test_conditions_are_functions_too() -> None:
    define = {"a": lambda row: row.kind == "a", "b": lambda row, bound: row.v == bound["a"][0].v}
    state = PatternState(pattern("ev", match="SEQ(a, b)", on="t", define=define), {"ev": cases.EVENTS})
    (match,) = state.slide(tuple(events("a1 b2 b1")), 0).matches
    assert [row.v for row in match.rows] == [1, 1]


def test_an_abort_leaves_nothing_behind() -> None:
    state = opened("SEQ(a, b)")
    state.slide(tuple(events("a1")), 0).commit()
    before = state.contents(), state.save(), state.held()
    undone = state.slide(tuple(events("c0 a2 b1")), 0)
    assert len(undone.matches) == 2
    assert (state.contents(), state.save(), state.held()) == before


def test_too_many_partial_matches_are_refused() -> None:
    state = opened("SEQ(a, b)", select="any", max_partials=3)
    with pytest.raises(DataError, match="4 partial matches, and max_partials=3"):
        state.slide(tuple(events("a1 a2 a3 a4")), 0)


def test_a_key_without_partial_matches_holds_nothing() -> None:
    state = opened("SEQ(a, b)", by="k", within=5)
    rows = [cases.EVENTS.conform((k, k, "a", 0)) for k in range(2_000)]
    state.slide(tuple(rows), 0).commit()
    assert len(state.runs) == 5  # all others are over
    assert len(state.dues) <= 5
    assert state.bytes_held() < 10_000
    for k in range(1_995, 2_000):
        state.slide((cases.EVENTS.conform((k, 2_000, "b", 0)),), 0).commit()
    assert state.held() == 0
    assert not state.dues


def test_memory_is_counted_once_for_rows_that_many_matches_share() -> None:
    one, many = opened("SEQ(a, b+, c)", select="any"), opened("SEQ(a, b+, c)", select="any")
    one.slide(tuple(events("a1 b1 b2")), 0).commit()
    many.slide(tuple(events("a1 b1 b2 b3 b4 b5")), 0).commit()
    assert many.held() == 32
    assert one.bytes_held() < many.bytes_held() < 16 * one.bytes_held()
