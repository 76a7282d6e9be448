"""What it costs that time passes: absence, keys that are idle, and messages that are forgotten after an hour.

* **absence**: shipments that are not picked up raise an alert, with 100,000 other timers open, no input, on disk with group
  commit. From the time at which an alert was due until its subscriber has it. The engine lets time pass itself
  (``engine.start()``).
* **tick**: ``engine.tick()`` when 100,000 timers are open and none is due: nobody looks at them.
* **dedupe**: one row a batch, each kept for an hour in a table that expires, half of them repeats; the clock moves on by
  100 ms for each row, so that soon as many rows expire as are added.

``correct``: every alert came once, not before its time, and in order; no timer that was not due has come; and what was fresh
is what a dictionary says.
"""

from __future__ import annotations

import datetime as dt
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.benchmarks.setting import setting
from tidegate.clock import SystemClock
from tidegate.examples.shipments.app import app as shipments
from tidegate.testing import ManualClock

Progress = Callable[[str], None]
AT_A_TIME = 1_000
FAR = dt.timedelta(days=1)
STEP_S = 0.1  # of the dedupe's clock, for each row
FEED = 250  # rows between two of its steps


def bench(
    open_timers: int = 100_000,
    alerts: int = 200,
    rows: int = 100_000,
    rounds: int = 3,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """The three figures, each with its own check."""
    correct = True
    late_ms: list[float] = []
    tick_us, rates = [], []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        late, ticks, right = absence(open_timers, alerts)
        late_ms += late
        tick_us.append(statistics.median(ticks))
        correct &= right
        rate, right = dedupe(rows)
        rates.append(rate)
        correct &= right
    late_ms.sort()
    return {
        "absence_p99_ms": round(late_ms[int(0.99 * len(late_ms))], 3),
        "absence_median_ms": round(statistics.median(late_ms), 3),
        "tick_us": round(statistics.median(tick_us), 3),
        "dedupe_rows_per_s": round(statistics.median(rates)),
        "open_timers": open_timers,
        "alerts": len(late_ms),
        "rows": rows,
        "rounds": rounds,
        "correct": correct,
        **setting(),
    }


def absence(open_timers: int, alerts: int) -> tuple[list[float], list[float], bool]:
    """How late each alert was, in milliseconds; what a tick takes that finds nothing due, in microseconds."""
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        tidegate.open(shipments, directory) as engine,
    ):
        far = clock.now() + FAR
        for first in range(0, open_timers, AT_A_TIME):
            engine.push("booked", [(n, far) for n in range(first, min(first + AT_A_TIME, open_timers))]).result()
        ticks = _idle_ticks(engine)
        engine.checkpoint()
        found = engine.subscribe("alerts")
        soon = clock.now() + dt.timedelta(seconds=1)
        due = {open_timers + n: soon + dt.timedelta(milliseconds=7 * n) for n in range(alerts)}
        engine.push("booked", list(due.items())).result()
        engine.start()
        late, came = [], []
        for _ in due:
            batch = found.get(30)
            now = clock.now()
            if batch is None:
                break
            for row in batch:
                late.append((now - row.due).total_seconds() * 1_000)
                came.append((row.id, row.raised >= due[row.id] == row.due))
        waiting = engine.query("SELECT count(*) FROM tidegate.timers").scalar()
        right = came == [(n, True) for n in due] and waiting == open_timers
        return late, ticks, right


def _idle_ticks(engine: Engine, ticks: int = 2_000) -> list[float]:
    took = []
    for _ in range(ticks):
        began = time.perf_counter_ns()
        engine.tick()
        took.append((time.perf_counter_ns() - began) / 1_000)
    return took


def messages_app() -> App:
    """Each message once, if it comes again within an hour."""
    app = App("messages")
    app.table("CREATE TABLE seen (id BIGINT PRIMARY KEY, seen_at TIMESTAMP NOT NULL)", expire=("seen_at", "1h"))
    app.stream("messages", "id BIGINT NOT NULL", border=True)
    app.stream("judged", "id BIGINT NOT NULL, fresh BOOLEAN NOT NULL, at_time TIMESTAMP NOT NULL")

    @app.procedure(inputs="messages", outputs="judged", writes=["seen"])
    def dedupe(txn: Transaction, messages: Batch) -> None:
        for message in messages:
            fresh = txn.get("seen", message.id) is None
            if fresh:
                txn.insert("seen", (message.id, txn.now))
            txn.emit("judged", [(message.id, fresh, txn.now)])

    return app


def dedupe(rows: int) -> tuple[float, bool]:
    """Rows a second, one in a batch, and whether what was fresh is right."""
    chance = random.Random(7)
    messages = [(chance.randrange(rows // 2),) for _ in range(rows)]
    clock, took = ManualClock(), 0.0
    with tidegate.open(messages_app(), clock=clock) as engine:
        judged = engine.subscribe("judged", capacity=rows)
        for first in range(0, rows, FEED):
            clock.advance(FEED * STEP_S)
            began = time.perf_counter()
            engine.feed("messages", messages[first : first + FEED])
            took += time.perf_counter() - began
        found = [tuple(row) for batch in judged for row in batch]
        stored = engine.query("SELECT id, seen_at FROM seen").rows
    expected, seen = _judged(messages)
    return rows / took, found == expected and {row.id: row.seen_at for row in stored} == seen


def _judged(messages: list[tuple[int]]) -> tuple[list[tuple[int, bool, dt.datetime]], dict[int, dt.datetime]]:
    """What a dictionary says, and what is left in it."""
    clock, judged, seen, hour = ManualClock(), [], dict[int, dt.datetime](), dt.timedelta(hours=1)
    for number, (message,) in enumerate(messages):
        if number % FEED == 0:
            clock.advance(FEED * STEP_S)
        now = clock.now()
        fresh = message not in seen or now >= seen[message] + hour
        if fresh:
            seen[message] = now
        judged.append((message, fresh, now))
    return judged, {message: at for message, at in seen.items() if clock.now() < at + hour}
