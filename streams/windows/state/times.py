"""Event time: the watermark, the reorder buffer, and rows that come too late.

The *watermark* is the time before which no row is expected any more: the largest time seen, minus ``delay``. It never
goes back. A row is late when its time is before the watermark at the moment the row arrived. Rows leave the reorder
buffer in the order of their time (of equal times, in order of arrival) as soon as the watermark has reached them::

    delay = 2s      arrive       5s  7s  6s  9s  4s
                    watermark    3s  5s  5s  7s  7s
                    released          5s      6s 7s
                                                 4s is late

A watermark that comes with a batch (``mark``) moves it, too, after the rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tidegate.errors import DataError
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state.columns import Array, Columns, times_of
from tidegate.streams.windows.state.values import Row, time_of


class Step:
    """What a batch does to event time: the rows it releases, in order, with their times; the watermark; the places of
    rows that came too late.
    """

    __slots__ = ("_after", "columns", "late", "times", "watermark")

    def __init__(
        self, columns: Columns, times: Array, watermark: int, late: Array | None, after: tuple[Any, ...]
    ) -> None:
        self.columns = columns
        self.times = times
        self.watermark = watermark
        self.late = late
        self._after = after

    def commit(self, state: EventTime) -> None:
        state.watermark, state.waiting, state.times, state.sources = self.watermark, *self._after


class Few(NamedTuple):
    """What a few rows do to event time: those in time, with their times; the watermark; those that came too late."""

    rows: Sequence[Row]
    times: Sequence[int]
    watermark: int
    late: Sequence[Row]


class EventTime:
    """Event time of one window over one stream (and stream key)."""

    __slots__ = ("by_rows", "refire", "sources", "spec", "time_of", "times", "waiting", "watermark")

    def __init__(self, spec: WindowSpec, relation: Relation, names: list[str]) -> None:
        self.spec = spec
        self.time_of = None if spec.on is None else time_of(relation, spec.on)
        self.refire: int = getattr(spec, "refire", 0)  # a pattern's rows have no second chance
        self.by_rows = not spec.delay and spec.source is None  # is a row's time all that moves the watermark?
        self.watermark = NEVER
        self.waiting = Columns.empty(relation, names)
        self.times: Array = np.empty(0, "i8")
        self.sources: dict[Any, tuple[int, int]] = {}  # source -> (largest time, when it last sent a row)

    def fresh(self) -> EventTime:
        """A new one like this one, which is empty."""
        found = EventTime.__new__(EventTime)
        found.spec, found.time_of, found.by_rows, found.watermark = self.spec, self.time_of, self.by_rows, NEVER
        found.waiting, found.times, found.sources, found.refire = self.waiting, self.times, self.sources, self.refire
        return found

    def one(self, row: Row, now_us: int) -> int | None:
        """``step`` for a single row that is in time: how far it moves the watermark, which is its own time. None: it is late,
        or something waits.
        """
        reached = self.watermark
        if self.time_of is None:
            return now_us if now_us > reached else reached
        if not self.by_rows or self.waiting.length:
            return None
        at = self.time_of(row)
        return at if at >= reached else None

    def few(self, rows: Sequence[Row], now_us: int) -> Few | None:
        """``step`` for a few rows, one by one; None where rows wait, or one is refused."""
        reached = self.watermark
        if self.time_of is None:
            reached = max(reached, now_us)
            return Few(rows, [reached] * len(rows), reached, ())
        if not self.by_rows or self.waiting.length:
            return None
        if len(rows) == 1 and (at := self.time_of(rows[0])) >= reached:
            return Few(rows, (at,), at, ())
        times, kept, late = [], [], []
        for row in rows:
            at = self.time_of(row)
            if at < reached:
                if self.spec.late == "raise":
                    return None
                late.append(row)
                if self.spec.late == "drop":
                    continue
                at = reached
            reached = at
            kept.append(row)
            times.append(at)
        return Few(kept, times, reached, late)

    def step(self, columns: Columns, now_us: int, mark: int | None = None) -> Step:
        """What taking in ``columns``, and then ``mark``, would do."""
        spec = self.spec
        if spec.on is None:  # time is arrival: of marks only the end counts
            watermark = max(self.watermark, now_us)
            times = np.full(len(columns), watermark, "i8")
            reached = END if mark == END else watermark
            return Step(columns, times, reached, None, (self.waiting, self.times, self.sources))
        times = times_of(columns[spec.on])
        if (
            not spec.delay and not len(self.waiting) and spec.source is None and mark is None
            and len(times) and times[0] >= self.watermark and bool((times[1:] >= times[:-1]).all())
        ):  # fmt: skip
            return Step(columns, times, int(times[-1]), None, (self.waiting, self.times, self.sources))
        return self._reordered(columns, times, now_us, NEVER if mark is None else mark)

    def seen(self, columns: Columns, now_us: int) -> tuple[Array, Array]:
        """The times of these rows, and the watermark before each of them."""
        assert self.spec.on is not None
        times = times_of(columns[self.spec.on])
        return times, self._levels(columns, times, now_us)[0]

    def _levels(self, columns: Columns, times: Array, now_us: int) -> tuple[Array, int, dict[Any, tuple[int, int]]]:
        """The watermark before each row, and after all."""
        if self.spec.source is not None:
            return self._by_source(columns, times, now_us)
        reached = np.maximum.accumulate(np.concatenate([[self.watermark], times - self.spec.delay]))
        return reached[:-1], int(reached[-1]), self.sources

    def _reordered(self, columns: Columns, times: Array, now_us: int, mark: int) -> Step:
        spec = self.spec
        before, watermark, sources = self._levels(columns, times, now_us)
        watermark = max(watermark, mark)
        late = times < before - self.refire
        dropped = None
        if late.any():
            dropped = np.flatnonzero(late)
            if spec.late == "raise":
                raise self._too_late(times[late], before[late])
            times = np.where(late, before, times)
        if dropped is not None and spec.late != "adjust":
            columns, times = columns.take(~late), times[~late]
        if len(self.waiting):
            columns = Columns.joined([self.waiting, columns])
            times = np.concatenate([self.times, times])
        order = np.argsort(times, kind="stable")
        ready = int(np.searchsorted(times[order], watermark, side="right"))
        waits = np.sort(order[ready:])  # in order of arrival
        after = (columns.take(waits), times[waits], sources)
        order = order[:ready]
        return Step(columns.take(order), times[order], watermark, dropped, after)

    def _by_source(self, columns: Columns, times: Array, now_us: int) -> tuple[Array, int, dict[Any, tuple[int, int]]]:
        """The watermark before each row, and after all, when it follows the slowest source.

        A source that sends is awake: a row is not late because its own source was silent.
        """
        spec = self.spec
        assert spec.source is not None
        sources = dict(self.sources)
        watermark = self.watermark
        before = np.empty(len(times), "i8")
        for i, (source, time) in enumerate(zip(columns.python(spec.source), times.tolist(), strict=True)):
            before[i] = watermark
            sources[source] = max(time, sources.get(source, (NEVER, 0))[0]), now_us
            watermark = max(watermark, self._slowest(sources, now_us))
        return before, watermark, sources

    def _slowest(self, sources: dict[Any, tuple[int, int]], now_us: int) -> int:
        idle = self.spec.idle_us
        heard = [t for t, seen in sources.values() if idle is None or now_us - seen <= idle]
        return min(heard) - self.spec.delay if heard else NEVER

    def _too_late(self, times: Array, watermarks: Array) -> DataError:
        spec = self.spec
        return DataError(
            f"{len(times)} row(s) of {spec.stream} came too late for the window ({spec}): the first is "
            f"{int(watermarks[0] - times[0])} {'µs' if spec.timed else 'units'} behind the watermark. Allow "
            f"more with delay=, or let late='drop' or 'adjust' deal with it",
            relation=spec.stream,
            column=spec.on,
        )

    def reached(self) -> int:
        """At least the largest time seen; NEVER while there is none."""
        if self.watermark == NEVER:
            return int(max([NEVER, *self.times.tolist(), *(time for time, _ in self.sources.values())]))
        seen = [self.watermark + self.spec.delay, *(time for time, _ in self.sources.values())]
        return int(max([*seen, *self.times.tolist()]))

    def saved(self) -> dict[str, Any]:
        sources = [[to_json(source), *times] for source, times in self.sources.items()]
        return {"watermark": self.watermark, "times": self.times, "sources": sources, "waiting": self.waiting}

    def restore(self, saved: dict[str, Any]) -> None:
        self.watermark, self.times, self.waiting = saved["watermark"], saved["times"], saved["waiting"]
        self.sources = {from_json(source): (time, seen) for source, time, seen in saved["sources"]}
