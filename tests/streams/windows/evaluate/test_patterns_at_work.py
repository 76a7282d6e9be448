"""Every pattern and nesting on every kind, through the window's state: the same results, however rows are split."""

from __future__ import annotations

import random
from typing import Any

import pytest
from plan_cases import DECOMPOSED, INCREMENTAL, KINDS, NAMED, PATIENTS, PATTERNS, RELATION

from tidegate.errors import DeclarationError
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare import aggregates
from tidegate.streams.windows.declare.functions import Aggregates, Extent, Whole
from tidegate.streams.windows.declare.patterns import KeyFarm, Sequential
from tidegate.streams.windows.evaluate.plan import Plan


def ends(extent: Extent) -> tuple[int, ...]:
    return len(extent), int(extent["at"][0]), int(extent["at"][-1]), extent.number


WHOLE = Whole(ends, "n BIGINT, first BIGINT, last BIGINT, number BIGINT")
SUMMARIES = Aggregates({"median": aggregates.Quantile("v", 0.5), "most": aggregates.TopK("at", 2)})
FUNCTIONS = {
    "whole": WHOLE, "decomposed": DECOMPOSED, "incremental": INCREMENTAL, "numbers": NAMED, "summaries": SUMMARIES,
}  # fmt: skip
ENDS = {"until": lambda row: row.at % 11 == 0}  # v of the other cases is no BOOLEAN


def stream(length: int) -> list[tuple[Any, ...]]:
    """Three patients in turn at random; time goes on, now and then far enough to end a session."""
    dice, at, rows = random.Random(4), 0, []
    for _ in range(length):
        at += dice.choice([0, 0, 1, 1, 1, 2, 9])
        rows.append((at, dice.choice(PATIENTS), None if dice.random() < 0.05 else round(dice.gauss(100, 30), 3)))
    return rows


def results(spec: Any, rows: list[Any], sizes: list[int]) -> list[str]:
    state, found, place = open_state(spec, RELATION, Plan(spec, RELATION, keyed=False)), [], 0
    while place < len(rows):
        size = sizes[len(found) % len(sizes)]
        slide = state.slide(rows[place : place + size])
        found.extend(map(repr, slide.results))
        slide.commit()
        place += size
    return found


@pytest.mark.parametrize("by", ["patient", ()], ids=["by patient", "whole"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_gives_what_sequential_gives(kind: str, function: str, by: Any) -> None:
    options = KINDS[kind] | (ENDS if kind == "punctuated" else {})
    rows, compared = stream(400), 0
    alone = window("readings", **options, by=by, compute=FUNCTIONS[function], pattern=Sequential())
    expected = results(alone, rows, [40])
    assert len(expected) >= 4
    for pattern in PATTERNS:
        spec = window("readings", **options, by=by, compute=FUNCTIONS[function], pattern=pattern)
        try:
            found = results(spec, rows, [40] if kind == "batches" else [70, 1, 190])
        except DeclarationError:  # test_patterns.py has what is refused, and how
            continue
        assert found == expected, pattern
        assert by or not isinstance(pattern, KeyFarm)
        compared += 1
    assert compared >= 2
