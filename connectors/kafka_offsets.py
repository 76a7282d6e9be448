"""Which offsets a partition has: what source, sink and rebuild ask before they read. Needs ``tidegate[kafka]``."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

PAUSE_S = 0.1
SETTLING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
)


def first_and_end(consumer: Consumer, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """The first offset that a partition still has, and the one behind its last.

    A topic that was made a moment ago, or whose broker has just come back, has no leader yet: that passes, so it is asked
    again for ``timeout_s`` seconds. No answer is an error, never an empty partition.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            found = consumer.get_watermark_offsets(place, timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in SETTLING or time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)
        else:
            if found is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return max(0, found[0]), found[1]
