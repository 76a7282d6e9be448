"""Low-water-mark locking, and strict two-phase locking to compare it with.

A lockable *item* is a table, ``("med_events", None)``, or one partition of it, ``("med_events", (17,))``; a table
overlaps all its partitions. Intents are registered in position order when a batch is admitted. With that,

    low_water_mark(item) = the smallest position among the write intents on item that have not finished
    read  at position p is granted when  p <= low_water_mark(item)
    write at position p is granted when  p == low_water_mark(item)

Both come down to one question, :meth:`LowWaterMarks.blocker`: is there an unfinished write intent on one of my items
below my position? Readers block nobody: a writer behind them creates a new version. Waits only ever point to smaller
positions, so there is no deadlock.

Pure data structures: values in, decisions out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    """Why a lock is not granted: ``item`` is written by the unfinished execution at ``behind``, the first of those
    ahead.

    ``until``: the last of those ahead. There is no need to ask again before it is gone.
    """

    item: Item
    behind: Position
    until: Position


class LockTable(Protocol):
    """What the scheduler asks of a locking scheme. Positions are registered in ascending order."""

    def register(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None: ...

    def blocker(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> Block | None: ...

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None: ...


class _Intents:
    """Unfinished intents of one kind (reads or writes) by table and by partition, each in ascending order."""

    def __init__(self) -> None:
        self._any: dict[str, list[Position]] = {}  # one for each item of the table
        self._exact: dict[Item, list[Position]] = {}

    def add(self, at: Position, item: Item) -> None:
        insort(self._any.setdefault(item.table, []), at)
        insort(self._exact.setdefault(item, []), at)

    def drop(self, at: Position, item: Item) -> None:
        remove(self._any[item.table], at)
        exact = self._exact[item]
        remove(exact, at)
        if not exact:
            del self._exact[item]

    def overlapping(self, item: Item) -> list[list[Position]]:
        """The positions with an intent that overlaps ``item``, in at most two ascending, non-empty lists."""
        if item.partition is None:
            found = [self._any.get(item.table)]
        else:
            found = [self._exact.get(item), self._exact.get(Item(item.table))]
        return [positions for positions in found if positions]

    def smallest(self, item: Item) -> Position | None:
        """The smallest position with an intent that overlaps ``item``."""
        return min((positions[0] for positions in self.overlapping(item)), default=None)

    def block(self, at: Position, item: Item) -> Block | None:
        """The intents on ``item`` ahead of ``at``, if any."""
        if item.partition is None:
            positions = self._any.get(item.table)
            if not positions or positions[0] >= at:
                return None
            return Block(item, positions[0], positions[bisect_left(positions, at) - 1])
        in_front = [positions for positions in self.overlapping(item) if positions[0] < at]
        if not in_front:
            return None
        last = max(positions[bisect_left(positions, at) - 1] for positions in in_front)
        return Block(item, min(positions[0] for positions in in_front), last)

    def items(self) -> Iterator[Item]:
        return iter(self._exact)


class LowWaterMarks:
    """Low-water-mark locks: only write intents are kept, because only writers block others."""

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
                block = self._writes.block(at, item)
                if block is not None:
                    return block
        return None

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        for item in writes:
            self._writes.drop(at, item)

    def marks(self) -> dict[Item, Position]:
        """Every item with a mark, for display."""
        found = {item: self._writes.smallest(item) for item in self._writes.items()}
        return {item: mark for item, mark in found.items() if mark is not None}


class TwoPhaseLocks(LowWaterMarks):
    """Strict two-phase locking with the same ordered admission: a writer also waits for readers ahead of it."""

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
            block = self._reads.block(at, item)
            if block is not None:
                return block
        return None

    def release(self, at: Position, reads: Iterable[Item], writes: Iterable[Item]) -> None:
        super().release(at, reads, writes)
        for item in reads:
            self._reads.drop(at, item)


default: Callable[[], LowWaterMarks] = LowWaterMarks  # the locks of new schedulers


@contextmanager
def locking_with(kind: Callable[[], LowWaterMarks]) -> Iterator[None]:
    """Engines opened inside the block use this kind of locks: for comparisons, and for tests of the contract."""
    global default
    before, default = default, kind
    try:
        yield
    finally:
        default = before


def remove(positions: list[Position], at: Position) -> None:
    """Remove ``at`` from ascending positions; most often it is the first."""
    del positions[0 if positions[0] == at else bisect_left(positions, at)]
