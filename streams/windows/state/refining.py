"""Windows of time that fire more than once: early, while they are open, and again, when late rows have changed them.

Everything happens at *boundaries*, the multiples of E (``emit_every``; without it gcd(W, S)). When the watermark passes one,
each window fires that has changed since it last fired, with what it holds by then::

    W = 4, E = 1, corrections for 2    0   1   2   3   4   5   6
    rows (those in brackets late)        •   •           (•)
    window 0                           [───────────────)
    fires                                  ▲   ▲       ▲     ▲
                                           early       end   final, corrected

Early, a window holds the rows before the boundary; at its end, and from then on, all that it has. The last result is
``final``. All of this follows from the order of rows and watermarks alone: a batch is cut in front of a late row if a boundary
was passed in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import gcd
from typing import Any, Self

import numpy as np

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import WindowSpec, first_window, last_window
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.column_state import ColumnState, Taken
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.held import Held
from tidegate.streams.windows.state.keys import Key, grouped, sort_key
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.times import EventTime, Step

Window = tuple[int, Key]
Dues = dict[int, set[Window]]  # by boundary: the windows that fire there


class Firing(Extent):
    """A window that fires, for the last time or not."""

    __slots__ = ("final",)

    def __init__(self, number: int, key: Key, start: int, end: int, columns: Columns, final: bool) -> None:
        super().__init__(number, key, start, end, columns)
        self.final = final


@dataclass
class Draft:
    """What a batch does to the state, before it is committed."""

    time: EventTime
    by_key: dict[Key, Held] = field(default_factory=dict)
    dues: Dues = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    fired: list[Firing] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)


class RefiningState(ColumnState):
    """A window of time that fires early, late, or both."""

    def __init__(self, spec: WindowSpec, relation: Relation, plan: Plan, results: Results) -> None:
        super().__init__(spec, relation)
        self.few = 0
        self.plan = plan
        self.results: Any = results
        self.every = spec.emit_every or gcd(spec.size, spec.slide)
        self.by_key: dict[Key, Held] = {}
        self.dues: Dues = {}

    def fresh(self) -> Self:
        found = super().fresh()
        found.by_key, found.dues = {}, {}
        return found

    # ---- a batch

    def slide(self, rows: Any, now_us: int = 0, mark: int | None = None) -> Slide:
        assert self.time is not None
        columns = rows if isinstance(rows, Columns) else Columns.of_rows(self.relation, rows, self.names)
        draft = Draft(copy(self.time))
        cuts = [0, *self._cuts(columns, now_us), len(columns)]
        for place, (low, high) in enumerate(pairwise(cuts), 2):
            part = columns.slice(low, high)
            step = draft.time.step(part, now_us, mark if place == len(cuts) else None)
            if step.late is not None:
                draft.late += _rows_of(rows, step.late + low)
            level = draft.time.watermark
            step.commit(draft.time)
            self._take_in(draft, step, level)
            self._fire(draft)
        return self._slid(rows, draft, mark is None or len(columns) > 0)

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        raise NotImplementedError

    def _cuts(self, columns: Columns, now_us: int) -> Iterator[int]:
        """In front of which rows the batch is cut: late ones behind a boundary that was passed since the last cut."""
        assert self.time is not None
        if self.spec.on is None or not len(columns):
            return
        times, before = self.time.seen(columns, now_us)
        last = self._boundary(self.time.watermark)
        for row in np.flatnonzero(times < before).tolist():
            passed = self._boundary(int(before[row]))
            if passed != last:
                yield row
                last = passed

    def _boundary(self, watermark: int) -> int:
        """The number of the last boundary that was passed."""
        return self._place(watermark) // self.every

    def _take_in(self, draft: Draft, step: Step, level: int) -> None:
        """Add rows; ``level``: the watermark before them."""
        groups = grouped(step.columns, self.spec.by)
        places = step.times if self.spec.scale is None else self.spec.scale.places(step.times)
        passed = self._boundary(level)
        for key, low, high in zip(groups.keys, groups.starts.tolist(), groups.ends.tolist(), strict=True):
            which = np.arange(low, high) if groups.order is None else groups.order[low:high]
            which = which[places[which] % self.spec.slide < self.spec.size]  # the others are between windows
            if not len(which):
                continue
            x = places[which]
            held = draft.by_key.get(key) or self.by_key.get(key) or Held()
            parts, xs = (*held.parts, step.columns.take(which)), (*held.x, x)
            draft.by_key[key] = replace(held, parts=parts, x=xs, rows=held.rows + len(x))
            for cell in np.unique(x // self.every).tolist():
                for boundary, number in self._dues_of(cell, passed):
                    draft.dues.setdefault(boundary, set()).add((number, key))

    def _dues_of(self, cell: int, passed: int) -> Iterator[tuple[int, int]]:
        """When which windows fire because of a row between two boundaries, of which ``passed`` was the last one passed."""
        spec, every = self.spec, self.every
        next_ = (max(cell, passed) + 1) * every
        for number in range(
            first_window(cell * every, spec.size, spec.slide), last_window(cell * every, spec.slide) + 1
        ):
            end = number * spec.slide + spec.size
            if self.since is not None and self._time(end - spec.size) < self.since:
                continue
            if end <= passed * every:
                yield next_, number
            else:
                yield end, number
                if spec.emit_every is not None:
                    yield next_, number
            yield end + spec.refire, number

    def _fire(self, draft: Draft) -> None:
        reached = self._place(draft.time.watermark)
        if reached == NEVER:
            return
        if reached < min(chain(self.dues, draft.dues), default=END):
            return
        passed = {boundary for boundary in chain(self.dues, draft.dues) if boundary <= reached} - draft.passed
        for boundary in sorted(passed):
            draft.passed.add(boundary)
            due = self.dues.get(boundary, set()) | draft.dues.get(boundary, set())
            for number, key in sorted(due, key=lambda window: (window[0], sort_key(window[1]))):
                draft.fired.append(self._firing(draft, number, key, boundary))

    def _firing(self, draft: Draft, number: int, key: Key, boundary: int) -> Firing:
        spec = self.spec
        start, end = number * spec.slide, number * spec.slide + spec.size
        columns, x = (draft.by_key.get(key) or self.by_key[key]).joined()
        inside = np.flatnonzero((x >= start) & (x < min(end, boundary)))
        rows = columns.take(inside[np.argsort(x[inside], kind="stable")]).protected()
        return Firing(number, key, self._time(start), self._time(end), rows, boundary >= end + spec.refire)

    def _slid(self, rows: Any, draft: Draft, counts: bool) -> Slide:
        windows = draft.fired
        returned = self.plan.whole(windows) if windows else []
        each: list[list[Any]] = []
        if isinstance(self.results, Results):  # not those of a shadow
            each = [self.results.each(window, given) for window, given in zip(windows, returned, strict=True)]
            results = ResultRows.of_rows(self.results.relation, [row for rows_ in each for row in rows_])
        else:
            results = self.results.rows(windows, returned)

        def commit() -> None:
            self.time = draft.time
            self._store(draft)
            self.batches += counts
            self.fired += len(windows)
            self.note_late(draft.late)

        mark = draft.time.watermark
        return RefiningSlide(rows, results, len(windows), draft.late, commit, lambda: self.held_back(mark, None), each)

    def still(self) -> Slide:
        assert self.time is not None
        mark = self.time.watermark
        return RefiningSlide((), self.results.none(), 0, [], lambda: None, lambda: self.held_back(mark, None), [])

    def held_back(self, watermark: int, oldest: Any) -> int:
        """Rows that are late, but not too late, begin windows, too."""
        if watermark in (NEVER, END):
            return watermark
        return super().held_back(watermark - self.spec.refire, None)

    def _store(self, draft: Draft) -> None:
        self.by_key.update(draft.by_key)
        for boundary, windows in draft.dues.items():
            if boundary not in draft.passed:
                self.dues.setdefault(boundary, set()).update(windows)
        for boundary in draft.passed:
            self.dues.pop(boundary, None)
        for key in {firing.key for firing in draft.fired if firing.final}:
            self._let_go(key)

    def _let_go(self, key: Key) -> None:
        """Rows that are in final windows only."""
        assert self.time is not None
        held = self.by_key[key]
        columns, x = held.joined()
        needed = self._place(self.time.watermark) - self.spec.size - self.spec.refire
        kept = held.keeping(columns, x, np.flatnonzero(last_window(x, self.spec.slide) * self.spec.slide > needed))
        if kept.rows:
            self.by_key[key] = kept
        else:
            del self.by_key[key]

    # ---- what is held

    def _held(self) -> int:
        return sum(held.rows for held in self.by_key.values())

    def _kept(self) -> Iterable[Any]:
        return [self.by_key, self.dues]

    def _contents(self) -> dict[Any, Any]:
        dues: dict[Key, list[tuple[int, int]]] = {}
        for boundary, windows in self.dues.items():
            for number, key in windows:
                dues.setdefault(key, []).append((boundary, number))
        return {
            key: (sorted(held.joined()[0].tuples(), key=repr), sorted(dues[key])) for key, held in self.by_key.items()
        }

    def _saved(self) -> list[Any]:
        rows = [[key, *held.joined()] for key, held in self.by_key.items()]
        dues = [[boundary, [[number, key] for number, key in windows]] for boundary, windows in self.dues.items()]
        return [rows, dues]

    def _restore(self, saved: list[Any]) -> None:
        rows, dues = saved
        self.by_key = {key: Held((columns,), (x,), len(columns)) for key, columns, x in rows}
        self.dues = {boundary: {(number, key) for number, key in windows} for boundary, windows in dues}


class RefiningSlide(Slide):
    """``each``: the results of each firing; the same window may fire several times in one batch."""

    __slots__ = ("_each",)

    def __init__(
        self, rows: Any, results: Any, fired: int, late: list[Any], commit: Any, held_back: Any, each: list[list[Any]]
    ) -> None:
        super().__init__(rows, (), results, fired, late, commit, held_back)
        self._each = each

    def shown_each(self, relation: Relation) -> Iterator[Any]:
        yield from (tuple(rows) for rows in self._each if rows)


def _rows_of(rows: Any, which: Array) -> list[Any]:
    if isinstance(rows, Columns):
        return rows.take(which).tuples()
    if isinstance(rows, ColumnRows):
        return list(rows.take(which).rows)
    return [rows[i] for i in which.tolist()]
