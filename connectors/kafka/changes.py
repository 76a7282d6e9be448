"""The changelog of a table in a Kafka topic, read to its end: what :func:`tidegate.outside.changelog.rebuild` needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidegate.connectors.kafka.offsets import ClientLog, described, first_and_end
from tidegate.errors import SourceError

WAIT_S = 30.0


def changes_in_topic(
    servers: str, topic: str, *, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str | None]]:
    """``(row_key, after)`` for every record that ``KafkaSink(…, changelog=True)`` wrote; of a compacted topic, what is left.

    In order for every key: all records of a key are in one partition.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"tidegate-changes-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "logger": ClientLog(),
            **(settings or {}),
        }
    )
    try:
        found = described(consumer, topic, WAIT_S)
        if found.error is not None:
            raise SourceError(f"topic {topic} at {servers}: {found.error.str()}", fatal=True)
        left = set(found.partitions)
        _check_whole(consumer, topic, left)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            message = consumer.poll(WAIT_S)
            if message is None:
                raise SourceError(f"{servers} did not deliver topic {topic} to its end within {WAIT_S:g} s")
            if message.error() is None:
                value = message.value()
                yield message.key().decode(), None if value is None else value.decode()
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise SourceError(f"can't read topic {topic} at {servers}: {message.error().str()}")
    except KafkaException as error:
        raise SourceError(f"can't read topic {topic} at {servers}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _check_whole(consumer: Consumer, topic: str, partitions: Iterable[int]) -> None:
    """Compaction leaves the last record of every key. Retention removes rows: what is left is not the whole table."""
    for partition in partitions:
        first, _ = first_and_end(consumer, TopicPartition(topic, partition), WAIT_S)
        if first > 0:
            raise SourceError(
                f"topic {topic} begins at offset {first} of partition {partition}: retention removed earlier records, "
                "and with them rows that have not changed since. A changelog needs cleanup.policy=compact. Deliver "
                "it again, under another name and to a new topic: it then begins with all rows",
                fatal=True,
            )
