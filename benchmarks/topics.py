"""What a subscriber that is away costs everybody else.

A stream has one durable subscriber that never reads. The same work runs with nothing waiting for it and with many batches
waiting: how long a merge takes then, the longest push, and opening the directory again, each beside the empty case.
``alarm_ms``: how long an alarm takes behind bulk work that came before it.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.benchmarks.setting import setting

Progress = Callable[[str], None]

PUSHES = 2_000


def make_app() -> App:
    app = App("waiting")
    app.table("CREATE TABLE counts (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("votes", "id INTEGER NOT NULL, n BIGINT NOT NULL", border=True)
    app.stream("counted", "id INTEGER NOT NULL, n BIGINT NOT NULL")

    @app.procedure(inputs="votes", outputs="counted", writes=["counts"])
    def count(txn: Transaction, votes: Batch) -> None:
        for row in votes:
            txn.upsert("counts", row)
            txn.emit("counted", [row])

    return app


class Case:
    """A directory in which ``waiting`` batches wait for a subscriber."""

    def __init__(self, app: App, path: Path, waiting: int) -> None:
        self.app, self.path, self.waiting = app, path, waiting
        with tidegate.open(app, path) as engine:
            engine.subscribe_durably("counted", "absent")
            engine.feed("votes", [(i % 100, i) for i in range(waiting)])

    def reopened_s(self) -> tuple[Engine, float]:
        gc.collect()
        begun = time.perf_counter()
        engine = tidegate.open(self.app, self.path)
        return engine, time.perf_counter() - begun

    def merge_s(self, engine: Engine) -> float:
        engine.feed("votes", [(i % 100, i) for i in range(100)])
        begun = time.perf_counter()
        engine.checkpoint()
        return time.perf_counter() - begun

    def longest_push_ms(self, engine: Engine) -> float:
        """While merges are under way, too."""
        longest = 0.0
        for i in range(PUSHES):
            if i % 500 == 250:
                engine.merger._wanted.set()
            begun = time.perf_counter()
            engine.push("votes", [(i % 100, i)])
            longest = max(longest, time.perf_counter() - begun)
        return longest * 1_000


def alarm_ms(bulk: int, priority: int) -> tuple[float, float]:
    """How long an alarm that comes behind so many batches of bulk work, of about 2 ms each, waits until its procedure runs,
    and until its sender knows that it has.
    """
    app, may_go, rung = App("alarms"), threading.Event(), [0.0]
    app.stream("bulk", "n INTEGER NOT NULL", border=True, key="n")
    app.stream("alarms", "n INTEGER NOT NULL", border=True, priority=priority)

    @app.procedure(inputs="bulk")
    def load(txn: Transaction, bulk: Batch) -> None:
        may_go.wait()
        sum(range(100_000))

    @app.procedure(inputs="alarms")
    def ring(txn: Transaction, alarms: Batch) -> None:
        rung[0] = time.perf_counter()

    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place,
        tidegate.open(app, Path(place) / "d", executor="threads") as engine,
    ):
        for n in range(bulk):
            engine.push("bulk", [(n,)])
        ticket = engine.push("alarms", [(1,)])
        begun = time.perf_counter()
        may_go.set()
        ticket.result()
        return (rung[0] - begun) * 1_000, (time.perf_counter() - begun) * 1_000


def bench(waiting: int = 1_000_000, rounds: int = 3, progress: Progress = lambda text: None) -> dict[str, Any]:
    """``waiting`` batches for one subscriber, beside none."""
    app = make_app()
    found: dict[str, list[tuple[float, float, float]]] = {"none": [], "many": []}
    right = True
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        progress(f"{waiting:,} batches")
        cases = {"none": Case(app, Path(place) / "none", 1), "many": Case(app, Path(place) / "many", waiting)}
        for number in range(rounds):
            for name, case in cases.items():
                progress(f"round {number + 1}, {name}")
                engine, opened = case.reopened_s()
                with engine:
                    found[name].append((case.merge_s(engine), case.longest_push_ms(engine), opened))
                    right &= len(engine.outbox.subscriptions["absent"]) == case.waiting + (number + 1) * (100 + PUSHES)
    none, many = ([statistics.median(column) for column in zip(*found[name], strict=True)] for name in ("none", "many"))
    progress("an alarm behind 1,000 batches")
    alarms = {
        priority: [
            statistics.median(each) for each in zip(*(alarm_ms(1_000, priority) for _ in range(rounds)), strict=True)
        ]
        for priority in (10, 0)
    }
    return {
        "setting": setting(),
        "alarm_ms": round(alarms[10][0], 2),
        "alarm_ms_without_priority": round(alarms[0][0], 2),
        "alarm_acknowledged_ms": round(alarms[10][1], 2),
        "waiting": waiting,
        "merge_s": round(many[0], 4),
        "merge_s_with_none": round(none[0], 4),
        "longest_push_ms": round(many[1], 2),
        "longest_push_ms_with_none": round(none[1], 2),
        "reopen_s": round(many[2], 3),
        "reopen_ratio": round(many[2] / none[2], 2),
        "correct": right,
    }
