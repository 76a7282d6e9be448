"""Columns can be fed: in the same batches as the same rows, with the same checks, a stream of them as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.engine import feeding
from tidegate.errors import DataError, MistakeError

ROWS = [(i % 3, i / 8) for i in range(1_000)]
TABLE = pa.table({"k": pa.array([k for k, _ in ROWS], pa.int32()), "x": [x for _, x in ROWS]})


@cache
def app_of(key: str | None = None) -> App:
    """Keeps which rows came in which batch, and a window's sums."""
    app = App("fed")
    app.table("CREATE TABLE seen (k INTEGER, batch BIGINT, rows VARCHAR, sums VARCHAR, PRIMARY KEY (k, batch))")
    app.stream("points", "k INTEGER NOT NULL, x DOUBLE NOT NULL", border=True, key=key)
    sums = window("points", count=40, slide=20, by="k", compute={"total": w.sum("x")})

    @app.procedure(inputs="points", writes=["seen"], windows={"sums": sums})
    def take(txn: Transaction, points: Batch) -> None:
        found = [tuple(row) for row in txn.window("sums").results]
        txn.insert("seen", (points[0].k, txn.batch_id, repr([tuple(row) for row in points]), repr(found)))

    return app


def seen(engine: Engine) -> list[Any]:
    return engine.query("SELECT * FROM seen ORDER BY ALL").rows


@cache
def expected(key: str | None, size: int) -> list[Any]:
    with tidegate.open(app_of(key)) as engine:
        engine.feed("points", ROWS, size=size)
        return seen(engine)


def reader() -> Any:
    return pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=77))


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "chunks": lambda: pa.Table.from_batches(TABLE.to_batches(max_chunksize=99)),
    "record batch": lambda: TABLE.combine_chunks().to_batches()[0],
    "reader": reader,
    "pandas": TABLE.to_pandas,
    "pandas objects": lambda: pd.DataFrame(ROWS, columns=["k", "x"], dtype=object),
    "polars": lambda: pl.from_arrow(TABLE),
    "duckdb": lambda: duckdb.from_arrow(TABLE),
    "numpy": lambda: np.array(ROWS, [("k", "i4"), ("x", "f8")]),
}


@pytest.mark.parametrize("chunk", [100_000, 64], ids=["one chunk", "many chunks"])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("form", FORMS)
def test_columns_are_fed_in_the_batches_of_the_same_rows(
    form: str, key: str | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "COLUMNS", chunk)
    for size in (30, 1_000):
        with tidegate.open(app_of(key)) as engine:
            fed = engine.feed("points", FORMS[form](), size=size)
            assert seen(engine) == expected(key, size)
            assert fed.rows == len(ROWS)
            assert fed.batches == len(expected(key, size))


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("backend", ["local", "auto"])
def test_however_it_is_run(executor: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "COLUMNS", 128)
    with tidegate.open(app_of("k"), executor=executor, backend=backend) as engine:
        engine.feed("points", reader(), size=30)
        engine.run_until_idle()
        assert seen(engine) == expected("k", 30)


def test_from_a_parquet_file_into_a_directory_and_back(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "points.parquet", row_group_size=128)
    with tidegate.open(app_of(), tmp_path / "data") as engine:
        engine.feed("points", duckdb.read_parquet(str(tmp_path / "points.parquet")), size=30)
        engine.abandon()
    with tidegate.open(app_of(), tmp_path / "data") as engine:
        assert engine.recovery.records
        assert seen(engine) == expected(None, 30)


def test_a_row_that_is_refused_comes_after_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "COLUMNS", 120)
    broken = [(k, None if place == 517 else x) for place, (k, x) in enumerate(ROWS)]
    found = []
    for rows in (broken, pa.table({"k": [k for k, _ in broken], "x": [x for _, x in broken]})):
        with tidegate.open(app_of()) as engine:
            with pytest.raises(DataError, match="x") as raised:
                engine.feed("points", rows, size=30)
            assert raised.value.fed == 517  # type: ignore[attr-defined]
            found.append(seen(engine))
    assert found[0] == found[1]
    with tidegate.open(app_of()) as engine, pytest.raises(DataError) as first:
        engine.feed("points", pa.table({"k": [1], "x": pa.array([None], pa.float64())}))
    assert first.value.fed == 0  # type: ignore[attr-defined]


def test_a_stream_of_columns_is_read_as_it_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "COLUMNS", 100)
    fed_when_read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in TABLE.to_batches(max_chunksize=50):
            fed_when_read.append(engine.sequence)
            yield batch

    with tidegate.open(app_of()) as engine:
        engine.feed("points", pa.RecordBatchReader.from_batches(TABLE.schema, batches()), size=50)
    assert fed_when_read == [2 * (i // 2) for i in range(20)]


def test_columns_that_do_not_fit_are_refused_as_in_a_push() -> None:
    for wrong in (pa.table({"k": [1], "y": [1.0]}), pa.table([[1], [2], [3.0]], ["k", "k", "x"])):
        with tidegate.open(app_of()) as engine:
            told = []
            for way in (engine.push, engine.feed):
                with pytest.raises((DataError, MistakeError)) as raised:
                    way("points", wrong)  # type: ignore[operator]
                told.append(str(raised.value))
            assert told[0] == told[1]
            assert seen(engine) == []
    with tidegate.open(app_of()) as engine:
        assert engine.feed("points", TABLE.slice(0, 0)).rows == 0
        with pytest.raises(DataError, match="takes an iterable of rows, got int"):
            engine.feed("points", 7)  # type: ignore[arg-type]
