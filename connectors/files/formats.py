"""What is in a file: rows of NDJSON, CSV or Parquet from an offset on, and the offset after them.

An offset is a number: bytes from the beginning of a text file, rows from the beginning of a Parquet file. Text is read by
whole records; what follows the last line end is left for later, when there may be more of it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tidegate.connectors.shared.families import CAST, arrow_told
from tidegate.connectors.shared.reading import UNREADABLE, RowReader, from_text, read_all
from tidegate.errors import SourceError
from tidegate.outside.sources import Malformed
from tidegate.storage.schema import Column, Row

BLOCK = 1 << 18  # bytes of text read at a time
LONGEST_RECORD = 1 << 24  # bytes without a line end that are still taken for an incomplete record

Read = tuple[list[Row], list[Malformed], int, Callable[[int], str]]  # rows, malformed, the next offset, place of row i


class Content(Protocol):
    """An open file."""

    def read(self, at: int, limit: int, whole: bool) -> Read | None:
        """Rows from ``at`` on; None when there are none. ``whole``: nothing will be added, so the last line counts."""

    def lag(self, at: int) -> int: ...
    def close(self) -> None: ...


class TextContent:
    """Lines."""

    def __init__(self, path: Path, reader: RowReader) -> None:
        self.path = path
        self._reader = reader
        self._file = path.open("rb")
        self._ahead: list[bytes] = []  # records read but not returned yet, which begin at ...
        self._ahead_at = 0

    def lag(self, at: int) -> int:
        return max(0, self.path.stat().st_size - at)

    def close(self) -> None:
        self._file.close()

    def read(self, at: int, limit: int, whole: bool) -> Read | None:
        at = max(at, self._begin())
        records = self._records(at, limit, whole)
        if not records:
            return None
        places = [at]
        for record in records:
            places.append(places[-1] + len(record))
        rows, numbers, malformed = self._rows(records, lambda i: f"{self.path.name}:{places[i]}")
        return rows, malformed, places[-1], lambda i: f"{self.path.name}:{places[numbers[i]]}"

    def _begin(self) -> int:
        return 0

    def _records(self, at: int, limit: int, whole: bool) -> list[bytes]:
        """Whole records, with their line ends."""
        if not self._ahead or self._ahead_at != at:
            self._ahead = self._read_block(at, whole)
        records, self._ahead = self._ahead[:limit], self._ahead[limit:]
        self._ahead_at = at + sum(map(len, records))
        return records

    def _read_block(self, at: int, whole: bool) -> list[bytes]:
        size = BLOCK
        while True:
            self._file.seek(at)
            block = self._file.read(size)
            lines = self._split(block)
            if lines and not lines[-1].endswith(b"\n") and not (whole and len(block) < size):
                lines.pop()
            if lines or len(block) < size:
                return lines
            if size > LONGEST_RECORD:
                raise SourceError(f"{self.path} has no line end within {size} bytes from byte {at} on", fatal=True)
            size *= 4

    def _split(self, block: bytes) -> list[bytes]:
        return block.splitlines(keepends=True) if b"\r" not in block else _lines(block)

    def _rows(self, records: list[bytes], place: Callable[[int], str]) -> tuple[list[Row], list[int], list[Malformed]]:
        raise NotImplementedError


def _lines(block: bytes) -> list[bytes]:
    """Lines that end with a line feed: a carriage return alone does not end one."""
    lines = [line + b"\n" for line in block.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


class NdjsonContent(TextContent):
    """One JSON value a line; empty lines are skipped."""

    def _rows(self, records: list[bytes], place: Callable[[int], str]) -> tuple[list[Row], list[int], list[Malformed]]:
        rows, numbers, malformed = read_all(records, self._read_line, place)
        kept = [i for i, row in enumerate(rows) if row is not None]
        if len(kept) < len(rows):
            rows, numbers = [rows[i] for i in kept], [numbers[i] for i in kept]
        return rows, numbers, malformed

    def _read_line(self, line: bytes) -> Any:
        return self._reader.json(line) if not line.isspace() else None


class CsvContent(TextContent):
    """With a header; a quoted field may hold line ends. An empty field is NULL, an empty quoted one is empty text."""

    def __init__(self, path: Path, reader: RowReader) -> None:
        super().__init__(path, reader)
        self._header: list[str] | None = None
        self._length = 0
        columns = reader.relation.columns
        self._types = {reader.field_of[c.name]: c.type.arrow for c in columns if c.type.family in _BY_ARROW}
        self._fast = len(self._types) == len(columns)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> int:
        """Where the records begin: after the header, if that is complete."""
        if self._header is None and (first := self._records(0, 1, whole=False)):
            self._length = len(first[0])
            self._header = _fields(first[0].removeprefix(b"\xef\xbb\xbf"))
            self._reader.check_fields(self._header, f"the header of {self.path}")
        return self._length

    def _split(self, block: bytes) -> list[bytes]:
        lines = super()._split(block)
        if b'"' not in block:
            return lines
        joined: list[bytes] = []
        open_quote = False
        for line in lines:
            if open_quote:
                joined[-1] += line
            else:
                joined.append(line)
            open_quote ^= bool(line.count(b'"') % 2)
        if open_quote and not joined[-1].endswith(b"\n"):
            joined[-1] = joined[-1].rstrip(b"\n")
        elif open_quote:
            joined.pop()  # the rest of the header is in the next block
        return joined

    def _rows(self, records: list[bytes], place: Callable[[int], str]) -> tuple[list[Row], list[int], list[Malformed]]:
        if self._header is None:
            return [], [], []
        if self._fast:
            try:
                return self._by_arrow(records), list(range(len(records))), []
            except (pa.ArrowInvalid, *UNREADABLE):
                pass  # one of them is malformed: find out which
        return read_all(records, self._read_record, place)

    def _by_arrow(self, records: list[bytes]) -> list[Row]:
        assert self._header is not None
        table = pa_csv.read_csv(
            pa.BufferReader(b"".join(records)),
            read_options=pa_csv.ReadOptions(column_names=self._header, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=self._types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "TRUE", "True", "t", "1"],
                false_values=["false", "FALSE", "False", "f", "0"],
            ),
        )
        if table.num_rows != len(records):
            raise ValueError("rows and records differ")
        return table_rows(table, self._reader)

    def _read_record(self, record: bytes) -> Row:
        assert self._header is not None
        values = _fields(record)
        if len(values) != len(self._header):
            raise ValueError(f"{len(values)} fields, the header has {len(self._header)}")
        empty = _empty_is_text(record) if b'""' in record else ()
        named = {
            field: from_text(self._column(field), value if value or i in empty else None)
            for i, (field, value) in enumerate(zip(self._header, values, strict=True))
        }
        return self._reader.row(named)

    def _column(self, field: str) -> Column | None:
        return next((c for c in self._reader.relation.columns if self._reader.field_of[c.name] == field), None)


_BY_ARROW = {"integer", "float", "text", "boolean", "date"}


def _fields(record: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(record.decode(), newline=""), strict=True), [])


def _empty_is_text(record: bytes) -> set[int]:
    """Which fields are quoted and empty: empty text, not NULL."""
    marked = record.decode().rstrip("\r\n").replace('""', "\x00")
    return {i for i, field in enumerate(marked.split(",")) if field == "\x00"}


class ParquetContent:
    """Columns by name, checked against the stream; an offset is a row number."""

    def __init__(self, path: Path, reader: RowReader) -> None:
        self.path = path
        self._reader = reader
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(f"{path} is not a readable Parquet file: {error}", fatal=True) from None
        try:
            reader.check_fields(self._file.schema_arrow.names, str(path))
            reader.check_types(
                {field.name: arrow_told(field.type) for field in self._file.schema_arrow}, str(path), CAST
            )
        except BaseException:
            self._file.close()
            raise
        self._total = self._file.metadata.num_rows
        self._tables: Any = None
        self._next = -1  # the first row of the next table

    def lag(self, at: int) -> int:
        return max(0, int(self._total) - at)

    def close(self) -> None:
        self._file.close()

    def read(self, at: int, limit: int, whole: bool) -> Read | None:
        if at >= self._total:
            return None
        if self._tables is None or self._next != at:
            self._tables, self._next = self._from(at, limit), at
        table = pa.Table.from_batches([next(self._tables)])
        self._next += table.num_rows

        def place(i: int) -> str:
            return f"{self.path.name}#{at + i}"

        try:
            return table_rows(table, self._reader), [], self._next, place
        except (pa.ArrowInvalid, *UNREADABLE):
            records = table.to_pylist()
            rows, numbers, malformed = read_all(records, self._reader.row, place)
            return rows, malformed, self._next, lambda i: place(numbers[i])

    def _from(self, at: int, limit: int) -> Any:
        """Tables of ``limit`` rows from row ``at`` on; whole row groups before it are not read."""
        wanted = [name for name in self._reader.field_of.values() if name in self._file.schema_arrow.names]
        groups = range(self._file.metadata.num_row_groups)
        first, skipped = 0, 0
        for first in groups:
            count = self._file.metadata.row_group(first).num_rows
            if skipped + count > at:
                break
            skipped += count
        skip = at - skipped
        for batch in self._file.iter_batches(limit, row_groups=list(groups)[first:], columns=wanted, use_threads=False):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip)
            skip = 0


def table_rows(table: pa.Table, reader: RowReader) -> list[Row]:
    """The rows of an Arrow table, column by column."""
    relation = reader.relation
    columns: list[Any] = []
    for column in relation.columns:
        field = reader.field_of[column.name]
        if field not in table.column_names:
            columns.append([None] * table.num_rows)
            continue
        values = table.column(field)
        if column.type.family in _CAST and not values.type.equals(column.type.arrow):
            values = values.cast(column.type.arrow)
        columns.append(values.to_pylist())
    conform = relation.conform
    return [conform(row) for row in zip(*columns, strict=True)]


_CAST = {"integer", "float", "timestamp", "date"}

FORMATS: dict[str, Callable[[Path, RowReader], Content]] = {
    "ndjson": NdjsonContent,
    "csv": CsvContent,
    "parquet": ParquetContent,
}
SUFFIXES = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}
