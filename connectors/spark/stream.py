"""Output streams for ``spark.readStream``: batches of a named, durable subscription.

An offset of Spark names the batches that lead up to it, by their cursors, which are the same after every restart: so Spark can
read them again, from any process, until it has noted that it is done with them. Then they are acknowledged.

    latestOffset(start)   the oldest batches that wait and are not in ``start``      ─▶ end = their cursors
    read(start, end)      those batches, from the server; they wait until ...
    commit(end)           ... here, where they are acknowledged
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import tidegate
from tidegate.client import Client
from tidegate.connectors.spark.types import as_arrow
from tidegate.errors import ServerError

AT_ONCE = 1_000  # batches in a micro-batch


class OutputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one output stream. Spark's driver has one; its tasks have copies that only read."""

    def __init__(self, options: dict[str, str], schema: StructType, stream: str, name: str) -> None:
        self._options = options
        self._schema = schema
        self._stream = stream
        self._name = name
        self._at_once = int(options.get("batches", AT_ONCE))
        self._last: set[str] | None = None  # with availableNow: what was waiting at the start

    def _client(self) -> Client:
        return tidegate.connect(self._options["url"], self._options.get("token"))

    def initialOffset(self) -> dict[str, Any]:
        """Nothing yet. From here on the engine keeps what is emitted."""
        with self._client() as client:
            client.waiting(self._stream, self._name, 1)
        return {"count": 0, "cursors": []}

    def prepareForTriggerAvailableNow(self) -> None:
        with self._client() as client:
            self._last = {cursor for cursor, _ in client.waiting(self._stream, self._name)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """``start`` is finished for good: Spark asks for more only after it has noted that."""
        done = set(start["cursors"])
        with self._client() as client:
            found = [c for c, _ in client.waiting(self._stream, self._name, self._at_once + len(done))]
            left = [cursor for cursor in found if cursor in done]
            if left:
                client.acknowledge(self._name, left)
        fresh = [c for c in found if c not in done and (self._last is None or c in self._last)][: self._at_once]
        return {"count": start["count"] + len(fresh), "cursors": fresh} if fresh else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(end["cursors"])] if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted: list[str] = partition.value
        with self._client() as client:
            found = dict(client.waiting(self._stream, self._name, len(wanted)))
            if not all(cursor in found for cursor in wanted):
                found = dict(client.waiting(self._stream, self._name))
        missing = [cursor for cursor in wanted if cursor not in found]
        if missing:
            raise ServerError(
                f"{len(missing)} of {len(wanted)} batches of {self._stream} that Spark wants to read again are acknowledged: "
                f"another query, or another subscriber, uses the name {self._name!r}. Give every query its own name",
                status=410,
            )
        for cursor in wanted:
            yield from as_arrow(self._schema, found[cursor].to_arrow()).to_batches()

    def commit(self, end: dict[str, Any]) -> None:
        if end["cursors"]:
            with self._client() as client:
                client.acknowledge(self._name, end["cursors"])
