"""An app with a window, and its history in files: for backfills and for the cluster."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import tidegate
from tidegate import window
from tidegate import windows as w

START = dt.datetime(2026, 1, 1)


def fit(values: Any) -> tuple[float, float]:
    """What is computed for a window: a function of the user's, over numpy columns."""
    known = np.nan_to_num(values["value"])
    slope, start = np.polyfit(np.arange(len(known)), known, 1)
    return float(slope), float(start)


def make_app() -> tidegate.App:
    app = tidegate.App("ward")
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, times INTEGER NOT NULL)")
    app.table("CREATE TABLE fits (ends BIGINT PRIMARY KEY, slope DOUBLE NOT NULL, start DOUBLE NOT NULL)")
    app.stream("vitals", "n BIGINT NOT NULL, seen TIMESTAMP NOT NULL, value DOUBLE", border=True)

    @app.procedure(
        inputs="vitals",
        reads=["seen", "fits"],
        writes=["seen", "fits"],
        windows={
            "last": window("vitals", count=40, slide=20, compute=w.whole(fit, returns="slope DOUBLE, start DOUBLE"))
        },
    )
    def watch(txn: tidegate.Transaction, vitals: tidegate.Batch) -> None:
        for n, _, _ in vitals:
            old = txn.get("seen", n)
            txn.upsert("seen", (n, 1 if old is None else old.times + 1))
        for found in txn.window("last").results:
            txn.insert("fits", (found.window_end, found.slope, found.start))

    return app


def rows(count: int) -> list[tuple[int, dt.datetime, float | None]]:
    """In order of time; four to a moment."""
    return [
        (n, START + dt.timedelta(milliseconds=1500 * (n // 4)), None if n % 97 == 5 else (n * 37 % 101) / 7)
        for n in range(count)
    ]


def put_history(directory: Path, count: int, files: int, format: str) -> list[Path]:
    """The rows of a history, out of order, in several files."""
    directory.mkdir()
    found = []
    for file in range(files):
        part = sorted(rows(count)[file::files], key=lambda row: row[0] * 7919 % 1009)
        names = ("n", "seen", "value")
        table = pa.table({name: [row[i] for row in part] for i, name in enumerate(names)})
        path = directory / f"part-{file}.{format}"
        if format == "parquet":
            pa.parquet.write_table(table, path)
        else:
            pa.csv.write_csv(table, path)
        found.append(path)
    return found


def state(engine: Any) -> dict[str, list[Any]]:
    return {table: engine.query(f"SELECT * FROM {table} ORDER BY ALL").rows for table in ("seen", "fits")}


app = make_app()
