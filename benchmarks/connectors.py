"""Connectors: Kafka in → leaderboard → Kafka out with all guarantees, and files in beside DuckDB's own readers."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.benchmarks.leaderboard import final_state, reference_state
from tidegate.benchmarks.setting import setting
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.shared.reading import RowReader
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import Contest, random_votes

Progress = Callable[[str], None]
CHUNK = 1_000  # votes taken from Kafka at a time; each is its own batch


def bench(
    votes: int = 30_000, rows: int = 500_000, rounds: int = 3, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """Medians over ``rounds``.

    Kafka: votes are in a topic; a durable engine with group commit takes them, one vote per batch, and the valid ones
    are delivered in Kafka transactions at the same time, until the last is committed there. Files: an app that does
    almost nothing takes the rows, 10,000 per batch, into a durable engine; DuckDB reads the same file and sums a
    column.
    """
    facts: dict[str, Any] = {"votes": votes, "rows": rows, "rounds": rounds}
    facts |= _kafka(votes, rounds, progress)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        for kind in ("csv", "parquet"):
            facts |= _files(Path(place), kind, rows, rounds, progress)
    return {**facts, **setting()}


# ---- Kafka


def _kafka(votes: int, rounds: int, progress: Progress) -> dict[str, Any]:
    try:
        from tidegate.benchmarks.kafka_broker import KafkaBroker, Unavailable, read
    except ImportError as error:
        return {"kafka": f"left out: {error}; pip install 'tidegate[kafka]'", "correct": True}
    try:
        broker = KafkaBroker()
    except Unavailable as error:
        return {"kafka": f"left out: {error}", "correct": True}
    seconds, busy, correct = [], [], True
    cast = random_votes(votes, 1)
    contest = Contest()
    contest.run(cast)
    try:
        for number in range(1, rounds + 1):
            progress(f"Kafka, round {number} of {rounds}")
            _fill(broker.servers, f"votes-{number}", cast)
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
                spent, processor, state = _through(broker.servers, number, votes, contest.valid, place)
            seconds.append(spent)
            busy.append(processor)
            arrived = [msgspec.json.decode(value)["id"] for _, value in read(broker.servers, f"valid-{number}")]
            correct &= state == reference_state(contest)
            correct &= len(arrived) == len(set(arrived)) == contest.valid and arrived == sorted(arrived)
    finally:
        broker.remove()
    rate = votes / statistics.median(seconds)
    return {
        "kafka_votes_per_s": round(rate),
        "kafka_processor_us_per_vote": round(statistics.median(busy) / votes * 1e6, 1),  # of this process, all threads
        "correct": correct,
    }


def _fill(servers: str, topic: str, cast: list[Any]) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 2_000_000, "linger.ms": 20})
    for vote in cast:
        number, phone, contestant = vote
        producer.produce(topic, msgspec.json.encode({"id": number, "phone": phone, "contestant": contestant}))
    producer.flush(60)


def _through(servers: str, number: int, votes: int, valid: int, place: str) -> tuple[float, float, Any]:
    from tidegate.connectors.kafka.sink import KafkaSink
    from tidegate.connectors.kafka.source import KafkaSource

    with start(leaderboard(), place) as engine:
        delivery = engine.deliver(
            "valid_votes", KafkaSink(servers, f"valid-{number}", at_once=2000), "out", background=True
        )
        source = KafkaSource(servers, f"votes-{number}", follow=False)
        begin, worked = time.perf_counter(), time.process_time()
        ingestion = engine.ingest("votes_in", source, "in", size=1, limit=CHUNK)
        while ingestion.rows < votes:
            ingestion.pump(1.0)
        assert delivery.drain(120), delivery.error
        spent, processor = time.perf_counter() - begin, time.process_time() - worked
        assert delivery.delivered == valid
        return spent, processor, final_state(engine)


# ---- files


def _files(place: Path, kind: str, rows: int, rounds: int, progress: Progress) -> dict[str, Any]:
    path = place / f"rows.{kind}"
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([f"thing {i % 1000}" for i in range(rows)]),
            "weight": pa.array([i / 8 for i in range(rows)]),
        }
    )
    pa_csv.write_csv(table, path) if kind == "csv" else pq.write_table(table, path, row_group_size=100_000)
    spent: dict[str, list[float]] = {"ingest": [], "read": [], "duckdb": []}
    worked: dict[str, list[float]] = {"ingest": [], "duckdb": []}
    want = sum(i / 8 for i in range(rows))
    for number in range(1, rounds + 1):
        progress(f"{kind}, round {number} of {rounds}")
        begin, before = time.perf_counter(), time.process_time()
        with duckdb.connect() as database:
            ((total,),) = database.execute(f"SELECT sum(weight) FROM '{path}'").fetchall()
        spent["duckdb"].append(time.perf_counter() - begin)
        worked["duckdb"].append(time.process_time() - before)
        assert total == want
        spent["read"].append(_read(path))
        before = time.process_time()
        spent["ingest"].append(_ingest(path, place / f"{kind}-{number}", rows, want))
        worked["ingest"].append(time.process_time() - before)
    rates = {f"{kind}_{name}_rows_per_s": round(rows / statistics.median(times)) for name, times in spent.items()}
    for name, times in worked.items():
        rates[f"{kind}_{name}_rows_per_processor_s"] = round(rows / statistics.median(times))
    return {
        **rates,
        f"{kind}_part_of_duckdb": round(statistics.median(spent["duckdb"]) / statistics.median(spent["ingest"]), 3),
    }


def _app() -> App:
    app = App("adding")
    app.stream("things", "id BIGINT NOT NULL, name VARCHAR, weight DOUBLE", border=True)
    app.table("CREATE TABLE totals (id INTEGER PRIMARY KEY, weight DOUBLE NOT NULL, n BIGINT NOT NULL)")

    @app.procedure(inputs="things", writes=["totals"])
    def add(txn: Transaction, things: Batch) -> None:
        known = txn.get("totals", 1)
        weight, n = (known.weight, known.n) if known else (0.0, 0)
        txn.upsert("totals", (1, weight + sum(thing.weight for thing in things), n + len(things)))

    return app


def _read(path: Path) -> float:
    """The source alone: rows are checked and typed, and then discarded."""
    source = FileSource(path)
    begin = time.perf_counter()
    source.open("in", RowReader(_app().streams["things"].relation).relation, None)
    while source.poll(10_000, 0) is not None:
        pass
    source.close()
    return time.perf_counter() - begin


def _ingest(path: Path, directory: Path, rows: int, want: float) -> float:
    with tidegate.open(_app(), directory) as engine:
        begin = time.perf_counter()
        assert engine.ingest("things", FileSource(path), "in", limit=10_000).pump() == rows
        spent = time.perf_counter() - begin
        (row,) = engine.query("SELECT weight, n FROM totals").rows
        assert (row.n, abs(row.weight - want) < 1e-3 * want) == (rows, True)
    return spent
