"""Values in order, compared with a sorted list."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from typing import Any

import pytest

from tidegate.storage import ordered
from tidegate.storage.ordered import TOP, Ordered


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "SIZE", 3)


def gap(values: list[Any], bound: tuple[Any, bool]) -> int:
    return (bisect_right if bound[1] else bisect_left)(values, bound[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_same_as_a_sorted_list(seed: int) -> None:
    dice = random.Random(seed)
    made, expected = Ordered(dice.sample(range(100), 20)), set()
    made.fill(())
    for _ in range(600):
        value = dice.randrange(60)
        if dice.random() < (0.7 if len(expected) < 40 else 0.3):
            made.add(value)
            expected.add(value)
        else:
            made.discard(value)
            expected.discard(value)
        low, high = ((dice.randrange(-5, 65), dice.random() < 0.5) if dice.random() < 0.8 else None for _ in range(2))
        values = sorted(expected)
        part = values[0 if low is None else gap(values, low) : len(values) if high is None else gap(values, high)]
        most = dice.choice([None, 0, 1, 5])
        assert made.between(low, high, most) == part[:most]
        assert made.between(low, high, most, descending=True) == part[::-1][:most]
        assert len(made) == len(values)


def test_top_is_above_the_rest_of_every_tuple() -> None:
    made = Ordered((a, b) for a in range(5) for b in "xyz")
    assert made.between(((2,), False), ((2, TOP), False)) == [(2, "x"), (2, "y"), (2, "z")]
    assert made.between(((2, "y", TOP), False), ((3, "x", TOP), False)) == [(2, "z"), (3, "x")]
