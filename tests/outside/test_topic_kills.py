"""A late reader gets exactly what an early one got, in the same order, however often the engine is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from topic_reading import LATE, READERS, make_app, told

import tidegate
from tidegate.offline.verify import verify

CHILD = Path(__file__).parent.parent / "support" / "topic_reading.py"
POINTS = (
    *("topic-before-write", "topic-before-sync", "topic-before-remove", "merge-after-commit", "merge-before-commit"),
    *("log-after-sync", "generation-after-rename", "retention-before-remove", "execution-after-commit"),
)


def run(directory: Path, seen: Path, seed: int) -> None:
    """One child, killed at a crash point or at any time."""
    chance = random.Random(seed)
    point = chance.choice([None, *POINTS])
    crash = (
        []
        if point is None
        else ["--crash", f"{point}:{chance.randrange(1, 6 if '-before-write' not in point else 60)}"]
    )
    command = [sys.executable, str(CHILD), str(directory), str(seen), str(seed), *crash]
    command += ["--executor", chance.choice(["serial", "threads"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is at work, or dead
        try:
            process.wait(chance.uniform(0.1, 1.5))
        except subprocess.TimeoutExpired:
            process.kill()
        assert process.stderr is not None
        complaints = process.stderr.read()
        assert process.wait() in (0, -9), complaints


def check(directory: Path, seen: Path) -> int:
    """What the early readers saw is what a late one gets; every offset is the same batch for good."""
    known: dict[tuple[str, int], Any] = {}
    lines = seen.read_text().splitlines() if seen.exists() else []
    for line in lines:
        try:
            stream, offset, *batch = json.loads(line)
        except json.JSONDecodeError:
            assert line == lines[-1]  # it was being written when the process was killed
            continue
        assert known.setdefault((stream, offset), batch) == batch, f"{stream} {offset} has changed"
    with tidegate.open(make_app(), directory) as engine:
        for stream in READERS:
            late = engine.subscribe_durably(stream, f"{LATE} {time.monotonic_ns()}", start="earliest")
            found = [json.loads(told(offset, batch)) for offset, batch in late.taken(1_000_000).items()]
            assert [offset for _, offset, *_ in found] == list(range(len(found)))
            for _, offset, *batch in found:
                assert known.setdefault((stream, offset), batch) == batch, (
                    f"{stream} {offset} differs for a late reader"
                )
            assert not [place for place in known if place[0] == stream and place[1] >= len(found)]
            early = engine.outbox.subscriptions.get(f"early {stream}")
            if early is not None:  # what it has not acknowledged is still there
                assert early.waiting.keys() <= {(key, id) for _, _, key, id, _ in found}
            engine.outbox.unsubscribe(late.name)
    return len(known)


def torment(tmp_path: Path, kills: int, seed: int) -> None:
    directory, seen = tmp_path / "d", tmp_path / "seen"
    count = 0
    for number in range(kills):
        run(directory, seen, seed + number)
        if (directory.exists() and number % 3 == 2) or number == kills - 1:
            count = check(directory, seen)
    assert count > 100
    assert verify(make_app(), directory).differences == []


def test_a_late_reader_equals_an_early_one_over_a_few_kills(tmp_path: Path) -> None:
    torment(tmp_path, 5, 20_261)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_late_reader_equals_an_early_one_over_many_kills(part: int, tmp_path: Path) -> None:
    torment(tmp_path, 10, 31_000 + 100 * part)
