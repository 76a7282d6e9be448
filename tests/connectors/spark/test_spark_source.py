"""``format("tidegate")``: reading tables, following output streams, writing into border streams."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from meters import COLUMNS, make_app, oracle, put_files, readings, rows_of, state

import tidegate
from tidegate.connectors.spark import source
from tidegate.connectors.spark.looking import ask_workers
from tidegate.connectors.spark.pipeline import register, share
from tidegate.errors import DataError
from tidegate.server.tokens import digest_of, new_token

NOW = {"availableNow": True}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tidegate.Engine]:
    with tidegate.open(make_app(), tmp_path / "db") as found:
        yield found


@pytest.fixture
def options(spark: Any, engine: tidegate.Engine) -> Iterator[dict[str, str]]:
    with share(engine, spark) as found:
        yield found


# ---- tables


def test_tables_are_read_with_rows_and_columns_chosen_in_their_sql(
    spark: Any, engine: tidegate.Engine, options: dict[str, str]
) -> None:
    engine.push("readings", rows_of(0))
    read = spark.read.format("tidegate").options(**options)
    seen = read.load("seen")
    assert [tuple(row) for row in seen.orderBy("n").collect()] == engine.query("SELECT * FROM seen ORDER BY n").rows
    parity = read.load("parity").orderBy("odd")  # a view, with sums
    assert [tuple(row) for row in parity.collect()] == engine.query("SELECT * FROM parity ORDER BY odd").rows
    few = read.option("columns", "n").option("where", "n >= 17 AND n % 2 = 0 OR times > 1 -- and no more").load("seen")
    assert few.columns == ["n"]
    assert few.collect() == [(18,)]  # times is no column of the frame, and one of the table
    with pytest.raises(Exception, match="tims"):
        read.option("where", "tims = 1").load("seen").collect()


def test_a_data_frame_is_as_good_as_new_after_a_filter(
    spark: Any, engine: tidegate.Engine, options: dict[str, str]
) -> None:
    """Spark would take the filters that a reader was given for one scan for the next one too."""
    engine.push("readings", rows_of(0))
    seen = spark.read.format("tidegate").options(**options).load("seen")
    assert seen.where("n = 1").collect() == [(1, 1)]
    assert seen.count() == 20
    assert sorted(row.n for row in seen.where("n = 4 OR n = 7").collect()) == [4, 7]
    assert sorted(row.n for row in seen.where("n = 2").union(seen.where("n = 3")).collect()) == [2, 3]
    assert seen.where("n < 3").join(seen.where("n > 1"), "n").count() == 1


@pytest.mark.xfail(
    raises=AssertionError, reason="Spark keeps one read, with its filters, for all scans of a data frame"
)
def test_filters_that_spark_hands_to_a_python_reader_are_those_of_the_scan(spark: Any) -> None:
    """Why ours takes none, although it could leave them all for Spark to apply again. If this passes, it can."""

    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter

    class Narrowed(DataSourceReader):
        wanted: Sequence[Filter] = ()

        def pushFilters(self, filters: list[Filter]) -> list[Filter]:
            self.wanted = [one for one in filters if isinstance(one, EqualTo)]
            return filters

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            return ((n,) for n in range(10) if all(one.value == n for one in self.wanted))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n INT"

        def reader(self, schema: Any) -> Narrowed:
            return Narrowed()

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        one, other = (spark.read.format("numbers").load() for _ in range(2))
        found = one.where("n = 1").count(), one.count()
        both = sorted(row.n for row in other.where("n = 1").union(other.where("n = 2")).collect())
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert (found, both) == ((1, 10), [1, 2])


def test_every_type_comes_back(spark: Any) -> None:
    app = tidegate.App("types")
    app.table(
        "CREATE TABLE all_types (k INTEGER PRIMARY KEY, tiny UTINYINT, big UBIGINT, f FLOAT, d DECIMAL(9, 2), t VARCHAR, "
        "b BOOLEAN, ts TIMESTAMP, day DATE, clock TIME, span INTERVAL, raw BLOB, id UUID, j JSON, many INTEGER[])"
    )

    @app.procedure(writes=["all_types"])
    def put(txn: tidegate.Transaction) -> None:
        txn.execute(
            "INSERT INTO all_types VALUES (1, 200, 18446744073709551615, 1.5, 12.5, 'x', true, '2026-01-02 03:04:05', "
            "'2026-01-02', '03:04:05', INTERVAL 90 SECOND, 'ab'::BLOB, '00000000-0000-0000-0000-000000000001', "
            "'{\"a\": 1}', [1, 2])"
        )
        txn.execute("INSERT INTO all_types (k) VALUES (2)")

    with tidegate.open(app) as engine, share(engine, spark) as options:
        engine.call("put")
        frame = spark.read.format("tidegate").options(**options).load("all_types").orderBy("k")
        first, second = frame.collect()
        assert first.asDict() == {
            "k": 1, "tiny": 200, "big": Decimal(18446744073709551615), "f": 1.5, "d": Decimal("12.50"), "t": "x", "b": True,
            "ts": dt.datetime(2026, 1, 2, 3, 4, 5), "day": dt.date(2026, 1, 2), "clock": "03:04:05.000000",
            "span": dt.timedelta(seconds=90), "raw": bytearray(b"ab"), "id": "00000000-0000-0000-0000-000000000001",
            "j": '{"a": 1}', "many": [1, 2],
        }  # fmt: skip
        assert set(second.asDict().values()) == {2, None}
        for where in (
            "d > 12",
            "t LIKE 'x%'",
            "b",
            "ts > '2026-01-01'",
            "day = '2026-01-02'",
            "d IS NOT NULL",
            "f <=> 1.5",
        ):
            assert [row.k for row in frame.where(where).collect()] == [1], where


# ---- output streams


def test_an_output_stream_is_followed_across_restarts(
    spark: Any, engine: tidegate.Engine, options: dict[str, str], tmp_path: Path
) -> None:
    """Every batch once, also when Spark did not note what it had; what it has is acknowledged."""
    got: list[tuple[int, list[Any]]] = []

    def take(frame: Any, number: int) -> None:
        got.append((number, [tuple(row) for row in frame.collect()]))
        if failing:
            raise RuntimeError("it dies before Spark notes that it is done")

    def follow() -> None:
        frame = spark.readStream.format("tidegate").options(**options).option("stream", "totals").option("name", "s")
        query = (
            frame.option("batches", 2)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    failing = False
    live = engine.subscribe("totals")
    follow()  # the name is known from here on
    assert [rows for _, rows in got] == [[]]
    got.clear()
    for file in range(5):
        engine.push("readings", rows_of(file))
    emitted = [[tuple(row) for row in batch] for batch in live]
    follow()
    assert [rows for _, rows in got] == [emitted[0] + emitted[1], emitted[2] + emitted[3], emitted[4]]
    got.clear()
    failing = True
    engine.push("readings", rows_of(5))
    with pytest.raises(Exception, match="it dies"):
        follow()
    engine.push("readings", rows_of(6))
    failing = False
    follow()
    emitted = [[tuple(row) for row in batch] for batch in live]
    (died, first), (again, same), (_, second) = got
    assert died == again
    assert first == same == emitted[0]
    assert second == emitted[1]
    follow()  # what Spark has noted is acknowledged at the next start at the latest
    assert len(engine.subscribe_durably("totals", "s")) == 0


def test_a_changelog_is_followed_from_what_the_table_holds(spark: Any, tmp_path: Path) -> None:
    """Spark has the table as of its first start, then each change once, also when it dies in between."""
    app = tidegate.App("beds")
    app.table(
        "CREATE TABLE beds (ward VARCHAR, bed INTEGER, patient VARCHAR, PRIMARY KEY (ward, bed))",
        partition_by="ward",
        changelog=True,
    )

    @app.procedure(writes=["beds"])
    def put(txn: tidegate.Transaction, ward: str, bed: int, patient: str | None) -> None:
        if patient is None:
            txn.delete("beds", (ward, bed))
        else:
            txn.upsert("beds", (ward, bed, patient))

    held: dict[str, str] = {}
    changes = 0
    failing = False

    def take(frame: Any, number: int) -> None:
        nonlocal changes
        found = frame.orderBy("position").collect()
        if failing:
            raise RuntimeError("it dies before Spark notes that it is done")
        for row in found:
            assert held.pop(row.row_key, None) == row.before
            changes += 1
            if row.after is not None:
                held[row.row_key] = row.after

    def follow(options: dict[str, str]) -> None:
        stream = spark.readStream.format("tidegate").options(**options).options(stream="beds_changes", name="spark")
        query = stream.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(**NOW).start().awaitTermination()

    with tidegate.open(app, tmp_path / "db") as engine, share(engine, spark) as options:
        for ward in "AB":
            for bed in range(3):
                engine.call("put", ward, bed, f"p{bed}")
        engine.call("put", "A", 0, None)
        follow(options)  # what there is
        assert (len(held), changes) == (5, 5)
        engine.call("put", "A", 1, "new")
        engine.call("put", "B", 1, None)
        failing = True
        with pytest.raises(Exception, match="it dies"):
            follow(options)
        failing = False
        engine.call("put", "B", 1, "again")
        follow(options)
        rows = engine.query("SELECT * FROM beds ORDER BY ward, bed").rows
        assert changes == 8
        assert sorted(held) == [f'["{row.ward}",{row.bed}]' for row in rows]
        assert [json.loads(held[key])["patient"] for key in sorted(held)] == [row.patient for row in rows]


# ---- border streams


def test_a_data_frame_is_one_atomic_batch(spark: Any, engine: tidegate.Engine, options: dict[str, str]) -> None:
    frame = spark.createDataFrame(rows_of(0), COLUMNS).repartition(3).sortWithinPartitions("n")
    for job in ("monday", "monday", "tuesday"):
        frame.write.format("tidegate").options(**options).options(stream="readings", id=job).mode("append").save()
    assert {row.times for row in state(engine)["seen"]} == {2}
    assert engine.sequence == 2
    with pytest.raises(Exception, match=r"can't be overwritten"):
        frame.write.format("tidegate").options(**options).option("stream", "readings").mode("overwrite").save()
    wrong = frame.withColumn("value", frame.meter)
    with pytest.raises(Exception, match="column value is string in Spark and DOUBLE here"):
        wrong.write.format("tidegate").options(**options).option("stream", "readings").mode("append").save()


def test_micro_batches_are_written_once(
    spark: Any, engine: tidegate.Engine, options: dict[str, str], tmp_path: Path
) -> None:
    put_files(tmp_path / "in", range(2))

    def write() -> None:
        writer = readings(spark, tmp_path / "in").writeStream.format("tidegate").options(**options)
        writer = writer.option("stream", "readings").option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(**NOW).start().awaitTermination()

    write()
    (tmp_path / "c" / "commits" / "1").unlink()
    (tmp_path / "c" / "commits" / ".1.crc").unlink(missing_ok=True)
    put_files(tmp_path / "in", range(2, 3))
    write()
    assert state(engine) == oracle(range(3))
    assert engine.position("spark:readings")["batch"] == 2


def test_a_stream_is_written_from_a_thread_that_has_not_begun_the_session(
    spark: Any, engine: tidegate.Engine, tmp_path: Path
) -> None:
    """Spark looks the data source of ``writeStream`` up in the session that is active in the thread."""
    put_files(tmp_path / "in", range(1))
    failed: list[BaseException] = []

    def write() -> None:
        try:
            spark._jvm.SparkSession.clearActiveSession()
            with share(engine, spark) as options:
                writer = readings(spark, tmp_path / "in").writeStream.format("tidegate").options(**options)
                writer = writer.option("stream", "readings").option("checkpointLocation", str(tmp_path / "c"))
                writer.trigger(**NOW).start().awaitTermination()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not failed, failed
    assert state(engine) == oracle(range(1))


# ---- a served engine


@pytest.fixture
def served(tmp_path: Path) -> Iterator[dict[str, str]]:
    """``tidegate serve`` with a token, its replica and all; gives the options for Spark."""
    token = new_token()
    tokens = f'[[token]]\nname = "spark"\nsha256 = "{digest_of(token).hex()}"\nroles = ["push", "query", "admin"]\n'
    served = Path(__file__).parents[2] / "support" / "meters.py"
    command = [sys.executable, "-m", "tidegate", "serve", f"{served}:app", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--data", str(tmp_path / "served"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TIDEGATE_TOKENS": tokens, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    try:
        yield {"url": json.loads(process.stdout.readline())["url"], "token": token}
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_a_served_engine_is_read_and_written_over_its_url(spark: Any, served: dict[str, str]) -> None:
    register(spark)
    frame = spark.createDataFrame(rows_of(0), COLUMNS).coalesce(1)
    frame.write.format("tidegate").options(**served).option("stream", "readings").mode("append").save()
    with tidegate.connect(served["url"], served["token"]) as client:
        client.checkpoint()  # the replica answers at the last merge
        for _ in range(1_200):
            if client.query("SELECT count(*) FROM seen").scalar():
                break
            time.sleep(0.05)  # which reaches it a moment later
    parity = spark.read.format("tidegate").options(**served).load("parity")
    assert sorted((row.odd, row.total) for row in parity.collect()) == [(False, 90), (True, 100)]
    found = spark.read.format("tidegate").options(**served).load("meters").where("last >= 18").orderBy("meter")
    assert [tuple(row) for row in found.collect()] == [row for row in oracle(range(1))["meters"] if row.last >= 18]


def test_large_tables_are_read_in_partitions_at_one_state(spark: Any, served: dict[str, str], monkeypatch: Any) -> None:
    register(spark)
    ask_workers(spark)
    with tidegate.connect(served["url"], served["token"]) as client:
        client.push("readings", rows_of(0))
        client.checkpoint()
        while not client.query("SELECT count(*) FROM seen").scalar():
            time.sleep(0.05)
        read = spark.read.format("tidegate").options(**served).option("partitions", 3).option("where", "n <> 7")
        frame = read.load("seen")
        assert frame.rdd.getNumPartitions() == 3
        assert sorted(row.n for row in frame.collect()) == [n for n in range(20) if n != 7]
        with pytest.raises(Exception, match="give a number from 1 to"):
            spark.read.format("tidegate").options(**served).option("partitions", "many").load("seen").collect()

        # without the option: as many as the table needs, each of one answer that is below the server's limit
        monkeypatch.setattr(source, "SLICE", 6)
        reader = source.TableReader({**served, "table": "seen"}, frame.schema)
        parts = reader.partitions()
        assert len(parts) == 4
        found = [row for part in parts[:2] for batch in reader.read(part) for row in batch.to_pylist()]
        client.push("readings", rows_of(1))
        client.checkpoint()
        while client.query("SELECT count(*) FROM seen").scalar() == 20:
            time.sleep(0.05)
        found += [row for part in parts[2:] for batch in reader.read(part) for row in batch.to_pylist()]
        assert sorted(row["n"] for row in found) == list(range(20))  # what came between the reads is not in it
        grown = [row["n"] for batch in reader.read(source.Part(0, 1, None)) for row in batch.to_pylist()]
        assert sorted(grown) == list(range(40))  # planned when it was small: seven answers
    with (
        tidegate.open(make_app()) as engine,
        share(engine, spark) as options,
        pytest.raises(Exception, match="served engine"),
    ):
        spark.read.format("tidegate").options(**options).option("partitions", 2).load("seen").collect()


# ---- workers


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


@pytest.mark.slow
def test_a_session_whose_workers_lack_tidegate_is_refused(bare: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from pyspark.sql import SparkSession
from tidegate.connectors.spark.pipeline import register
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    register(session)
except Exception as error:
    print(type(error).__name__, error)
session.stop()
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert f"({bare}) can't import tidegate: ModuleNotFoundError: No module named 'tidegate'" in done.stdout, (
        done.stderr
    )


# ---- mistakes


def test_mistakes_are_named(spark: Any, engine: tidegate.Engine, options: dict[str, str]) -> None:
    source = spark.read.format("tidegate")
    with pytest.raises(Exception, match=r"needs option\('url', …\)"):
        source.load("seen")
    with pytest.raises(Exception, match=r"no table or view 'sen'.*seen"):
        spark.read.format("tidegate").options(**options).load("sen")
    with pytest.raises(Exception, match=r"no output stream 'readings'"):
        spark.readStream.format("tidegate").options(**options).option("stream", "readings").load()


def test_the_socket_is_for_this_user_and_goes_away(engine: tidegate.Engine) -> None:
    from tidegate.server.local import LocalServer

    with LocalServer(engine) as server:
        assert server.path.parent.stat().st_mode & 0o077 == 0
        with tidegate.connect(server.url) as client:
            client.push("readings", rows_of(0))
            assert client.query("SELECT count(*) FROM seen").scalar() == 20
            assert client.query("SELECT count(*) FROM seen WHERE n < ?", 5).scalar() == 5
            with pytest.raises(tidegate.errors.QueryRefused):
                client.query("DELETE FROM seen")
            with pytest.raises(DataError, match="readings has no column"):
                client.push("readings", [{"x": 1}])
    assert not server.path.parent.exists()
    assert state(engine) == oracle(range(1))
