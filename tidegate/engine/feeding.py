"""What ``feed`` reads: checked rows, a chunk at a time.

Where windows are evaluated ahead of their batches, the chunk after the one that runs has been read and announced before, so
that whoever evaluates them has work while the transactions of a chunk end and the next one is read::

    read and checked   A  B     C       D
    transactions             A       B       C       D
    evaluated            A…  B…      C…      D…
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.errors import DataError
from tidegate.streams.border import Border

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

FEED_AHEAD = 250  # rows read ahead by feed(), whose keys are fetched together
LOOK_AHEAD = 100_000  # rows in a chunk at most, where windows are evaluated ahead of their batches


@dataclass(eq=False, slots=True)
class Chunk:
    """Checked rows, and as batches. ``refused``: why the row after them is no good."""

    rows: tuple[Any, ...]
    parts: list[tuple[Any, tuple[Any, ...]]]
    refused: DataError | None = None


class Chunks:
    """The chunks of one feed, to be run one after the other.

    The chunk after the next is read only if the source has been fast enough so far: nothing waits for a slow one.
    """

    def __init__(self, engine: Engine, border: Border, rows: Iterable[Any], size: int) -> None:
        self._engine = engine
        self._border = border
        self._left = iter(rows)
        self._size = size
        self._prompt = True  # did the last chunk come as fast as results may take?

    def __iter__(self) -> Iterator[Chunk]:
        ahead = self._engine.runtime.ahead
        if ahead is None or self._engine.executor.inline_plan(self._border.name) is None:
            while chunk := self._next():
                yield chunk
            return
        stream = self._border.name
        waiting: list[Chunk] = []
        try:
            while True:
                while len(waiting) < 2 and (self._prompt or not waiting) and (chunk := self._next()):
                    waiting.append(chunk)
                    ahead.soon(stream, chunk.parts)
                    if chunk.refused is not None:
                        self._left = iter(())
                if not waiting:
                    return
                yield waiting.pop(0)
        finally:
            for chunk in waiting:  # something was raised before their turn
                ahead.withdraw(stream, chunk.parts)

    def _next(self) -> Chunk | None:
        given = self._read()
        if not given:
            return None
        refused = None
        try:
            rows = self._border.check_rows(given)
        except DataError as error:
            refused = error
            rows = self._leading_good(given)
        return Chunk(rows, self._border.split_into(rows, self._size), refused)

    def _read(self) -> list[Any]:
        """The next rows. Where windows are evaluated ahead of their batches more of them, if they come soon enough."""
        size, left = self._size, self._left
        chunk = list(islice(left, max(FEED_AHEAD // size, 1) * size))
        ahead = self._engine.runtime.ahead
        if ahead is None or not chunk:
            return chunk
        stream = self._border.name
        wanted = min(ahead.wanted(stream) * size, LOOK_AHEAD)
        clock = self._engine.clock
        until = clock.monotonic() + ahead.target_s(stream)
        while len(chunk) < wanted and clock.monotonic() < until and (more := list(islice(left, size))):
            chunk += more
        self._prompt = clock.monotonic() < until
        return chunk

    def _leading_good(self, rows: list[Any]) -> tuple[Any, ...]:
        good: list[Any] = []
        for row in rows:
            try:
                good.extend(self._border.check_rows([row]))
            except DataError:
                break
        return tuple(good)
