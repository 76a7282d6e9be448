"""What is sent between the engine's process and the replica: frames of a kind, some facts and a body.

    kind (1 byte) · length of the facts (4) · length of the body (8) · facts as JSON · body as Arrow IPC

Both ends are tidegate, of the same version. Bodies are streams of record batches.
"""

from __future__ import annotations

import asyncio
import enum
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_HEAD = struct.Struct(">BIQ")


class Kind(enum.IntEnum):
    """What a frame says."""

    # engine to replica
    CONFIGURE = 1  # tables, limits, how to serve
    BEGIN = 2  # a merge: its number and position; ``fresh``: everything follows, drop what you have
    DELETE = 3  # keys that are gone, or about to be inserted again
    INSERT = 4
    PUBLISH = 5  # the merge is complete
    VIEW = 6  # one system view, as asked for
    VIEWED = 7  # that was the last
    FRESH = 9  # the position of the newest merge, as asked for
    END = 8  # about to be ended: tell your sessions why
    # replica to engine
    READY = 20
    ALIVE = 21  # regularly: what it holds and what it can't stop
    WANT_VIEWS = 22
    FAREWELL = 23
    AWAKE = 24  # there are queries: merge at my pace, and report the position
    RESTING = 25  # no queries for a while: merge as you like
    # a query, both ways
    QUERY = 40
    SCHEMA = 41
    BATCH = 42
    ERROR = 43
    DONE = 44


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    facts: dict[str, Any]
    body: bytes = b""


def pack(kind: Kind, facts: dict[str, Any] | None = None, body: bytes | memoryview = b"") -> bytes:
    """A frame as bytes."""
    told = json.dumps(facts or {}).encode()
    return b"".join((_HEAD.pack(kind, len(told), len(body)), told, body))


def receive(connection: socket.socket) -> Frame | None:
    """The next frame; None when the other end is gone."""
    head = _exactly(connection, _HEAD.size)
    if head is None:
        return None
    kind, told, size = _HEAD.unpack(head)
    facts = _exactly(connection, told)
    body = _exactly(connection, size) if size else b""
    if facts is None or body is None:
        return None
    return Frame(Kind(kind), json.loads(facts), bytes(body))


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, read = memoryview(data), 0
    while read < size:
        try:
            count = connection.recv_into(view[read:])
        except ConnectionError:
            return None
        if not count:
            return None
        read += count
    return data


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The same, for asyncio."""
    try:
        kind, told, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return Frame(Kind(kind), json.loads(await reader.readexactly(told)), await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def to_ipc(table: pa.Table | pa.RecordBatch) -> memoryview:
    """A table or batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return memoryview(sink.getvalue())


def schema_to_ipc(schema: pa.Schema) -> memoryview:
    return memoryview(schema.serialize())


def from_ipc(body: bytes) -> pa.Table:
    """The table in an Arrow IPC stream."""
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()


def schema_from_ipc(body: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(body))


def values_to_ipc(values: Sequence[Any], names: Sequence[str]) -> memoryview:
    """Parameters as a table of one row, so that each keeps its type."""
    return to_ipc(pa.Table.from_arrays([pa.array([value]) for value in values], names=list(names)))
