"""The errors for access that a declaration does not allow, and for writes that a key or UNIQUE refuses."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from tidegate.errors import AccessError, ConstraintError
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.schema import Key, TableSchema


def duplicate_key(schema: TableSchema, key: Key) -> ConstraintError:
    return ConstraintError(
        f"{schema.name} already has a row with {', '.join(schema.primary_key)} = {key!r}; "
        f"use upsert to replace it or update to change it",
        relation=schema.name,
        constraint="PRIMARY KEY",
        key=key,
    )


def taken_value(schema: TableSchema, index: SecondaryIndex, value: Any, owner: Key, key: Key) -> ConstraintError:
    return ConstraintError(
        f"{schema.name} is UNIQUE on ({', '.join(index.columns)}): {value!r} is taken by key {owner!r}, "
        f"wanted for key {key!r}",
        relation=schema.name,
        constraint="UNIQUE",
        key=key,
        value=value,
    )


def read_only(procedure: str, table: str) -> AccessError:
    return AccessError(
        f"procedure {procedure} writes table {table} but declared only to read it; add writes=[{table!r}] to its declaration",
        procedure=procedure,
        relation=table,
    )


def being_updated(procedure: str, table: str) -> AccessError:
    return AccessError(
        f"procedure {procedure} writes to {table} in a function that update_each calls for its rows; do it before or after, or "
        f"change the rows one by one with get and update",
        procedure=procedure,
        relation=table,
    )


def undeclared(procedure: str, table: str, known: Collection[str]) -> AccessError:
    if table in known:
        told = f"table {table} without declaring it; add reads=[{table!r}] (or writes=[{table!r}]) to its declaration"
    else:
        close = get_close_matches(str(table), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the app has {', '.join(sorted(known)) or 'no tables'}"
        told = f"table {table!r}, which does not exist; {hint}"
    return AccessError(f"procedure {procedure} uses {told}", procedure=procedure, relation=table)


def outside(procedure: str, schema: TableSchema, partition: tuple[Any, ...], key: Key) -> AccessError:
    return AccessError(
        f"procedure {procedure} works on partition {partition!r} of {schema.name} ({', '.join(schema.partition_by)}), "
        f"but touched key {key!r}; declare the whole table (reads=[{schema.name!r}] or writes=[{schema.name!r}]) "
        f"if it needs other partitions",
        procedure=procedure,
        relation=schema.name,
        key=key,
    )
