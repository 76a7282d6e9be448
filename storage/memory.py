"""How much memory tables take, and how many of their rows may stay.

What a row takes is measured on some of them: its tuple, its values and its place in the dictionary. Numbers that the
interpreter shares, and what an index adds to a row that has only one value, are not told apart: it is an estimate, within a
tenth or so of what the process takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from tidegate.storage.schema import Row

if TYPE_CHECKING:
    from tidegate.storage.versions import VersionedTable

SAMPLE = 200  # rows that are measured
TYPICAL = 250  # bytes of a row where there is none to measure
LEAST_ROWS = 1_000  # of all tables: however little memory there is, a merge is not due with every batch
SPARE = 0.9  # of what tables may take, this remains when they took more: rows come in until the next merge


def bytes_of(row: Row) -> int:
    """What one row takes, its values included."""
    return sys.getsizeof(row) + sum(sys.getsizeof(value) for value in row if value is not None)


def row_bytes(table: VersionedTable) -> int:
    """What a row of the table takes in memory, its places in the dictionary and the indexes included."""
    while True:
        try:
            some = [row for row in islice(table.rows.values(), SAMPLE) if row is not None]
            break
        except RuntimeError:  # another thread adds rows
            continue
    row = sum(map(bytes_of, some)) // len(some) if some else TYPICAL
    places = sys.getsizeof(table.rows) + sum(index.bytes_held() for index in table.indexes)
    return row + places // max(len(table.rows), 1)


def table_bytes(table: VersionedTable) -> int:
    """What the rows of the table take."""
    return row_bytes(table) * len(table.rows)


class Bound:
    """How many rows of each table may stay in memory.

    ``rows``: of one table at most. ``memory``: bytes that tables and everything ``elsewhere`` may take together; None: no
    matter. What is elsewhere is told at every merge.
    """

    def __init__(self, rows: int, memory: int | None) -> None:
        self.rows = rows
        self.memory = memory
        self.elsewhere = 0
        self._most = 0 if memory is None else memory // TYPICAL  # rows of all tables, until they are measured again

    def exceeded(self, tables: Iterable[VersionedTable]) -> bool:
        """Have the tables more rows than there is memory for? Asked often."""
        return self.memory is not None and sum(len(table.rows) for table in tables) > self._most

    def kept(self, tables: Mapping[str, VersionedTable]) -> dict[str, int]:
        """How many rows of each table may stay: all give up the same share."""
        if self.memory is None:
            return dict.fromkeys(tables, self.rows)
        taken, left = sum(map(table_bytes, tables.values())), self._left()
        rows = sum(len(table.rows) for table in tables.values())
        self._most = max(LEAST_ROWS, rows * left // taken if taken else left // TYPICAL)
        if taken <= left:
            return dict.fromkeys(tables, self.rows)
        return {name: min(self.rows, int(SPARE * left / taken * len(table.rows))) for name, table in tables.items()}

    def room(self, table: VersionedTable, tables: Iterable[VersionedTable]) -> int:
        """How many rows this table may have to be held whole, beside the others."""
        if self.memory is None:
            return self.rows
        others = sum(table_bytes(other) for other in tables if other is not table)
        return max(0, min(self.rows, int((self._left() - others) / row_bytes(table))))

    def _left(self) -> int:
        """What is left for tables."""
        assert self.memory is not None
        return max(0, self.memory - self.elsewhere)
