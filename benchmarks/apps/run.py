"""Runs the applications: rows a second in batches of 1, 100 and 10,000, beside plain Python, and latency at a steady rate.

Throughput is processor time, the best of the rounds, in which plain Python and the engine alternate: other work on the
machine only ever makes it worse. Every run's results are compared with plain Python's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tidegate
from tidegate import Engine
from tidegate.benchmarks.apps import (
    algotrading,
    fraud_detection,
    linear_road,
    machine_outlier,
    nexmark,
    quotes_regression,
    skyline,
    spike_detection,
    traffic,
    voip,
    word_count,
    yahoo_streaming,
)
from tidegate.benchmarks.apps.case import Case, Rows, same
from tidegate.benchmarks.setting import setting

Progress = Callable[[str], None]
CASES: dict[str, Case] = {
    module.CASE.name: module.CASE
    for module in (
        spike_detection, fraud_detection, word_count, yahoo_streaming, linear_road, voip, traffic, machine_outlier,
        skyline, algotrading, quotes_regression, nexmark,
    )
}  # fmt: skip
SIZES = (1, 100, 10_000)
SINGLE = 10  # batches of one row: of every tenth part of the rows
SEED = 5


def bench(
    rows: int = 50_000,
    rounds: int = 3,
    rate: int = 10_000,
    only: Sequence[str] = (),
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """A line of figures for each application; ``correct``: all results were those of plain Python."""
    lines: dict[str, dict[str, Any]] = {}
    correct = True
    for name, case in CASES.items():
        if not only or name in only:
            progress(name)
            lines[name], right = measure(case, rows, rounds, rate)
            correct &= right
    return {"apps": lines, "correct": correct, "rows": rows, "rounds": rounds, "rate": rate, **setting()}


def measure(case: Case, count: int, rounds: int, rate: int) -> tuple[dict[str, Any], bool]:
    """The figures of one application, and whether its results were right each time."""
    given = case.rows(count, SEED)
    best: dict[Any, float] = {}
    right = True
    for _ in range(rounds):
        began = time.process_time()
        expected = case.plain(given)
        _keep(best, "plain", time.process_time() - began, count)
        for size in SIZES:
            mine = given[: count // SINGLE] if size == 1 else given
            wanted = expected if size > 1 else case.plain(mine)
            found, seconds = push(case, mine, size)
            right &= same(found, wanted)
            _keep(best, size, seconds, len(mine))
    taken_ms, found = steadily(case, given[:rate], rate)
    right &= same(found, case.plain(given[:rate]))
    figures: dict[str, Any] = {"plain_rows_per_s": round(1 / best["plain"])}
    figures |= {f"rows_per_s_by_{size}": round(1 / best[size]) for size in SIZES}
    figures["share_of_plain"] = round(best["plain"] / best[SIZES[-1]], 3)
    percentiles = statistics.quantiles(taken_ms, n=100, method="inclusive")
    return {**figures, "p50_ms": round(percentiles[49], 2), "p99_ms": round(percentiles[98], 2)}, right


def _keep(best: dict[Any, float], name: Any, seconds: float, rows: int) -> None:
    best[name] = min(best.get(name, seconds / rows), seconds / rows)


def push(case: Case, given: Rows, size: int) -> tuple[Rows, float]:
    """The results in the end, and the processor time of all batches."""
    with tidegate.open(case.app()) as engine:
        _prepare(case, engine)
        began = time.process_time()
        for low in range(0, len(given), size):
            engine.push(case.stream, given[low : low + size])
        seconds = time.process_time() - began
        return _found(case, engine), seconds


def steadily(case: Case, given: Rows, rate: int, size: int = 100) -> tuple[list[float], Rows]:
    """Milliseconds from when each batch was due to its end, at ``rate`` rows a second, and the results."""
    taken_ms = []
    with tidegate.open(case.app()) as engine:
        _prepare(case, engine)
        begun = time.perf_counter()
        for low in range(0, len(given), size):
            due = begun + low / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            engine.push(case.stream, given[low : low + size]).result()
            taken_ms.append((time.perf_counter() - due) * 1e3)
        return taken_ms, _found(case, engine)


def _prepare(case: Case, engine: Engine) -> None:
    for stream, rows in case.setup:
        engine.push(stream, rows).result()


def _found(case: Case, engine: Engine) -> Rows:
    return [tuple(row) for row in engine.query(case.found).rows]
