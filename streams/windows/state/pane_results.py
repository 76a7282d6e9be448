"""Windows computed pane by pane: each pane's rows are passed to the function once, then only its result is kept.

Panes are gcd(W, S) long (a landmark window's: S), so that every window is a row of whole panes::

    W = 6, S = 4     0 1 2 3 4 5 6 7 8 9 …
    panes of 2       ─── ─── ─── ─── ───
    window 0         ───────────
    window 1                 ───────────

Each of the n replicas of a farm of pane farms has panes of its own, of gcd(W, n·S): its windows slide by n·S, and begin with
window r. For two::

    W = 6, S = 3     0 1 2 3 4 5 6 7 8 9 …
    replica 0        ─────────── ──────    windows 0, 2, …
    replica 1              ─────────── …   windows 1, 3, …
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.column_state import ColumnState, Frontier, Taken
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.keys import Key, grouped, sort_key
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.rows import RangeCutter
from tidegate.streams.windows.state.sharing import EMPTY, Past, alone, past_of
from tidegate.streams.windows.state.times import Step


@dataclass(slots=True)
class Kept:
    """What is kept for one key: the rows of panes that are not complete, and the results of those that are."""

    parts: tuple[Columns, ...] = ()
    x: tuple[Array, ...] = ()
    seen: int = 0
    panes: tuple[int, ...] = ()
    results: tuple[Any, ...] = ()

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Replica:
    """Some of the windows: ``number``, ``number + of``, … They lie on a coordinate of their own, which begins with the first."""

    number: int
    of: int
    shift: int
    ranges: RangeCutter

    def at(self, key: Key) -> Key:
        """Under what the key's part is kept."""
        return key if self.of == 1 else (*key, self.number)

    def has(self, at: Key) -> bool:
        return self.of == 1 or at[-1] == self.number

    def key_of(self, at: Key) -> Key:
        return at if self.of == 1 else at[:-1]

    def seen(self, frontier: Frontier) -> Frontier:
        return Frontier(frontier.before - self.shift, frontier.after - self.shift)


@dataclass(slots=True)
class _Due:
    """One key's part in a batch, in one replica. ``at``: where it is kept."""

    key: Key
    replica: Replica
    at: Key
    kept: Kept
    places: Array | Sequence[int]
    frontier: Frontier
    complete: list[Extent]


class PaneResultState(ColumnState):
    """A context-free window over a decomposable function."""

    results: Results

    def __init__(self, spec: WindowSpec, relation: Relation, plan: Plan, results: Results) -> None:
        super().__init__(spec, relation)
        self.plan = plan
        self.results = results
        self.ranges = RangeCutter(spec)
        farms = plan.farms
        ranges = self.ranges if farms == 1 else RangeCutter(replace(spec, slide=farms * spec.slide))
        self.replicas = [Replica(number, farms, number * spec.slide, ranges) for number in range(farms)]
        self.pane = ranges.pane
        self.by_key: dict[Key, Kept] = {}
        self.sharing = plan.sharing
        self.past: Past = EMPTY
        self.nothing = Columns.empty(relation, ())
        self.function = plan.function
        # one sequence of rows without gaps: which pane a row is in follows from how many came before
        self.in_a_row = spec.kind == "count" and not (spec.by or spec.partial or self.ranges.gaps) and farms == 1

    def fresh(self) -> Self:
        found = super().fresh()
        found.by_key, found.past = {}, EMPTY
        return found

    def slide(self, rows: Any, now_us: int = 0, mark: int | None = None) -> Slide:
        """What taking in a batch would do. It may have been worked out already, for another window with the same panes."""
        sharing = self.sharing
        if sharing is None or self.since is not None or (mark == END and self.spec.partial):
            return super().slide(rows, now_us, mark)
        worked = sharing.find(self.past, rows, now_us, mark)
        if worked is None:
            columns = self._columns(rows)
            step = self._step(columns, now_us, mark)
            fired = self._fired_by(columns if step is None else step.columns, step)
            worked = sharing.keep(self.past, rows, now_us, mark, (step, len(columns) > 0, *fired))
        step, has_rows, dues, windows, panes = worked.what
        results = worked.results.get(self.function)
        if results is None:
            results = worked.results[self.function] = self._results(windows, panes)
        store = partial(self._store, dues, worked.after)
        return self._slide(rows, step, Taken(store, len(windows), [], results), counts=mark is None or has_rows)

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        dues, windows, panes = self._fired_by(columns, step)
        return Taken(partial(self._store, dues, alone()), len(windows), [], self._results(windows, panes))

    def _fired_by(self, columns: Columns, step: Step | None) -> tuple[list[_Due], list[Extent], list[list[Any]]]:
        """What the batch completes: of each key, the windows that fire, and the results of their panes."""
        dues = self._dues(columns, step)
        self._finish_panes(dues)
        return dues, *self._fired(dues)

    def _results(self, windows: list[Extent], panes: list[list[Any]]) -> ResultRows:
        return self.results.rows(windows, self.plan.combine(windows, panes)) if windows else self.results.none()

    def _store(self, dues: list[_Due], past: Past) -> None:
        self.past = past
        for due in dues:
            if due.kept.panes or due.kept.parts or self.ranges.by_count:
                self.by_key[due.at] = due.kept
            else:
                self.by_key.pop(due.at, None)

    def _dues(self, columns: Columns, step: Step | None) -> list[_Due]:
        if self.in_a_row:
            return [self._next_in_a_row(columns)] if len(columns) else []
        return [due for replica in self.replicas for due in self._dues_of(replica, columns, step)]

    def _dues_of(self, replica: Replica, columns: Columns, step: Step | None) -> list[_Due]:
        frontier, ranges = replica.seen(self._frontier(step)), replica.ranges
        groups = grouped(columns, self.spec.by)
        dues, seen = [], set()
        for key, low, high in zip(groups.keys, groups.starts.tolist(), groups.ends.tolist(), strict=True):
            places = np.arange(len(columns)) if groups.order is None else groups.order[low:high]
            mine = columns if groups.order is None else columns.take(places)
            kept = self.by_key.get(replica.at(key)) or Kept()
            x = self._coordinates(kept, mine, places, step) - replica.shift
            seen_rows = kept.seen + len(mine)
            reached = replica.seen(Frontier(kept.seen, seen_rows)) if ranges.by_count else frontier
            inside = ranges.inside(x)
            if inside is None and replica.shift and not self.spec.by_time and len(x) and x[0] < 0:
                inside = np.flatnonzero(x >= 0)  # before this replica's first window
            if inside is not None:
                mine, x = mine.take(inside), x[inside]
            kept = replace(kept, seen=seen_rows)
            if len(mine):
                kept = replace(kept, parts=(*kept.parts, mine), x=(*kept.x, x))
            dues.append(self._complete(key, replica, kept, places, reached))
            seen.add(key)
        if not ranges.by_count and ranges.ends(frontier):
            none = np.empty(0, "i8")
            for at, kept in self.by_key.items():
                if replica.has(at) and (whose := replica.key_of(at)) not in seen:
                    dues.append(self._complete(whose, replica, kept, none, frontier))
        return dues

    def _next_in_a_row(self, columns: Columns) -> _Due:
        kept = self.by_key.get(()) or Kept()
        parts, seen = (*kept.parts, columns), kept.seen + len(columns)
        frontier, every = Frontier(kept.seen, seen), range(len(columns))
        first = kept.seen - kept.rows
        open_from = seen // self.pane * self.pane
        if first >= open_from:
            x = (*kept.x, np.arange(kept.seen, seen))
            return _Due((), self.replicas[0], (), Kept(parts, x, seen, kept.panes, kept.results), every, frontier, [])
        held = Columns.joined(parts)
        complete = []
        for start in range(first // self.pane * self.pane, open_from, self.pane):
            end = start + self.pane
            rows = held.slice(max(start, first) - first, end - first).protected()
            complete.append(Extent(start // self.pane, (), start, end, rows))
        rest: tuple[Columns, ...] = ()
        at: tuple[Array, ...] = ()
        if open_from < seen:
            rest = (held.take(np.arange(open_from - first, seen - first)),)
            at = (np.arange(open_from, seen),)
        return _Due((), self.replicas[0], (), Kept(rest, at, seen, kept.panes, kept.results), every, frontier, complete)

    def _coordinates(self, kept: Kept, columns: Columns, places: Array, step: Step | None) -> Array:
        if self.spec.by_time:
            assert step is not None
            return step.times[places]
        if self.spec.kind == "batches":
            return np.full(len(columns), self.batches, "i8")
        return np.arange(kept.seen, kept.seen + len(columns))

    def _complete(self, key: Key, replica: Replica, kept: Kept, places: Array, frontier: Frontier) -> _Due:
        """Remove the panes that the frontier has passed from the rows."""
        open_from = frontier.after // self.pane * self.pane
        if not kept.x or int(kept.x[0][0]) >= open_from:
            return _Due(key, replica, replica.at(key), kept, places, frontier, [])
        columns, x = Columns.joined(kept.parts), np.concatenate(kept.x)
        done = int(np.searchsorted(x, open_from))
        numbers = x[:done] // self.pane
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), done]
        complete = []
        for low, high in pairwise(cuts):
            number = int(numbers[low])
            start = number * self.pane + replica.shift
            rows = columns.slice(low, high).protected()
            complete.append(Extent(number, key, *self._bounds(start, start + self.pane), rows))
        rest = (columns.take(np.arange(done, len(x))),) if done < len(x) else ()
        kept = replace(kept, parts=rest, x=(x[done:].copy(),) if rest else ())
        return _Due(key, replica, replica.at(key), kept, places, frontier, complete)

    def _bounds(self, start: int, end: int) -> tuple[int, int]:
        """As times, where they are places."""
        return (start, end) if self.spec.scale is None else (self._time(start), self._time(end))

    def _finish_panes(self, dues: list[_Due]) -> None:
        """Pass every complete pane to the function, all of the batch at once."""
        complete = [extent for due in dues for extent in due.complete]
        returned = iter(self.plan.panes(complete)) if complete else iter(())
        for due in dues:
            new = [(extent.number, next(returned)) for extent in due.complete]
            if new:
                kept = due.kept
                numbers, values = zip(*new, strict=True)
                due.kept = Kept(kept.parts, kept.x, kept.seen, kept.panes + numbers, kept.results + values)

    def _fired(self, dues: list[_Due]) -> tuple[list[Extent], list[list[Any]]]:
        found = []
        for due in dues:
            frontier, kept = due.frontier, due.kept
            ranges, replica = due.replica.ranges, due.replica
            if not kept.panes or not ranges.ends(frontier):
                continue
            if self.in_a_row:
                found += self._fired_in_a_row(due)
                continue
            x = np.array(kept.panes, "i8") * self.pane
            numbers = ranges.fired(x, frontier)
            lows = np.searchsorted(x, ranges.low(numbers)).tolist()
            highs = np.searchsorted(x, ranges.high(numbers)).tolist()
            key = sort_key(due.key)
            for number, low, high in zip(numbers.tolist(), lows, highs, strict=True):
                if high > low:
                    start, end = ranges.low(number) + replica.shift, ranges.high(number) + replica.shift
                    order = int(due.places[end - replica.shift - 1 - frontier.before]) if ranges.by_count else end
                    bounds = self._bounds(start, end)
                    window = Extent(number * replica.of + replica.number, due.key, *bounds, self.nothing)
                    found.append(((order, key), window, kept.results[low:high]))
            drop = ranges.first_needed(x, frontier.after)
            due.kept = replace(kept, panes=kept.panes[drop:], results=kept.results[drop:])
        found.sort(key=lambda fired: fired[0])
        return [window for _, window, _ in found], [list(panes) for _, _, panes in found]

    def _fired_in_a_row(self, due: _Due) -> list[Any]:
        size, slide, pane = self.spec.size, self.spec.slide, self.pane
        frontier, kept = due.frontier, due.kept
        first, count = kept.panes[0], len(kept.panes)
        found = []
        for number in range(max((frontier.before - size) // slide + 1, 0), (frontier.after - size) // slide + 1):
            start = number * slide
            low, high = max(start // pane - first, 0), (start + size) // pane - first
            if high > low:
                window = Extent(number, (), start, start + size, self.nothing)
                found.append(((start + size - 1 - frontier.before, ()), window, kept.results[low:high]))
        needed = ((frontier.after - size) // slide + 1) * slide
        drop = min(max(needed // pane - first, 0), count)
        due.kept = Kept(kept.parts, kept.x, kept.seen, kept.panes[drop:], kept.results[drop:])
        return found

    def _last(self) -> Taken:
        """The panes that are complete, and the rows of the one that is not, as a pane."""
        every = {key: (kept, self._rest(key, kept)) for key, kept in self.by_key.items()}
        rests = [rest for _, rest in every.values() if rest is not None]
        returned = iter(self.plan.panes(rests) if rests else ())
        found = []
        for key, (kept, rest) in every.items():
            numbers, results = [*kept.panes], [*kept.results]
            if rest is not None:
                numbers.append(rest.number)
                results.append(next(returned))
            for number in self._begun(kept.seen):
                start, end = self.ranges.low(number), self.ranges.high(number)
                parts = [part for pane, part in zip(numbers, results, strict=True) if pane * self.pane >= start]
                if parts:
                    window = Extent(number, key, start, end, self.nothing)
                    found.append(((number, sort_key(key)), window, parts))
        found.sort(key=lambda one: one[0])
        windows, panes = [window for _, window, _ in found], [parts for _, _, parts in found]
        results_ = self.results.rows(windows, self.plan.combine(windows, panes)) if windows else self.results.none()
        return Taken(lambda: None, len(windows), [], results_)

    def _rest(self, key: Key, kept: Kept) -> Extent | None:
        if not kept.parts:
            return None
        number = int(kept.x[0][0]) // self.pane
        columns = Columns.joined(kept.parts).protected()
        return Extent(number, key, number * self.pane, (number + 1) * self.pane, columns)

    # ---- what is held

    def _held(self) -> int:
        return sum(kept.rows + len(kept.panes) for kept in self.by_key.values())

    def _kept(self) -> Iterable[Any]:
        return [self.by_key]

    def _contents(self) -> dict[Any, Any]:
        return {
            key: (Columns.joined(kept.parts).tuples() if kept.parts else [], kept.seen, kept.panes, repr(kept.results))
            for key, kept in self.by_key.items()
        }

    def _saved(self) -> list[Any]:
        return [
            [key, list(kept.parts), list(kept.x), kept.seen, list(kept.panes), list(kept.results)]
            for key, kept in self.by_key.items()
        ]

    def restore(self, saved: bytes) -> None:
        super().restore(saved)
        self.past = past_of(saved)

    def begin_after(self, stands: Mapping[str, Any]) -> None:
        super().begin_after(stands)
        self.past = alone()

    def _restore(self, saved: list[Any]) -> None:
        self.by_key = {
            key: Kept(tuple(parts), tuple(x), seen, tuple(panes), tuple(results))
            for key, parts, x, seen, panes, results in saved
        }
