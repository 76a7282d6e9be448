"""What SQL sees of a table: the base, with the changes above it laid over it.

A table's name in a query stands for

    base rows whose key is in no overlay  ∪  committed rows above the base  ∪  the execution's own writes

The two overlays travel to DuckDB as Arrow tables; a deleted row is one whose ``tg:gone`` is true. The committed one is
kept on the table and used again until something is committed or merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidegate.storage.base import arrow_table, base_name
from tidegate.storage.ddl import quote
from tidegate.storage.schema import Key, Relation, Row, TableSchema
from tidegate.storage.versions import BASE
from tidegate.storage.view import Access, View

if TYPE_CHECKING:
    import duckdb

GONE = "tg:gone"


class Session:
    """One thread's connection to the base, and the Arrow tables it has been shown."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor = cursor
        self._shown: dict[str, pa.Table] = {}

    def show(self, name: str, table: pa.Table) -> None:
        """Make ``table`` readable as ``name``; free when it is the one already there."""
        if self._shown.get(name) is not table:
            self.cursor.register(name, table)
            self._shown[name] = table


class _Cached(NamedTuple):
    """The committed overlay, right for every reader who sees all of it."""

    changes: int
    newest_position: int
    newest_commit: int
    arrow: pa.Table | None


def table_source(view: View, session: Session, access: Access, partition: str) -> tuple[str, tuple[Any, ...]]:
    """SQL for the rows of one table as ``view`` sees them, and the values of its parameters ``$<partition>_<n>``."""
    schema = access.table.schema
    committed = _committed(view, access)
    if committed is not None:
        session.show(f"tg_c:{schema.name}", committed)
    written = view.writes.get(schema.name)
    if written:
        session.show(f"tg_w:{schema.name}", _overlay(schema, written.items()))
    values = view.partitions[schema.name] if access.by_key else ()
    return _source(schema, committed is not None, bool(written), partition if access.by_key else ""), values


def relation_source(session: Session, relation: Relation, rows: Any) -> str:
    """SQL for the rows of a batch, stream or window."""
    arrow = rows if isinstance(rows, pa.Table) else arrow_table(relation, rows) if len(rows) else _empty(relation)
    session.show(f"tg_r:{relation.name}", arrow)
    return _relation(relation)


@lru_cache(maxsize=4096)
def _empty(relation: Relation) -> pa.Table:
    return arrow_table(relation, ())


@lru_cache(maxsize=4096)
def _relation(relation: Relation) -> str:
    return f"SELECT {_casts('r', relation)} FROM {quote('tg_r:' + relation.name)} AS r"


@lru_cache(maxsize=4096)
def _source(schema: TableSchema, committed: bool, written: bool, partition: str) -> str:
    columns = ", ".join(f"b.{quote(column.name)}" for column in schema.columns)
    parts = [f"SELECT {columns} FROM {base_name(schema)} AS b"]
    if committed:
        parts[0] += _without(schema, "b", "tg_c")
        parts.append(f"SELECT {_casts('c', schema)} FROM {quote('tg_c:' + schema.name)} AS c")
        if written:
            parts[1] += _without(schema, "c", "tg_w")
        parts[1] += f" WHERE NOT c.{quote(GONE)}"
    if written:
        parts[0] += _without(schema, "b", "tg_w")
        parts.append(f"SELECT {_casts('w', schema)} FROM {quote('tg_w:' + schema.name)} AS w WHERE NOT w.{quote(GONE)}")
    text = " UNION ALL ".join(parts)
    if partition:
        mine = " AND ".join(f"{quote(name)} = ${partition}_{i}" for i, name in enumerate(schema.partition_by))
        text = f"SELECT * FROM ({text}) WHERE {mine}"
    return text


def _without(schema: TableSchema, alias: str, overlay: str) -> str:
    """Leave out rows whose key is in an overlay."""
    on = " AND ".join(
        f"CAST({alias}.{quote(name)} AS {schema.column(name).type.sql}) = "
        f"CAST({overlay}.{quote(name)} AS {schema.column(name).type.sql})"
        for name in schema.primary_key
    )
    return f" ANTI JOIN {quote(f'{overlay}:{schema.name}')} AS {overlay} ON {on}"


def _casts(alias: str, relation: Relation) -> str:
    return ", ".join(
        f"CAST({alias}.{quote(column.name)} AS {column.type.sql}) AS {quote(column.name)}" for column in relation.columns
    )


def _committed(view: View, access: Access) -> pa.Table | None:
    """The committed rows above the base that ``view`` sees, deletions included; None when there are none."""
    table = access.table
    cached: _Cached | None = table.overlay
    changes = table.changes
    if cached is not None and cached.changes == changes and _sees_all(view, access, cached):
        return cached.arrow
    keys = list(table.overlay_keys())
    heads = [head for key in keys if (head := table.rows.get(key)) is not None]
    rows = [(key, view.read_below(access, key)) for key in keys]
    fresh = _Cached(
        changes,
        max((head[0] for head in heads), default=BASE),
        max((head[3] for head in heads), default=0),
        _overlay(table.schema, rows) if rows else None,
    )
    if _sees_all(view, access, fresh):
        table.overlay = fresh
    return fresh.arrow


def _sees_all(view: View, access: Access, cached: _Cached) -> bool:
    return view.commit >= cached.newest_commit if access.committed else view.position > cached.newest_position


def _overlay(schema: TableSchema, changes: Iterable[tuple[Key, Row | None]]) -> pa.Table:
    rows: list[Sequence[Any]] = []
    gone: list[bool] = []
    for key, row in changes:
        gone.append(row is None)
        rows.append(_key_only(schema, key) if row is None else row)
    return arrow_table(schema, rows).append_column(GONE, pa.array(gone, type=pa.bool_()))  # type: ignore[arg-type]


def _key_only(schema: TableSchema, key: Key) -> list[Any]:
    row: list[Any] = [None] * len(schema.columns)
    for place, part in zip(schema.key_indexes, (key,) if len(schema.key_indexes) == 1 else key, strict=True):
        row[place] = part
    return row
