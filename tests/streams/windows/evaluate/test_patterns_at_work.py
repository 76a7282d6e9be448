"""Every pattern and nesting on every kind, through the window's state: the same results, however rows are split."""

from __future__ import annotations

import random
from functools import partial
from math import gcd
from typing import Any

import numpy as np
import pytest
from plan_cases import DECOMPOSED, INCREMENTAL, KINDS, NAMED, PATIENTS, PATTERNS, RELATION

from tidegate.errors import DeclarationError
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare import aggregates
from tidegate.streams.windows.declare.functions import Aggregates, Extent, Whole
from tidegate.streams.windows.declare.patterns import KeyFarm, PaneFarm, Sequential, WindowFarm
from tidegate.streams.windows.evaluate.plan import Plan


def ends(extent: Extent) -> tuple[int, ...]:
    return len(extent), int(extent["at"][0]), int(extent["at"][-1]), extent.number


WHOLE = Whole(ends, "n BIGINT, first BIGINT, last BIGINT, number BIGINT")
SUMMARIES = Aggregates({"median": aggregates.Quantile("v", 0.5), "most": aggregates.TopK("at", 2)})
FUNCTIONS = {
    "whole": WHOLE, "decomposed": DECOMPOSED, "incremental": INCREMENTAL, "numbers": NAMED, "summaries": SUMMARIES,
}  # fmt: skip
ENDS = {"until": lambda row: row.at % 11 == 0}  # v of the other cases is no BOOLEAN


def in_parts(function: Any, parts: int, extent: Extent) -> Any:
    cut = [extent.columns.slice(i * len(extent) // parts, (i + 1) * len(extent) // parts) for i in range(parts)]
    return function.combine([function.pane(Extent(0, extent.key, 0, 0, columns)) for columns in cut if len(columns)])


def in_panes(pane: int, at: bool, extent: Extent) -> Any:
    """A window of this many rows (or ``at`` times) by panes that begin with it."""
    x = extent["at"] - extent.start if at else np.arange(len(extent))
    cut = [extent.columns.take(np.flatnonzero(x // pane == i)) for i in range(int(x[-1]) // pane + 1)]
    return DECOMPOSED.combine([DECOMPOSED.pane(Extent(0, (), 0, 0, columns)) for columns in cut if len(columns)])


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
        plan = Plan(spec, RELATION, keyed=False)
        larger = plan.by_pane and plan.farms > 1 and plan.pane == spec.size
        if (plan.parts or larger) and not plan.vectorised:
            divided = partial(in_parts, FUNCTIONS[function], plan.parts or 1)
            columns = ", ".join(f"{c.name} {c.type.sql}" for c in FUNCTIONS[function].returns(RELATION))
            plain = window("readings", **options, by=by, compute=Whole(divided, columns))
            assert found == results(plain, rows, [40]), pattern
        else:
            assert found == expected, pattern
        assert by or not isinstance(pattern, KeyFarm)
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("by", ["patient", ()], ids=["by patient", "whole"])
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"count": 12, "slide": 3},
        {"count": 12, "slide": 4},
        {"count": 6, "slide": 9},
        {"time": 24, "slide": 6, "on": "at"},
        {"time": 24, "slide": 6, "on": "at", "delay": 5},
        {"time": 10, "slide": 15, "on": "at"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_farm_of_pane_farms_gives_its_windows_in_its_larger_panes(options: Any, workers: int, by: Any) -> None:
    """Bit for bit what its windows give in panes of gcd(W, n·S) that begin with them, however rows are split."""
    rows = stream(300)
    pattern = WindowFarm(PaneFarm(2), workers=workers)
    spec = window("readings", **options, by=by, compute=DECOMPOSED, pattern=pattern)
    plain = Whole(partial(in_panes, gcd(spec.size, workers * spec.slide), spec.by_time), "total DOUBLE, n BIGINT")
    wanted = results(window("readings", **options, by=by, compute=plain), rows, [40])
    assert len(wanted) > 8
    for sizes in ([70, 1, 190], [7], [300]):
        assert sorted(results(spec, rows, sizes)) == sorted(wanted)
    assert results(spec, rows, [40]) == wanted


def test_the_state_of_a_farm_of_pane_farms_is_saved() -> None:
    rows = stream(200)
    spec = window(
        "readings", count=12, slide=3, by="patient", compute=DECOMPOSED, pattern=WindowFarm(PaneFarm(2), workers=3)
    )
    plan = Plan(spec, RELATION, keyed=False)
    state, again = open_state(spec, RELATION, plan), open_state(spec, RELATION, plan)
    state.slide(rows[:100]).commit()
    again.restore(state.save())
    assert again.contents() == state.contents()
    assert [*map(repr, again.slide(rows[100:]).results)] == [*map(repr, state.slide(rows[100:]).results)]
