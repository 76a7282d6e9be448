"""A merge of one table in progress: the changes that it writes to the base, as of the moment it began.

Commits continue meanwhile. A row that one replaces is put aside first, until the merge has read it.

Pure data structure, like the table that it belongs to (:mod:`tidegate.storage.versions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tidegate.storage.schema import Key, Row


class Changes(NamedTuple):
    """What a merge writes to the base, or a part of it: keys to delete there, and rows to insert."""

    deleted: list[Key]
    inserted: list[Row]


class TableMerge:
    """What a merge is writing of one table.

    ``changed``: the keys, and whether the base has a row for them. ``aside``: the old form of rows that have changed
    since and that it has yet to read; None once it has read all, set on its own thread without a lock. ``gone``: keys
    whose row it found deleted.
    """

    __slots__ = ("_rows", "aside", "changed", "gone")

    def __init__(self, changed: dict[Key, bool], rows: Mapping[Key, Row | None]) -> None:
        self.changed = changed
        self.aside: dict[Key, Row | None] | None = {}
        self.gone: list[Key] = []
        self._rows = rows

    def put_aside(self, keys: Iterable[Key]) -> None:
        """The rows with these keys are about to change."""
        aside = self.aside  # read once: the merge may end it at any moment
        if aside is not None:
            for key in keys:
                if key in self.changed and key not in aside:
                    aside[key] = self._rows[key]

    def taken(self, size: int) -> Iterator[Changes]:
        """What the base lacks: the state of every changed key at the start of the merge, ``size`` keys at a time.

        Needs no lock. A commit puts the old row aside *before* it replaces it, and here we look for it *after* reading
        the row: a row that is too new is always detected.
        """
        aside, rows = self.aside, self._rows
        assert aside is not None
        changed = iter(self.changed.items())
        while part := list(islice(changed, size)):
            inserted = []
            for key, _ in part:
                row = rows[key]
                if key in aside:
                    row = aside[key]
                if row is None:
                    self.gone.append(key)
                else:
                    inserted.append(row)
            yield Changes([key for key, in_base in part if in_base], inserted)
        self.aside = None
