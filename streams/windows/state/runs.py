"""Panes of a batch in *groups*, the runs of one key and one block (:mod:`.blocks`), side by side so that one scan works on all.

Each group is a row of a table; its first place holds what the block has from earlier batches, the panes follow::

    n = 4, key a has panes 2 … 5, key b pane 9        before  panes
                                        a, block 0    ▪       2  3
                                        a, block 1    ·       4  5
                                        b, block 2    ▪       9  ·
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.streams.windows.state.columns import Array
from tidegate.streams.windows.state.fields import Field, Partials

ROOMY = 8  # places in a table for each pane in it, at most


class Run(NamedTuple):
    """Panes, by key and number; those left out have no rows and do not end a window that has.

    ``local``: the key's place in the batch, or -1; ``last``: each key's last pane; ``done``: which are complete (None: all), of a
    key all but the last.
    """

    code: Array
    local: Array
    pane: Array
    partials: Partials
    last: Array
    done: Array | None


class Groups(NamedTuple):
    """Where each group begins and ends, its key and block; of each pane its group, and its place in its block.

    ``at``: the key's place in the state (0 for unknown ones); ``begun``: the groups that continue a block in progress;
    ``row``: where each group's row begins in a table, ``place``: where each pane is.
    """

    starts: Array
    ends: Array
    code: Array
    block: Array
    at: Array
    begun: Array
    of: Array
    slot: Array
    row: Array
    place: Array
    tables: list[tuple[int, int, int]]  # first place, height, width

    def scanned(self, field: Field, before: Array, partials: Array, has: Array | None) -> Array:
        """Of each place the merge of its row up to it. ``before``: what the blocks in progress had."""
        places = field.empty(self._size())
        places[self.row.take(self.begun)] = before
        places[self.place] = partials
        for first, height, width in self.tables:
            end, shape = first + height * width, (height, width)
            table = places[first:end].reshape(*shape, *places.shape[1:])
            field.scan(table, None if has is None else has[first:end].reshape(shape))
        return places

    def filled(self, had: Array, has: Array) -> Array:
        """Which places have rows?"""
        places = np.zeros(self._size(), bool)
        places[self.row.take(self.begun)] = had
        places[self.place] = has
        return places

    def _size(self) -> int:
        first, height, width = self.tables[-1] if self.tables else (0, 0, 0)
        return first + height * width


class Suffixes(NamedTuple):
    """Blocks that became complete: their groups, ascending, and the merges from each of their panes to the end.

    ``row``: of the group before each group, its row in these tables if windows of the group begin in it, else -1.
    """

    groups: Array
    tables: Partials  # [block, pane]
    row: Array


def side_by_side(lengths: Array) -> tuple[Array, list[tuple[int, int, int]]]:
    """Where the row of each group begins, and the tables: one, unless it would be mostly empty; then no group is beside
    one of more than twice its length.
    """
    count = len(lengths)
    if not count:
        return lengths, []
    width = int(lengths.max()) + 1
    if count * width <= ROOMY * (int(lengths.sum()) + count):
        return np.arange(0, count * width, width), [(0, count, width)]
    row, tables, size, left = np.empty(count, "i8"), [], 0, np.arange(count)
    while len(left):
        width = int(lengths[left].max()) + 1
        small = 2 * lengths[left] < width - 1
        which, left = left[~small], left[small]
        row[which] = size + np.arange(0, len(which) * width, width)
        tables.append((size, len(which), width))
        size += len(which) * width
    return row, tables
