"""The errors for access that a declaration does not allow, and for writes that a key or UNIQUE refuses."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

from tidegate.errors import AccessError, ConstraintError, near
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.schema import Key, TableSchema

SHOWN = 5  # partitions in an error


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
        told = f"table {table!r}, which does not exist; {near(table, sorted(known), 'the app has')}"
    return AccessError(f"procedure {procedure} uses {told}", procedure=procedure, relation=table)


def outside(procedure: str, schema: TableSchema, partitions: Collection[Any], key: Key) -> AccessError:
    """``partitions``: those it may touch, as in ``View.partitions``."""
    told = [repr(p if len(schema.partition_by) > 1 else (p,)) for p in islice(partitions, SHOWN)]
    more = f" and {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    what = f"partition{'s' if len(told) > 1 else ''} {', '.join(told)}{more}"
    if not told:
        what = "no partition (no row of its batch names one; NULL does not)"
    return AccessError(
        f"procedure {procedure} works on {what} of {schema.name} ({', '.join(schema.partition_by)}), "
        f"but touched key {key!r}; name its partition too, with partition({schema.name!r}, by=[…]), or declare the whole table "
        f"(reads=[{schema.name!r}] or writes=[{schema.name!r}])",
        procedure=procedure,
        relation=schema.name,
        key=key,
    )
