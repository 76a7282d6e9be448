"""Windows computed pane by pane: each pane's rows are passed to the function once, then only its result is kept.

Panes are gcd(W, S) long (a landmark window's: S), so that every window is a row of whole panes::

    W = 6, S = 4     0 1 2 3 4 5 6 7 8 9 …
    panes of 2       ─── ─── ─── ─── ───
    window 0         ───────────
    window 1                 ───────────
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.column_state import ColumnState, Frontier, Taken
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.keys import Key, grouped, sort_key
from tidegate.streams.windows.state.results import Results
from tidegate.streams.windows.state.rows import RangeCutter
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


@dataclass(slots=True)
class _Due:
    """One key's part in a batch."""

    key: Key
    kept: Kept
    places: Array
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
        self.pane = self.ranges.pane
        self.by_key: dict[Key, Kept] = {}

    def fresh(self) -> Self:
        found = super().fresh()
        found.by_key = {}
        return found

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        dues = self._dues(columns, step)
        self._finish_panes(dues)
        windows, panes = self._fired(dues)
        results = self.results.rows(windows, self.plan.combine(windows, panes)) if windows else self.results.none()
        return Taken(lambda: self._store(dues), len(windows), [], results)

    def _store(self, dues: list[_Due]) -> None:
        for due in dues:
            if due.kept.panes or due.kept.parts or self.ranges.by_count:
                self.by_key[due.key] = due.kept
            else:
                self.by_key.pop(due.key, None)

    def _dues(self, columns: Columns, step: Step | None) -> list[_Due]:
        frontier = self._frontier(step)
        groups = grouped(columns, self.spec.by)
        dues, seen = [], set()
        for key, low, high in zip(groups.keys, groups.starts.tolist(), groups.ends.tolist(), strict=True):
            places = np.arange(len(columns)) if groups.order is None else groups.order[low:high]
            mine = columns if groups.order is None else columns.take(places)
            kept = self.by_key.get(key) or Kept()
            x = self._coordinates(kept, mine, places, step)
            reached = Frontier(kept.seen, kept.seen + len(mine)) if self.ranges.by_count else frontier
            seen_rows = kept.seen + len(mine)
            inside = self.ranges.inside(x)
            if inside is not None:
                mine, x = mine.take(inside), x[inside]
            kept = replace(kept, seen=seen_rows)
            if len(mine):
                kept = replace(kept, parts=(*kept.parts, mine), x=(*kept.x, x))
            dues.append(self._complete(key, kept, places, reached))
            seen.add(key)
        if not self.ranges.by_count and self.ranges.ends(frontier):
            none = np.empty(0, "i8")
            dues.extend(
                self._complete(key, kept, none, frontier) for key, kept in self.by_key.items() if key not in seen
            )
        return dues

    def _coordinates(self, kept: Kept, columns: Columns, places: Array, step: Step | None) -> Array:
        if self.spec.by_time:
            assert step is not None
            return step.times[places]
        if self.spec.kind == "batches":
            return np.full(len(columns), self.batches, "i8")
        return np.arange(kept.seen, kept.seen + len(columns))

    def _complete(self, key: Key, kept: Kept, places: Array, frontier: Frontier) -> _Due:
        """Remove the panes that the frontier has passed from the rows."""
        open_from = frontier.after // self.pane * self.pane
        if not kept.x or int(kept.x[0][0]) >= open_from:
            return _Due(key, kept, places, frontier, [])
        columns, x = Columns.joined(kept.parts), np.concatenate(kept.x)
        done = int(np.searchsorted(x, open_from))
        numbers = x[:done] // self.pane
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), done]
        complete = []
        for low, high in pairwise(cuts):
            number = int(numbers[low])
            start = number * self.pane
            rows = columns.slice(low, high).protected()
            complete.append(Extent(number, key, *self._bounds(start, start + self.pane), rows))
        rest = (columns.take(np.arange(done, len(x))),) if done < len(x) else ()
        kept = replace(kept, parts=rest, x=(x[done:].copy(),) if rest else ())
        return _Due(key, kept, places, frontier, complete)

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
                numbers, values = zip(*new, strict=True)
                due.kept = replace(due.kept, panes=due.kept.panes + numbers, results=due.kept.results + values)

    def _fired(self, dues: list[_Due]) -> tuple[list[Extent], list[list[Any]]]:
        found = []
        nothing = Columns.empty(self.relation, ())
        for due in dues:
            frontier, kept = due.frontier, due.kept
            if not kept.panes or not self.ranges.ends(frontier):
                continue
            x = np.array(kept.panes, "i8") * self.pane
            numbers = self.ranges.fired(x, frontier)
            lows = np.searchsorted(x, self.ranges.low(numbers)).tolist()
            highs = np.searchsorted(x, self.ranges.high(numbers)).tolist()
            key = sort_key(due.key)
            for number, low, high in zip(numbers.tolist(), lows, highs, strict=True):
                if high > low:
                    end = self.ranges.high(number)
                    order = int(due.places[end - 1 - frontier.before]) if self.ranges.by_count else end
                    window = Extent(number, due.key, *self._bounds(self.ranges.low(number), end), nothing)
                    found.append(((order, key), window, kept.results[low:high]))
            drop = self.ranges.first_needed(x, frontier.after)
            due.kept = replace(kept, panes=kept.panes[drop:], results=kept.results[drop:])
        found.sort(key=lambda fired: fired[0])
        return [window for _, window, _ in found], [list(panes) for _, _, panes in found]

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
                    window = Extent(number, key, start, end, Columns.empty(self.relation, ()))
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

    def _restore(self, saved: list[Any]) -> None:
        self.by_key = {
            key: Kept(tuple(parts), tuple(x), seen, tuple(panes), tuple(results))
            for key, parts, x, seen, panes, results in saved
        }
