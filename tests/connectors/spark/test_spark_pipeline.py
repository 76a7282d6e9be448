"""Structured Streaming into a border stream: exactly once, checked at the start, held back by a full engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from meters import ROWS, make_app, oracle, put_files, readings, rows_of, state

import tidegate
from tidegate import window
from tidegate.connectors.spark.pipeline import pipe
from tidegate.errors import BatchError, DataError, EngineClosed, TidegateError
from tidegate.windows import count

NOW = {"availableNow": True}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tidegate.Engine]:
    with tidegate.open(make_app(), tmp_path / "db") as found:
        yield found


def test_files_come_in_once_and_in_order(spark: Any, engine: tidegate.Engine, tmp_path: Path) -> None:
    """Three runs: some files, more files, and one that finds a micro-batch that Spark did not note as done."""
    put_files(tmp_path / "in", range(3))
    frame = readings(spark, tmp_path / "in")
    pipeline = pipe(frame, engine, "readings", checkpoint=tmp_path / "c", trigger=NOW)
    assert pipeline.wait()
    assert (pipeline.pushed, pipeline.repeated) == (3, 0)
    assert state(engine) == oracle(range(3))

    put_files(tmp_path / "in", range(3, 5))
    (tmp_path / "c" / "commits" / "2").unlink()  # a crash between our commit and Spark's note
    (tmp_path / "c" / "commits" / ".2.crc").unlink(missing_ok=True)
    pipeline = pipe(frame, engine, "readings", checkpoint=tmp_path / "c", trigger=NOW)
    assert pipeline.wait()
    assert (pipeline.pushed, pipeline.repeated) == (2, 1)
    assert state(engine) == oracle(range(5))
    assert engine.position("spark:readings") == {"query": str(pipeline.query.id), "batch": 4}


def test_the_watermark_of_a_query_advances_the_stream(spark: Any, tmp_path: Path) -> None:
    app = tidegate.App("hours")
    app.table("CREATE TABLE hours (start TIMESTAMP PRIMARY KEY, n BIGINT)")
    app.stream("readings", "n BIGINT NOT NULL, taken TIMESTAMP NOT NULL", border=True)
    app.stream("kept", "n BIGINT NOT NULL, taken TIMESTAMP NOT NULL")

    @app.procedure(inputs="readings", outputs="kept")
    def keep(txn: Any, readings: Any) -> None:
        txn.emit("kept", [row for row in readings if row.n % 2 == 0])  # rows alone do not say how far time is

    hourly = window("kept", time="1h", on="taken", compute={"n": count()})

    @app.procedure(inputs="kept", writes=["hours"], windows={"hourly": hourly})
    def tell(txn: Any, kept: Any) -> None:
        txn.execute("INSERT INTO hours SELECT window_start, n FROM hourly")

    put_files(tmp_path / "in", range(5))  # n counts rows through all files
    frame = readings(spark, tmp_path / "in").selectExpr(
        "CASE WHEN n = 0 THEN 0 ELSE 2 * n + 1 END AS n",
        "timestamp_seconds(1700000000 + 1800 * n) AS taken",
    )
    with tidegate.open(app) as engine:
        timed = frame.withWatermark("taken", "1 hour")
        assert pipe(timed, engine, "readings", checkpoint=tmp_path / "c", trigger=NOW, watermark=True).wait()
        assert engine.query("SELECT n FROM hours").rows == [(1,)]


def test_another_checkpoint_directory_is_refused(spark: Any, engine: tidegate.Engine, tmp_path: Path) -> None:
    put_files(tmp_path / "in", range(1))
    frame = readings(spark, tmp_path / "in")
    pipe(frame, engine, "readings", checkpoint=tmp_path / "c", trigger=NOW).wait()
    with pytest.raises(BatchError, match="fed by another query"):
        pipe(frame, engine, "readings", checkpoint=tmp_path / "other", trigger=NOW).wait()
    assert state(engine) == oracle(range(1))
    put_files(tmp_path / "in2", range(1, 2))
    more = pipe(
        readings(spark, tmp_path / "in2"),
        engine,
        "readings",
        checkpoint=tmp_path / "new",
        trigger=NOW,
        new_checkpoint=True,
    )
    assert more.wait()
    assert state(engine) == oracle(range(2))
    put_files(tmp_path / "in", range(1, 2))
    with tidegate.open(make_app()) as empty, pytest.raises(BatchError, match="has not seen micro-batch 0"):
        pipe(frame, empty, "readings", checkpoint=tmp_path / "c", trigger=NOW).wait()


def test_micro_batches_without_rows_count(spark: Any, engine: tidegate.Engine, tmp_path: Path) -> None:
    put_files(tmp_path / "in", range(4))
    frame = readings(spark, tmp_path / "in").where(f"n < {ROWS} OR n >= {3 * ROWS}")
    pipeline = pipe(frame, engine, "readings", checkpoint=tmp_path / "c", trigger=NOW)
    assert pipeline.wait()
    assert pipeline.pushed == 4
    assert engine.position("spark:readings")["batch"] == 3
    assert [row.n for row in state(engine)["seen"]] == [n for file in (0, 3) for n, _, _ in rows_of(file)]


def test_a_frame_that_does_not_fit_is_refused_before_it_starts(
    spark: Any, engine: tidegate.Engine, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = readings(spark, tmp_path / "in")
    for wrong, told in (
        (frame.drop("value"), r"column value \(DOUBLE\) is missing"),
        (frame.withColumnRenamed("n", "N"), r"column n \(BIGINT\) is missing; column N is not in the stream"),
        (frame.withColumn("value", frame.meter), "column value is string in Spark and DOUBLE here"),
        (frame.selectExpr("n", "meter", "array(value) value"), r"column value is array<double> in Spark"),
    ):
        with pytest.raises(DataError, match=told):
            pipe(wrong, engine, "readings", checkpoint=tmp_path / "c")
    with pytest.raises(TidegateError, match="takes a streaming data frame"):
        pipe(spark.createDataFrame(rows_of(0), frame.schema), engine, "readings", checkpoint=tmp_path / "c")
    with pytest.raises(TidegateError, match="interior stream"):
        pipe(frame, engine, "totals", checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_spark_waits_while_the_engine_has_no_room(spark: Any, tmp_path: Path) -> None:
    """With two executions at a time and nobody to run them, the third micro-batch waits, and nothing more is planned."""
    put_files(tmp_path / "in", range(5))
    with tidegate.open(make_app(), executor="manual", capacity=2) as engine:
        pipeline = pipe(readings(spark, tmp_path / "in"), engine, "readings", checkpoint=tmp_path / "c", trigger=NOW)
        while not pipeline.waited_s:
            assert not pipeline.wait(1)
        assert pipeline.pushed == 2
        while pipeline.active:
            engine.run_until_idle()
        engine.run_until_idle()
        assert pipeline.pushed == 5
        assert state(engine) == oracle(range(5))


def test_a_pipeline_that_waits_can_be_stopped(spark: Any, tmp_path: Path) -> None:
    put_files(tmp_path / "in", range(2))
    with tidegate.open(make_app(), executor="manual", capacity=1) as engine:
        with pipe(readings(spark, tmp_path / "in"), engine, "readings", checkpoint=tmp_path / "c") as pipeline:
            while not pipeline.waited_s:
                assert not pipeline.wait(1)
        assert not pipeline.active
        assert isinstance(pipeline.error, EngineClosed)
        engine.run_until_idle()
        assert state(engine) == oracle(range(1))


def test_the_rate_source(spark: Any, engine: tidegate.Engine, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 10)
        .load()
        .selectExpr("value AS n", "concat('m', value % 3) AS meter", "CAST(value AS DOUBLE) AS value")
    )
    with pipe(frame, engine, "readings", checkpoint=tmp_path / "c") as pipeline:
        while pipeline.pushed < 3:
            assert not pipeline.wait(1)
    seen = state(engine)["seen"]
    assert [row.n for row in seen] == list(range(len(seen)))
    assert {row.times for row in seen} == {1}
