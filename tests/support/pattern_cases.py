"""Random patterns, with their conditions in SQL and in Python, and random rows to look for them in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import naive_patterns as naive

from tidegate.errors import DeclarationError
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.patterns.declare import PatternSpec, pattern
from tidegate.streams.windows.patterns.state import PatternState
from tidegate.streams.windows.patterns.text import parse

EVENTS = Relation(
    "ev",
    (
        Column("k", column_type("BIGINT"), nullable=False),
        Column("t", column_type("BIGINT"), nullable=False),
        Column("kind", column_type("VARCHAR"), nullable=False),
        Column("v", column_type("BIGINT")),
    ),
)

Fn = Callable[[Any, list[tuple[str, Any]]], Any]


def last(bound: list[tuple[str, Any]], name: str) -> Any:
    return next((row for one, row in reversed(bound) if one == name), None)


def of(bound: list[tuple[str, Any]], name: str) -> list[Any]:
    return [row.v for one, row in bound if one == name and row.v is not None]


def compared(a: Any, b: Any, test: Callable[[Any, Any], bool]) -> Any:
    return None if a is None or b is None else test(a, b)


def value_of(row: Any) -> Any:
    return None if row is None else row.v


def conditions_of(name: str, others: list[str], rng: random.Random) -> tuple[str | None, Fn]:
    """A condition of element ``name``, as SQL and as a function."""
    kind = f"kind = '{name}'"

    def same(row: Any, bound: Any) -> Any:
        return row.kind == name

    other = rng.choice(others) if others else name
    extra: list[tuple[str | None, Fn]] = [
        (None, lambda row, bound: True),
        (f"{kind} OR v IS NULL", lambda row, bound: row.kind == name or row.v is None),
        (f"{kind} AND v >= 2", lambda row, bound: row.kind == name and compared(row.v, 2, lambda a, b: a >= b)),
        (
            f"{kind} AND v >= {other}.v",
            lambda row, bound: (
                same(row, bound)
                and compared(row.v, (row if other == name else last(bound, other) or row).v, lambda a, b: a >= b)
                and (other == name or last(bound, other) is not None)
            ),
        ),
        (
            f"{kind} AND v > prev(v)",
            lambda row, bound: (
                same(row, bound) and compared(row.v, value_of(bound[-1][1]) if bound else None, lambda a, b: a > b)
            ),
        ),
        (
            f"{kind} AND count({name}) <= 2",
            lambda row, bound: same(row, bound) and sum(one == name for one, _ in bound) + 1 <= 2,
        ),
        (
            f"{kind} AND v * count({other}) >= sum({other}.v)",
            lambda row, bound: same(row, bound) and against_sum(row, bound, name, other),
        ),
        (
            f"kind IN ('{name}', 'c') AND coalesce(max({other}.v), 0) <= 3",
            lambda row, bound: (
                row.kind in (name, "c")
                and max([*of(bound, other), *([row.v] if other == name and row.v is not None else [])], default=0) <= 3
            ),
        ),
    ]
    if rng.random() < 0.6:
        return kind, same
    return rng.choice(extra)


def against_sum(row: Any, bound: list[tuple[str, Any]], name: str, other: str) -> Any:
    values, number = of(bound, other), sum(one == other for one, _ in bound)
    if other == name:
        values, number = [*values, *([row.v] if row.v is not None else [])], number + 1
    if row.v is None or not values:
        return None
    return row.v * number >= sum(values)


def random_text(rng: random.Random) -> str:
    """A pattern over elements a to d, and x that must not come."""
    names = rng.sample("abcd", rng.choice([1, 2, 2, 3, 3, 4]))

    def repeated(text: str) -> str:
        return text + rng.choice(["", "", "", "", "+", "*", "?", "{2}", "{1,2}", "{2,}"])

    parts = [repeated(name) for name in names]
    if len(parts) > 2 and rng.random() < 0.5:
        operator = rng.choice(["SEQ", "AND", "OR", ""])
        times = rng.choice(["", "", "?", "+"])
        if times == "+":
            parts[-2:] = names[-2:]  # else the definition would take for ever
        parts[-2:] = [f"{operator}({parts[-2]}, {parts[-1]}){times}"]
    elif len(parts) == 2 and rng.random() < 0.3:
        return f"{rng.choice(['AND', 'OR'])}({', '.join(names)})"
    found = [parts[0]]
    for part in parts[1:]:
        if rng.random() < 0.3:
            found.append(rng.choice(["!x", "!x", "!y", "!OR(x, y)"]))
        found.append(part)
    if rng.random() < 0.2:
        found.append("!x")
    return f"SEQ({', '.join(found)})"


class Case(NamedTuple):
    spec: PatternSpec
    conditions: dict[str, Fn]


def random_case(rng: random.Random) -> Case | None:
    """A pattern, or None where the one that was drawn is refused."""
    text = random_text(rng)
    names = [name for name in "abcd" if name in text.replace("AND", "")]
    define: dict[str, str] = {}
    conditions: dict[str, Fn] = {}
    for name in [*names, *(n for n in "xy" if n in text)]:
        sql, function = conditions_of(name, names, rng)
        if name in "xy" and (sql is None or f"count({name})" in sql):
            sql, function = f"kind = '{name}'", conditions_named(name)
        if sql is not None:
            define[name] = sql
        conditions[name] = function
    timed = rng.random() < 0.9
    after = rng.choice(["no_skip", "no_skip", "to_next", "past_last", f"to_first({names[0]})", f"to_last({names[-1]})"])
    consume = rng.sample(names, 1) if rng.random() < 0.3 else []
    options: dict[str, Any] = {"within": rng.choice([3, 6, 12, 30]), "on": "t"} if timed else {}
    if timed and rng.random() < 0.4:
        options |= {"delay": rng.choice([1, 3, 8]), "late": rng.choice(["drop", "adjust"])}
    try:
        spec = pattern(
            "ev", match=text, define=define, by=rng.choice([(), "k", "k"]), select=rng.choice(["any", "next", "strict"]),
            after=after, consume=consume, timeout=timed and after == "no_skip" and not consume and rng.random() < 0.5,
            max_partials=5_000, measures={"n": "count(*)", "s": f"sum({names[0]}.v)", "l": f"{names[-1]}.t"}, **options,
        )  # fmt: skip
        PatternState(spec, {"ev": EVENTS})
    except DeclarationError:
        return None
    return Case(spec, conditions)


def conditions_named(name: str) -> Fn:
    return lambda row, bound: row.kind == name


def random_rows(rng: random.Random, most: int, spec: PatternSpec) -> list[Any]:
    """Rows whose times come forward, more or less."""
    at, found = rng.choice([-5, 0, 100]), []
    for _ in range(rng.randint(1, most)):
        at += rng.choice([0, 0, 1, 1, 2, 4])
        late = rng.choice([0, 0, 1, spec.delay, spec.delay + 1]) if spec.delay else rng.choice([0] * 9 + [1])
        kind = rng.choice("aabbccddxy")
        found.append(EVENTS.conform((rng.choice([1, 1, 2]), at - late, kind, rng.choice([None, 0, 1, 2, 3, 4]))))
    return found


class Ran(NamedTuple):
    """What came out: what was bound to each match, its measures; what timed out; what was late."""

    matches: list[Any]
    results: list[Any]
    over: list[Any]
    late: list[Any]


def by_definition(case: Case, rows: list[Any], mark: int | None) -> Ran:
    spec = case.spec
    tree = parse("pattern", spec.match)
    if spec.on is None:
        held, late, watermark = [naive.Held(0, n, row) for n, row in enumerate(rows, 1)], [], naive.NEVER
    else:
        held, late, watermark = naive.taken_in(spec, rows, lambda row: row.t, naive.NEVER if mark is None else mark)
    key_of = (lambda row: row.k) if spec.by else (lambda row: 0)
    found, over = naive.expected(spec, tree, case.conditions, held, watermark, key_of)
    row_of = {one.number: one.row for one in held}

    def told(one: Any) -> Any:
        return tuple((name, tuple(row_of[n])) for name, n in one.bound)

    names = [spec.measures[1][1][4:-3], spec.measures[2][1][:-2]]
    results = []
    for number, one in enumerate(found, 1):
        bound = [(name, row_of[n]) for name, n in one.bound]
        values = of(bound, names[0])
        end = last(bound, names[1])
        start, stop = (one.start, one.end) if spec.on else (one.bound[0][1], one.bound[-1][1])
        by = (bound[0][1].k,) if spec.by else ()
        results.append(
            (*by, number, start, stop, len(bound), sum(values) if values else None, None if end is None else end.t)
        )
    return Ran([told(one) for one in found], results, [told(one) for one in over], late)


def run(spec: PatternSpec, rows: list[Any], mark: int | None, rng: random.Random, state: Any = None) -> tuple[Ran, Any]:
    """In random batches, some as columns; some are undone and taken in again; now and then the state is saved and restored."""
    state = state or PatternState(spec, {"ev": EVENTS})
    ran = Ran([], [], [], [])
    place = 0
    while place < len(rows) or mark is not None:
        size = rng.choice([1, 1, 2, 3, 7, 40])
        batch: Any = tuple(rows[place : place + size])
        place += size
        told = None
        if place >= len(rows) and mark is not None:
            told, mark = mark, None
        if rng.random() < 0.5 and batch:
            batch = ColumnRows.of_rows(EVENTS, batch) if hasattr(ColumnRows, "of_rows") else batch
        if rng.random() < 0.3:
            state.slide(batch, 0, told) if told is not None else state.slide(batch)
        slide = state.slide(batch, 0, told) if told is not None else state.slide(batch)
        ran.matches.extend(tuple((name, tuple(row)) for name, row in match.bound) for match in slide.matches)
        ran.results.extend(tuple(row) for row in slide.results)
        ran.over.extend(tuple((name, tuple(row)) for name, row in match.bound) for match in slide.timed_out)
        ran.late.extend(slide.late)
        slide.commit()
        if rng.random() < 0.2:
            saved, contents = state.save(), state.contents()
            state = state.fresh()
            state.restore(saved)
            assert state.contents() == contents
    return ran, state
