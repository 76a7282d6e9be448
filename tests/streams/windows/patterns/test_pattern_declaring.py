"""Bad patterns are refused when they are declared, with the place in the text."""

from __future__ import annotations

from typing import Any

import pattern_cases as cases
import pytest

from tidegate import pattern
from tidegate.errors import DeclarationError
from tidegate.streams.windows.patterns.state import PatternState


def declared(match: str, **options: Any) -> PatternState:
    return PatternState(pattern("ev", match=match, **options), {"ev": cases.EVENTS})


@pytest.mark.parametrize(
    ("match", "place", "why"),
    [
        ("SEQ(!a, b)", 4, "a negation can't be first"),
        ("SEQ(a?, !x, b)", 0, "a negation would be first"),
        ("!a", 0, "stands in a SEQ"),
        ("SEQ(a, !SEQ(b, c), d)", 7, "an element, or an OR of elements"),
        ("SEQ(a, !b+, c)", 9, "can't be repeated"),
        ("AND(a, !b)", 7, "in AND it has no place in time"),
        ("a*", 1, "it would match nothing at all"),
        ("SEQ(a b c)", 8, "where a comma"),
        ("SEQ(a,, b)", 6, "where an element or a part in parentheses is expected"),
        ("SEQ(a", 5, "the text ends"),
        ("SEQ a", 4, "needs its parts in parentheses"),
        ("a{3,2}", 1, "can never be"),
        ("a{x}", 1, "is not how often"),
        ("a, b", 1, "the pattern ends before ','"),
        ("SEQ(a v, b v)", 9, "v already names rows of a"),
        ("SEQ(a, $)", 7, "means nothing in a pattern"),
        ("AND(a, b, c, d, e, f)", 0, "AND takes up to 5 parts"),
        ("a{600}", 0, "more than 500"),
        ("SEQ(a, OR(b?, (c?, !x)), d)", 7, "ambiguous"),
        ("SEQ(a, (b?, !x)*, d)", 15, "ambiguous"),
    ],
)
def test_the_place_in_the_text_is_shown(match: str, place: int, why: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declared(match, on="t", within=5)
    text = str(refused.value)
    assert why in text
    assert f"at character {place + 1} of match=" in text
    assert text.splitlines()[-1].index("^") == place + 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"match": "SEQ(a, b)", "define": {"c": "v = 1"}}, "define names 'c', which is no element"),
        ({"match": "SEQ(a, b)", "define": {"a": "v = b.v"}}, "looks at b, which is never bound before it"),
        ({"match": "AND(a, b)", "define": {"a": "v = b.v", "b": "v = a.v"}}, "look at each other's rows"),
        ({"match": "SEQ(a, b)", "define": {"a": "w = 1"}}, "no such column"),
        ({"match": "SEQ(a, b)", "define": {"a": "v"}}, "not a condition"),
        ({"match": "SEQ(a, b)", "define": {"a": "kind = 1"}}, "can't be compared"),
        ({"match": "SEQ(a, b)", "define": {"a": "v ="}}, "not a valid expression"),
        ({"match": "SEQ(a, b)", "define": {"b": "sum(v) > 1"}}, "over the rows of one variable"),
        ({"match": "SEQ(a, b)", "define": {"a": "soundex(kind) = 'x'"}}, "not known|know the functions"),
        ({"match": "SEQ(a, b)", "define": {"a": 5}}, "an SQL expression or a function"),
        ({"match": "SEQ(a, b)", "define": {"a": lambda: True}}, "takes 0 arguments"),
        ({"match": "SEQ(a, b)", "measures": {"n": "v"}}, "of which row"),
        ({"match": "SEQ(a, b)", "measures": {"match_id": "a.v"}}, "can't be called"),
        ({"match": "SEQ(a, b)", "select": "some"}, "select must be"),
        ({"match": "SEQ(a, b)", "after": "to_first"}, "after must be"),
        ({"match": "SEQ(a, b)", "after": "to_first(q)"}, "after names 'q'"),
        ({"match": "SEQ(a, b)", "consume": "q"}, "consume names 'q'"),
        ({"match": "SEQ(a, b)", "select": "any"}, "without within= would wait"),
        ({"match": "SEQ(a, !b)"}, "known when the pattern's time is over"),
        ({"match": "SEQ(a, b)", "timeout": True}, "timeout=True needs within="),
        ({"match": "SEQ(a, b)", "within": 5}, "name its column with on="),
        ({"match": "SEQ(a, b)", "on": "kind"}, "must be timestamp, date or integer"),
        ({"match": "SEQ(a, b)", "on": "v"}, "may be NULL"),
        ({"match": "SEQ(a, b)", "on": "t", "within": "5s"}, "whole numbers in its unit"),
        ({"match": "SEQ(a, b)", "by": "q"}, "by names column 'q'"),
        ({"match": "SEQ(a, b)", "max_partials": 0}, "positive whole number"),
        ({"match": ""}, "match= is the pattern"),
    ],
)
def test_what_does_not_make_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(**options)
