"""Rows as Arrow, to DuckDB and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.storage.schema import Column, Key, Relation, Row, TableSchema


def arrow_table(relation: Relation, rows: Sequence[Row]) -> pa.Table:
    """Rows as Arrow, in transport types; SQL that reads it casts each column to its declared type."""
    return arrow_columns(relation.columns, rows)


def arrow_keys(schema: TableSchema, keys: Sequence[Key]) -> pa.Table:
    """Keys as Arrow, in transport types: one column for each part of the primary key."""
    key_columns = tuple(schema.column(name) for name in schema.primary_key)
    return arrow_columns(key_columns, [(key,) for key in keys] if len(key_columns) == 1 else keys)


def arrow_columns(columns: Sequence[Column], rows: Sequence[Row]) -> pa.Table:
    values: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [
        pa.array(
            [uuid_text(v) for v in column_values] if column.type.sql.startswith("UUID") else column_values,
            type=column.type.arrow,
        )
        for column, column_values in zip(columns, values, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def uuid_text(value: Any) -> Any:
    """A UUID as text, since Arrow has no type for it; or a list of them, nested to any depth."""
    if value is None:
        return None
    return [uuid_text(item) for item in value] if isinstance(value, tuple) else str(value)


def stored_rows(relation: Relation, rows: Iterable[Sequence[Any]]) -> Iterator[Row]:
    """DuckDB's Python values as stored rows (its lists are our tuples)."""
    lists = [i for i, column in enumerate(relation.columns) if column.type.family == "list"]
    for row in rows:
        if lists:
            row = [tupled(v) if i in lists else v for i, v in enumerate(row)]
        yield tuple(row)


def tupled(value: Any) -> Any:
    """DuckDB's lists as our tuples."""
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value
