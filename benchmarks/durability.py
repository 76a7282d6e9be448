"""What durability costs: acknowledgement latency, log size, recovery, and what a merge delays."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.benchmarks.setting import setting
from tidegate.dataflows.app import Recovery
from tidegate.examples.leaderboard.app import leaderboard
from tidegate.examples.leaderboard.reference import random_votes

Progress = Callable[[str], None]
MODES: tuple[Recovery, ...] = ("weak", "strong", "effects")


def bench(rounds: int = 3, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Everything below, with the setting it was measured in."""
    figures: dict[str, Any] = {}
    for part in (modes, latency, merging):
        progress(str(part.__doc__).splitlines()[0])
        figures.update(part(rounds))
    return {**figures, "rounds": rounds, **setting()}


def modes(rounds: int, votes: int = 60_000) -> dict[str, Any]:
    """Votes a second live and in recovery, and bytes of log per vote, for each recovery mode, by push and by feed.

    In processor time, each side in its own process: other load on the machine does not count. Live is the votes
    alone; recovery is opening the directory, less what opening it takes when there is nothing to replay.
    ``recovery_ratio``: the median of recovery against live, both of the same round.
    """
    found: dict[str, Any] = {}
    for mode in MODES:
        for way, count in (("feed", votes), ("push", votes // 2)):
            name = mode if way == "feed" else f"{mode}_{way}"
            live: list[float] = []
            replay: list[float] = []
            size = 0.0
            for _ in range(rounds):
                with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
                    live.append(count / _alone(_run_and_stop, mode, way, place, count))
                    size = sum(p.stat().st_size for p in Path(place, "log").iterdir()) / count
                    replay.append(count / _alone(_recover, mode, way, place, count))
            found |= {
                f"{name}_live_votes_per_s": round(statistics.median(live)),
                f"{name}_recovery_votes_per_s": round(statistics.median(replay)),
                f"{name}_recovery_ratio": round(statistics.median(r / v for r, v in zip(replay, live, strict=True)), 2),
                f"{name}_log_bytes_per_vote": round(size, 1),
            }
    return found


def _contest(mode: Recovery) -> App:
    app = leaderboard()
    app.recovery = mode
    return app


def _alone(work: Callable[[Recovery, str, str, int], float], *given: Any) -> float:
    """What ``work`` returns, in a separate process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *given).result()


def _run_and_stop(mode: Recovery, way: str, place: str, votes: int) -> float:
    """Take all votes, then exit without a checkpoint, as a crash would; returns the seconds of processor time."""
    cast = random_votes(votes)
    engine = tidegate.open(_contest(mode), place, merge_rows=10_000_000)
    engine.call("set_up")
    gc.collect()
    begin = time.process_time()
    if way == "feed":
        engine.feed("votes_in", cast)
    else:
        for vote in cast:
            engine.push("votes_in", [vote])
        engine.run_until_idle()
    seconds = time.process_time() - begin
    engine.abandon()
    return seconds


def _recover(mode: Recovery, way: str, place: str, votes: int) -> float:
    """Open the directory that a crash left, twice: the second time there is nothing to replay."""
    app = _contest(mode)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as warm:
        tidegate.open(app, warm).close()
    took = []
    for replayed in (votes, 0):
        gc.collect()
        begin = time.process_time()
        engine = tidegate.open(app, place, merge_rows=10_000_000)
        took.append(time.process_time() - begin)
        assert engine.recovery.replayed.get("batches", 0) == replayed, engine.recovery
        engine.close()
    return took[0] - took[1]


def latency(rounds: int, seconds: float = 1.0) -> dict[str, Any]:
    """Milliseconds from a push to its acknowledgement, at 1,000 and 10,000 batches a second (open loop)."""
    found: dict[str, Any] = {}
    for sync in ("always", "group", "off"):
        for rate in (1_000, 10_000):
            waits: list[float] = []
            with (
                tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place,
                tidegate.open(_counting(), place, sync=sync) as engine,
            ):
                waits = _open_loop(engine, rate, seconds)
            waits.sort()
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                found[f"ack_ms_{sync}_{rate}_{name}"] = round(waits[int(len(waits) * part)] * 1e3, 2)
    return found


def _open_loop(engine: tidegate.Engine, rate: int, seconds: float) -> list[float]:
    """Push on a fixed schedule, regardless of the answers; latency counts from the scheduled time."""
    waits: list[float] = []
    begin = time.perf_counter()
    tickets = []
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        while (ahead := due - time.perf_counter()) > 0:
            time.sleep(min(ahead, 0.0005))
        ticket = engine.push("hits", [(number % 1_000,)])
        ticket.listen(lambda _, due=due: waits.append(time.perf_counter() - due))  # type: ignore[misc]
        tickets.append(ticket)
    for ticket in tickets:
        ticket.result()
    return waits


def _counting() -> App:
    app = App("counting")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("hits", "id INTEGER NOT NULL", border=True)

    @app.procedure(inputs="hits", writes=["counters"])
    def count(txn: Transaction, hits: Batch) -> None:
        for hit in hits:
            row = txn.get("counters", hit.id)
            txn.upsert("counters", (hit.id, 1 if row is None else row.n + 1))

    return app


def merging(rounds: int, rows: int = 1_000_000, changed: int = 100_000) -> dict[str, Any]:
    """Seconds to merge 100,000 changed rows into 1,000,000, and the longest a push had to wait meanwhile."""
    merge_s, stall_ms, pushes = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place,
        tidegate.open(_counting(), place, merge_rows=10_000_000, sync="off") as engine,
    ):
        for first in range(0, rows, 100_000):
            engine.feed("hits", [(i,) for i in range(first, first + 100_000)], size=10_000)
        engine.checkpoint()
        for number in range(rounds):
            step = rows // changed
            engine.feed("hits", [(i * step + number % step,) for i in range(changed)], size=10_000)
            merger = threading.Thread(target=engine.checkpoint)
            begin = time.perf_counter()
            merger.start()
            longest, count = 0.0, 0
            while merger.is_alive():
                pushed = time.perf_counter()
                engine.push("hits", [(count % rows,)])
                longest = max(longest, time.perf_counter() - pushed)
                count += 1
            merger.join()
            merge_s.append(time.perf_counter() - begin)
            stall_ms.append(longest * 1e3)
            pushes.append(count)
    return {
        "merge_100000_into_1000000_s": round(statistics.median(merge_s), 2),
        "longest_push_during_merge_ms": round(statistics.median(stall_ms), 1),
        "pushes_during_merge": round(statistics.median(pushes)),
    }
