"""A table kept like another: the rows of a changelog written by key, inserted, updated or deleted.

The changelog tells each row before and after (:mod:`tidegate.outside.changelog`). Of the batches that share a transaction
only the last state of each key is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.connectors.sql.types import converter
from tidegate.errors import DataError, SinkError
from tidegate.storage.schema import Relation, TableSchema
from tidegate.streams.batch import Batch
from tidegate.wire import RowWire

COLUMNS = ("row_key", "before", "after", "position")
INSERTS: dict[str, Callable[[sa.Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def check_changelog(relation: Relation, schema: TableSchema, dialect: str, sink: str) -> None:
    """SinkError if the stream is no changelog of the table, or the database has no upsert that we know."""
    if tuple(relation.column_names) != COLUMNS or relation.name != f"{schema.name}_changes":
        raise SinkError(
            f"upsert={schema.name} needs the changelog of table {schema.name}, and {relation.name} is another stream; declare "
            f"app.table(…, changelog=True), and deliver {schema.name}_changes",
            sink=sink,
            stream=relation.name,
        )
    if dialect not in INSERTS:
        raise SinkError(
            f"upsert works with PostgreSQL and SQLite, not with {dialect}; deliver the changelog as rows (without upsert=), "
            "and merge it there",
            sink=sink,
        )


def missing_key(schema: TableSchema, target: sa.Table, database: sa.Engine) -> str | None:
    """What the target lacks to find a row by its key, in words."""
    wanted = set(schema.primary_key)
    inspector = sa.inspect(database)
    keys = [{column.name for column in target.primary_key.columns}]
    keys += [set(found["column_names"]) for found in inspector.get_unique_constraints(target.name, target.schema)]
    keys += [
        {str(column) for column in found["column_names"]}
        for found in inspector.get_indexes(target.name, target.schema)
        if found["unique"]
    ]
    if wanted in keys:
        return None
    return f"it has no PRIMARY KEY or UNIQUE ({', '.join(schema.primary_key)}), by which rows are found"


class Upserts:
    """Writes changes of ``schema`` into ``target``."""

    def __init__(self, schema: TableSchema, target: sa.Table, dialect: str) -> None:
        self._schema = schema
        self._wire = RowWire(schema)
        self._columns = [(c.name, converter(c.type, target.columns[c.name].type)) for c in schema.columns]
        keys = schema.primary_key
        self._delete = target.delete().where(*(target.c[name] == sa.bindparam(f"k{i}") for i, name in enumerate(keys)))
        insert = INSERTS[dialect](target).values({name: sa.bindparam(name) for name, _ in self._columns})
        others = {name: insert.excluded[name] for name, _ in self._columns if name not in keys}
        found = [target.c[name] for name in keys]
        self._upsert = (
            insert.on_conflict_do_update(index_elements=found, set_=others)
            if others
            else insert.on_conflict_do_nothing(index_elements=found)
        )

    def write(self, connection: sa.Connection, batches: Sequence[Batch]) -> None:
        last: dict[str, str | None] = {row_key: after for batch in batches for row_key, _, after, _ in batch.rows}
        gone = [self._key(row_key) for row_key, after in last.items() if after is None]
        rows = [self._row(after) for after in last.values() if after is not None]
        if gone:
            connection.execute(self._delete, gone)
        if rows:
            connection.execute(self._upsert, rows)

    def _row(self, after: str) -> dict[str, Any]:
        try:
            row = self._schema.conform(self._wire.read([msgspec.json.decode(after)])[0])
        except (msgspec.DecodeError, DataError, ValueError) as error:
            raise SinkError(f"the changelog does not fit table {self._schema.name}: {error}") from None
        return self._converted(dict(zip(self._schema.column_names, row, strict=True)))

    def _key(self, row_key: str) -> dict[str, Any]:
        """The values of a row's key, as ``k0``, ``k1`` …"""
        named = dict(zip(self._schema.primary_key, msgspec.json.decode(row_key), strict=True))
        filler: dict[str, Any] = dict.fromkeys(self._schema.column_names)
        read = self._wire.read([{**filler, **named}])[0]
        values = [read[name] for name in self._schema.primary_key]
        key = self._schema.conform_key(values[0] if len(values) == 1 else tuple(values))
        stored = (key,) if len(values) == 1 else key
        converted = self._converted(dict(zip(self._schema.primary_key, stored, strict=True)))
        return {f"k{i}": converted[name] for i, name in enumerate(self._schema.primary_key)}

    def _converted(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: row[name] if convert is None or row[name] is None else convert(row[name])
            for name, convert in self._columns
            if name in row
        }
