"""Windows that keep their rows: for functions of whole windows, and for kinds whose rows decide what is in them.

Each kind is a *cutter*: from the rows kept for one key, and the new ones, it decides which windows fire and which rows
can still be in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import gcd
from typing import Any, NamedTuple, Self

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import WindowSpec, first_window
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.column_state import ColumnState, Frontier, Taken
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.few_held import Dues, few_held
from tidegate.streams.windows.state.held import Held
from tidegate.streams.windows.state.keys import Key, grouped, sort_key
from tidegate.streams.windows.state.results import Results, Slide
from tidegate.streams.windows.state.times import Step


class Cut(NamedTuple):
    """A window that fires: its rows as a slice or a mask; ``order`` says when, among those of one batch."""

    order: tuple[Any, ...]
    number: int
    start: Any
    end: Any
    rows: Any
    cuts: list[int] | None = None


class Cutter:
    """Base of the kinds. ``places``: the place of each new row in its batch."""

    sweeps = False  # do keys without new rows fire too, when the frontier moves?
    by_count = False  # is the frontier the number of the key's rows?
    counts = True  # do the counts of rows and windows of a key matter when no row is left?

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec

    def inside(self, x: Array) -> Array | None:
        """Which rows can be in a window at all; None: all of them."""
        return None

    def due(self, held: Held, frontier: Frontier) -> bool:
        """May a key without new rows have something to fire?"""
        return held.rows > 0

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        """What fires, and what is kept. The last ``new`` of the rows held have just arrived."""
        raise NotImplementedError


class RangeCutter(Cutter):
    """Count, batches, time and landmark: window w holds [low(w), high(w)) of a coordinate, and fires when it is passed."""

    def __init__(self, spec: WindowSpec) -> None:
        super().__init__(spec)
        self.by_count = spec.kind == "count" or (spec.kind == "landmark" and not spec.by_time)
        self.sweeps = not self.by_count
        self.counts = self.by_count
        self.gaps = spec.kind != "landmark" and spec.slide > spec.size
        self.landmark = spec.kind == "landmark"
        self.pane = spec.slide if self.landmark else gcd(spec.size, spec.slide)

    def inside(self, x: Array) -> Array | None:
        return np.flatnonzero(x % self.spec.slide < self.spec.size) if self.gaps else None

    def low(self, w: Any) -> Any:
        spec = self.spec
        return w * spec.slide // spec.size * spec.size if self.landmark else w * spec.slide

    def high(self, w: Any) -> Any:
        spec = self.spec
        return (w + 1) * spec.slide if self.landmark else w * spec.slide + spec.size

    def due(self, held: Held, frontier: Frontier) -> bool:
        return held.rows > 0 and self._first_end(held) <= frontier.after

    def _first_end(self, held: Held) -> int:
        x = held.oldest
        return int(
            self.high(x // self.spec.slide if self.landmark else first_window(x, self.spec.size, self.spec.slide))
        )

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        if not held.rows or not self.ends(frontier):
            return [], held
        columns, x = held.joined()
        numbers = self.fired(x, frontier)
        lows, highs = np.searchsorted(x, self.low(numbers)), np.searchsorted(x, self.high(numbers))
        fired = []
        for w, low, high in zip(numbers.tolist(), lows.tolist(), highs.tolist(), strict=True):
            if high > low:
                end = self.high(w)
                order = (int(places[high - 1 - (held.rows - new)]),) if self.by_count else (end,)
                fired.append(Cut(order, w, self.low(w), end, (low, high), self.cuts(x[low:high])))
        return fired, held.keeping(columns, x, self.first_needed(x, frontier.after))

    def ends(self, frontier: Frontier) -> bool:
        """Does any window end between the two? Otherwise nothing fires, and nothing can be dropped."""
        shift, slide = self.spec.slide if self.landmark else self.spec.size, self.spec.slide
        return bool((frontier.before - shift) // slide != (frontier.after - shift) // slide)

    def fired(self, x: Array, frontier: Frontier) -> Array:
        """Numbers of windows with rows and an end in (before, after]."""
        size, slide = self.spec.size, self.spec.slide
        if not len(x):
            return np.empty(0, "i8")
        shift = slide if self.landmark else size
        low = max(
            (frontier.before - shift) // slide + 1,
            int(x[0]) // slide if self.landmark else int(first_window(int(x[0]), size, slide)),
        )
        reach = int(x[-1]) // size * size + size if self.landmark else int(x[-1]) + 1
        high = min((frontier.after - shift) // slide, (reach - 1) // slide)
        if not self.spec.by_time:
            low = max(low, self.spec.first)
        if high - low <= 4 * len(x) + 1_000:
            return np.arange(low, high + 1)
        spread = np.arange(-(-size // slide) + 1)
        base = x // size * (size // slide) if self.landmark else first_window(x, size, slide)
        numbers: Array = np.unique(np.unique(base)[:, None] + spread)
        return np.extract((numbers >= low) & (numbers <= high), numbers)

    def first_needed(self, x: Array, after: int) -> int:
        """The first row that a window with an end beyond ``after`` holds."""
        size, slide = self.spec.size, self.spec.slide
        if self.landmark:
            return int(np.searchsorted(x, after // size * size))
        return int(np.searchsorted(x, ((after - size) // slide + 1) * slide))

    def cuts(self, x: Array) -> list[int] | None:
        """Where the window's panes begin."""
        panes = x // self.pane
        return [0, *(np.flatnonzero(panes[1:] != panes[:-1]) + 1).tolist()]


class SlideByTupleCutter(Cutter):
    sweeps = True

    def due(self, held: Held, frontier: Frontier) -> bool:
        return held.rows > 0 and held.oldest <= frontier.after - self.spec.size

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        size, slide = self.spec.size, self.spec.slide
        first = held.seen - held.rows  # the place of the oldest row in the sequence
        triggers = range(_up(held.seen - new + 1, slide) - 1, held.seen, slide)
        if not triggers and not self.due(held, frontier):
            return [], held
        columns, x = held.joined()
        fired = []
        for r in triggers:
            high = r - first + 1
            at = int(x[high - 1])
            low = int(np.searchsorted(x[:high], at - size, side="right"))
            fired.append(Cut((int(places[high - 1 - (held.rows - new)]),), r // slide, at - size, at, (low, high)))
        return fired, held.keeping(columns, x, int(np.searchsorted(x, frontier.after - size, side="right")))


def _up(value: int, step: int) -> int:
    """The smallest multiple of ``step`` from ``value`` on."""
    return -(-value // step) * step


class SlideByTimeCutter(Cutter):
    sweeps = True
    counts = False

    def due(self, held: Held, frontier: Frontier) -> bool:
        if not held.rows:
            return False
        end = (held.newest // self.spec.slide + 1) * self.spec.slide
        return bool(frontier.before < end <= frontier.after)

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        size, slide = self.spec.size, self.spec.slide
        columns, x = held.joined()
        fired = []
        ends = (np.unique(x // slide) + 1) * slide
        for end in ends[(ends > frontier.before) & (ends <= frontier.after)].tolist():
            high = int(np.searchsorted(x, end))
            low = max(0, high - size)
            fired.append(Cut((end,), end // slide - 1, int(x[low]), end, (low, high)))
        fired_last = (int(x[-1]) // slide + 1) * slide <= frontier.after  # then the next window has a new row in it
        return fired, held.keeping(columns, x, max(0, len(x) - size + fired_last))


class DeltaCutter(Cutter):
    def inside(self, x: Array) -> Array | None:
        return np.flatnonzero(~np.isnan(x))

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        size, slide = self.spec.size, self.spec.slide
        if not new:
            return [], held
        columns, x = held.joined()
        place, mark, number = held.rows - new, held.mark, held.number
        fired = []
        while place < len(x):
            if mark is not None:
                above = np.flatnonzero(x[place:] > mark + slide)
                if not len(above):
                    break
                place += int(above[0])
            mark = float(x[place])
            which = np.flatnonzero(x[: place + 1] >= x[place] - size)
            order = (int(places[place - (held.rows - new)]),)
            fired.append(Cut(order, number, mark - size, mark, which))
            number += 1
            place += 1
        held = replace(held, mark=mark, number=number)
        assert mark is not None
        return fired, held.keeping(columns, x, np.flatnonzero(x > mark + slide - size))


class PunctuatedCutter(Cutter):
    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        fresh = held.rows - new
        ends = np.flatnonzero(marked(self.spec, held.parts[-1])) + fresh + 1
        if not len(ends):
            return [], held
        columns, x = held.joined()
        first, low, fired = held.seen - held.rows, 0, []
        for number, high in enumerate(ends.tolist(), held.number):
            fired.append(Cut((int(places[high - 1 - fresh]),), number, first + low, first + high, (low, high)))
            low = high
        return fired, replace(held.keeping(columns, x, low), number=held.number + len(fired))


class SessionCutter(Cutter):
    sweeps = True

    def due(self, held: Held, frontier: Frontier) -> bool:
        return held.rows > 0 and held.newest + self.spec.size <= frontier.after

    def cut(self, held: Held, new: int, places: Array, frontier: Frontier) -> tuple[list[Cut], Held]:
        gap = self.spec.size
        fresh = held.rows - new
        closed: set[int] = set()
        if self.spec.until is not None and new:
            closed = set((np.flatnonzero(marked(self.spec, held.parts[-1])) + fresh + 1).tolist())
        x = held.x[-1] if len(held.x) == 1 else np.concatenate([held.x[-2][-1:], held.x[-1]])
        away = held.rows - len(x)
        breaks = set((np.flatnonzero(x[1:] - x[:-1] >= gap) + away + 1).tolist())
        if int(x[-1]) + gap <= frontier.after:
            breaks.add(held.rows)
        if not breaks and not closed:
            return [], held
        columns, x = held.joined()
        low, number, fired = 0, held.number, []
        for high in sorted(breaks | closed):
            last = int(x[high - 1])
            by_row = high in closed
            end = last if by_row else last + gap
            order = (last, 1, int(places[high - 1 - fresh])) if by_row else (end, 0)
            fired.append(Cut(order, number, int(x[low]), end, (low, high)))
            low, number = high, number + 1
        return fired, replace(held.keeping(columns, x, low), number=number)


def marked(spec: WindowSpec, columns: Columns) -> Array:
    """For which rows is the window's predicate true?"""
    if isinstance(spec.until, str):
        values, mask = columns[spec.until].astype(bool), columns.valid[spec.until]
        return values if mask is None else values & mask
    assert spec.until is not None
    return np.fromiter((bool(spec.until(row)) for row in columns.rows), bool, len(columns))


CUTTERS: dict[str, type[Cutter]] = {
    "count": RangeCutter, "batches": RangeCutter, "time": RangeCutter, "landmark": RangeCutter,
    "slide_by_tuple": SlideByTupleCutter, "slide_by_time": SlideByTimeCutter, "delta": DeltaCutter,
    "punctuated": PunctuatedCutter, "session": SessionCutter,
}  # fmt: skip


class RowState(ColumnState):
    """A window that keeps its rows."""

    def __init__(self, spec: WindowSpec, relation: Relation, plan: Plan | None, results: Results | None) -> None:
        super().__init__(spec, relation)
        self.plan = plan
        self.results = results
        self.cutter = CUTTERS[spec.kind](spec)
        self.by_key: dict[Key, Held] = {}
        self.few_rows = few_held(spec, relation, results)
        self.dues = Dues()

    def fresh(self) -> Self:
        found = super().fresh()
        found.by_key, found.dues = {}, Dues()
        return found

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        frontier = self._frontier(step)
        found: list[tuple[tuple[Any, ...], tuple[Any, ...], Key, Cut, Columns]] = []
        changed: dict[Key, Held] = {}
        for key, new, x, places in self._arrived(columns, step):
            came = len(new)
            inside = self.cutter.inside(x)
            if inside is not None:
                new, x, places = new.take(inside), x[inside], places[inside]
            held = self._with(key, new, x, came)
            reached = Frontier(held.seen - came, held.seen) if self.cutter.by_count else frontier
            changed[key] = self._cut(key, held, len(new), places, reached, found)
        if self.cutter.sweeps and frontier.after > frontier.before:
            none = np.empty(0, "i8")
            for key, held in self.by_key.items():
                if key not in changed and self.cutter.due(held, frontier):
                    changed[key] = self._cut(key, self._settled(held), 0, none, frontier, found)
        found.sort(key=lambda fired: fired[:2])
        windows = []
        for _, _, key, cut, rows in found:
            held_rows = rows.slice(*cut.rows) if isinstance(cut.rows, tuple) else rows.take(cut.rows)
            start, end = cut.start, cut.end
            if self.spec.scale is not None:
                start, end = self._time(start), self._time(end)
            windows.append(Extent(cut.number, key, start, end, held_rows.protected(), cut.cuts))
        oldest = partial(self._oldest_of, changed)
        if self.plan is None or self.results is None:
            return Taken(lambda: self._store(changed), len(windows), windows, oldest=oldest)
        results = self.results.rows(windows, self.plan.whole(windows)) if windows else self.results.none()
        return Taken(lambda: self._store(changed), len(windows), [], results, oldest)

    def _last(self) -> Taken:
        assert isinstance(self.cutter, RangeCutter)
        found = []
        for key, held in self.by_key.items():
            if not held.rows:
                continue
            columns, x = self._settled(held).joined()
            for number in self._begun(held.seen):
                start, end = self.cutter.low(number), self.cutter.high(number)
                low = int(np.searchsorted(x, start))
                if low < len(x):
                    cuts = self.cutter.cuts(x[low:])
                    rows = columns.slice(low, len(columns)).protected()
                    found.append(((number, sort_key(key)), Extent(number, key, start, end, rows, cuts)))
        windows = [window for _, window in sorted(found, key=lambda one: one[0])]
        if self.plan is None or self.results is None:
            return Taken(lambda: None, len(windows), windows)
        results = self.results.rows(windows, self.plan.whole(windows)) if windows else self.results.none()
        return Taken(lambda: None, len(windows), [], results)

    def _oldest(self) -> int:
        return self._oldest_of({})

    def _oldest_of(self, changed: dict[Key, Held]) -> int:
        every = chain(changed.values(), (held for key, held in self.by_key.items() if key not in changed))
        return min((held.oldest for held in every if held.rows), default=END)

    def _few(self, rows: Sequence[Any], now_us: int) -> Slide | None:
        if self.few_rows is None or not (self.plan is None or type(self.plan) is Plan):
            return None
        return self.few_rows.slide(self, rows, now_us)

    def _store(self, changed: dict[Key, Held]) -> None:
        self.dues.forget()
        for key, held in changed.items():
            if held.rows or self.cutter.counts:
                self.by_key[key] = held
            else:
                self.by_key.pop(key, None)

    def _arrived(self, columns: Columns, step: Step | None) -> Iterator[tuple[Key, Columns, Array, Array]]:
        """The new rows by key: columns, coordinates, and places in the batch."""
        groups = grouped(columns, self.spec.by)
        every = np.arange(len(columns))
        for key, low, high in zip(groups.keys, groups.starts.tolist(), groups.ends.tolist(), strict=True):
            places = every if groups.order is None else groups.order[low:high]
            mine = columns if groups.order is None else columns.take(places)
            yield key, mine, self._coordinates(key, mine, places, step), places

    def _coordinates(self, key: Key, columns: Columns, places: Array, step: Step | None) -> Array:
        spec = self.spec
        if spec.by_time:
            assert step is not None
            return step.times[places]
        if spec.kind == "batches":
            return np.full(len(columns), self.batches, "i8")
        if spec.kind == "delta":
            return columns[str(spec.on)].astype("f8")
        held = self.by_key.get(key)
        seen = 0 if held is None else held.seen
        return np.arange(seen, seen + len(columns))

    def _with(self, key: Key, new: Columns, x: Array, came: int) -> Held:
        held = self._settled(self.by_key.get(key) or Held())
        seen = held.seen + came
        if not len(new):
            return replace(held, seen=seen, recent=[], at=[])
        parts, rows = (*held.parts, new), held.rows + len(new)
        return replace(held, parts=parts, x=(*held.x, x), rows=rows, seen=seen, recent=[], at=[])

    def _cut(self, key: Key, held: Held, new: int, places: Array, frontier: Frontier, found: list[Any]) -> Held:
        """Add the windows of one key that fire to ``found``; returns what is kept."""
        cuts, after = self.cutter.cut(held, new, places, frontier)
        if cuts:
            rows, _ = held.joined()
            named = sort_key(key)
            found.extend((cut.order, named, key, cut, rows) for cut in cuts)
        return after

    def _settled(self, held: Held) -> Held:
        return held.settled(self.relation, self.names)

    def _held(self) -> int:
        return sum(held.rows for held in self.by_key.values())

    def _kept(self) -> Iterable[Any]:
        return [self.by_key]

    def _contents(self) -> dict[Any, Any]:
        return {
            key: (self._settled(held).joined()[0].tuples() if held.rows else [], held.seen, held.number, held.mark)
            for key, held in self.by_key.items()
        }

    def _saved(self) -> list[Any]:
        return [
            [key, *(held.joined() if held.parts else (None, None)), held.seen, held.number, held.mark]
            for key, held in ((key, self._settled(held)) for key, held in self.by_key.items())
        ]

    def _restore(self, saved: list[Any]) -> None:
        self.by_key = {}
        self.dues.forget()
        for key, columns, x, seen, number, mark in saved:
            held = Held(seen=seen, number=number, mark=mark)
            self.by_key[key] = held if columns is None else replace(held, parts=(columns,), x=(x,), rows=len(columns))
