"""Prepared statements and portals: a statement with its parameters, and how far its rows have been fetched."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.replica.running import Query
from tidegate.replica.statements import Prepared
from tidegate.replica.wire.commands import CopyOut
from tidegate.replica.wire.encode import data_rows, written
from tidegate.replica.wire.messages import copy_data
from tidegate.replica.wire.types import WireType, computed_type, wire_type


@dataclass
class Statement:
    """A parsed statement: a query, a command, or nothing at all. ``oids``: the types of its parameters."""

    sql: str
    prepared: Prepared | None = None
    command: bool = False
    oids: list[int] = field(default_factory=list)
    columns: list[str] | None = None  # once described
    types: list[WireType] = field(default_factory=list)


class Portal:
    """A bound statement. Rows are taken from the query batch by batch and returned as many at a time as requested."""

    def __init__(self, statement: Statement, query: Query | None, formats: Sequence[int]) -> None:
        self.statement = statement
        self.query = query
        self._formats = formats
        self.types: list[WireType] = []
        self.binary: list[bool] = []
        self._batch: pa.RecordBatch | None = None
        self._place = 0
        self.opened = False

    def open(self) -> None:
        """Bind the query; on a worker."""
        assert self.query is not None
        self.query.open()
        catalog = self.statement.prepared is not None and self.statement.prepared.catalog
        computed = self.statement.prepared.computed if self.statement.prepared is not None else ()
        known = [*computed, *[False] * len(self.query.types)]
        self.types = [
            computed_type(kind, catalog) if of_expression else wire_type(kind, catalog)
            for kind, of_expression in zip(self.query.types, known, strict=False)
        ]
        count = len(self.types)
        formats = list(self._formats)
        self.binary = [bool(f) for f in (formats * count if len(formats) == 1 else formats or [0] * count)]
        self.binary = (self.binary + [False] * count)[:count]
        self.opened = True

    def _next(self, limit: int | None) -> pa.RecordBatch | None:
        assert self.query is not None
        if self._batch is None or self._place == self._batch.num_rows:
            self._batch, self._place = self.query.next(), 0
            if self._batch is None:
                return None
        found = self._batch.slice(self._place, limit)
        self._place += found.num_rows
        return found

    def take(self, limit: int | None) -> tuple[bytes | memoryview, int]:
        """Up to ``limit`` rows as DataRow messages, and how many; on a worker. None at the end."""
        batch = self._next(limit)
        return (b"", 0) if batch is None else (data_rows(batch, self.types, self.binary), batch.num_rows)

    def take_copied(self, copy: CopyOut) -> tuple[bytes, int]:
        """The next rows as COPY data."""
        batch = self._next(None)
        if batch is None:
            return b"", 0
        columns = [
            [None if v is None else written(v, kind) for v in column.to_pylist()]
            for column, kind in zip(batch.columns, self.types, strict=True)
        ]
        return copy_data(copied(zip(*columns, strict=True), copy).encode()), batch.num_rows


def copied(rows: object, copy: CopyOut) -> str:
    """Rows in COPY's csv or text format."""
    out = io.StringIO()
    if copy.csv:
        csv.writer(out, delimiter=copy.delimiter, lineterminator="\n").writerows(rows)  # type: ignore[arg-type]
        return out.getvalue()
    for row in rows:  # type: ignore[attr-defined]
        out.write(
            copy.delimiter.join("\\N" if value is None else _escaped(value, copy.delimiter) for value in row) + "\n"
        )
    return out.getvalue()


def _escaped(value: str, delimiter: str) -> str:
    for sign, code in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        value = value.replace(sign, code)
    return value if delimiter in "\t\\" else value.replace(delimiter, "\\" + delimiter)
