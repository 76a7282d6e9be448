"""Exactly-once from Kafka to Kafka, under kills of the engine and of the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingestion_kills import Tormentor

from tidegate.benchmarks.kafka_broker import KafkaBroker, read

POINTS = ("ingestion-before-push", "delivery-before-send", "ingestion-before-committed", "delivery-after-send")

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


def torment(
    broker: KafkaBroker, topic: Any, write: Any, tmp_path: Path, kills: int, recovery: str, *, only_broker: bool = False
) -> None:
    into, out = topic(2), topic()

    def add(first: int, last: int) -> None:
        for i in range(first, last + 1):
            write(into, json.dumps({"id": i, "name": f"n{i}"}).encode(), partition=i % 2)

    options = ("--sink", f"kafka:{broker.servers}/{out}", "--recovery", recovery)
    tormentor = Tormentor(tmp_path / "engine", f"kafka:{broker.servers}/{into}", add, kills, *options)
    done = 0
    while done < kills:
        if only_broker:
            tormentor.kill_server(broker.kill, broker.start, 5)
            done += 5
        elif done % 5 == 3:
            tormentor.kill_server(broker.kill, broker.start)
            done += 2
        elif done % 5 == 2:
            tormentor.kill_sometime()
            done += 1
        else:
            tormentor.kill_at(POINTS[done % len(POINTS)])
            done += 1
    told = tormentor.finish()
    arrived = [json.loads(value) for _, value in read(broker.servers, out)]
    assert sorted(row["id"] for row in arrived) == list(range(1, tormentor.rows + 1))
    assert {row["times"] for row in arrived} == {1}
    print(told)


def test_two_kills_from_kafka_to_kafka(broker: KafkaBroker, topic: Any, write: Any, tmp_path: Path) -> None:
    torment(broker, topic, write, tmp_path, 2, "weak")


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_twenty_kills_from_kafka_to_kafka(
    broker: KafkaBroker, topic: Any, write: Any, tmp_path: Path, recovery: str
) -> None:
    torment(broker, topic, write, tmp_path, 20, recovery)


@pytest.mark.slow
def test_twenty_kills_of_the_broker(broker: KafkaBroker, topic: Any, write: Any, tmp_path: Path) -> None:
    torment(broker, topic, write, tmp_path, 20, "weak", only_broker=True)
