"""Partitions and offsets of a topic: what source, sink and rebuild need before they read. Needs ``tidegate[kafka]``.

A topic created a moment ago is not known to every broker yet, and after a change of leader the first request may go to
the wrong broker. That passes, so requests are retried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

log = logging.getLogger("tidegate")

T = TypeVar("T")

PAUSE_S = 0.1
TURN_S = 0.5  # of a request
SPREAD_S = 1.0  # until a new topic is known everywhere; a wrong name is retried for as long
SETTLING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
)


NO_ANSWER = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


def never() -> bool:
    return False


def asked(ask: Callable[[float], T], timeout_s: float, stopped: Callable[[], bool] = never) -> T:
    """The answer to a request that takes its time limit, in turns.

    The client library does not return to Python while it waits: Ctrl-C takes effect between two turns, and so does
    ``stopped``, which ends it as if the time were over.
    """
    until = time.monotonic() + timeout_s
    while True:
        left = until - time.monotonic()
        try:
            return ask(max(min(TURN_S, left), PAUSE_S))
        except KafkaException as error:
            waits = error.args[0].code() in NO_ANSWER or error.args[0].retriable()
            if not waits or time.monotonic() >= until or stopped():
                raise


class ClientLog:
    """Logs what the client library reports, at every attempt to connect for example, at debug level.

    What matters is raised once, as our own error.
    """

    def log(self, level: int, text: str, *values: Any) -> None:
        log.debug(text, *values)


def described(consumer: Consumer, topic: str, timeout_s: float, stopped: Callable[[], bool] = never) -> Any:
    """A topic as the brokers describe it, its ``error`` included."""
    until = time.monotonic() + SPREAD_S
    while True:
        found = asked(lambda turn_s: consumer.list_topics(topic, timeout=turn_s), timeout_s, stopped).topics[topic]
        if found.error is None or found.error.code() not in SETTLING or time.monotonic() > until:
            return found
        time.sleep(PAUSE_S)


def first_and_end(consumer: Consumer, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """The first offset that a partition still has, and the one after its last.

    While it has no leader the request is retried, for ``timeout_s`` seconds. No answer is an error, never an empty
    partition.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            found = asked(lambda turn_s: consumer.get_watermark_offsets(place, timeout=turn_s), timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in SETTLING or time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)
        else:
            if found is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return max(0, found[0]), found[1]
