"""MQTT topics as a source, for devices: at least once. Needs ``tidegate[mqtt]``.

A message is acknowledged to the broker only after its rows are on disk here (QoS 1), and a persistent session makes the
broker keep what arrives while we are away. If we die between the two, the broker sends the message again: a row may
come twice, and can be recognised only by what the device put into it. MQTT has no offset that could go into our log.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tidegate.connectors.shared.families import known
from tidegate.connectors.shared.reading import RowReader
from tidegate.connectors.shared.values import JsonValues, Values
from tidegate.connectors.shared.waiting_line import WaitingLine, arrived
from tidegate.errors import Overloaded, SourceError
from tidegate.mutex import Flag
from tidegate.outside.sources import Checked, Polled
from tidegate.storage.schema import Relation

log = logging.getLogger("tidegate")

CONNECT_S = 30.0


class MqttSource:
    """Messages on ``topics`` (``"ward/+/monitor"``) of the broker at ``host``; a JSON object or a list of them each.

    ``topic``: a column for the message's topic. ``client_id``: the name of the session that the broker keeps;
    ``tidegate-`` and the ingestion's name by default. ``qos``: 1 (at least once) or 0 (at most once). ``capacity``:
    messages that may wait here; the broker keeps the rest.
    """

    finished = False

    def __init__(
        self,
        host: str,
        topics: str | list[str],
        *,
        port: int = 1883,
        topic: str | None = None,
        values: Values | None = None,
        client_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
        qos: int = 1,
        capacity: int = 1000,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        if qos not in (0, 1):
            raise SourceError(f"MqttSource(qos={qos!r}): 1 or 0; MQTT's 2 gives nothing more here", fatal=True)
        self.address = (host, port)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._topic = topic
        self._values = values or JsonValues()
        self._client_id = client_id
        self._login = (username, password)
        self._tls = tls
        self._qos = qos
        self._capacity = capacity
        self._options = (fields, ignore_unknown)
        self._line = WaitingLine(capacity)
        self._client: Any = None
        self._refused: str | None = None
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)

    @property
    def lag(self) -> int | None:
        """Messages that arrived and are not on disk yet; how many the broker keeps is unknown."""
        return len(self._line)

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        """Connects under a separate name, without a persistent session: the source's own session and messages stay."""
        self._check_fit(name, relation)
        client = self._made_client(f"tidegate-check-{uuid.uuid4().hex[:8]}", keep=False)
        shared = [topic for topic in self._topics if topic.startswith("$share/")]  # would take messages from others
        try:
            self._connect(client, [topic for topic in self._topics if topic not in shared])
        finally:
            client.disconnect()
            client.loop_stop()
        host, port = self.address
        return Checked(
            f"{host}:{port} lets us subscribe" + (f"; {', '.join(shared)} not tried" if shared else ""), None
        )

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        self._check_fit(name, relation)
        self._line = WaitingLine(self._capacity)
        self._line.open(offset)
        client = self._made_client(self._client_id or f"tidegate-{name}", keep=True)
        client.max_inflight_messages_set(self._capacity)
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        self._client = client
        try:
            self._connect(client, self._topics)
        except BaseException:
            self.close()
            raise

    def _check_fit(self, name: str, relation: Relation) -> None:
        self._reader = RowReader(relation, *self._options)
        if self._topic is not None and self._topic not in relation.index_of:
            raise SourceError(
                f"topic={self._topic!r}: stream {relation.name} has the columns {', '.join(relation.column_names)}",
                source=name,
                fatal=True,
            )
        where = f"the schema of the messages on {', '.join(self._topics)}"
        self._reader.check_schema(self._values.fields(), self._topic, where)
        if self._topic is not None:
            self._reader.check_types({self._reader.field_of[self._topic]: known("text", "text")}, "a message's topic")

    def _made_client(self, client_id: str, keep: bool) -> Any:
        """``keep``: the broker keeps a session under this id, and the messages that arrive while we are away."""
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=not keep,
            manual_ack=keep,
            reconnect_on_failure=keep,
        )
        if self._login[0] is not None:
            client.username_pw_set(*self._login)
        if self._tls:
            client.tls_set()
        return client

    def _connect(self, client: Any, topics: list[str]) -> None:
        """Returns when the broker has accepted us and our subscriptions: what is published from then on reaches us."""
        self._refused = None
        answered = Flag()

        def on_connect(client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
            self._refused = str(code) if code.is_failure else None
            if code.is_failure or not topics:
                answered.set()
            else:
                client.subscribe([(topic, self._qos) for topic in topics])

        def on_subscribe(_client: Any, _data: Any, _number: int, codes: list[Any], _properties: Any) -> None:
            refused = [f"{topic}: {code}" for topic, code in zip(topics, codes, strict=False) if code.is_failure]
            self._refused = f"it refuses {', '.join(refused)}" if refused else None
            answered.set()

        client.on_connect = on_connect
        client.on_subscribe = on_subscribe
        try:
            client.connect(*self.address, keepalive=30)
        except OSError as error:
            raise self._unreachable(str(error)) from error
        client.loop_start()
        if not answered.wait(CONNECT_S) or self._refused is not None:
            raise self._unreachable(self._refused or f"no answer within {CONNECT_S:g} s")

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        if code.is_failure:
            self._refused = str(code)

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        place = f"{message.topic}/{self._run}/{next(self._numbers)}"

        def acknowledge() -> None:
            client.ack(message.mid, message.qos)

        try:
            records = self._values.decode(message.payload)
        except (ValueError, msgspec.DecodeError):
            records = message.payload
        listed = records if isinstance(records, list) and records and isinstance(records[0], dict) else [records]

        def read(record: Any) -> Any:
            if isinstance(record, bytes):
                return self._reader.row(self._values.decode(record))  # raises, saying why
            if self._topic is not None and isinstance(record, dict):
                record = {**record, self._reader.field_of[self._topic]: message.topic}
            return self._reader.row(record)

        try:
            self._line.put(arrived(place, listed, read, acknowledge))
        except Overloaded:
            log.debug("%s: the queue is full; the broker keeps the message", place)

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        polled = self._line.take(limit, timeout_s)
        if polled is None and self._refused is not None:
            raise self._unreachable(self._refused)
        return polled

    def committed(self, offset: Any) -> None:
        self._line.done()

    def close(self) -> None:
        if self._client is not None:
            self._line.close()
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def _unreachable(self, why: str) -> SourceError:
        host, port = self.address
        return SourceError(
            f"no connection to the MQTT broker at {host}:{port}: {why}. Check host and port, that the broker is up, "
            "and the permissions of username="
        )
