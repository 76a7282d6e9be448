"""Patterns as SQL: MATCH_RECOGNIZE makes the same declaration."""

from __future__ import annotations

import pattern_cases as cases
import pytest

from tidegate import pattern
from tidegate.errors import DeclarationError
from tidegate.streams.windows.patterns.sql import match_of, without_within
from tidegate.streams.windows.patterns.state import PatternState


def test_both_ways_of_writing_make_one_declaration() -> None:
    written = pattern.sql(
        "ev MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES a.v AS s, count(B.*) AS n ONE ROW PER MATCH "
        "AFTER MATCH SKIP TO LAST b PATTERN (a b+ c) WITHIN 30 DEFINE a AS kind = 'a', B AS b.v > PREV(b.v), c AS kind = 'c')",
        timeout=True,
    )
    assert written == pattern(
        "ev", match="SEQ(a, b+, c)", on="t", by="k", within=30, select="strict", after="to_last(b)", timeout=True,
        define={"a": "kind = 'a'", "b": "b.v > PREV(b.v)", "c": "kind = 'c'"}, measures={"s": "a.v", "n": "COUNT(b.*)"},
    )  # fmt: skip
    state = PatternState(written, {"ev": cases.EVENTS})
    rows = [(1, 1, "a", 2), (1, 2, "b", 3), (1, 3, "b", 5), (1, 4, "c", 5)]
    slide = state.slide(tuple(cases.EVENTS.conform(row) for row in rows))
    assert [tuple(row) for row in slide.results] == [(1, 1, 1, 4, 2, 2)]


@pytest.mark.parametrize(
    ("written", "match"),
    [
        ("a", "SEQ(a)"),
        ("a b* c?", "SEQ(a, b*, c?)"),
        ("(a | b) c", "SEQ(OR(a, b), c)"),
        ("a | b c", "OR(a, SEQ(b, c))"),
        ("(a b){2,3} c", "SEQ(SEQ(a, b){2,3}, c)"),
        ("PERMUTE(a, b) c+?", "SEQ(AND(a, b), c+)"),
    ],
)
def test_the_pattern_is_translated(written: str, match: str) -> None:
    assert match_of(written) == match


def test_within_is_found_where_it_stands() -> None:
    assert without_within("PATTERN (a) WITHIN INTERVAL '5' MINUTE DEFINE x") == ("PATTERN (a)  DEFINE x", "300.000000s")
    assert without_within("PATTERN (a) WITHIN '5m'")[1] == "5m"
    assert without_within("DEFINE a AS v = 'WITHIN 3'")[1] is None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ev MATCH_RECOGNIZE (ORDER BY t PATTERN (a b+))", "goes on for as long as it can"),
        ("ev MATCH_RECOGNIZE (PATTERN (a b))", "ORDER BY names one column"),
        ("ev MATCH_RECOGNIZE (ORDER BY t DESC PATTERN (a b))", "ORDER BY names one column"),
        ("ev MATCH_RECOGNIZE (ORDER BY t ALL ROWS PER MATCH PATTERN (a b))", "one row per match"),
        ("ev MATCH_RECOGNIZE (ORDER BY t PATTERN (a ^ b))", "at character 3 of PATTERN"),
        ("ev", "write stream MATCH_RECOGNIZE"),
    ],
)
def test_what_means_something_else_is_refused(sql: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        pattern.sql(sql)
