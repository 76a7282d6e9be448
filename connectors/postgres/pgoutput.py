"""PostgreSQL's logical replication messages (plugin ``pgoutput``, protocol version 1), as values.

    B begin │ C commit │ R relation │ I insert │ U update │ D delete │ T truncate │ O origin │ Y type

Values come as text. An unchanged value that is stored out of line (TOAST) is not sent at all: UNCHANGED.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

UNCHANGED: Final = object()


@dataclass(frozen=True)
class Table:
    """What a relation message says: name, columns, and which of them identify a row."""

    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One row changed. ``values``: the row after an insert or update, its identity before a delete."""

    operation: str
    table: Table
    values: dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """The transaction ends; ``end`` is the LSN after it."""

    end: int


class Decoder:
    """Turns messages into values; remembers the relations it has seen."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}

    def decode(self, message: bytes) -> Change | Commit | None:
        """A change or a commit; None for any other message."""
        kind = message[:1]
        if kind == b"C":
            return Commit(struct.unpack_from(">Q", message, 10)[0])
        if kind == b"R":
            oid, table = _relation(message)
            self._tables[oid] = table
        elif kind in (b"I", b"U", b"D"):
            return self._change(message)
        return None

    def _change(self, message: bytes) -> Change:
        table = self._tables[struct.unpack_from(">I", message, 1)[0]]
        operation = {b"I": "insert", b"U": "update", b"D": "delete"}[message[:1]]
        marker, at = message[5:6], 6
        values, at = _tuple(message, at, table)
        if operation == "update" and marker in (b"K", b"O"):  # the old row comes first
            values, _ = _tuple(message, at + 1, table)
        if operation == "delete" and marker == b"K":
            values = {name: value for name, value in values.items() if name in table.key}
        return Change(operation, table, values)


def _relation(message: bytes) -> tuple[int, Table]:
    oid = struct.unpack_from(">I", message, 1)[0]
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    count = struct.unpack_from(">H", message, at + 1)[0]
    at += 3
    columns, key = [], []
    for _ in range(count):
        flags = message[at]
        column, at = _text(message, at + 1)
        at += 8  # its type and modifier
        columns.append(column)
        if flags & 1:
            key.append(column)
    return oid, Table(schema, name, tuple(columns), tuple(key))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def _tuple(message: bytes, at: int, table: Table) -> tuple[dict[str, Any], int]:
    count = struct.unpack_from(">H", message, at)[0]
    at += 2
    values: dict[str, Any] = {}
    for name in table.columns[:count]:
        kind = message[at : at + 1]
        at += 1
        if kind == b"t":
            (length,) = struct.unpack_from(">I", message, at)
            values[name] = message[at + 4 : at + 4 + length].decode()
            at += 4 + length
        else:
            values[name] = None if kind == b"n" else UNCHANGED
    return values, at
