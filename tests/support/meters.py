"""The app of the pipeline tests, and files for it: order and repeats both show in its tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tidegate

COLUMNS = "n BIGINT, meter STRING, value DOUBLE"  # as Spark has them
ROWS = 20  # in a file


def make_app() -> tidegate.App:
    app = tidegate.App("meters")
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, times INTEGER NOT NULL)")
    app.table("CREATE TABLE meters (meter VARCHAR PRIMARY KEY, total DOUBLE NOT NULL, last BIGINT NOT NULL)")
    app.view("parity", "SELECT n % 2 = 1 AS odd, sum(n) AS total, count(*) AS seen FROM seen GROUP BY ALL")
    app.stream("readings", "n BIGINT NOT NULL, meter VARCHAR NOT NULL, value DOUBLE NOT NULL", border=True)
    app.stream("totals", "meter VARCHAR NOT NULL, total DOUBLE NOT NULL")

    @app.procedure(inputs="readings", outputs=["totals"], reads=["seen", "meters"], writes=["seen", "meters"])
    def read(txn: tidegate.Transaction, readings: tidegate.Batch) -> None:
        for n, meter, value in readings:
            before = txn.get("seen", n)
            txn.upsert("seen", (n, 1 if before is None else before.times + 1))
            old = txn.get("meters", meter)
            total = value if old is None else old.total * 0.9 + value  # order shows
            txn.upsert("meters", (meter, total, n))
        txn.emit("totals", [(m, t) for m, t, _ in txn.execute("SELECT meter, total, last FROM meters ORDER BY meter")])

    return app


def rows_of(file: int) -> list[tuple[int, str, float]]:
    return [(file * ROWS + i, f"m{(file + i) % 3}", float(i)) for i in range(ROWS)]


def put_files(directory: Path, files: range) -> None:
    """A JSON file for each number, in order of their times of change; each appears whole."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        hidden = directory / f".{file}.tmp"
        lines = (json.dumps({"n": n, "meter": m, "value": v}) + "\n" for n, m, v in rows_of(file))
        hidden.write_text("".join(lines))
        os.utime(hidden, (1_700_000_000 + file, 1_700_000_000 + file))
        hidden.rename(directory / f"{file:05}.json")


def readings(spark: Any, directory: Path, files: int = 1) -> Any:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files).json(str(directory))


def state(engine: Any) -> dict[str, list[Any]]:
    return {table: engine.query(f"SELECT * FROM {table} ORDER BY ALL").rows for table in ("seen", "meters")}


def oracle(files: range, at_once: int = 1) -> dict[str, list[Any]]:
    """What one file after another gives, without Spark."""
    with tidegate.open(make_app()) as engine:
        for start in range(files.start, files.stop, at_once):
            engine.push("readings", [row for file in files[start : start + at_once] for row in rows_of(file)])
        return state(engine)


app = make_app()
