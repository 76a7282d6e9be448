"""Windows against the definition: window w holds elements i with wS <= i < wS + W, and fires when full."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import window
from tidegate.streams.windows.state.tuples import TupleState

RELATION = Relation("s", (Column("n", column_type("BIGINT")),))


def extent_by_definition(elements: list[list[Any]], number: int, size: int, slide: int) -> tuple[Any, ...]:
    return tuple(row for element in elements[number * slide : number * slide + size] for row in element)


def fired_by_definition(count: int, size: int, slide: int) -> int:
    return sum(1 for w in range(count) if w * slide + size <= count)


@settings(max_examples=200, deadline=None)
@given(
    unit=st.sampled_from(["count", "batches"]),
    size=st.integers(1, 6),
    slide=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 9), max_size=12),
    aborted=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_window_slides_as_defined(unit: str, size: int, slide: int, sizes: list[int], aborted: list[bool]) -> None:
    slide = min(size, slide)
    buffer = TupleState(window("s", slide=slide, **{unit: size}), RELATION)
    elements: list[list[Any]] = []  # all that was committed, by the window's unit
    in_window: list[Any] = []
    next_row = 0
    for count, abort in zip(sizes, aborted, strict=False):
        rows = [(next_row + i,) for i in range(count)]
        next_row += count
        moved = buffer.slide(rows)
        if abort:
            continue  # a slide that is not committed leaves no trace
        fired_before = fired_by_definition(len(elements), size, slide)
        elements += [[row] for row in rows] if unit == "count" else [rows]
        fired = fired_by_definition(len(elements), size, slide)
        assert list(moved.fired) == list(range(fired_before, fired))
        assert moved.slid == (fired > fired_before)
        for number in moved.fired:
            assert moved.extent(number) == extent_by_definition(elements, number, size, slide)
        newest = extent_by_definition(elements, max(fired - 1, 0), size, slide)
        assert moved.rows == newest
        assert list(moved.added) == rows
        # what was in and what came in is what is in and what left, plus what waits for the next window
        start = max(fired - 1, 0) * slide
        held = [row for element in elements[start:] for row in element]
        assert sorted([*in_window, *rows]) == sorted([*held, *moved.expired])
        in_window = held
        moved.commit()


def test_a_sliding_count_window_drawn() -> None:
    buffer = TupleState(window("s", count=4, slide=2), RELATION)
    drawn = []
    for batch in ("ab", "c", "de", "fghi"):
        moved = buffer.slide([(letter,) for letter in batch])
        drawn.append(("".join(r for (r,) in moved.rows), list(moved.fired), "".join(r for (r,) in moved.expired)))
        moved.commit()
    assert drawn == [
        ("ab", [], ""),
        ("abc", [], ""),
        ("abcd", [0], ""),
        ("efgh", [1, 2], "abcd"),
    ]


def test_a_tumbling_window_over_batches() -> None:
    buffer = TupleState(window("s", batches=2), RELATION)
    fired = []
    for batch in ([1], [2, 2], [3], [4]):
        moved = buffer.slide([(n,) for n in batch])
        fired += [[n for (n,) in moved.extent(w)] for w in moved.fired]
        moved.commit()
    assert fired == [[1, 2, 2], [3, 4]]


def test_a_window_keeps_no_more_than_it_needs() -> None:
    buffer = TupleState(window("s", count=10, slide=1), RELATION)
    for i in range(500):
        buffer.slide([(i,), (i,)]).commit()
    assert len(buffer.elements) == 10


@pytest.mark.parametrize("options", [{"count": 5}, {"batches": 5}])
def test_the_default_slide_is_the_size(options: dict[str, int]) -> None:
    assert window("s", **options).slide == 5
