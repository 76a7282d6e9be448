"""Stream processors in front of PostgreSQL: Bytewax, and Spark Structured Streaming.

They order and replay their input; the shared tables are in the database, accessed through the PL/pgSQL function.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tidegate.benchmarks.peers.contest import Finished, Guarantees, Missing, Peer, timed
from tidegate.benchmarks.peers.postgres import CALL, contest_database, state
from tidegate.examples.leaderboard.reference import Vote

FILE_VOTES = 100  # votes in each file that Spark finds, and so in each micro-batch


def _bytewax(votes: list[Vote]) -> Finished:
    try:
        import bytewax.operators as op
        from bytewax.dataflow import Dataflow
        from bytewax.outputs import DynamicSink, StatelessSinkPartition
        from bytewax.testing import TestingSource, run_main
    except ImportError as error:
        raise Missing("the Python package bytewax is not installed: pip install 'tidegate[bench]'") from error

    with contest_database() as (connection, _):

        class Partition(StatelessSinkPartition[Vote]):
            def write_batch(self, items: list[Vote]) -> None:
                for vote in items:
                    connection.execute(CALL, vote)

        class Database(DynamicSink[Vote]):
            def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
                return Partition()

        flow = Dataflow("contest")
        op.output("database", op.input("votes", flow, TestingSource(votes)), Database())
        return Finished(timed(lambda: run_main(flow)), state(connection))


def _spark(votes: list[Vote]) -> Finished:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Missing("the Python package pyspark is not installed: pip install 'tidegate[spark]'") from error
    with contest_database() as (connection, _), tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        source = Path(place) / "votes"
        source.mkdir()
        for begin in range(0, len(votes), FILE_VOTES):
            lines = [
                json.dumps(dict(zip(("id", "phone", "contestant"), v, strict=True)))
                for v in votes[begin : begin + FILE_VOTES]
            ]
            path = source / f"{begin:09}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_000_000_000 + begin, 1_000_000_000 + begin))  # Spark takes the oldest first
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = (
            SparkSession.builder.master("local[2]").appName("contest").config("spark.ui.enabled", "false").getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return _run_query(spark, source, Path(place) / "checkpoint", connection)
        finally:
            spark.stop()


def _run_query(spark: Any, source: Path, checkpoint: Path, connection: Any) -> Finished:
    def into_database(frame: Any, number: int) -> None:
        rows = sorted(frame.collect())
        with connection.transaction():
            for row in rows:
                connection.execute(CALL, (row.id, row.phone, row.contestant))

    stream = spark.readStream.schema("id BIGINT, phone BIGINT, contestant INT").option("maxFilesPerTrigger", 1)
    writer = stream.json(str(source)).writeStream.foreachBatch(into_database)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    spark.range(1).collect()  # the first job is slow
    begin = time.perf_counter()
    writer.start().awaitTermination()
    return Finished(time.perf_counter() - begin, state(connection))


PEERS = (
    Peer(
        "bytewax_postgres",
        Guarantees(
            "each vote, in the database", "one worker", "no: replays after a crash", "each vote, in the database"
        ),
        3_000,
        _bytewax,
    ),
    Peer(
        "spark_postgres",
        Guarantees(
            "each micro-batch of 100", "as sorted by us", "no: the last micro-batch is replayed", "each micro-batch"
        ),
        2_000,
        _spark,
    ),
)
