"""A process that gets SIGINT again and again while it pushes durably: what it was told agrees with what is there afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from recovering import make_numbers, seen

import tidegate

SIGNALS = 20
LIMIT_S = 240  # for a child that no longer gets on


def hits(told: list[str]) -> list[str]:
    return [line for line in told if line.startswith(("interrupted", "stopped"))]


def signalled(path: Path, handler: str, sync: str, chance: random.Random) -> list[str]:
    """What the child said, having got signals at random moments, each after it had made progress."""
    program = [sys.executable, str(Path(__file__).parents[1] / "support" / "signalled.py"), str(path), handler, sync]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        patience = threading.Timer(LIMIT_S, child.kill)
        patience.start()
        told = []
        for line in child.stdout:
            told.append(line.strip())
            if len(hits(told)) >= SIGNALS:
                child.kill()
            elif line.startswith("on disk") and chance.random() < 0.3:
                time.sleep(chance.uniform(0.0, 0.01))
                child.send_signal(signal.SIGINT)
        patience.cancel()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["group", "always"])
@pytest.mark.parametrize("handler", ["default", "raises"])
def test_signals_while_pushing(handler: str, sync: str, tmp_path: Path) -> None:
    told = signalled(tmp_path / "db", handler, sync, random.Random(f"{handler} {sync}"))
    assert len(hits(told)) >= SIGNALS, f"the child did not get on: {told[-20:]}"
    on_disk = max(int(line.split()[2]) for line in told if line.startswith("on disk"))
    for line in told:
        if line.startswith("total"):
            _, number, total = line.split()
            assert int(total) == int(number) * (int(number) + 1) // 2
    with tidegate.open(make_numbers(), tmp_path / "db") as engine:
        assert len(seen(engine)) >= on_disk
