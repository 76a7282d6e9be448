"""Instructions per vote of the leaderboard, counted by callgrind: nearly the same whatever else the machine does.

    python -m tidegate.benchmarks.instructions [feed | push]

Runs the votes in memory, in a process of its own under valgrind, twice: few and many. The difference is what a vote takes.
Run it in two checkouts to compare them. Opening and closing differ from run to run, so two counts of one commit were 7 %
apart: for a smaller difference, collect only between the first and the last vote (``CALLGRIND_TOGGLE_COLLECT``).
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate.benchmarks.setting import setting

FEW, MANY = 500, 1_500


def bench(way: str = "feed") -> dict[str, Any]:
    """``way``: ``feed`` or ``push``."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: apt-get install valgrind")
    counted = {votes: _counted(way, votes) for votes in (FEW, MANY)}
    return {"way": way, "instructions_per_vote": round((counted[MANY] - counted[FEW]) / (MANY - FEW)), **setting()}


def _counted(way: str, votes: int) -> int:
    with tempfile.TemporaryDirectory() as place:
        command = [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", sys.executable,
            "-m", "tidegate.benchmarks.instructions", way, str(votes),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        found = re.search(r"Collected : (\d+)", done.stderr)
        assert found is not None, done.stderr
        assert Path(place, "out").exists()
        return int(found[1])


def _run(way: str, votes: int) -> None:
    from tidegate.examples.leaderboard.app import leaderboard, start
    from tidegate.examples.leaderboard.reference import random_votes

    cast = random_votes(votes, 1)
    gc.disable()  # one full collection more or less would be a tenth of the figure
    with start(leaderboard(), tune_process=False) as engine:
        if way == "feed":
            engine.feed("votes_in", cast)
        else:
            for vote in cast:
                engine.push("votes_in", [vote])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _run(sys.argv[1], int(sys.argv[2]))
    else:
        for name, figure in bench(*sys.argv[1:]).items():
            print(f"{name}: {figure}")
