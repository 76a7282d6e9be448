"""Joins of two streams by their definitions, row by row and as slowly as you like."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.streams.windows.declare.joins import JoinSpec

NEVER = -(10**15)
Event = tuple[list[Any], list[Any], int]  # rows of the left stream, of the right one, and when they come in (µs)


class Held(NamedTuple):
    time: int
    number: int
    row: Any


class Result(NamedTuple):
    left: Any
    right: Any
    window: int | None = None


def key_of(spec: JoinSpec, side: int, row: Any) -> tuple[Any, ...] | None:
    key = tuple(getattr(row, pair[side]) for pair in spec.on)
    return None if None in key else key


def equal(spec: JoinSpec, left: Any, right: Any) -> bool:
    key = key_of(spec, 0, left)
    return key is not None and key == key_of(spec, 1, right)


def windows_of(spec: JoinSpec, time: int) -> list[int]:
    assert spec.size is not None
    first = (time - spec.size) // spec.slide
    return [w for w in range(first, time // spec.slide + 1) if w * spec.slide <= time < w * spec.slide + spec.size]


class Naive:
    """What the definitions in ``joins`` say, after any number of events."""

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.watermarks = [NEVER, NEVER]
        self.joint = NEVER
        self.rows: list[list[Held]] = [[], []]
        self.came = [0, 0]
        self.heard: list[int | None] = [None, None]
        self.late: list[Any] = []
        self.at_once: list[Result] = []
        self._matched: set[tuple[int, int]] = set()
        self._gone: set[tuple[int, int]] = set()

    def take(self, event: Event) -> None:
        spec = self.spec
        joint = self.joint
        for side in (0, 1):
            for row in event[side]:
                self._take_row(side, row, joint)
            if event[side] or self.heard[side] is None:
                self.heard[side] = event[2]
        awake = [
            w
            for w, at in zip(self.watermarks, self.heard, strict=True)
            if spec.idle_us is None or event[2] - (at or 0) <= spec.idle_us
        ]
        if awake:
            self.joint = max(self.joint, min(awake))

    def _take_row(self, side: int, row: Any, joint: int) -> None:
        spec = self.spec
        time, number = row.t, self.came[side]
        self.came[side] += 1
        bound = self.watermarks[side]
        if spec.mode == "coordinated":
            bound = max(bound, joint)
        clock = max(self.watermarks)
        self.watermarks[side] = max(self.watermarks[side], time - spec.delay)
        keep = True
        if time < bound:
            self.late.append(row)
            time, keep = bound, spec.late == "adjust"
        if keep:
            held = Held(time, number, row)
            if spec.mode == "best_effort":
                self._match_now(side, held, clock)
            self.rows[side].append(held)
        if spec.mode == "best_effort":
            self._forget()

    # ---- coordinated: everything that can be a result, once the joint watermark is past it

    def results(self) -> list[Result]:
        if self.spec.mode == "best_effort":
            return self.at_once
        found = self._within() if self.spec.size is None else self._in_windows()
        return [result for order, result in sorted(found, key=lambda f: f[0]) if order[0] < self.joint]

    def _within(self) -> list[tuple[Any, Result]]:
        spec = self.spec
        found: list[tuple[Any, Result]] = []
        matched: set[tuple[int, int]] = set()
        for one in self.rows[0]:
            for two in self.rows[1]:
                if equal(spec, one.row, two.row) and -spec.before <= two.time - one.time <= spec.after:
                    order = (max(one.time, two.time), 0, one.time, one.number, two.time, two.number)
                    found.append((order, Result(one.row, two.row)))
                    matched |= {(0, one.number), (1, two.number)}
        for side in (0, 1):
            for held in self.rows[side] if spec.outer[side] else ():
                if (side, held.number) not in matched:
                    last = held.time + (spec.before if side else spec.after)
                    alone = Result(None, held.row) if side else Result(held.row, None)
                    found.append(((last, 1 + side, held.time, held.number), alone))
        return found

    def _in_windows(self) -> list[tuple[Any, Result]]:
        spec = self.spec
        assert spec.size is not None
        found: list[tuple[Any, Result]] = []
        for w in sorted({w for rows in self.rows for held in rows for w in windows_of(spec, held.time)}):
            last = w * spec.slide + spec.size - 1
            inside = [[h for h in rows if w in windows_of(spec, h.time)] for rows in self.rows]
            for one in inside[0]:
                for two in inside[1]:
                    if equal(spec, one.row, two.row):
                        order = (last, 0, one.time, one.number, two.time, two.number)
                        found.append((order, Result(one.row, two.row, w)))
            for side in (0, 1):
                for held in inside[side] if spec.outer[side] else ():
                    pairs = [(held, o) if side == 0 else (o, held) for o in inside[1 - side]]
                    if not any(equal(spec, a.row, b.row) for a, b in pairs):
                        alone = Result(None, held.row, w) if side else Result(held.row, None, w)
                        found.append(((last, 1 + side, held.time, held.number), alone))
        return found

    # ---- best effort: a row meets those that are still remembered

    def _last(self, side: int, time: int) -> int:
        spec = self.spec
        if spec.size is not None:
            return time // spec.slide * spec.slide + spec.size - 1
        return time + (spec.before if side else spec.after)

    def _match_now(self, side: int, new: Held, clock: int) -> None:
        spec = self.spec
        for other in self.rows[1 - side]:
            one, two = (other, new) if side else (new, other)
            if self._last(1 - side, other.time) < clock or not equal(spec, one.row, two.row):
                continue
            if spec.size is None:
                if -spec.before <= two.time - one.time <= spec.after:
                    self.at_once.append(Result(one.row, two.row))
                    self._matched |= {(0, one.number), (1, two.number)}
                continue
            for w in windows_of(spec, one.time):
                if w in windows_of(spec, two.time) and w * spec.slide + spec.size > clock:
                    self.at_once.append(Result(one.row, two.row, w))

    def _forget(self) -> None:
        clock = max(self.watermarks)
        gone = [
            (self._last(side, held.time), side, held.number, held)
            for side in (0, 1)
            for held in self.rows[side]
            if self._last(side, held.time) < clock and (side, held.number) not in self._gone
        ]
        for _, side, number, held in sorted(gone, key=lambda g: g[:3]):
            self._gone.add((side, number))
            if self.spec.outer[side] and (side, number) not in self._matched:
                self.at_once.append(Result(None, held.row) if side else Result(held.row, None))
