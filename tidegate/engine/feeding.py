"""Feeding: many rows, a chunk at a time.

Where windows are evaluated ahead of their batches, the chunk after the running one has already been read and announced,
so that the backend has work while the transactions of a chunk end and the next one is read::

    read and checked   A  B     C       D
    transactions             A       B       C       D
    evaluated            A…  B…      C…      D…
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tidegate.engine.closing import stop_if_torn
from tidegate.engine.fed import Fed, feed_halted, halted_behind, outcome_of
from tidegate.engine.foreknown import Foreknown
from tidegate.errors import DataError, FeedHalted, TidegateError
from tidegate.storage.columnar import Given, is_columnar, pieces
from tidegate.streams.border import Border
from tidegate.txn.entries import Rows
from tidegate.txn.tally import Tally

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

FEED_AHEAD = 250  # rows read ahead by feed(), whose keys are fetched together
LOOK_AHEAD = 100_000  # rows in a chunk at most, where windows are evaluated ahead of their batches
COLUMNS = 100_000  # rows of columns that are read and checked at a time


class Feeding:
    """Bulk input. ``feed`` takes the turn for each chunk."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.foreknown = Foreknown(engine.app, engine.database)

    def feed(
        self,
        stream: str,
        rows: Iterable[Any],
        size: int,
        source: str | None = None,
        offset: Any = None,
        after: Any = UNSET,
        timeout_s: float | None = None,
    ) -> tuple[Fed, FeedHalted | None]:
        """See :meth:`Engine.feed`; the error is returned, not raised. ``timeout_s``: how long rows of a source wait for
        room.
        """
        engine = self._engine
        tally = Tally()
        border = engine.acceptance.border(stream)
        if type(size) is not int or size < 1:
            raise TidegateError(
                f"feed({stream!r}, …): size is a positive whole number of rows, got {size!r}", stream=stream
            )
        if isinstance(rows, (str, Mapping)) or not (isinstance(rows, Iterable) or is_columnar(rows)):
            raise DataError(
                f"feed({stream!r}, rows) takes an iterable of rows, got {type(rows).__name__}", relation=stream
            )
        border.check_unfinished()
        with self._counting(tally):
            if source is not None:
                taken = border.check_rows(rows)
                batches = self._whole(border, taken, size, source, offset, after, timeout_s, tally)
                return self._outcome(stream, len(taken) if batches else 0, batches, tally)
            fed = batches = 0
            for chunk in Chunks(engine, border, rows, size):
                batches += self._chunk(border, chunk, size, tally)
                fed += len(chunk.rows)
                if chunk.refused is not None:
                    chunk.refused.fed = fed  # type: ignore[attr-defined]
                    raise chunk.refused
                if engine.scheduler.halted and self._stopped(tally):
                    break
            if engine.durable is not None:
                engine.durable.sync()
            return self._outcome(stream, fed, batches, tally)

    @contextmanager
    def _counting(self, tally: Tally) -> Iterator[None]:
        tallies = self._engine.journal.tallies
        with self._engine.lock:
            tallies.append(tally)
        try:
            yield
        except BaseException:
            stop_if_torn(self._engine)
            raise
        finally:
            with self._engine.lock:
                tallies.remove(tally)

    def _stopped(self, tally: Tally) -> bool:
        """Is everything that follows going to wait? A halt of one key keeps only that key waiting."""
        with self._engine.lock:
            return any(front.key is None for front in halted_behind(self._engine, tally))

    def _outcome(self, stream: str, rows: int, batches: int, tally: Tally) -> tuple[Fed, FeedHalted | None]:
        """What became of the rows, and an error if some of them wait behind a halt."""
        with self._engine.lock:
            fed = outcome_of(self._engine, stream, rows, batches, tally)
            fronts = halted_behind(self._engine, tally)
        if fed.undone:
            log.warning("feed to %s: %s. See tidegate.aborts and tidegate.dead_letters", stream, fed)
        return fed, feed_halted(stream, fronts, fed) if fronts else None

    def _whole(
        self,
        border: Border,
        rows: Given,
        size: int,
        source: str,
        offset: Any,
        after: Any,
        timeout_s: float | None,
        tally: Tally,
    ) -> int:
        """Rows of a source: all of them and its offset are one record in the log, so a crash can't separate them."""
        engine, acceptance = self._engine, self._engine.acceptance
        self.foreknown.fetch(border.name, rows)
        parts = [p for i in range(0, len(rows), size) for p in border.split(rows[i : i + size]).items()]
        with engine.turn:
            acceptance.begin(border.name, timeout_s)
            repeated = after is not UNSET and acceptance.repeats(border.name, source, offset, after)
            if repeated:
                parts = []
            else:
                self._accept(Rows(border, parts, size, rows, None, source, offset), tally)
        engine.merger.look()
        if engine.durable is not None:
            engine.durable.sync()
        return len(parts)

    def _accept(self, entry: Rows, tally: Tally) -> None:
        acceptance = self._engine.acceptance
        tally.begin(acceptance.sequence + 1)
        acceptance.accept(entry, None)
        tally.end(acceptance.sequence)

    def _chunk(self, border: Border, chunk: Chunk, size: int, tally: Tally) -> int:
        engine, acceptance = self._engine, self._engine.acceptance
        rows, parts = chunk.rows, chunk.parts
        self.foreknown.fetch(border.name, rows)
        with engine.turn:
            acceptance.check_ready()
            if engine.scheduler.idle and engine.executor.inline_plan(border.name) is not None:
                if engine.outbox.subscriptions:
                    acceptance.make_room(border.name, None)
                watched = self.foreknown.watch(border.name)
                self._accept(Rows(border, parts, size, rows), tally)
                if watched:
                    self.foreknown.learn(border.name, watched, rows)
            else:
                for key, part in parts:
                    acceptance.make_room(border.name, None)
                    self._accept(Rows(border, [(key, part)]), tally)
        engine.merger.look()
        return len(parts)


@dataclass(eq=False, slots=True)
class Chunk:
    """Checked rows, also split into batches. ``refused``: why the row after them was refused."""

    rows: Given
    parts: list[tuple[Any, Given]]
    refused: DataError | None = None


class Chunks:
    """The chunks of one feed, to be run one after another.

    The chunk after the next is read only if the source was fast enough for the last one: nothing waits for a slow
    source.
    """

    def __init__(self, engine: Engine, border: Border, rows: Iterable[Any], size: int) -> None:
        self._engine = engine
        self._border = border
        self._columns = is_columnar(rows)
        self._left: Iterator[Any] = (
            pieces(border.relation, rows, max(COLUMNS // size, 1) * size) if self._columns else iter(rows)
        )
        self._size = size
        self._prompt = True  # did the last chunk arrive within the time that results may take?

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
            for chunk in waiting:  # an exception came before their turn
                ahead.withdraw(stream, chunk.parts)

    def _next(self) -> Chunk | None:
        given = next(self._left, ()) if self._columns else self._read()
        if not len(given):
            return None
        refused = None
        try:
            rows = self._border.check_rows(given)
        except DataError as error:
            refused = error
            rows = self._leading_good_columns(given) if is_columnar(given) else self._leading_good(list(given))
        return Chunk(rows, self._border.split_into(rows, self._size), refused)

    def _read(self) -> list[Any]:
        """The next rows. If windows are evaluated ahead of their batches, more of them, if they arrive soon enough."""
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

    def _leading_good_columns(self, table: Any) -> Given:
        """The most rows that are acceptable together: each row is or is not by itself."""
        good: Given = ()
        low, high = 0, len(table)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                good, low = self._border.check_rows(table.slice(0, middle)), middle
            except DataError:
                high = middle
        return good
