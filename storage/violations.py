"""The errors of writes that a key or UNIQUE refuses."""

from __future__ import annotations

from typing import Any

from tidegate.errors import ConstraintError
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
