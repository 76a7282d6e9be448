"""A history in files, through an app in order: the same as one row after another, also when it is cut off and goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from wards import make_app, put_history, rows, state

import tidegate
from tidegate.connectors.files.backfill import backfill
from tidegate.errors import DataError, TidegateError

COUNT = 2_000
SIZE = 10


def expected(count: int = COUNT) -> dict[str, list[Any]]:
    with tidegate.open(make_app()) as engine:
        engine.feed("vitals", rows(count), size=SIZE)
        return state(engine)


class Cut(Exception):
    """The process dies here."""


def cut_at(rows: int) -> Any:
    def progress(done: int, total: int) -> None:
        if done >= rows:
            raise Cut

    return progress


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_a_backfill_that_is_cut_off_goes_on(spark: Any, format: str, tmp_path: Path) -> None:
    """The windows are evaluated by Spark, ahead of the transactions; ties in the order are in the middle of each cut."""
    files = put_history(tmp_path / "history", COUNT, 3, format)
    settings = {"backend": "spark", "spark": spark, "look_ahead": 20}
    given = {"order_by": ["seen"], "size": SIZE}
    for reached in (600, 1_300):
        engine = tidegate.open(make_app(), tmp_path / "db", **settings)
        with pytest.raises(Cut):
            backfill(engine, spark, "vitals", files, progress=cut_at(reached), **given)
        engine.abandon()
    with tidegate.open(make_app(), tmp_path / "db", **settings) as engine:
        told: list[tuple[int, int]] = []
        done = backfill(engine, spark, "vitals", files, progress=lambda *at: told.append(at), **given)
        assert 0 < done.resumed_at < COUNT == done.resumed_at + done.fed
        assert told[0] == (done.resumed_at, COUNT)
        assert told[-1] == (COUNT, COUNT)
        assert state(engine) == expected()
        again = backfill(engine, spark, "vitals", files, **given)
        assert (again.fed, again.batches) == (0, 0)


def test_files_that_changed_and_other_mistakes(spark: Any, tmp_path: Path) -> None:
    files = put_history(tmp_path / "history", 100, 2, "parquet")
    with tidegate.open(make_app(), tmp_path / "db") as engine:
        backfill(engine, spark, "vitals", files[:1], order_by=["seen"])
        with pytest.raises(DataError, match="of a different history: the files, their sizes or the order have changed"):
            backfill(engine, spark, "vitals", files, order_by=["seen"])
        with pytest.raises(TidegateError, match=r"no column of vitals to order by 'seem'.*seen"):
            backfill(engine, spark, "vitals", files, order_by=["seem"])
        with pytest.raises(TidegateError, match="there is no file"):
            backfill(engine, spark, "vitals", [tmp_path / "nothing.parquet"], order_by=["seen"])
        with pytest.raises(TidegateError, match="give --format"):
            backfill(engine, spark, "vitals", [tmp_path / "db"], order_by=["seen"])
        with pytest.raises(TidegateError, match="got 'xml'"):
            backfill(engine, spark, "vitals", files, order_by=["seen"], format="xml")
        (tmp_path / "empty").mkdir()
        with pytest.raises(TidegateError, match="there are no files in"):
            backfill(engine, spark, "vitals", [tmp_path / "empty"], order_by=["seen"], format="csv")


BAD = {
    "number.csv": (
        "n,seen,value\n1,2026-01-01 00:00:00,80\n2,2026-01-01 00:00:01,high\n",
        r"number.csv: Malformed records are detected .*For input string: \"high\".* the same command",
    ),
    "column.csv": ("seen,value\n2026-01-01 00:00:00,80\n", r"column n \(BIGINT\) is missing"),
    "null.csv": (
        "n,seen,value\n1,2026-01-01 00:00:00,80\n,2026-01-01 00:00:01,81\n",
        "no value for n in 1 of 2 rows, and stream vitals has NOT NULL there; no row of this run was fed",
    ),
    "half.json": ('{"n": 1, "seen": "2026-01-01T00:00:00", "value": 80}\n{"n":', r"half.json: .*Malformed records"),
    "no.parquet": ("hello", r"no.parquet: .*is not a Parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_spark_can_t_read_is_told_in_one_line_and_nothing_goes_in(spark: Any, name: str, tmp_path: Path) -> None:
    text, told = BAD[name]
    (tmp_path / name).write_text(text)
    with tidegate.open(make_app()) as engine:
        with pytest.raises(DataError, match=told) as caught:
            backfill(engine, spark, "vitals", [tmp_path / name], order_by=["seen"], size=1)
        assert "\n" not in str(caught.value)
        assert engine.position("backfill:vitals") is None


def test_columns_of_a_csv_file_go_by_their_names(spark: Any, tmp_path: Path) -> None:
    """In whatever order they stand, and whatever else there is; several files have to agree."""
    (tmp_path / "one.csv").write_text("ward,value,n,seen\nw,80,1,2026-01-01 00:00:00\n")
    (tmp_path / "other.csv").write_text("ward,n,value,seen\nw,2,90,2026-01-01 00:00:01\n")
    with tidegate.open(make_app()) as engine:
        backfill(engine, spark, "vitals", [tmp_path / "one.csv"], order_by=["seen"])
        with pytest.raises(DataError, match=r"CSV header does not conform to the schema"):
            backfill(engine, spark, "vitals", sorted(tmp_path.iterdir()), order_by=["seen"], source="both")
        assert state(engine) == {"seen": [(1, 1)], "fits": []}


def logged(directory: Path) -> int:
    """The size of the log; segments may go while one looks."""
    try:
        return sum(file.stat().st_size for file in directory.rglob("*.log"))
    except FileNotFoundError:
        return 0


@pytest.mark.slow
def test_the_command_is_killed_and_goes_on(tmp_path: Path) -> None:
    """kill -9 of ``tidegate backfill`` while its windows are evaluated by Spark."""
    count = 60_000
    put_history(tmp_path / "history", count, 4, "parquet")
    support = Path(__file__).parents[2] / "support"
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "backfill",
        str(support / "wards.py") + ":app",
        str(tmp_path / "history"),
    ]
    command += ["--stream", "vitals", "--order-by", "seen", "--data", str(tmp_path / "db"), "--size", str(SIZE)]
    command += ["--format", "parquet", "--master", "local[2]", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(support)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    logs = tmp_path / "db"
    while process.poll() is None and logged(logs) < 400_000:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert 0 < facts["resumed_at"] < facts["rows"] == count
    with tidegate.open(make_app(), tmp_path / "db") as engine:
        found = state(engine)
    assert found == expected(count)
