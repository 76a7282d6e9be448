"""Transactional streaming: how many transactions a second, serial and on threads, with both ways of locking.

Every run is compared with the final state of plain serial Python, rows and emitted batches; events are pushed one by
one, without waiting for each.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import tidegate
from tidegate import Batch
from tidegate.benchmarks.setting import setting
from tidegate.benchmarks.workloads import SUITE, Parameters, Workload, by_key, transfers
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks, locking_with

Progress = Callable[[str], None]
SKEWS = (0.0, 0.5, 0.9, 0.99, 0.999)
EXECUTORS: Mapping[str, Mapping[str, Any]] = {
    "serial": {},
    "threads, low-water marks": {"executor": "threads", "workers": 2},
    "threads, two-phase locking": {"executor": "threads", "workers": 2, "locks": TwoPhaseLocks},
}


def bench(
    events: int = 20_000, rounds: int = 3, parameters: Parameters | None = None, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """Medians over rounds. ``durable``: with a directory and group commit, and everything on disk at the end."""
    given = replace(parameters or Parameters(), events=events)
    suite: dict[str, dict[str, Any]] = {}
    for name, make in SUITE.items():
        workload = make(given)
        for executor, settings in EXECUTORS.items():
            progress(f"{name}, {executor}")
            suite[f"{name}, {executor}"] = measure(workload, rounds, durable=True, **settings)
        progress(f"{name}, in memory")
        suite[f"{name}, serial, in memory"] = measure(workload, rounds, durable=False)
    ycsb: dict[str, dict[str, Any]] = {}
    for skew in SKEWS:
        progress(f"transfers, Zipf {skew}")
        ycsb[f"Zipf {skew:g}"] = measure(
            transfers(replace(given, skew=skew, multi_partition=1.0)), rounds, durable=True
        )
    return {
        "parameters": asdict(given),
        "rounds": rounds,
        "streaming_ledger_per_s": suite["streaming_ledger, serial"]["transactions_per_s"],
        "ycsb_t_per_s": min(found["transactions_per_s"] for found in ycsb.values()),
        "correct": all(found["correct"] for found in [*suite.values(), *ycsb.values()]),
        "suite": suite,
        "ycsb_t": ycsb,
        **setting(),
    }


def measure(
    workload: Workload, rounds: int, durable: bool, locks: Callable[[], LowWaterMarks] = LowWaterMarks, **settings: Any
) -> dict[str, Any]:
    """One workload under one executor."""
    rates, spent = [], []
    correct = True
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place,
            locking_with(locks),
            tidegate.open(workload.app, place if durable else None, **settings) as engine,
        ):
            for arguments in workload.load:
                engine.call("load", *arguments)
            emitted = {stream: engine.subscribe(stream) for stream in workload.outputs}
            seconds, processor_s = _timed(partial(_push_all, engine, workload))
            found = {
                **{name: _stored(engine, name) for name in workload.state if name not in emitted},
                **{name: _emitted(taken) for name, taken in emitted.items()},
            }
            correct &= found == workload.state and sum(engine.journal.undone.values()) == workload.aborted
        rates.append(len(workload.events) / seconds)
        spent.append(processor_s / len(workload.events) * 1e6)
    return {
        "transactions_per_s": round(statistics.median(rates)),
        "processor_us_per_transaction": round(statistics.median(spent), 1),
        "aborted": workload.aborted,
        "correct": correct,
    }


def _push_all(engine: tidegate.Engine, workload: Workload) -> None:
    ticket = None
    for stream, row in workload.events:
        ticket = engine.push(stream, [row])
    engine.run_until_idle()
    if ticket is not None:
        engine.wait(ticket)  # it was the last to be accepted: all before it are on disk with it


def _stored(engine: tidegate.Engine, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in engine.query(f"SELECT * FROM {table}").rows)


def _emitted(batches: Iterable[Batch]) -> list[tuple[int, Any]]:
    return by_key([(batch.key or 0, tuple(row)) for batch in batches for row in batch])


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    gc.collect()
    begin, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - begin, time.process_time() - used
