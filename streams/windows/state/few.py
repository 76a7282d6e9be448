"""A few rows in panes: what :class:`~.panes.PaneState` does to a batch at once, one row after another.

It works on the same arrays. Where it would have to look at much (many keys when windows fire), or at what is rare (rows
that wait for their time, a state that began anew), it does not begin: :meth:`FewRows.slide` returns None, and the batch takes
the way of large ones. The results are the same to the last bit either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
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
NO_SLOTS: tuple[list[int], list[list[Any]]] = [], []


class Table(Protocol):
    """Where panes are kept. ``blocks``: only the pane that is open."""

    by_count: bool
    blocks: bool
    seen_view: Any

    def partial_at(self, code: int, number: int) -> list[Any] | None: ...
    def slots_of(self, first: int, last: int) -> tuple[list[int], list[list[Any]]]: ...
    def fields_of(self, code: int) -> list[list[Any]]: ...
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
    def held_codes(self, most: int) -> Sequence[tuple[Key, int]] | None: ...
    def held_back(self, watermark: int, oldest: Any) -> int: ...
    def let_go(self) -> None: ...


class FewRows:
    """Takes in a few rows, for all states of one window."""

    def __init__(self, spec: WindowSpec, relation: Relation, results: Results, one: OneByOne, pane: int) -> None:
        self.size, self.every, self.first, self.by_time = spec.size, spec.slide, spec.first, spec.by_time
        self.one = one
        self.key_of = key_of(relation, spec.by)
        self.named = results.relation.named
        self.bound = results.bound
        self.none = results.none()
        self.of_rows = partial(ResultRows.of_rows, results.relation)
        self.pane = pane
        self.per_window = spec.size // pane
        self.per_slide = spec.slide // pane
        self.slots = self.per_window + 1

    def slide(self, state: Holder, rows: Sequence[Any], now_us: int) -> Slide | None:
        """What taking in these rows would do; None: not in this way. Nothing changes until it is committed."""
        time, table = state.time, state.table
        if len(rows) == 1 and not table.blocks and not self.first:
            if table.by_count:
                at = 0 if time is None else time.one(rows[0], now_us)
                return None if at is None else self._count_one(state, rows, at)
            if time is None:
                return self._fold_one(state, rows, state.batches, state.batches, state.batches + 1)
            at = time.one(rows[0], now_us)
            if at is not None and self.by_time:
                return self._fold_one(state, rows, at, time.watermark, at)
        return self._slide(state, rows, now_us)

    def _slide(self, state: Holder, rows: Sequence[Any], now_us: int) -> Slide | None:
        """``slide`` of any number of rows."""
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
            found = [] if table.blocks else self._passed(state, before, after, new)
        if found is None:
            return None
        return FewSlide(rows, self.of_rows(found) if found else self.none, late, state, new, came, after)

    # ---- a single row

    def _fold_one(self, state: Holder, rows: Any, at: int, before: int, after: int) -> Slide | None:
        """A row in a pane of time or batches, which moves the frontier from ``before`` to ``after``."""
        (row,) = rows
        key, number = self.key_of(row), at // self.pane
        held = state.table.partial_at(state.code_of(key), number)
        new = {key: {number: self.one.folded(held or self.one.empty, row)}}
        found = self._passed(state, before, after, new)
        if found is None:
            return None
        return FewSlide(rows, self.of_rows(found) if found else self.none, (), state, new, {}, after)

    def _count_one(self, state: Holder, rows: Any, after: int) -> Slide:
        """A row in a pane of tuples."""
        (row,) = rows
        key, table, size = self.key_of(row), state.table, self.size
        code = state.code_of(key)
        seen = 0 if code < 0 else table.seen_view[code]
        number, ends = seen // self.pane, seen + 1
        held = self.one.folded(table.partial_at(code, number) or self.one.empty, row)
        results = self.none
        if ends >= size and not (ends - size) % self.every:
            merged = self._all_panes(table, code, number, held)
            results = self.of_rows((self._result(key, self._labels((ends - size) // self.every), merged, size),))
        return FewSlide(rows, results, (), state, {key: {number: held}}, {key: 1}, after)

    def _all_panes(self, table: Table, code: int, last: int, held: list[Any]) -> list[Any]:
        """The panes of a window of tuples merged, of which ``held`` is the last: none of them is without rows, and the slot
        behind the last is the only one that is not among them.
        """
        if self.per_window == 1:
            return [merge((one,)) for merge, one in zip(self.one.mergers, held)]  # noqa: B905
        behind = (last + 1) % self.slots
        merged = []
        for merge, column, one in zip(self.one.mergers, table.fields_of(code), held):  # noqa: B905
            panes = column[behind + 1 :] + column[:behind]
            panes[-1] = one
            merged.append(merge(panes))
        return merged

    # ---- a few

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
            if (ends - size) % slide == 0 and (window := (ends - size) // slide) >= self.first:
                slots = NO_SLOTS if code < 0 else table.slots_of(code, code)
                merged = self._merged(*slots, 0, self._wanted(window), mine)
                assert merged is not None
                found.append(self._result(key, self._labels(window), merged, min(ends, size)))
        return found

    def _passed(self, state: Holder, before: int, after: int, new: Mapping[Key, Panes]) -> list[Any] | None:
        """The results of windows of time or batches that the frontier passes. None: there is too much to look at."""
        size, slide, pane = self.size, self.every, self.pane
        low, high = (before - size) // slide + 1, (after - size) // slide
        if not self.by_time and low < 0:
            low = 0
        if low > high:
            return []
        held = state.held_codes(LOOKED_AT)
        if held is None:
            return None
        unknown = [(key, -1) for key in new if state.code_of(key) < 0]
        if unknown:
            held = sorted([*held, *unknown], key=lambda one: sort_key(one[0]))
        codes = [code for _, code in held if code >= 0]
        first = min(codes, default=0)
        tags, columns = state.table.slots_of(first, max(codes)) if codes else NO_SLOTS
        if low < high:  # without those before and behind all rows
            numbers = [n for n in (*tags, *chain.from_iterable(new.values())) if n != NEVER]
            if not numbers:
                return []
            low = max(low, (min(numbers) * pane - size) // slide + 1)
            high = min(high, max(numbers) * pane // slide)
            if (high - low) * len(held) > LOOKED_AT:
                return None
        found = []
        for window in range(low, high + 1):
            labels, wanted = self._labels(window), self._wanted(window)
            for key, code in held:
                place = (code - first) * self.slots if code >= 0 else -1
                merged = self._merged(tags, columns, place, wanted, new.get(key, NOTHING))
                if merged is not None:
                    found.append(self._result(key, labels, merged))
        return found

    def _wanted(self, window: int) -> list[tuple[int, int]]:
        """The panes of a window: which slot of its key each has, and its number."""
        first, slots = window * self.per_slide, self.slots
        return [(number % slots, number) for number in range(first, first + self.per_window)]

    def _merged(
        self, tags: list[int], columns: list[list[Any]], place: int, wanted: Sequence[tuple[int, int]], new: Panes
    ) -> list[Any] | None:
        """A window's panes merged in order: those of this batch, and those stored from ``place`` on (-1: none). None: no rows."""
        if not new:
            there = [place + slot for slot, number in wanted if tags[place + slot] == number]
            if not there:
                return None
            return [merge([column[at] for at in there]) for merge, column in zip(self.one.mergers, columns)]  # noqa: B905
        panes = []
        for slot, number in wanted:
            if number in new:
                panes.append(new[number])
            elif place >= 0 and tags and tags[place + slot] == number:
                panes.append([column[place + slot] for column in columns])
        if not panes:
            return None
        return [merge(column) for merge, column in zip(self.one.mergers, zip(*panes))]  # noqa: B905

    def _labels(self, window: int) -> tuple[Any, ...]:
        start, bound = window * self.every, self.bound
        return window, bound(start), bound(start + self.size)

    def _result(self, key: Key, labels: tuple[Any, ...], merged: list[Any], rows: int = 0) -> Any:
        return self.named((*key, *labels, *self.one.results(merged, rows)))


class FewSlide(Slide):
    """What a few rows do to panes."""

    __slots__ = ("_after", "_came", "_new", "_state")

    windows: Any = ()
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
        self.results = results
        self.late = late
        self._state = state
        self._new = new
        self._came = came
        self._after = after

    @property
    def slid(self) -> bool:  # type: ignore[override]
        return len(self.results) > 0

    def held_back(self) -> int:
        state = self._state
        return state.held_back(NEVER if state.time is None else self._after, None)

    def commit(self) -> None:
        state, came, table = self._state, self._came, self._state.table
        for key, mine in self._new.items():
            table.put_at(state.code_for(key), mine, came[key] if came else 0)
        if state.time is not None:
            state.time.watermark = self._after
        state.batches += 1
        state.fired += len(self.results)
        if self.late:
            state.note_late(self.late)
        state.let_go()
