"""Versions of an app on one directory: closed, merged, killed, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.dataflows.fingerprint import difference, fingerprint
from tidegate.testing.editions import Edition
from tidegate.testing.simulation.upgrades import simulate_upgrades
from tidegate.testing.upgrade_crashes import UpgradeRound


def test_editions_are_told_apart() -> None:
    first = fingerprint(Edition().app())
    told = [difference(first, fingerprint(e.app())) for e in (Edition(constant=6), Edition(helper=4), Edition(body=1))]
    assert ["constant LIMIT" in told[0][0], "function helper()" in told[1][0], "function step()" in told[2][0]] == [
        True
    ] * 3
    assert "procedure note: is new" in difference(first, fingerprint(Edition(note="note").app()))


@pytest.mark.parametrize("seed", range(3))
def test_each_version_stands_for_what_it_accepted(seed: int) -> None:
    _, _, wrong = simulate_upgrades(seed)
    assert wrong is None, wrong


@pytest.mark.slow
def test_versions_that_are_killed(tmp_path: Path) -> None:
    for seed in range(3):
        UpgradeRound(seed, tmp_path / str(seed)).run()
