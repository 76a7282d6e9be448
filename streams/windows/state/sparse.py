"""Tables of (key, pane) that take memory only where something was written.

A long row is cut into pages of about √n places, so that a key with one pane takes about 2√n numbers and not n; a short one is
a page. Page 0 is always empty: what was never written is read from it. All fields share one index::

    index   pane 0…3  4…7  8…11          pool   page 0  empty
    key a          1    2     0                      1  panes 0…3 of a
    key b          0    3     0                      2  panes 4…7 of a
                                                     3  panes 4…7 of b
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegate.streams.windows.state.columns import Array
from tidegate.streams.windows.state.fields import Field, FieldName, Partials

SHORT = 256  # columns of a row that is not cut into pages


class SparseTable:
    """``columns`` panes (or a few more, always empty) for each of ``room`` keys."""

    def __init__(self, fields: Sequence[Field], columns: int, room: int) -> None:
        self.fields = fields
        self.shift = (columns - 1).bit_length() if columns <= SHORT else max(6, (columns.bit_length() + 1) // 2)
        self.size = 1 << self.shift  # places in a page: a power of two, since division is slow
        self.per_row = -(-columns // self.size)
        self.width = self.per_row * self.size
        self.index: Array = np.zeros((room, self.per_row), "i8")
        self.pools = {f.name: self._blank(f, 1) for f in fields}
        self.free: Array = np.empty(0, "i8")

    def _blank(self, f: Field, pages: int) -> Array:
        empty = f.empty(pages * self.size)
        return empty.reshape(pages, self.size, *empty.shape[1:])

    # ---- reading

    def places(self, rows: Array, columns: Array) -> Array:
        """Where these are in the pools."""
        if self.per_row == 1:
            places: Array = self.index.reshape(-1).take(rows)
            places <<= self.shift
            places += columns
            return places
        cells = rows * self.per_row
        cells += columns >> self.shift
        places = self.index.reshape(-1).take(cells)
        places <<= self.shift
        places += columns & (self.size - 1)
        return places

    def take(self, name: FieldName, places: Array) -> Array:
        return flat(self.pools[name]).take(places, axis=0)

    def rows(self, name: FieldName, which: Any) -> Array:
        """Whole rows, as a table of their own."""
        pages = self.index[which]
        found: Array = self.pools[name].take(pages.reshape(-1), axis=0)
        return found.reshape(len(pages), self.width, *found.shape[2:])

    # ---- writing

    def opened(self, rows: Array, columns: Array) -> Array:
        """Where these are in the pools, for writing."""
        places = self.places(rows, columns)
        if len(places) and int(places.min()) < self.size:
            blank = places < self.size
            cells = rows[blank] * self.per_row + (columns[blank] >> self.shift)
            self._open(np.unique(cells))
            places = self.places(rows, columns)
        return places

    def put(self, name: FieldName, places: Array, values: Array) -> None:
        flat(self.pools[name])[places] = values

    def put_rows(self, which: Array, tables: Partials) -> None:
        """Write whole rows; of several for one key the last one is kept."""
        pages = self.index.take(which, axis=0)
        if not pages.all():
            cells = np.unique(which)[:, None] * self.per_row + np.arange(self.per_row)
            self._open(cells[self.index.reshape(-1)[cells] == 0])
            pages = self.index.take(which, axis=0)
        for name, table in tables.items():
            self.pools[name][pages] = table.reshape(*pages.shape, self.size, *table.shape[2:])

    def clear(self, which: Array) -> None:
        """Empty these rows."""
        pages = self.index[which]
        self.index[which] = 0
        self._give_back(pages[pages > 0])

    def _open(self, cells: Array) -> None:
        """Give pages to these cells of the index, which have none."""
        missing = len(cells) - len(self.free)
        if missing > 0:
            had = len(self.pools[self.fields[0].name])
            more = max(missing, had)
            for f in self.fields:
                self.pools[f.name] = np.concatenate([self.pools[f.name], self._blank(f, more)])
            self.free = np.concatenate([self.free, np.arange(had, had + more)])
        pages, self.free = self.free[: len(cells)], self.free[len(cells) :]
        self.index.reshape(-1)[cells] = pages

    def _give_back(self, pages: Array) -> None:
        for f in self.fields:
            self.pools[f.name][pages] = f.identity()
        self.free = np.concatenate([self.free, pages])

    # ---- keys come and go; checkpoints

    def keep(self, which: Array, room: int) -> None:
        """Keep these rows, with room for this many."""
        old, gone = self.index, np.ones(len(self.index), bool)
        gone[which] = False
        self.clear(gone.nonzero()[0])
        self.index = np.zeros((room, self.per_row), "i8")
        self.index[: len(which)] = old[which]

    def saved(self, count: int) -> list[Any]:
        """Which cells of the first ``count`` rows have pages, and those pages."""
        there = self.index[:count] > 0
        pages = self.index[:count][there]
        return [there, *(self.pools[f.name][pages] for f in self.fields)]

    def restore(self, saved: list[Any]) -> None:
        there, *pools = saved
        cells = np.flatnonzero(there)
        self._open(cells)
        pages = self.index.reshape(-1)[cells]
        for f, pool in zip(self.fields, pools, strict=True):
            self.pools[f.name][pages] = pool


def flat(table: Array) -> Array:
    """A table of (key, pane) as one row."""
    return table.reshape(-1, *table.shape[2:])
