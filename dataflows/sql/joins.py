"""Two streams in FROM: which of the engine's joins that is."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.dataflows.sql.text import Piece
from tidegate.errors import DeclarationError
from tidegate.storage.sql.codes import conjuncts
from tidegate.streams.windows.declare.joins import JoinSpec, join

if TYPE_CHECKING:
    from tidegate.dataflows.app import App
    from tidegate.dataflows.sql.planning import Sources

EXAMPLE = (
    "write FROM a JOIN b ON a.key = b.key AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '10 minutes', each with a WATERMARK"
)


@dataclass(frozen=True)
class StreamJoin:
    """A join of two streams, under a name that the query reads in their place."""

    name: str
    spec: JoinSpec
    tree: exp.Select
    outer: bool
    inputs: tuple[str, str]


class _Bounds:
    """How far the right time may be from the left time, in microseconds; None: any."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def at_least(self, value: int) -> None:
        self.low = value if self.low is None else max(self.low, value)

    def at_most(self, value: int) -> None:
        self.high = value if self.high is None else min(self.high, value)


def join_of(app: App, piece: Piece, tree: exp.Select, sources: Sources) -> StreamJoin:
    """The join of the two streams in FROM, and the query over its results."""
    if sources.windows:
        raise piece.refused(
            0, "a window can't be joined with another stream in one statement",
            "declare the window as a stream of its own, and join the two with a condition on their times",
        )  # fmt: skip
    left, right = sources.streams
    joins = list(tree.args.get("joins") or [])
    node = next(j for j in joins if isinstance(j.this, exp.Table) and j.this.alias_or_name.lower() == right)
    side, kind = node.side.upper(), node.kind.upper()
    method = str(node.args.get("method") or "").upper()
    if method == "ASOF" or kind == "SEMI" or side == "RIGHT":
        told = method or kind or side
        raise piece.refused(
            0, f"{told} JOIN of streams is not supported",
            "join them within a time (b.ts BETWEEN a.ts AND a.ts + INTERVAL '10 minutes'), or keep the newest row of one in a "
            "table, and look that up",
        )  # fmt: skip
    anti = kind == "ANTI"
    times = [_time_of(app, piece, sources.streams[alias]) for alias in (left, right)]
    conditions = _conditions(node, tree, piece, outer=bool(side) or anti)
    on: dict[str, str] = {}
    bounds = _Bounds()
    rest: list[exp.Expression] = []
    for condition in conditions:
        pair = _equal(condition, sources, left, right)
        if pair is not None and pair[0] not in on:
            on[pair[0]] = pair[1]
        elif not _bounded(app, condition, sources, (left, times[0]), (right, times[1]), bounds):
            rest.append(condition)
    if bounds.low is None or bounds.high is None:
        raise piece.refused(0, "two streams are joined within a time, and this join has none on both sides", EXAMPLE)
    if rest and (side or anti):
        raise piece.refused(
            0, f"{rest[0].sql('duckdb')} in ON of an outer join of streams is not supported",
            "filter the streams before: CREATE STREAM … AS SELECT … WHERE",
        )  # fmt: skip
    if bounds.low > 0 or bounds.high < 0:
        if side or anti:
            raise piece.refused(0, "an outer join needs a range of times that includes the same time", EXAMPLE)
        rest += [c for c in conditions if _equal(c, sources, left, right) is None and c not in rest]
    within = (dt.timedelta(microseconds=max(0, -bounds.low)), dt.timedelta(microseconds=max(0, bounds.high)))
    names = {alias: sources.streams[alias] for alias in (left, right)}
    select = {
        f"{'lr'[place]}_{column}": f"{names[alias]}.{column}"
        for place, alias in enumerate((left, right))
        for column in app.streams[names[alias]].relation.index_of
    }
    delay = max(
        (app.watermarks[s][1] or dt.timedelta(0) for s in names.values() if s in app.watermarks),
        default=dt.timedelta(0),
    )
    how: Any = "left" if anti else {"": "inner", "LEFT": "left", "FULL": "full"}[side]
    try:
        spec = join(
            names[left], names[right], on=on, left_time=times[0], right_time=times[1], within=within, how=how,
            delay=delay or None, select=select,
        )  # fmt: skip
    except DeclarationError as error:
        raise piece.refused(0, str(error), EXAMPLE) from None
    name = f"{names[left]}_{names[right]}"
    made = _over_results(tree, node, rest, name, (left, right), sources, spec, (times[0], times[1]))
    if anti:
        made = made.where(f'"{name}"."r_{times[1]}" IS NULL', dialect="duckdb")
    return StreamJoin(name, spec, made, how != "inner", (names[left], names[right]))


def _time_of(app: App, piece: Piece, stream: str) -> str:
    known = app.watermarks.get(stream)
    if known is not None:
        return str(known[0])
    times = [c.name for c in app.streams[stream].relation.columns if c.type.family == "timestamp" and not c.nullable]
    if len(times) == 1:
        return times[0]
    raise piece.refused(
        0,
        f"which column has the time of {stream} is not declared",
        f"add WATERMARK FOR ts AS ts to CREATE STREAM {stream}",
    )


def _conditions(node: exp.Join, tree: exp.Select, piece: Piece, outer: bool) -> list[exp.Expression]:
    """What must hold for a pair: ON, USING and, of an inner join, WHERE, which stays in the query, too."""
    found: list[exp.Expression] = []
    on = node.args.get("on")
    if on is not None:
        found += conjuncts(on)
    if node.args.get("using"):
        raise piece.refused(0, "USING is not supported in a join of streams", "write ON a.key = b.key")
    where = tree.args.get("where")
    if where is not None and not outer:
        found += conjuncts(where)
        tree.set("where", None)
    return found


def _equal(condition: exp.Expression, sources: Sources, left: str, right: str) -> tuple[str, str] | None:
    if not isinstance(condition, exp.EQ):
        return None
    one, other = condition.this, condition.expression
    if not isinstance(one, exp.Column) or not isinstance(other, exp.Column):
        return None
    owners = sources.owner(one), sources.owner(other)
    if owners == (left, right):
        return one.name, other.name
    return (other.name, one.name) if owners == (right, left) else None


def _bounded(
    app: App,
    condition: exp.Expression,
    sources: Sources,
    left: tuple[str, str],
    right: tuple[str, str],
    bounds: _Bounds,
) -> bool:
    """Does the condition bound the distance of the two times? Then ``bounds`` knows it."""
    if isinstance(condition, exp.Between):
        low = exp.GTE(this=condition.this.copy(), expression=condition.args["low"].copy())
        high = exp.LTE(this=condition.this.copy(), expression=condition.args["high"].copy())
        both = [_bounded(app, part, sources, left, right, bounds) for part in (low, high)]
        return all(both)
    steps: dict[type[exp.Expression], tuple[str, int]] = {
        exp.GTE: (">", 0), exp.GT: (">", 1), exp.LTE: ("<", 0), exp.LT: ("<", 1)
    }  # fmt: skip
    if type(condition) not in steps:
        return False
    sign, strict = steps[type(condition)]
    one = _shifted(app, condition.this, sources)
    other = _shifted(app, condition.expression, sources)
    if one is None or other is None:
        return False
    if (one[0], other[0]) == (left, right):
        one, other, sign = other, one, "<" if sign == ">" else ">"
    elif (one[0], other[0]) != (right, left):
        return False
    distance = other[1] - one[1]  # right time … left time + distance
    if sign == ">":
        bounds.at_least(distance + strict)
    else:
        bounds.at_most(distance - strict)
    return True


def _shifted(app: App, node: exp.Expression, sources: Sources) -> tuple[tuple[str, str], int] | None:
    """A column plus or minus a constant interval: ((alias, column), microseconds)."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        owner = sources.owner(node)
        return ((owner, node.name), 0) if owner is not None else None
    if isinstance(node, (exp.Add, exp.Sub)):
        inner = _shifted(app, node.this, sources)
        by = _interval(app, node.expression)
        if inner is None or by is None:
            return None
        return inner[0], inner[1] + (by if isinstance(node, exp.Add) else -by)
    return None


def _interval(app: App, node: exp.Expression) -> int | None:
    if node.find(exp.Column):
        return None
    try:
        return int(app.scratch.interval(node.sql("duckdb")) // dt.timedelta(microseconds=1))
    except ValueError:
        return None


def _over_results(
    tree: exp.Select, node: exp.Join, rest: list[exp.Expression], name: str, sides: tuple[str, str], sources: Sources,
    spec: JoinSpec, times: tuple[str, str],
) -> exp.Select:  # fmt: skip
    """The query with the results of the join in the place of the two streams."""
    for condition in rest:
        tree.where(condition.copy(), copy=False)
    outputs = [part.alias_or_name for part in tree.expressions]
    shared = {one for one, other in spec.on if one == other}
    for place, part in enumerate(tree.expressions):
        if isinstance(part, exp.Column):
            tree.expressions[place].replace(exp.alias_(part.copy(), outputs[place], quoted=True))
    for column in list(tree.find_all(exp.Column)):
        owner = sources.owner(column)
        if owner not in sides:
            continue
        number = sides.index(str(owner))
        made: exp.Expression = exp.column(exp.to_identifier(f"{'lr'[number]}_{column.name}", quoted=True), table=name)
        if column.name in shared and spec.outer[1 - number] and not spec.outer[number] and number == 1:
            time = exp.column(exp.to_identifier(f"r_{times[1]}", quoted=True), table=name)
            made = exp.Case(ifs=[exp.If(this=exp.Is(this=time, expression=exp.Null()), true=exp.Null())], default=made)
        column.replace(made)
    tree.set("from_", exp.From(this=exp.to_table(name)))
    tree.set("joins", [other for other in tree.args.get("joins") or [] if other is not node] or None)
    return tree
