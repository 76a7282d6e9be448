"""The state of a pattern: the partial matches that are open, by key; a key without any holds nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from sys import getsizeof
from typing import Any

import msgspec
import numpy as np

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Relation, Row
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.patterns.declare import PatternSpec
from tidegate.streams.windows.patterns.matches import PatternSlide
from tidegate.streams.windows.patterns.plan import Node, PatternPlan, nodes
from tidegate.streams.windows.patterns.taking import Due, Run, Runs, Taking
from tidegate.streams.windows.state import saving
from tidegate.streams.windows.state.column_state import FEW, LateRows, late_with
from tidegate.streams.windows.state.columns import Columns, times_of
from tidegate.streams.windows.state.keys import sort_key
from tidegate.streams.windows.state.results import ResultRows
from tidegate.streams.windows.state.sizes import bytes_of
from tidegate.streams.windows.state.times import EventTime

SPARE_DUES = 1_000  # dues of runs that are gone, before they are looked through


class PatternState:
    """The state of one pattern (of one key of its streams): what execution *i* leaves to execution *i + 1*."""

    def __init__(self, spec: PatternSpec, relations: Mapping[str, Relation]) -> None:
        self.spec = spec
        self.plan = PatternPlan(spec, relations)
        self._begin()

    def fresh(self) -> PatternState:
        """A new state like this one, for another key of the streams."""
        found = copy(self)
        found._begin()
        return found

    def _begin(self) -> None:
        relation = self.plan.relation
        timed: Any = self.spec
        self.time = EventTime(timed, relation, relation.column_names) if self.spec.on is not None else None
        self.runs: dict[Any, Runs] = {}
        self.dues: deque[Due] = deque()
        self.seen = 0  # rows so far
        self.fired = 0  # matches so far
        self.late = 0
        self._late_rows: LateRows = ()
        self.marks = [NEVER] * len(self.spec.streams)
        self._look_through = SPARE_DUES

    @property
    def watermark(self) -> int | None:
        """The time before which no row is expected; None where time does not matter, or before there is one."""
        return None if self.time is None or self.time.watermark == NEVER else self.time.watermark

    @property
    def late_rows(self) -> Any:
        """The newest rows that came too late; of several streams each with its stream."""
        if len(self.spec.streams) == 1:
            return self._late_rows
        return [(row[-1], self.plan.shown(row)) for row in self._late_rows]

    # ---- taking in

    def slide(self, rows: Any, now_us: int = 0, mark: Any = None) -> PatternSlide:
        """What taking in a batch (of several streams: one of each), and then the watermark ``mark``, would do. Nothing changes
        until the slide is committed.
        """
        given, several = rows, len(self.spec.streams) > 1
        marks = self.marks
        if several:
            marks = [known if new is None else max(known, new) for known, new in zip(marks, mark or marks, strict=True)]
            mark = min(marks) if mark is not None else None
            rows = [widen(row) for side, widen in zip(rows, self.plan.widened, strict=True) for row in _python(side)]
        return self._taken(given, self._arrive(rows, now_us, mark), marks)

    def _taken(self, given: Any, arrived: Arrived, marks: list[int]) -> PatternSlide:
        """What these rows do."""
        taking = Taking(self.plan, self.runs, self.dues, self.seen)
        taking.rows(arrived.rows, arrived.times, self.plan.hits(arrived.rows))
        if arrived.watermark != NEVER:
            taking.expire(arrived.watermark)
        return self._slide(given, taking, arrived, marks)

    def _arrive(self, rows: Any, now_us: int, mark: int | None) -> Arrived:
        """The rows that are taken in, in order, and what that does to time."""
        time = self.time
        if time is None:
            return Arrived(_python(rows), [0] * len(rows), NEVER, [], None)
        if mark is None and 0 < len(rows) <= FEW:
            few = time.few(_python(rows), now_us)
            if few is not None:
                return Arrived(few.rows, few.times, few.watermark, list(few.late), None)
        times = self._in_order(rows) if mark is None else None
        if times is not None:
            return Arrived(_python(rows), times, times[-1], [], None)
        columns = Columns.of_rows(self.plan.relation, rows)
        step = time.step(columns, now_us, mark)
        late = [] if step.late is None else [_python(rows)[place] for place in step.late.tolist()]
        taken = _python(rows) if step.columns is columns else step.columns.rows
        return Arrived(taken, step.times.tolist(), step.watermark, late, step)

    def _in_order(self, rows: Any) -> list[int] | None:
        """The times of rows that are in order and wait for nothing; None: they have to be put in order."""
        time = self.time
        assert time is not None
        if not time.by_rows or not len(rows) or time.waiting.length:
            return None
        on = str(self.spec.on)
        times: list[int] = times_of(Columns.of_rows(self.plan.relation, rows, [on])[on]).tolist()
        return times if times[0] >= time.watermark and times == sorted(times) else None

    def _slide(self, given: Any, taking: Taking, arrived: Arrived, marks: list[int]) -> PatternSlide:
        plan = self.plan
        first = self.fired + 1
        results = [plan.result(node, number) for number, node in enumerate(taking.matched, first)]
        late = [plan.shown(row) for row in arrived.late]

        def commit() -> None:
            for key, runs in taking.changed.items():
                if runs:
                    self.runs[key] = runs
                else:
                    self.runs.pop(key, None)
            for _ in range(taking.passed):
                self.dues.popleft()
            self.dues.extend(taking.left())
            self.seen = taking.seen
            self.fired += len(results)
            self._commit_time(arrived, marks, late)
            if not self.runs:
                self.dues.clear()
            elif len(self.dues) > self._look_through:
                self.dues = deque(_dues(self.runs, self.spec.size))
                self._look_through = 2 * len(self.dues) + SPARE_DUES

        held_back = partial(self._held_back, taking, arrived.watermark)
        found = ResultRows.of_rows(plan.results, results)
        return PatternSlide(given, plan, taking.matched, first, taking.over, found, late, commit, held_back)

    def _commit_time(self, arrived: Arrived, marks: list[int], late: Sequence[Row]) -> None:
        self.marks = marks
        if arrived.step is not None:
            arrived.step.commit(self.time)
        elif self.time is not None:
            self.time.watermark = arrived.watermark
        if late:
            self.late += len(late)
            self._late_rows = late_with(self._late_rows, arrived.late)

    def _held_back(self, taking: Taking, watermark: int) -> int:
        """The time before which no match that is still to come begins."""
        if watermark in (NEVER, END):
            return watermark
        if self.spec.size is None:
            keys = {*self.runs, *taking.changed}
            return min([watermark, *(run[2] for key in keys for run in taking.runs(key))])
        for due, number, key in taking.open_dues():
            if any(run[1] == number for run in taking.runs(key)):
                return min(watermark, due - self.spec.size)
        return watermark

    def still(self) -> PatternSlide:
        """Nothing arrived on the pattern's streams: nothing changes."""
        taking = Taking(self.plan, self.runs, self.dues, self.seen)
        watermark = NEVER if self.time is None else self.time.watermark
        several = len(self.spec.streams) > 1
        nothing: Any = ((),) * len(self.spec.streams) if several else ()
        none = ResultRows.of_rows(self.plan.results, [])
        held_back = partial(self._held_back, taking, watermark)
        return PatternSlide(nothing, self.plan, (), 1, (), none, (), lambda: None, held_back)

    # ---- what is held

    def held(self) -> int:
        """How many partial matches are open, and rows wait for their time."""
        waiting = 0 if self.time is None else len(self.time.waiting)
        return sum(map(len, list(self.runs.values()))) + waiting

    def bytes_held(self) -> int:
        """The memory that everything kept takes."""
        runs = [run for runs in list(self.runs.values()) for run in runs]
        found = _all_nodes(runs)
        rows = list({id(node[3]): node[3] for node in found}.values())
        own = sum(map(getsizeof, found)) + sum(map(getsizeof, runs)) + sum(map(getsizeof, list(self.runs.values())))
        waiting = () if self.time is None else (self.time.waiting, self.time.times)
        keys = list(self.runs)
        slots = [run[4] for run in runs]
        dues = sum(map(getsizeof, list(self.dues))) + getsizeof(self.dues)
        return own + dues + getsizeof(self.runs) + bytes_of(rows, keys, slots, self._late_rows, *waiting)

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says about it in words."""
        if self.time is None:
            return {"rows": self.held()}
        return {"rows": self.held(), "watermark": self.time.watermark, "reached": self.time.reached()}

    def begin_after(self, stands: Mapping[str, Any]) -> None:
        """Begin with the rows that come from now on: what had begun before is forgotten."""
        if self.time is not None and stands.get("watermark", NEVER) != NEVER:
            self.time.watermark = stands["watermark"]

    def contents(self) -> Any:
        """What is held, as plain values that can be compared."""
        single = len(self.spec.by) == 1
        keyed = {(key,) if single else key: runs for key, runs in self.runs.items()}
        return {
            key: sorted(([(n, p, t, tuple(row)) for _, n, p, row, t in nodes(run[3])], run[5]) for run in keyed[key])
            for key in sorted(keyed, key=sort_key)
        }

    # ---- checkpoints: every row and every node once, however many runs share them

    def save(self) -> bytes:
        """The state, for a checkpoint."""
        runs = [run for runs in self.runs.values() for run in runs]
        found = _all_nodes(runs)
        place = {id(node): number for number, node in enumerate(found)}
        rows = list({id(node[3]): node[3] for node in found}.values())
        row_place = {id(row): number for number, row in enumerate(rows)}
        links = np.array(
            [[-1 if n[0] is None else place[id(n[0])], n[1], n[2], row_place[id(n[3])], n[4]] for n in found], "i8"
        ).reshape(-1, 5)
        told = [[first, began, place[id(node)], broken] for _, first, began, node, _, broken in runs]
        waiting = [] if self.time is None else list(self.time.waiting.rows)
        sides = [self._of_streams(kind) for kind in (rows, waiting, list(self._late_rows))]
        times = None if self.time is None else [self.time.watermark, self.time.times]
        head = [self.seen, self.fired, self.late, self.marks, times, links, told, [order for order, _ in sides]]
        packed = [saving.pack([part[number] for _, part in sides]) for number in range(len(self.spec.streams))]
        if len(packed) == 1:
            return saving.pack([head, *(part[0] for _, part in sides)])
        return msgspec.msgpack.encode([saving.pack(head), *packed])

    def _of_streams(self, rows: Sequence[Row]) -> tuple[list[int], list[Columns]]:
        """Rows as they came, stream by stream, and the stream of each."""
        plan = self.plan
        if len(plan.relations) == 1:
            return [], [Columns.of_rows(plan.relation, rows)]
        number = {stream: place for place, stream in enumerate(self.spec.streams)}
        order = [number[row[-1]] for row in rows]
        parts: list[list[Row]] = [[] for _ in plan.relations]
        for row, place in zip(rows, order, strict=True):
            parts[place].append(plan.shown(row))
        return order, [Columns.of_rows(one, part) for one, part in zip(plan.relations, parts, strict=True)]

    def restore(self, saved: bytes) -> None:
        """Become the saved state."""
        plan = self.plan
        if len(plan.relations) == 1:
            head, *columns = saving.unpack(saved, plan.relation, plan.relation.column_names)
            rows, waiting, late = [list(one.rows) for one in columns]
        else:
            first, *packed = msgspec.msgpack.decode(saved)
            head = saving.unpack(first, plan.relation, ())
            sides = [
                saving.unpack(part, one, one.column_names) for part, one in zip(packed, plan.relations, strict=True)
            ]
            rows, waiting, late = [
                self._together(order, [side[kind].rows for side in sides]) for kind, order in enumerate(head[7])
            ]
        self.seen, self.fired, self.late, self.marks, times, links, told, _ = head
        self._late_rows = late_with((), late)
        if self.time is not None and times is not None:
            self.time.watermark, self.time.times = times
            self.time.waiting = Columns.of_rows(plan.relation, waiting)
        self._restore_runs(rows, links.tolist(), told)

    def _together(self, order: Sequence[int], sides: Sequence[Sequence[Row]]) -> list[Row]:
        """Rows of all streams in the order that they had."""
        each = [iter(side) for side in sides]
        return [self.plan.widened[place](next(each[place])) for place in order]

    def _restore_runs(self, rows: Sequence[Row], links: Sequence[Sequence[int]], told: Sequence[Sequence[int]]) -> None:
        plan = self.plan
        made: list[Node] = []
        slots: list[Any] = []
        for before, number, position, row, at in links:  # a node comes after the one before it
            made.append((None if before < 0 else made[before], number, position, rows[row], at))
            earlier = plan.begin if before < 0 else slots[before]
            update = plan.updates[position]
            slots.append(earlier if update is None else update(earlier, rows[row]))
        self.runs = {}
        found: dict[Any, list[Run]] = {}
        for first, began, place, broken in told:
            node = made[place]
            key = () if plan.key_of is None else plan.key_of(node[3])
            found.setdefault(key, []).append((node[2], first, began, node, slots[place], broken))
        self.runs.update(found)
        self.dues = deque(_dues(self.runs, self.spec.size))


class Arrived:
    """Rows in order with their times; the watermark after them; those that came too late; how to commit it."""

    __slots__ = ("late", "rows", "step", "times", "watermark")

    def __init__(self, rows: Sequence[Row], times: Sequence[int], watermark: int, late: list[Row], step: Any) -> None:
        self.rows = rows
        self.times = times
        self.watermark = watermark
        self.late = late
        self.step = step


def _python(rows: Any) -> Sequence[Row]:
    return rows.rows if isinstance(rows, (ColumnRows, Columns)) else rows


def _all_nodes(runs: Sequence[Run]) -> list[Node]:
    """The nodes of all runs, each once and after the one before it."""
    known: set[int] = set()
    found: list[Node] = []
    for run in runs:
        fresh = []
        node: Any = run[3]
        while node is not None and id(node) not in known:
            known.add(id(node))
            fresh.append(node)
            node = node[0]
        found += reversed(fresh)
    return found


def _dues(runs: Mapping[Any, Runs], size: int | None) -> list[Due]:
    """When the runs are due, in order."""
    if size is None:
        return []
    found = {(run[2] + size, run[1]): key for key, mine in runs.items() for run in mine}
    return [(due, first, found[due, first]) for due, first in sorted(found)]
