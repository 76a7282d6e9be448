"""first_window, last_window and extent, against what an extent is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.streams.windows.declare.kinds import extent, first_window, last_window

MANY = settings(max_examples=400, deadline=None)
lengths = st.integers(1, 40)
places = st.one_of(st.integers(-200, 200), st.integers(-(2**60), 2**60))


@MANY
@given(w=places, size=lengths, slide=lengths)
def test_an_extent_is_w_slides_in_and_one_range_long(w: int, size: int, slide: int) -> None:
    low, high = extent(w, size, slide)
    assert low == w * slide
    assert high - low == size


@MANY
@given(x=places, size=lengths, slide=lengths)
def test_first_and_last_bound_exactly_the_windows_that_hold_x(x: int, size: int, slide: int) -> None:
    first, last = first_window(x, size, slide), last_window(x, slide)
    around = range(last - size // slide - 3, last + 4)
    holding = [w for w in around if extent(w, size, slide)[0] <= x < extent(w, size, slide)[1]]
    assert holding == list(range(first, last + 1))


@MANY
@given(x=places, size=lengths, slide=lengths)
def test_an_element_is_in_one_tumbling_window_and_in_at_most_one_hopping_one(x: int, size: int, slide: int) -> None:
    assert first_window(x, size, size) == last_window(x, size)
    held = last_window(x, slide) - first_window(x, size, slide) + 1
    if slide >= size:
        assert held in (0, 1)
        assert (held == 0) == (x % slide >= size)
    else:
        assert held in (size // slide, -(-size // slide))


@MANY
@given(xs=st.lists(st.integers(-(2**60), 2**60), max_size=20), size=lengths, slide=lengths)
def test_arrays_are_mapped_as_numbers_are(xs: list[int], size: int, slide: int) -> None:
    array = np.array(xs, "i8")
    assert first_window(array, size, slide).tolist() == [first_window(x, size, slide) for x in xs]
    assert last_window(array, slide).tolist() == [last_window(x, slide) for x in xs]
