"""Exactly-once into a border stream of the same engine, under kills: each batch once, in order per key."""

from __future__ import annotations

from pathlib import Path

import pytest
from delivering import make_app
from delivery_kills import POINTS, SENSORS, Arrived, Tormentor

import tidegate
from tidegate.offline.verify import verify


def torment(tmp_path: Path, kills: int, recovery: str) -> None:
    def arrived() -> Arrived:
        found: Arrived = {sensor: [] for sensor in range(SENSORS)}
        with tidegate.open(make_app(recovery, follow=True), tmp_path / "engine") as engine:
            rows = engine.query("SELECT * FROM arrived ORDER BY sensor, place").rows
        for row in rows:
            found[row.sensor].append((row.batch, row.part, row.total))
        return found

    tormentor = Tormentor(tmp_path / "engine", "engine", arrived, kills, "--recovery", recovery)
    for number in range(kills):
        if number % 2:
            tormentor.kill_sometime()
        else:
            tormentor.kill_at(POINTS[number // 2 % 2 - 1])
    batches = tormentor.finish()
    assert verify(make_app(recovery, follow=True), tmp_path / "engine").same
    print(f"engine ({recovery}): {batches} batches, kills {tormentor.kills}, 0 lost, doubled or out of order")


def test_an_engine_and_a_kill(tmp_path: Path) -> None:
    torment(tmp_path, 1, "weak")


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_an_engine_and_twenty_kills(tmp_path: Path, recovery: str) -> None:
    torment(tmp_path, 20, recovery)
