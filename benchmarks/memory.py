"""What things cost in memory: rows, versions, windows, waiting batches, tickets; and a whole process."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.kernel import counting_app
from tidegate.benchmarks.setting import setting

Progress = Callable[[str], None]

# A separate process: the memory it holds right after opening, and after some votes, in megabytes.
_PROCESS = """
import sys
from pathlib import Path
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import random_votes

def resident_mb():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)

with start(leaderboard(eliminate_every=None)) as engine:
    idle = resident_mb()
    engine.feed("votes_in", random_votes(int(sys.argv[1])))
    print(idle, resident_mb(), engine.query("SELECT count(*) FROM votes").scalar())
"""


def bench(rows: int = 100_000, votes: int = 200_000, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Bytes for one of each, by what is allocated for ``rows`` of them."""
    found: dict[str, Any] = {}
    for part in (cached_row, held_version, window_row, aggregated_row, waiting_batch, ticket):
        progress(str(part.__doc__).splitlines()[0])
        found[f"bytes_per_{part.__name__}"] = round(part(rows), 1)
    progress("a process")
    try:
        command = [sys.executable, "-c", _PROCESS, str(votes)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found |= {
            "idle_engine_mb": float(told[0]),
            "engine_after_votes_mb": float(told[1]),
            "votes_stored": int(told[2]),
        }
    except (OSError, subprocess.CalledProcessError):  # no /proc here
        found["idle_engine_mb"] = None
    return {
        **found,
        "rows": rows,
        "votes": votes,
        "correct": all(v is None or v > 0 for v in found.values()),
        **setting(),
    }


class _Allocated(AbstractContextManager["_Allocated"]):
    """Bytes allocated, and still held, since it was entered."""

    def __enter__(self) -> _Allocated:
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def bytes(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def cached_row(rows: int) -> float:
    """A cached row of two integers and a short text."""
    with tidegate.open(counting_app()) as engine:
        engine.call("load", 0, 1_000)
        engine.checkpoint()
        with _Allocated() as allocated:
            engine.call("load", 1_000, rows + 1_000)
            engine.checkpoint()
            return allocated.bytes() / rows


def held_version(rows: int) -> float:
    """A version that is kept because an earlier execution may still read it."""
    app = App("versions")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")

    @app.procedure(reads=["counters"])
    def look(txn: Transaction) -> int:
        return len(txn.scan("counters"))

    @app.procedure(writes=["counters"])
    def put(txn: Transaction, number: int, value: int) -> None:
        for key in range(number):
            txn.upsert("counters", (key, value))

    with tidegate.open(app, executor="manual") as engine:
        engine.submit("put", rows, 1)
        engine.run_until_idle()
        engine.submit("look")  # stays unfinished before the others
        waiting = engine.submit("put", rows, 2)
        with _Allocated() as allocated:
            later = [e for e in engine.scheduler.ready() if e.context.program.name == "put"]
            engine.executor.run(engine.scheduler.take(later[0]))
            assert waiting.done
            used = allocated.bytes()
        engine.run_until_idle()
        return used / rows


def _windowed(rows: int, **compute: Any) -> float:
    app = App("windowed")
    app.table("CREATE TABLE unused (id INTEGER PRIMARY KEY)")
    app.stream("values_in", "id BIGINT NOT NULL, value DOUBLE NOT NULL", border=True)

    @app.procedure(inputs="values_in", windows={"last": window("values_in", count=rows, slide=100, **compute)})
    def keep(txn: Transaction, values_in: Batch) -> None:
        pass

    with tidegate.open(app) as engine:
        engine.feed("values_in", [(-1, 0.0)] * 1_000, size=1_000)
        with _Allocated() as allocated:
            engine.feed("values_in", ((i, i / 2) for i in range(rows - 2_000)), size=1_000)
            return allocated.bytes() / (rows - 2_000)


def window_row(rows: int) -> float:
    """A row in a plain window."""
    return _windowed(rows)


def aggregated_row(rows: int) -> float:
    """A row in a window of which only sums are kept."""
    return _windowed(rows, compute={"total": w.sum("value")})


def waiting_batch(rows: int) -> float:
    """A batch that has been admitted and has not run."""
    number = max(rows // 20, 1)
    with tidegate.open(counting_app(), executor="manual", capacity=2 * number) as engine:
        engine.submit("load", 0, 10)
        engine.run_until_idle()
        with _Allocated() as allocated:
            for i in range(number):
                engine.push("hits", [(i % 10,)])
            used = allocated.bytes()
        engine.run_until_idle()
        return used / number


def ticket(rows: int) -> float:
    """A ticket that is done, and its place in a list."""
    with tidegate.open(counting_app()) as engine:
        engine.call("load", 0, 10)
        number = max(rows // 10, 1)
        with _Allocated() as allocated:
            kept = [engine.push("hits", [(0,)]) for _ in range(number)]
            return allocated.bytes() / len(kept)
