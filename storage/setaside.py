"""Rows that DuckDB refuses: found among the changes, left out of the merge, and kept until DuckDB accepts them.

Input checks refuse what the base can't hold (:mod:`tidegate.storage.types`). If a value still gets past them, it must
not block all others: the merge continues without that row. The row stays in memory, with the changes that the base
lacks, and is stored beside the tables in our own encoding, so that nothing acknowledged is lost; every merge
tries it again.
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

# errors that mean a bad value, not a bad disk or database
REFUSALS = (
    *(duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.IntegrityError),
    *(pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError),
)

T = TypeVar("T")


class SetAside(NamedTuple):
    """A row that the base does not have because DuckDB refused it. ``since``: the time of the first refusal."""

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
    """The items that ``attempt`` refuses on their own, with the error: found by bisection."""
    error = attempt(items) if items else None
    if error is None:
        return []
    if len(items) == 1:
        return [(items[0], error)]
    half = len(items) // 2
    return refused(items[:half], attempt) + refused(items[half:], attempt)


class Aside:
    """The rows of all tables that the base refuses."""

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
        """Rows that were not refused before, and the entries of those that were and have not changed."""
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
    """The cause in one line."""
    return next(iter(text_of(error).splitlines()), type(error).__name__)
