"""A few rows in panes: what :class:`~.panes.PaneState` does to a batch at once, one row after another.

It works on the same arrays. Where it would have to look at much (many keys when windows fire), or at what is rare (rows
that wait for their time, a state that began anew), it does not begin: :meth:`FewRows.slide` returns None, and the batch takes
the way of large ones. The results are the same to the last bit either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import NEVER
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state.keys import Key, sort_key
from tidegate.streams.windows.state.one import OneByOne
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.times import EventTime
from tidegate.streams.windows.state.values import key_of

LOOKED_AT = 1_000  # panes, when windows fire for all keys at once

Panes = dict[int, list[Any]]  # of one key: by number, what this batch leaves in each
NOTHING: Panes = {}


class Table(Protocol):
    """Where panes are kept. ``blocks``: only the pane that is open."""

    by_count: bool
    blocks: bool
    seen_view: Any

    def partial_at(self, code: int, number: int) -> list[Any] | None: ...
    def slots_of(self, code: int) -> tuple[list[int], list[list[Any]]]: ...
    def put_at(self, code: int, panes: Mapping[int, list[Any]], came: int) -> None: ...


class Holder(Protocol):
    """A state that takes in rows: one of all keys, or of one key of its stream."""

    time: EventTime | None
    batches: int
    fired: int

    @property
    def table(self) -> Table: ...
    def note_late(self, rows: Sequence[Any]) -> None: ...
    def few_fit(self, frontier: int) -> bool: ...
    def code_of(self, key: Key) -> int: ...
    def code_for(self, key: Key) -> int: ...
    def held_codes(self, most: int) -> list[tuple[Key, int]] | None: ...
    def held_back(self, watermark: int, oldest: Any) -> int: ...
    def let_go(self) -> None: ...


class FewRows:
    """Takes in a few rows, for all states of one window."""

    def __init__(self, spec: WindowSpec, relation: Relation, results: Results, one: OneByOne, pane: int) -> None:
        self.size, self.every, self.by_time = spec.size, spec.slide, spec.by_time
        self.one = one
        self.key_of = key_of(relation, spec.by)
        self.make = results.relation.row._make
        self.bound = results.bound
        self.none = results.none()
        self.of_rows = partial(ResultRows.of_rows, results.relation)
        self.pane = pane
        self.per_window = spec.size // pane
        self.per_slide = spec.slide // pane
        self.slots = self.per_window + 1
        self.picks: dict[int, Any] = {}  # by the slot of a window's first pane: its panes among the slots of a key

    def slide(self, state: Holder, rows: Sequence[Any], now_us: int) -> Slide | None:
        """What taking in these rows would do; None: not in this way. Nothing changes until it is committed."""
        time, table = state.time, state.table
        kept: Sequence[Any] = rows
        times: Sequence[int] = ()
        late: Sequence[Any] = ()
        before = after = 0
        if time is not None:
            stepped = time.few(rows, now_us)
            if stepped is None:
                return None
            kept, times, after, late = stepped
            before = time.watermark
        new: dict[Key, Panes] = {}
        came: dict[Key, int] = {}
        found: list[Any] | None
        if table.by_count:
            found = self._count(state, kept, new, came)
        else:
            if not self.by_time:
                before, after = state.batches, state.batches + 1
                times = [before] * len(rows)
            if table.blocks and not state.few_fit(after):
                return None
            self._fold(state, kept, times, new)
            low, high = (before - self.size) // self.every + 1, (after - self.size) // self.every
            found = [] if low > high or table.blocks else self._passed(state, low, high, new)
        if found is None:
            return None
        return FewSlide(rows, self.of_rows(found) if found else self.none, late, state, new, came, after)

    def _fold(self, state: Holder, rows: Sequence[Any], times: Sequence[int], new: dict[Key, Panes]) -> None:
        """Add rows to panes of time or batches."""
        one, table = self.one, state.table
        for row, at in zip(rows, times, strict=True):
            key, number = self.key_of(row), at // self.pane
            mine = new.get(key)
            if mine is None:
                mine = new[key] = {}
            held = mine.get(number) or table.partial_at(state.code_of(key), number) or one.empty
            mine[number] = one.folded(held, row)

    def _count(
        self, state: Holder, rows: Sequence[Any], new: dict[Key, Panes], came: dict[Key, int]
    ) -> list[Any] | None:
        """Add rows to panes of tuples; returns what fires. None: a pane of a block would be complete."""
        one, table, size, slide = self.one, state.table, self.size, self.every
        found = []
        for row in rows:
            key = self.key_of(row)
            code = state.code_of(key)
            mine = new.get(key)
            if mine is None:
                mine = new[key] = {}
                came[key] = 0
            seen = came[key] if code < 0 else table.seen_view[code] + came[key]
            came[key] += 1
            number, ends = seen // self.pane, seen + 1
            if table.blocks and ends % self.pane == 0:
                return None
            held = mine.get(number) or table.partial_at(code, number) or one.empty
            mine[number] = one.folded(held, row)
            if ends >= size and (ends - size) % slide == 0:
                window = (ends - size) // slide
                merged = self._merged(*self._slots(table, code), mine, window * self.per_slide)
                assert merged is not None
                found.append(self._result(key, self._labels(window), merged))
        return found

    def _passed(self, state: Holder, low: int, high: int, new: dict[Key, Panes]) -> list[Any] | None:
        """The results of windows of time or batches. None: there is too much to look at."""
        codes = state.held_codes(LOOKED_AT)
        if codes is None:
            return None
        codes += [(key, -1) for key in new if state.code_of(key) < 0]
        held = [(sort_key(key), key, new.get(key, NOTHING), self._slots(state.table, code)) for key, code in codes]
        held.sort(key=itemgetter(0))
        numbers = [n for _, _, mine, (tags, _) in held for n in (*mine, *tags) if n != NEVER]
        if not numbers:
            return []
        size, slide, pane = self.size, self.every, self.pane
        if not self.by_time:
            low = max(low, 0)
        low = max(low, (min(numbers) * pane - size) // slide + 1)
        high = min(high, max(numbers) * pane // slide)
        if (high - low) * len(held) > LOOKED_AT:
            return None
        found = []
        for window in range(low, high + 1):
            labels = self._labels(window)
            for _, key, mine, (tags, columns) in held:
                if mine:  # to be written to
                    tags, columns = tags.copy(), [column.copy() for column in columns]
                merged = self._merged(tags, columns, mine, window * self.per_slide)
                if merged is not None:
                    found.append(self._result(key, labels, merged))
        return found

    def _slots(self, table: Table, code: int) -> tuple[list[int], list[list[Any]]]:
        """What a key's slots hold: the number of a pane each, and each field of them."""
        if code < 0:
            return [NEVER] * self.slots, [[None] * self.slots for _ in self.one.empty]
        return table.slots_of(code)

    def _merged(self, tags: list[int], columns: list[list[Any]], new: Panes, first: int) -> list[Any] | None:
        """A window's panes merged in order, those of this batch written over what is stored; None: it has no rows."""
        n, slots = self.per_window, self.slots
        for number in new:
            if first <= number < first + n:
                place = number % slots
                tags[place] = number
                for column, held in zip(columns, new[number], strict=True):
                    column[place] = held
        if n == 1:
            place = first % slots
            return [column[place] for column in columns] if tags[place] == first else None
        pick = self.picks.get(first % slots)
        if pick is None:
            pick = self.picks[first % slots] = itemgetter(*[number % slots for number in range(first, first + n)])
        mergers = self.one.mergers
        if pick(tags) == tuple(range(first, first + n)):
            return [merge(pick(column)) for merge, column in zip(mergers, columns, strict=True)]
        there = [number % slots for number in range(first, first + n) if tags[number % slots] == number]
        if not there:
            return None
        return [merge([column[at] for at in there]) for merge, column in zip(mergers, columns, strict=True)]

    def _labels(self, window: int) -> tuple[Any, ...]:
        start, bound = window * self.every, self.bound
        return window, bound(start), bound(start + self.size)

    def _result(self, key: Key, labels: tuple[Any, ...], merged: list[Any]) -> Any:
        return self.make((*key, *labels, *self.one.results(merged, self.size)))


class FewSlide(Slide):
    """What a few rows do to panes."""

    __slots__ = ("_after", "_came", "_new", "_state")

    windows: Any
    results: Any
    late: Any

    def __init__(
        self,
        rows: Any,
        results: ResultRows,
        late: Sequence[Any],
        state: Holder,
        new: Mapping[Key, Panes],
        came: Mapping[Key, int],
        after: int,
    ) -> None:
        self._added = rows
        self.windows = ()
        self.results = results
        self.slid = len(results) > 0
        self.late = late
        self._state = state
        self._new = new
        self._came = came
        self._after = after

    def held_back(self) -> int:
        state = self._state
        return state.held_back(NEVER if state.time is None else self._after, None)

    def commit(self) -> None:
        state, came = self._state, self._came
        table = state.table
        for key, mine in self._new.items():
            table.put_at(state.code_for(key), mine, came[key] if came else 0)
        if state.time is not None:
            state.time.watermark = self._after
        state.batches += 1
        state.fired += len(self.results)
        if self.late:
            state.note_late(self.late)
        state.let_go()
