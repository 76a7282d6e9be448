"""What the kernel costs: statements, growth of a table, memory of a row, threads, and locking schemes.

Every figure is a median over rounds, and every ratio is taken between two things measured in the same round.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, partition
from tidegate.benchmarks.setting import setting
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks, locking_with

Progress = Callable[[str], None]


def bench(rounds: int = 5, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Everything below, with the setting it was measured in."""
    figures: dict[str, Any] = {}
    for part in (statement_cost, duckdb_cost, growth, memory, thread_speedup, locking_speedup):
        progress(str(part.__doc__).splitlines()[0])
        figures.update(part(rounds))
    return {**figures, "rounds": rounds, **setting()}


# ---- statements


def statement_cost(rounds: int, calls: int = 5_000) -> dict[str, float]:
    """Compiled point statements against the row API, µs per call."""
    app = App("statements")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    select = app.sql("SELECT n FROM counters WHERE id = ?")
    update = app.sql("UPDATE counters SET n = n + 1 WHERE id = ?")

    def get(txn: Transaction) -> None:
        for i in range(calls):
            txn.get("counters", i % 1_000)

    def change(txn: Transaction) -> None:
        for i in range(calls):
            row = txn.get("counters", i % 1_000)
            txn.update("counters", i % 1_000, n=row.n + 1)

    def run_select(txn: Transaction) -> None:
        for i in range(calls):
            txn.execute(select, i % 1_000)

    def run_update(txn: Transaction) -> None:
        for i in range(calls):
            txn.execute(update, i % 1_000)

    def load(txn: Transaction) -> None:
        for i in range(1_000):
            txn.insert("counters", (i, 0))

    for function in (load, get, change, run_select, run_update):
        app.procedure(writes=["counters"])(function)
    times: dict[str, list[float]] = {"get": [], "change": [], "run_select": [], "run_update": []}
    with tidegate.open(app) as engine:
        engine.call("load")
        for _ in range(rounds):
            for name, found in times.items():
                found.append(_timed(partial(engine.call, name)) / calls * 1e6)
    middle = {name: statistics.median(found) for name, found in times.items()}
    return {
        "row_get_us": round(middle["get"], 2),
        "compiled_select_us": round(middle["run_select"], 2),
        "row_get_and_update_us": round(middle["change"], 2),
        "compiled_update_us": round(middle["run_update"], 2),
        "compiled_above_row_api_us": round(
            max(middle["run_select"] - middle["get"], middle["run_update"] - middle["change"]), 2
        ),
    }


def duckdb_cost(rounds: int, calls: int = 30) -> dict[str, float]:
    """SQL that needs DuckDB, over an empty overlay and over one of 1,000 rows, ms per call."""
    app = App("overlay")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, grp INTEGER NOT NULL, n BIGINT NOT NULL)")
    total = app.sql("SELECT grp, sum(n) FROM counters GROUP BY grp")

    def load(txn: Transaction) -> None:
        for i in range(10_000):
            txn.insert("counters", (i, i % 10, 0))

    def touch(txn: Transaction, rows: int) -> None:
        for i in range(rows):
            txn.update("counters", i, n=1)

    def ask(txn: Transaction) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            txn.execute(total)
        return (time.perf_counter() - begin) / calls

    def touch_and_ask(txn: Transaction) -> float:
        seconds = 0.0
        for i in range(calls):
            txn.update("counters", i, n=2)
            begin = time.perf_counter()
            txn.execute(total)
            seconds += time.perf_counter() - begin
        return seconds / calls

    for function in (load, touch, ask, touch_and_ask):
        app.procedure(writes=["counters"])(function)
    empty, full, own = [], [], []
    with tidegate.open(app) as engine:
        engine.call("load")
        for _ in range(rounds):
            engine.checkpoint()
            empty.append(engine.call("ask") * 1e3)
            engine.call("touch", 1_000)
            full.append(engine.call("ask") * 1e3)
            own.append(engine.call("touch_and_ask") * 1e3)
    return {
        "duckdb_sql_ms": round(statistics.median(empty), 2),
        "duckdb_sql_1000_changed_rows_ms": round(statistics.median(full), 2),
        "duckdb_sql_1000_changed_rows_and_own_writes_ms": round(statistics.median(own), 2),
    }


# ---- growth and memory


def counting_app() -> App:
    """A batch names a counter; its procedure adds one to it."""
    app = App("growth")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL, label VARCHAR)")
    app.stream("hits", "id INTEGER NOT NULL", border=True)

    @app.procedure(inputs="hits", writes=["counters"], prefetch={"counters": "id"})
    def count(txn: Transaction, hits: Batch) -> None:
        for hit in hits:
            row = txn.get("counters", hit.id)
            txn.update("counters", hit.id, n=row.n + 1)

    @app.procedure(writes=["counters"])
    def load(txn: Transaction, first: int, last: int) -> None:
        for i in range(first, last):
            txn.insert("counters", (i, 0, f"counter {i}"))

    return app


def growth(rounds: int, hits: int = 30_000) -> dict[str, float]:
    """Batches a second with 1,000 and with 1,000,000 rows in the table."""
    rates: dict[int, list[float]] = {1_000: [], 1_000_000: []}
    engines = {rows: _counting_engine(rows) for rows in rates}
    for number in range(rounds):
        for rows, engine in engines.items():
            step = rows // 1_000 * 7 + 1
            batch = [((number * 31 + i * step) % rows,) for i in range(hits)]
            rates[rows].append(hits / _timed(partial(engine.feed, "hits", batch)))
    for engine in engines.values():
        engine.close()
    middle = {rows: statistics.median(found) for rows, found in rates.items()}
    ratios = [large / small for small, large in zip(rates[1_000], rates[1_000_000], strict=True)]
    return {
        "batches_per_s_1000_rows": round(middle[1_000]),
        "batches_per_s_1000000_rows": round(middle[1_000_000]),
        "growth_ratio": round(statistics.median(ratios), 2),
    }


def _counting_engine(rows: int) -> tidegate.Engine:
    engine = tidegate.open(counting_app())
    for first in range(0, rows, 100_000):
        engine.call("load", first, min(first + 100_000, rows))
    engine.checkpoint()
    engine.feed("hits", [(i,) for i in range(0, rows, max(rows // 1_000, 1))])
    return engine


def memory(rounds: int, rows: int = 100_000) -> dict[str, float]:
    """Bytes of memory that a cached row of three columns (two integers, a short text) takes."""
    with tidegate.open(counting_app()) as engine:
        engine.call("load", 0, 1_000)
        gc.collect()
        tracemalloc.start()
        engine.call("load", 1_000, rows + 1_000)
        engine.checkpoint()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return {"bytes_per_cached_row": round(used / rows)}


# ---- threads and locks


def thread_speedup(rounds: int, batches: int = 200) -> dict[str, float]:
    """Four workers against serial, procedures of about 5 ms in DuckDB on eight independent partitions."""
    serial, threads = [], []
    work = _calibrated()
    for _ in range(rounds):
        serial.append(_timed_run(_partitioned_app(work), batches, executor="serial"))
        threads.append(_timed_run(_partitioned_app(work), batches, executor="threads", workers=4))
    ratios = [one / four for one, four in zip(serial, threads, strict=True)]
    return {
        "duckdb_work_ms": round(statistics.median(serial) / batches * 1e3, 2),
        "threads_speedup": round(statistics.median(ratios), 2),
    }


def _calibrated(target_ms: float = 5.0) -> int:
    """How many numbers DuckDB hashes in about ``target_ms`` here."""
    app = App("calibrate")
    app.table("CREATE TABLE unused (id INTEGER PRIMARY KEY)")
    work = app.sql(WORK)

    @app.procedure()
    def run(txn: Transaction, rows: int) -> None:
        txn.execute(work, rows)

    with tidegate.open(app) as engine:

        def spent_ms(rows: int) -> float:
            engine.call("run", rows)
            return statistics.median(_timed(partial(engine.call, "run", rows)) for _ in range(9)) * 1e3

        few, many = spent_ms(10_000), spent_ms(510_000)
    per_row_ms = (many - few) / 500_000
    return int(10_000 + max(target_ms - few, 0) / per_row_ms)


WORK = "SELECT max(hash(i * 31)) FROM range(?) numbers(i)"


def _partitioned_app(rows: int) -> App:
    app = App("partitions")
    app.table("CREATE TABLE cells (cell INTEGER PRIMARY KEY, n BIGINT NOT NULL)", partition_by="cell")
    app.stream("work", "cell INTEGER NOT NULL", border=True, key="cell")
    query = app.sql(WORK)

    @app.procedure(inputs="work", writes=[partition("cells")])
    def compute(txn: Transaction, work: Batch) -> None:
        txn.execute(query, rows)
        before = txn.get("cells", work.key)
        txn.upsert("cells", (work.key, len(work) + (before.n if before else 0)))

    return app


def _timed_run(app: App, batches: int, **settings: Any) -> float:
    with tidegate.open(app, **settings) as engine:
        for _ in range(4):  # every worker opens its connection before the clock starts
            engine.push("work", [(cell,) for cell in range(8)])
        engine.run_until_idle()

        def run() -> None:
            for i in range(batches):
                engine.push("work", [(i % 8,)])
            engine.run_until_idle()

        return _timed(run)


def locking_speedup(rounds: int, pairs: int = 40) -> dict[str, float]:
    """Low-water marks against strict two-phase locking when slow readers and writers of one table overlap."""
    ratios = []
    for _ in range(rounds):
        marks = _timed_overlap(LowWaterMarks, pairs)
        ratios.append(_timed_overlap(TwoPhaseLocks, pairs) / marks)
    return {"low_water_mark_speedup_over_two_phase": round(statistics.median(ratios), 2)}


def _timed_overlap(locks: Callable[[], LowWaterMarks], pairs: int) -> float:
    """Readers that wait for 4 ms (for a remote lookup, say), each followed by such a writer of the same table."""
    app = App("overlap")
    app.table("CREATE TABLE prices (id INTEGER PRIMARY KEY, price BIGINT NOT NULL)")

    @app.procedure(reads=["prices"])
    def report(txn: Transaction) -> int:
        time.sleep(0.004)
        return sum(row.price for row in txn.scan("prices"))

    @app.procedure(writes=["prices"])
    def change(txn: Transaction, price: int) -> None:
        time.sleep(0.004)
        txn.upsert("prices", (1, price))

    with locking_with(locks), tidegate.open(app, executor="threads", workers=4) as engine:
        engine.call("change", 0)

        def run() -> None:
            for i in range(pairs):
                engine.submit("change", i)
                engine.submit("report")
            engine.run_until_idle()

        return _timed(run)


def _timed(run: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
