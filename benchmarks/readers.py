"""What row access by ``partition(…)`` costs beside access to the whole table.

    python -m tidegate.benchmarks.readers [rounds]

A keyed procedure gets three rows and updates one, batch after batch, in a serial engine in memory. It does so with the whole
table declared and with one partition of it, in turn. Figures are medians over rounds, and ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.benchmarks.setting import setting

OWNERS = 1_000
WAYS: dict[str, Any] = {"plain": "accounts", "partition": partition("accounts")}


def bench(rounds: int = 15, pushes: int = 4_000) -> dict[str, Any]:
    """Microseconds inside the procedure and for a whole push, both ways, with the setting they were measured in."""
    spent: dict[str, list[int]] = {way: [] for way in WAYS}
    engines = {way: _open(declared, spent[way]) for way, declared in WAYS.items()}
    inside: dict[str, list[float]] = {way: [] for way in WAYS}
    whole: dict[str, list[float]] = {way: [] for way in WAYS}
    clock_ns = _clock_ns()
    for _ in range(rounds):
        for way, engine in engines.items():
            spent[way].clear()
            whole[way].append(_push(engine, pushes) / 1e3)
            inside[way].append((statistics.median(spent[way]) - clock_ns) / 1e3)
    for engine in engines.values():
        engine.close()
    figures: dict[str, Any] = {}
    for name, found in (("procedure", inside), ("push", whole)):
        figures |= {f"{name}_{way}_us": round(statistics.median(times), 2) for way, times in found.items()}
        ratios = [mine / plain for mine, plain in zip(found["partition"], found["plain"], strict=True)]
        figures[f"{name}_ratio"] = round(statistics.median(ratios), 3)
    return {**figures, "rounds": rounds, "pushes": pushes, **setting()}


def _open(declared: Any, spent: list[int]) -> Engine:
    app = App("readers")
    app.table(
        "CREATE TABLE accounts (owner INTEGER, kind INTEGER, n BIGINT NOT NULL, PRIMARY KEY (owner, kind))",
        partition_by="owner",
    )
    app.stream("payments", "owner INTEGER NOT NULL, amount BIGINT NOT NULL", border=True, key="owner")

    @app.procedure(inputs="payments", writes=[declared])
    def pay(txn: Transaction, payments: Batch) -> None:
        owner, ((_, amount),) = payments.key, payments.rows
        begin = time.perf_counter_ns()
        first = txn.get("accounts", (owner, 0))
        second = txn.get("accounts", (owner, 1))
        third = txn.get("accounts", (owner, 2))
        txn.update("accounts", (owner, 0), n=first.n + amount)
        spent.append(time.perf_counter_ns() - begin)
        assert second.n == third.n == 0

    @app.procedure(writes=["accounts"])
    def load(txn: Transaction) -> None:
        for owner in range(OWNERS):
            for kind in range(3):
                txn.insert("accounts", (owner, kind, 0))

    engine = tidegate.open(app)
    engine.call("load")
    _push(engine, OWNERS)
    return engine


def _push(engine: Engine, pushes: int) -> float:
    """Nanoseconds that a push took, the median of all."""
    taken = []
    for i in range(pushes):
        batch = [(i % OWNERS, 1)]
        begin = time.perf_counter_ns()
        engine.push("payments", batch)
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken)


def _clock_ns() -> float:
    """What reading the clock adds to a time."""
    return statistics.median(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(10_000))


if __name__ == "__main__":
    for name, value in bench(*map(int, sys.argv[1:2])).items():
        print(f"{name:24} {value}")
