"""What SQL sees of a table: the base, with the changes above it laid over it.

A table's name in a query stands for one of

    the base                                                            nothing has changed since the last merge
    base rows whose key is not in the overlay  ∪  overlay rows          few rows have changed
    all rows as columns                                                 many have, and the table is in memory

where the overlay is the committed rows above the base that the execution sees, under its own writes, and ``columns`` is
kept by :mod:`tidegate.storage.sql.columns`. Both are shown to DuckDB as one Arrow table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from tidegate.storage.arrow import arrow_table
from tidegate.storage.base import base_name
from tidegate.storage.chains import lost
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.ddl import quote
from tidegate.storage.expiry import ExpiringReader
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Relation, TableSchema
from tidegate.storage.sql.columns import LIVE, columns_of, older
from tidegate.storage.sql.connection import BaseConnection
from tidegate.storage.view import View

BASE: Final = "base"
OVERLAID: Final = "overlaid"
COLUMNS: Final = "columns"

Name = Callable[[str], str]  # SQL for the value with this name


class Partitions:
    """The partitions of one table that a view is restricted to, as values of a query: ``<name>_<n>`` for each column."""

    def __init__(self, schema: TableSchema, chosen: Collection[Any], name: str) -> None:
        self.names = [f"{name}_{i}" for i in range(len(schema.partition_by))]
        columns = list(zip(*chosen, strict=True)) if len(self.names) > 1 else [tuple(chosen)]
        self.several = len(chosen) != 1
        self.values: dict[str, Any] = {
            each: list(values) if self.several else values[0]
            for each, values in zip(self.names, columns or [()] * len(self.names), strict=True)
        }
        self._schema = schema

    def condition(self, name: Name) -> str:
        schema = self._schema
        if not self.several:
            return " AND ".join(
                f"{quote(column)} = {name(each)}" for column, each in zip(schema.partition_by, self.names, strict=True)
            )
        kinds = [schema.column(column).type.sql for column in schema.partition_by]
        lists = ", ".join(
            f"unnest(CAST({name(each)} AS {kind}[]))" for each, kind in zip(self.names, kinds, strict=True)
        )
        return f"({', '.join(map(quote, schema.partition_by))}) IN (SELECT {lists})"


class NotDue:
    """Rows that are due are hidden: where they expire, those whose time is over."""

    def __init__(self, view: View, reader: ExpiringReader, name: str) -> None:
        expiry = reader.table.schema.expiry
        assert expiry is not None
        self._time = quote(expiry.column)
        self._name = f"{name}_due"
        self.values: dict[str, Any] = {self._name: reader.cut(view)}

    def condition(self, name: Name) -> str:
        return f"({self._time} IS NULL OR {self._time} > {name(self._name)})"


Limits = Sequence[Partitions | NotDue]


def limits_of(view: View, reader: Reader, name: str) -> Limits:
    """Which rows of the table ``view`` may see, and the values that say so, which are called ``<name>_…``."""
    chosen = reader.partitions(view)
    limits: list[Partitions | NotDue] = [] if chosen is None else [Partitions(reader.table.schema, chosen, name)]
    if isinstance(reader, ExpiringReader):
        limits.append(NotDue(view, reader, name))
    return limits


def show_table(view: View, connection: BaseConnection, reader: Reader) -> str:
    """Show DuckDB what ``view`` sees of a table beside the base, or instead of it; returns which."""
    chosen = reader.partitions(view)
    if chosen is not None and not chosen:
        return BASE  # it sees no row; and it has no lock on the table, so nothing keeps versions for it
    table, written = reader.table, view.writes.get(reader.name)
    changed = table.above_base
    if not changed and not written:
        return BASE
    if changed and not reader.sees_all(view, *table.settled):
        raise lost(table.name, None, f"position {view.position}")
    columns = columns_of(table)  # before the chains: what it takes too early, they still have
    over = older(view, reader) if table.chains else {}
    if written:
        over.update(written)
    connection.show(f"tg_o:{table.name}", columns.arrow(over))
    return COLUMNS if columns.whole else OVERLAID


def show_relation(connection: BaseConnection, relation: Relation, rows: Any) -> None:
    """Show DuckDB the rows of a batch, stream or window."""
    if type(rows) is ColumnRows:
        rows = rows.arrow
    arrow = rows if isinstance(rows, pa.Table) else arrow_table(relation, rows) if len(rows) else _empty(relation)
    connection.show(f"tg_r:{relation.name}", arrow)


def source_of(schema: TableSchema | None, form: Any, limits: Limits, name: Name) -> str:
    """SQL for the rows of a table in this form, or of a relation."""
    if schema is None:
        return _relation(form)
    text = _source(schema, form)
    conditions = " AND ".join(limit.condition(name) for limit in limits)
    return f"SELECT * FROM ({text}) WHERE {conditions}" if conditions else text


@lru_cache(maxsize=4096)
def _empty(relation: Relation) -> pa.Table:
    return arrow_table(relation, ())


@lru_cache(maxsize=4096)
def _relation(relation: Relation) -> str:
    return f"SELECT {_casts('r', relation)} FROM {quote('tg_r:' + relation.name)} AS r"


@lru_cache(maxsize=4096)
def _source(schema: TableSchema, form: str) -> str:
    shown = quote(f"tg_o:{schema.name}")
    live = f"SELECT {_casts('o', schema)} FROM {shown} AS o WHERE o.{quote(LIVE)} = 1"
    if form == COLUMNS:
        return live
    columns = ", ".join(f"b.{quote(column.name)}" for column in schema.columns)
    base = f"SELECT {columns} FROM {base_name(schema)} AS b"
    if form == BASE:
        return base
    same = " AND ".join(
        f"b.{quote(name)} = CAST(o.{quote(name)} AS {schema.column(name).type.sql})" for name in schema.primary_key
    )
    return f"{base} ANTI JOIN {shown} AS o ON {same} UNION ALL {live}"


def _casts(alias: str, relation: Relation) -> str:
    return ", ".join(
        f"CAST({alias}.{quote(column.name)} AS {column.type.sql}) AS {quote(column.name)}"
        for column in relation.columns
    )
