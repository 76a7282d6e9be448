"""Windows: end to end (:mod:`.windows_engine`), and the window state alone, beside numpy, DuckDB and plain Python.

The others have all the data at once; the state takes it in batches.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tidegate import window
from tidegate import windows as w
from tidegate.benchmarks.setting import setting
from tidegate.benchmarks.windows_patterns import bench as bench_patterns
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import WindowSpec, WindowState, open_state
from tidegate.streams.windows.state.columns import Array, Columns

Progress = Callable[[str], None]

READINGS = Relation(
    "readings",
    (
        Column("at", column_type("TIMESTAMP"), nullable=False),
        Column("sensor", column_type("BIGINT"), nullable=False),
        Column("value", column_type("DOUBLE"), nullable=False),
    ),
)
BATCH = 10_000
SENSORS = 100
SIZE, SLIDE = 1_000, 200  # rows of one sensor
SECONDS, EVERY = 10, 1  # of event time, at 10,000 rows a second
WIDTHS = (100, 1_000, 10_000, 100_000)
TENTHS = 10
PEER_ROWS = 500_000  # for plain Python, which would take long


def bench(
    rows: int = 5_000_000, rounds: int = 3, peers: bool = False, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """Everything below, with the setting it was measured in. ``peers``: beside other systems, too."""
    from tidegate.benchmarks.windows_engine import bench as bench_engine

    sensor, value = _data(rows)
    at = event_times(rows)
    figures: dict[str, Any] = {"rows": rows, "batch_rows": BATCH}
    figures |= bench_engine(min(rows, PEER_ROWS), rounds, progress)
    contenders: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[[], tuple[Any, ...]], int]] = {
        "": (lambda: _run(by_count(SIZE, SLIDE), at, sensor, value), lambda: _run(by_time(), at, sensor, value), rows),
        "rows_": (
            lambda: _run(by_count(SIZE, SLIDE), at, sensor, value, as_rows=True),
            lambda: _run(by_time(), at, sensor, value, as_rows=True),
            rows,
        ),
        "numpy_": (lambda: numpy_count(sensor, value), lambda: numpy_time(at, value), rows),
        "duckdb_": (lambda: duckdb_count(sensor, value), lambda: duckdb_time(at, value), rows),
        "python_": (
            lambda: python_count(sensor[:PEER_ROWS], value[:PEER_ROWS]),
            lambda: python_time(value[:PEER_ROWS]),
            min(rows, PEER_ROWS),
        ),
    }
    clocks: dict[str, list[Clock]] = {}
    for number in range(rounds):
        answers: dict[str, list[tuple[Any, ...]]] = {"count": [], "time": []}
        for name, (count, timed, size) in contenders.items():
            progress(f"round {number + 1}: {name.rstrip('_') or 'tidegate'}")
            for kind, run in (("count", count), ("time", timed)):
                clock = Clock()
                answer = run()
                clocks.setdefault(f"{name}{kind}", []).append(clock.stopped(size))
                if size == rows:
                    answers[kind].append(answer)
        clock = Clock()
        answers["count"].append(numpy_count(sensor, value, "i8"))
        clocks.setdefault("numpy_plain_count", []).append(clock.stopped(rows))
        for found in answers.values():
            figures["correct"] &= all(_same(found[0], other) for other in found[1:])
    for name, taken in clocks.items():
        figures[f"{name}_rows_per_s"] = round(1 / statistics.median(clock.wall_s for clock in taken))
    for kind in ("count", "time"):
        figures[f"{kind}_share_of_numpy"] = _share(clocks[f"numpy_{kind}"], clocks[kind])
    figures["count_share_of_plain_numpy"] = _share(clocks["numpy_plain_count"], clocks["count"])
    figures |= flatness(2 * rounds, progress)  # a ratio of small differences
    if peers:
        from tidegate.benchmarks.peers.windows import bench as bench_peers

        figures |= bench_peers(sensor, value, 1, progress)
        figures["correct"] &= figures["peers_correct"]
    progress("patterns")
    patterns = bench_patterns(rounds)
    figures |= {**patterns, "correct": figures["correct"] and patterns["correct"]}
    return {**figures, "rounds": rounds, **setting()}


def _data(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    return rng.integers(0, SENSORS, rows), rng.normal(20.0, 5.0, rows)


def event_times(rows: int) -> Array:
    """Event time in microseconds, 10,000 rows a second."""
    return np.arange(rows) * (1_000_000 // 10_000)


def by_count(size: int, slide: int) -> WindowSpec:
    compute = {"total": w.sum("value"), "mean": w.mean("value"), "peak": w.max("value")}
    return window("readings", count=size, slide=slide, by="sensor", compute=compute)


def by_time() -> WindowSpec:
    compute = {"total": w.sum("value"), "mean": w.mean("value"), "peak": w.max("value")}
    return window("readings", time=f"{SECONDS}s", slide=f"{EVERY}s", on="at", compute=compute)


def _run(spec: WindowSpec, at: Array, sensor: Array, value: Array, as_rows: bool = False) -> tuple[Any, ...]:
    """Batch by batch through a new state, each slide committed; returns the sums of the results."""
    return _feed(open_state(spec, READINGS), at, sensor, value, BATCH, as_rows)


def _feed(
    state: WindowState, at: Array, sensor: Array, value: Array, batch: int, as_rows: bool = False
) -> tuple[Any, ...]:
    """``as_rows``: the results are read one by one, as Python rows, not as columns."""
    at = at.view("M8[us]")
    nulls = {"at": None, "sensor": None, "value": None}
    count, means, peaks = 0, 0.0, 0.0
    for low in range(0, len(value), batch):
        part = slice(low, low + batch)
        values = {"at": at[part], "sensor": sensor[part], "value": value[part]}
        slide = state.slide(Columns(READINGS, len(value[part]), values, nulls))
        count += len(slide.results)
        if as_rows:
            for row in slide.results:
                means += row.mean
                peaks += row.peak
        elif len(slide.results):
            means += float(slide.results["mean"].sum())
            peaks += float(slide.results["peak"].sum())
        slide.commit()
    return count, means, peaks


class Clock:
    """Wall time and processor time since it was made. The second is what two things in one thread are compared by: it
    does not count other load on the machine.
    """

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()

    def stopped(self, rows: int) -> Clock:
        """The time for each of ``rows``."""
        self.wall_s = (time.perf_counter() - self.wall_s) / rows
        self.cpu_s = (time.process_time() - self.cpu_s) / rows
        return self


def _share(theirs: list[Clock], ours: list[Clock]) -> float:
    """Our speed as a share of theirs, both in their best round: others on the machine only ever make it worse."""
    return round(min(clock.cpu_s for clock in theirs) / min(clock.cpu_s for clock in ours), 2)


def _same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    return bool(np.allclose(one, two, rtol=1e-9))


def flatness(rounds: int, progress: Progress) -> dict[str, Any]:
    """The highest cost per row over the lowest, with windows of 100 to 100,000 rows of each of 20 sensors.

    ``flatness``: all slide by 20 rows, so that they give the same number of results. ``flatness_same_ratio``: all slide
    by a fifth of their length; the shortest then gives a thousand times as many results as the longest. Processor time
    over as many rows as the longest window holds, after as many that filled it. The rows are the same in every round;
    each tenth of them counts with its best round, since others on the machine only ever make it worse.
    """
    found: dict[str, Any] = {}
    sensors, longest = 20, max(WIDTHS)
    rng = np.random.default_rng(7)
    sensor, value = rng.integers(0, sensors, 2 * sensors * longest), rng.normal(20.0, 5.0, 2 * sensors * longest)
    half, at = sensors * longest, event_times(len(value))
    for name, slide_of in (("flatness", lambda width: 20), ("flatness_same_ratio", lambda width: width // 5)):
        costs: dict[int, list[list[float]]] = {width: [] for width in WIDTHS}
        for number in range(rounds):
            for width in WIDTHS:
                progress(f"round {number + 1}: {name}, windows of {width:,} rows")
                state = open_state(by_count(width, slide_of(width)), READINGS)
                _feed(state, at[:half], sensor[:half], value[:half], 10 * BATCH)
                costs[width].append([])
                for low in range(half, 2 * half, half // TENTHS):
                    part, clock = slice(low, low + half // TENTHS), Clock()
                    _feed(state, at[part], sensor[part], value[part], BATCH)
                    costs[width][-1].append(clock.stopped(half).cpu_s)
        best = {width: sum(map(min, zip(*taken, strict=True))) for width, taken in costs.items()}
        found[name] = round(max(best.values()) / min(best.values()), 2)
        found[f"{name}_ns_per_row"] = {str(width): round(seconds * 1e9) for width, seconds in best.items()}
    return found


# ---- the peers, over all the data at once


def numpy_count(sensor: Array, value: Array, as_type: str = "u1") -> tuple[Any, ...]:
    """Sorted by sensor, cut into panes, panes added up and compared.

    It uses what general code would not know: that the sensors fit into a byte. numpy sorts bytes three times as fast as
    wider numbers. The window state detects that for keys in a narrow range, so it is compared with this; ``as_type`` i8
    is the ordinary way.
    """
    order = np.argsort(sensor.astype(as_type, copy=False), kind="stable")
    ordered = value[order]
    ends = np.cumsum(np.bincount(sensor, minlength=SENSORS))
    count, means, peaks = 0, 0.0, 0.0
    per = SIZE // SLIDE
    for low, high in zip(ends - np.diff(ends, prepend=0), ends, strict=True):
        panes = (high - low) // SLIDE
        cut = ordered[low : low + panes * SLIDE].reshape(panes, SLIDE)
        sums, most = cut.sum(axis=1), cut.max(axis=1)
        windows = panes - per + 1
        total = np.lib.stride_tricks.sliding_window_view(sums, per).sum(axis=1)
        peak = np.lib.stride_tricks.sliding_window_view(most, per).max(axis=1)
        count += int(windows)
        means += float((total / SIZE).sum())
        peaks += float(peak.sum())
    return count, means, peaks


def numpy_time(at: Array, value: Array) -> tuple[Any, ...]:
    panes = at // (EVERY * 1_000_000)
    starts = np.flatnonzero(np.diff(panes, prepend=-1))
    sums, most = np.add.reduceat(value, starts), np.maximum.reduceat(value, starts)
    rows = np.diff(starts, append=len(value))
    per = SECONDS // EVERY
    blank = per - 1  # windows that begin before the first row
    sums, rows = np.pad(sums, (blank, 0)), np.pad(rows, (blank, 0))
    most = np.pad(most, (blank, 0), constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view
    done = int(at[-1] // (EVERY * 1_000_000))  # windows that have ended when the last row arrives
    total, number = view(sums, per).sum(axis=1)[:done], view(rows, per).sum(axis=1)[:done]
    return done, float((total / number).sum()), float(view(most, per).max(axis=1)[:done].sum())


def duckdb_count(sensor: Array, value: Array) -> tuple[Any, ...]:
    readings = pa.table({"sensor": sensor, "value": value, "i": np.arange(len(value))})
    with duckdb.connect() as connection:
        connection.register("readings", readings)
        found = connection.execute(
            f"""
            WITH numbered AS (SELECT sensor, value, row_number() OVER (PARTITION BY sensor ORDER BY i) - 1 AS n FROM readings),
            panes AS (
                SELECT sensor, n // {SLIDE} AS pane, sum(value) AS s, max(value) AS m FROM numbered
                GROUP BY ALL HAVING count(*) = {SLIDE}
            ),
            windows AS (
                SELECT sum(s) OVER w AS s, max(m) OVER w AS m, count(*) OVER w AS panes FROM panes
                WINDOW w AS (PARTITION BY sensor ORDER BY pane ROWS BETWEEN {SIZE // SLIDE - 1} PRECEDING AND CURRENT ROW)
            )
            SELECT count(*), sum(s / {SIZE}), sum(m) FROM windows WHERE panes = {SIZE // SLIDE}
            """
        ).fetchone()
    assert found is not None
    return tuple(found)


def duckdb_time(at: Array, value: Array) -> tuple[Any, ...]:
    readings = pa.table({"at": at, "value": value})
    last = int(at[-1]) // (EVERY * 1_000_000)
    with duckdb.connect() as connection:
        connection.register("readings", readings)
        found = connection.execute(
            f"""
            WITH panes AS (
                SELECT "at" // {EVERY * 1_000_000} AS pane, sum(value) AS s, max(value) AS m, count(*) AS n
                FROM readings GROUP BY ALL
            ),
            windows AS (
                SELECT pane, sum(s) OVER w AS s, max(m) OVER w AS m, sum(n) OVER w AS n FROM panes
                WINDOW w AS (ORDER BY pane RANGE BETWEEN {SECONDS // EVERY - 1} PRECEDING AND CURRENT ROW)
            )
            SELECT count(*), sum(s / n), sum(m) FROM windows WHERE pane < {last}
            """
        ).fetchone()
    assert found is not None
    return tuple(found)


def python_count(sensor: Array, value: Array) -> tuple[Any, ...]:
    """A deque per sensor."""
    held: dict[int, deque[float]] = {}
    seen: dict[int, int] = {}
    count, means, peaks = 0, 0.0, 0.0
    for key, number in zip(sensor.tolist(), value.tolist(), strict=True):
        rows = held.setdefault(key, deque(maxlen=SIZE))
        rows.append(number)
        n = seen[key] = seen.get(key, 0) + 1
        if n >= SIZE and (n - SIZE) % SLIDE == 0:
            count += 1
            means += sum(rows) / SIZE
            peaks += max(rows)
    return count, means, peaks


def python_time(value: Array) -> tuple[Any, ...]:
    """A list per second, the last ten kept."""
    seconds: deque[tuple[float, float, int]] = deque(maxlen=SECONDS // EVERY)
    total, peak, rows, current = 0.0, -np.inf, 0, 0
    count, means, peaks = 0, 0.0, 0.0
    for i, number in enumerate(value.tolist()):
        second = i // 10_000
        if second != current:
            seconds.append((total, peak, rows))
            count += 1
            means += sum(s for s, _, _ in seconds) / sum(n for _, _, n in seconds)
            peaks += max(m for _, m, _ in seconds)
            total, peak, rows, current = 0.0, -np.inf, 0, second
        total += number
        peak = max(peak, number)
        rows += 1
    return count, means, peaks
