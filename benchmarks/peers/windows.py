"""The windows benchmark on other systems: Polars over all rows at once, Bytewax and Spark as streams."""

from __future__ import annotations

import datetime as dt
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.benchmarks.peers.contest import Missing
from tidegate.benchmarks.windows import EVERY, SECONDS, SIZE, SLIDE, event_times, numpy_count, numpy_time
from tidegate.streams.windows.state.columns import Array

Answer = tuple[Any, ...]  # windows, sum of means, sum of peaks
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FILES = 20  # that Spark finds


def bench(sensor: Array, value: Array, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Rows a second of each, its answer compared with numpy's. What can't run here says why."""
    figures: dict[str, Any] = {}
    correct = True
    for name, run, most, kind in PEERS:
        keys, numbers = sensor[:most], value[:most]
        right = numpy_count(keys, numbers) if kind == "count" else numpy_time(event_times(len(numbers)), numbers)
        taken = []
        try:
            for number in range(rounds):
                progress(f"{name} by {kind}, round {number + 1} of {rounds}")
                seconds, answer = run(keys, numbers)
                taken.append(seconds)
                correct &= bool(np.allclose(answer, right, rtol=1e-9))
        except Missing as missing:
            figures[f"{name}_{kind}_skipped"] = str(missing)
            continue
        figures[f"{name}_{kind}_rows_per_s"] = round(len(numbers) / statistics.median(taken))
    return {**figures, "peers_correct": correct}


def _timed(run: Callable[[], Answer]) -> tuple[float, Answer]:
    begin = time.perf_counter()
    answer = run()
    return time.perf_counter() - begin, answer


def _ended(rows: int) -> int:
    """How many windows have ended when the last row comes: one for each second before its own."""
    return (rows - 1) // 10_000


def _polars_count(sensor: Array, value: Array) -> tuple[float, Answer]:
    pl = _polars()
    frame = pl.DataFrame({"sensor": sensor, "value": value})

    def run() -> Answer:
        rolled = frame.select(
            pl.int_range(pl.len()).over("sensor").alias("place"),
            pl.col("value").rolling_mean(SIZE).over("sensor").alias("mean"),
            pl.col("value").rolling_max(SIZE).over("sensor").alias("peak"),
        ).filter((pl.col("place") >= SIZE - 1) & ((pl.col("place") - (SIZE - 1)) % SLIDE == 0))
        return len(rolled), rolled["mean"].sum(), rolled["peak"].sum()

    return _timed(run)


def _polars_time(sensor: Array, value: Array) -> tuple[float, Answer]:
    pl = _polars()
    at = (np.arange(len(value)) * 100).view("M8[us]")
    frame = pl.DataFrame({"at": at, "value": value}).set_sorted("at")

    def run() -> Answer:
        found = frame.group_by_dynamic(
            "at", every=f"{EVERY}s", period=f"{SECONDS}s", offset=f"-{SECONDS - EVERY}s", closed="left"
        ).agg(pl.col("value").mean().alias("mean"), pl.col("value").max().alias("peak"))
        last = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=_ended(len(value)) - SECONDS)
        ended = found.filter(pl.col("at") <= last)
        return len(ended), ended["mean"].sum(), ended["peak"].sum()

    return _timed(run)


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise Missing("the Python package polars is not installed: pip install 'tidegate[polars]'") from error
    return polars


def _bytewax() -> tuple[Any, Any, Any, Any]:
    try:
        import bytewax.operators as op
        from bytewax.dataflow import Dataflow
        from bytewax.operators import windowing
        from bytewax.testing import TestingSink, TestingSource, run_main
    except ImportError as error:
        raise Missing("the Python package bytewax is not installed: pip install 'tidegate[bench]'") from error
    return op, windowing, Dataflow, (TestingSource, TestingSink, run_main)


def _bytewax_count(sensor: Array, value: Array) -> tuple[float, Answer]:
    """It has no windows by count: a deque for each key, in its keyed state."""
    op, _, dataflow, (source, sink, run_main) = _bytewax()
    pairs = list(zip(map(str, sensor.tolist()), value.tolist(), strict=True))
    out: list[Any] = []

    def step(state: Any, number: float) -> tuple[Any, list[tuple[float, float]]]:
        rows, seen = state or (deque(maxlen=SIZE), 0)
        rows.append(number)
        seen += 1
        fires = seen >= SIZE and (seen - SIZE) % SLIDE == 0
        return (rows, seen), [(sum(rows) / SIZE, max(rows))] if fires else []

    flow = dataflow("count")
    stream = op.stateful_flat_map("windows", op.input("readings", flow, source(pairs, batch_size=1_000)), step)
    op.output("out", stream, sink(out))

    def run() -> Answer:
        run_main(flow)
        return len(out), sum(mean for _, (mean, _) in out), sum(peak for _, (_, peak) in out)

    return _timed(run)


def _bytewax_time(sensor: Array, value: Array) -> tuple[float, Answer]:
    op, windowing, dataflow, (source, sink, run_main) = _bytewax()
    step = dt.timedelta(microseconds=100)
    rows = [("all", (START + i * step, number)) for i, number in enumerate(value.tolist())]
    out: list[Any] = []
    clock = windowing.EventClock(lambda row: row[0], wait_for_system_duration=dt.timedelta(seconds=2))
    windower = windowing.SlidingWindower(dt.timedelta(seconds=SECONDS), dt.timedelta(seconds=EVERY), START)
    flow = dataflow("time")
    folded = windowing.fold_window(
        "windows", op.input("readings", flow, source(rows, batch_size=1_000)), clock, windower,
        lambda: (0, 0.0, -np.inf),
        lambda kept, row: (kept[0] + 1, kept[1] + row[1], max(kept[2], row[1])),
        lambda one, two: (one[0] + two[0], one[1] + two[1], max(one[2], two[2])),
    )  # fmt: skip
    op.output("out", folded.down, sink(out))

    def run() -> Answer:
        run_main(flow)
        ended = [kept for _, (number, kept) in out if number <= _ended(len(value)) - SECONDS]
        return len(ended), sum(total / n for n, total, _ in ended), sum(peak for _, _, peak in ended)

    return _timed(run)


def _spark_time(sensor: Array, value: Array) -> tuple[float, Answer]:
    try:
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as f
    except ImportError as error:
        raise Missing("the Python package pyspark is not installed: pip install 'tidegate[spark]'") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        source = Path(place) / "readings"
        source.mkdir()
        at = (np.arange(len(value)) * 100).view("M8[us]")
        for i, part in enumerate(np.array_split(np.arange(len(value)), FILES)):
            path = source / f"{i:04}.parquet"
            pq.write_table(pa.table({"at": pa.array(at[part], pa.timestamp("us", "UTC")), "value": value[part]}), path)
            os.utime(path, (1_000_000_000 + i, 1_000_000_000 + i))  # Spark takes the oldest first
        builder = SparkSession.builder.master("local[2]").appName("windows").config("spark.ui.enabled", "false")
        spark = (
            builder.config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        out: list[Any] = []
        stream = spark.readStream.schema("at TIMESTAMP, value DOUBLE").option("maxFilesPerTrigger", 1)
        slid = (
            stream.parquet(str(source))
            .withWatermark("at", "0 seconds")
            .groupBy(f.window("at", f"{SECONDS} seconds", f"{EVERY} second"))
            .agg(f.avg("value").alias("mean"), f.max("value").alias("peak"))
        )
        writer = slid.writeStream.foreachBatch(lambda frame, number: out.extend(frame.select("mean", "peak").collect()))
        writer = writer.option("checkpointLocation", str(Path(place) / "checkpoint")).trigger(availableNow=True)
        spark.range(1).collect()  # the first job is slow

        def run() -> Answer:
            writer.start().awaitTermination()
            return len(out), sum(row.mean for row in out), sum(row.peak for row in out)

        try:
            return _timed(run)
        finally:
            spark.stop()


Run = Callable[[Array, Array], tuple[float, Answer]]
PEERS: tuple[tuple[str, Run, int, str], ...] = (  # Structured Streaming has no windows by count
    ("polars", _polars_count, 2_000_000, "count"),
    ("polars", _polars_time, 2_000_000, "time"),
    ("bytewax", _bytewax_count, 200_000, "count"),
    ("bytewax", _bytewax_time, 100_000, "time"),
    ("spark", _spark_time, 1_000_000, "time"),
)
