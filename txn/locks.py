"""Low-water-mark locking, and strict two-phase locking to compare it with.

A lockable *item* is a table, ``("med_events", None)``, or one partition of it, ``("med_events", (17,))``; a table
overlaps all its partitions. Intents are registered in position order when a batch is admitted. With that,

    low_water_mark(item) = the smallest position among the write intents on item that have not finished
    read  at position p is granted when  p <= low_water_mark(item)
    write at position p is granted when  p == low_water_mark(item)

Both come down to one question, :meth:`LowWaterMarks.blocker`: is there an unfinished write intent on one of my items
below my position? Readers hold up nobody: a writer behind them makes a new version. Waits only ever point to smaller
positions, so there is no deadlock.

Pure data structures: values in, decisions out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from tidegate.txn.positions import Position

Partition = tuple[object, ...] | None


class Item(NamedTuple):
    """A table, or one partition of it."""

    table: str
    partition: Partition = None

    def __str__(self) -> str:
        return self.table if self.partition is None else f"{self.table}[{', '.join(map(repr, self.partition))}]"


class Block(NamedTuple):
    """Why a lock is not granted: ``item`` is written by the unfinished execution at ``behind``."""

    item: Item
    behind: Position


class LockTable(Protocol):
    """What the scheduler asks of a locking scheme. Positions are registered in ascending order."""

    def register(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None: ...

    def blocker(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> Block | None: ...

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None: ...


class _Intents:
    """Unfinished intents of one sort (reads or writes) by table and by partition, each in ascending order.

    An ``OrderedDict`` knows its first entry, however many have left in front of it; a ``dict`` has to look for it.
    """

    def __init__(self) -> None:
        self._any: dict[str, dict[Position, int]] = {}  # table -> position -> number of items of that table
        self._exact: dict[Item, dict[Position, None]] = {}

    def add(self, at: Position, item: Item) -> None:
        counts = self._any.setdefault(item.table, OrderedDict())
        counts[at] = counts.get(at, 0) + 1
        self._exact.setdefault(item, OrderedDict())[at] = None

    def drop(self, at: Position, item: Item) -> None:
        counts = self._any[item.table]
        counts[at] -= 1
        if not counts[at]:
            del counts[at]
        exact = self._exact[item]
        del exact[at]
        if not exact:
            del self._exact[item]

    def smallest(self, item: Item) -> Position | None:
        """The smallest position with an intent that overlaps ``item``."""
        if item.partition is None:
            return _first(self._any.get(item.table))
        found = [_first(self._exact.get(item)), _first(self._exact.get(Item(item.table)))]
        return min((at for at in found if at is not None), default=None)

    def items(self) -> Iterator[Item]:
        return iter(self._exact)


class LowWaterMarks:
    """Low-water-mark locks: only write intents are kept, because only writers hold anyone up."""

    def __init__(self) -> None:
        self._writes = _Intents()

    def register(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        for item in writes:
            self._writes.add(at, item)

    def low_water_mark(self, item: Item) -> Position | None:
        """The smallest position among the unfinished write intents on ``item``; None when there is none."""
        return self._writes.smallest(item)

    def blocker(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> Block | None:
        for items in (writes, reads):
            for item in items:
                mark = self._writes.smallest(item)
                if mark is not None and mark < at:
                    return Block(item, mark)
        return None

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        for item in writes:
            self._writes.drop(at, item)

    def marks(self) -> dict[Item, Position]:
        """Every item with a mark, for people to look at."""
        found = {item: self._writes.smallest(item) for item in self._writes.items()}
        return {item: mark for item, mark in found.items() if mark is not None}


class TwoPhaseLocks(LowWaterMarks):
    """Strict two-phase locking with the same ordered admission: a writer also waits for readers in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self._reads = _Intents()

    def register(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        super().register(at, reads, writes)
        for item in reads:
            self._reads.add(at, item)

    def blocker(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> Block | None:
        block = super().blocker(at, reads, writes)
        if block is not None:
            return block
        for item in writes:
            reader = self._reads.smallest(item)
            if reader is not None and reader < at:
                return Block(item, reader)
        return None

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        super().release(at, reads, writes)
        for item in reads:
            self._reads.drop(at, item)


def _first(positions: dict[Position, int] | dict[Position, None] | None) -> Position | None:
    return next(iter(positions)) if positions else None
