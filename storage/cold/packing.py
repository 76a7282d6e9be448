"""Rows and keys of a table as bytes, and the hash that says where a key is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from tidegate.storage.codec import decoders_of
from tidegate.storage.schema import Column, Key, Row, TableSchema

Hashes = np.ndarray[Any, np.dtype[np.uint32]]

SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the high half of a product with it is spread evenly
MASK = 2**64 - 1


class Packing:
    """How the rows of one table are written, and where they are found. The same bytes on every machine and in every run.

    A row is found by the hash of ``place_of(row)``, and is another one than a row with another ``key_of(row)``.
    ``spread(place)``: the hash, 32 bits. ``row`` and ``key`` read what ``pack`` and ``pack_key`` wrote.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        places: Sequence[int],
        key_of: Callable[[Row], Key] | None = None,
    ) -> None:
        """The columns at ``places`` say where a row is; they are its key, too, unless ``key_of`` says otherwise."""
        self.pack: Callable[[Row], bytes] = _encode
        self.pack_key: Callable[[Key], bytes] = _encode
        self.place_of: Callable[[Row], Any] = operator.itemgetter(*places)
        self.key_of = self.place_of if key_of is None else key_of
        found_by = [columns[place] for place in places]
        self._kind = _number(found_by[0]) if len(found_by) == 1 else None
        self.spread: Callable[[Any], int] = _spread_text if self._kind is None else _spread_number
        self.row = _reader(columns)
        self.key: Callable[[bytes], Key] = _reader(found_by) if len(found_by) > 1 else _one(found_by[0])

    def spread_all(self, keys: Sequence[Key]) -> Hashes:
        """The same for many keys."""
        if self._kind is None:
            return np.fromiter(map(_spread_text, keys), np.uint32, len(keys))
        numbers = np.fromiter(keys, self._kind, len(keys)).view(np.uint64)
        return ((numbers * np.uint64(SPREAD)) >> np.uint64(32)).astype(np.uint32)


def packing_of(schema: TableSchema) -> Packing:
    """For the rows of a table, by its primary key."""
    return Packing(schema.columns, schema.key_indexes)


def index_packing(schema: TableSchema, names: Sequence[str]) -> Packing:
    """For the entries of an index: the indexed values, then the primary key; found by the values."""
    columns = [schema.column(name) for name in (*names, *schema.primary_key)]
    return Packing(columns, range(len(names)), key_of=tuple)


def _number(column: Column) -> Any:
    if column.type.family != "integer":
        return None
    return np.int64 if column.type.low < 0 else np.uint64


def _spread_number(key: Key) -> int:
    return (key * SPREAD & MASK) >> 32  # type: ignore[no-any-return]


def _spread_text(key: Key) -> int:
    return crc32(_encode(key))


_encode = msgspec.msgpack.Encoder().encode


def _reader(columns: Sequence[Column]) -> Callable[[bytes], Row]:
    decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(tuple).decode
    decoders = decoders_of(columns)
    if not decoders:
        return decode

    def row(packed: bytes) -> Row:
        values = list(decode(packed))
        for place, convert in decoders:
            if values[place] is not None:
                values[place] = convert(values[place])
        return tuple(values)

    return row


def _one(column: Column) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder().decode
    converts = [convert for _, convert in decoders_of([column])]
    return (lambda packed: converts[0](decode(packed))) if converts else decode
