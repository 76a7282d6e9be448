"""Taking rows in, one after another: what a batch does to the partial matches of a pattern.

A *run* is a partial match: the position of its last row, the number and time of its first row, its rows, its slots, and which
elements came since its last row that guards look for. Runs are values: a batch makes new ones, for the keys that it touches, and
nothing is changed until the slide commits.

What time decides comes before a row of that time: when a run is due (the time of its first row plus WITHIN), it is a match, if
only its end was open, or it is over. So the order of matches does not depend on how rows came in batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tidegate.errors import DataError
from tidegate.streams.windows.patterns.plan import Node, PatternPlan, nodes

NEVER_DUE = 1 << 63  # after the end of a stream, too

Due = tuple[int, int, Any]  # when, the number of the first row, the key


Run = tuple[int, int, int, Node, Any, int]  # position, number and time of the first row, rows, slots, what broke
Runs = Sequence[Run]


class Taking:
    """What a batch does. ``changed``: the runs of the keys that it touches; ``matched``, ``over``: what comes out, in order."""

    def __init__(self, plan: PatternPlan, held: Mapping[Any, Runs], dues: deque[Due], seen: int) -> None:
        self.plan = plan
        self.held = held
        self.changed: dict[Any, Runs] = {}
        self.seen = seen
        self.matched: list[Node] = []
        self.over: list[Node] = []
        self.new_dues: list[Due] = []
        self.passed = 0  # dues that are over, of those there were
        self._dues = dues
        self._old: Iterator[Due] = iter(dues)
        self._next_old: Due | None = next(self._old, None)
        self._new = 0  # new dues that are over
        self.next_due = NEVER_DUE if self._next_old is None else self._next_old[0]
        self.size = plan.spec.size
        self.most = plan.spec.max_partials

    def runs(self, key: Any) -> Runs:
        """The runs of a key, as they are now."""
        found = self.changed.get(key)
        return self.held.get(key, ()) if found is None else found

    def rows(self, rows: Sequence[Any], times: Sequence[int], hits: Sequence[int]) -> None:
        """Take these in. ``hits``: which elements each may be."""
        plan = self.plan
        changed, held, key_of = self.changed, self.held, plan.key_of
        starts_with, every = plan.starts_with, plan.every
        seen = self.seen
        key: Any = ()
        for place, hit in enumerate(hits):
            if not hit and not every:
                continue
            at = times[place]
            if self.next_due <= at:
                self.expire(at)
            row = rows[place]
            if key_of is not None:
                key = key_of(row)
            runs = changed.get(key)
            if runs is None:
                runs = held.get(key, ())
            if runs or hit & starts_with:
                self.step(key, runs, seen + place + 1, at, row, hit)
        self.seen = seen + len(rows)

    def step(  # noqa: C901  the whole algorithm, without calls: it is taken for every row that may matter
        self, key: Any, runs: Runs, number: int, at: int, row: Any, hit: int
    ) -> None:
        """Take in one row of a key."""
        plan = self.plan
        edges, interest, watched, every, moves_on = plan.edges, plan.interest, plan.watched, plan.every, plan.moves_on
        kept: list[Run] = []
        done: list[Node] = []
        for run in runs:
            position, first, began, node, slots, broken = run
            if not (hit | every) & interest[position]:
                kept.append(run)
                continue
            taken = False
            for to, guard, bit, test, update, end, goes_on in edges[position]:
                if hit & bit and not guard & broken and (test is None or test(row, slots, node)):
                    taken = True
                    new = (node, number, to, row, at)
                    if not end:
                        done.append(new)
                    if goes_on:
                        after = slots if update is None else update(slots, row)
                        kept.append((to, first, began, new, after, 0))
            if taken and moves_on:
                continue
            if watched[position] & (hit | every) & ~broken:
                now = self.broken(run, row, hit)
                if now != broken:
                    if self.hopeless(position, now):
                        continue
                    run = (position, first, began, node, slots, now)
            kept.append(run)
        if hit & plan.starts_with:
            self.start(key, number, at, row, hit, kept, done)
        if done:
            kept = self.complete(done, kept)
        if len(kept) > self.most:
            raise self._too_many(key, len(kept))
        if kept or runs:
            self.changed[key] = kept

    def start(self, key: Any, number: int, at: int, row: Any, hit: int, kept: list[Run], done: list[Node]) -> None:
        """Matches that begin with this row."""
        begin = self.plan.begin
        before = len(kept)
        for to, _, bit, test, update, end, goes_on in self.plan.starts:
            if hit & bit and (test is None or test(row, begin, None)):
                new = (None, number, to, row, at)
                if not end:
                    done.append(new)
                if goes_on:
                    kept.append((to, number, at, new, begin if update is None else update(begin, row), 0))
        if self.size is not None and len(kept) > before:
            due = at + self.size
            self.new_dues.append((due, number, key))
            if due < self.next_due:
                self.next_due = due

    def broken(self, run: Run, row: Any, hit: int) -> int:
        """Which guards of the run look for a row that has come, this one included."""
        position, _, _, node, slots, found = run
        found |= self.plan.every
        waiting = self.plan.watched[position] & hit & ~found
        number = 0
        while waiting >> number:
            if waiting >> number & 1:
                test = self.plan.negated[number]
                if test is None or test(row, slots, node):
                    found |= 1 << number
            number += 1
        return found

    def hopeless(self, position: int, broken: int) -> bool:
        """Can it neither go on nor end?"""
        end = self.plan.ends[position]
        return all(edge[1] & broken for edge in self.plan.edges[position]) and (end <= 0 or bool(end & broken))

    # ---- matches

    def complete(self, done: list[Node], kept: list[Run]) -> list[Run]:
        """These are matches, unless an earlier one has taken their place; the runs that remain."""
        plan = self.plan
        after = plan.spec.after
        if after == "no_skip" and not plan.consumed:
            self.matched.extend(done if len(done) == 1 else self.ordered(done))
            return kept
        bound = 0
        used: set[int] = set()
        for node in done if len(done) == 1 else self.ordered(done):
            bindings = nodes(node)
            mine = {n for _, n, p, _, _ in bindings if p in plan.consumed}
            if bindings[0][1] < bound or mine & used:
                continue
            self.matched.append(node)
            used |= mine
            bound = max(bound, self._next_begins(bindings))
        return [run for run in kept if run[1] >= bound and not (used and self._uses(run[3], used))]

    def ordered(self, found: list[Node]) -> list[Node]:
        """Matches that come out together: by their first rows, then the second ones, and so on; of the same rows, by what these
        are called. Those that call the same rows the same are one.
        """
        positions = self.plan.automaton.positions
        unique: dict[Any, Node] = {}
        for node in found:
            bindings = nodes(node)
            names = tuple([positions[p].variable for _, _, p, _, _ in bindings])
            unique.setdefault((tuple([n for _, n, _, _, _ in bindings]), names), node)
        return [unique[key] for key in sorted(unique)]

    def _next_begins(self, bindings: Sequence[Node]) -> int:
        """The first row with which the next match may begin."""
        mode, first = self.plan.after, bindings[0][1]
        if mode == "no_skip":
            return 0
        if mode == "past_last":
            return bindings[-1][1] + 1
        bound = [n for _, n, p, _, _ in bindings if p in self.plan.to]
        to = 0 if not bound else bound[-1] if mode == "to_last" else bound[0]
        return max(first + 1, to)

    def _uses(self, node: Node | None, used: set[int]) -> bool:
        while node is not None:
            if node[1] in used and node[2] in self.plan.consumed:
                return True
            node = node[0]
        return False

    # ---- time

    def expire(self, until: int) -> None:
        """What is due up to then is a match, or over."""
        while self.next_due <= until:
            due = self._pop()
            runs = self.runs(due[2])
            if not runs:
                continue
            rest = [run for run in runs if run[1] != due[1]]
            if len(rest) == len(runs):
                continue
            done: list[Node] = []
            over: list[Node] = []
            for position, first, _, node, _, broken in runs:
                end = self.plan.ends[position]
                if first != due[1] or not end:
                    continue
                (done if end > 0 and not end & broken else over).append(node)
            if over and self.plan.spec.timeout:
                self.over.extend(self.ordered(over))
            self.changed[due[2]] = self.complete(done, rest) if done else rest

    def _pop(self) -> Due:
        """The next due, of the old ones or the new."""
        old = self._next_old
        if old is not None:
            self._next_old = next(self._old, None)
            self.passed += 1
            due = old
        else:
            due = self.new_dues[self._new]
            self._new += 1
        if self._next_old is not None:
            self.next_due = self._next_old[0]
        else:
            self.next_due = self.new_dues[self._new][0] if self._new < len(self.new_dues) else NEVER_DUE
        return due

    def open_dues(self) -> Iterator[Due]:
        """The dues of runs that may still be open, the first one first."""
        yield from islice(self._dues, self.passed, None)
        yield from self.new_dues[self._new :]

    def left(self) -> list[Due]:
        """The new dues that are not over."""
        return self.new_dues[self._new :]

    def _too_many(self, key: Any, number: int) -> DataError:
        told = "" if self.plan.key_of is None else f" of key {key!r}"
        return DataError(
            f"{self.plan.what}: {number:,} partial matches{told}, and max_partials={self.most:,}. A shorter within=, a closer "
            f"condition, or select='next' in place of 'any' makes fewer; or raise max_partials",
            relation=self.plan.spec.stream,
        )
