"""Dividing what was emitted on a stream with a key of its own into one batch per key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidegate.errors import DataError, shown
from tidegate.storage.schema import Row
from tidegate.streams.batch import Batch

Divided = dict[Any, Batch]  # by key, in order


def in_order(keys: Collection[Any]) -> list[Any]:
    """Keys in the order in which executions of one rank have their positions: ascending."""
    return sorted(keys)


def divide(batch: Batch, key: str, number: int) -> Divided:
    """A batch for each value of column ``key``, under the id ``number``; rows of one key stay in their order."""
    place = batch.relation.index_of[key]
    rows: dict[Any, list[Row]] = {}
    for row in batch.rows:
        rows.setdefault(row[place], []).append(row)
    return {value: Batch(batch.relation, number, tuple(rows[value]), value) for value in in_order(rows)}


def check_divisible(batch: Batch, key: str, most: int) -> None:
    """Every row has a key, and there are no more keys than there are positions for them."""
    relation, place = batch.relation, batch.relation.index_of[key]
    keys = {row[place] for row in batch.rows}
    if None in keys:
        row = next(row for row in batch.rows if row[place] is None)
        raise DataError(
            f"{relation.name}.{key} is the stream's key and can't be NULL, in row {shown(tuple(row))}",
            relation=relation.name,
            column=key,
        )
    if len(keys) > most:
        raise DataError(
            f"what was emitted to {relation.name} has {len(keys):,} values of its key {key}, and a batch can be divided into "
            f"{most:,} at most. Push smaller batches",
            relation=relation.name,
            column=key,
        )
