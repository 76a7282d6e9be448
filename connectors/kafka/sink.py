"""A Kafka topic as a sink: exactly once, for readers of committed records. Needs ``tidegate[kafka]``.

    begin ─▶ rows of the batches ─▶ which batches these are, into the cursor topic ─▶ commit     one Kafka transaction

After a crash, or when it is unknown whether a commit took place, the producer registers again: that fences the previous
holder of the name, aborts its open transaction, and then the last record of the cursor topic says which batches are
there. Only the batches of one ``send`` can be repeated, so the cursor holds those of the last one, with their digests.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.connectors.kafka.offsets import ClientLog, asked, first_and_end
from tidegate.connectors.shared.plain import key_text, plain, short_digest, stable_text
from tidegate.connectors.shared.values import JsonValues, Values
from tidegate.errors import SinkError, SinkRefused
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch
from tidegate.streams.border import digest
from tidegate.wire import RowWire

REQUEST_S = 15.0
HEADER = "tidegate-batch"
UNWANTED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.RECORD_LIST_TOO_LARGE,
)  # about these records; other errors are about the brokers, or our permissions
STEP = 20  # records of the cursor topic read from its end, in growing steps


class KafkaSink:
    """Writes every row of a batch as a record to ``topic`` at ``servers``, with the batch's stable id in a header.

    ``key``: the column whose value is the record's key; by default the stream's key. ``values``: how rows are written,
    JSON by default. ``partitions``, ``config``: for a topic that has to be created (none: ``partitions=1``).
    ``changelog``: for the changelog of a table, into a compacted topic: the record's key is the row's key, its value
    the current row, or none when it was deleted. ``at_once``: batches that share a transaction. ``settings``: of
    librdkafka.
    """

    transactional = True

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        values: Values | None = None,
        changelog: bool = False,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        at_once: int = 500,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.at_once = at_once
        self._key = key
        self._values = values or JsonValues()
        self._changelog = changelog
        self._partitions = partitions
        self._config = {**({"cleanup.policy": "compact"} if changelog else {}), **(config or {})}
        self._settings = {"bootstrap.servers": servers, **(settings or {})}
        self._producer: Producer | None = None
        self._cursor: dict[tuple[str, int], str] = {}  # (key, batch-id) -> digest, of the last send
        self._fenced: str | None = None
        self._failures: list[KafkaError] = []  # of records of the transaction that is open

    # ---- getting ready

    def open(self, name: str, relation: Relation) -> None:
        self._check_fit(name, relation)
        self._wire = RowWire(relation)
        self._identity = f"tidegate-{name}-{self.topic}"  # one producer at a time for an app's delivery to a topic
        try:
            self._make_topics()
            self._register()
        except KafkaException as error:
            raise self._unusable(relation.name, error) from error

    def check(self, name: str, relation: Relation) -> str:
        """Would :meth:`open` succeed, as far as known without becoming the producer? Creates and fences nothing."""
        self._check_fit(name, relation)
        try:
            admin = AdminClient({**self._settings, "logger": ClientLog()})
            there = asked(lambda turn_s: admin.list_topics(timeout=turn_s), REQUEST_S).topics
        except KafkaException as error:
            raise self._unusable(relation.name, error) from error
        return f"topic {self.topic} {'exists' if self.topic in there else 'will be created'}"

    def _check_fit(self, name: str, relation: Relation) -> None:
        self.name = name
        self._cursor_topic = _cursor_topic(name, self.topic)
        wanted = ("row_key", "after") if self._changelog else (self._key,) if self._key else ()
        missing = [column for column in wanted if column not in relation.index_of]
        told = [
            f"it has no column {', '.join(missing)}, which {'a changelog has' if self._changelog else 'key= names'}"
        ] * bool(missing)
        if not self._changelog and (unwritable := self._values.unwritable(relation, self._key)):
            told += [f"its rows are not valid records of the schema: {'; '.join(unwritable)}"]
        if told:
            raise SinkError(
                f"KafkaSink for stream {relation.name} ({', '.join(relation.column_names)}): {'; '.join(told)}. Change the "
                "stream, or give another key= or schema",
                sink=name,
                stream=relation.name,
            )

    def _unusable(self, stream: str, error: KafkaException) -> SinkError:
        return SinkError(
            f"can't deliver {stream} to topic {self.topic} at {self.servers}: {error.args[0].str()}. Check the "
            f"address, that the brokers are up, and that we may create topics and use transactions there",
            sink=self.name,
            stream=stream,
        )

    def _make_topics(self) -> None:
        admin = AdminClient({**self._settings, "logger": ClientLog()})
        there = asked(lambda turn_s: admin.list_topics(timeout=turn_s), REQUEST_S).topics
        cursor = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
        wanted = [
            NewTopic(self.topic, self._partitions, config=self._config),
            NewTopic(self._cursor_topic, 1, config=cursor),
        ]
        missing = [topic for topic in wanted if topic.topic not in there]
        for future in admin.create_topics(missing).values() if missing else ():
            try:
                future.result(REQUEST_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _register(self) -> None:
        """A new producer under our name: the previous one can no longer commit, and its open transaction is aborted."""
        self._producer = Producer(
            {
                **self._settings,
                "transactional.id": self._identity,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 5,
                "compression.type": "lz4",
                "delivery.report.only.error": True,
                "on_delivery": self._on_failure,
                "logger": ClientLog(),
            }
        )
        asked(self._producer.init_transactions, REQUEST_S)
        self._cursor = self._read_cursor()

    def _on_failure(self, error: KafkaError | None, _: Any) -> None:
        """A record was refused. The commit then only says that some were."""
        if error is not None:
            self._failures.append(error)

    def _read_cursor(self) -> dict[tuple[str, int], str]:
        """The batches of the last committed send: the last record of the cursor topic that readers may see."""
        consumer = Consumer(
            {
                **self._settings,
                "group.id": self._cursor_topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "logger": ClientLog(),
            }
        )
        try:
            place = TopicPartition(self._cursor_topic, 0)
            low, high = first_and_end(consumer, place, REQUEST_S)
            step = STEP
            while high > low:
                begin = max(low, high - step)
                found = self._last_value(consumer, begin)
                if found is not None:
                    return {(key, batch_id): told for key, batch_id, told in json.loads(found)}
                if begin == low:
                    break
                step *= 10
            return {}
        finally:
            consumer.close()

    def _last_value(self, consumer: Consumer, begin: int) -> bytes | None:
        consumer.assign([TopicPartition(self._cursor_topic, 0, begin)])
        last = None
        ends = time.monotonic() + REQUEST_S
        while time.monotonic() < ends:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                last = message.value()
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return last
            else:
                raise KafkaException(message.error())
        raise SinkError(f"{self.servers} did not deliver {self._cursor_topic} within {REQUEST_S:g} s", sink=self.name)

    # ---- delivering

    def send(self, batches: Sequence[Batch]) -> None:
        if self._fenced is not None:
            raise SinkError(self._fenced, sink=self.name, stream=batches[0].stream)
        try:
            if self._producer is None:
                self._register()
            self._deliver(batches)
        except KafkaException as error:
            self._producer = None  # registering again will show whether it was committed
            if error.args[0].code() in (
                KafkaError._FENCED,
                KafkaError.PRODUCER_FENCED,
                KafkaError.INVALID_PRODUCER_EPOCH,
            ):
                self._fenced = (
                    f"another process delivers to {self.topic} under the name {self.name!r} and has taken over; close one "
                    f"of the two engines, or deliver under another name"
                )
                raise SinkError(self._fenced, sink=self.name, stream=batches[0].stream) from error
            raise self._refused(batches[0].stream, (*self._failures, error.args[0])[0]) from error

    def _deliver(self, batches: Sequence[Batch]) -> None:
        """Everything that makes it exactly once happens here, in one transaction."""
        digests = {(key_text(batch), batch.id): digest(batch.rows) for batch in batches}
        fresh = [batch for batch in batches if self._is_fresh(batch, digests)]
        if not fresh:
            return
        producer = self._producer
        assert producer is not None
        self._failures.clear()
        producer.begin_transaction()
        try:
            for batch in fresh:
                self._produce(producer, batch)
            cursor = [[key, batch_id, told] for (key, batch_id), told in digests.items()]
            producer.produce(self._cursor_topic, json.dumps(cursor).encode(), key=self._identity.encode())
            producer.commit_transaction(REQUEST_S)
        except BaseException:
            self._producer = None
            raise
        self._cursor = digests

    def _is_fresh(self, batch: Batch, digests: Mapping[tuple[str, int], str]) -> bool:
        """False for a repeat. The same id with other rows is an error: it is another engine's, and would be lost."""
        address = key_text(batch), batch.id
        known = self._cursor.get(address)
        if known is not None and known != digests[address]:
            raise SinkError(
                f"{batch!r} has other rows than the batch delivered to {self.topic} under its id. Another engine delivers under "
                f"the name {self.name!r}, or this one started over. Deliver under another name",
                sink=self.name,
                stream=batch.stream,
                batch_id=batch.id,
            )
        return known is None

    def _produce(self, producer: Producer, batch: Batch) -> None:
        headers = [(HEADER, stable_text(batch).encode())]
        for record in self._wire.write(batch.rows):
            if self._changelog:
                key, value = record["row_key"].encode(), None if record["after"] is None else record["after"].encode()
            else:
                chosen = record[self._key] if self._key else batch.key
                key = None if chosen is None else str(plain(chosen)).encode()
                value = self._encoded(record, batch)
            while True:
                try:
                    producer.produce(self.topic, value, key=key, headers=headers)
                    break
                except BufferError:  # the producer's queue is full: let it send
                    producer.poll(0.1)
        producer.poll(0)

    def _encoded(self, record: Mapping[str, Any], batch: Batch) -> bytes:
        try:
            return self._values.encode(record)
        except Exception as error:  # each library raises its own errors
            raise SinkRefused(
                f"a row of {batch!r} is not a valid record of the schema for topic {self.topic}: "
                f"{type(error).__name__} {error}. It was {dict(record)!r}",
                sink=self.name,
                stream=batch.stream,
                batch_id=batch.id,
            ) from error

    def _refused(self, stream: str, error: Any) -> SinkError:
        return (SinkRefused if error.code() in UNWANTED else SinkError)(
            f"{self.servers} did not accept a batch of {stream} for topic {self.topic}: {error.str()}. Check that the "
            "brokers are up, and that the topic accepts such records; the batch is kept and sent again",
            sink=self.name,
            stream=stream,
        )

    def close(self) -> None:
        self._producer = None


def _cursor_topic(name: str, topic: str) -> str:
    """For one delivery to one topic. Topic names are short and limited: the digest tells similar ones apart."""
    readable = re.sub("[^A-Za-z0-9._-]", "-", f"{name}-{topic}")[:200]
    return f"tidegate-cursor-{readable}-{short_digest(f'{name} {topic}')}"
