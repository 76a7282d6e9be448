"""What SQL sees of a table: the base, with the changes above it laid over it.

A table's name in a query stands for

    base rows whose key is not in the overlay  ∪  overlay rows

where the overlay is the committed rows above the base that the execution sees, under its own writes. It is passed to
DuckDB as one Arrow table (each adds about a millisecond to a query); a deleted row is one whose ``tg:gone`` is true.
The committed part is kept on the table and used again until something is committed or merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.storage.arrow import arrow_table
from tidegate.storage.base import base_name
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.ddl import quote
from tidegate.storage.expiry import ExpiringReader
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Key, Relation, Row, TableSchema
from tidegate.storage.view import View

if TYPE_CHECKING:
    import duckdb

GONE = "tg:gone"


class BaseConnection:
    """One thread's connection to the base, and the Arrow tables it has been shown."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, thread: int = 0) -> None:
        self.cursor = cursor
        self.thread = thread
        self._shown: dict[str, pa.Table] = {}

    def show(self, name: str, table: pa.Table) -> None:
        """Make ``table`` readable as ``name``; free when it is the one already there."""
        if self._shown.get(name) is not table:
            self.cursor.register(name, table)
            self._shown[name] = table


class _Committed(NamedTuple):
    """The committed part of an overlay, right for every reader who sees all of it."""

    commit: int
    merges: int
    newest_position: int
    newest_commit: int
    places: dict[Key, int]
    arrow: pa.Table | None


def table_source(view: View, connection: BaseConnection, reader: Reader, name: str) -> tuple[str, dict[str, Any]]:
    """SQL for the rows of one table as ``view`` sees them, and its parameters, which are called ``<name>_<n>``."""
    if isinstance(reader, ExpiringReader):
        return _not_due(view, connection, reader, name)
    schema = reader.table.schema
    partitions = reader.partitions(view)
    overlay = None
    if (
        partitions is None or partitions
    ):  # with none at all it has no lock on the table, so nothing keeps versions for it
        overlay = _overlay(schema, _committed(view, reader), view.writes.get(schema.name))
    if overlay is not None:
        connection.show(f"tg_o:{schema.name}", overlay)
    if partitions is None:
        return _source(schema, overlay is not None, "", False), {}
    columns = list(zip(*partitions, strict=True)) if len(schema.partition_by) > 1 else [tuple(partitions)]
    if len(partitions) == 1:
        given = {f"{name}_{i}": value for i, (value,) in enumerate(columns)}
        return _source(schema, overlay is not None, name, False), given
    lists = {f"{name}_{i}": list(values) for i, values in enumerate(columns or [()] * len(schema.partition_by))}
    return _source(schema, overlay is not None, name, True), lists


def _not_due(view: View, connection: BaseConnection, reader: ExpiringReader, name: str) -> tuple[str, dict[str, Any]]:
    """``table_source`` without the rows that are due."""
    source, given = table_source(view, connection, reader.inner, name)
    expiry = reader.table.schema.expiry
    assert expiry is not None
    time = quote(expiry.column)
    given[f"{name}_due"] = reader.cut(view)
    return f"SELECT * FROM ({source}) WHERE {time} IS NULL OR {time} > ${name}_due", given


def _overlay(schema: TableSchema, committed: _Committed, written: dict[Key, Row | None] | None) -> pa.Table | None:
    """Committed rows without those overwritten, and the written ones."""
    if not written:
        return committed.arrow
    own = _changed(schema, written.items())
    if committed.arrow is None:
        return own
    hidden = [place for key in written if (place := committed.places.get(key)) is not None]
    kept = committed.arrow
    if hidden:
        mask = np.ones(len(committed.places), dtype=bool)
        mask[hidden] = False
        kept = kept.filter(pa.array(mask))
    return pa.concat_tables([kept, own])


def relation_source(connection: BaseConnection, relation: Relation, rows: Any) -> str:
    """SQL for the rows of a batch, stream or window."""
    if isinstance(rows, ColumnRows):
        rows = rows.arrow
    arrow = rows if isinstance(rows, pa.Table) else arrow_table(relation, rows) if len(rows) else _empty(relation)
    connection.show(f"tg_r:{relation.name}", arrow)
    return _relation(relation)


@lru_cache(maxsize=4096)
def _empty(relation: Relation) -> pa.Table:
    return arrow_table(relation, ())


@lru_cache(maxsize=4096)
def _relation(relation: Relation) -> str:
    return f"SELECT {_casts('r', relation)} FROM {quote('tg_r:' + relation.name)} AS r"


@lru_cache(maxsize=4096)
def _source(schema: TableSchema, overlaid: bool, partition: str, several: bool) -> str:
    columns = ", ".join(f"b.{quote(column.name)}" for column in schema.columns)
    text = f"SELECT {columns} FROM {base_name(schema)} AS b"
    if overlaid:
        changed = quote(f"tg_o:{schema.name}")
        same = " AND ".join(
            f"b.{quote(name)} = CAST(o.{quote(name)} AS {schema.column(name).type.sql})" for name in schema.primary_key
        )
        text += f" ANTI JOIN {changed} AS o ON {same}"
        text += f" UNION ALL SELECT {_casts('o', schema)} FROM {changed} AS o WHERE NOT o.{quote(GONE)}"
    if partition:
        if several:
            kinds = [schema.column(name).type.sql for name in schema.partition_by]
            lists = ", ".join(f"unnest(CAST(${partition}_{i} AS {kind}[]))" for i, kind in enumerate(kinds))
            mine = f"({', '.join(map(quote, schema.partition_by))}) IN (SELECT {lists})"
        else:
            mine = " AND ".join(f"{quote(name)} = ${partition}_{i}" for i, name in enumerate(schema.partition_by))
        text = f"SELECT * FROM ({text}) WHERE {mine}"
    return text


def _casts(alias: str, relation: Relation) -> str:
    return ", ".join(
        f"CAST({alias}.{quote(column.name)} AS {column.type.sql}) AS {quote(column.name)}"
        for column in relation.columns
    )


def _committed(view: View, reader: Reader) -> _Committed:
    """The committed rows above the base that ``view`` sees, deletions included."""
    table = reader.table
    cached: _Committed | None = table.overlay
    state = (
        table.newest_commit,
        table.merges,
    )  # read first: a commit in between makes this overlay stale, not wrong
    if (
        cached is not None
        and cached[:2] == state
        and reader.sees_all(view, cached.newest_position, cached.newest_commit)
    ):
        return cached
    keys = list(table.overlay_keys())
    fresh = _Committed(
        *state,
        *table.newest_version(),
        {key: place for place, key in enumerate(keys)},
        _changed(table.schema, [(key, reader.old(view, key)) for key in keys]) if keys else None,
    )
    if reader.sees_all(view, fresh.newest_position, fresh.newest_commit):
        table.overlay = fresh
    return fresh


def _changed(schema: TableSchema, changes: Iterable[tuple[Key, Row | None]]) -> pa.Table:
    rows: list[Row] = []
    gone: list[bool] = []
    for key, row in changes:
        gone.append(row is None)
        rows.append(_key_only(schema, key) if row is None else row)
    return arrow_table(schema, rows).append_column(GONE, pa.array(gone, type=pa.bool_()))


def _key_only(schema: TableSchema, key: Key) -> Row:
    row: list[Any] = [None] * len(schema.columns)
    for place, part in zip(schema.key_indexes, (key,) if len(schema.key_indexes) == 1 else key, strict=True):
        row[place] = part
    return tuple(row)
