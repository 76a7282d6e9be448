"""Windows end to end: from ``engine.push`` to results that a committed transaction has read, beside plain Python.

Large batches come as Arrow tables of 10,000 rows, as they do from files, Kafka and Spark; small ones are one row each.
Every figure is processor time, the best of its rounds: other work on the machine only ever makes it worse. What is
compared alternates in the same run, and everything computed is compared with plain Python.
"""

from __future__ import annotations

import datetime as dt
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks import windows as state
from tidegate.streams.windows import WindowSpec

Progress = Callable[[str], None]
Rows = list[tuple[Any, ...]]
START = dt.datetime(1970, 1, 1)
READING = '"at" TIMESTAMP NOT NULL, sensor BIGINT NOT NULL, value DOUBLE NOT NULL'
SMALL = 3_000  # one-row batches, of which the first tenth are not counted
BASE, CHANGED = 10_000, 100_000  # rows of a table, and changes of them that are not merged yet


def bench(rows: int = 500_000, rounds: int = 3, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Everything below, as one flat dict; ``correct``: all of it was what plain Python computes."""
    figures = _large(rows, rounds, progress)
    progress("one row at a time")
    small = _small(rounds)
    progress("overlay")
    overlay_ms, right = _overlay(rounds)
    correct = figures["correct"] and small["correct"] and right
    return {**figures, **small, "overlay_ms": overlay_ms, "correct": correct}


# ---- batches of 10,000 rows, as Arrow


def reading_app(spec: WindowSpec) -> App:
    """The results of a window are read as columns and added up in a table."""
    app = App("readings")
    app.table("CREATE TABLE seen (id INTEGER PRIMARY KEY, windows BIGINT, means DOUBLE, peaks DOUBLE)")
    app.stream("readings", READING, border=True)

    @app.procedure(inputs="readings", writes=["seen"], windows={"recent": spec})
    def watch(txn: Transaction, readings: Batch) -> None:
        results = txn.window("recent").results
        if len(results):
            _, windows, means, peaks = txn.get("seen", 1) or (1, 0, 0.0, 0.0)
            means, peaks = means + float(results["mean"].sum()), peaks + float(results["peak"].sum())
            txn.upsert("seen", (1, windows + len(results), means, peaks))

    return app


def tables(at: Any, sensor: Any, value: Any) -> list[pa.Table]:
    """The rows in batches, as they would come from a file."""
    whole = pa.table({"at": pa.array(at.view("M8[us]")), "sensor": sensor, "value": value})
    return [whole.slice(low, state.BATCH).combine_chunks() for low in range(0, len(value), state.BATCH)]


def _large(rows: int, rounds: int, progress: Progress) -> dict[str, Any]:
    sensor, value = state._data(rows)
    at = state.event_times(rows)
    given = tables(at, sensor, value)
    runs: dict[str, Callable[[], tuple[tuple[Any, ...], float]]] = {}
    for kind, spec, plain in (
        ("count", state.by_count(state.SIZE, state.SLIDE), lambda: state.python_count(sensor, value)),
        ("time", state.by_time(), lambda: state.python_time(value)),
    ):
        runs[f"engine_{kind}"] = lambda spec=spec: _pushed(reading_app(spec), given, False)  # type: ignore[misc]
        runs[f"durable_{kind}"] = lambda spec=spec: _pushed(reading_app(spec), given, True)  # type: ignore[misc]
        runs[f"deques_{kind}"] = lambda plain=plain: _timed(plain)  # type: ignore[misc]
    taken: dict[str, list[float]] = {name: [] for name in runs}
    answers: dict[str, list[tuple[Any, ...]]] = {"count": [], "time": []}
    for number in range(rounds):
        for name, run in runs.items():
            progress(f"round {number + 1}: {name}")
            answer, seconds = run()
            taken[name].append(seconds)
            answers[name.split("_")[1]].append(answer)
    figures: dict[str, Any] = {f"{name}_rows_per_s": round(rows / min(best)) for name, best in taken.items()}
    for kind in answers:
        figures[f"{kind}_times_deques"] = round(min(taken[f"deques_{kind}"]) / min(taken[f"engine_{kind}"]), 2)
        figures[f"durable_{kind}_share"] = round(min(taken[f"engine_{kind}"]) / min(taken[f"durable_{kind}"]), 2)
    figures["correct"] = all(state._same(found[0], other) for found in answers.values() for other in found[1:])
    return figures


def _pushed(app: App, given: list[pa.Table], durable: bool) -> tuple[tuple[Any, ...], float]:
    with tempfile.TemporaryDirectory() as place, tidegate.open(app, place if durable else None) as engine:
        begun = time.process_time()
        for table in given:
            ticket = engine.push("readings", table)
        ticket.result()
        seconds = time.process_time() - begun
        ((_, *found),) = engine.query("SELECT * FROM seen").rows
    return tuple(found), seconds


def _timed(run: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], float]:
    begun = time.process_time()
    return run(), time.process_time() - begun


# ---- batches of one row


def _small(rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    rows: Rows = [
        (START + dt.timedelta(seconds=0.1 * i), int(sensor), float(value))
        for i, (sensor, value) in enumerate(
            zip(rng.integers(0, 20, SMALL), np.round(rng.normal(20.0, 5.0, SMALL), 3), strict=True)
        )
    ]
    cases: dict[str, tuple[Callable[[], App], Callable[[Rows], Any], dict[str, Any]]] = {
        "tumble": (lambda: _windowed(time="10s"), lambda rows: _by_time(rows, 10, 10), {}),
        "hop": (lambda: _windowed(time="10s", slide="1s"), lambda rows: _by_time(rows, 10, 1), {}),
        "session": (lambda: _windowed(session="1s"), _sessions, {}),
        "join": (_joined, _pairs, {}),
        "sql_filter": (_filtered, lambda rows: _sum(row[2] for row in rows if row[2] > 25), {}),
        "sql_lookup": (_looked_up, lambda rows: _sum(row[2] for row in rows if row[1] % 2), {}),
        "keyed_slide": (_keyed_slide, _last_ten, {}),
        "threads": (_keyed_upsert, lambda rows: _sum(row[2] for row in rows), {"executor": "threads", "workers": 2}),
    }
    best: dict[str, float] = {}
    correct = True
    for _ in range(rounds):
        for name, (app, plain, settings) in cases.items():
            found, micros = _one_by_one(app(), rows, settings)
            best[name] = min(best.get(name, micros), micros)
            correct &= state._same(found, plain(rows))
    return {**{f"{name}_us": round(micros, 1) for name, micros in best.items()}, "correct": correct}


def _one_by_one(app: App, rows: Rows, settings: dict[str, Any]) -> tuple[tuple[Any, ...], float]:
    """What all results add up to, and the microseconds of a batch."""
    sides = [name for name, stream in app.streams.items() if stream.border and name != "sensors_in"]
    with tidegate.open(app, **settings) as engine:
        if "sensors_in" in app.streams:
            engine.push("sensors_in", [(sensor, sensor % 2 == 1) for sensor in range(20)])
        pushes = [(sides[i % len(sides)], [row]) for i, row in enumerate(rows)]
        warm = SMALL // 10
        _push(engine, pushes[:warm])
        begun = time.process_time()
        _push(engine, pushes[warm:])
        micros = (time.process_time() - begun) / (len(pushes) - warm) * 1e6
        found = engine.query("SELECT count(*), coalesce(sum(value), 0) FROM results").rows[0]
    return tuple(found), micros


def _push(engine: Engine, pushes: list[tuple[str, Rows]]) -> None:
    for stream, rows in pushes:
        engine.push(stream, rows)
    engine.run_until_idle()


def _app(key: str | None = None) -> App:
    app = App("small")
    app.table("CREATE TABLE results (id VARCHAR PRIMARY KEY, value DOUBLE)")
    app.stream("readings", READING, border=True, key=key)
    return app


def _windowed(**kind: Any) -> App:
    app = _app()
    spec = window("readings", on="at", by="sensor", compute={"total": w.sum("value")}, **kind)

    @app.procedure(inputs="readings", writes=["results"], windows={"recent": spec})
    def watch(txn: Transaction, readings: Batch) -> None:
        for found in txn.window("recent").results:
            txn.insert("results", (f"{found.sensor} {found.window_start}", found.total))

    return app


def _joined() -> App:
    app = _app()
    app.stream("others", READING, border=True)
    near = tidegate.join(
        "readings", "others", on="sensor", left_time="at", right_time="at", within="1s", mode="best_effort",
        select={"left_at": "readings.at", "right_at": "others.at", "one": "readings.value", "two": "others.value"},
    )  # fmt: skip

    @app.procedure(inputs=tidegate.either("readings", "others"), writes=["results"], windows={"near": near})
    def match(txn: Transaction, readings: Batch, others: Batch) -> None:
        for found in txn.window("near").results:
            txn.insert("results", (f"{found.left_at} {found.right_at}", found.one * found.two))

    return app


def _filtered() -> App:
    app = _app()

    @app.procedure(inputs="readings", writes=["results"])
    def keep(txn: Transaction, readings: Batch) -> None:
        for found in txn.execute('SELECT "at", value FROM readings WHERE value > 25'):
            txn.insert("results", (str(found.at), found.value))

    return app


def _looked_up() -> App:
    app = _app()
    app.table("CREATE TABLE sensors (sensor BIGINT PRIMARY KEY, watched BOOLEAN)")
    app.stream("sensors_in", "sensor BIGINT, watched BOOLEAN", border=True)

    @app.procedure(inputs="sensors_in", writes=["sensors"])
    def install(txn: Transaction, sensors_in: Batch) -> None:
        for sensor in sensors_in:
            txn.insert("sensors", sensor)

    query = 'SELECT r."at", r.value FROM readings r JOIN sensors s ON s.sensor = r.sensor WHERE s.watched'

    @app.procedure(inputs="readings", reads=["sensors"], writes=["results"])
    def keep(txn: Transaction, readings: Batch) -> None:
        for found in txn.execute(query):
            txn.insert("results", (str(found.at), found.value))

    return app


def _keyed_slide() -> App:
    app = _app(key="sensor")
    spec = window("readings", count=10, slide=1, compute={"total": w.sum("value")})

    @app.procedure(inputs="readings", writes=["results"], windows={"recent": spec})
    def watch(txn: Transaction, readings: Batch) -> None:
        for found in txn.window("recent").results:
            txn.insert("results", (f"{txn.key} {found.window_number}", found.total))

    return app


def _keyed_upsert() -> App:
    app = _app(key="sensor")

    @app.procedure(inputs="readings", writes=["results"])
    def keep(txn: Transaction, readings: Batch) -> None:
        for row in readings:
            txn.upsert("results", (f"{row.sensor} {row.at}", row.value))

    return app


# ---- the same in plain Python: how many results, and their sum


def _sum(values: Any) -> tuple[int, float]:
    found = list(values)
    return len(found), sum(found)


def _micros(row: tuple[Any, ...]) -> int:
    return (row[0] - START) // dt.timedelta(microseconds=1)  # type: ignore[no-any-return]


def _by_time(rows: Rows, size_s: int, slide_s: int) -> tuple[int, float]:
    size, slide = size_s * 1_000_000, slide_s * 1_000_000
    totals: dict[tuple[int, int], float] = {}
    for row in rows:
        at = _micros(row)
        for number in range((at - size) // slide + 1, at // slide + 1):
            totals[row[1], number] = totals.get((row[1], number), 0.0) + row[2]
    last = _micros(rows[-1])
    return _sum(total for (_, number), total in totals.items() if number * slide + size <= last)


def _sessions(rows: Rows) -> tuple[int, float]:
    gap, last = 1_000_000, _micros(rows[-1])
    open_: dict[int, tuple[int, float]] = {}
    done = []
    for row in rows:
        at = _micros(row)
        before, total = open_.get(row[1], (at, 0.0))
        if at - before >= gap:
            done.append(total)
            total = 0.0
        open_[row[1]] = at, total + row[2]
    return _sum([*done, *(total for at, total in open_.values() if at + gap <= last)])


def _pairs(rows: Rows) -> tuple[int, float]:
    """Every second row is on the other stream."""
    found = []
    for i, row in enumerate(rows):
        for j in range(i - 1, -1, -2):
            if row[0] - rows[j][0] > dt.timedelta(seconds=1):
                break
            if rows[j][1] == row[1]:
                found.append(row[2] * rows[j][2])
    return _sum(found)


def _last_ten(rows: Rows) -> tuple[int, float]:
    held: dict[int, deque[float]] = {}
    found = []
    for row in rows:
        kept = held.setdefault(row[1], deque(maxlen=10))
        kept.append(row[2])
        if len(kept) == 10:
            found.append(sum(kept))
    return _sum(found)


# ---- SQL over many changes that are not merged yet


def _overlay(rounds: int) -> tuple[float, bool]:
    """Milliseconds of a grouped query in a procedure, its own change included."""
    app = App("overlay")
    app.table("CREATE TABLE items (id BIGINT PRIMARY KEY, kind BIGINT, value DOUBLE)")
    app.table("CREATE TABLE results (id BIGINT PRIMARY KEY, kinds BIGINT, value DOUBLE)")
    app.stream("items_in", "id BIGINT, kind BIGINT, value DOUBLE", border=True)
    app.stream("asked", "id BIGINT", border=True)
    taken: list[float] = []

    @app.procedure(inputs="items_in", writes=["items"])
    def store(txn: Transaction, items_in: Batch) -> None:
        for item in items_in:
            txn.upsert("items", item)

    @app.procedure(inputs="asked", writes=["items", "results"])
    def answer(txn: Transaction, asked: Batch) -> None:
        txn.upsert("items", (0, 0, float(txn.batch_id or 0)))
        begun = time.process_time()
        found = txn.execute("SELECT kind, sum(value) AS total FROM items GROUP BY kind")
        taken.append(time.process_time() - begun)
        txn.upsert("results", (asked[0].id, len(found), sum(row.total for row in found)))

    rows = [(i, i % 100, float(i)) for i in range(BASE)]
    with tidegate.open(app, merge_rows=10 * CHANGED) as engine:
        engine.push("items_in", rows)
        engine.checkpoint()
        for turn in range(1, CHANGED // BASE + 1):
            engine.push("items_in", [(i, kind, value + turn) for i, kind, value in rows])
        for number in range(5 * rounds):
            engine.push("asked", [(number,)]).result()
        answers = {tuple(row) for row in engine.query("SELECT kinds, value - id FROM results").rows}
    total = sum(value + CHANGED // BASE for _, _, value in rows[1:])
    return round(statistics.median(taken) * 1_000, 2), answers == {(100, total + 1)}
