"""Patterns against their definition, over random patterns, rows, splits, disorder, aborts and checkpoints."""

from __future__ import annotations

import random

import naive_patterns as naive
import pattern_cases as cases
import pytest

MOST = {"any": 9, "next": 14, "strict": 14}


def check(seed: int) -> bool:
    rng = random.Random(seed)
    case = cases.random_case(rng)
    if case is None:
        return False
    spec = case.spec
    rows = cases.random_rows(rng, MOST[spec.select], spec)
    mark = None if spec.on is None or rng.random() < 0.3 else rows[-1].t + rng.choice([0, 3, 50])
    try:
        wanted = cases.by_definition(case, rows, mark)
    except naive.TooMany:
        return False
    found, _ = cases.run(spec, rows, mark, rng)
    assert found == wanted, f"seed {seed}: {spec} defining {spec.defined}"
    return bool(wanted.matches)


@pytest.mark.parametrize("start", range(0, 900, 100))
def test_matches_are_those_of_the_definition(start: int) -> None:
    assert sum(check(seed) for seed in range(start, start + 100)) >= 10, "too few of them match anything"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 30_000, 1_000))
def test_matches_are_those_of_the_definition_in_thousands_of_cases(start: int) -> None:
    for seed in range(start, start + 1_000):
        check(seed)
