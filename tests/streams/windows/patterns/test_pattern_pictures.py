"""A pattern in words and as a picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tidegate import pattern

FRAUD = pattern(
    "ev", match="SEQ(login l, !reset, fail f+, withdraw w)", on="t", within="5m", define={"fail": "ip <> l.ip"}
)


def test_it_says_what_is_looked_for() -> None:
    assert FRAUD.explain().splitlines() == [
        "SEQ(login l, !reset, fail f+, withdraw w) within 5m on t select next",
        "fail: ip <> l.ip",
        "(0) login called l, may be first: then f (1) without reset in between",
        "(1) fail called f: then f (1), or w (2)",
        "(2) withdraw called w: then a match",
    ]
    absent = pattern("ev", match="SEQ(a, !b)", on="t", within="5m").explain()
    assert "a match, when its time is over without b in between" in absent


@pytest.mark.parametrize("match", ["SEQ(a, !x, b+, c)", "SEQ(a, AND(b, c, d), !x)", "SEQ((a, b)+, OR(c, d)?)"])
def test_the_picture_has_all_of_it(match: str) -> None:
    svg = pattern("ev", match=match, on="t", within="5m").svg()
    root = ElementTree.fromstring(svg)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in "abcdx":
        if name in match.replace("AND", ""):
            assert any(text.endswith(name) for text in texts if name == "x" or not text.startswith("then"))
