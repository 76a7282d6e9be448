"""Batching: how single tuples become atomic batches.

A batcher takes rows one by one and pushes them when a batch is complete, whichever comes first:

- ``count``: it has this many rows;
- ``interval`` (of the time in column ``on``): a row of a later interval [nI, (n+1)I) arrives;
- ``delay``: its oldest row has waited this long.

::

    count = 3, interval = 1s
    rows      0.1s  0.4s  0.7s  0.8s  1.2s  0.9s  2.0s
    batches  └───────────────┘ └────┘└──────────┘└────
                      count    interval    interval

A batch is always a run of rows in their order of arrival, never sorted: so the offset of its last row stands for all rows
up to it, and a source that continues from ``engine.position(source)`` loses nothing and repeats nothing. A row of an
earlier interval (0.9s above) joins the open batch; ordering rows by time is up to the windows (``delay=``).
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.clock import EPOCH, SystemClock
from tidegate.errors import DataError, DeclarationError, TidegateError
from tidegate.forking import own
from tidegate.mutex import Rank, reentrant
from tidegate.streams.border import as_rows
from tidegate.streams.windows.declare.durations import Duration, microseconds
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.storage.schema import Relation, Row

MICROSECOND = dt.timedelta(microseconds=1)


log = logging.getLogger("tidegate")


class Batcher:
    """Collects rows of one border stream and pushes them as batches. Created by :meth:`Engine.batcher`; use it in a
    ``with`` block, or close it. Threads may share it.

    When :meth:`add` raises, its row was not taken and the waiting rows are kept. ``len(batcher)``: how many wait.
    """

    def __init__(
        self,
        engine: Engine,
        stream: str,
        *,
        count: int | None = None,
        interval: Duration | None = None,
        on: str | None = None,
        delay: str | dt.timedelta | None = None,
        source: str | None = None,
        timeout_s: float | None = None,
        on_batch: Callable[[Ticket], None] | None = None,
    ) -> None:
        own(self)
        self.stream = stream
        self.source = source
        self.batches = 0  # pushed so far
        self._engine = engine
        self._border = engine.acceptance.border(stream)
        if stream in engine.acceptance.awaited:
            raise engine.acceptance.unnumbered(stream)
        if count is None and interval is None and delay is None:
            raise DeclarationError(
                f"batcher({stream!r}): say when a batch is complete: count=1000, interval='1s' (with on=), delay='50ms', "
                f"or a combination",
                stream=stream,
            )
        self._count = _whole(stream, count)
        self._interval = _interval(self._border.relation, interval, on)
        self._place = -1 if on is None else self._border.relation.index_of[on]
        self._delay_s = None if delay is None else _delay(stream, delay) / 1_000_000
        self._timeout_s = timeout_s
        self._on_batch = on_batch
        self._timed = isinstance(engine.clock, SystemClock)  # other clocks move only when told to: see tick()
        self._lock = reentrant(Rank.ENTRY)
        self._woken = threading.Condition(self._lock)
        self._timer: threading.Thread | None = None
        self._rows: list[Row] = []
        self._offset: Any = None  # of the last of them
        self._number: int | None = None  # of the interval they belong to
        self._since = 0.0  # when the first of them arrived
        self._failed: Exception | None = None
        self._closed = False

    # ---- rows in

    def add(self, row: Any, offset: Any = None) -> None:
        """Take one row; push the batch that it completes, or that it shows to be complete.

        ``offset``: where the row is in the source; needed when the batcher has one. Waits as ``push`` does when the
        engine's queues are full.
        """
        with self._lock:
            self._check_open()
            checked = self._checked(row, offset)
            number = None if self._interval is None else _time(checked[self._place]) // self._interval
            if self._rows and (self._full or self._overdue() or self._passed(number)):
                self._push()
            if not self._rows:
                self._since = self._engine.clock.monotonic()
                self._number = number
            self._rows.append(checked)
            self._offset = offset
            if self._full:
                self._push_later_if_refused()
            elif self._delay_s is not None and self._timed and self._timer is None:
                self._timer = threading.Thread(target=self._watch, name=f"tidegate-batch-{self.stream}", daemon=True)
                self._timer.start()

    def extend(self, rows: Iterable[Any], offsets: Iterable[Any] | None = None) -> int:
        """Take many rows, with the offset of each; returns how many. If a row is refused, those before it were taken,
        and ``error.added`` says how many.
        """
        added = 0
        try:
            if offsets is None:
                for row in as_rows(rows):
                    self.add(row)
                    added += 1
            else:
                for row, offset in zip(as_rows(rows), offsets, strict=True):
                    self.add(row, offset)
                    added += 1
        except TidegateError as error:
            error.added = added  # type: ignore[attr-defined]
            raise
        return added

    # ---- batches out

    def flush(self) -> Ticket | None:
        """Push the waiting rows as a batch now; None when there are none."""
        with self._lock:
            self._check_open()
            return self._push() if self._rows else None

    def tick(self) -> None:
        """Push what has waited for ``delay``. With the system clock a thread does this, while rows wait."""
        with self._lock:
            if self._rows and self._overdue():
                self._push()

    def close(self) -> None:
        """Push the waiting rows, and take no more."""
        with self._lock:
            if self._closed:
                return
            if self._rows:
                self._push()
            self._let_go()
            timer = self._timer
        if timer is not None and timer is not threading.current_thread():
            timer.join()
        if self._failed is not None:
            raise self._failed

    def _let_go(self) -> None:
        self._closed = True
        self._engine.batchers.discard(self)
        self._woken.notify_all()

    @property
    def _full(self) -> bool:
        return self._count is not None and len(self._rows) >= self._count

    def _passed(self, number: int | None) -> bool:
        return number is not None and self._number is not None and number > self._number

    def _overdue(self) -> bool:
        return self._delay_s is not None and self._engine.clock.monotonic() - self._since >= self._delay_s

    def _push(self) -> Ticket:
        """Push the waiting rows as a batch; if it is refused they keep waiting."""
        ticket = self._engine.push(
            self.stream, self._rows, timeout_s=self._timeout_s, source=self.source, offset=self._offset
        )
        self._rows = []
        self._failed = None
        self.batches += 1
        if self._on_batch is not None:
            self._on_batch(ticket)
        return ticket

    def _push_later_if_refused(self) -> None:
        """Push a full batch at once. If it is refused, the row that filled it is still taken: the next call raises."""
        try:
            self._push()
        except TidegateError:
            if not self._rows:
                raise

    # ---- waiting

    def _watch(self) -> None:
        """Push what has waited long enough; ends when nothing waits."""
        with self._lock:
            while self._rows and not self._closed and self._failed is None:
                assert self._delay_s is not None
                left = self._since + self._delay_s - self._engine.clock.monotonic()
                if left > 0:
                    self._woken.wait(left)
                    continue
                try:
                    self._push()
                except BaseException as error:  # raised in the next call
                    self._failed = error if isinstance(error, Exception) else _exited(self.stream, error)
            self._timer = None

    # ---- checks

    def _check_open(self) -> None:
        self._engine.check_open()
        if self._closed:
            raise TidegateError(f"the batcher of {self.stream} is closed; create a new one", stream=self.stream)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _checked(self, row: Any, offset: Any) -> Row:
        if (offset is None) != (self.source is None):
            raise TidegateError(
                f"the batcher of {self.stream} has {'no' if self.source is None else 'a'} source, but a row came "
                f"{'without' if offset is None else 'with'} an offset; give both (engine.batcher(…, source='feed') and "
                f"add(row, offset=…)) or neither",
                stream=self.stream,
            )
        try:
            return self._border.check_row(row)
        except DataError as error:
            where = f", offset {offset!r}" if offset is not None else ""
            facts = {name: value for name, value in vars(error).items() if name != "message"}
            raise type(error)(
                f"{error}. The row {row!r}{where} was not taken; the waiting rows ({len(self._rows)}) are kept", **facts
            ) from None

    def __len__(self) -> int:
        return len(self._rows)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Batcher of {self.stream}: {self.batches} batches, {len(self)} rows wait>"


def _exited(stream: str, error: BaseException) -> TidegateError:
    log.error("on_batch of the batcher of %s raised %r; the batch was pushed, and the batcher continues", stream, error)
    return TidegateError(f"on_batch of the batcher of {stream} raised {error!r}; the batch was pushed", stream=stream)


def _whole(stream: str, count: Any) -> int | None:
    if count is not None and (type(count) is not int or count < 1):
        raise DeclarationError(f"batcher({stream!r}): count is a positive whole number of rows, got {count!r}")
    return count


def _delay(stream: str, given: Any) -> int:
    if not isinstance(given, (str, dt.timedelta)) or microseconds(given) <= 0:
        raise DeclarationError(f"batcher({stream!r}): delay is a length of time such as '50ms', got {given!r}")
    return microseconds(given)


def _interval(relation: Relation, interval: Any, on: str | None) -> int | None:
    """The interval in units of its column: microseconds, or those of an integer column."""
    what = f"batcher({relation.name!r})"
    if (interval is None) != (on is None):
        raise DeclarationError(
            f"{what}: interval= and on= go together: on= names the column with the rows' time, got interval={interval!r}, "
            f"on={on!r}"
        )
    if on is None:
        return None
    column = relation.column(on)
    if column.type.family not in ("timestamp", "date", "integer") or column.nullable:
        raise DeclarationError(
            f"{what}: on names {on}, which is {column.type}{' and may be NULL' if column.nullable else ''}; it must be a "
            f"TIMESTAMP, DATE or integer column declared NOT NULL"
        )
    timed = isinstance(interval, (str, dt.timedelta))
    if timed != (column.type.family != "integer") or not (timed or type(interval) is int):
        wanted = "a whole number in its unit" if column.type.family == "integer" else "'1s' or a timedelta"
        raise DeclarationError(f"{what}: {on} is {column.type}, so interval must be {wanted}, got {interval!r}")
    length: int = microseconds(interval) if timed else interval
    if length < 1:
        raise DeclarationError(f"{what}: interval must be positive, got {interval!r}")
    return length


def _time(value: Any) -> int:
    """A time as a whole number: microseconds since 1970 of a TIMESTAMP or DATE, else the integer itself."""
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // MICROSECOND
    if isinstance(value, dt.date):
        return (dt.datetime(value.year, value.month, value.day) - EPOCH) // MICROSECOND
    return int(value)
