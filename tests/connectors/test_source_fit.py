"""Types of sources and schemas against columns: what can never fit is told at the start, what may is taken."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from replication_slots import drop_slots
from source_apps import keeping, kept

from tidegate import App, Engine
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.connectors.mqtt import MqttSource
from tidegate.connectors.postgres.changes import PostgresChanges
from tidegate.connectors.shared.families import AS_AVRO, AS_JSON, PRINTED, TAKEN
from tidegate.connectors.shared.reading import UNREADABLE, RowReader, from_text
from tidegate.connectors.shared.values import AvroValues, JsonSchemaValues
from tidegate.connectors.sql.source import SqlSource
from tidegate.errors import SinkError, SourceError
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.wire import RowWire

Open = Callable[..., Engine]
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)
TYPES = {
    "integer": "INTEGER", "float": "DOUBLE", "decimal": "DECIMAL(9,2)", "text": "VARCHAR", "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP", "date": "DATE", "time": "TIME", "interval": "INTERVAL", "blob": "BLOB", "uuid": "UUID",
    "json": "JSON", "list": "INTEGER[]",
}  # fmt: skip
TEXTS = ["word", "1.5", "2026-01-02", "03:04:05", "P1DT2S", "aGVq", str(uuid.UUID(int=7)), '{"a": 1}', "[1]", "1", "t"]
SAMPLES: dict[str, list[Any]] = {
    "integer": [1], "float": [1.5], "decimal": [Decimal(1), Decimal("1.5")], "text": TEXTS, "boolean": [True],
    "timestamp": [MOMENT], "date": [MOMENT.date()], "time": [MOMENT.time()], "interval": [dt.timedelta(days=1)],
    "blob": [b"\x00"], "uuid": [uuid.UUID(int=7)], "list": [[1]], "object": [{"a": 1}],
}  # fmt: skip
PRINTS = {
    "integer": ["1"], "float": ["1.5", "3"], "decimal": ["1.50", "2"], "text": TEXTS, "boolean": ["t"],
    "timestamp": ["2026-01-02 03:04:05+00"], "date": ["2026-01-02"], "time": ["03:04:05"], "interval": ["P1DT2S"],
    "blob": ["\\xff"], "uuid": [str(uuid.UUID(int=7))], "list": ["{1,2}"],
}  # fmt: skip


def relation_of(kind: str) -> Relation:
    return Relation("s", (Column("v", column_type(kind)),))


def is_taken(read: Callable[[], Any]) -> bool:
    try:
        read()
    except UNREADABLE:
        return False
    return True


@pytest.mark.parametrize("family", SAMPLES)
def test_the_table_of_what_is_taken_is_what_is_taken(family: str) -> None:
    for column, kind in TYPES.items():
        reader = RowReader(relation_of(kind))
        found = any(is_taken(lambda: reader.row({"v": value})) for value in SAMPLES[family])  # noqa: B023
        assert found == (column in TAKEN[family]), kind


@pytest.mark.parametrize("family", PRINTS)
def test_the_table_of_what_is_printed_is_what_is_read(family: str) -> None:
    for column, kind in TYPES.items():
        relation = relation_of(kind)
        reader = RowReader(relation)
        found = any(
            is_taken(lambda: reader.row({"v": from_text(relation.columns[0], text)}))  # noqa: B023
            for text in PRINTS[family]
        )
        assert found == (column in PRINTED[family]), kind


SCHEMAS: dict[str, list[tuple[Any, str]]] = {
    "avro": [
        ("long", "integer"), ("double", "float"), ("string", "text"), ("boolean", "boolean"), ("bytes", "blob"),
        ({"type": "array", "items": "int"}, "list"), ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"), ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "time-micros"}, "time"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal"),
    ],
    "json": [
        ({"type": "integer"}, "integer"), ({"type": "number"}, "float"), ({"type": "string"}, "text"),
        ({"type": "boolean"}, "boolean"), ({"type": "array"}, "list"), ({"type": "object"}, "object"),
    ],
}  # fmt: skip


def values_of(schema: str, kind: Any) -> Any:
    if schema == "json":
        return JsonSchemaValues({"properties": {"v": kind}})
    return AvroValues({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("column", TYPES)
def test_the_table_of_what_is_written_is_what_can_be_written(schema: str, column: str) -> None:
    """And what was written is read back as it was, times in UTC whatever the machine's zone."""
    relation = relation_of(TYPES[column])
    written = (AS_AVRO if schema == "avro" else AS_JSON)[column]
    given = {
        **{family: samples[0] for family, samples in SAMPLES.items()},
        "decimal": Decimal("1.50"), "json": '{"a":1}',
    }[column]  # fmt: skip
    row = relation.conform((given,))
    for kind, family in SCHEMAS[schema]:
        values = values_of(schema, kind)
        told = values.unwritable(relation)
        fits = family in written or (column == "integer" and kind == {"type": "number"})
        assert bool(told) == (not fits), (kind, told)
        if not told:
            data = values.encode(RowWire(relation).write([row])[0])
            assert RowReader(relation).row(values.decode(data)) == row


def test_avro_times_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        values = values_of("avro", {"type": "long", "logicalType": "timestamp-micros"})
        assert values.decode(values.encode({"v": MOMENT}))["v"] == MOMENT.replace(tzinfo=dt.UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


AVRO = {
    "type": "record", "name": "Thing",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "values", "told"),
    [
        ("id BIGINT, name INTEGER", AvroValues(AVRO), "'name' is string, which name INTEGER can't take"),
        ("id TIMESTAMP, name VARCHAR", AvroValues(AVRO), "'id' is int, which id TIMESTAMP can't take"),
        (
            "id BIGINT, name VARCHAR",
            JsonSchemaValues({"properties": {"id": {"type": ["string", "null"]}, "name": {}}}),
            "'id' is string or null, which id BIGINT can't take",
        ),
    ],
)
def test_records_of_a_schema(open_engine: Open, columns: str, values: Any, told: str) -> None:
    engine = open_engine(keeping(columns))
    for source in (KafkaSource("127.0.0.1:1", "t", values=values), MqttSource("127.0.0.1", "t", port=1, values=values)):
        with pytest.raises(SourceError, match=told) as caught:
            engine.ingest("things", source, "in", background=True)
        assert caught.value.fatal


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id BIGINT, name VARCHAR", r"'id' is int, which can't hold the stream's id BIGINT"),
        ("id INTEGER, name DOUBLE", r"'name' is string, which can't hold the stream's name DOUBLE"),
        ("id INTEGER", r"it has the fields name, which the stream does not have"),
        ("id INTEGER, name VARCHAR, ward VARCHAR", r"it has no field ward, which the stream has"),
    ],
)
def test_a_stream_that_is_no_record_of_the_sinks_schema(columns: str, told: str) -> None:
    app = App("out")
    app.stream("sent", columns)
    sink = KafkaSink("127.0.0.1:1", "t", values=AvroValues(AVRO))
    for asked in (sink.open, sink.check):
        with pytest.raises(SinkError, match=told):
            asked("out", app.streams["sent"].relation)


def test_mqtt_topics_go_into_text(open_engine: Open) -> None:
    engine = open_engine(keeping("id BIGINT NOT NULL, ward INTEGER"))
    with pytest.raises(SourceError, match="'ward' is text, which ward INTEGER can't take"):
        engine.ingest("things", MqttSource("127.0.0.1", "t", port=1, topic="ward"), "in", background=True)
    with pytest.raises(SourceError, match="topic='place': stream things has the columns id, ward"):
        engine.ingest("things", MqttSource("127.0.0.1", "t", port=1, topic="place"), "in", background=True)


def test_parquet(open_engine: Open, tmp_path: Path) -> None:
    table = pa.table(
        {"id": pa.array([1]), "at_time": pa.array([MOMENT]), "n": pa.array(["7"]), "tags": pa.array([["a"]])}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    for columns, told in (
        (
            "id BIGINT, at_time INTEGER, n BIGINT, tags VARCHAR[]",
            r"'at_time' is timestamp\[us\], which at_time INTEGER",
        ),
        ("id BOOLEAN, at_time DATE, n BIGINT, tags VARCHAR[]", "'id' is int64, which id BOOLEAN"),
        ("id BIGINT, at_time TIMESTAMP, n BIGINT, tags VARCHAR", "'tags' is list.*, which tags VARCHAR"),
    ):
        with pytest.raises(SourceError, match=told):
            open_engine(keeping(columns)).ingest("things", FileSource(tmp_path), "in")
    engine = open_engine(keeping("id DECIMAL(9,0), at_time TIMESTAMP, n BIGINT, tags JSON"))
    assert engine.ingest("things", FileSource(tmp_path), "in").pump() == 1
    assert kept(engine) == [(1, MOMENT, 7, '["a"]')]


def test_tables(open_engine: Open, database: sa.Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT, yes BOOLEAN)"))
        connection.execute(sa.text("INSERT INTO rows VALUES (1, 'a', true)"))
    with pytest.raises(SourceError, match=r"'name' is (?i:text), which name BIGINT can't take"):
        open_engine(keeping("id BIGINT, name BIGINT, yes BOOLEAN")).ingest("things", SqlSource(database, "rows", "id"))
    engine = open_engine(keeping("id BIGINT, name VARCHAR, yes BOOLEAN"))
    assert engine.ingest("things", SqlSource(database, "rows", "id")).pump() == 1
    assert kept(engine) == [(1, "a", True)]


def test_queries_and_changes_of_postgres(open_engine: Open, postgres: Any) -> None:
    database = sa.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    drop_slots(database)
    with database.begin() as connection:
        for statement in (
            "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP PUBLICATION IF EXISTS fit",
            "CREATE TABLE timed (id INT PRIMARY KEY, at_time TIMESTAMPTZ, tags INT[], lasting INTERVAL)",
        ):  # fmt: skip
            connection.execute(sa.text(statement))
    query = "(SELECT id, at_time, tags FROM timed)"
    with pytest.raises(SourceError, match="'at_time' is timestamptz, which at_time BIGINT can't take"):
        open_engine(keeping("id BIGINT, at_time BIGINT, tags INTEGER[]")).ingest(
            "things", SqlSource(database, query, "id")
        )
    source = PostgresChanges(database, "timed", slot="fit")
    with pytest.raises(
        SourceError, match=r"'at_time' is timestamptz, which at_time BIGINT.*'tags' is _int4, which tags"
    ):
        open_engine(keeping("op VARCHAR, id BIGINT, at_time BIGINT, tags INTEGER[], lasting INTERVAL")).ingest(
            "things", source
        )
    engine = open_engine(keeping("op VARCHAR, id BIGINT, at_time TIMESTAMP, tags VARCHAR, lasting INTERVAL"))
    ingestion = engine.ingest("things", PostgresChanges(database, "timed", slot="fit"))
    with database.begin() as connection:
        connection.execute(sa.text("INSERT INTO timed VALUES (1, '2026-01-02 03:04:05+00', '{1,2}', '1 day 2 s')"))
    assert ingestion.pump(60) == 1
    assert kept(engine) == [("insert", 1, MOMENT, "{1,2}", dt.timedelta(days=1, seconds=2))]
    ingestion.close()
    source.drop()
    database.dispose()
