"""A Kafka topic as a source: every record once, in order for every partition. Needs ``tidegate[kafka]``.

The offsets are in *our* log, in one record with the rows: ``{"0": 17, "1": 4}``, the next offset of every partition.
Offsets committed to the consumer group are only for monitoring; they are never read back.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidegate.connectors.kafka.offsets import ClientLog, asked, described, first_and_end
from tidegate.connectors.shared.reading import UNREADABLE, RowReader, from_text, reason, shown
from tidegate.connectors.shared.slowest import Slowest
from tidegate.connectors.shared.values import JsonValues, Values
from tidegate.errors import DeclarationError, SourceError
from tidegate.outside.sources import Checked, Malformed, Polled
from tidegate.storage.schema import Relation, Row
from tidegate.streams.windows.declare.durations import Duration

log = logging.getLogger("tidegate")

REQUEST_S = 10.0
SHORTEST_POLL_S = 0.05  # the client reports only while it is polled
MOST_AT_ONCE = 1_000_000  # that librdkafka returns
TIMES = "times"  # in an offset: the newest time of each partition
OVERSIGHT_S = 5.0  # how often new partitions are looked for


class KafkaSource:
    """Records of ``topic`` from the brokers at ``servers`` (``"host:9092,…"``), without those of aborted transactions.

    ``values``: how a record is written, JSON by default. ``key``: the column for a record's key. A stream keyed by that
    column has a batch per key. ``group``: the consumer group that offsets are committed to, for tools that watch lag;
    ``tidegate-`` and the ingestion's name by default. ``follow=False``: finish at the end that the topic has when it is
    opened. ``settings``: of librdkafka, for TLS and passwords. ``fields``, ``ignore_unknown``: see
    :mod:`tidegate.connectors.shared.reading`.

    ``time``: a column with the time of a record, which ascends within each partition, but for ``delay``. The stream's time then
    comes as far as the slowest partition, whose newest time is kept with its offset; one that has nothing more, and was
    silent for ``idle``, does not hold it back.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        values: Values | None = None,
        key: str | None = None,
        group: str | None = None,
        follow: bool = True,
        settings: Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
        time: str | None = None,
        delay: Duration | None = None,
        idle: str | dt.timedelta | None = None,
    ) -> None:
        if time is None and (delay is not None or idle is not None):
            raise DeclarationError(f"topic {topic}: delay= and idle= are about time; name its column with time=")
        self.servers = servers
        self.topic = topic
        self.finished = False
        self._values = values or JsonValues()
        self._key = key
        self._group = group
        self._follow = follow
        self._settings = dict(settings or {})
        self._options = (fields, ignore_unknown)
        self._consumer: Consumer | None = None
        self._slowest = None if time is None else Slowest(time, delay, idle)
        self._at: dict[str, int] = {}
        self._ends: dict[str, int] = {}  # of every partition when it was opened: it finishes there
        self._seen: dict[str, int] = {}  # the offset at which a partition was seen to have nothing more
        self._down: KafkaError | None = None
        self._overseen = 0.0
        self._interrupted = False

    @property
    def lag(self) -> int | None:
        """Records that the brokers have and we do not, according to their last answers."""
        if self._consumer is None:
            return None
        behind = 0
        for partition, at in self._at.items():
            low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, int(partition)), cached=True)
            behind += max(0, high - max(at, low)) if high >= 0 else 0
        return behind

    @property
    def watermark(self) -> Any:
        """How far time has come in every partition, by the records polled so far; None: that is not known."""
        if self._slowest is None or self._consumer is None:
            return None
        return self._slowest.reached(self._at, self._is_read)

    def _is_read(self, partition: str) -> bool:
        """Has it nothing more, according to the last answer of the brokers?"""
        assert self._consumer is not None
        _, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, int(partition)), cached=True)
        return 0 <= int(high) <= self._at[partition]

    # ---- connecting

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        """Opening neither joins the group nor commits to it."""
        self.open(name, relation, offset)
        try:
            behind = {p: self._watermarks(p)[1] - at for p, at in self._at.items()}
        except KafkaException as error:
            raise self._unreadable(error.args[0]) from error
        finally:
            self.close()
        what = "partition" if len(behind) == 1 else "partitions"
        return Checked(f"topic {self.topic} has {len(behind)} {what}", sum(max(0, n) for n in behind.values()))

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        self._name = name
        self.finished = False
        self._down = None
        self._seen = {}
        self._reader = RowReader(relation, *self._options)
        if self._key is not None and self._key not in relation.index_of:
            raise SourceError(
                f"key={self._key!r}: stream {relation.name} has the columns {', '.join(relation.column_names)}",
                source=name,
                fatal=True,
            )
        if self._slowest is not None:
            self._slowest.begin(name, relation, (offset or {}).get(TIMES, {}))
        self._reader.check_schema(self._values.fields(), self._key, f"the schema of topic {self.topic}")
        group = self._group or f"tidegate-{name}"
        try:
            self._consumer = self._made_consumer(group)
            self._at = {str(partition): int(at) for partition, at in (offset or {}).items() if partition != TIMES}
            self._assign()
            if not self._follow:
                self._ends = {partition: self._watermarks(partition)[1] for partition in self._at}
        except KafkaException as error:
            self.close()
            raise self._unreadable(error.args[0]) from error
        except BaseException:
            self.close()
            raise

    def _made_consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "error_cb": self._on_error,
                "logger": ClientLog(),
                "socket.connection.setup.timeout.ms": 5_000,
                "fetch.wait.max.ms": 100,
                "enable.partition.eof": not self._follow,
                **self._settings,
            }
        )

    def _assign(self) -> None:
        """Read every partition of the topic from its offset on, or from its beginning."""
        assert self._consumer is not None
        found = described(self._consumer, self.topic, REQUEST_S, lambda: self._interrupted)
        if found.error is not None:
            missing = found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            raise SourceError(
                f"topic {self.topic} at {self.servers}: {found.error.str()}"
                + (". Check the name, or create the topic first" if missing else ""),
                source=self._name,
                fatal=missing and not self._at,  # a partition that we have read from existed
            )
        for partition in found.partitions:
            if str(partition) not in self._at:
                self._at[str(partition)] = self._watermarks(str(partition))[0]
        self._consumer.assign([TopicPartition(self.topic, int(p), at) for p, at in self._at.items()])
        self._overseen = time.monotonic()

    def _watermarks(self, partition: str) -> tuple[int, int]:
        assert self._consumer is not None
        return first_and_end(self._consumer, TopicPartition(self.topic, int(partition)), REQUEST_S)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._down = error

    # ---- reading

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        assert self._consumer is not None
        try:
            first = self._consumer.poll(max(timeout_s, SHORTEST_POLL_S))
            # only what is here already; waiting for more, as consume() does with a timeout, would delay it
            more = [] if first is None else self._consumer.consume(min(limit - 1, MOST_AT_ONCE), 0.0)
            self._oversee()
        except KafkaException as error:
            raise self._unreadable(error.args[0]) from error
        if first is None:
            if self._down is not None:
                raise self._unreadable(self._down)
            return None
        self._down = None
        return self._polled([first, *more])

    def _polled(self, messages: list[Any]) -> Polled | None:
        rows: list[Row] = []
        malformed: list[Malformed] = []
        places: list[tuple[int, int]] = []
        at = dict(self._at)
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is not None:
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise self._unreadable(message.error())
                self._seen[str(partition)] = offset
                continue
            at[str(partition)] = offset + 1
            try:
                rows.append(self._row(message))
                if self._slowest is not None:
                    self._slowest.hear(str(partition), rows[-1])
                places.append((partition, offset))
            except UNREADABLE as error:
                malformed.append(Malformed(self._place(partition, offset), shown(message.value()), reason(error)))
        self._at = at
        if not self._follow:  # past aborted and control records at the end of a partition, which are never handed out
            self.finished = all(max(at[p], self._seen.get(p, 0)) >= end for p, end in self._ends.items())
        if not rows and not malformed:
            return None
        offset_: dict[str, Any] = at if self._slowest is None else {**at, TIMES: self._slowest.saved()}
        return Polled(rows, offset_, malformed, lambda i: self._place(*places[i]))

    def _place(self, partition: int, offset: int) -> str:
        return f"{self.topic}/{partition}/{offset}"

    def _row(self, message: Any) -> Row:
        data = message.value()
        if data is None:
            raise ValueError("a record without a value (a tombstone)")
        record = self._values.decode(data)
        if self._key is not None and isinstance(record, dict):
            key = message.key()
            text = None if key is None else key.decode()
            record = {
                **record,
                self._reader.field_of[self._key]: from_text(self._reader.relation.column(self._key), text),
            }
        return self._reader.row(record)

    def _oversee(self) -> None:
        """From time to time: is there a new partition?"""
        if time.monotonic() - self._overseen < OVERSIGHT_S or self._consumer is None:
            return
        self._overseen = time.monotonic()
        consumer = self._consumer
        told = asked(
            lambda turn_s: consumer.list_topics(self.topic, timeout=turn_s), REQUEST_S, lambda: self._interrupted
        )
        found = told.topics[self.topic]
        if found.error is None and any(str(partition) not in self._at for partition in found.partitions):
            self._assign()

    # ---- telling others

    def committed(self, offset: Any) -> None:
        assert self._consumer is not None
        offsets = [TopicPartition(self.topic, int(p), at) for p, at in offset.items() if p != TIMES and at > 0]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:  # our own log has them
            log.debug("ingestion %s: committing the offsets of the group failed: %s", self._name, error)

    def interrupt(self) -> None:
        """From another thread: do not wait any longer for brokers that do not answer."""
        self._interrupted = True

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _unreadable(self, error: Any) -> SourceError:
        lost = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        if error.code() == KafkaError._INVALID_ARG:
            return SourceError(f"settings= for topic {self.topic}: {error.str()}", source=self._name, fatal=True)
        hint = (
            ". The records after the offset are gone: retention removed them while nothing read them. Ingest under "
            "a new name to start with what is still there"
            if lost
            else ". Check the address, that the brokers are up, and settings= for TLS and passwords"
        )
        return SourceError(
            f"can't read topic {self.topic} at {self.servers}: {error.str()}{hint}", source=self._name, fatal=lost
        )
