"""The time from a push to its acknowledgement under load, in an open loop.

Pushes are due at fixed times, regardless of the answers, and latency counts from the time a push was *due*: a pause of
the engine counts for everything that was due during it (no coordinated omission). Percentiles are exact, from every
push.

The peak is that of the same client, which receives every acknowledgement, when it pushes as fast as it can. It is
measured again before each round of loads: where the machine's speed varies by a factor of two, half of a peak found a
minute ago may be all that it can do now.

Every 1,000th valid vote ends in a transaction that deletes all votes of a contestant, thousands of rows towards the
end: milliseconds in which everything else waits, in this engine as in any that runs one transaction after another. The
contest is therefore measured twice, each with its own peak: in full, and without eliminations, when every transaction
is small.

No wait for the disk can be shorter than the disk's own. Right before each run the disk alone is written to, a group
every 2 ms, and the 99th percentile is computed for pushes that take no time at all: ``disk_alone_p99_ms``.

A load that the machine can't sustain at the moment still ends, after one and a half times the planned time: ``sent`` is
then below 1, and what was not sent counts with its wait so far.
"""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegate import Engine
from tidegate.benchmarks.leaderboard import final_state, reference_state
from tidegate.benchmarks.setting import setting
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import Contest, Vote, random_votes
from tidegate.txn.log.files import OsFiles

Progress = Callable[[str], None]
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
LOADS = (0.1, 0.25, 0.5, 0.75)
STEP_S = 0.0005  # how often the client checks what is due


def bench(seconds: float = 2.0, rounds: int = 5, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Milliseconds to the acknowledgement of a vote, on disk with group commit, at parts of the peak found here."""
    peaks: dict[str, list[float]] = {"contest": [], "votes": []}
    correct = True
    runs: dict[str, dict[str, list[dict[str, float]]]] = {"contest": {}, "votes": {}}
    for number in range(rounds):
        for name, eliminate_every in (("contest", 1_000), ("votes", None)):
            progress(f"round {number + 1} of {rounds}, {name}")
            highest, right = peak(20_000, eliminate_every)
            peaks[name].append(highest)
            correct &= right
            for load in LOADS:
                floor = disk_alone(seconds)
                percentiles, right = at_rate(highest * load, seconds, eliminate_every)
                found = {"votes_per_s": highest * load, **percentiles, "disk_alone_p99_ms": floor["p99_ms"]}
                runs[name].setdefault(f"{load:.0%} of peak", []).append(found)
                correct &= right
    loads = {name: {load: _medians(each) for load, each in by_load.items()} for name, by_load in runs.items()}
    return {
        "peak_votes_per_s": round(statistics.median(peaks["contest"])),
        "peak_votes_per_s_votes_only": round(statistics.median(peaks["votes"])),
        "p99_ms_at_half_of_peak": loads["contest"]["50% of peak"]["p99_ms"],
        "p99_ms_at_half_of_peak_votes_only": loads["votes"]["50% of peak"]["p99_ms"],
        "rounds": rounds,
        "correct": correct,
        "loads": loads["contest"],
        "loads_votes_only": loads["votes"],
        **setting(),
    }


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    medians = {part: round(statistics.median(run[part] for run in runs), 2) for part in runs[0]}
    p99 = [run["p99_ms"] for run in runs]
    return {**medians, "best_p99_ms": round(min(p99), 2), "worst_p99_ms": round(max(p99), 2)}


def peak(votes: int, eliminate_every: int | None = 1_000) -> tuple[float, bool]:
    """Votes a second when all are due at once, so that each is pushed as soon as the previous one has run."""
    cast = random_votes(votes)
    app = leaderboard(eliminate_every=eliminate_every)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place, start(app, place) as engine:
        gc.collect()
        begin = time.perf_counter()
        _open_loop(engine, cast, math.inf, math.inf)
        seconds = time.perf_counter() - begin
        return votes / seconds, _is_right(engine, cast, eliminate_every)


def at_rate(
    rate: float, seconds: float, eliminate_every: int | None = 1_000, patience_s: float | None = None
) -> tuple[dict[str, float], bool]:
    """Percentiles of the wait for an acknowledgement at ``rate`` votes a second. ``patience_s``: how long it may take."""
    cast = random_votes(max(int(rate * seconds), 1))
    app = leaderboard(eliminate_every=eliminate_every)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place, start(app, place) as engine:
        gc.collect()
        waits, sent = _open_loop(engine, cast, rate, 1.5 * seconds if patience_s is None else patience_s)
        right = _is_right(engine, cast[:sent], eliminate_every) and len(waits) == len(cast)
    return {**_percentiles(np.frombuffer(waits)), "max_ms": max(waits) * 1e3, "sent": sent / len(cast)}, right


def disk_alone(seconds: float, group_bytes: int = 2_000, delay_s: float = 0.002) -> dict[str, float]:
    """Percentiles of the wait, from any moment, until a bare sync that begins after it has ended."""
    begun, ended = [], []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        file = OsFiles(Path(place)).create("bare.log")
        begin = time.perf_counter()
        while not ended or ended[-1] < seconds:
            time.sleep(delay_s)
            begun.append(time.perf_counter() - begin)
            file.write_synced(bytes(group_bytes), len(ended) * group_bytes)
            ended.append(time.perf_counter() - begin)
        file.close()
    moments = np.linspace(0.0, begun[-1], 100_000)
    waits = np.array(ended)[np.searchsorted(begun, moments)] - moments
    return _percentiles(waits)


def _percentiles(waits: np.ndarray[Any, Any]) -> dict[str, float]:
    told = np.percentile(waits, PERCENTILES)
    return {f"p{part:g}_ms": float(value) * 1e3 for part, value in zip(PERCENTILES, told, strict=True)}


def _open_loop(engine: Engine, cast: list[Vote], rate: float, patience_s: float) -> tuple[array[float], int]:
    """The waits of all votes, and how many were sent before patience ran out."""
    waits = array("d")
    now = time.perf_counter
    sent = 0
    begin = now()
    for number, vote in enumerate(cast):
        due = begin + number / rate
        while due > now():
            time.sleep(STEP_S)  # what is due by then is late, and counts as late
        ticket = engine.push("votes_in", [vote])
        ticket.listen(lambda _, due=due: waits.append(now() - due))  # type: ignore[misc]
        sent += 1
        if now() - begin > patience_s:
            break
    ticket.result()
    ended = now()
    waits.extend(max(ended - begin - number / rate, 0.0) for number in range(sent, len(cast)))
    return waits, sent


def _is_right(engine: Engine, cast: list[Vote], eliminate_every: int | None = 1_000) -> bool:
    return final_state(engine) == reference_state(Contest(eliminate_every=eliminate_every).run(cast))
