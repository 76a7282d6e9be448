"""Aggregates over all matches, against the matches by their definition; and what they keep."""

from __future__ import annotations

import random
from typing import Any

import naive_patterns as naive
import pattern_cases as cases
import pytest

from tidegate import pattern
from tidegate.errors import DeclarationError, MistakeError
from tidegate.storage.column_rows import ColumnRows
from tidegate.streams.windows.patterns.count_state import CountState
from tidegate.streams.windows.patterns.text import parse

SQL = {
    "a": "kind = 'a'", "b": "kind = 'b' OR v = 4", "c": "kind = 'c'", "d": "kind <> 'a'", "x": "kind = 'x'", "y": "kind = 'y'",
}  # fmt: skip
PYTHON: dict[str, Any] = {
    "a": lambda row, bound: row.kind == "a",
    "b": lambda row, bound: row.kind == "b" or row.v == 4,
    "c": lambda row, bound: row.kind == "c",
    "d": lambda row, bound: row.kind != "a",
    "x": lambda row, bound: row.kind == "x",
    "y": lambda row, bound: row.kind == "y",
}


def declared(match: str, **options: Any) -> Any:
    define = {name: sql for name, sql in SQL.items() if name in match.replace("AND", "")}
    return pattern("ev", match=match, define=define, **options)


def check(seed: int) -> bool:
    rng = random.Random(seed)
    text = cases.random_text(rng).removesuffix(", !x)").rstrip(")") + ")"
    text += ")" * (text.count("(") - text.count(")"))
    name = next(one for one in "abcd" if one in text.replace("AND", ""))
    options: dict[str, Any] = {"on": "t", "within": rng.choice([3, 6, 12, 30, None])}
    if rng.random() < 0.3:
        options |= {"delay": rng.choice([1, 3, 8]), "late": rng.choice(["drop", "adjust"])}
    aggregate = {
        "n": "count(*)", "s": f"sum({name}.v)", "low": f"min({name}.v)", "high": f"max({name}.v)", "mean": f"avg({name}.v)",
    }  # fmt: skip
    try:
        spec = declared(text, by=rng.choice([(), "k"]), aggregate=aggregate, **options)
        state = CountState(spec, {"ev": cases.EVENTS})
    except DeclarationError:
        return False
    rows = cases.random_rows(rng, 9, spec)
    tree = parse("pattern", text)
    held, _, watermark = naive.taken_in(spec, rows, lambda row: row.t)
    key_of = (lambda row: row.k) if spec.by else (lambda row: 0)
    try:
        matches, _ = naive.expected(spec, tree, PYTHON, held, watermark, key_of)
    except naive.TooMany:
        return False
    row_of = {one.number: one.row for one in held}
    ends: dict[int, list[Any]] = {}
    for match in matches:
        ends.setdefault(match.bound[-1][1], []).append(match)
    wanted = []
    for number, found in sorted(ends.items()):
        values = [
            row_of[n].v for one in found for variable, n in one.bound if variable == name and row_of[n].v is not None
        ]
        by = (row_of[number].k,) if spec.by else ()
        told = (sum(values), min(values), max(values), sum(values) / len(values)) if values else (None,) * 4
        wanted.append((*by, found[0].end, len(found), *told))
    got: list[Any] = []
    place = 0
    while place < len(rows):
        size = rng.choice([1, 1, 2, 3, 7])
        batch: Any = tuple(rows[place : place + size])
        place += size
        batch = ColumnRows.of_rows(cases.EVENTS, batch) if rng.random() < 0.5 else batch
        if rng.random() < 0.3:
            state.slide(batch)
        slide = state.slide(batch)
        got += [tuple(row) for row in slide.results]
        slide.commit()
        if rng.random() < 0.2:
            saved, contents = state.save(), state.contents()
            state = state.fresh()
            state.restore(saved)
            assert state.contents() == contents
    assert got == wanted, f"seed {seed}: {spec}"
    return bool(wanted)


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_aggregates_are_those_of_the_matches(start: int) -> None:
    assert sum(check(seed) for seed in range(start, start + 100)) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 16_000, 1_000))
def test_aggregates_are_those_of_the_matches_in_thousands_of_cases(start: int) -> None:
    for seed in range(start, start + 1_000):
        check(seed)


def test_what_is_too_old_is_given_back() -> None:
    state = CountState(
        declared("SEQ(a, b)", on="t", by="k", within=10, aggregate={"n": "count(*)"}), {"ev": cases.EVENTS}
    )
    for at in range(1_000):
        state.slide((cases.EVENTS.conform((at % 7, at, "ab"[at // 7 % 2], 1)),)).commit()
    assert state.held() <= 20
    state.slide((cases.EVENTS.conform((99, 5_000, "c", 1)),)).commit()
    assert state.held() == 0
    assert not state.over


def test_an_abort_leaves_nothing_behind() -> None:
    state = CountState(declared("SEQ(a, b)", on="t", within=10, aggregate={"n": "count(*)"}), {"ev": cases.EVENTS})

    def rows(kinds: str, at: int) -> tuple[Any, ...]:
        return tuple(cases.EVENTS.conform((1, at + i, kind, 1)) for i, kind in enumerate(kinds))

    state.slide(rows("a", 0)).commit()
    before = state.contents()
    assert [row.n for row in state.slide(rows("aab", 1)).results] == [3]
    assert state.contents() == before
    assert [row.n for row in state.slide(rows("bb", 1)).results] == [1, 1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"match": "SEQ(a, b)", "define": {"b": "v > a.v"}}, "can't be counted without"),
        ({"match": "SEQ(a, !b)"}, "would be absent at the end"),
        ({"match": "AND(a?, SEQ(b, a?))"}, "in two ways"),
        ({"match": "SEQ(a, b)", "select": "next"}, "select can't go with it"),
        ({"match": "SEQ(a, b)", "measures": {"x": "a.v"}}, "measures can't go with it"),
        ({"match": "SEQ(a, b)", "aggregate": {"n": "count(a.v)"}}, "it can be count"),
        ({"match": "SEQ(a, b)", "aggregate": {"n": "sum(kind)"}}, "it can be count|over"),
        ({"match": "SEQ(a, b)", "aggregate": {"n": "sum(a.kind)"}}, "not numbers"),
        ({"match": "SEQ(a, b)", "aggregate": {}}, "it is empty"),
    ],
)
def test_what_can_not_be_counted_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        CountState(
            pattern("ev", **{"on": "t", "within": 5, "aggregate": {"n": "count(*)"}, **options}), {"ev": cases.EVENTS}
        )


def test_there_are_no_matches_to_look_at() -> None:
    state = CountState(declared("SEQ(a, b)", on="t", within=10, aggregate={"n": "count(*)"}), {"ev": cases.EVENTS})
    with pytest.raises(MistakeError, match="no matches are made"):
        _ = state.slide(()).matches
