"""``pattern()``: what is looked for, and when two matches may share rows.

A pattern belongs to one procedure, as a window does. Rows are looked at in the order of their time (of equal times, in order of
arrival), for each value of ``by`` apart; on a keyed stream, for each key. With ``within=W`` the last row of a match has a time
less than W after that of the first.

**select**: which rows a match may pass over. Between two of its rows::

    any      whatever there is: all combinations that fit
    next     only rows that can't be its next one
    strict   none

    SEQ(a, b)                a1  a2  b1  x  b2
    any                      a1 b1, a2 b1, a1 b2, a2 b2
    next                     a1 b1, a2 b1
    strict                   a2 b1

An element that repeats at the end (``SEQ(a, b+)``) makes a match with each further row.

**after**: where the next match may begin. Matches come in the order of their last rows, and of one last row, in the order of
their first rows, then of the second ones, and so on::

    no_skip       anywhere
    to_next       after the first row of this one
    past_last     after the last row of this one
    to_first(f)   at the first row that was bound to f; to_last(f): at the last one (at least after the first row)

**consume=["f"]**: a row that was bound to ``f`` in a match can't be bound to ``f`` in another.

**!x** between two elements: no such row lies between them. At the end: no such row comes less than W after the first row. Such a
match comes out when the watermark reaches the time of its first row plus W: also when no rows come at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.durations import Duration, described
from tidegate.streams.windows.declare.kinds import Late, Lengths
from tidegate.streams.windows.patterns.automaton import Automaton, automaton_of
from tidegate.streams.windows.patterns.picture import as_svg, as_text
from tidegate.streams.windows.patterns.text import PatternText, parse

Select = Literal["any", "next", "strict"]
Condition = str | Callable[..., Any]

MOST_PARTIALS = 10_000
_AFTER = re.compile(r"no_skip|to_next|past_last|(to_first|to_last)\((\w+)\)")


@dataclass(frozen=True)
class PatternSpec:
    """A declared pattern. ``size``: WITHIN; ``define``: conditions by element; ``measures``: expressions by name."""

    streams: tuple[str, ...]
    match: str
    on: str | None = None
    by: tuple[str, ...] = ()
    define: tuple[tuple[str, Condition], ...] = ()
    size: int | None = None
    select: Select = "next"
    after: str = "no_skip"
    consume: tuple[str, ...] = ()
    measures: tuple[tuple[str, str], ...] = ()
    aggregate: tuple[tuple[str, str], ...] = ()
    timeout: bool = False
    max_partials: int = MOST_PARTIALS
    delay: int = 0
    late: Late = "drop"
    timed: bool = False
    edition: int = field(default=1, compare=False)
    renamed_from: str | None = field(default=None, compare=False)

    kind = "pattern"
    compute = None
    slide = None
    plain = False
    source = None
    idle_us = None

    @property
    def stream(self) -> str:
        """The stream, or the streams, in words."""
        return ", ".join(self.streams)

    @property
    def in_event_order(self) -> bool:
        """Are rows put into the order of their time first?"""
        return self.on is not None

    @property
    def by_time(self) -> bool:
        """Does time decide what is a match?"""
        return self.on is not None

    @property
    def defined(self) -> str:
        """The conditions, in words."""
        return "; ".join(f"{name}: {told}" for name, told in _conditions(self)) or "nothing"

    def explain(self) -> str:
        """What is looked for, row by row, in words."""
        conditions = [f"{name}: {told}" for name, told in _conditions(self)]
        return "\n".join([str(self), *conditions, as_text(_automaton(self))])

    def svg(self) -> str:
        """Its automaton as a picture."""
        return as_svg(_automaton(self), str(self))

    def __str__(self) -> str:
        told = [self.match]
        if self.aggregate:
            told = [f"{', '.join(f'{name} {sql}' for name, sql in self.aggregate)} of {self.match}"]
        if self.size is not None:
            told.append(f"within {described(self.size) if self.timed else f'{self.size:,}'}")
        if self.on is not None:
            told.append(f"on {self.on}")
        if self.by:
            told.append(f"by {', '.join(self.by)}")
        told.append(f"select {self.select}")
        if self.after != "no_skip":
            told.append(f"after {self.after}")
        return " ".join(told)


def _conditions(spec: PatternSpec) -> list[tuple[str, str]]:
    return [(name, c if isinstance(c, str) else getattr(c, "__name__", "a function")) for name, c in spec.define]


def _automaton(spec: PatternSpec) -> Automaton:
    what = f"pattern over {spec.stream}"
    return automaton_of(parse(what, spec.match), PatternText(what, spec.match))


class _Pattern:
    """:data:`pattern`: called, or as SQL."""

    def __call__(
        self,
        stream: str | Sequence[str],
        *,
        match: str,
        on: str | None = None,
        by: str | Sequence[str] = (),
        define: Mapping[str, Condition] | None = None,
        within: Duration | None = None,
        select: Select | None = None,
        after: str = "no_skip",
        consume: str | Sequence[str] = (),
        measures: Mapping[str, str] | None = None,
        aggregate: Mapping[str, str] | None = None,
        timeout: bool = False,
        max_partials: int = MOST_PARTIALS,
        delay: Duration | None = None,
        late: Late = "drop",
        edition: int = 1,
        renamed_from: str | None = None,
    ) -> PatternSpec:
        """Declare a pattern over ``stream``, for ``windows=``; the module's docstring defines what a match is.

        ``match``: ``SEQ``, ``AND``, ``OR`` of elements, ``!`` before one that must not come, ``+ * ? {n,m}`` behind
        one that repeats. An element has a name, and perhaps one that its rows go by: ``SEQ(login l, fail f+)``.
        ``define``: the condition of an element: an SQL expression, or a function of a row (or of a row and the rows
        bound so far: a mapping of lists); one without is true for every row. ``on``: the column with the rows' time
        (TIMESTAMP, DATE or integer, NOT NULL); without it, rows are in order of arrival. ``by``: one sequence of
        rows per value of these columns. ``within``: how long a match may take. ``select``, ``after``, ``consume``:
        see above. ``measures``: what the results say of a match, as SQL expressions: ``{"n": "count(f)", "since":
        "l.t"}``. ``aggregate``: in place of matches, what is known of all those that end with a row, without making
        any (``{"n": "count(*)"}``). ``timeout``: keep the partial matches whose time was over, for ``.timed_out``.
        ``max_partials``: the most partial matches of one key; what would make more aborts. ``delay``, ``late``: as
        for :func:`window`.
        Several streams, of a procedure with ``inputs=either(…)``: an element without a condition may be the name of
        one of them. ``edition``: raise it when the declaration changes; in a directory with partial matches of an
        earlier edition, it begins anew. ``renamed_from``: the name it had before, or ``"procedure.window"``.
        >>> print(pattern("ev", match="SEQ(a, !b, c)", on="t", within="5m"))
        SEQ(a, !b, c) within 5m on t select next
        """
        streams = (stream,) if isinstance(stream, str) else tuple(stream)
        what = f"pattern over {', '.join(map(str, streams))}"
        if not streams or len(set(streams)) < len(streams):
            raise DeclarationError(f"{what}: name one stream, or several different ones; got {stream!r}")
        select = select or ("next" if aggregate is None else "any")
        _refuse_unknown(what, select, after, late)
        if aggregate is not None:
            beside = {"after": after != "no_skip", "consume": consume, "measures": measures, "timeout": timeout}
            _refuse_beside_aggregate(what, aggregate, select=select != "any", **beside)
        lengths = Lengths(what)
        size = None if within is None else lengths.of("within", within)
        wait = 0 if delay is None else lengths.of("delay", delay, low=0)
        if on is None:
            for name, value in (("within", within), ("delay", delay), ("late", None if late == "drop" else late)):
                if value is not None:
                    raise DeclarationError(f"{what}: {name}= is about the rows' time; name its column with on=")
        for name, told in (("define", define), ("measures", measures), ("aggregate", aggregate)):
            if told is not None and (not isinstance(told, Mapping) or not all(isinstance(one, str) for one in told)):
                raise DeclarationError(f"{what}: {name} maps names to expressions, got {told!r}")
        for name, condition in (define or {}).items():
            if not isinstance(condition, str) and not callable(condition):
                raise DeclarationError(
                    f"{what}: define={{{name!r}: …}} is an SQL expression or a function, got {condition!r}"
                )
        if isinstance(max_partials, bool) or not isinstance(max_partials, int) or max_partials < 1:
            raise DeclarationError(f"{what}: max_partials is a positive whole number, got {max_partials!r}")
        columns = (by,) if isinstance(by, str) else tuple(by)
        if len(set(columns)) < len(columns):
            raise DeclarationError(f"{what}: by= names a column twice: {', '.join(columns)}")
        return PatternSpec(
            streams, match, on, columns, tuple((define or {}).items()), size, select, after,
            (consume,) if isinstance(consume, str) else tuple(consume), tuple((measures or {}).items()),
            tuple((aggregate or {}).items()), bool(timeout), max_partials, wait, late, bool(lengths.timed), edition, renamed_from,
        )  # fmt: skip

    def sql(self, text: str, **options: Any) -> PatternSpec:
        """The same in SQL: ``stream MATCH_RECOGNIZE (PARTITION BY … ORDER BY … MEASURES … PATTERN (…) WITHIN '5m' DEFINE …)``.

        ``options``: arguments of ``pattern`` that SQL has no words for, such as ``delay=`` and ``timeout=``.

        >>> rising = "PATTERN (a b+ c) WITHIN '5m' DEFINE b AS v > PREV(v)"
        >>> print(pattern.sql(f"ev MATCH_RECOGNIZE (PARTITION BY k ORDER BY t {rising})"))
        SEQ(a, b+, c) within 5m on t by k select strict after past_last
        """
        from tidegate.streams.windows.patterns.sql import arguments_of

        return self(**{**arguments_of(text), **options})

    def __repr__(self) -> str:
        return "pattern"


pattern = _Pattern()


def _refuse_unknown(what: str, select: str, after: str, late: str) -> None:
    for name, value, allowed in (
        ("select", select, ("any", "next", "strict")),
        ("late", late, ("drop", "adjust", "raise")),
    ):
        if value not in allowed:
            raise DeclarationError(f"{what}: {name} must be {', '.join(map(repr, allowed))}, got {value!r}")
    if not isinstance(after, str) or _AFTER.fullmatch(after) is None:
        raise DeclarationError(
            f"{what}: after must be 'no_skip', 'to_next', 'past_last', 'to_first(f)' or 'to_last(f)', got {after!r}"
        )


def _refuse_beside_aggregate(what: str, aggregate: Any, **given: Any) -> None:
    named = [name for name, value in given.items() if value]
    if not aggregate or named:
        wrong = "it is empty" if not aggregate else f"{', '.join(named)} can't go with it"
        raise DeclarationError(
            f"{what}: aggregate= says something of all matches (select='any') without making any, for example "
            f"{{'n': 'count(*)'}}; {wrong}"
        )


def after_variable(after: str) -> tuple[str, str | None]:
    """The mode, and the variable that it names."""
    found = _AFTER.fullmatch(after)
    return (after, None) if found is None or found[1] is None else (cast(str, found[1]), found[2])
