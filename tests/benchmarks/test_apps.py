"""The applications: whatever the batches, they end as plain Python does."""

from __future__ import annotations

import pytest

from tidegate.benchmarks.apps import run
from tidegate.benchmarks.apps.case import same
from tidegate.benchmarks.apps.run import CASES, push


@pytest.mark.parametrize("name", CASES)
def test_they_end_as_plain_python_does(name: str) -> None:
    case = CASES[name]
    given = case.rows(8_000, 3)
    expected = case.plain(given)
    assert expected
    assert same(push(case, given, 700)[0], expected)
    few = given[:1_500]
    assert same(push(case, few, 1)[0], case.plain(few))
    assert not same(expected[1:], expected)


def test_a_line_of_figures_for_each() -> None:
    facts = run.bench(rows=3_000, rounds=1, rate=1_000_000, only=["word count", "skyline"])
    assert facts["correct"]
    assert [*facts["apps"]] == ["word count", "skyline"]
    for figures in facts["apps"].values():
        assert figures["plain_rows_per_s"] > 0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert all(figures[f"rows_per_s_by_{size}"] > 0 for size in run.SIZES)
