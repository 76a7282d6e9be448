"""Rows that DuckDB would not take: found in a batch of changes, left out of the merge, and kept until it does take them.

The door refuses what the base can't hold (:mod:`tidegate.storage.types`). Should a value get past it all the same, it must
not stand in the way of all others: the merge goes on without that row. The row stays in memory, with the changes that the
base lacks, and is written down beside the tables in our own encoding, so that nothing acknowledged is lost; every merge tries
it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa

from tidegate.errors import shown, text_of
from tidegate.storage.codec import from_json, to_json, widened
from tidegate.storage.schema import Key, Row, TableSchema

AGAIN = 100  # rows that one merge tries again, in turn

# what says that a value is wrong, and not the disk or the database
REFUSALS = (
    *(duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.IntegrityError),
    *(pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError),
)

T = TypeVar("T")


class SetAside(NamedTuple):
    """A row that the base does not have because DuckDB refused it. ``since``: the time of the first merge that it did."""

    table: str
    key: Key
    row: Row
    column: str | None
    cause: str
    since: str | None

    def __str__(self) -> str:
        where = self.table if self.column is None else f"{self.table}.{self.column}"
        return f"{where} of the row with key {shown(self.key)}: {self.cause}"

    def saved(self) -> list[Any]:
        return [self.table, to_json(self.row), self.column, self.cause, self.since]


def restored(schema: TableSchema, saved: Sequence[Any]) -> SetAside:
    """What :meth:`SetAside.saved` wrote."""
    table, row, *rest = saved
    stored = widened(schema, from_json(row))[:]  # a plain tuple
    return SetAside(table, schema.key_of(stored), stored, *rest)


def refused(items: Sequence[T], attempt: Callable[[Sequence[T]], Exception | None]) -> list[tuple[T, Exception]]:
    """The items that ``attempt`` raises for when they come alone, with what it raises: found by halves."""
    error = attempt(items) if items else None
    if error is None:
        return []
    if len(items) == 1:
        return [(items[0], error)]
    half = len(items) // 2
    return refused(items[:half], attempt) + refused(items[half:], attempt)


class Aside:
    """The rows of all tables that the base does not take."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, Key], SetAside] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def keys(self, table: str) -> list[Key]:
        return [key for name, key in self.rows if name == table]

    def of(self, tables: Iterable[str]) -> list[SetAside]:
        wanted = set(tables)
        return [entry for entry in self.rows.values() if entry.table in wanted]

    def divided(self, schema: TableSchema, rows: list[Row]) -> tuple[list[Row], list[SetAside]]:
        """Rows that were not refused before, and entries of those that were and are still the same."""
        if not self.rows:
            return rows, []
        fresh, known = [], []
        for row in rows:
            entry = self.rows.get((schema.name, schema.key_of(row)))
            if entry is None or entry.row != row:
                fresh.append(row)
            else:
                known.append(entry)
        return fresh, known


def in_turn(known: list[SetAside], merges: int) -> tuple[list[SetAside], list[SetAside]]:
    """Which of these are tried in this merge, and the others."""
    start = merges * AGAIN % len(known) if len(known) > AGAIN else 0
    order = list(itertools.chain(known[start:], known[:start]))
    return order[:AGAIN], order[AGAIN:]


def cause_of(error: Exception) -> str:
    """In one line."""
    return next(iter(text_of(error).splitlines()), type(error).__name__)
