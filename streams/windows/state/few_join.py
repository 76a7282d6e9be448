"""A few rows in an interval join: what :class:`~.join_state.JoinState` does to a batch at once, one row after another.

While batches are small the rows of both sides are in dictionaries by key, as they came; a large batch makes columns of them
again. Inner joins within an interval are done here, the others as large batches. The results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.joins import JoinSpec, Output
from tidegate.streams.windows.state.keys import Key
from tidegate.streams.windows.state.values import Row, key_of, time_of

if TYPE_CHECKING:
    from tidegate.streams.windows.state.join_state import JoinState


class Entry:
    """A row of one side."""

    __slots__ = ("key", "matched", "number", "row", "time")

    def __init__(self, key: Key, time: int, number: int, row: Row, matched: bool = False) -> None:
        self.key = key
        self.time = time
        self.number = number
        self.row = row
        self.matched = matched


class Side:
    """The rows of one side that can still be in a result. ``dues``: when each can't any more."""

    def __init__(self, spec: JoinSpec, side: int) -> None:
        self.lasts = spec.last_instant(side, 0)
        self.by_key: dict[Key, list[Entry]] = {}
        self.dues: list[tuple[int, int, Entry]] = []

    def add(self, entry: Entry) -> None:
        mine = self.by_key.get(entry.key)
        if mine is None:
            self.by_key[entry.key] = [entry]
        else:
            mine.append(entry)
        heappush(self.dues, (entry.time + self.lasts, entry.number, entry))

    def drop_before(self, clock: int) -> None:
        dues = self.dues
        while dues and dues[0][0] < clock:
            entry = heappop(dues)[2]
            mine = self.by_key[entry.key]
            mine.remove(entry)
            if not mine:
                del self.by_key[entry.key]

    def entries(self) -> list[Entry]:
        """In order of arrival."""
        return sorted((entry for _, _, entry in self.dues), key=lambda entry: entry.number)


class Came:
    """A batch of one side: what is taken in, the place of each in the batch, the watermark after each row, late rows."""

    __slots__ = ("late", "new", "places", "reached", "rows", "watermark")

    def __init__(self, rows: int, watermark: int) -> None:
        self.rows = rows
        self.new: list[Entry] = []
        self.places: list[int] = []
        self.reached: list[int] = []
        self.watermark = watermark
        self.late: list[Row] = []


Pair = tuple[tuple[int, ...], Entry, Entry]  # when, among those of the batch; left, right


class FewSides:
    """Both sides of a join, row by row, and the rows that no watermark has reached yet (``open``), where they wait for one."""

    def __init__(self, spec: JoinSpec) -> None:
        self.sides = (Side(spec, 0), Side(spec, 1))
        self.at_once = spec.mode == "best_effort"
        self.open: list[tuple[int, Entry]] = []

    def held(self) -> int:
        return sum(len(side.dues) for side in self.sides)


class FewInJoins:
    """How a few rows are taken in, for all states of one join."""

    def __init__(self, spec: JoinSpec, relations: Sequence[Relation], output: Output) -> None:
        self.spec = spec
        times = (spec.left_time, spec.right_time)
        self.time_of = [time_of(relation, name) for relation, name in zip(relations, times, strict=True)]
        self.key_of = [key_of(relations[side], [pair[side] for pair in spec.on]) for side in (0, 1)]
        self.make = output.relation.named
        self.places = [
            (source.sides[0], relations[source.sides[0]].index_of[source.column]) for source in output.sources
        ]

    def slide(self, state: JoinState, few: FewSides, rows: Sequence[Sequence[Row]], now_us: int) -> FewJoined | None:
        """What a few rows do; None: one came too late, which is refused."""
        left, right = self._arrive(state, 0, rows[0]), self._arrive(state, 1, rows[1])
        if left is None or right is None:
            return None
        one, two = state.heard
        heard = [now_us if left.rows or one is None else one, now_us if right.rows or two is None else two]
        watermarks = [max(left.watermark, state.marks[0]), max(right.watermark, state.marks[1])]
        clock = state.clock
        if self.spec.mode == "best_effort":
            clock = max([clock, min(state.marks), *left.reached[-1:], *right.reached[-1:]])
            pairs = self._at_once(state, few, left, right)
        else:
            clock = state._joint(watermarks, heard, now_us)
            pairs = self._within(state, few, (left, right), clock) if clock > state.clock else []
        results = []
        if pairs:
            pairs.sort(key=itemgetter(0))
            results = [
                self.make([(pair[2] if side else pair[1]).row[place] for side, place in self.places]) for pair in pairs
            ]
        return FewJoined(few, (left, right), watermarks, heard, clock, pairs, results)

    def _arrive(self, state: JoinState, side: int, rows: Sequence[Row]) -> Came | None:
        watermark = state.watermarks[side]
        found = Came(len(rows), watermark)
        if not rows:
            return found
        spec, came = self.spec, state.came[side]
        best, time_of, key_of = spec.mode == "best_effort", self.time_of[side], self.key_of[side]
        for place, row in enumerate(rows):
            at = time_of(row)
            bound = watermark if best else max(watermark, state.clock)
            if at - spec.delay > watermark:
                watermark = at - spec.delay
            found.reached.append(watermark)
            key = key_of(row)
            if at < bound:
                if spec.late == "raise":
                    return None
                found.late.append(row)
                if spec.late != "adjust":
                    continue
                at = bound
            if None not in key:
                found.new.append(Entry(key, at, came + place, row))
                found.places.append(place)
        found.watermark = watermark
        return found

    def _at_once(self, state: JoinState, few: FewSides, left: Came, right: Came) -> list[Pair]:
        """Each new row, the left ones first, with everything that came before it and is still held."""
        spec, pairs = self.spec, list[Pair]()
        before = [state.clock]  # the clock when each row came
        for reached in (*left.reached, *right.reached):
            before.append(max(before[-1], reached))
        for entry, place in zip(left.new, left.places, strict=True):
            low, high = entry.time - spec.before, entry.time + spec.after
            low = max(low, before[place] - spec.before)  # it is still held
            pairs.extend(
                ((place, other.number), entry, other)
                for other in few.sides[1].by_key.get(entry.key, ())
                if low <= other.time <= high
            )
        for entry, place in zip(right.new, right.places, strict=True):
            when = left.rows + place
            low, high = entry.time - spec.after, entry.time + spec.before
            low = max(low, before[when] - spec.after)
            pairs.extend(
                ((when, other.number), other, entry)
                for other in (*few.sides[0].by_key.get(entry.key, ()), *left.new)
                if low <= other.time <= high and other.key == entry.key
            )
        return pairs

    def _within(self, state: JoinState, few: FewSides, came: Sequence[Came], clock: int) -> list[Pair]:
        """Matches whose later row the joint watermark has passed with this batch."""
        spec = self.spec
        pairs: list[Pair] = []
        opened = [*few.open, *((side, entry) for side in (0, 1) for entry in came[side].new)]
        for side, entry in opened:
            if entry.time >= clock:
                continue
            reach = (spec.after, spec.before) if side else (spec.before, spec.after)
            low, high = entry.time - reach[0], entry.time + reach[1]
            others = few.sides[1 - side].by_key.get(entry.key, [])
            if not side:
                others = [*others, *(other for other in came[1].new if other.key == entry.key)]
            below = state.clock if side else clock  # two that are both new meet once
            for other in others:
                if other.time < below and low <= other.time <= high:
                    left, right = (other, entry) if side else (entry, other)
                    at = max(left.time, right.time)
                    pairs.append(((at, left.time, left.number, right.time, right.number), left, right))
        return pairs


class FewJoined:
    """What a few rows do to a join."""

    __slots__ = ("came", "clock", "few", "heard", "pairs", "results", "watermarks")

    def __init__(
        self,
        few: FewSides,
        came: tuple[Came, Came],
        watermarks: list[int],
        heard: list[Any],
        clock: int,
        pairs: list[Pair],
        results: list[Any],
    ) -> None:
        self.few = few
        self.came = came
        self.watermarks = watermarks
        self.heard = heard
        self.clock = clock
        self.pairs = pairs
        self.results = results

    def store(self) -> None:
        """Keep the rows that can still be in a result."""
        few, clock = self.few, self.clock
        for _, left, right in self.pairs:
            left.matched = right.matched = True
        for number, came in enumerate(self.came):
            side = few.sides[number]
            for entry in came.new:
                side.add(entry)
            if side.dues and side.dues[0][0] < clock:
                side.drop_before(clock)
        if not few.at_once:
            opened = [*few.open, *((number, entry) for number in (0, 1) for entry in self.came[number].new)]
            few.open = [one for one in opened if one[1].time >= clock]

    def oldest(self, state: JoinState) -> int:
        """As :meth:`.JoinState._held_back`."""
        reached = self.clock if state.spec.mode == "coordinated" else min(self.watermarks)
        if reached in (NEVER, END):
            return reached
        last_instant = state.spec.last_instant
        times = [
            entry.time
            for number, side in enumerate(self.few.sides)
            for entry in (*(due[2] for due in side.dues), *self.came[number].new)
            if last_instant(number, entry.time) >= self.clock
        ]
        return min([reached, *times])


def few_sides(spec: JoinSpec, clock: int, sides: Sequence[Sequence[Entry]]) -> FewSides:
    """What is held, row by row."""
    few = FewSides(spec)
    for number, (side, entries) in enumerate(zip(few.sides, sides, strict=True)):
        for entry in entries:
            side.by_key.setdefault(entry.key, []).append(entry)
            side.dues.append((entry.time + side.lasts, entry.number, entry))
            if entry.time >= clock and not few.at_once:
                few.open.append((number, entry))
        heapify(side.dues)
    return few
