"""What streams and views declared in SQL cost, in microseconds of processor time.

* **filter**, **lookup**: a filter, and a join with a table by its key, one row a batch and 10,000 rows a batch (Arrow in).
* **window**: sums per key in tumbling minutes, 10,000 rows a batch, beside the same window written by hand in Python.
* **view**: what a materialized view adds to a changed row, 100 rows a batch: one GROUP BY, and one join of two tables.
  ``growth``: the same over a table with more rows, as a ratio.
* **pathway** (``peer``): the same filter and window in Pathway, if it is installed; rows a second as a ratio.

``correct``: what came is what DuckDB says of all rows.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate
from tidegate import App, window
from tidegate import windows as w
from tidegate.benchmarks.setting import setting

Progress = Callable[[str], None]
START = dt.datetime(2024, 1, 1)
KEYS = 100
BATCH = 10_000

STREAMS = """
CREATE STREAM readings (ts TIMESTAMP NOT NULL, device INTEGER NOT NULL, value BIGINT NOT NULL, WATERMARK FOR ts AS ts)
WITH (border);
CREATE TABLE devices (device INTEGER PRIMARY KEY, factor BIGINT NOT NULL);
"""
FILTER = "CREATE STREAM found AS SELECT ts, device, value * 2 AS twice FROM readings WHERE value < 250;"
LOOKUP = (
    "CREATE STREAM found AS SELECT r.ts, d.device, r.value * d.factor AS v FROM readings r "
    "JOIN devices d ON d.device = r.device;"
)
WINDOW = """CREATE STREAM found AS SELECT window_start, device, sum(value) AS total, count(*) AS n
FROM TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '1' MINUTE) GROUP BY window_start, device;"""
TABLES = """
CREATE STREAM changes (id INTEGER NOT NULL, device INTEGER NOT NULL, value BIGINT NOT NULL) WITH (border);
CREATE TABLE held (id INTEGER PRIMARY KEY, device INTEGER NOT NULL, value BIGINT NOT NULL);
CREATE TABLE devices (device INTEGER PRIMARY KEY, factor BIGINT NOT NULL);
"""
GROUPED = "CREATE MATERIALIZED VIEW v AS SELECT device, count(*) AS n, sum(value) AS total FROM held GROUP BY device;"
JOINED = """CREATE MATERIALIZED VIEW v AS SELECT d.factor, count(*) AS n, sum(h.value) AS total
FROM held h JOIN devices d ON d.device = h.device GROUP BY d.factor;"""

PATHWAY = """
import sys, time
import pathway as pw
rows = int(sys.argv[1])
class Readings(pw.Schema):
    second: int
    device: int
    value: int
class Feed(pw.io.python.ConnectorSubject):
    def run(self):
        for n in range(rows):
            self.next(second=n // 100, device=n % 100, value=n % 1000)
table = pw.io.python.read(Feed(), schema=Readings)
sums = table.windowby(table.second, window=pw.temporal.tumbling(duration=60), instance=table.device).reduce(
    total=pw.reducers.sum(pw.this.value), n=pw.reducers.count())
pw.io.null.write(sums)
began = time.process_time()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print("SECONDS", time.process_time() - began)
"""


def bench(
    rows: int = 200_000, rounds: int = 3, peer: bool = False, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """All figures, each the median of the rounds."""
    found: dict[str, list[float]] = {}
    correct = True
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for name, value, right in _round(rows):
            found.setdefault(name, []).append(value)
            correct &= right
    figures: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in found.items()}
    figures["pathway_ratio"] = _pathway(rows, figures["window_us_row_10k"]) if peer else None
    return {**figures, "rows": rows, "rounds": rounds, "correct": correct, **setting()}


def _round(rows: int) -> list[tuple[str, float, bool]]:
    few = max(1, min(rows, 5_000))
    found = []
    for name, query, size, count in (
        ("filter_us_1", FILTER, 1, few),
        ("lookup_us_1", LOOKUP, 1, few),
        ("filter_us_row_10k", FILTER, BATCH, rows),
    ):
        found.append((name, *_stream(query, size, count)))
    took, right = _stream(WINDOW, BATCH, rows)
    by_hand, also = _timed(_by_hand(), BATCH, rows, WINDOW)
    found += [("window_us_row_10k", took, right), ("window_vs_hand", took / by_hand, also)]
    bare, _ = _changed("", few, few)
    one, right = _changed(GROUPED, few, few)
    joined, also = _changed(JOINED, few, few)
    found += [("view_us_row", one - bare, right), ("view_join_us_row", joined - bare, also)]
    large, right = _changed(GROUPED, few, max(rows, few))
    bare_large, _ = _changed("", few, max(rows, few))
    found.append(("view_growth", (large - bare_large) / (one - bare), right))
    return found


# ---- streams


def columns_of(rows: int) -> pa.Table:
    """A hundred readings a second, each of another device."""
    at = np.arange(rows, dtype="i8")
    start = int(START.replace(tzinfo=dt.UTC).timestamp() * 1_000_000)
    return pa.table(
        {
            "ts": pa.array(start + at * 10_000).cast(pa.timestamp("us")),
            "device": pa.array((at % KEYS).astype("i4")),
            "value": pa.array(at * 7 % 1_000),
        }
    )


def _stream(query: str, size: int, count: int) -> tuple[float, bool]:
    app = App("declared")
    app.declare(STREAMS + query)
    return _timed(app, size, count, query)


def _by_hand() -> App:
    app = App("by_hand")
    app.declare(STREAMS)
    app.stream("found", "window_start TIMESTAMP NOT NULL, device INTEGER NOT NULL, total BIGINT, n BIGINT NOT NULL")
    sums = window("readings", time="1m", on="ts", by="device", compute={"total": w.sum("value"), "n": w.count()})

    @app.procedure(inputs="readings", outputs="found", windows={"minutes": sums})
    def add(txn: Any, readings: Any) -> None:
        results = txn.window("minutes").results
        txn.emit("found", [(row.window_start, row.device, row.total, row.n) for row in results])

    return app


def _timed(app: App, size: int, count: int, query: str) -> tuple[float, bool]:
    """Microseconds a row, and whether DuckDB says the same of all rows."""

    @app.procedure(writes=["devices"])
    def set_up(txn: Any) -> None:
        for device in range(KEYS):
            txn.insert("devices", (device, device % 3))

    table = columns_of(count)
    given = table.to_pylist() if size == 1 else []
    batches = [[tuple(row.values())] for row in given] if size == 1 else table.to_batches(max_chunksize=size)
    with tidegate.open(app) as engine:
        engine.call("set_up")
        found = engine.subscribe("found")
        began = time.process_time()
        for batch in batches:
            engine.push("readings", batch)
        took = time.process_time() - began
        engine.finish("readings")
        rows = sorted(tuple(row) for batch in found for row in batch)
    return took / count * 1e6, rows == _expected(table, query)


def _expected(readings: pa.Table, query: str) -> list[Any]:
    """What the rows of all batches give together, in plain Python."""
    rows = [tuple(row.values()) for row in readings.to_pylist()]
    if query is FILTER:
        return sorted((ts, device, value * 2) for ts, device, value in rows if value < 250)
    if query is LOOKUP:
        return sorted((ts, device, value * (device % 3)) for ts, device, value in rows)
    sums: dict[Any, list[int]] = {}
    for ts, device, value in rows:
        one = sums.setdefault((ts.replace(second=0, microsecond=0), device), [0, 0])
        one[0] += value
        one[1] += 1
    return sorted((start, device, total, n) for (start, device), (total, n) in sums.items())


# ---- views


def _changed(view: str, count: int, held: int) -> tuple[float, bool]:
    """Microseconds of a changed row in a table of so many rows, 100 rows a batch; does the view say what its query says?"""
    app = App("viewed")
    app.declare(TABLES + view)

    @app.procedure(inputs="changes", writes=["held"])
    def put(txn: Any, changes: Any) -> None:
        for row in changes:
            txn.upsert("held", row)

    @app.procedure(writes=["held", "devices"])
    def set_up(txn: Any) -> None:
        for device in range(KEYS):
            txn.insert("devices", (device, device % 3))
        for number in range(held):
            txn.insert("held", (number, number % KEYS, number))

    with tidegate.open(app) as engine:
        engine.call("set_up")
        rows = [(n * 7 % held, n * 3 % KEYS, n) for n in range(count)]
        began = time.process_time()
        for low in range(0, count, 100):
            engine.push("changes", rows[low : low + 100])
        took = time.process_time() - began
        right = True
        for one in app.maintained.values():
            right = sorted(engine.query(f"SELECT * FROM {one.name}").rows) == sorted(engine.query(one.sql).rows)
    return took / count * 1e6, right


# ---- Pathway


def _pathway(rows: int, ours_us: float) -> float | None:
    """How many times as many rows a second of processor time the window takes here; None if Pathway is not installed."""
    if importlib.util.find_spec("pathway") is None:
        return None
    told = subprocess.run(
        [sys.executable, "-c", PATHWAY, str(rows)], capture_output=True, text=True, check=False
    ).stdout
    seconds = [float(line.split()[1]) for line in told.splitlines() if line.startswith("SECONDS ")]
    return round(seconds[0] / rows * 1e6 / ours_us, 2) if seconds else None
