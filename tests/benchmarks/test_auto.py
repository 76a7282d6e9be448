"""The benchmark of ``backend="auto"``: every choice computes the same, and a difference would be noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.benchmarks import auto
from tidegate.streams.windows.evaluate.local import HERE, LocalBackend
from tidegate.streams.windows.evaluate.plan import shared_backend


def test_every_shape_is_measured_and_ends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({shape.name for shape in auto.SHAPES}) == 20
    monkeypatch.setattr(auto, "SHAPES", [auto.SHAPES[3], auto.SHAPES[16]])
    before = shared_backend()
    facts = auto.bench(rounds=1, scale=0.05)
    assert facts["correct"]
    assert [*facts["shapes"]] == [shape.name for shape in auto.SHAPES]
    assert 0 < facts["auto_least"] <= facts["auto_median"]
    assert shared_backend() is before


def test_different_results_are_noticed() -> None:
    calls: list[int] = []

    def counted(extent: object) -> float:
        calls.append(1)
        return float(len(calls))

    shape = replace(auto.SHAPES[0], function=counted)
    assert not auto.measure(shape, 1, 0.05, False, LocalBackend(only=HERE))[1]
