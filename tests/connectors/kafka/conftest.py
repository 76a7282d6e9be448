"""One broker for all tests here, which run on one worker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.benchmarks.kafka_broker import KafkaBroker, Unavailable

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker of this run's own. Where there can be none, its tests are skipped, saying why."""
    try:
        made = KafkaBroker()
    except Unavailable as error:
        pytest.skip(str(error))
    yield made
    made.remove()


@pytest.fixture
def topic(broker: KafkaBroker) -> Callable[..., str]:
    """``topic(partitions=1, **options)``: a new topic."""

    def make(partitions: int = 1, **options: Any) -> str:
        name = f"topic-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": broker.servers})
        for future in admin.create_topics([NewTopic(name, partitions, **options)]).values():
            future.result(60)
        until = time.monotonic() + 60
        while not _has_leaders(admin, name, partitions):
            assert time.monotonic() < until, f"{name} has no leaders"
            time.sleep(0.05)
        return name

    return make


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=30).topics[topic]
    return len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values())


@pytest.fixture
def write(broker: KafkaBroker) -> Callable[..., None]:
    """``write(topic, value, …, key=None, partition=0)``."""
    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})

    def put(topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
        for value in values:
            producer.produce(topic, value, key=key, partition=partition)
        assert producer.flush(60) == 0

    return put
