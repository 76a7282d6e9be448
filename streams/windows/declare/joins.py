"""Joins of two streams: which rows match, and when a result is emitted.

Below, l is a row of the left stream with time τl (``left_time``), r one of the right stream with time τr; their keys are
the values of the columns in ``on``. NULL equals nothing. Each side has a watermark: its largest time so far, minus
``delay``. A row whose time is before the watermark of its own side when it arrives is late.

**interval** (``within=D``): l and r match when their keys are equal and |τl − τr| ≤ D; with ``within=(B, A)``, when
τl − B ≤ τr ≤ τl + A::

    within = ("0s", "3s")     orders     •0s           •4s
                              payments        •2s  •3s          •8s
    matches                   0s–2s, 0s–3s               (4s and 8s are too far apart)

**window** (``time=W, slide=S``): for each window w that holds both (wS ≤ τ < wS + W), l and r match when their keys are
equal. A pair that shares several windows is a result in each.

``how``: ``"inner"``, matches only; ``"left"``, also rows of the left stream without a match (in a window: in that
window); ``"full"``, of both.

**coordinated**: the joint watermark is the smaller of the two (a side that was silent for longer than ``idle`` does not
count, and is late where the joint watermark has gone past it). A result has a time T: max(τl, τr) of a match, the last
instant at which a partner could have had its time of a row without one, the last instant of its window. It comes out when
the joint watermark has gone past T, in the order of T; of equal T, matches first, then rows without a match, by their
times, and of equal times in their streams' order. So the results, and their order, do not depend on how the two streams
are interleaved, or cut into batches, or shuffled within ``delay`` (rows of one stream with equal times excepted).

**best effort**: a match comes out with its second row. The clock is the *larger* watermark: no side waits for the
slower stream. When the clock has gone past the last instant at which a partner could have its time, a row is forgotten;
if it found none, and ``how`` includes such rows, it is emitted then. What is not guaranteed: a match whose rows come
further apart than that is missed (and the first of them may be emitted as a row without a match), results are in the
order of arrival, and all of it depends on how the streams are interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.durations import Duration, described
from tidegate.streams.windows.declare.kinds import Late, Lengths, last_window

How = Literal["inner", "left", "full"]
Mode = Literal["coordinated", "best_effort"]
On = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class JoinSpec:
    """A declared join of two streams. Interval: ``before`` and ``after``; window: ``size`` and ``slide``."""

    left: str
    right: str
    on: tuple[tuple[str, str], ...]
    left_time: str
    right_time: str
    before: int = 0
    after: int = 0
    size: int | None = None
    slide: int = 0
    how: How = "inner"
    delay: int = 0
    late: Late = "drop"
    idle_us: int | None = None
    mode: Mode = "coordinated"
    select: tuple[tuple[str | None, str], ...] | None = None  # (name in the result, or None for its own; column)
    timed: bool = False
    renamed_from: str | None = field(default=None, compare=False)

    kind = "join"
    compute = None
    plain = False
    by_time = True
    edition = 1

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams whose rows it takes in."""
        return self.left, self.right

    @property
    def stream(self) -> str:
        """The streams, in words."""
        return f"{self.left}, {self.right}"

    @property
    def outer(self) -> tuple[bool, bool]:
        """Are rows without a match emitted, on the left and on the right?"""
        return self.how != "inner", self.how == "full"

    def last_instant(self, side: int, times: Any) -> Any:
        """The last time that a partner of a row of this side can have, or the last of its windows holds."""
        if self.size is not None:
            return last_window(times, self.slide) * self.slide + self.size - 1
        return times + (self.before if side else self.after)

    def __str__(self) -> str:
        def length(value: int) -> str:
            return described(value) if self.timed else f"{value:,}"

        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)
        told = [f"{self.how} join on {keys}" if keys else f"{self.how} join"]
        if self.size is not None:
            told.append(f"in windows of {length(self.size)}")
            if self.slide != self.size:
                told.append(f"slide {length(self.slide)}")
        elif self.before == self.after:
            told.append(f"within {length(self.after)}")
        else:
            told.append(f"from {length(self.before)} before to {length(self.after)} after")
        told.append(f"of {self.left_time} and {self.right_time}")
        return " ".join([*told, "best effort"] if self.mode == "best_effort" else told)


def join(
    left: str,
    right: str,
    *,
    on: On = (),
    left_time: str,
    right_time: str,
    within: Duration | tuple[Duration, Duration] | None = None,
    time: Duration | None = None,
    slide: Duration | None = None,
    how: How = "inner",
    delay: Duration | None = None,
    late: Late = "drop",
    idle: Duration | None = None,
    mode: Mode = "coordinated",
    select: Sequence[str] | Mapping[str, str] | None = None,
    renamed_from: str | None = None,
) -> JoinSpec:
    """Declare a join of two input streams, for ``windows=``; the module's docstring defines what is emitted, and when.

    ``on``: the columns whose values must be equal: a name that both have, several, or ``{left: right}``; without it, time
    alone decides. ``left_time``, ``right_time``: the columns with the rows' times (TIMESTAMP, DATE or integer, NOT NULL).
    Give ``within``, one length or (before, after), or ``time`` and perhaps ``slide``.
    ``delay``: how much later than its successors on its own stream a row may come; ``late``: what to do with one that
    comes later still: ``drop`` it (counted, and kept in ``tidegate.late_rows``), ``adjust`` its time to the watermark,
    or ``raise``, which aborts the batch. ``idle``: a stream silent for longer than this no longer delays a coordinated
    join.
    ``select``: the result's columns, by name or as ``{name: column}``; a column is ``name``, or ``stream.name`` where both
    have it. Without it: those of both, ``stream_name`` where both have the name; columns joined on by one name appear once.
    ``renamed_from``: the name it had before, or ``"procedure.window"``.

    >>> print(join("orders", "payments", on="order_id", within="10s", left_time="at", right_time="paid_at"))
    inner join on order_id within 10s of at and paid_at
    """
    what = f"join of {left} and {right}"
    if left == right:
        raise DeclarationError(
            f"{what}: a stream can't be joined with itself; emit its rows to a second one and join those"
        )
    for name, value, allowed in (
        ("how", how, ("inner", "left", "full")),
        ("mode", mode, ("coordinated", "best_effort")),
        ("late", late, ("drop", "adjust", "raise")),
    ):
        if value not in allowed:
            raise DeclarationError(f"{what}: {name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
    if (within is None) == (time is None):
        raise DeclarationError(f"{what}: give exactly one of within= (how far apart) and time= (windows)")
    if slide is not None and time is None:
        raise DeclarationError(f"{what}: slide= goes with time=")
    lengths = Lengths(what)
    before = after = step = 0
    size = None
    if time is not None:
        size = lengths.of("time", time)
        step = size if slide is None else lengths.of("slide", slide)
    else:
        sides = within if isinstance(within, tuple) else (within, within)
        if len(sides) != 2:
            raise DeclarationError(f"{what}: within must be a length of time or two (before, after), got {within!r}")
        before, after = (lengths.of("within", one, low=0) for one in sides)
    wait = 0 if delay is None else lengths.of("delay", delay, low=0)
    if mode == "best_effort":
        if idle is not None:
            raise DeclarationError(
                f"{what}: with mode='best_effort' no side waits for a silent stream; leave out idle="
            )
        if how != "inner" and time is not None:
            raise DeclarationError(
                f"{what}: with mode='best_effort', how={how!r} needs within=; in windows only mode='coordinated' can tell "
                f"which rows have no match"
            )
    return JoinSpec(
        left, right, _pairs(on), left_time, right_time, before, after, size, step, how, wait, late,
        None if idle is None else Lengths(what).of("idle", idle), mode, _selected(select, what), bool(lengths.timed),
        renamed_from=renamed_from,
    )  # fmt: skip


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        return ((on, on),)
    return tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)


def _selected(select: Sequence[str] | Mapping[str, str] | None, what: str) -> tuple[tuple[str | None, str], ...] | None:
    if select is None:
        return None
    if isinstance(select, str) or not select:
        raise DeclarationError(f"{what}: select lists columns, or maps names to columns; got {select!r}")
    return tuple(select.items()) if isinstance(select, Mapping) else tuple((None, name) for name in select)


# ---- does it fit its streams?


def check_join(spec: JoinSpec, left: Relation, right: Relation, what: str) -> None:
    """The columns that a join names exist and have fitting types."""
    named = [(spec.left_time, left), (spec.right_time, right)]
    for one, other in spec.on:
        named += [(one, left), (other, right)]
    for name, relation in named:
        if name not in relation.index_of:
            columns = ", ".join(relation.index_of)
            raise DeclarationError(f"{what}: names column {name!r}; stream {relation.name} has {columns}", column=name)
    for name, relation in named[:2]:
        column = relation.column(name)
        timed = column.type.family in ("timestamp", "date")
        if not timed and (column.type.family != "integer" or column.type.sql == "UBIGINT"):
            raise DeclarationError(
                f"{what}: {relation.name}.{name} is {column.type}; a time must be timestamp, date or integer"
            )
        if column.nullable:
            raise DeclarationError(f"{what}: {name} may be NULL; declare it NOT NULL in stream {relation.name}")
        if timed != spec.timed:
            raise DeclarationError(
                f"{what}: {relation.name}.{name} is {column.type}, so lengths are "
                f"{'lengths of time' if timed else 'whole numbers in its unit'}, for example {repr('10s') if timed else 10}"
            )
    for one, other in spec.on:
        kinds = left.column(one).type, right.column(other).type
        if kinds[0].family != kinds[1].family or not kinds[0].hashable_key:
            raise DeclarationError(
                f"{what}: {left.name}.{one} is {kinds[0]} and {right.name}.{other} is {kinds[1]}; columns joined on must be of "
                f"one type that can be a key"
            )
    Output(spec, left, right)


# ---- the result


@dataclass(frozen=True)
class Source:
    """Where a column of the result comes from: of one side, or (``column`` joined on by one name) of whichever is there."""

    name: str
    column: str
    sides: tuple[int, ...]


class Output:
    """The relation of a join's results, and where each of its columns comes from."""

    def __init__(self, spec: JoinSpec, left: Relation, right: Relation) -> None:
        self.spec = spec
        sides = (left, right)
        known = self._all(sides)
        self.sources = known if spec.select is None else [self._pick(known, *one) for one in spec.select]
        columns = []
        if spec.size is not None:
            bound = column_type("TIMESTAMP" if spec.timed else "BIGINT")
            columns = [Column("window_start", bound, nullable=False), Column("window_end", bound, nullable=False)]
        for source in self.sources:
            column = sides[source.sides[0]].column(source.column)
            may_lack = len(source.sides) == 1 and spec.outer[1 - source.sides[0]]
            columns.append(Column(source.name, column.type, nullable=column.nullable or may_lack))
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(
                    f"join of {left.name} and {right.name}: two columns of the result would be called {name}; name them with "
                    f"select={{new_name: 'stream.column'}}"
                )
        self.relation = Relation(f"{left.name} with {right.name}", tuple(columns))
        keys = [{pair[side] for pair in spec.on} for side in (0, 1)]
        times = (spec.left_time, spec.right_time)
        self.needed = [
            [
                name
                for name in sides[side].index_of
                if name in keys[side]
                or name == times[side]
                or any(side in source.sides and source.column == name for source in self.sources)
            ]
            for side in (0, 1)
        ]

    def _all(self, sides: tuple[Relation, Relation]) -> list[Source]:
        shared = {one for one, other in self.spec.on if one == other}
        found = []
        for side, relation in enumerate(sides):
            for name in relation.index_of:
                if name not in shared:
                    clash = name in sides[1 - side].index_of
                    found.append(Source(f"{relation.name}_{name}" if clash else name, name, (side,)))
                elif side == 0:
                    found.append(Source(name, name, (0, 1)))
        return found

    def _pick(self, known: list[Source], name: str | None, column: str) -> Source:
        spec = self.spec
        stream, dot, own = column.rpartition(".")
        for source in known:
            where = {spec.streams[side] for side in source.sides}
            if (dot and stream in where and source.column == own) or (not dot and source.name == column):
                return Source(name or source.name, source.column, source.sides)
        raise DeclarationError(
            f"join of {spec.left} and {spec.right}: select names {column!r}; there are "
            f"{', '.join(source.name for source in known)}",
            column=column,
        )
