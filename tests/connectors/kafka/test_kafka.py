"""Kafka as source and sink, against a real broker."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from source_apps import keeping, kept, rejected

from tidegate import App, Batch, Engine, window
from tidegate import windows as w
from tidegate.benchmarks.kafka_broker import KafkaBroker, read
from tidegate.connectors.kafka.changes import changes_in_topic
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.connectors.shared.values import AvroValues, JsonSchemaValues
from tidegate.errors import SinkError, SourceError
from tidegate.outside.changelog import rebuild

Open = Callable[..., Engine]
COLUMNS = "id BIGINT NOT NULL, name VARCHAR"
AVRO = {
    "type": "record",
    "name": "Thing",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}, "name": {}}, "required": ["id"]}

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


def test_records_come_in_once_and_bad_ones_are_told(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any, write: Any
) -> None:
    name = topic(2)
    write(name, b'{"id": 1, "name": "one"}', b"nonsense", b'{"id": 2}', None)
    write(name, b'{"id": 3}', b'{"id": "x"}', partition=1)
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    ingestion = engine.ingest("things", KafkaSource(broker.servers, name, follow=False), "in", limit=2)
    while not ingestion.finished:
        ingestion.pump(10)
    assert kept(engine) == [(1, "one"), (2, None), (3, None)]
    assert [place for place, _ in rejected(engine)] == [f"{name}/0/1", f"{name}/0/3", f"{name}/1/1"]
    assert "tombstone" in rejected(engine)[1][1]
    assert engine.position("in") == {"0": 4, "1": 2}
    assert ingestion.lag == 0
    engine.abandon()
    write(name, b'{"id": 4}')
    again = open_engine(keeping(COLUMNS), tmp_path / "db")
    ingestion = again.ingest("things", KafkaSource(broker.servers, name), "in")
    assert ingestion.pump(30) == 1
    assert [row[0] for row in kept(again)] == [1, 2, 3, 4]


def test_time_comes_as_far_as_in_the_slowest_partition(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any, write: Any
) -> None:
    name = topic(3)
    columns = "id BIGINT NOT NULL, at_ BIGINT NOT NULL"

    def at(*times: int) -> list[bytes]:
        return [json.dumps({"id": number, "at_": time}).encode() for number, time in enumerate(times)]

    def source(**more: Any) -> KafkaSource:
        return KafkaSource(broker.servers, name, time="at_", delay=5, **more)

    app = counted(columns)
    write(name, *at(1, 12, 31))
    write(name, *at(3, 25), partition=1)
    engine = open_engine(app, tmp_path / "db")
    ingestion = engine.ingest("things", source(), "in")
    while sum(row[1] for row in engine.query("SELECT * FROM seen").rows) < 5:
        ingestion.pump(10)
    assert engine.query("SELECT * FROM counts").rows == []  # nothing is known of the third
    assert engine.position("in") == {"0": 3, "1": 2, "2": 0, "times": {"0": 31, "1": 25}}
    engine.abandon()
    engine = open_engine(counted(columns), tmp_path / "db")
    write(name, *at(33), partition=2)
    ingestion = engine.ingest("things", source(), "in")
    while not engine.query("SELECT * FROM counts").rows:
        ingestion.pump(1)
    assert engine.query("SELECT * FROM counts ORDER BY 1").rows == [(0, 2), (10, 1)]  # 25 less 5
    write(name, *at(60))
    ingestion.close()
    ingestion = engine.ingest("things", source(idle="200ms"), "in")
    while len(engine.query("SELECT * FROM counts").rows) < 4:
        ingestion.pump(1)
    assert engine.query("SELECT * FROM counts ORDER BY 1").rows == [(0, 2), (10, 1), (20, 1), (30, 2)]
    with pytest.raises(SourceError, match="may be NULL"):
        open_engine(keeping(COLUMNS)).ingest("things", KafkaSource(broker.servers, name, time="name"), "in")


def counted(columns: str) -> App:
    app = App("counted")
    app.table("CREATE TABLE counts (start BIGINT PRIMARY KEY, n BIGINT)")
    app.table("CREATE TABLE seen (id BIGINT PRIMARY KEY, n BIGINT)")
    app.stream("things", columns, border=True)
    app.stream("kept", columns)

    @app.procedure(inputs="things", outputs="kept", writes=["seen"])
    def take(txn: Any, things: Batch) -> None:
        known = txn.get("seen", 1)
        txn.upsert("seen", (1, len(things) + (0 if known is None else known.n)))
        txn.emit("kept", [(row.id, row.at_) for row in things])

    each = window("kept", time=10, on="at_", delay=1_000_000, compute={"n": w.count()})

    @app.procedure(inputs="kept", writes=["counts"], windows={"each": each})
    def count(txn: Any, kept: Batch) -> None:
        txn.execute("INSERT INTO counts SELECT window_start, n FROM each")

    return app


def test_keys_and_schemas(open_engine: Open, broker: KafkaBroker, topic: Any, write: Any) -> None:
    """The record's key is a column, and a keyed stream has a batch for each; values are Avro, or JSON with a schema."""
    name = topic()
    avro = AvroValues(AVRO, schema_id=7)
    for i in (5, 6, 5):
        write(name, avro.encode({"id": i, "name": f"n{i}"}), key=str(i).encode())
    write(name, b"\0\0\0\0\7\2", key=b"9")
    engine = open_engine(keeping(COLUMNS, key="id"))
    seen = engine.subscribe("seen")
    ingestion = engine.ingest("things", KafkaSource(broker.servers, name, values=avro, key="id", follow=False), "in")
    while not ingestion.finished:
        ingestion.pump(10)
    assert sorted((batch.key, len(batch)) for batch in seen) == [(5, 2), (6, 1)]
    assert "no Avro record" in rejected(engine)[0][1]

    strict = topic()
    write(strict, b'{"id": 0}', b'{"id": 1}')
    other = open_engine(keeping(COLUMNS))
    source = KafkaSource(broker.servers, strict, values=JsonSchemaValues(SCHEMA), follow=False)
    ingestion = other.ingest("things", source, "in")
    while not ingestion.finished:
        ingestion.pump(10)
    assert kept(other) == [(1, None)]
    assert "id is refused by the JSON Schema: 0 is less than the minimum of 1" in rejected(other)[0][1]


def test_what_came_is_handed_out_at_once_and_aborted_records_never(
    open_engine: Open, broker: KafkaBroker, topic: Any
) -> None:
    """One record is not held back for more; the end of a topic is seen past what nobody may read there."""
    name = topic()
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(60)
    for number, end in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, json.dumps({"id": number}).encode())
        producer.flush(60)
        end(60)
    engine = open_engine(keeping(COLUMNS))
    following = engine.ingest("things", KafkaSource(broker.servers, name), "follow")
    chunk = following.source.poll(1000, 3600.0)  # longer than any test may take
    assert chunk is not None
    assert [row.id for row in chunk.rows] == [1]
    following.close()
    ingestion = engine.ingest("things", KafkaSource(broker.servers, name, follow=False), "in")
    while not ingestion.finished:
        ingestion.pump(3600.0)
    assert kept(engine) == [(1, None)]
    assert ingestion.lag is not None


def test_a_check_tells_the_lag_and_leaves_the_group_alone(
    open_engine: Open, broker: KafkaBroker, topic: Any, write: Any
) -> None:
    name = topic(2)
    write(name, b'{"id": 1}', b'{"id": 2}')
    source = KafkaSource(broker.servers, name, group=f"group-{name}")
    relation = keeping(COLUMNS).streams["things"].relation
    assert source.check("in", relation, None) == (f"topic {name} has 2 partitions", 2)
    assert source.check("in", relation, {"0": 1, "1": 0}).lag == 1
    groups = AdminClient({"bootstrap.servers": broker.servers}).list_consumer_groups().result(60).valid
    assert f"group-{name}" not in [group.group_id for group in groups]
    with pytest.raises(SourceError, match="topic nowhere"):
        KafkaSource(broker.servers, "nowhere").check("in", relation, None)
    assert "nowhere" not in AdminClient({"bootstrap.servers": broker.servers}).list_topics(timeout=60).topics


def test_mistakes_are_told_at_the_start(open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any) -> None:
    engine = open_engine(keeping("id BIGINT NOT NULL, colour VARCHAR NOT NULL"), tmp_path / "db")
    with pytest.raises(SourceError, match="has 'name', which the stream does not have; it lacks colour"):
        engine.ingest("things", KafkaSource(broker.servers, topic(), values=AvroValues(AVRO)), background=True)
    with pytest.raises(SourceError, match="topic nowhere"):
        engine.ingest("things", KafkaSource(broker.servers, "nowhere"), background=True)
    with pytest.raises(SourceError, match="key='n': stream things has the columns id, colour"):
        engine.ingest("things", KafkaSource(broker.servers, topic(), key="n"))
    with pytest.raises(SourceError, match="not a valid Avro schema"):
        AvroValues({"type": "recrod"})
    with pytest.raises(SinkError, match="no column n, which key= names"):
        engine.deliver("seen", KafkaSink(broker.servers, topic(), key="n"))


def words(name: str = "words") -> App:
    app = App(name)
    app.stream("incoming", "id BIGINT NOT NULL, word VARCHAR", border=True, key="id")
    app.stream("words", "id BIGINT, word VARCHAR")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("words", list(incoming))

    return app


def test_batches_arrive_once_whatever_is_sent_again(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any
) -> None:
    name = topic()
    engine = open_engine(words(), tmp_path / "db")
    sink = KafkaSink(broker.servers, name)
    delivery = engine.deliver("words", sink, f"out-{name}")
    for i in (1, 2, 1):
        engine.push("incoming", [(i, f"w{i}"), (i, "x")])
    batches = delivery._subscription.take(10)
    sink.send(batches)
    sink.send(batches)  # the same process
    other = KafkaSink(broker.servers, name)
    other.open(f"words/out-{name}", engine.app.streams["words"].relation)
    other.send(batches)  # another one, which has only what Kafka remembers
    arrived = [(key, json.loads(value)["word"]) for key, value in read(broker.servers, name)]
    assert arrived == [(b"1", "w1"), (b"1", "x"), (b"2", "w2"), (b"2", "x"), (b"1", "w1"), (b"1", "x")]
    with pytest.raises(SinkError, match="has taken over"):
        sink.send([Batch(batches[0].relation, 9, batches[0].rows, 1)])  # the first one is fenced
    with pytest.raises(SinkError, match="other rows than the batch delivered"):
        other.send([Batch(batches[0].relation, 1, batches[1].rows, 1)])
    assert len(read(broker.servers, name)) == 6


def test_records_that_kafka_can_not_take_are_put_aside(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any
) -> None:
    """Too large for the topic, or no record of the schema: after so many tries the rest goes on, each batch once."""
    small, strict = topic(config={"max.message.bytes": "2000"}), topic()
    engine = open_engine(words(), tmp_path / "db")
    schema = {"properties": {"id": {"type": "integer"}, "word": {"maxLength": 99}}}
    sinks = [KafkaSink(broker.servers, small, settings={"compression.type": "none"})]
    sinks += [KafkaSink(broker.servers, strict, values=JsonSchemaValues(schema))]
    assert [sink.check("words/x", engine.app.streams["words"].relation).split()[-1] for sink in sinks] == ["exists"] * 2
    deliveries = [engine.deliver("words", sink, sink.topic, background=True, tries=2) for sink in sinks]
    noise = random.Random(5).randbytes(4000).hex()
    for i, word in enumerate(("a", noise, "b"), 1):
        engine.push("incoming", [(i, word), (i, "x")])
    for sink, delivery in zip(sinks, deliveries, strict=True):
        assert delivery.drain(120), delivery
        assert (delivery.delivered, delivery.refused) == (2, 1)
        arrived = [json.loads(value)["word"] for _, value in read(broker.servers, sink.topic)]
        assert arrived == ["a", "x", "b", "x"]
    told = [row.error for row in engine.query("SELECT error FROM tidegate.dead_letters ORDER BY procedure").rows]
    assert len(told) == 2
    assert any("too large" in error for error in told)
    assert any("is not a valid record of the schema" in error for error in told)


def test_a_broker_that_dies_is_connected_to_again(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any, write: Any
) -> None:
    into, out = topic(), topic()
    write(into, b'{"id": 1}')
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    delivery = engine.deliver("seen", KafkaSink(broker.servers, out), f"out-{out}", background=True)
    seen = engine.subscribe("seen")
    ingestion = engine.ingest("things", KafkaSource(broker.servers, into), "in", background=True)
    assert seen.get(60) is not None
    broker.kill()
    broker.start()
    write(into, b'{"id": 2}')
    assert seen.get(120) is not None, ingestion
    assert delivery.drain(120), delivery
    assert [json.loads(value)["id"] for _, value in read(broker.servers, out)] == [1, 2]


def test_one_name_may_deliver_to_two_topics_and_from_two_apps(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any
) -> None:
    """What fences is a second producer for the same app, delivery and topic; nobody else is in the way."""
    first, second, shared = topic(), topic(), topic()
    routes = [(words("one"), first), (words("one"), second), (words("one"), shared), (words("two"), shared)]
    engines = [open_engine(app, tmp_path / str(i)) for i, (app, _) in enumerate(routes)]
    deliveries = [
        engine.deliver("words", KafkaSink(broker.servers, name), "out")
        for engine, (_, name) in zip(engines, routes, strict=True)
    ]
    for _ in range(2):
        for engine, delivery in zip(engines, deliveries, strict=True):
            engine.push("incoming", [(1, "w")])
            assert delivery.pump() == 1  # none is fenced by those that came after it
    assert [len(read(broker.servers, name)) for name in (first, second, shared)] == [2, 2, 4]
    open_engine(words("one"), tmp_path / "copy").deliver("words", KafkaSink(broker.servers, first), "out")
    engines[0].push("incoming", [(1, "w")])
    with pytest.raises(SinkError, match=r"another process delivers.*'one/out'"):
        deliveries[0].pump()


def test_a_changelog_in_a_compacted_topic_rebuilds_an_engine(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, topic: Any
) -> None:
    def bank() -> App:
        app = App("bank")
        app.table("CREATE TABLE accounts (id BIGINT PRIMARY KEY, money DECIMAL(9,2) NOT NULL)", changelog=True)

        @app.procedure(writes=["accounts"])
        def put(txn: Any, account: int, money: int) -> None:
            if money:
                txn.upsert("accounts", (account, money))
            else:
                txn.delete("accounts", account)

        return app

    name = f"accounts-{uuid.uuid4()}"  # the sink makes it
    engine = open_engine(bank(), tmp_path / "db")
    engine.call("put", 9, 4)  # before anyone follows
    sink = KafkaSink(broker.servers, name, changelog=True, partitions=2)
    delivery = engine.deliver("accounts_changes", sink, "changes")
    for account, money in [(1, 5), (2, 6), (1, 7), (3, 8), (2, 0)]:
        engine.call("put", account, money)
    delivery.pump()
    records = read(broker.servers, name, partitions=2)
    assert [value for key, value in records if key == b"[2]"] == [
        b'{"id":2,"money":"6.00"}',
        None,
    ]  # the row, a tombstone
    assert rebuild(bank(), tmp_path / "new", {"accounts": changes_in_topic(broker.servers, name)}) == {"accounts": 3}
    new = open_engine(bank(), tmp_path / "new")
    accounts = "SELECT * FROM accounts ORDER BY id"
    assert new.query(accounts).rows == engine.query(accounts).rows

    short = KafkaSink(broker.servers, f"{name}-short", changelog=True, config={"cleanup.policy": "delete"})
    engine.deliver("accounts_changes", short, "short").pump()
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for future in admin.delete_records([TopicPartition(short.topic, 0, 1)]).values():
        future.result(30)  # as retention does
    with pytest.raises(SourceError, match=r"begins at offset 1 .*needs cleanup\.policy=compact"):
        rebuild(bank(), tmp_path / "lost", {"accounts": changes_in_topic(broker.servers, short.topic)})
