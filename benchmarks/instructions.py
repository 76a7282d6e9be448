"""Instructions per vote of the leaderboard, counted by callgrind: the same to a few in 100,000, whatever the machine does.

    python -m tidegate.benchmarks.instructions [feed | push]

Runs the votes in memory, in a process of its own under valgrind. Counting begins after the first 500 votes and ends before
the engine closes, and only what the feeding thread does counts: DuckDB's threads poll, so with them two counts of one commit
were 3 % apart. Run it in two checkouts to compare them.
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

WARM, COUNTED = 500, 1_000
BEGIN, END = (
    "getloadavg",
    "sched_get_priority_max",
)  # functions of libc that nothing else calls: callgrind listens to them


def bench(way: str = "feed") -> dict[str, Any]:
    """``way``: ``feed`` or ``push``."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as place:
        command = [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", "--separate-threads=yes",
            f"--zero-before={BEGIN}", f"--dump-before={END}", sys.executable, "-m", "tidegate.benchmarks.instructions", way,
            "counted",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        found = re.search(r"^(?:summary|totals): (\d+)", Path(place, "out.1-01").read_text(), re.MULTILINE)
        assert found is not None, "callgrind left no count of the main thread"
        return {"way": way, "instructions_per_vote": round(int(found[1]) / COUNTED), **setting()}


def _run(way: str) -> None:
    from tidegate.examples.leaderboard.app import leaderboard, start
    from tidegate.examples.leaderboard.reference import random_votes

    cast = random_votes(WARM + COUNTED, 1)
    gc.disable()  # one full collection more or less would be a tenth of the figure
    with start(leaderboard(), tune_process=False) as engine:
        for votes in (cast[:WARM], cast[WARM:]):
            os.getloadavg()  # BEGIN: the last call is what counts
            if way == "feed":
                engine.feed("votes_in", votes)
            else:
                for vote in votes:
                    engine.push("votes_in", [vote])
        os.sched_get_priority_max(os.SCHED_OTHER)  # END


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _run(sys.argv[1])
    else:
        for name, figure in bench(*sys.argv[1:]).items():
            print(f"{name}: {figure}")
