"""A few rows in an interval join: what :class:`~.join_state.JoinState` does to a batch at once, one row after another.

While batches are small the rows of both sides are in dictionaries by key, as they came; a large batch makes columns of them
again. Inner joins within an interval are done here, the others as large batches. The results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

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
        self.spec = spec
        self.side = side
        self.by_key: dict[Key, list[Entry]] = {}
        self.dues: list[tuple[int, int, Entry]] = []

    def add(self, entry: Entry) -> None:
        self.by_key.setdefault(entry.key, []).append(entry)
        heappush(self.dues, (self.spec.last_instant(self.side, entry.time), entry.number, entry))

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


class Came(NamedTuple):
    """A batch of one side: what is taken in, the place of each in the batch, the watermark after each row, late rows."""

    new: list[Entry]
    places: list[int]
    reached: list[int]
    watermark: int
    late: list[Row]


Pair = tuple[tuple[int, ...], Entry, Entry]  # when, among those of the batch; left, right


class FewSides:
    """Both sides of a join, row by row, and what came with the rows that no watermark has reached yet (``open``)."""

    def __init__(self, spec: JoinSpec) -> None:
        self.sides = (Side(spec, 0), Side(spec, 1))
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
        self.make = output.relation.row._make
        self.places = [
            (source.sides[0], relations[source.sides[0]].index_of[source.column]) for source in output.sources
        ]

    def slide(self, state: JoinState, few: FewSides, rows: Sequence[Sequence[Row]], now_us: int) -> FewJoined | None:
        """What a few rows do; None: one came too late, which is refused."""
        came = [self._arrive(state, side, rows[side]) for side in (0, 1)]
        if came[0] is None or came[1] is None:
            return None
        arrived = came[0], came[1]
        watermarks = [max(one.watermark, mark) for one, mark in zip(arrived, state.marks, strict=True)]
        spoke = [len(rows[side]) > 0 or state.heard[side] is None for side in (0, 1)]
        heard = [now_us if spoke[side] else state.heard[side] for side in (0, 1)]
        if self.spec.mode == "best_effort":
            clock = max(state.clock, min(state.marks), *(one.reached[-1] for one in arrived if one.reached))
            pairs = self._at_once(state, few, arrived)
        else:
            clock = state._joint(watermarks, heard, now_us)
            pairs = self._within(state, few, arrived, clock) if clock > state.clock else []
        pairs.sort(key=lambda pair: pair[0])
        results = [
            self.make([(right if side else left).row[place] for side, place in self.places]) for _, left, right in pairs
        ]
        return FewJoined(few, arrived, watermarks, heard, clock, pairs, results)

    def _arrive(self, state: JoinState, side: int, rows: Sequence[Row]) -> Came | None:
        spec, watermark, came = self.spec, state.watermarks[side], state.came[side]
        best, time_of, key_of = spec.mode == "best_effort", self.time_of[side], self.key_of[side]
        found = Came([], [], [], 0, [])
        for place, row in enumerate(rows):
            at = time_of(row)
            bound = watermark if best else max(watermark, state.clock)
            watermark = max(watermark, at - spec.delay)
            found.reached.append(watermark)
            key = key_of(row)
            if at < bound:
                if spec.late == "raise":
                    return None
                found.late.append(row)
                at = bound
            if None not in key and (spec.late == "adjust" or not found.late or found.late[-1] is not row):
                found.new.append(Entry(key, at, came + place, row))
                found.places.append(place)
        return found._replace(watermark=watermark)

    def _at_once(self, state: JoinState, few: FewSides, came: Sequence[Came]) -> list[Pair]:
        """Each new row, the left ones first, with everything that came before it and is still held."""
        spec, clock = self.spec, state.clock
        pairs: list[Pair] = []
        before = []
        for reached in (*came[0].reached, *came[1].reached):
            before.append(clock)
            clock = max(clock, reached)
        for side in (0, 1):
            reach = (spec.after, spec.before) if side else (spec.before, spec.after)
            lasts = spec.after if side else spec.before  # of the other side's rows: how much later a partner may be
            first = len(came[0].reached) if side else 0
            for entry, place in zip(came[side].new, came[side].places, strict=True):
                when, low, high = first + place, entry.time - reach[0], entry.time + reach[1]
                theirs = few.sides[1 - side].by_key.get(entry.key, [])
                if side:
                    theirs = [*theirs, *(other for other in came[0].new if other.key == entry.key)]
                for other in theirs:
                    if low <= other.time <= high and other.time + lasts >= before[when]:
                        pair = (other, entry) if side else (entry, other)
                        pairs.append(((when, other.number), *pair))
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


class FewJoined(NamedTuple):
    """What a few rows do to a join."""

    few: FewSides
    came: tuple[Came, Came]
    watermarks: list[int]
    heard: list[Any]
    clock: int
    pairs: list[Pair]
    results: list[Any]

    def store(self) -> None:
        """Keep the rows that can still be in a result."""
        for _, left, right in self.pairs:
            left.matched = right.matched = True
        for (
            side,
            came,
        ) in zip(self.few.sides, self.came, strict=True):
            for entry in came.new:
                side.add(entry)
            side.drop_before(self.clock)
        opened = [*self.few.open, *((side, entry) for side in (0, 1) for entry in self.came[side].new)]
        self.few.open = [one for one in opened if one[1].time >= self.clock]

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
            side.dues.append((spec.last_instant(number, entry.time), entry.number, entry))
            if entry.time >= clock:
                few.open.append((number, entry))
        heapify(side.dues)
    return few
