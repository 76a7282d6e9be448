"""Windows of every kind as extents made by hand, functions over them, and every pattern there is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare import aggregates
from tidegate.streams.windows.declare.functions import Aggregates, Decomposed, Extent, Incremental, Whole
from tidegate.streams.windows.declare.kinds import WindowSpec, window
from tidegate.streams.windows.declare.patterns import (
    KeyFarm,
    PaneFarm,
    Pattern,
    Sequential,
    WindowFarm,
    WindowMapReduce,
)
from tidegate.streams.windows.state.columns import Columns

RELATION = Relation(
    "readings",
    (
        Column("at", column_type("BIGINT"), nullable=False),
        Column("patient", column_type("VARCHAR"), nullable=False),
        Column("v", column_type("DOUBLE"), nullable=True),
    ),
)
PATIENTS = ("ann", "bob", "cleo")

PATTERNS: tuple[Pattern, ...] = (
    Sequential(),
    KeyFarm(workers=2),
    KeyFarm(workers=3, active=True),
    WindowFarm(workers=2),
    WindowFarm(workers=3, active=True),
    PaneFarm(workers=2),
    WindowMapReduce(workers=2),
    KeyFarm(PaneFarm(workers=2), workers=2),
    KeyFarm(PaneFarm(workers=2), workers=2, active=True),
    WindowFarm(PaneFarm(workers=2), workers=2),
    KeyFarm(WindowMapReduce(workers=2), workers=2),
    WindowFarm(WindowMapReduce(workers=3), workers=2),
    WindowFarm(WindowMapReduce(workers=2), workers=2, active=True),
)

KINDS: dict[str, dict[str, Any]] = {
    "count": {"count": 60, "slide": 24},
    "hopping": {"count": 20, "slide": 30},
    "batches": {"batches": 4, "slide": 2},
    "time": {"time": 90, "slide": 30, "on": "at"},
    "landmark": {"landmark": 80, "slide": 20},
    "slide_by_tuple": {"time": 90, "slide_rows": 20, "on": "at"},
    "slide_by_time": {"count": 40, "slide_time": 50, "on": "at"},
    "delta": {"delta": 90.0, "slide": 40.0, "on": "at"},
    "session": {"session": 3, "on": "at"},
    "punctuated": {"until": "v"},
}


# ---- functions; at the top of a module, so that another process can import them


def summed(extent: Extent) -> tuple[float, int]:
    """Depends on the order of additions, so that a difference in panes would show."""
    present = extent["v"][~np.isnan(extent["v"])]
    return (float(np.cumsum(present)[-1]) if len(present) else 0.0, len(extent))


def added(panes: Sequence[tuple[float, int]]) -> tuple[float, int]:
    total = 0.0
    for one, _ in panes:
        total += one * 1.0000001
    return total, sum(count for _, count in panes)


def spread(extent: Extent) -> Any:
    return float(np.nanmax(extent["v"]) - np.nanmin(extent["v"])), len(extent.rows), extent.number


def folded(state: float, row: Any) -> float:
    return state * 0.5 + (row.v or 0.0)


def zero() -> float:
    return 0.0


def same(state: float) -> float:
    return state


def fails_on_three(extent: Extent) -> int:
    if extent.number == 3:
        raise KeyError("no third")
    return extent.number


def never_combined(panes: Sequence[Any]) -> Any:
    raise LookupError(f"combining {len(panes)}")


def sleeps_first(extent: Extent) -> int:
    """The first time, says that it has begun and then takes longer than anyone waits."""
    begun = Path(os.environ["PLAN_TEST_BEGUN"])
    if extent.number == 2 and not begun.exists():
        begun.touch()
        time.sleep(600)
    return extent.number


def where(extent: Extent) -> int:
    return os.getpid()


def dies_elsewhere(extent: Extent) -> int:
    """Kills the worker process that evaluates window 2."""
    if extent.number == 2 and os.environ.get("PLAN_TEST_MAIN") != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(extent)


WHOLE = Whole(spread, "spread DOUBLE, n BIGINT, number BIGINT")
DECOMPOSED = Decomposed(summed, added, "total DOUBLE, n BIGINT")
INCREMENTAL = Incremental(zero, folded, same, "folded DOUBLE")
NAMED = Aggregates(
    {"n": aggregates.Count(), "mean": aggregates.Mean("v"), "sd": aggregates.Stddev("v"), "last": aggregates.Last("v")}
)
FUNCTIONS = {"whole": WHOLE, "decomposed": DECOMPOSED, "incremental": INCREMENTAL, "aggregates": NAMED}


# ---- windows


def spec_of(kind: str, function: Any, pattern: Pattern | None = None, by: str = "patient") -> WindowSpec:
    return window("readings", **KINDS[kind], by=by, compute=function, pattern=pattern)


def columns_of(patient: str, rows: int) -> Columns:
    numbers = np.random.default_rng(PATIENTS.index(patient))
    at = np.cumsum(numbers.integers(0, 5, rows)).tolist()
    values = [None if i % 17 == 5 else v for i, v in enumerate(numbers.normal(100, 30, rows).tolist())]
    return Columns.of_rows(RELATION, [(t, patient, v) for t, v in zip(at, values, strict=True)])


def extents_of(spec: WindowSpec, rows: int = 240) -> list[Extent]:
    """Fired windows of three keys, one key after another within each number, cut into panes where the kind has some."""
    found = [extent for patient in PATIENTS for extent in _windows(spec, patient, columns_of(patient, rows))]
    return sorted(found, key=lambda extent: (extent.number, extent.key))


def _windows(spec: WindowSpec, patient: str, columns: Columns) -> Iterator[Extent]:
    x = np.arange(len(columns)) if spec.kind in ("count", "landmark") else columns["at"]
    if spec.kind == "batches":
        x = np.arange(len(columns)) // 10  # ten rows in each batch
    if spec.kind in ("count", "batches", "time", "landmark"):
        pane = spec.slide if spec.kind == "landmark" else int(np.gcd(spec.size, spec.slide))
        for number in range(int(x[-1]) // spec.slide + 1):
            low, high = number * spec.slide, number * spec.slide + spec.size
            if spec.kind == "landmark":
                low, high = number * spec.slide // spec.size * spec.size, (number + 1) * spec.slide
            first, last = np.searchsorted(x, [low, high]).tolist()
            if last > first and high <= x[-1] + 1:
                panes = x[first:last] // pane
                cuts = [0, *(np.flatnonzero(np.diff(panes)) + 1).tolist()]
                yield Extent(number, (patient,), low, high, columns.slice(first, last), cuts)
        return
    # kinds whose rows decide: any ranges will do, some that overlap and some that do not
    for number, (first, last) in enumerate([(0, 50), (20, 70), (60, 61), (61, 200), (199, 240)]):
        yield Extent(
            number, (patient,), int(columns["at"][first]), int(columns["at"][last - 1]), columns.slice(first, last)
        )


def panes_of(extents: Sequence[Extent], spec: WindowSpec) -> tuple[list[Extent], list[list[int]]]:
    """Each pane once, and for each window the places of its panes: what a state that keeps pane results would have."""
    pane = spec.slide if spec.kind == "landmark" else int(np.gcd(spec.size, spec.slide))
    panes: list[Extent] = []
    known: dict[Any, int] = {}
    places = []
    for extent in extents:
        mine = []
        assert extent.cuts is not None
        for low, high in zip(extent.cuts, [*extent.cuts[1:], len(extent)], strict=True):
            columns = extent.columns.slice(low, high)
            place = columns["at"].__array_interface__["data"][0]
            if place not in known:
                known[place] = len(panes)
                number = (extent.start + low) // pane if spec.kind != "time" else int(columns["at"][0]) // pane
                panes.append(Extent(number, extent.key, number * pane, (number + 1) * pane, columns))
            mine.append(known[place])
        places.append(mine)
    return panes, places
