"""Windows of many panes, at a cost per pane that does not depend on their number.

Panes are grouped into *blocks* of as many as a window has, n. A window is then the end of one block and the beginning of
the next. Of the block in progress its panes and their running merge from its beginning (*prefix*) are kept, of the block
before it the merges up to its end (*suffix*), one for each pane: two merges per pane, and one per window::

    n = 4     block 0         block 1
    panes     0   1   2   3   4   5   6   7
    window 2          [ suffix│prefix ]

Both tables are in pages (:mod:`.sparse`): a key with few panes takes little room, however many a window may have.

A landmark window is the prefix alone, and nothing else is kept of it. The merges depend on the panes' numbers only, so
results do not depend on batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import NEVER
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state.column_state import Frontier, Taken
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.fields import ROWS, FieldName, Partials
from tidegate.streams.windows.state.keys import ascending
from tidegate.streams.windows.state.panes import Names, PaneState, Part, results_of
from tidegate.streams.windows.state.results import ResultRows, Results
from tidegate.streams.windows.state.runs import Groups, Run, Suffixes, side_by_side
from tidegate.streams.windows.state.sparse import SparseTable, flat
from tidegate.streams.windows.state.times import Step

SOME = 1 << 20  # panes looked at together


class BlockState(PaneState):
    """A window over aggregates with many panes, of all its keys."""

    blocks = True

    def __init__(self, spec: WindowSpec, relation: Relation, results: Results) -> None:
        self.landmark = spec.kind == "landmark"
        self.complete_to = NEVER  # panes below it are complete, where the frontier is the stream's
        super().__init__(spec, relation, results)

    def fresh(self) -> Self:
        found = super().fresh()
        found.complete_to = NEVER
        return found

    def _arrays(self) -> dict[str, Array]:
        return {
            "seen": self.seen, "newest": self.newest, "block": self.block, "suffix_block": self.suffix_block,
            "tags": self.tags,
        }  # fmt: skip

    def make_room(self, room: int) -> None:
        self.slots = 1  # the ring holds only the open pane
        super().make_room(room)
        self.newest: Array = np.full(room, NEVER, "i8")  # the last pane with rows
        self.block: Array = np.full(room, NEVER, "i8")  # the block in progress
        self.suffix_block: Array = np.full(room, NEVER, "i8")
        columns = self.per_window + 1  # there is never anything after the last pane of a block
        self.panes, self.suffix = SparseTable(self.fields, columns, room), SparseTable(self.fields, columns, room)
        self.prefix = {f.name: f.empty(room) for f in self.fields}

    def _keep(self, which: Array, room: int) -> None:
        plain, prefix, tables, count = self._arrays(), self.prefix, (self.panes, self.suffix), len(which)
        super()._keep(which, room)
        for name, array in plain.items():
            getattr(self, name)[:count] = array[which]
        for f in self.fields:
            self.prefix[f.name][:count] = prefix[f.name][which]
        self.panes, self.suffix = tables
        for table in tables:
            table.keep(which, room)

    def _live(self) -> Array:
        """Which keys have something that can still fire?"""
        count = len(self.keys)
        if self.by_count:
            return np.ones((count, 1), bool)
        recent = self.newest[:count] >= self.complete_to - self.per_window
        live: Array = (recent | (self.tags[:count, 0] >= self.complete_to))[:, None]
        return live

    def _held(self) -> int:
        count, n = len(self.keys), self.per_window
        if self.by_count:
            complete = self.seen[:count] // self.pane
            kept = np.minimum(complete % n, 1) if self.landmark else np.minimum(complete, n - 1)
            return int(kept.sum() + np.count_nonzero(self.seen[:count] % self.pane))
        reached = self.complete_to
        opened = int(np.count_nonzero(self.tags[:count] >= max(reached, NEVER + 1)))
        if self.landmark:
            begun = (self.block[:count] == reached // n) & (self.prefix[ROWS][:count] > 0)
            return opened + int(np.count_nonzero(begun & (reached % n > 0)))
        keys = max(SOME // n, 1)
        return opened + sum(self._filled(slice(low, low + keys), reached - n + 1) for low in range(0, count, keys))

    def _filled(self, which: slice, needed: int) -> int:
        """How many complete panes of these keys have rows and are still needed?"""
        places, merged = np.arange(self.per_window), self.suffix.rows(ROWS, which)
        filled = self.panes.rows(ROWS, which)[:, :-1] > 0, merged[:, :-1] > merged[:, 1:]
        found = 0
        for there, block in zip(filled, (self.block[which, None], self.suffix_block[which, None]), strict=True):
            live = (block > NEVER) & (block * self.per_window + places >= needed)
            found += int(np.count_nonzero(there[:, : self.per_window] & live))
        return found

    def few_fit(self, frontier: int) -> bool:
        """As long as no pane becomes complete."""
        return self.by_count or frontier // self.pane == self.complete_to

    # ---- a batch

    def _take(self, columns: Columns, step: Step | None) -> Taken:
        frontier = self._frontier(step)
        with np.errstate(all="ignore"):  # NaN and infinity are values like any other
            part = self._part(columns, step)
            run = self._counted(part) if self.by_count else self._passed(part, frontier)
            groups = self._groups(part, run)
            prefix = self._prefixes(run, groups)
            suffixes = None if self.landmark else self._suffixes(run, groups)
            results = self._fired(part, run, groups, prefix, suffixes)
        return Taken(lambda: self._commit(part, run, groups, prefix, suffixes, frontier), len(results), [], results)

    def _counted(self, part: Part) -> Run:
        """Panes of tuples: those whose last row has arrived are complete."""
        complete = (part.seen + part.lengths) // self.pane
        done = part.pane < complete.take(part.key)
        return Run(part.codes.take(part.key), part.key, part.pane, part.partials, part.last, done)

    def _passed(self, part: Part, frontier: Frontier) -> Run:
        """Panes of time or batches: those that the frontier has passed, those without rows too where a window needs them."""
        upto = frontier.after // self.pane
        opened = np.flatnonzero(
            (self.tags[: len(self.keys), 0] >= self.complete_to) & (self.tags[: len(self.keys), 0] < upto)
        )
        mine = part.codes[part.key]
        old = opened[~np.isin(opened, mine[part.pane == self.tags[np.where(mine < len(self.keys), mine, 0), 0]])]
        new = np.flatnonzero(part.pane < upto)
        code = np.concatenate([old, mine[new]])
        pane = np.concatenate([self.tags[old, 0], part.pane[new]])
        reach = np.flatnonzero(
            (self.newest[: len(self.keys)] > NEVER)
            & (self.newest[: len(self.keys)] >= self.complete_to - self.per_window)
        )
        all_code, all_pane = self._without_gaps(code, pane, reach, upto)
        place = np.searchsorted(_address(all_code, all_pane, all_pane), _address(code, pane, all_pane))
        partials = {}
        for f in self.fields:
            table = f.empty(len(all_code))
            table[place] = np.concatenate([self.ring[f.name][old, 0], part.partials[f.name][new]])
            partials[f.name] = table
        local = np.full(len(self.keys) + len(part.codes) + 1, -1)
        local[part.codes] = np.arange(len(part.codes))
        last = np.flatnonzero(np.diff(all_code, append=-1))
        return Run(all_code, local[all_code], all_pane, partials, last, None)

    def _without_gaps(self, code: Array, pane: Array, reach: Array, upto: int) -> tuple[Array, Array]:
        """Every (key, pane) that ends a window with rows in it: up to n panes after each pane that has rows."""
        n, low = self.per_window, self.complete_to
        codes = np.concatenate([code, reach])
        first = np.concatenate([pane, np.full(len(reach), low)])
        last = np.minimum(np.concatenate([pane, self.newest[reach]]) + n, upto)
        found = [
            np.stack([np.full(b - a, c), np.arange(a, b)])
            for c, a, b in zip(codes.tolist(), first.tolist(), last.tolist(), strict=True)
            if b > a
        ]
        if not found:
            return np.empty(0, "i8"), np.empty(0, "i8")
        both = np.concatenate(found, axis=1)
        order = np.lexsort([both[1], both[0]])
        both = both[:, order]
        fresh = np.ones(both.shape[1], bool)
        fresh[1:] = (both[:, 1:] != both[:, :-1]).any(axis=0)
        return both[0, fresh], both[1, fresh]

    def _groups(self, part: Part, run: Run) -> Groups:
        n, count = self.per_window, len(run.pane)
        block = run.pane // n
        slot = run.pane - block * n
        if self.by_count:  # panes without gaps: a block begins with its first
            begins = slot == 0
            begins[part.first] = True
        else:
            begins = np.ones(count, bool)
            np.not_equal(block[1:], block[:-1], out=begins[1:])
            begins[1:] |= run.code[1:] != run.code[:-1]
        starts = begins.nonzero()[0]
        ends = np.empty_like(starts)
        ends[:-1], ends[-1:] = starts[1:], count
        lengths = ends - starts
        code, block = run.code.take(starts), block.take(starts)
        at, known = self._stored(code, part.new)
        going_on = slot.take(starts) > 0 if self.by_count else (self.block.take(at) == block) & known
        row, tables = side_by_side(lengths)
        place = (row + 1 - starts).repeat(lengths)
        place += np.arange(count)
        of = np.arange(len(starts)).repeat(lengths)
        return Groups(starts, ends, code, block, at, going_on.nonzero()[0], of, slot, row, place, tables)

    def _prefixes(self, run: Run, groups: Groups) -> Partials:
        """At each pane's place the merge of its block up to it; at the beginning of a group's row, of what there was before."""
        at, has = groups.at.take(groups.begun), None
        if self.asks:
            had = np.ones(len(at), bool) if self.by_count else self.prefix[ROWS].take(at) > 0
            has = groups.filled(had, self._has(run.partials, len(run.code)))
        return {
            f.name: groups.scanned(f, self.prefix[f.name].take(at, axis=0), run.partials[f.name], has)
            for f in self.fields
        }

    def _has(self, partials: Partials, count: int) -> Array:
        """Which of these complete panes have rows? Those of tuples always do."""
        return np.ones(count, bool) if self.by_count else partials[ROWS] > 0

    def _suffixes(self, run: Run, groups: Groups) -> Suffixes:
        """Of each block that becomes complete, the merges from each of its panes to its end."""
        n, tails = self.per_window, groups.ends - 1
        complete = groups.slot.take(tails) == n - 1
        if run.done is not None:
            complete &= run.done.take(tails)
        which = complete.nonzero()[0]
        row = np.full(len(tails) + 1, -1)
        if not len(which):
            return Suffixes(which, {}, row)
        row[which] = np.arange(len(which))
        width = self.panes.width
        inside = complete.take(groups.of).nonzero()[0]
        place = row.take(groups.of.take(inside))
        place *= width
        place += groups.slot.take(inside)
        at, tables = groups.at.take(which), {}
        fresh = None if self.by_count else ~np.isin(which, groups.begun)  # for tuples, every pane is rewritten
        for f in self.fields:
            tables[f.name] = table = self.panes.rows(f.name, at)
            if fresh is not None:
                table[fresh] = f.identity()
            flat(table)[place] = run.partials[f.name].take(inside, axis=0)
        has = None
        if self.asks:
            has = np.arange(width) < np.full((len(which), 1), n) if self.by_count else tables[ROWS] > 0
        for f in self.fields:
            f.scan_back(tables[f.name], has)
        other = groups.code[1:] != groups.code[:-1]
        if not self.by_count:  # there, no block is missing
            other |= groups.block[1:] != groups.block[:-1] + 1
        row[:-2][other] = -1
        return Suffixes(which, tables, row)

    # ---- what fires

    def _fired(self, part: Part, run: Run, groups: Groups, prefix: Partials, suffixes: Suffixes | None) -> ResultRows:
        which = self._ending(run)
        if not len(which):
            return self.results.none()
        names = Names(self.keys, part.new)
        which = self._ordered(part, run, names, which)
        code, number, place = run.code.take(which), run.pane.take(which), groups.place.take(which)
        merged = {name: array.take(place, axis=0) for name, array in prefix.items()}
        if suffixes is not None:
            merged = self._with_suffix(groups, which, merged, suffixes)
            number -= self.per_window - 1
            if self.per_slide > 1:
                number //= self.per_slide
        if not self.by_count and not (some := merged[ROWS] > 0).all():
            code, number, merged = code[some], number[some], {name: array[some] for name, array in merged.items()}
        return results_of(self, names, code, number, merged)

    def _ending(self, run: Run) -> Array:
        """The panes that are the last of a window."""
        before, s = self.per_window - 1, self.per_slide
        if self.landmark:
            return np.arange(len(run.pane)) if run.done is None else run.done.nonzero()[0]
        ends = run.pane >= (NEVER if self.spec.by_time or self.spec.partial else before)
        if run.done is not None:
            ends &= run.done
        if s > 1:
            ends &= (run.pane - before) % s == 0
        return ends.nonzero()[0]

    def _ordered(self, part: Part, run: Run, names: Names, which: Array) -> Array:
        """Windows of tuples come in the order of their last rows, others by number and key."""
        if not self.by_count:
            return which.take(np.lexsort([names.ranks(run.code.take(which)), run.pane.take(which)]))
        if part.groups.order is None:
            return which
        row = run.pane.take(which)
        row *= self.pane
        row += (part.groups.starts + (self.pane - 1) - part.seen).take(run.local.take(which))
        return which.take(ascending(part.groups.order.take(row), len(part.groups.order)))

    def bounds(self, numbers: Array) -> tuple[Array, Array]:
        if not self.landmark:
            return super().bounds(numbers)
        return numbers // self.per_window * self.spec.size, (numbers + 1) * self.pane

    def rows_in(self, numbers: Array) -> Array:
        starts, ends = self.bounds(numbers)
        return ends - np.maximum(starts, 0)

    def _with_suffix(self, groups: Groups, which: Array, merged: Partials, suffixes: Suffixes) -> Partials:
        """Merge the suffix of the previous block, stored or just completed, into the windows' prefixes."""
        group, slot = groups.of.take(which), groups.slot.take(which) + 1  # n: a window that begins with its block
        row = suffixes.row.take(group - 1)  # the last one, -1, for the first group
        anew = (row >= 0).nonzero()[0] if suffixes.tables else row[:0]
        place = self.suffix.places(groups.at.take(group), slot)
        taken = row.take(anew) * self.suffix.width + slot.take(anew)
        front = {}
        for f in self.fields:
            front[f.name] = table = self.suffix.take(f.name, place)
            if len(anew):
                table[anew] = flat(suffixes.tables[f.name]).take(taken, axis=0)
        if not self.by_count:  # there, every pane has rows, and every block its suffix
            known = groups.code < len(self.keys)
            stored = known & (self.suffix_block.take(groups.at) == groups.block - 1)
            stored |= np.roll(suffixes.row, 1)[:-1] >= 0
            none = ~stored.take(group)
            for f in self.fields:
                front[f.name][none] = f.identity()
        elif self.spec.partial:  # nor does a block before the first
            for f in self.fields:
                front[f.name][groups.block.take(group) == 0] = f.identity()
        had = has = None
        if self.asks:
            had = front[ROWS] > 0 if not self.by_count else (slot < self.per_window) & (groups.block.take(group) > 0)
            has = self._has(merged, len(which))
        return {f.name: f.merge(front[f.name], merged[f.name], had, has) for f in self.fields}

    def _tails(self, code: int, seen: int) -> dict[int, list[Any]]:
        """Of the block in progress and of the one before it."""
        n, one, opened = self.per_window, self.few_rows.one, seen // self.pane
        first, tails = opened // n * n, dict[int, list[Any]]()
        if seen % self.pane:
            tails[opened] = [view[code] for view in self.views]
        inside, before = ([self._values(t, f.name, code) for f in self.fields] for t in (self.panes, self.suffix))
        for number in range(opened - 1, first - 1, -1):
            tails[number] = one.merged([values[number - first] for values in inside], tails.get(number + 1))
        for slot in range(n if first else 0):
            tails[first - n + slot] = one.merged([values[slot] for values in before], tails.get(first))
        return tails

    def _values(self, table: SparseTable, name: FieldName, code: int) -> list[Any]:
        """A key's panes as plain numbers, or tuples of them."""
        return [tuple(value) if isinstance(value, list) else value for value in table.rows(name, [code])[0].tolist()]

    # ---- commit

    def _commit(
        self,
        part: Part,
        run: Run,
        groups: Groups,
        prefix: Partials,
        suffixes: Suffixes | None,
        frontier: Frontier,
    ) -> None:
        self._store(part)
        if suffixes is not None and suffixes.tables:
            code = groups.code.take(suffixes.groups)
            if not self.by_count:
                self.suffix_block[code] = groups.block.take(suffixes.groups)  # of several of one key the last stays
            self.suffix.put_rows(code, suffixes.tables)
        if len(run.code):
            self._go_on(run, groups, prefix)
        if not self.by_count:
            filled = run.partials[ROWS] > 0
            self.newest[run.code[filled]] = run.pane[filled]  # ascending within a key
            self.complete_to = max(self.complete_to, frontier.after // self.pane)
        self.let_go()

    def _store_panes(self, part: Part) -> None:
        """Of each key the last pane, which may be open."""
        self.flat_tags[part.codes] = part.pane.take(part.last)
        for f in self.fields:
            self.flat[f.name][part.codes] = part.partials[f.name].take(part.last, axis=0)

    def _go_on(self, run: Run, groups: Groups, prefix: Partials) -> None:
        """Keep the panes of the blocks in progress, and their merge."""
        code, kept = run.code.take(run.last), groups.place.take(run.last)
        if run.done is not None:
            kept -= ~run.done.take(run.last)  # the place before has what is complete
        for f in self.fields:
            self.prefix[f.name][code] = prefix[f.name].take(kept, axis=0)
        owner, slot, partials = run.code, groups.slot, run.partials
        if not self.by_count:
            last = groups.of.take(run.last)
            self.block[code] = groups.block.take(last)
            if not self.landmark:  # where panes are missing, none of an earlier block may remain
                inside = np.isin(groups.of, last).nonzero()[0]
                owner, slot = owner.take(inside), slot.take(inside)
                partials = {name: array.take(inside, axis=0) for name, array in partials.items()}
                self.panes.clear(groups.code.take(np.setdiff1d(last, groups.begun)))
        if self.landmark:
            return
        place = self.panes.opened(owner, slot)
        for f in self.fields:
            self.panes.put(f.name, place, partials[f.name])

    # ---- what is held

    def _kept(self) -> Iterable[Any]:
        tables = [(t.index, t.free, t.pools) for t in (self.panes, self.suffix)]
        return *super()._kept(), self._arrays(), self.prefix, tables

    def _contents(self) -> dict[Any, Any]:
        found = {}
        for code, key in enumerate(self.keys):
            tables = [
                [t.rows(f.name, [code]).tolist() for t in (self.panes, self.suffix)]
                + [self.prefix[f.name][code].tolist(), self.ring[f.name][code].tolist()]
                for f in self.fields
            ]
            found[key] = int(self.seen[code]), int(self.tags[code, 0]), int(self.block[code]), tables
        return found

    def _saved(self) -> list[Any]:
        count = len(self.keys)
        plain = {name: array[:count] for name, array in self._arrays().items()}
        tables = [[list(f.name), *(t[f.name][:count] for t in (self.ring, self.prefix))] for f in self.fields]
        return [self.keys, self.complete_to, plain, tables, self.panes.saved(count), self.suffix.saved(count)]

    def _restore(self, saved: list[Any]) -> None:
        self.keys, self.complete_to, plain, tables, panes, suffix = saved
        self.codes = {key: code for code, key in enumerate(self.keys)}
        count = len(self.keys)
        self.make_room(max(4, 2 * count))
        for name, array in plain.items():
            getattr(self, name)[:count] = array
        for name, *arrays in tables:
            for table, array in zip((self.ring, self.prefix), arrays, strict=True):
                table[tuple(name)][:count] = array
        self.panes.restore(panes)
        self.suffix.restore(suffix)


def _address(code: Array, pane: Array, among: Array) -> Array:
    """(key, pane) as one ascending number."""
    known = np.unique(among)
    address: Array = code * len(known) + np.searchsorted(known, pane)
    return address
