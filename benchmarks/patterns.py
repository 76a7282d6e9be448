"""Event patterns: rows a second of processor time, through the engine; the state alone beside plain Python.

    tidegate bench patterns --json

100 keys, five kinds of rows, WITHIN 2 s: twenty rows of a key on average, so that `any` finds more matches than there are rows.
figure is checked: `next` against plain Python, `count` against `any`, absence against what was left out.
"""

from __future__ import annotations

import datetime as dt
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, Transaction, pattern
from tidegate.benchmarks.setting import setting
from tidegate.clock import SystemClock

Progress = Callable[[str], None]
KEYS = 100
BATCH = 1_000
STEP_US = 1_000
WITHIN_US = 2_000_000
DEFINE = {kind: f"kind = '{kind}'" for kind in "abc"}
ABSENT = dt.timedelta(minutes=1)

Rows = list[tuple[int, int, str, int]]


def bench(
    rows: int = 100_000, open_partials: int = 100_000, rounds: int = 3, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """All figures: medians of rounds that take turns."""
    made = _rows(rows)
    few = made[: max(rows // 10, 1)]
    wanted = bare(made)
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for name, run in {
            "next": lambda: through(made, BATCH),
            "next_one_durable": lambda: durably(few),
            "any": lambda: through(made, BATCH, select="any"),
            "count": lambda: through(made, BATCH, aggregate={"n": "count(*)"}),
            "count_long": lambda: through(made, BATCH, 10, aggregate={"n": "count(*)"}),
            "bare_python_next": lambda: timed(lambda: bare(made)),
        }.items():
            taken, found = run()
            counts[name] = found
            times.setdefault(name, []).append(taken)
    late_ms, right = absence(open_partials)
    checks = {
        "next": counts["next"] == counts["bare_python_next"] == wanted,
        "one row in a batch": counts["next_one_durable"] == bare(few),
        "count": counts["count"] == counts["any"],
        "absence": right,
    }
    figures = {
        f"{name}_per_s": round((len(few) if name == "next_one_durable" else rows) / _best(times[name]))
        for name in times
    }
    flatness = _best(times["count_long"]) / _best(times["count"])
    del figures["count_long_per_s"]
    return {
        **figures,
        "count_flatness": round(flatness, 2),
        "absence_p99_ms": round(late_ms[int(0.99 * len(late_ms))], 1) if late_ms else None,
        "matches": {name: counts[name] for name in ("next", "any")},
        "rows": rows,
        "open_partials": open_partials,
        "rounds": rounds,
        "wrong": [name for name, right in checks.items() if not right],
        "correct": all(checks.values()),
        **setting(),
    }


def _best(times: list[float]) -> float:
    return statistics.median(times)


def _rows(number: int) -> Rows:
    chance = random.Random(1)
    return [
        (chance.randrange(KEYS), n * STEP_US, chance.choice("abcde"), chance.randrange(1_000)) for n in range(number)
    ]


def watching(within: int = WITHIN_US, **options: Any) -> App:
    """Rows, and how many matches they have been part of."""
    app = App("watching")
    app.stream("ev", "k BIGINT NOT NULL, t BIGINT NOT NULL, kind VARCHAR NOT NULL, v BIGINT NOT NULL", border=True)
    app.table("CREATE TABLE found (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
    counted = "aggregate" in options
    looked_for = pattern("ev", match="SEQ(a, b, c)", define=DEFINE, on="t", by="k", within=within, **options)

    @app.procedure(inputs="ev", writes=["found"], windows={"p": looked_for})
    def watch(txn: Transaction, ev: Batch) -> None:
        results = txn.window("p").results
        if len(results):
            row = txn.get("found", 1)
            more = sum(result.n for result in results) if counted else len(results)
            txn.upsert("found", (1, int(more) + (0 if row is None else row.n)))

    return app


def _pushed(engine: Engine, rows: Rows, size: int) -> tuple[float, int]:
    begin = time.process_time()
    for first in range(0, len(rows), size):
        ticket = engine.push("ev", rows[first : first + size])
    ticket.result()
    taken = time.process_time() - begin
    found = engine.query("SELECT n FROM found").rows
    return taken, found[0][0] if found else 0


def through(rows: Rows, size: int, times: int = 1, **options: Any) -> tuple[float, int]:
    """Seconds of processor time, through an engine in memory, and the matches."""
    with tidegate.open(watching(times * WITHIN_US, **options)) as engine:
        return _pushed(engine, rows, size)


def durably(rows: Rows) -> tuple[float, int]:
    """The same with one row in each batch, and a log."""
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        tidegate.open(watching(), directory) as engine,
    ):
        return _pushed(engine, rows, 1)


def timed(run: Callable[[], int]) -> tuple[float, int]:
    begin = time.process_time()
    found = run()
    return time.process_time() - begin, found


def bare(rows: Rows) -> int:
    """SEQ(a, b, c) by key, skipping till next, as plain Python without an engine, SQL, transactions or checkpoints."""
    first: dict[int, deque[int]] = {}
    second: dict[int, list[int]] = {}
    found = 0
    for key, at, kind, _ in rows:
        if kind == "a":
            first.setdefault(key, deque()).append(at)
        elif kind == "b":
            waiting = first.get(key)
            if waiting:
                second.setdefault(key, []).extend(began for began in waiting if at - began < WITHIN_US)
                waiting.clear()
        elif kind == "c":
            began = second.get(key)
            if began:
                found += sum(at - one < WITHIN_US for one in began)
                began.clear()
    return found


def absence(open_partials: int, alerts: int = 200) -> tuple[list[float], bool]:
    """How late alerts are that nothing came, in milliseconds, on a stream that has fallen silent; many more are not due."""
    clock = SystemClock()
    app = App("absence")
    app.stream("placed", "id BIGINT NOT NULL, t TIMESTAMP NOT NULL", border=True, idle=("t", "50ms"))
    app.stream("alerts", "id BIGINT NOT NULL, due TIMESTAMP NOT NULL")
    absent = pattern("placed", match="SEQ(a, !again)", on="t", by="id", within=ABSENT, measures={"since": "a.t"})

    @app.procedure(inputs="placed", outputs="alerts", windows={"absent": absent})
    def watch(txn: Transaction, placed: Batch) -> None:
        txn.emit("alerts", [(row.id, row.since + ABSENT) for row in txn.window("absent").results])

    with tidegate.open(app) as engine:
        found = engine.subscribe("alerts")
        soon = clock.now() + dt.timedelta(seconds=4) - ABSENT
        engine.push("placed", [(n, soon + dt.timedelta(milliseconds=5 * n)) for n in range(alerts)])
        for first in range(0, open_partials, BATCH):
            now = clock.now()
            engine.push("placed", [(alerts + n, now) for n in range(first, min(first + BATCH, open_partials))])
        engine.start()
        late: list[float] = []
        came: list[int] = []
        while len(came) < alerts and (batch := found.get(30)) is not None:
            told = clock.now()
            late += [(told - row.due).total_seconds() * 1_000 for row in batch]
            came += [row.id for row in batch]
        held = engine.query("SELECT held FROM tidegate.windows").scalar()
        return sorted(late), came == list(range(alerts)) and held == open_partials
