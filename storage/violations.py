"""The errors for access that a declaration does not allow, and for writes that a key or UNIQUE refuses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, islice, product
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


# names of partition columns, and combinations of values that were asked for
Wanted = tuple[tuple[str, ...], Collection[tuple[Any, ...]]]


def check_asked(
    procedure: str, schema: TableSchema, partitions: Collection[Any], wanted: Sequence[Wanted], sql: str = ""
) -> None:
    """Raise AccessError where rows of a partition were asked for that is not one of ``partitions``."""
    names = [name for columns, _ in wanted for name in columns]
    single = len(schema.partition_by) == 1
    places = [schema.partition_by.index(name) for name in names]
    known = partitions if single else {tuple([part[place] for place in places]) for part in partitions}
    for parts in product(*(found for _, found in wanted)) if names else ():
        asked = tuple(chain.from_iterable(parts))
        if (asked[0] if single else asked) not in known and None not in asked:
            told = " and ".join(f"{name} = {value!r}" for name, value in zip(names, asked, strict=True))
            raise _refused(procedure, schema, partitions, f"asked for rows with {told}", asked, sql)


def outside(procedure: str, schema: TableSchema, partitions: Collection[Any], key: Key) -> AccessError:
    """``partitions``: those it may touch, as in ``View.partitions``."""
    return _refused(procedure, schema, partitions, f"touched key {key!r}", key)


def _refused(
    procedure: str, schema: TableSchema, partitions: Collection[Any], did: str, key: Any, sql: str = ""
) -> AccessError:
    told = [repr(p if len(schema.partition_by) > 1 else (p,)) for p in islice(partitions, SHOWN)]
    more = f" and {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    what = f"partition{'s' if len(told) > 1 else ''} {', '.join(told)}{more}"
    if not told:
        what = "no partition (no row of its batch names one; NULL does not)"
    return AccessError(
        f"procedure {procedure} works on {what} of {schema.name} ({', '.join(schema.partition_by)}), "
        f"but {did}; name its partition too, with partition({schema.name!r}, by=[…]), or declare the whole table "
        f"(reads=[{schema.name!r}] or writes=[{schema.name!r}])" + (f"\n  {sql}" if sql else ""),
        procedure=procedure,
        relation=schema.name,
        key=key,
    )
