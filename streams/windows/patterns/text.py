"""The text of a pattern, and the tree that it stands for.

``SEQ(login l, !reset, fail f+, withdraw w)``: a ``login``, then at least one ``fail``, then a ``withdraw``, without a
``reset`` between the ``login`` and the first ``fail``. An element has a name, which its condition goes by, and perhaps a second
one, which its rows go by in other conditions and in measures::

    pattern   = item
    item      = part quantifier?  |  "!" part
    part      = name name?  |  "SEQ" list  |  "AND" list  |  "OR" list  |  list
    list      = "(" item ("," item)* ")"
    quantifier = "+"  |  "*"  |  "?"  |  "{n}"  |  "{n,}"  |  "{n,m}"

A list alone is a ``SEQ``. ``AND`` is its parts one after another, in any order. ``!`` stands in a ``SEQ``: no such row
between the part before it and the one after it or, at the end, until the pattern's time is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidegate.errors import DeclarationError

MOST_IN_ANY_ORDER = 5  # parts of an AND: there are 120 orders of five


@dataclass(frozen=True)
class Element:
    """A row that a condition is true for. ``variable``: what rows bound to it are called. ``at``: its place in the text."""

    name: str
    variable: str
    at: int


@dataclass(frozen=True)
class Not:
    """No row of these elements."""

    elements: tuple[Element, ...]
    at: int


@dataclass(frozen=True)
class Seq:
    """One after another."""

    items: tuple[Tree, ...]
    at: int


@dataclass(frozen=True)
class Both:
    """All of them, in any order, one after another."""

    items: tuple[Tree, ...]
    at: int


@dataclass(frozen=True)
class Either:
    """One of them."""

    items: tuple[Tree, ...]
    at: int


@dataclass(frozen=True)
class Repeat:
    """``low`` to ``high`` times (None: any number of times)."""

    item: Tree
    low: int
    high: int | None
    at: int


Tree = Element | Not | Seq | Both | Either | Repeat

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<times>\{[^}]*\})|(?P<sign>[(),!+*?])|(?P<wrong>\S))")
_TIMES = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")
_OPERATORS: dict[str, type[Seq] | type[Both] | type[Either]] = {"SEQ": Seq, "AND": Both, "OR": Either}


class PatternText:
    """A text, and what is wrong with it at some place."""

    def __init__(self, what: str, text: str) -> None:
        self.what = what
        self.text = text

    def wrong(self, at: int, why: str) -> DeclarationError:
        """An error that shows the place."""
        return DeclarationError(
            f"{self.what}: {why}, at character {at + 1} of match=\n  {self.text}\n  {' ' * at}^", name=self.text
        )


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, source: PatternText) -> None:
        self.source = source
        self.tokens = list(self._tokens())
        self.place = 0

    def _tokens(self) -> Iterator[_Token]:
        for found in _TOKEN.finditer(self.source.text):
            kind = str(found.lastgroup)
            token = _Token(kind, found[kind], found.start(kind))
            if kind == "wrong":
                raise self.source.wrong(token.at, f"{token.text!r} means nothing in a pattern")
            yield token
        yield _Token("end", "", len(self.source.text))

    @property
    def next(self) -> _Token:
        return self.tokens[self.place]

    def take(self) -> _Token:
        self.place += 1
        return self.tokens[self.place - 1]

    def whole(self) -> Tree:
        found = self.item()
        if self.next.kind != "end":
            hint = "; several parts are written SEQ(…, …)" if self.next.text == "," or self.next.kind == "name" else ""
            raise self.source.wrong(self.next.at, f"the pattern ends before {self.next.text!r}{hint}")
        if isinstance(found, Not):
            raise self.source.wrong(found.at, "a negation stands in a SEQ, after what it follows")
        return found

    def item(self) -> Tree:
        if self.next.text == "!":
            return self.negation(self.take())
        found = self.part()
        while self.next.kind == "times" or self.next.text in ("+", "*", "?"):
            found = self.repeated(found, self.take())
        return found

    def negation(self, sign: _Token) -> Tree:
        part = self.part()
        options = part.items if isinstance(part, Either) else (part,)
        elements = tuple(one for one in options if isinstance(one, Element))
        if len(elements) < len(options):
            raise self.source.wrong(sign.at, "what is negated is an element, or an OR of elements")
        if self.next.kind == "times" or self.next.text in ("+", "*", "?"):
            raise self.source.wrong(self.next.at, "what is negated does not occur, so it can't be repeated")
        return Not(elements, sign.at)

    def part(self) -> Tree:
        token = self.take()
        if token.text == "(":
            return Seq(self.items(token), token.at)
        if token.kind != "name":
            told = "the text ends" if token.kind == "end" else f"there is {token.text!r}"
            raise self.source.wrong(token.at, f"{told} where an element or a part in parentheses is expected")
        operator = _OPERATORS.get(token.text.upper())
        if operator is not None:
            opened = self.take()
            if opened.text != "(":
                raise self.source.wrong(opened.at, f"{token.text.upper()} needs its parts in parentheses")
            return self.combined(operator, self.items(opened), token.at)
        variable = self.take().text if self.next.kind == "name" else token.text
        if variable.upper() in _OPERATORS:
            raise self.source.wrong(
                self.tokens[self.place - 1].at, f"{variable} is an operator, and no name; a comma is missing"
            )
        return Element(token.text, variable, token.at)

    def combined(self, operator: type[Seq] | type[Both] | type[Either], items: tuple[Tree, ...], at: int) -> Tree:
        name = next(name for name, kind in _OPERATORS.items() if kind is operator)
        if operator is not Seq:
            negated = next((item for item in items if isinstance(item, Not)), None)
            if negated is not None:
                raise self.source.wrong(negated.at, f"a negation stands in a SEQ; in {name} it has no place in time")
        if operator is Both and len(items) > MOST_IN_ANY_ORDER:
            raise self.source.wrong(at, f"AND takes up to {MOST_IN_ANY_ORDER} parts, got {len(items)}")
        return operator(items, at)

    def items(self, opened: _Token) -> tuple[Tree, ...]:
        found = [self.item()]
        while self.next.text == ",":
            self.take()
            found.append(self.item())
        closed = self.take()
        if closed.text != ")":
            told = "the text ends" if closed.kind == "end" else f"there is {closed.text!r}"
            raise self.source.wrong(closed.at, f"{told} where a comma or ')' is expected")
        if isinstance(found[0], Not):
            raise self.source.wrong(found[0].at, "a negation can't be first: between what and what is it?")
        return tuple(found)

    def repeated(self, item: Tree, sign: _Token) -> Tree:
        low, high = {"+": (1, None), "*": (0, None), "?": (0, 1)}.get(sign.text, (-1, None))
        if low < 0:
            found = _TIMES.fullmatch(sign.text)
            if found is None:
                raise self.source.wrong(sign.at, f"{sign.text} is not how often: write {{2}}, {{2,}} or {{2,5}}")
            low = int(found[1])
            high = low if found[2] is None else None if found[3] is None else int(found[3])
            if high is not None and (high < low or not high):
                raise self.source.wrong(sign.at, f"{sign.text} can never be: from {low} to {high} times")
        return Repeat(item, low, high, sign.at)


def parse(what: str, text: str) -> Tree:
    """The tree of a pattern's text; errors begin with ``what``.

    >>> parse("pattern", "SEQ(a, !b, c+)").items[1].elements[0].name
    'b'
    """
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"{what}: match= is the pattern, for example 'SEQ(login, fail+)'; got {text!r}")
    return _Parser(PatternText(what, text)).whole()


def elements_of(tree: Tree, negated: bool = False) -> Iterator[Element]:
    """The elements that rows are bound to, or those that are negated, in order of the text."""
    match tree:
        case Element():
            if not negated:
                yield tree
        case Not():
            yield from tree.elements if negated else ()
        case Repeat():
            yield from elements_of(tree.item, negated)
        case _:
            for item in tree.items:
                yield from elements_of(item, negated)


def renamed(tree: Tree, names: dict[str, str]) -> Tree:
    """The same tree over other elements."""
    match tree:
        case Element():
            return replace(tree, name=names.get(tree.name, tree.name))
        case Not():
            return replace(tree, elements=tuple(replace(e, name=names.get(e.name, e.name)) for e in tree.elements))
        case Repeat():
            return replace(tree, item=renamed(tree.item, names))
        case _:
            return replace(tree, items=tuple(renamed(item, names) for item in tree.items))
