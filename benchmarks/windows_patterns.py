"""What the parallel patterns of windows gain: panes instead of whole windows, and processes instead of this one.

Ratios are taken between two things measured in the same round, and every result is compared with the sequential one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.benchmarks.setting import setting
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.functions import Decomposed, Extent, Whole
from tidegate.streams.windows.declare.kinds import window
from tidegate.streams.windows.declare.patterns import PaneFarm, Sequential, WindowFarm
from tidegate.streams.windows.evaluate.local import HERE, PROCESSES, THREADS, LocalBackend
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.columns import Columns

Progress = Callable[[str], None]

SIGNAL = Relation("signal", (Column("v", column_type("DOUBLE"), nullable=False),))
PANE = 200
DEGREES = range(1, 25)
MANY_DEGREES = range(1, 49)


def features(extent: Extent) -> Any:
    """Polynomial features of the values, and products of them, each sorted: more than 1 ms for 200 rows."""
    values = extent["v"]
    powers = np.sort(np.stack([values**degree for degree in MANY_DEGREES]), axis=1)
    products = np.sort((powers[:, None] * powers[None, ::2]).reshape(-1, len(values)), axis=1)
    return powers.sum(axis=1), products.sum(axis=1)


def merged(panes: Sequence[Any]) -> tuple[float, float]:
    singles = sum(pane[0] for pane in panes)
    return float(singles.sum()), float(sum(pane[1] for pane in panes).max())


def smoothed(extent: Extent) -> tuple[float, float]:
    """Polynomial features of a long window, sorted: about 17 ms for 5,000 rows."""
    values = extent["v"]
    powers = np.sort(np.stack([values**degree for degree in DEGREES]), axis=1)
    return float(powers[:, len(values) // 2].sum()), float(np.diff(powers).max())


def length(extent: Extent) -> int:
    return len(extent)


DECOMPOSED = Decomposed(features, merged, "total DOUBLE, largest DOUBLE")
SMOOTHED = Whole(smoothed, "middle DOUBLE, step DOUBLE")
LENGTH = Whole(length, "n BIGINT")


def bench(rounds: int = 3, workers: int = 2, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Everything below, with the setting it was measured in."""
    figures: dict[str, Any] = {}
    for part in (pane_farming, heavy_windows):
        progress(str(part.__doc__).splitlines()[0])
        figures.update(part(rounds, workers))
    figures["correct"] = figures.pop("panes_correct") and figures.pop("heavy_correct")
    return {**figures, "rounds": rounds, "workers": workers, **setting()}


# ---- panes or whole windows


def pane_farming(
    rounds: int, workers: int, windows: int = 120, waiting: int = 60, per_window: int = 5
) -> dict[str, Any]:
    """Pane farming of a heavy decomposable function against window farming, W/S = 5."""
    columns = _signal((windows + per_window - 1) * PANE)
    backend = LocalBackend()
    whole, panes, alone = (
        Plan(
            window("signal", count=per_window * PANE, slide=PANE, compute=DECOMPOSED, pattern=pattern), SIGNAL, backend
        )
        for pattern in (WindowFarm(workers), PaneFarm(workers), Sequential())
    )
    began = time.process_time()
    expected = _by_window(alone, columns, windows, waiting, per_window)[1]
    windows_cpu_s = time.process_time() - began
    began = time.process_time()
    correct = _by_pane(alone, columns, windows, waiting, per_window)[1] == expected
    panes_cpu_s = time.process_time() - began
    times = []
    try:
        backend.warm(workers)
        for _ in range(rounds + 3):  # the first ones learn which way is fastest
            whole_s, one = _by_window(whole, columns, windows, waiting, per_window)
            panes_s, other = _by_pane(panes, columns, windows, waiting, per_window)
            correct = correct and one == other == expected
            times.append((whole_s, panes_s))
    finally:
        backend.close()
    del times[:-rounds]
    return {
        "pane_farming_speedup": round(statistics.median(w / p for w, p in times), 2),
        "pane_farming_aim": per_window * 0.7,
        "panes_speedup_one_worker": round(windows_cpu_s / panes_cpu_s, 2),
        "window_farming_ms_per_window": round(statistics.median(w for w, _ in times) / windows * 1e3, 2),
        "pane_farming_ms_per_window": round(statistics.median(p for _, p in times) / windows * 1e3, 2),
        "window_farming_in": whole.decisions["whole"].way,
        "pane_farming_in": panes.decisions["pane"].way,
        "panes_correct": correct,
    }


def _by_window(plan: Plan, columns: Columns, windows: int, waiting: int, per_window: int) -> tuple[float, list[Any]]:
    """Whole windows, several at a time."""
    cuts = list(range(0, per_window * PANE, PANE))
    found: list[Any] = []
    began = time.perf_counter()
    for first in range(0, windows, waiting):
        extents = [
            Extent(w, (), w * PANE, (w + per_window) * PANE, columns.slice(w * PANE, (w + per_window) * PANE), cuts)
            for w in range(first, min(first + waiting, windows))
        ]
        found += plan.whole(extents)
    return time.perf_counter() - began, found


def _by_pane(plan: Plan, columns: Columns, windows: int, waiting: int, per_window: int) -> tuple[float, list[Any]]:
    """Panes as they are completed, and the windows that end with them, as a window's state does it."""
    kept: list[Any] = []
    found: list[Any] = []
    began = time.perf_counter()
    for first in range(0, windows, waiting):
        last = min(first + waiting, windows)
        complete = [
            Extent(p, (), p * PANE, (p + 1) * PANE, columns.slice(p * PANE, (p + 1) * PANE))
            for p in range(len(kept), last + per_window - 1)
        ]
        kept += plan.panes(complete)
        nothing = columns.slice(0, 0)
        labels = [Extent(w, (), w * PANE, (w + per_window) * PANE, nothing) for w in range(first, last)]
        found += plan.combine(labels, [kept[w : w + per_window] for w in range(first, last)])
    return time.perf_counter() - began, found


# ---- this process, threads, processes


def heavy_windows(rounds: int, workers: int, windows: int = 40, rows: int = 5_000) -> dict[str, Any]:
    """Heavy functions of whole windows: in this process, in threads, in processes, and as measurement decides."""
    columns = _signal(rows + 100 * windows)
    extents = [Extent(w, (), w * 100, w * 100 + rows, columns.slice(w * 100, w * 100 + rows)) for w in range(windows)]
    backends = {way: LocalBackend(only=way) for way in (HERE, THREADS, PROCESSES)} | {"auto": LocalBackend()}
    plans = {way: _plan(SMOOTHED, workers, rows, backend) for way, backend in backends.items()}
    empty = _plan(LENGTH, workers, rows, backends[PROCESSES])
    expected = plans[HERE].whole(extents)
    times: dict[str, list[float]] = {way: [] for way in (*plans, "empty")}
    correct = True
    try:
        backends["auto"].warm(workers)
        for _ in range(3):  # until every way has been tried
            plans["auto"].whole(extents)
        for plan in (plans[PROCESSES], plans[THREADS], empty):
            plan.whole(extents)
        for _ in range(rounds):
            for way, plan in plans.items():
                began = time.perf_counter()
                correct = plan.whole(extents) == expected and correct
                times[way].append(time.perf_counter() - began)
            began = time.perf_counter()
            correct = empty.whole(extents) == [rows] * windows and correct
            times["empty"].append(time.perf_counter() - began)
        chosen = plans["auto"].decisions["whole"].way
    finally:
        for backend in backends.values():
            backend.close()
    middle = {way: statistics.median(found) for way, found in times.items()}
    return {
        "heavy_ms_per_window": round(middle[HERE] / windows * 1e3, 2),
        "threads_speedup": _ratio(times, THREADS),
        "processes_speedup": _ratio(times, PROCESSES),
        "auto_speedup": _ratio(times, "auto"),
        "auto_chose": chosen,
        "processes_round_trip_ms": round(middle["empty"] * 1e3, 2),
        "heavy_correct": correct,
    }


def _plan(function: Whole, workers: int, rows: int, backend: LocalBackend) -> Plan:
    spec = window("signal", count=rows, slide=100, compute=function, pattern=WindowFarm(workers))
    return Plan(spec, SIGNAL, backend)


def _ratio(times: dict[str, list[float]], way: str) -> float:
    return round(statistics.median(here / there for here, there in zip(times[HERE], times[way], strict=True)), 2)


def _signal(rows: int) -> Columns:
    values = np.random.default_rng(7).normal(1.0, 0.2, rows)
    return Columns(SIGNAL, rows, {"v": values}, {"v": None})
