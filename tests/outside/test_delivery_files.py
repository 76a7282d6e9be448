"""Exactly-once into files, under kills: one whole file per batch, no gaps, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from delivery_kills import POINTS, SENSORS, Arrived, Tormentor


def torment(tmp_path: Path, kills: int, recovery: str) -> None:
    files = tmp_path / "files"

    def arrived() -> Arrived:
        found: Arrived = {sensor: [] for sensor in range(SENSORS)}
        for path in sorted(files.glob("sums-*.ndjson")):
            sensor, batch = int(path.stem.split("-")[1]), int(path.stem.split("-")[2])
            for row in map(json.loads, path.read_text().splitlines()):
                assert (row["sensor"], row["batch"]) == (sensor, batch)
                found[sensor].append((batch, row["part"], row["total"]))
        return found

    tormentor = Tormentor(tmp_path / "engine", f"files:{files}", arrived, kills, "--recovery", recovery)
    for number in range(kills):
        if number % 2:
            tormentor.kill_sometime()
        else:
            tormentor.kill_at(POINTS[number // 2 % 2])
    batches = tormentor.finish()
    assert not list(files.glob(".*")), "half-written files are removed by the next process"
    print(f"files ({recovery}): {batches} batches, kills {tormentor.kills}, 0 lost, 0 doubled")


def test_files_and_four_kills(tmp_path: Path) -> None:
    torment(tmp_path, 4, "weak")


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_files_and_twenty_kills(tmp_path: Path, recovery: str) -> None:
    torment(tmp_path, 20, recovery)
