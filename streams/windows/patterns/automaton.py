"""The automaton of a pattern: one state for each occurrence of an element in its tree (Glushkov's construction).

A *position* is such an occurrence. A match goes from a starting position along edges to an ending one, and binds a row to each
position on its way. An edge may be *guarded*: no row of certain elements lies between its two rows. An ending position may be
guarded, too; then the match is complete when its time is over and no such row has come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.errors import DeclarationError
from tidegate.streams.windows.patterns.text import (
    Both,
    Either,
    Element,
    Not,
    PatternText,
    Repeat,
    Seq,
    Tree,
    elements_of,
)

MOST = 500  # positions

Guard = int  # a bit for each element that must not come
Ways = dict[int, Guard]  # positions, in order of preference


@dataclass(frozen=True)
class Position:
    """``element``: its number among the elements, ``variable``: what its rows are called."""

    number: int
    element: int
    variable: str


@dataclass
class _Part:
    """What of a part of the tree its surroundings need. ``empty``: how it can be left out (None: it can't)."""

    first: Ways = field(default_factory=dict)
    last: Ways = field(default_factory=dict)
    empty: Guard | None = None


@dataclass
class Automaton:
    """``edges``: of each position the next ones with their guards, in order of preference. ``ends``: the guards of ending
    positions. ``elements``: their names, by number.
    """

    elements: tuple[str, ...]
    positions: tuple[Position, ...]
    starts: tuple[int, ...]
    edges: tuple[tuple[tuple[int, Guard], ...], ...]
    ends: dict[int, Guard]

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of rows, in order of first occurrence."""
        return tuple(dict.fromkeys(position.variable for position in self.positions))

    @property
    def endless(self) -> bool:
        """May a match have any number of rows?"""
        return any(position in self.before(position) for position in range(len(self.positions)))

    @property
    def ambiguous(self) -> bool:
        """Are there two ways to bind the same rows to the same names?"""
        pairs = [(p, q, p != q) for p in self.starts for q in self.starts]
        known = set(pairs)
        while pairs:
            p, q, apart = pairs.pop()
            if self.positions[p].variable != self.positions[q].variable:
                continue
            if apart and p in self.ends and q in self.ends:
                return True
            for to, _ in self.edges[p]:
                for other, _ in self.edges[q]:
                    pair = (to, other, apart or to != other)
                    if pair not in known:
                        known.add(pair)
                        pairs.append(pair)
        return False

    def before(self, position: int) -> set[int]:
        """The positions that may have been passed on the way to this one."""
        found: set[int] = set()
        waiting = [position]
        while waiting:
            target = waiting.pop()
            for source, edges in enumerate(self.edges):
                if source not in found and any(to == target for to, _ in edges):
                    found.add(source)
                    waiting.append(source)
        return found


def automaton_of(tree: Tree, source: PatternText) -> Automaton:
    """Build it; refuse a pattern that matches nothing at all, or is ambiguous about what must not come."""
    return _Builder(source, tree).whole()


class _Builder:
    def __init__(self, source: PatternText, tree: Tree) -> None:
        self.source = source
        self.tree = tree
        self.positions: list[Position] = []
        self.edges: list[Ways] = []
        names = [element.name for negated in (False, True) for element in elements_of(tree, negated)]
        self.numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}

    def whole(self) -> Automaton:
        part = self.part(self.tree)
        if part.empty is not None:
            raise self.source.wrong(
                self.tree.at, "every element can be left out, so it would match nothing at all, at any time"
            )
        if any(part.first.values()):
            raise self.source.wrong(
                self.tree.at,
                "a negation would be first where what is before it is left out: between what and what is it?",
            )
        return Automaton(
            tuple(self.numbers), tuple(self.positions), tuple(part.first),
            tuple(tuple(ways.items()) for ways in self.edges), part.last,
        )  # fmt: skip

    def part(self, tree: Tree) -> _Part:
        match tree:
            case Element():
                return self.element(tree)
            case Seq():
                return self.sequence(tree.items)
            case Either():
                return self.either([self.part(item) for item in tree.items], tree.at)
            case Both():
                return self.any_order(tree.items, tree.at)
            case Repeat():
                return self.repeated(tree)
        raise AssertionError(tree)

    def element(self, element: Element) -> _Part:
        number = len(self.positions)
        if number >= MOST:
            raise self.source.wrong(
                element.at, f"it has more than {MOST} elements, repetitions and orders of AND written out"
            )
        self.positions.append(Position(number, self.numbers[element.name], element.variable))
        self.edges.append({})
        return _Part({number: 0}, {number: 0})

    def sequence(self, items: Iterable[Tree]) -> _Part:
        found = _Part(empty=0)
        at = 0
        for item in items:
            at = item.at
            if isinstance(item, Not):
                guard = sum({1 << self.numbers[element.name] for element in item.elements})
                if found.empty is not None and not found.first:
                    raise self.source.wrong(at, "a negation can't be first: between what and what is it?")
                found.last = {position: known | guard for position, known in found.last.items()}
                if found.empty is not None:
                    found.empty |= guard
                continue
            part = self.part(item)
            self.connect(found.last, part.first, at)
            if found.empty is not None:
                self.add(found.first, part.first, found.empty, at)
            if part.empty is None:
                found.last = part.last
            else:
                last = dict(part.last)
                self.add(last, found.last, part.empty, at)
                found.last = last
            found.empty = None if found.empty is None or part.empty is None else found.empty | part.empty
        return found

    def either(self, parts: list[_Part], at: int) -> _Part:
        found = _Part()
        for part in parts:
            self.add(found.first, part.first, 0, at)
            self.add(found.last, part.last, 0, at)
            self.leave_out(found, part.empty, at)
        return found

    def leave_out(self, part: _Part, guard: Guard | None, at: int) -> None:
        """The part can be left out in this way, too."""
        if guard is not None:
            if part.empty not in (None, guard):
                raise self.ambiguous(at)
            part.empty = guard

    def ambiguous(self, at: int) -> DeclarationError:
        return self.source.wrong(
            at, "it is ambiguous what must not come here: there are ways through it with and without it"
        )

    def any_order(self, items: tuple[Tree, ...], at: int) -> _Part:
        """Each may be first; what is left comes after it. Orders share their beginning, so a row is passed over only if none of
        them has a place for it.
        """
        if len(items) == 1:
            return self.part(items[0])
        firsts = []
        for place, item in enumerate(items):
            rest = self.any_order((*items[:place], *items[place + 1 :]), at)
            firsts.append(self.joined([self.part(item), rest], at))
        return self.either(firsts, at)

    def repeated(self, tree: Repeat) -> _Part:
        """``x{2,4}`` is x x (x (x)?)?, and ``x{2,}`` is x x+: with each row it is decided what it is bound to."""
        item, low, high = tree.item, tree.low, tree.high
        if high is None:
            parts = [self.part(item) for _ in range(max(low, 1))]
            self.connect(parts[-1].last, parts[-1].first, tree.at)
            found = self.joined(parts, tree.at)
        else:
            found = _Part(empty=0)
            for place in reversed(range(high)):
                part = self.part(item)
                found = self.joined([part, found], tree.at)
                if place >= low:
                    self.leave_out(found, 0, tree.at)
        if not low:
            self.leave_out(found, 0, tree.at)
        return found

    def joined(self, parts: list[_Part], at: int) -> _Part:
        found = parts[0]
        for part in parts[1:]:
            self.connect(found.last, part.first, at)
            first, last = dict(found.first), dict(part.last)
            if found.empty is not None:
                self.add(first, part.first, found.empty, at)
            if part.empty is not None:
                self.add(last, found.last, part.empty, at)
            empty = None if found.empty is None or part.empty is None else found.empty | part.empty
            found = _Part(first, last, empty)
        return found

    def connect(self, last: Ways, first: Ways, at: int) -> None:
        for position, guard in last.items():
            self.add(self.edges[position], first, guard, at)

    def add(self, known: Ways, more: Ways, guard: Guard, at: int) -> None:
        for position, own in more.items():
            if known.setdefault(position, own | guard) != own | guard:
                raise self.ambiguous(at)
