"""Rows held as Arrow columns: what came in as columns stays so, and becomes Python rows on demand, once."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.storage.arrow import arrow_table
from tidegate.storage.schema import Relation, Row
from tidegate.storage.types import ColumnType

KEYS = frozenset({"integer", "decimal", "text", "boolean", "timestamp", "date", "time", "uuid", "blob"})
_AS_NUMPY = frozenset({"integer", "float", "boolean", "timestamp", "date"})
_AS_BYTES = frozenset({"text", "json", "uuid", "blob"})


class ColumnRows(Sequence[Row]):
    """Rows of one relation as Arrow columns in transport types, every value checked. Immutable: nobody else has its memory.

    ``rows`` are the named tuples that the same rows given one by one would be stored as. A part of others shares theirs.
    """

    __slots__ = ("_of", "_packed", "_rows", "numpy", "relation", "table")

    def __init__(
        self, relation: Relation, table: pa.RecordBatch, packed: Any = None, of: tuple[ColumnRows, int] | None = None
    ) -> None:
        self.relation = relation
        self.table = table
        self.numpy: dict[str, Any] = {}  # columns that a window has asked for
        self._packed = packed
        self._of = of  # the rows it is a part of, and the place of its first
        self._rows: tuple[Row, ...] | None = None

    @classmethod
    def copied(cls, relation: Relation, arrays: Sequence[pa.Array]) -> ColumnRows:
        """A private copy of these columns: their memory may be the caller's, who can change it."""
        schema = _schema(relation)
        return cls._read(relation, _packed(pa.RecordBatch.from_arrays(arrays, schema=schema)))

    @classmethod
    def of_rows(cls, relation: Relation, rows: Sequence[Row]) -> ColumnRows:
        """Stored rows as columns."""
        (batch,) = arrow_table(relation, rows).combine_chunks().to_batches() or [_nothing(relation)]
        return cls(relation, batch)

    @classmethod
    def unpacked(cls, relation: Relation, packed: bytes) -> ColumnRows:
        """What :meth:`packed` wrote, perhaps before nullable columns were added at the relation's end."""
        aligned = pa.allocate_buffer(len(packed))
        memoryview(aligned).cast("B")[:] = packed
        return cls._read(relation, aligned)

    @classmethod
    def _read(cls, relation: Relation, packed: pa.Buffer) -> ColumnRows:
        with pa.ipc.open_stream(packed) as reader:
            table = reader.read_next_batch()
        if table.num_columns == len(relation.columns):
            return cls(relation, table, packed)
        more = [pa.nulls(len(table), column.type.arrow) for column in relation.columns[table.num_columns :]]
        return cls(relation, pa.RecordBatch.from_arrays([*table.columns, *more], schema=_schema(relation)))

    def renamed(self, relation: Relation) -> ColumnRows:
        """The same values as rows of a relation with the same types."""
        return ColumnRows(relation, pa.RecordBatch.from_arrays(self.table.columns, schema=_schema(relation)))

    def packed(self) -> memoryview:
        """As an Arrow IPC stream: what the log stores."""
        if self._packed is None:
            self._packed = _packed(self.table)
        return memoryview(self._packed)

    @property
    def arrow(self) -> pa.Table:
        """The columns as an Arrow table."""
        return pa.Table.from_batches([self.table])

    # ---- a sequence of rows

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as named tuples."""
        if self._rows is None:
            if self._of is None:
                columns = [self.python(place) for place in range(len(self.relation.columns))]
                self._rows = tuple(map(self.relation.named, zip(*columns, strict=True)))
            else:
                whole, first = self._of
                self._rows = whole.rows[first : first + len(self)]
        return self._rows

    def __len__(self) -> int:
        return self.table.num_rows  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, which: int) -> Row: ...
    @overload
    def __getitem__(self, which: slice) -> ColumnRows: ...
    def __getitem__(self, which: int | slice) -> Row | ColumnRows:
        if not isinstance(which, slice):
            return self.rows[which]
        low, high, step = which.indices(len(self))
        assert step == 1
        return self._part(low, max(high - low, 0))

    def _part(self, low: int, length: int) -> ColumnRows:
        return ColumnRows(self.relation, self.table.slice(low, length), None, (self, low))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (ColumnRows, tuple)) and self.rows == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.rows)

    def python(self, place: int) -> list[Any]:
        """The values of one column, in their stored form."""
        kind, array = self.relation.columns[place].type, self.table.column(place)
        if kind.family in _AS_NUMPY and not array.null_count:
            return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        decode, values = _decoder(kind), array.to_pylist()
        if decode is None:
            return values  # type: ignore[no-any-return]
        return [None if value is None else decode(value) for value in values]

    def take(self, places: Any) -> ColumnRows:
        """The rows at these places (an index array)."""
        return ColumnRows(self.relation, self.table.take(pa.array(places)))

    def split(self, place: int) -> dict[Any, ColumnRows | tuple[Row, ...]]:
        """The rows of each value of a column, in order of first appearance; within each they stay in order. One sort."""
        kind = self.relation.columns[place].type
        if kind.family not in KEYS:
            parts: dict[Any, list[Row]] = {}
            for row in self.rows:
                parts.setdefault(row[place], []).append(row)
            return {key: tuple(part) for key, part in parts.items()}
        coded = self.table.column(place).dictionary_encode()
        decode, keys = _decoder(kind), coded.dictionary.to_pylist()
        if len(keys) == 1:
            return {keys[0] if decode is None else decode(keys[0]): self}
        codes = coded.indices.to_numpy()
        order = np.argsort(codes.astype("u2") if len(keys) <= 1 << 16 else codes, kind="stable")
        sorted_ = self.take(order)
        ends = np.cumsum(np.bincount(codes, minlength=len(keys))).tolist()
        starts = [0, *ends[:-1]]
        return {
            key if decode is None else decode(key): sorted_._part(low, high - low)
            for key, low, high in zip(keys, starts, ends, strict=True)
        }

    def digest(self) -> str:
        """A fingerprint of the rows: equal for equal rows, in any run, however they came."""
        found = hashlib.blake2b(str(len(self)).encode(), digest_size=12)
        for place, column in enumerate(self.relation.columns):
            array = self.table.column(place)
            if array.null_count:
                found.update(np.packbits(np.asarray(array.is_valid())).tobytes())
            found.update(b"|")
            for part in _canonical(column.type, array) or [repr(self.python(place)).encode()]:
                found.update(part)
        return found.hexdigest()


def lists_of(packed: bytes) -> list[list[Any]]:
    """Columns in the log as the rows that it would have instead; their relation need not be known."""
    with pa.ipc.open_stream(packed) as reader:
        columns = [column.to_pylist() for column in reader.read_all().columns]
    written = msgspec.msgpack.encode(list(zip(*columns, strict=True)))
    return msgspec.msgpack.decode(written)  # type: ignore[no-any-return]


def count_of(rows: Sequence[Any] | bytes) -> int:
    """How many rows a record of the log has, whichever form they are in."""
    if not isinstance(rows, bytes):
        return len(rows)
    with pa.ipc.open_stream(rows) as reader:
        return sum(batch.num_rows for batch in reader)


def plain_rows(rows: Any) -> Any:
    """The rows of a record of the log, whichever form they are in."""
    return lists_of(rows) if isinstance(rows, bytes) else rows


def _schema(relation: Relation) -> pa.Schema:
    return pa.schema([(column.name, column.type.arrow) for column in relation.columns])


def _nothing(relation: Relation) -> pa.RecordBatch:
    schema = _schema(relation)
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)


def _packed(table: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue()


def _decoder(kind: ColumnType) -> Callable[[Any], Any] | None:
    """How a stored value comes from what Arrow gives for it; None: it is the same."""
    if kind.family == "uuid":
        return uuid.UUID
    if kind.family != "list":
        return None
    assert kind.element is not None
    inner = _decoder(kind.element)
    if inner is None:
        return tuple
    return lambda values: tuple([None if value is None else inner(value) for value in values])


def _canonical(kind: ColumnType, array: pa.Array) -> list[Any] | None:
    """Bytes that are the same for the same values; None: only their Python form tells."""
    if kind.family == "float":
        values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
        return [np.where(np.isnan(values), np.nan, values).astype(values.dtype, copy=False).tobytes()]
    if kind.family in _AS_BYTES:
        filled = array.fill_null(b"" if kind.family == "blob" else "")
        _, offsets, data = filled.buffers()
        if data is None or not len(filled):
            return [np.zeros(len(filled), "i4").tobytes()]
        places = np.frombuffer(offsets, "i4")[filled.offset : filled.offset + len(filled) + 1]
        return [pc.binary_length(filled).to_numpy().tobytes(), memoryview(data)[places[0] : places[-1]]]
    if kind.family in {"list", "decimal"}:
        return None
    width = {"boolean": pa.uint8(), "date": pa.int32()}.get(kind.family, pa.int64())
    plain = array if kind.family == "integer" else array.cast(width)
    return [plain.fill_null(0).to_numpy(zero_copy_only=False).tobytes()]
