"""Does a batch cost the same when there is more of everything? Ratios of large to small, measured in turn.

Processor time per batch, so that other load on the machine does not count; 1.0 is flat, less than 1 is slower when
large.

State is measured in three ways. A vote of the leaderboard, from a phone *anywhere* among all phones, is what an
application sees. The smallest possible batch (one row changes) shows the most: rows *near one another* show whether the
engine does more work when there is more; rows *anywhere* are outside the processor's caches, as they would be in any
structure, and the same changes on a bare dictionary, in the same run, show how much of the difference is due to that. A
window that holds a single pane is folded at once, one of many panes is not: each is compared with its own kind.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.kernel import counting_app
from tidegate.benchmarks.setting import setting
from tidegate.examples.leaderboard.app import leaderboard, start

Progress = Callable[[str], None]


class Subject:
    """An engine of some size, or what it is compared with. ``run(round)`` does some batches and returns how many;
    ``right()``: did they have the right effect?
    """

    def __init__(
        self, engine: AbstractContextManager[Any], run: Callable[[int], int], right: Callable[[], bool]
    ) -> None:
        self.engine = engine
        self.run = run
        self.right = right


def bench(
    rounds: int = 5, batches: int = 10_000, factor: int = 1_000, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """State and windows ``factor`` times as large; ten times the procedures and tables."""
    found = {}
    for name, make, small, large in (
        ("phones that vote, anywhere", votes, 1_000, 1_000 * factor),
        ("rows of state, near one another", state_near, 1_000, 1_000 * factor),
        ("rows of state, anywhere", state, 1_000, 1_000 * factor),
        ("entries of a bare dictionary, anywhere", bare_dictionary, 1_000, 1_000 * factor),
        ("rows in a window, read by the procedure", tuple_window, 100, 100 * factor),
        ("rows in a window, aggregated, one pane and many", aggregated_window, 100, 100 * factor),
        ("rows in a window, aggregated, many panes", aggregated_window, 10_000, 1_000 * factor),
        ("procedures", procedures, 3, 30),
        ("tables", tables, 3, 30),
    ):
        progress(f"{name}: {small:,} and {large:,}")
        found[name] = compare(lambda size, make=make: make(size, batches), small, large, rounds)
    return {
        "votes_ratio": found["phones that vote, anywhere"]["ratio"],
        "state_ratio": found["rows of state, anywhere"]["ratio"],
        "state_near_ratio": found["rows of state, near one another"]["ratio"],
        "bare_dictionary_ratio": found["entries of a bare dictionary, anywhere"]["ratio"],
        "rounds": rounds,
        "correct": all(each["correct"] for each in found.values()),
        "growth": found,
        **setting(),
    }


def compare(make: Callable[[int], Subject], small: int, large: int, rounds: int) -> dict[str, Any]:
    """The same batches on both sizes, in turn."""
    with ExitStack() as open_engines:
        subjects = [make(size) for size in (small, large)]
        for subject in subjects:
            open_engines.enter_context(subject.engine)
            subject.run(0)
        spent: list[list[float]] = [[], []]
        for number in range(1, rounds + 1):
            for subject, seconds in zip(subjects, spent, strict=True):
                gc.collect()
                begin = time.process_time()
                count = subject.run(number)
                seconds.append((time.process_time() - begin) / count)
        return {
            "small": small,
            "large": large,
            "small_us": round(statistics.median(spent[0]) * 1e6, 2),
            "large_us": round(statistics.median(spent[1]) * 1e6, 2),
            "ratio": round(statistics.median(s / b for s, b in zip(*spent, strict=True)), 2),
            "correct": all(subject.right() for subject in subjects),
        }


def votes(phones: int, batches: int) -> Subject:
    """Each batch is a vote of the leaderboard, from one of ``phones`` that have voted; no contestant leaves."""
    app = leaderboard(eliminate_every=None, votes_per_phone=1_000_000)

    @app.procedure(writes=["votes"])
    def know(txn: Transaction, first: int, last: int) -> None:
        for phone in range(first, last):
            txn.insert("votes", (-1 - phone, phone, phone % 25 + 1))

    engine = start(app)
    for first in range(0, phones, 100_000):
        engine.call("know", first, min(first + 100_000, phones))
    engine.checkpoint()
    step = phones // 1_000 * 7 + 1
    cast = 0

    def run(number: int) -> int:
        nonlocal cast
        numbers = range(cast, cast + batches)
        cast += batches
        return engine.feed("votes_in", [(i, (number * 31 + i * step) % phones, i % 25 + 1) for i in numbers]).batches

    return Subject(engine, run, lambda: engine.query("SELECT sum(total) FROM contestants").scalar() == cast)


def state(rows: int, batches: int) -> Subject:
    """Each batch adds one to a counter, anywhere in the table."""
    return _state(rows, batches, rows // 1_000 * 7 + 1)


def state_near(rows: int, batches: int) -> Subject:
    """Each batch adds one to the counter next to that of the previous batch."""
    return _state(rows, batches, 1)


def _state(rows: int, batches: int, step: int) -> Subject:
    engine = tidegate.open(counting_app())
    for first in range(0, rows, 100_000):
        engine.call("load", first, min(first + 100_000, rows))
    engine.checkpoint()
    rounds = 0

    def run(number: int) -> int:
        nonlocal rounds
        rounds += 1
        return engine.feed("hits", [((number * 31 + i * step) % rows,) for i in range(batches)]).batches

    return Subject(engine, run, lambda: engine.query("SELECT sum(n) FROM counters").scalar() == rounds * batches)


def bare_dictionary(rows: int, batches: int) -> Subject:
    """Only what :func:`state` does in memory: rows as tuples in versions as tuples, one replaced at a time."""
    held: dict[int, tuple[int, tuple[int, int, str]]] = {i: (0, (i, 0, f"counter {i}")) for i in range(rows)}
    changed: dict[int, bool] = {}
    step = rows // 1_000 * 7 + 1
    rounds = 0

    def run(number: int) -> int:
        nonlocal rounds
        rounds += 1
        for i in range(batches):
            key = (number * 31 + i * step) % rows
            row = held[key][1]
            changed[key] = True
            held[key] = (i, (row[0], row[1] + 1, row[2]))
        return batches

    return Subject(nullcontext(), run, lambda: sum(row[1] for _, row in held.values()) == rounds * batches)


def tuple_window(rows: int, batches: int) -> Subject:
    """The procedure keeps a running sum by what enters and leaves the window."""
    app = App("tuple_window")
    app.table("CREATE TABLE sums (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)")
    app.stream("values_in", "value BIGINT NOT NULL", border=True)

    @app.procedure(inputs="values_in", writes=["sums"], windows={"last": window("values_in", count=rows, slide=1)})
    def add(txn: Transaction, values_in: Batch) -> None:
        last = txn.window("last")
        change = sum(row.value for row in last.added) - sum(row.value for row in last.expired)
        before = txn.get("sums", 1)
        txn.upsert("sums", (1, change if before is None else before.total + change))

    engine = tidegate.open(app)
    engine.feed("values_in", [(1,)] * rows, size=1_000)
    return Subject(
        engine,
        lambda number: engine.feed("values_in", [(1,)] * batches).batches,
        lambda: engine.query("SELECT total FROM sums").scalar() == rows,
    )


def aggregated_window(rows: int, batches: int) -> Subject:
    """Batches of 100 rows slide a window whose sum the engine keeps."""
    app = App("aggregated_window")
    app.table("CREATE TABLE sums (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)")
    app.stream("values_in", "value BIGINT NOT NULL", border=True)
    last = window("values_in", count=rows, slide=100, compute={"total": w.sum("value")})

    @app.procedure(inputs="values_in", writes=["sums"], windows={"last": last})
    def add(txn: Transaction, values_in: Batch) -> None:
        for result in txn.window("last").rows:
            txn.upsert("sums", (1, result.total))

    engine = tidegate.open(app)
    engine.feed("values_in", [(1,)] * rows, size=1_000)
    some = [(1,)] * (max(batches // 20, 1) * 100)
    return Subject(
        engine,
        lambda number: engine.feed("values_in", some, size=100).batches,
        lambda: engine.query("SELECT total FROM sums").scalar() == rows,
    )


def procedures(number: int, batches: int) -> Subject:
    """``number`` dataflows of one procedure each; the batches go to three of them."""
    app = App("procedures")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    for i in range(number):
        app.stream(f"hits_{i}", "id INTEGER NOT NULL", border=True)
        _declare_counting(app, f"hits_{i}", "counters", f"count_{i}")
    engine = tidegate.open(app)
    chosen = [f"hits_{i * (number // 3)}" for i in range(3)]
    return _counting(engine, chosen, ["counters"], batches)


def tables(number: int, batches: int) -> Subject:
    """``number`` tables; the batches change three of them."""
    app = App("tables")
    for i in range(number):
        app.table(f"CREATE TABLE counters_{i} (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    chosen = [i * (number // 3) for i in range(3)]
    for i in chosen:
        app.stream(f"hits_{i}", "id INTEGER NOT NULL", border=True)
        _declare_counting(app, f"hits_{i}", f"counters_{i}", f"count_{i}")
    engine = tidegate.open(app)
    return _counting(engine, [f"hits_{i}" for i in chosen], [f"counters_{i}" for i in chosen], batches)


def _declare_counting(app: App, stream: str, table: str, name: str) -> None:
    def count(txn: Transaction, hits: Batch) -> None:
        for hit in hits:
            row = txn.get(table, hit.id)
            txn.upsert(table, (hit.id, 1 if row is None else row.n + 1))

    count.__name__ = name
    app.procedure(inputs=stream, writes=[table])(count)


def _counting(engine: Engine, streams: Sequence[str], counted: Sequence[str], batches: int) -> Subject:
    rounds = 0

    def run(number: int) -> int:
        nonlocal rounds
        rounds += 1
        return sum(engine.feed(stream, [(i % 1_000,) for i in range(batches // 3)]).batches for stream in streams)

    def total(table: str) -> int:
        return int(engine.query(f"SELECT sum(n) FROM {table}").scalar())

    return Subject(engine, run, lambda: sum(map(total, counted)) == 3 * (batches // 3) * rounds)
