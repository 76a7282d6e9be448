"""Patterns by their definition: every way to read the pattern, every choice of rows, as slowly as you like.

Written from the definition alone: it knows nothing of positions, guards and runs. Conditions are Python functions here,
``condition(row, bound)``, ``bound`` being the (name, row) pairs so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from tidegate.streams.windows.patterns.text import Both, Either, Element, Not, Repeat, Seq, Tree

NEVER = -(10**15)
Condition = Callable[[Any, list[tuple[str, Any]]], Any]


class Take(NamedTuple):
    at: int
    element: str
    variable: str


class Held(NamedTuple):
    time: int
    number: int
    row: Any


class Found(NamedTuple):
    """What comes out, and when: with a row (after what is due then), or when it is due."""

    out: tuple[Any, ...]
    key: Any
    bound: tuple[tuple[str, int], ...]
    start: int
    end: int


Sentence = tuple[Any, ...]  # of Take, and of frozensets of elements that must not come


class TooMany(Exception):
    """There are more ways to read the pattern than a test has time for."""


MOST_READINGS = 5_000


def sentences(tree: Tree, most: int) -> Iterator[Sentence]:
    """All ways to read it with at most so many rows."""
    match tree:
        case Element():
            if most:
                yield (Take(tree.at, tree.name, tree.variable),)
        case Not():
            yield (frozenset((one.name, one.variable) for one in tree.elements),)
        case Seq():
            yield from chained(tree.items, most)
        case Either():
            for item in tree.items:
                yield from sentences(item, most)
        case Both():
            for order in permutations(tree.items):
                yield from chained(order, most)
        case Repeat():
            high = most if tree.high is None else tree.high
            for times in range(tree.low, max(tree.low, min(high, most)) + 1):
                yield from chained((tree.item,) * times, most)


def chained(items: Sequence[Tree], most: int) -> Iterator[Sentence]:
    if not items:
        yield ()
        return
    for first in sentences(items[0], most):
        for rest in chained(items[1:], most - sum(isinstance(one, Take) for one in first)):
            yield (*first, *rest)


class Reading(NamedTuple):
    takes: tuple[Take, ...]
    between: tuple[frozenset[tuple[str, str]], ...]  # what must not come before take i; one more: after the last


def readings(tree: Tree, most: int) -> list[Reading]:
    found = {}
    for count, sentence in enumerate(sentences(tree, most)):
        if count > MOST_READINGS:
            raise TooMany
        takes: list[Take] = []
        between: list[frozenset[tuple[str, str]]] = [frozenset()]
        for one in sentence:
            if isinstance(one, Take):
                takes.append(one)
                between.append(frozenset())
            else:
                between[-1] |= one
        found[tuple(takes), tuple(between)] = Reading(tuple(takes), tuple(between))
    return list(found.values())


class Naive:
    """All matches of a pattern in these rows of one key, whose times are in order. ``watermark``: how far time has come."""

    def __init__(
        self, spec: Any, tree: Tree, conditions: dict[str, Condition], rows: list[Held], watermark: int
    ) -> None:
        self.spec = spec
        self.conditions = conditions
        self.rows = rows
        self.watermark = watermark
        going_on = spec.timeout or spec.select == "next"  # a row may be taken although what it needs has not come
        self.readings = readings(tree, len(rows) + (5 if going_on else 0))
        self.found: dict[Any, Found] = {}
        self.over: dict[Any, Found] = {}

    def all(self, key: Any) -> tuple[list[Found], list[Found]]:
        self.key = key
        for i in range(len(self.rows)):
            for take, _, rest in self.next(self.readings, 0):
                if self.holds(take.element, self.rows[i].row, []):
                    self.go_on([(take.variable, i)], rest, 1)
        return sorted(self.found.values()), sorted(self.over.values())

    def next(self, readings: list[Reading], k: int) -> list[tuple[Take, frozenset[Any], list[Reading]]]:
        """How the k-th row can be bound; what must not come before it; the ways to read it from there on."""
        options: dict[int, tuple[Take, set[Any], list[Reading]]] = {}
        for reading in readings:
            if len(reading.takes) > k:
                take = reading.takes[k]
                option = options.setdefault(take.at, (take, set(), []))
                option[1].add(reading.between[k])
                option[2].append(reading)
        found = []
        for take, guards, rest in options.values():
            (guard,) = guards
            found.append((take, guard, rest))
        return found

    def holds(self, element: str, row: Any, bound: list[tuple[str, int]]) -> bool:
        told = [(name, self.rows[i].row) for name, i in bound]
        return self.conditions[element](row, told) is True

    def comes(self, elements: frozenset[Any], low: int, high: int, bound: list[tuple[str, int]]) -> bool:
        """Does such a row lie strictly between these two?"""
        return any(self.holds(e, self.rows[m].row, bound) for m in range(low + 1, high) for e, _ in elements)

    def takes(self, m: int, options: list[Any], bound: list[tuple[str, int]]) -> bool:
        """Could row m be the next one?"""
        last = bound[-1][1]
        return any(
            self.holds(take.element, self.rows[m].row, bound) and not self.comes(guard, last, m, bound)
            for take, guard, _ in options
        )

    def go_on(self, bound: list[tuple[str, int]], readings: list[Reading], k: int) -> None:
        spec, rows = self.spec, self.rows
        first, last = bound[0][1], bound[-1][1]
        due = None if spec.size is None else rows[first].time + spec.size
        after = [j for j in range(last + 1, len(rows)) if due is None or rows[j].time < due]
        options = self.next(readings, k)
        ends = {reading.between[k] for reading in readings if len(reading.takes) == k}
        moved = spec.select == "next" and any(self.takes(m, options, bound) for m in after)
        stop = after[-1] + 1 if after else last + 1
        ended = False
        for guard in ends:
            if not guard:
                ended = True
                self.report(self.found, (rows[last].time, 1, rows[last].number), bound)
            elif due is not None and due <= self.watermark and not moved and not self.comes(guard, last, stop, bound):
                ended = True
                self.report(self.found, (due, 0, rows[first].number), bound)
        if spec.timeout and not ended and due is not None and due <= self.watermark and not moved:
            open_ways = [g for _, g, _ in options if not self.comes(g, last, stop, bound)]
            if open_ways and not (spec.select == "strict" and after):
                self.report(self.over, (due, 0, rows[first].number), bound)
        for j in after:
            if spec.select == "strict" and j > last + 1:
                break
            for take, guard, rest in options:
                if self.holds(take.element, rows[j].row, bound) and not self.comes(guard, last, j, bound):
                    self.go_on([*bound, (take.variable, j)], rest, k + 1)
            if spec.select == "next" and self.takes(j, options, bound):
                break

    def report(self, where: dict[Any, Found], out: tuple[Any, ...], bound: list[tuple[str, int]]) -> None:
        rows = self.rows
        told = tuple((name, rows[i].number) for name, i in bound)
        numbers, names = tuple(n for _, n in told), tuple(name for name, _ in told)
        found = Found(
            (*out[:2], out[2], numbers, names), self.key, told, rows[bound[0][1]].time, rows[bound[-1][1]].time
        )
        where.setdefault(told, found)


def taken_in(
    spec: Any, rows: Sequence[Any], time_of: Callable[[Any], int], mark: int = NEVER
) -> tuple[list[Held], list[Any], int]:
    """The rows in the order of their time, those that came too late, and the watermark."""
    watermark, kept, late = NEVER, [], []
    for number, row in enumerate(rows):
        at = time_of(row)
        if at < watermark:
            late.append(row)
            if spec.late == "drop":
                continue
            at = watermark
        watermark = max(watermark, at - spec.delay)
        kept.append((at, number, row))
    watermark = max(watermark, mark)
    ordered = sorted(kept, key=lambda one: one[:2])
    released = [one for one in ordered if one[0] <= watermark]
    return [Held(at, n, row) for n, (at, _, row) in enumerate(released, 1)], late, watermark


def expected(
    spec: Any,
    tree: Tree,
    conditions: dict[str, Condition],
    rows: list[Held],
    watermark: int,
    key_of: Callable[[Any], Any],
) -> tuple[list[Found], list[Found]]:
    """What comes out, in order: of candidates, those that no earlier match has excluded."""
    keys = dict.fromkeys(key_of(held.row) for held in rows)
    candidates: list[Found] = []
    over: list[Found] = []
    for key in keys:
        mine = [held for held in rows if key_of(held.row) == key]
        one, two = Naive(spec, tree, conditions, mine, watermark).all(key)
        candidates += one
        over += two
    found: list[Found] = []
    begins: dict[Any, int] = {}
    used: dict[Any, set[int]] = {}
    for candidate in sorted(candidates):
        key, numbers = candidate.key, [n for _, n in candidate.bound]
        consumed = {n for name, n in candidate.bound if name in spec.consume}
        if numbers[0] < begins.get(key, 0) or consumed & used.get(key, set()):
            continue
        found.append(candidate)
        used.setdefault(key, set()).update(consumed)
        begins[key] = max(begins.get(key, 0), next_begins(spec.after, candidate))
    return found, sorted(over)


def next_begins(after: str, match: Found) -> int:
    numbers = [n for _, n in match.bound]
    if after == "no_skip":
        return 0
    if after == "past_last":
        return numbers[-1] + 1
    if after == "to_next":
        return numbers[0] + 1
    mode, _, name = after.rstrip(")").partition("(")
    places = [n for variable, n in match.bound if variable == name]
    to = 0 if not places else places[0] if mode == "to_first" else places[-1]
    return max(numbers[0] + 1, to)
