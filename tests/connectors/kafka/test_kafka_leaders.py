"""Topics that were made a moment ago, and partitions whose leader changes: asked for again, never taken for empty."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from source_apps import keeping, kept

from tidegate import Engine
from tidegate.benchmarks.kafka_broker import KafkaBroker, read
from tidegate.connectors.kafka.offsets import first_and_end
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.errors import SourceError

Open = Callable[..., Engine]
COLUMNS = "id BIGINT NOT NULL, name VARCHAR"

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


class Watched(Consumer):  # type: ignore[misc]
    """A consumer that keeps the refusals it got, and does something after the first."""

    def __init__(self, servers: str, after_the_first: Callable[[], None] = lambda: None) -> None:
        super().__init__({"bootstrap.servers": servers, "group.id": "watched", "log_level": 0})
        self.refusals: list[int] = []
        self._after_the_first = after_the_first

    def get_watermark_offsets(self, *given: Any, **named: Any) -> Any:
        try:
            return super().get_watermark_offsets(*given, **named)
        except KafkaException as error:
            self.refusals.append(error.args[0].code())
            if len(self.refusals) == 1:
                self._after_the_first()
            raise


@pytest.fixture
def admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})


def create(admin: AdminClient, name: str, **options: Any) -> None:
    for future in admin.create_topics([NewTopic(name, 1, **options)]).values():
        future.result(60)


def wait_for(admin: AdminClient, topic: str, holds: Callable[[Any], bool]) -> None:
    until = time.monotonic() + 60
    while not holds(partition := admin.list_topics(topic, timeout=30).topics[topic].partitions[0]):
        assert time.monotonic() < until, (topic, partition.leader, partition.isrs)
        time.sleep(0.05)


def test_a_topic_that_is_being_made_is_asked_for_again(broker: KafkaBroker, admin: AdminClient, write: Any) -> None:
    name = f"made-{uuid.uuid4()}"

    def make() -> None:
        create(admin, name)
        write(name, b"a", b"b")

    consumer = Watched(broker.servers, make)
    assert first_and_end(consumer, TopicPartition(name, 0), 60) == (0, 2)
    assert consumer.refusals[0] in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(KafkaException):  # in the end it is an error
        first_and_end(consumer, TopicPartition("nowhere", 0), 0.3)
    consumer.close()


def test_a_source_and_a_sink_begin_with_topics_made_a_moment_ago(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, admin: AdminClient, write: Any
) -> None:
    """Nobody waits for leaders here, as nobody does who makes a topic and starts at once."""
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    for number in range(1, 6):
        name = f"new-{uuid.uuid4()}"
        create(admin, name)
        ingestion = engine.ingest("things", KafkaSource(broker.servers, name), name)
        delivery = engine.deliver("seen", KafkaSink(broker.servers, f"{name}-out"), name)
        write(name, b'{"id": %d}' % number)
        assert ingestion.pump(60) == 1
        assert delivery.pump() == 1
        assert len(read(broker.servers, f"{name}-out")) == 1
        ingestion.close()
    assert [row[0] for row in kept(engine)] == [1, 2, 3, 4, 5]


@pytest.fixture
def second(broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """A second broker of the cluster, for this test."""
    made = KafkaBroker(beside=broker)
    yield made
    made.remove()


def test_a_partition_whose_leader_has_changed(
    open_engine: Open, tmp_path: Path, broker: KafkaBroker, second: KafkaBroker, admin: AdminClient, write: Any
) -> None:
    """The second broker leads, dies, and comes back as a follower: who still takes it for the leader is refused by it.
    Of what it led alone nothing can be read meanwhile; that is no empty topic, and no reason to give up.
    """
    both, alone = f"both-{uuid.uuid4()}", f"alone-{uuid.uuid4()}"
    create(admin, both, replica_assignment=[[second.node, broker.node]])
    create(admin, alone, replica_assignment=[[second.node]])
    write(both, b'{"id": 1}')
    write(alone, b'{"id": 2}')
    consumer = Watched(broker.servers)
    assert first_and_end(consumer, TopicPartition(both, 0), 60) == (0, 1)
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    ingestions = [engine.ingest("things", KafkaSource(broker.servers, name), name) for name in (both, alone)]
    assert [ingestion.pump(60) for ingestion in ingestions] == [1, 1]

    second.kill()
    wait_for(admin, both, lambda partition: partition.leader == broker.node)
    wait_for(admin, alone, lambda partition: partition.leader == -1)
    asking = Watched(broker.servers)
    with pytest.raises(KafkaException):
        first_and_end(asking, TopicPartition(alone, 0), 0.5)
    asking.close()

    second.start()
    wait_for(admin, both, lambda partition: len(partition.isrs) == 2)
    assert first_and_end(consumer, TopicPartition(both, 0), 60) == (0, 1)
    assert consumer.refusals == [KafkaError.NOT_LEADER_FOR_PARTITION] * len(consumer.refusals)
    assert consumer.refusals
    consumer.close()
    write(both, b'{"id": 3}')
    write(alone, b'{"id": 4}')
    for ingestion in ingestions:
        while ingestion.rows < 2:
            with contextlib.suppress(SourceError):  # it may not have noticed yet
                ingestion.pump(10)
            assert ingestion.at_work, ingestion.error
    assert [row[0] for row in kept(engine)] == [1, 2, 3, 4]
