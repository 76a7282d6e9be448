"""The state of a join of two streams: the rows of each that can still be in a result."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tidegate.clock import EPOCH
from tidegate.errors import DataError
from tidegate.storage.codec import widened
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation, Row
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.joins import JoinSpec, Output, check_join
from tidegate.streams.windows.declare.kinds import first_window, last_window
from tidegate.streams.windows.state import saving
from tidegate.streams.windows.state.column_state import FEW, LATE_SHOWN
from tidegate.streams.windows.state.columns import Array, Columns, times_of
from tidegate.streams.windows.state.few_join import Entry, FewInJoins, FewJoined, FewSides, few_sides
from tidegate.streams.windows.state.matching import NO_KEY, Found, KeyCodes, matches, spread
from tidegate.streams.windows.state.results import ResultRows, Slide
from tidegate.streams.windows.state.sizes import bytes_of

SMALL_BATCHES = 4  # so many in a row, before a join of many rows turns to taking them in one by one
SPARE_CODES = 1_000  # key codes that may remain although no held row has them


@dataclass(frozen=True)
class Rows:
    """Rows of one side in order of arrival: their times, key codes, numbers in their stream, and whether each has been in
    a match.
    """

    columns: Columns
    times: Array
    codes: Array
    numbers: Array
    matched: Array

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, which: Array) -> Rows:
        if which.dtype == bool and which.all():
            return self
        arrays = (self.times[which], self.codes[which], self.numbers[which], self.matched[which])
        return Rows(self.columns.take(which), *arrays)

    def with_more(self, new: Rows) -> Rows:
        if not len(new) or not len(self):
            return self if len(self) else new
        pairs = zip(self._arrays(), new._arrays(), strict=True)
        return Rows(Columns.joined([self.columns, new.columns]), *map(np.concatenate, pairs))

    def _arrays(self) -> tuple[Array, Array, Array, Array]:
        return self.times, self.codes, self.numbers, self.matched


class Arrival(NamedTuple):
    """A batch of one side: the rows to take in and their places in it; the watermark after each row of the batch (one
    that is not taken in still moves it) and after all; rows that came too late.
    """

    rows: Rows
    places: Array
    reached: Array
    watermark: int
    came: int
    late: list[Row]


class JoinSlide(Slide):
    """One execution's view of a join."""

    __slots__ = ()

    @property
    def added(self) -> Any:
        """The rows that this batch brought, of either stream."""
        return tuple([side.rows if type(side) is ColumnRows else side for side in self._added])

    def shown_each(self, relation: Relation) -> Iterator[Any]:
        """A join is not cut into windows: all that the batch brought, at once."""
        yield self.rows


class FewJoinSlide(JoinSlide):
    """What a few rows do to a join, taken in one by one."""

    __slots__ = ("_joined", "_state")

    windows: Any = ()
    late: Any

    def __init__(self, state: JoinState, rows: Sequence[Sequence[Row]], joined: FewJoined) -> None:
        self._added = rows
        self._state = state
        self._joined = joined
        left, right = joined.came
        self.late = (*left.late, *right.late)
        if joined.results:
            self.results = ResultRows.of_rows(state.output.relation, joined.results)
            self.slid = True
        else:
            self.results, self.slid = state.none, False

    def held_back(self) -> int:
        return self._joined.oldest(self._state)

    def commit(self) -> None:
        state, joined = self._state, self._joined
        left, right = joined.came
        joined.store()
        state.watermarks, state.clock, state.heard = joined.watermarks, joined.clock, joined.heard
        state.came = [state.came[0] + left.rows, state.came[1] + right.rows]
        state.fired += len(joined.results)
        if self.late:
            state.late += len(self.late)
            for stream, side in zip(state.spec.streams, joined.came, strict=True):
                state.late_rows.extend((stream, row) for row in side.late)


class JoinState:
    """The state of one join (of one key of its streams): what execution *i* leaves to execution *i + 1*.

    ``few``: rows that are taken in one by one, at most. ``clock``: the joint watermark of a coordinated join, the larger
    one of a best-effort join. It never goes back.
    """

    few = FEW

    def __init__(self, spec: JoinSpec, left: Relation, right: Relation) -> None:
        check_join(spec, left, right, f"join of {spec.left} and {spec.right}")
        self.spec = spec
        self.relations = (left, right)
        self.output = Output(spec, left, right)
        self.none = ResultRows.of_rows(self.output.relation, [])
        self._keys = [[pair[side] for pair in spec.on] for side in (0, 1)]
        inner = spec.how == "inner" and spec.size is None
        self.few_rows = FewInJoins(spec, self.relations, self.output) if inner else None
        self._begin()

    def fresh(self) -> JoinState:
        """A new state like this one, for another key of the streams."""
        found = copy(self)
        found._begin()
        return found

    def _begin(self) -> None:
        self._codes = KeyCodes()
        self.small_batches = 0  # in a row
        self._few: FewSides | None = None  # then the rows are there
        self._sides = [self._rows(side, ()) for side in (0, 1)]
        self.watermarks = [NEVER, NEVER]
        self.marks = [NEVER, NEVER]  # the last watermark that came with a batch of each side
        self.clock = NEVER
        self.heard: list[int | None] = [None, None]  # when rows of each side last arrived, µs
        self.came = [0, 0]  # rows of each side so far
        self.fired = 0  # results so far
        self.late = 0
        self.late_rows: deque[tuple[str, Row]] = deque(maxlen=LATE_SHOWN)  # with the stream of each

    @property
    def watermark(self) -> int | None:
        """The time up to which results were emitted (or, best effort, rows were dropped); None before there is one."""
        return None if self.clock == NEVER else self.clock

    @property
    def sides(self) -> list[Rows]:
        """The rows of both sides as columns."""
        return self._columns(self._codes)

    @sides.setter
    def sides(self, sides: list[Rows]) -> None:
        self._sides, self._few = sides, None

    def _columns(self, codes: KeyCodes) -> list[Rows]:
        """The same, with codes of one's own where a slide may be under way in another thread: it may give new keys theirs."""
        if self._few is None:
            return self._sides
        found = []
        for number, side in enumerate(self._few.sides):
            entries = side.entries()
            columns = Columns.of_rows(self.relations[number], [entry.row for entry in entries], self._names(number))
            times, numbers, matched = (
                np.array([getattr(entry, name) for entry in entries], kind)
                for name, kind in (("time", "i8"), ("number", "i8"), ("matched", bool))
            )
            found.append(Rows(columns, times, codes.of(columns, self._keys[number]), numbers, matched))
        return found

    # ---- a few rows: see few_join.py

    def _slide_few(self, rows: Sequence[Sequence[Row]], now_us: int) -> JoinSlide | None:
        if self.few_rows is None or not 0 < len(rows[0]) + len(rows[1]) <= self.few:
            self.small_batches = 0
            return None
        self.small_batches += 1
        if self._few is None:
            if self.small_batches < SMALL_BATCHES and self.held() > self.few:
                return None
            self._few = few_sides(self.spec, self.clock, [self._entries(number) for number in (0, 1)])
        one, two = rows
        given = (one.rows if type(one) is ColumnRows else one, two.rows if type(two) is ColumnRows else two)
        joined = self.few_rows.slide(self, self._few, given, now_us)
        return None if joined is None else FewJoinSlide(self, given, joined)

    def _entries(self, number: int) -> list[Entry]:
        """The rows of one side, one by one; only the columns that are needed have their values."""
        side, relation = self._sides[number], self.relations[number]
        columns = {name: side.columns.python(name) for name in side.columns.values}
        nothing = [None] * len(side)
        rows = list(zip(*(columns.get(name, nothing) for name in relation.index_of), strict=True))
        assert self.few_rows is not None
        key_of = self.few_rows.key_of[number]
        told = zip(rows, side.times.tolist(), side.numbers.tolist(), side.matched.tolist(), strict=True)
        return [Entry(key_of(row), time, place, row, matched) for row, time, place, matched in told]

    # ---- taking in

    def slide(
        self, rows: Sequence[Sequence[Row]], now_us: int = 0, marks: Sequence[int | None] = (None, None)
    ) -> JoinSlide:
        """What taking in a batch of each side (no rows: none), and then ``marks``, would do. Nothing changes until it is
        committed.
        """
        slide = self._slide_few(rows, now_us) if marks[0] is None and marks[1] is None else None
        if slide is not None:
            return slide
        arrivals = [self._arrive(side, rows[side]) for side in (0, 1)]
        told = [known if mark is None else max(known, mark) for known, mark in zip(self.marks, marks, strict=True)]
        watermarks = [max(arrival.watermark, mark) for arrival, mark in zip(arrivals, told, strict=True)]
        sides = [held.with_more(arrival.rows) for held, arrival in zip(self.sides, arrivals, strict=True)]
        spoke = [len(rows[side]) > 0 or marks[side] is not None or self.heard[side] is None for side in (0, 1)]
        heard = [now_us if spoke[side] else self.heard[side] for side in (0, 1)]
        found = Found()
        if self.spec.mode == "best_effort":  # a side that has ended says nothing about the other one
            clock = max(self.clock, min(told), *(int(a.reached[-1]) for a in arrivals if len(a.reached)))
            sides = self._match_at_once(sides, arrivals, clock, found)
        else:
            clock = self._joint(watermarks, heard, now_us)
            if clock > self.clock:
                coordinated = self._match_within if self.spec.size is None else self._match_in_windows
                sides = coordinated(sides, clock, found)
        results = self._results(sides, found)
        late = [(self.spec.streams[side], row) for side in (0, 1) for row in arrivals[side].late]
        kept = [side.take(self.spec.last_instant(number, side.times) >= clock) for number, side in enumerate(sides)]

        def commit() -> None:
            self.sides = kept
            self.watermarks, self.marks = watermarks, told
            self.clock = clock
            self.heard = heard
            self.came = [arrival.came for arrival in arrivals]
            self.fired += len(results)
            self.late += len(late)
            self.late_rows.extend(late)
            if len(self._codes) > 2 * self.held() + SPARE_CODES:
                self._number_keys_anew()

        held_back = partial(self._held_back, kept, watermarks, clock)
        return JoinSlide(rows, [], results, len(results), [row for _, row in late], commit, held_back)

    def _held_back(self, sides: Sequence[Rows], watermarks: Sequence[int], clock: int) -> int:
        """The time before which no row of a result to come lies, and no window of one begins."""
        reached = clock if self.spec.mode == "coordinated" else min(watermarks)
        if reached in (NEVER, END):
            return reached
        oldest = min([reached, *(int(side.times.min()) for side in sides if len(side))])
        if self.spec.size is None:
            return oldest
        return int(min(oldest, first_window(oldest, self.spec.size, self.spec.slide) * self.spec.slide))

    def _rows(self, side: int, rows: Sequence[Row], came: int = 0) -> Rows:
        columns = Columns.of_rows(self.relations[side], rows, self._names(side))
        times = times_of(columns[(self.spec.left_time, self.spec.right_time)[side]])
        codes = self._codes.of(columns, self._keys[side])
        return Rows(columns, times, codes, np.arange(came, came + len(rows)), np.zeros(len(rows), bool))

    def _names(self, side: int) -> list[str]:
        return self.output.needed[side]

    def _arrive(self, side: int, rows: Sequence[Row]) -> Arrival:
        spec, watermark, came = self.spec, self.watermarks[side], self.came[side]
        new = self._rows(side, rows, came)
        if not len(new):
            nothing = np.empty(0, "i8")
            return Arrival(new, nothing, nothing, watermark, came, [])
        reached = np.maximum.accumulate(np.concatenate([[watermark], new.times - spec.delay]))
        bound = reached[:-1] if spec.mode == "best_effort" else np.maximum(reached[:-1], self.clock)
        late = new.times < bound
        keep = np.ones(len(new), bool)
        if late.any():
            if spec.late == "raise":
                raise self._too_late(side, new.times[late], bound[late])
            if spec.late == "adjust":
                new = replace(new, times=np.where(late, bound, new.times))
            else:
                keep = ~late
        if not spec.outer[side]:
            keep &= new.codes != NO_KEY
        if spec.size is not None:  # between hopping windows there are gaps
            keep &= first_window(new.times, spec.size, spec.slide) <= last_window(new.times, spec.slide)
        told = [rows[i] for i in np.flatnonzero(late).tolist()]
        return Arrival(new.take(keep), np.flatnonzero(keep), reached[1:], int(reached[-1]), came + len(new), told)

    def _too_late(self, side: int, times: Array, watermarks: Array) -> DataError:
        stream = self.spec.streams[side]
        return DataError(
            f"{len(times)} row(s) of {stream} came too late for the {self.spec}: the first is "
            f"{int(watermarks[0] - times[0])} {'µs' if self.spec.timed else 'units'} behind the watermark. Allow more with "
            f"delay=, or let late='drop' or 'adjust' deal with it",
            relation=stream,
            column=(self.spec.left_time, self.spec.right_time)[side],
        )

    def _joint(self, watermarks: list[int], heard: list[Any], now_us: int) -> int:
        """The smaller watermark of the sides that are not idle; it never goes back."""
        idle = self.spec.idle_us
        awake = [w for w, at in zip(watermarks, heard, strict=True) if idle is None or now_us - at <= idle]
        return max([self.clock, *([min(awake)] if awake else [])])

    # ---- coordinated

    def _match_within(self, sides: list[Rows], clock: int, found: Found) -> list[Rows]:
        """Matches whose later row the joint watermark has passed with this batch, and rows that found no match."""
        spec = self.spec
        left, right = sides
        ready = [np.flatnonzero(rows.times < clock) for rows in sides]
        new = [which[rows.times[which] >= self.clock] for rows, which in zip(sides, ready, strict=True)]
        old_right = ready[1][right.times[ready[1]] < self.clock]
        matched = [rows.matched.copy() for rows in sides]
        for mine, theirs in ((ready[0], new[1]), (new[0], old_right)):
            times = left.times[mine]
            i, j = matches(
                left.codes[mine], times - spec.before, times + spec.after, right.codes[theirs], right.times[theirs]
            )
            i, j = mine[i], theirs[j]
            matched[0][i] = matched[1][j] = True
            at = np.maximum(left.times[i], right.times[j])
            found.add(i, j, 0, at, 0, left.times[i], left.numbers[i], right.times[j], right.numbers[j])
        sides = [replace(rows, matched=flags) for rows, flags in zip(sides, matched, strict=True)]
        for side, rows in enumerate(sides):
            if spec.outer[side]:
                last = spec.last_instant(side, rows.times)
                alone = np.flatnonzero((last < clock) & ~rows.matched)
                place = (-1, alone) if side else (alone, -1)
                found.add(*place, 0, last[alone], 1 + side, rows.times[alone], rows.numbers[alone], 0, 0)
        return sides

    def _match_in_windows(self, sides: list[Rows], clock: int, found: Found) -> list[Rows]:
        """Everything in the windows whose end the joint watermark has reached with this batch."""
        spec = self.spec
        assert spec.size is not None
        fresh, done = (self.clock - spec.size) // spec.slide + 1, (clock - spec.size) // spec.slide
        which, windows = [], []
        for rows in sides:
            first = np.maximum(first_window(rows.times, spec.size, spec.slide), fresh)
            last = np.minimum(last_window(rows.times, spec.slide), done)
            row, window = spread(first, last)
            which.append(row)
            windows.append(window)
        distinct, places = np.unique(np.concatenate(windows), return_inverse=True)
        codes = []
        for rows, row, place in zip(sides, which, np.split(places, [len(which[0])]), strict=True):
            own = rows.codes[row]
            codes.append(np.where(own == NO_KEY, NO_KEY, own * len(distinct) + place))
        nothing = [np.zeros(len(code), "i8") for code in codes]
        i, j = matches(codes[0], nothing[0], nothing[0], codes[1], nothing[1])
        left, right = sides
        one, two, window = which[0][i], which[1][j], windows[0][i]
        end = window * spec.slide + spec.size
        found.add(one, two, window, end, 0, left.times[one], left.numbers[one], right.times[two], right.numbers[two])
        for side, (rows, partners) in enumerate(zip(sides, (i, j), strict=True)):
            if spec.outer[side]:
                alone = np.ones(len(which[side]), bool)
                alone[partners] = False
                row, window = which[side][alone], windows[side][alone]
                lone: tuple[Any, Any] = (-1, row) if side else (row, -1)
                end = window * spec.slide + spec.size
                found.add(*lone, window, end, 1 + side, rows.times[row], rows.numbers[row], 0, 0)
        return sides

    # ---- best effort

    def _match_at_once(self, sides: list[Rows], arrivals: list[Arrival], clock: int, found: Found) -> list[Rows]:
        """Each new row, the left ones first, with everything that came before it and is still held."""
        spec = self.spec
        after = np.maximum.accumulate(np.concatenate([[self.clock], *(arrival.reached for arrival in arrivals)]))
        before, after = after[:-1], after[1:]
        held = [len(rows) - len(arrival.rows) for rows, arrival in zip(sides, arrivals, strict=True)]
        steps = [arrivals[0].places, len(arrivals[0].reached) + arrivals[1].places]  # when each new row comes
        matched = [rows.matched.copy() for rows in sides]
        known = [len(sides[0]), held[1]]  # how much of a side is held when the other side's rows come
        for side in (0, 1):
            mine, theirs = sides[side], sides[1 - side]
            new = np.arange(held[side], len(mine))
            times = mine.times[new]
            low, high = self._reach(side, times)
            i, j = matches(mine.codes[new], low, high, theirs.codes[: known[1 - side]], theirs.times[: known[1 - side]])
            when = steps[side][i]
            remembered = spec.last_instant(1 - side, theirs.times[j]) >= before[when]
            i, j, when = i[remembered], j[remembered], when[remembered]
            window = np.zeros(len(i), "i8")
            if spec.size is not None:
                latest = np.maximum(np.maximum(times[i], theirs.times[j]), before[when])
                first = first_window(latest, spec.size, spec.slide)
                pair, window = spread(first, last_window(np.minimum(times[i], theirs.times[j]), spec.slide))
                i, j, when = i[pair], j[pair], when[pair]
            matched[side][new[i]] = matched[1 - side][j] = True
            pairs = (j, new[i]) if side else (new[i], j)
            found.add(*pairs, window, when, 0, theirs.numbers[j], window, 0)
        for side, rows in enumerate(sides):
            if spec.outer[side]:
                last = spec.last_instant(side, rows.times)
                alone = np.flatnonzero((last < clock) & ~matched[side])
                came = np.concatenate([np.zeros(held[side], "i8"), steps[side]])
                when = np.maximum(np.searchsorted(after, last[alone], "right"), came[alone])
                place = (-1, alone) if side else (alone, -1)
                found.add(*place, 0, when, 1, last[alone], side, rows.numbers[alone])
        return [replace(rows, matched=flags) for rows, flags in zip(sides, matched, strict=True)]

    def _reach(self, side: int, times: Array) -> tuple[Array, Array]:
        """The times that partners of rows of this side can have."""
        spec = self.spec
        if spec.size is not None:
            return times - spec.size + 1, times + spec.size - 1
        return (times - spec.after, times + spec.before) if side else (times - spec.before, times + spec.after)

    # ---- results

    def _results(self, sides: list[Rows], found: Found) -> ResultRows:
        ordered = found.ordered()
        if ordered is None:
            return self.none
        left, right, windows = ordered
        columns: list[list[Any]] = []
        if self.spec.size is not None:
            starts = (windows * self.spec.slide).tolist()
            columns = [[self._bound(at) for at in starts], [self._bound(at + self.spec.size) for at in starts]]
        values = [_values(rows.columns, which) for rows, which in zip(sides, (left, right), strict=True)]
        for source in self.output.sources:
            if len(source.sides) == 1:
                columns.append(values[source.sides[0]][source.column])
            else:
                pairs = zip(values[0][source.column], values[1][source.column], left.tolist(), strict=True)
                columns.append([b if at < 0 else a for a, b, at in pairs])
        rows = list(map(self.output.relation.row._make, zip(*columns, strict=True)))
        return ResultRows.of_rows(self.output.relation, rows)

    def _bound(self, at: int) -> Any:
        return EPOCH + dt.timedelta(microseconds=at) if self.spec.timed else at

    def still(self) -> JoinSlide:
        """Nothing arrived on either stream: nothing fires, nothing changes."""
        held_back = partial(self._held_back, self.sides, self.watermarks, self.clock)
        return JoinSlide(((), ()), [], self.none, 0, [], lambda: None, held_back)

    # ---- what is held

    def held(self) -> int:
        """How many rows are kept for results that are still possible."""
        return sum(map(len, self._sides)) if self._few is None else self._few.held()

    def bytes_held(self) -> int:
        """The memory that everything kept takes."""
        return bytes_of(self._columns(KeyCodes()), self._codes.codes, self.late_rows)

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says about it in words."""
        return {"rows": self.held()}

    def begin_after(self, stands: Any) -> None:
        """No join begins anew: nobody knows which partners the rows after that had before it."""
        raise NotImplementedError

    def contents(self) -> Any:
        """What is held, as plain values that can be compared."""
        rows = [
            list(
                zip(
                    side.columns.tuples(),
                    side.times.tolist(),
                    side.numbers.tolist(),
                    side.matched.tolist(),
                    strict=True,
                )
            )
            for side in self._columns(KeyCodes())
        ]
        return rows, list(self.watermarks), list(self.marks), list(self.heard), list(self.came)

    def _number_keys_anew(self) -> None:
        """Drop the keys that no row has any more."""
        self._codes = KeyCodes()
        self.sides = [
            replace(side, codes=self._codes.of(side.columns, self._keys[number]))
            for number, side in enumerate(self.sides)
        ]

    # ---- checkpoints

    def save(self) -> bytes:
        """The state, for a checkpoint."""
        late = [[self.spec.streams.index(stream), tuple(row)] for stream, row in self.late_rows]
        head = [self.watermarks, self.clock, self.heard, self.came, self.fired, self.late, late, self.marks]
        rows = [
            saving.pack([side.columns, side.times, side.numbers, side.matched]) for side in self._columns(KeyCodes())
        ]
        return msgspec.msgpack.encode([saving.pack(head), *rows])

    def restore(self, saved: bytes) -> None:
        """Become the saved state."""
        head, *rows = msgspec.msgpack.decode(saved)
        told = saving.unpack(head, self.relations[0], ())
        self.watermarks, self.clock, self.heard, self.came, self.fired, self.late, late, *marks = told
        self.marks = marks[0] if marks else [NEVER, NEVER]  # none: saved by a release that did not have them
        self.late_rows.extend((self.spec.streams[side], widened(self.relations[side], row)) for side, row in late)
        sides = []
        for side, packed in enumerate(rows):
            columns, times, numbers, matched = saving.unpack(packed, self.relations[side], self._names(side))
            sides.append(Rows(columns, times, self._codes.of(columns, self._keys[side]), numbers, matched))
        self.sides = sides


def widened_join(saved: bytes, added: Sequence[Sequence[tuple[Column, Any]]]) -> bytes:
    """Saved state of a join whose streams got these columns at their ends since; see :func:`saving.widened`."""
    head, *rows = msgspec.msgpack.decode(saved)
    return msgspec.msgpack.encode([head, *map(saving.widened, rows, added)])


def _values(columns: Columns, which: Array) -> dict[str, list[Any]]:
    """These rows as lists of Python values by column, None where there is no row (-1)."""
    if not len(columns):
        return {name: [None] * len(which) for name in columns.values}
    taken = columns.take(which)
    values = {name: taken.python(name) for name in columns.values}
    if (which < 0).any():
        there = (which >= 0).tolist()
        values = {n: [v if ok else None for v, ok in zip(c, there, strict=True)] for n, c in values.items()}
    return values
