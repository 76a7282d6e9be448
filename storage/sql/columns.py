"""The newest rows of a table as Arrow columns, for SQL that DuckDB runs: built once, then kept up to date.

Rows are appended; one that is replaced later stays where it is and is marked. What changed since the last question is
first held as rows (``recent``), and becomes a block of its own when there is enough of it::

    blocks   │ a 1 │ b 2 │ c 3 │  │ b 5 │ d 7 │       recent  c ─▶ 9
    live        1     0     1        1     1            a question sees a 1, b 5, d 7, c 9

A commit does no more than to remember its keys (:meth:`VersionedTable.take_news`). Who does not see the newest version of
a row gets the right one from the chains, as if it had been written over it (:func:`older`).

``whole``: all rows of a table that is in memory; SQL then reads no base. Otherwise only rows changed since the last merge.
Such columns include deleted rows, which hide those of the base, and start anew with every merge.

Calls must not overlap; commits may go on all the while. What :meth:`Columns.arrow` returned does not change any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.storage.arrow import arrow_table
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Key, Row, TableSchema
from tidegate.storage.versions import VersionedTable
from tidegate.storage.view import View

LIVE = "tg:live"  # 1 in rows that are there, 0 in those that were deleted or replaced
RECENT = 128  # rows that are made into Arrow again for every question; a block costs more than that
WHOLE_ROWS = 200_000  # of a larger table only the changes are kept: its columns would take as much memory as its rows
SHARE = 8  # and also while fewer than one row in so many has changed: DuckDB reads the base as fast


class Columns:
    """The columns of one table. ``places``: where the newest row of a key is, if it is in a block."""

    def __init__(self, table: VersionedTable, whole: bool) -> None:
        self.table = table
        self.schema = table.schema
        self._evictions, self._merges = table.evictions, table.merges
        self.whole = whole
        self.places: dict[Key, int] = {}
        self._blocks: list[pa.Table] = []
        self._size = 0
        self._live = np.zeros(1024, dtype=np.uint8)
        self._recent: dict[Key, Row | None] = {}
        self._made: pa.Table | None = None
        table.start_news()  # before looking: what is committed meanwhile is in both
        if whole:
            self._recent.update(item for item in list(table.rows.items()) if item[1] is not None)
            self.whole = self._all_there()
        if not self.whole:
            self._recent = {key: table.rows.get(key) for key in table.overlay_keys()}
        self._flush()

    # ---- staying up to date

    def renewed(self) -> bool:
        """Take in what was committed since the last call; False when the columns have to be built again."""
        table = self.table
        if not self._still_right():
            return False
        news = table.take_news()
        if news is None:
            return False
        if news:
            self._recent.update(zip(news, map(table.rows.get, news), strict=True))
            self._made = None
            if len(self._recent) > RECENT:
                self._flush()
        return self._still_right()  # a row that was evicted meanwhile was taken for deleted

    def _still_right(self) -> bool:
        if self.whole:
            return self._all_there() and len(self.table.rows) <= 2 * WHOLE_ROWS
        return self._merges == self.table.merges and not pays(self.table, len(self.places))

    def _all_there(self) -> bool:
        return self.table.complete and self.table.evictions == self._evictions

    def _flush(self) -> None:
        """Make the recent rows a block."""
        recent, places = self._recent, self.places
        gone = [key for key, row in recent.items() if row is None]
        stored = recent
        if gone and self.whole:
            stored = {key: row for key, row in recent.items() if row is not None}
        block = _block(self.schema, stored)  # first: it may be refused
        self._live[self._hidden(recent)] = 0
        if self.whole:
            for key in gone:
                places.pop(key, None)
        self._recent = {}
        if block is None:
            return
        first, self._size = self._size, self._size + len(stored)
        places.update(zip(stored, range(first, self._size), strict=True))
        if self._size > len(self._live):
            self._live = np.concatenate([self._live, np.zeros(self._size, dtype=np.uint8)])
        self._live[first : self._size] = 1
        if not self.whole:
            self._live[[places[key] for key in gone]] = 0
        self._append(block)

    def _append(self, block: pa.Table) -> None:
        """Few blocks, each at least twice the next: a question pays for every one."""
        blocks = self._blocks
        blocks.append(block)
        while len(blocks) > 1 and 2 * blocks[-1].num_rows >= blocks[-2].num_rows:
            last = blocks.pop()
            blocks[-1] = pa.concat_tables([blocks[-1], last]).combine_chunks()
        if self._size > 2 * len(self.places) + 1024:
            self._compact()

    def _compact(self) -> None:
        """Without the rows that were replaced."""
        kept = np.zeros(self._size, dtype=bool)
        kept[list(self.places.values())] = True
        whole = pa.concat_tables(self._blocks)
        self._blocks = [whole.filter(pa.array(kept)).combine_chunks()]
        moved = np.cumsum(kept) - 1
        self.places = dict(zip(self.places, moved[list(self.places.values())].tolist(), strict=True))
        self._live = self._live[: self._size][kept]
        self._size = len(self._live)

    def _hidden(self, keys: Iterable[Key]) -> list[int]:
        return [place for place in map(self.places.get, keys) if place is not None]

    # ---- reading

    def arrow(self, over: Mapping[Key, Row | None]) -> pa.Table:
        """All rows with the column ``LIVE``; ``over``: what a reader sees in the place of the newest rows."""
        if not over and self._made is not None:
            return self._made
        top = {**self._recent, **over} if self._recent else over
        top_rows = {key: row for key, row in top.items() if row is not None} if self.whole else dict(top)
        block = _block(self.schema, top_rows)
        live = self._live[: self._size].copy()  # a query may still read it when this one has changed
        live[self._hidden(top)] = 0
        blocks, marks = list(self._blocks), [pa.array(live)] if self._size else []
        if block is not None:
            blocks.append(block)
            marks.append(pa.array([int(row is not None) for row in top_rows.values()], type=pa.uint8()))
        if not blocks:
            blocks, marks = [arrow_table(self.schema, ())], [pa.array([], type=pa.uint8())]
        made = pa.concat_tables(blocks).append_column(LIVE, pa.chunked_array(marks))
        if not over:
            self._made = made
        return made


def pays(table: VersionedTable, changed: int) -> bool:
    """Should all rows of the table be held as columns, so many of them having changed since the last merge?"""
    return table.complete and changed * SHARE >= len(table.rows) and len(table.rows) <= WHOLE_ROWS


def columns_of(table: VersionedTable) -> Columns:
    """The table's columns, up to date."""
    kept: Columns | None = table.columns
    if kept is None or not kept.renewed():
        kept = table.columns = Columns(table, pays(table, table.above_base))
    return kept


def older(view: View, reader: Reader) -> dict[Key, Row | None]:
    """What ``view`` sees in the place of newer versions."""
    heads = list(reader.table.chains.items())
    return {key: reader.old(view, key) for key, head in heads if not reader.sees_all(view, head[0], head[3])}


def _block(schema: TableSchema, rows: Mapping[Key, Row | None]) -> pa.Table | None:
    if not rows:
        return None
    given: list[Any] = list(rows.values())
    if None in given:
        given = [_key_only(schema, key) if row is None else row for key, row in rows.items()]
    return arrow_table(schema, given).combine_chunks()


def _key_only(schema: TableSchema, key: Key) -> Row:
    row: list[Any] = [None] * len(schema.columns)
    for place, part in zip(schema.key_indexes, (key,) if len(schema.key_indexes) == 1 else key, strict=True):
        row[place] = part
    return tuple(row)
