"""Context-free windows over aggregates for which a few numbers per pane are enough. No rows are kept.

All keys of a batch are processed at once. Rows, sorted by key, fall into *segments*: runs of one key and one pane. Each
segment is folded into the pane's partial aggregates, continuing from what the pane already has. A window that fires
merges its panes. Every key has a ring of the last n + 1 panes, n = W/pane, each slot tagged with the number of its
pane.

When there are many panes to a window, merging them all each time would cost too much: see :mod:`.blocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple, Self

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import NEVER
from tidegate.streams.windows.declare.functions import Aggregates
from tidegate.streams.windows.declare.kinds import WindowSpec, first_window
from tidegate.streams.windows.state.column_state import ColumnState, Frontier, Taken
from tidegate.streams.windows.state.columns import Array, Columns, array_of
from tidegate.streams.windows.state.few import FewRows
from tidegate.streams.windows.state.fields import ROWS, Counted, Field, FieldName, Partials, Segments
from tidegate.streams.windows.state.keys import Groups, Key, ascending, grouped, sort_key
from tidegate.streams.windows.state.one import OneByOne
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.segments import Cuts, by_count, by_time, of_one_pane
from tidegate.streams.windows.state.times import Step

MERGED_DIRECTLY = 16  # panes to a window, at most: where blocks begin to cost less
MANY = 1_000  # keys, before looking for some to drop


class Part(NamedTuple):
    """One batch by key and pane. ``codes``: each key's place in the state; ``new``: the keys that are new; ``seen``:
    how many rows of each key came before, ``lengths``: how many now; ``key``, ``pane``: of each segment; ``first``,
    ``last``: of each key its first and its last.
    """

    groups: Groups
    codes: Array
    new: list[Key]
    seen: Array
    lengths: Array
    key: Array
    pane: Array
    first: Array
    last: Array
    partials: Partials


class Ranked(NamedTuple):
    """The keys of a state, a list that only ever grows, in the order of their values, and where each is."""

    keys: list[Key]
    codes: list[tuple[Key, int]]


class Fired(NamedTuple):
    """Windows that fire, in order: the key (its code, and its place in the batch or -1), and the number."""

    code: Array
    local: Array
    number: Array


class PaneState(ColumnState):
    """A window over aggregates, of all its keys."""

    results: Results
    blocks = False  # are there more panes than the one that is open, in blocks?

    def __init__(self, spec: WindowSpec, relation: Relation, results: Results) -> None:
        assert isinstance(spec.compute, Aggregates)
        super().__init__(spec, relation)
        self.results = results
        self.aggregates = spec.compute
        self.by_count = not spec.by_time and spec.kind != "batches"
        self.fields = fields_of(spec.compute, relation, self.by_count)
        self.asks = any(f.asks for f in self.fields)
        self.inputs = list(dict.fromkeys(f.column for f in self.fields if f.column is not None))
        self.pane = spec.slide if spec.kind == "landmark" else gcd(spec.size, spec.slide)
        self.per_window = spec.size // self.pane
        self.per_slide = spec.slide // self.pane
        self.slots = self.per_window + 1
        self._in_window = np.arange(0 if self.blocks else self.per_window)[:, None]
        self.keys: list[Key] = []
        self.codes: dict[Key, int] = {}
        self._ranked = Ranked(self.keys, [])
        self._many = MANY
        self.few_rows = FewRows(spec, relation, results, OneByOne(spec.compute, relation, self.fields), self.pane)
        self.make_room(4)

    def make_room(self, room: int) -> None:
        self.seen: Array = np.zeros(room, "i8")
        self.tags: Array = np.full((room, self.slots), NEVER, "i8")
        self.ring = {
            f.name: f.empty(room * self.slots).reshape(room, self.slots, *f.empty(0).shape[1:]) for f in self.fields
        }
        self.flat_tags = self.tags.reshape(-1)  # the same, as one row of panes
        self.flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in self.ring.items()}
        self.seen_view: Any = memoryview(self.seen)  # type: ignore[arg-type]
        self.tag_view: Any = memoryview(self.flat_tags)  # type: ignore[arg-type]
        self.views: list[Any] = [memoryview(a) if a.ndim == 1 else Wide(a) for a in self.flat.values()]  # type: ignore[arg-type]

    def fresh(self) -> Self:
        found = super().fresh()
        found.keys, found.codes, found._many = [], {}, MANY
        found.make_room(1)
        return found

    def take_arrays(self, other: PaneState) -> None:
        """Have another state's arrays from now on."""
        self.seen, self.tags, self.ring = other.seen, other.tags, other.ring
        self.flat_tags, self.flat = other.flat_tags, other.flat
        self.seen_view, self.tag_view, self.views = other.seen_view, other.tag_view, other.views

    def copy_rows(self, code: int | slice, other: PaneState, at: int | slice) -> None:
        """Hold of a key, or of several, what another state holds."""
        self.seen[code], self.tags[code] = other.seen[at], other.tags[at]
        for name, array in self.ring.items():
            array[code] = other.ring[name][at]

    def _held(self) -> int:
        return int(np.count_nonzero(self._live()))

    def _kept(self) -> Iterable[Any]:
        return self.keys, self.codes, self.seen, self.tags, self.ring

    def _contents(self) -> dict[Any, Any]:
        live = self._live()
        found = {}
        for code, key in enumerate(self.keys):
            slots = np.flatnonzero(live[code])
            panes = {
                int(self.tags[code, slot]): [self.ring[f.name][code, slot].tolist() for f in self.fields]
                for slot in slots
            }
            found[key] = int(self.seen[code]), panes
        return found

    def _live(self) -> Array:
        """Which panes can still be in a window that fires?"""
        count = len(self.keys)
        reached: Any = self.seen[:count, None] if self.by_count else self._reached()
        needed = ((reached - self.spec.size) // self.spec.slide + 1) * self.per_slide
        live: Array = self.tags[:count] >= (np.maximum(needed, 0) if self.by_count else max(needed, NEVER + 1))
        return live

    def _reached(self) -> int:
        return self.batches if self.time is None or not self.spec.by_time else self._place(self.time.watermark)

    # ---- a batch

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        with np.errstate(all="ignore"):  # NaN and infinity are values like any other
            part = self._part(columns, step)
            fired = self._by_count(part) if self.by_count else self._by_frontier(part, self._frontier(step))
            results = self._results(part, fired) if len(fired.number) else self.results.none()

        def store() -> None:
            self._store(part)
            self.let_go()

        return Taken(store, len(results), [], results)

    def _part(self, columns: Columns, step: Step | None) -> Part:
        groups = grouped(columns, self.spec.by)
        codes, new = self._codes(groups.keys)
        lengths = groups.ends - groups.starts
        seen = self._seen(codes, new) if self.by_count else lengths  # needed by windows of tuples only
        if not len(codes):
            nothing = np.empty(0, "i8")
            partials = {f.name: f.empty(0) for f in self.fields}
            return Part(groups, codes, new, seen, lengths, nothing, nothing, nothing, nothing, partials)
        if self.by_count:
            cuts = by_count(groups, seen, lengths, self.pane)
        elif step is None:
            cuts = of_one_pane(groups, self.batches // self.pane)
        else:
            cuts = by_time(groups, step.times, self.pane)
        order = groups.order
        values = {name: columns.values[name] for name in self.inputs}
        valid = {name: columns.valid[name] for name in self.inputs}
        if order is not None:
            values = {name: array.take(order) for name, array in values.items()}
            valid = {name: None if mask is None else mask[order] for name, mask in valid.items()}
        inputs = Columns(self.relation, len(columns), values, valid)
        carried = self._carried(codes, new, cuts)
        partials = self._fold(inputs, Segments(cuts.starts, cuts.ends), *carried)
        return Part(groups, codes, new, seen, lengths, cuts.key, cuts.pane, cuts.first, cuts.last, partials)

    def _codes(self, keys: list[Key]) -> tuple[Array, list[Key]]:
        """Each key's place in the state, and those not in it yet, which follow."""
        known, new = self.codes, []
        codes = [known.get(key, -1) for key in keys]
        if -1 in codes:
            new = [key for key, code in zip(keys, codes, strict=True) if code < 0]
            behind = iter(range(len(self.keys), len(self.keys) + len(new)))
            codes = [next(behind) if code < 0 else code for code in codes]
        return np.array(codes, "i8"), new

    def _seen(self, codes: Array, new: list[Key]) -> Array:
        """How many rows of each key came before this batch."""
        at, known = self._stored(codes, new)
        seen: Array = self.seen.take(at)
        return seen if known is True else seen * known

    def _carried(self, codes: Array, new: list[Key], cuts: Cuts) -> tuple[Array, Array]:
        """The segments that continue an existing pane, and where it is. Rows come in window order, so only a key's
        first segment can be one.
        """
        place, known = self._found(codes, cuts.pane.take(cuts.first), new)
        going_on = known.nonzero()[0]
        return cuts.first.take(going_on), place.take(going_on)

    def _fold(self, inputs: Columns, segments: Segments, first: Array, place: Array) -> Partials:
        """Each segment's partials, those of ``first`` continuing the panes at ``place``."""
        continued = np.zeros(segments.number, bool)
        continued[first] = True
        partials = {}
        for f in self.fields:
            carried = f.empty(segments.number)
            carried[first] = self.flat[f.name].take(place, axis=0)
            partials[f.name] = f.fold(inputs, segments, carried, continued)
        return partials

    def _found(self, codes: Array, panes: Array, new: list[Key]) -> tuple[Array, Array]:
        """Where the ring would hold these panes, and whether it does."""
        at, known = self._stored(codes, new)
        place = at * self.slots + panes % self.slots if self.slots > 1 else at
        there: Array = self.flat_tags.take(place) == panes
        return place, there if known is True else there & known

    def _stored(self, codes: Array, new: list[Key]) -> tuple[Array, Any]:
        """Where the state has these keys (0 for unknown ones), and which it has."""
        if not new:
            return codes, True
        known = codes < len(self.keys)
        return np.where(known, codes, 0), known

    # ---- a few rows: see few.py

    def _few(self, rows: Sequence[Any], now_us: int) -> Slide | None:
        return self.few_rows.slide(self, rows, now_us)

    @property
    def table(self) -> PaneState:
        return self

    def few_fit(self, frontier: int) -> bool:
        """Can rows that move the frontier to there be taken in one by one?"""
        return True

    def code_of(self, key: Key) -> int:
        """Where the key is, or -1."""
        return self.codes.get(key, -1)

    def code_for(self, key: Key) -> int:
        """Where the key is from now on."""
        code = self.codes.get(key)
        if code is None:
            code = self.codes[key] = len(self.keys)
            self.keys.append(key)
            if len(self.keys) > len(self.seen):
                self._keep(np.arange(len(self.seen)), 2 * len(self.keys))
        return code

    def held_codes(self, most: int) -> Sequence[tuple[Key, int]] | None:
        """All keys in order, and where they are; None where they have more than ``most`` panes."""
        keys = self.keys
        if len(keys) * self.slots > most:
            return None
        ranked = self._ranked
        if ranked.keys is not keys or len(ranked.codes) != len(keys):
            codes = sorted(self.codes.items(), key=lambda known: sort_key(known[0]))
            ranked = self._ranked = Ranked(keys, codes)
        return ranked.codes

    def partial_at(self, code: int, number: int) -> list[Any] | None:
        """What is held of a pane."""
        place = code * self.slots + number % self.slots
        if code < 0 or self.tag_view[place] != number:
            return None
        return [view[place] for view in self.views]

    def slots_of(self, first: int, last: int) -> tuple[list[int], list[list[Any]]]:
        """The panes of these keys by slot: their numbers, and each field of them."""
        low, high = first * self.slots, (last + 1) * self.slots
        return self.tag_view[low:high].tolist(), [view[low:high].tolist() for view in self.views]

    def fields_of(self, code: int) -> list[list[Any]]:
        """Each field of a key's panes, by slot."""
        low, high = code * self.slots, (code + 1) * self.slots
        return [view[low:high].tolist() for view in self.views]

    def put_at(self, code: int, panes: Mapping[int, list[Any]], came: int) -> None:
        """Store panes, in order: of two in one slot the later one is kept."""
        if came:
            self.seen_view[code] += came
        for number, partials in panes.items():
            place = code * self.slots + number % self.slots
            self.tag_view[place] = number
            for view, held in zip(self.views, partials):  # noqa: B905  (costs more than what is done)
                view[place] = held

    # ---- what fires

    def _by_count(self, part: Part) -> Fired:
        """Windows of tuples end at a row of their own."""
        size, slide = self.spec.size, self.spec.slide
        before = part.seen
        first = np.maximum((before - size) // slide + 1, self.spec.first)
        count = np.maximum((before + part.lengths - size) // slide - first + 1, 0)
        local = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(local)) + (first - (np.cumsum(count) - count))[local]
        trigger = number * slide + (part.groups.starts - before + size - 1)[local]
        if part.groups.order is None:
            return Fired(part.codes[local], local, number)
        order = ascending(part.groups.order.take(trigger), len(part.groups.order))
        local = local[order]
        return Fired(part.codes[local], local, number[order])

    def _by_frontier(self, part: Part, frontier: Frontier) -> Fired:
        """Windows of batches or of time end for all keys at once."""
        size, slide = self.spec.size, self.spec.slide
        low, high = (frontier.before - size) // slide + 1, (frontier.after - size) // slide
        if not self.spec.by_time:
            low = max(low, self.spec.first)
        if low > high:
            nothing = np.empty(0, "i8")
            return Fired(nothing, nothing, nothing)
        if not self.spec.by and high - low < MANY:  # those without rows are left out later
            code = np.zeros(high - low + 1, "i8")
            return Fired(code, code if len(part.codes) else code - 1, np.arange(low, high + 1))
        old = np.flatnonzero(self._live())
        panes = np.concatenate([self.flat_tags.take(old), part.pane])
        code = np.concatenate([old // self.slots, part.codes[part.key]])
        number, code = _windows_of(code, panes * self.pane, size, slide, low, high)
        local = np.full(len(self.keys) + len(part.codes), -1)
        local[part.codes] = np.arange(len(part.codes))
        if len(code) and self.spec.by:
            order = np.lexsort([Names(self.keys, part.new).ranks(code), number])
            number, code = number[order], code[order]
        return Fired(code, local[code], number)

    def _results(self, part: Part, fired: Fired) -> ResultRows:
        """Merge the panes of every window that fires."""
        panes = fired.number * self.per_slide + self._in_window  # [pane of the window, window]
        if self.by_count:
            first = part.first[fired.local]
            segment = panes + (first - part.pane[first])
            in_batch = segment >= first
        else:
            segment, in_batch = _lookup(part, fired.local, panes)
        place, has = self._found(fired.code, panes, part.new)
        place = place.reshape(-1)
        new = in_batch.reshape(-1).nonzero()[0]
        segment = segment.reshape(-1).take(new)
        has |= in_batch
        missing = None if has.all() else np.flatnonzero(~has)
        merged: Partials = {}
        for f in self.fields:
            table = self.flat[f.name].take(place, axis=0)
            table[new] = part.partials[f.name].take(segment, axis=0)
            if missing is not None:
                table[missing] = f.identity()
            merged[f.name] = f.merged(table.reshape(*panes.shape, *table.shape[1:]), has)
        code, number = fired.code, fired.number
        if missing is not None and not self.by_count and not (some := merged[ROWS] > 0).all():
            code, number, merged = code[some], number[some], {name: array[some] for name, array in merged.items()}
        return results_of(self, Names(self.keys, part.new), code, number, merged)

    def bounds(self, numbers: Array) -> tuple[Array, Array]:
        """Where these windows begin and end."""
        starts = numbers * self.spec.slide
        return starts, starts + self.spec.size

    def rows_in(self, numbers: Array) -> Array:
        """How many rows these windows of tuples hold."""
        rows: Array = np.minimum(numbers * self.spec.slide, 0) + self.spec.size
        return rows

    # ---- the end of the stream

    def _last(self) -> Taken:
        found = []
        one = self.few_rows.one
        for code, key in enumerate(self.keys):
            seen = int(self.seen[code])
            tails = self._tails(code, seen)
            for number in self._begun(seen):
                start, end = number * self.spec.slide, number * self.spec.slide + self.spec.size
                values = one.results([*tails[max(start, 0) // self.pane]], seen - max(start, 0))
                found.append(((number, sort_key(key)), (*key, number, start, end, *values)))
        found.sort(key=lambda one: one[0])
        make = self.results.relation.named
        results = ResultRows.of_rows(self.results.relation, [make(row) for _, row in found])
        return Taken(lambda: None, len(found), [], results)

    def _tails(self, code: int, seen: int) -> dict[int, list[Any]]:
        """A key's panes, each merged with all after it."""
        newest, tails = (seen - 1) // self.pane, dict[int, list[Any]]()
        for number in range(newest, newest - self.per_window, -1):
            held = self.partial_at(code, number)
            if held is not None:
                tails[number] = self.few_rows.one.merged(held, tails.get(number + 1))
        return tails

    # ---- commit

    def _store(self, part: Part) -> None:
        if not len(part.codes):
            return
        for key in part.new:
            self.codes[key] = len(self.keys)
            self.keys.append(key)
        if len(self.keys) > len(self.seen):
            self._keep(np.arange(len(self.seen)), 2 * len(self.keys))
        if self.by_count:
            self.seen[part.codes] += part.lengths
        self._store_panes(part)

    def _store_panes(self, part: Part) -> None:
        place = part.codes[part.key] * self.slots + part.pane % self.slots
        self.flat_tags[place] = part.pane  # of two panes in one slot the later one is kept
        for f in self.fields:
            self.flat[f.name][place] = part.partials[f.name]

    def let_go(self) -> None:
        """Drop keys without any pane that can still fire, when there are many."""
        if self.by_count or len(self.keys) < self._many:
            return
        live = np.flatnonzero(self._live().any(axis=1))
        if 2 * len(live) < len(self.keys):
            self.keys = [self.keys[code] for code in live.tolist()]
            self.codes = {key: code for code, key in enumerate(self.keys)}
            self._keep(live, max(4, 2 * len(live)))
        self._many = max(MANY, 2 * len(live))

    def _keep(self, which: Array, room: int) -> None:
        """Keep these keys' rings, with room for this many keys."""
        seen, tags, ring, count = self.seen, self.tags, self.ring, len(which)
        self.make_room(room)
        self.seen[:count], self.tags[:count] = seen[which], tags[which]
        for name, array in ring.items():
            self.ring[name][:count] = array[which]

    # ---- checkpoints

    def _saved(self) -> list[Any]:
        count = len(self.keys)
        ring = [[list(name), array[:count]] for name, array in self.ring.items()]
        return [self.keys, self.seen[:count], self.tags[:count], ring]

    def _restore(self, saved: list[Any]) -> None:
        self.keys, seen, tags, ring = saved
        self.codes = {key: code for code, key in enumerate(self.keys)}
        count = len(self.keys)
        self.make_room(max(4, 2 * count))
        self.seen[:count], self.tags[:count] = seen, tags
        for name, array in ring:
            self.ring[tuple(name)][:count] = array


class Wide:
    """Partials of several numbers, one tuple for each pane."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, which: Any) -> Any:
        return self.array[which] if isinstance(which, slice) else tuple(self.array[which].tolist())

    def __setitem__(self, place: int, partial: Any) -> None:
        self.array[place] = partial


class Names:
    """The keys by their codes: those of the state, then the new ones of a batch."""

    def __init__(self, known: list[Key], new: list[Key]) -> None:
        self.known = known
        self.count = len(known)
        self.new = new

    def of(self, codes: Array) -> list[Key]:
        known, count, new = self.known, self.count, self.new
        return [known[code] if code < count else new[code - count] for code in codes.tolist()]

    def ranks(self, codes: Array) -> Array:
        """Each code's place among these codes, by the values of their keys."""
        present = np.unique(codes)
        by_value = sorted(range(len(present)), key=[sort_key(key) for key in self.of(present)].__getitem__)
        ranks = np.empty(len(present), "i8")
        ranks[by_value] = np.arange(len(present))
        return ranks[np.searchsorted(present, codes)]


def fields_of(aggregates: Aggregates, relation: Relation, by_count: bool) -> list[Field]:
    """The fields all aggregates need, each once. The number of rows is one of them, and equals the number of values of
    every column without NULLs; windows of tuples know it anyway.
    """
    found: dict[FieldName, Field] = {} if by_count else {ROWS: Counted()}
    for aggregate in aggregates.named.values():
        for field in aggregate.fields(relation) or ():
            if not _counts_rows(field, relation):
                found.setdefault(field.name, field)
    return list(found.values())


def _counts_rows(field: Field, relation: Relation) -> bool:
    return isinstance(field, Counted) and (field.column is None or not relation.column(field.column).nullable)


def results_of(state: PaneState, names: Names, codes: Array, numbers: Array, merged: Partials) -> ResultRows:
    """Results of windows whose fields have been merged; keys, bounds and rows are made on demand."""
    results, aggregates = state.results, state.aggregates
    rows = merged[ROWS] if ROWS in merged else state.rows_in(numbers)
    partials = {ROWS: rows} | {("Counted", name): rows for name in aggregates.columns(state.relation)} | merged
    values: dict[str, Array] = {"window_number": numbers}
    valid: dict[str, Array | None] = {"window_number": None}
    for name, aggregate in aggregates.named.items():
        values[name], valid[name] = aggregate.finish(state.relation, partials)

    def columns() -> Columns:
        keys = names.of(codes)
        named = {
            column: array_of(results.relation.column(column), [key[i] for key in keys])
            for i, column in enumerate(state.spec.by)
        }
        named |= {"window_number": (numbers, None)}
        for name, place in zip(("window_start", "window_end"), state.bounds(numbers), strict=True):
            bound = place if state.spec.scale is None else state.spec.scale.times(place)
            named[name] = (bound.view("M8[us]") if results.as_time else bound), None
        named |= {name: (values[name], _some(valid[name])) for name in aggregates.named}
        return Columns(
            results.relation,
            len(codes),
            {name: array for name, (array, _) in named.items()},
            {name: mask for name, (_, mask) in named.items()},
        )

    return ResultRows(len(codes), Columns(results.relation, len(codes), values, valid), columns)


def _some(mask: Array | None) -> Array | None:
    """The mask, or None when it masks nothing."""
    return None if mask is None or mask.all() else mask


def _windows_of(code: Array, at: Array, size: int, slide: int, low: int, high: int) -> tuple[Array, Array]:
    """The windows from ``low`` to ``high`` that hold at least one of the (key, pane)s; ascending."""
    first, last = np.maximum(first_window(at, size, slide), low), np.minimum(at // slide, high)
    count = np.maximum(last - first + 1, 0)
    number = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    code = np.repeat(code, count)
    keys = int(code.max()) + 1 if len(code) else 1
    numbers, rank = np.unique(number, return_inverse=True)
    pairs = np.unique(rank * keys + code)
    return numbers[pairs // keys], pairs % keys


def _lookup(part: Part, local: Array, panes: Array) -> tuple[Array, Array]:
    """Which segment of the batch each pane of a window is, and whether there is one."""
    if not len(part.pane):
        return np.zeros(panes.shape, "i8"), np.zeros(panes.shape, bool)
    if len(part.codes) == 1:
        place = np.minimum(np.searchsorted(part.pane, panes), len(part.pane) - 1)
        there = part.pane[place] == panes
        return place, there if (local == 0).all() else there & (local == 0)
    known = np.unique(part.pane)
    address = part.key * len(known) + np.searchsorted(known, part.pane)
    rank = np.minimum(np.searchsorted(known, panes), len(known) - 1)
    wanted = local * len(known) + rank
    place = np.minimum(np.searchsorted(address, wanted), len(address) - 1)
    return place, (address[place] == wanted) & (known[rank] == panes) & (local >= 0)
