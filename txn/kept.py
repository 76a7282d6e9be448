"""The rows of batches that were undone, kept for people, within a bound.

An abort is an ordinary outcome, so keeping its rows costs little: the batches themselves are kept, and become text only
when someone asks, or when they are saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from tidegate.storage.schema import Relation, Row
from tidegate.streams.batch import Batch
from tidegate.wire import RowWire, encode

ONE_BYTES = 64 << 10  # rows of one transaction
ALL_BYTES = 4 << 20  # rows of all of them
_WIDE = {"text", "json", "blob", "list"}


class KeptRows:
    """The rows that one undone transaction worked on, or the first of them. ``count``: how many there were;
    ``truncated``: not all of them are kept; ``size``: bytes held, roughly.
    """

    __slots__ = ("_batches", "_text", "count", "size", "truncated")

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._batches: list[tuple[Relation, Sequence[Row]]] | None = []
        self._text: str | None = None
        self.count = self.size = 0
        self.truncated = False
        for batch in batches:
            rows = batch.rows
            kept, size = _leading(batch.relation, rows, ONE_BYTES - self.size)
            if kept:
                self._batches.append((batch.relation, rows if kept == len(rows) else rows[:kept]))
            self.count += len(rows)
            self.size += size
            self.truncated |= kept < len(rows)

    @classmethod
    def restored(cls, text: str | None, count: int, truncated: bool) -> KeptRows:
        """As it was saved."""
        kept = cls()
        kept._batches, kept._text = None, text
        kept.count, kept.truncated = count, truncated
        kept.size = 0 if text is None else len(text)
        return kept

    @property
    def text(self) -> str | None:
        """The rows as JSON: a list of objects, or, if there are several streams, an object of such lists. None: none
        are kept.
        """
        if self._batches is not None:
            told = {relation.name: _wire(relation).write(rows) for relation, rows in self._batches}
            self._batches = None
            self._text = encode(told if len(told) > 1 else next(iter(told.values()))).decode() if told else None
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptRows) and (self.text, self.count) == (other.text, other.count)

    def forget(self) -> None:
        """Drop the rows: there are too many newer ones."""
        self._batches, self._text = None, None
        self.size, self.truncated = 0, self.truncated or bool(self.count)


def rows_as_text(batch: Batch) -> str:
    """The rows of a batch as JSON, a list of objects."""
    return encode(_wire(batch.relation).write(batch.rows)).decode()


def rows_of_text(relation: Relation, text: str) -> tuple[Row, ...]:
    """The inverse of :func:`rows_as_text`."""
    return _wire(relation).read_stored(msgspec.json.decode(text))


@lru_cache(256)
def _wire(relation: Relation) -> RowWire:
    return RowWire(relation)


@lru_cache(256)
def _weight(relation: Relation) -> tuple[int, tuple[int, ...]]:
    """The bytes of a row without its wide columns, roughly, and the places of those."""
    wide = tuple(i for i, column in enumerate(relation.columns) if column.type.family in _WIDE)
    return 56 + 32 * len(relation.columns), wide


def _leading(relation: Relation, rows: Sequence[Row], room: int) -> tuple[int, int]:
    """How many of the first rows fit into ``room`` bytes, and their bytes."""
    base, wide = _weight(relation)
    if not wide:
        kept = min(len(rows), max(room, 0) // base)
        return kept, kept * base
    size = 0
    for number, row in enumerate(rows):
        more = base
        for place in wide:
            if row[place] is not None:
                more += len(row[place])
        if size + more > room:
            return number, size
        size += more
    return len(rows), size
