"""Timers and schedules: what the clock brings in, once, in every mode and executor, over kills, questions and upgrades."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.errors import AccessError, ProcedureFailed, RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.testing import ManualClock

Make = Callable[..., Engine]
HOUR = dt.timedelta(hours=1)


def reminders(
    recovery: Any = "weak",
    *,
    due: str = "due",
    columns: str = "n BIGINT NOT NULL",
    key: str | None = None,
    **renamed: str,
) -> App:
    """jobs set timers and cancel them by their id; a nested transaction sets one in front of its question."""
    app = App("reminders", recovery=recovery)
    app.table("CREATE TABLE set_for (n BIGINT PRIMARY KEY, timer VARCHAR)")
    app.table("CREATE TABLE came (n BIGINT, at_time TIMESTAMP, PRIMARY KEY (n, at_time))")
    app.table("CREATE TABLE hours (due TIMESTAMP PRIMARY KEY)")
    app.stream("jobs", "n BIGINT NOT NULL, minutes BIGINT, cancels BIGINT", border=True)
    app.stream("orders", "n BIGINT NOT NULL", border=True)
    app.stream("asked", "n BIGINT")
    app.stream("answers", "yes BOOLEAN", border=True, deadline_s=86_400, default={"yes": False})
    app.stream(due, columns, border=True, key=key, renamed_from=renamed.get("stream"))

    @app.procedure(inputs="jobs", writes=["set_for"], timers=due)
    def work(txn: Transaction, jobs: Batch) -> None:
        for job in jobs:
            if job.minutes is not None:
                timer = txn.after(dt.timedelta(minutes=job.minutes), due, n=job.n)
                txn.upsert("set_for", (job.n, timer))
            if job.cancels is not None:
                row = txn.get("set_for", job.cancels)
                txn.cancel(None if row is None else row.timer)
        if any(job.n < 0 for job in jobs):
            txn.abort("below zero")

    @app.procedure(inputs="orders", outputs="asked", timers=due)
    def ask(txn: Transaction, orders: Batch) -> None:
        for order in orders:
            txn.after("30m", due, (order.n, *[None] * (len(columns.split(",")) - 1)))
            txn.emit("asked", [order])

    @app.procedure(inputs=["asked", "answers"], timers=due)
    def decide(txn: Transaction, asked: Batch, answers: Batch) -> None:
        if not answers[0].yes:
            txn.abort("no")
        txn.after("40m", due, n=asked[0].n + 1)

    @app.procedure(inputs=due, writes=["came"])
    def note(txn: Transaction, rows: Batch) -> None:
        for row in rows:
            txn.insert("came", (row.n, txn.now))

    @app.procedure(every="1h", missed="catch_up", writes=["hours"])
    def hourly(txn: Transaction, ticks: Batch) -> None:
        for tick in ticks:
            txn.insert("hours", tick)

    app.nested("ask", "decide", name="asking")
    return app


def pass_time(engine: Engine, minutes: float = 0) -> None:
    clock: Any = engine.clock
    clock.advance(minutes * 60)
    engine.tick()
    engine.run_until_idle()


def push(engine: Engine, *jobs: tuple[Any, ...]) -> None:
    for job in jobs:
        engine.push("jobs", [(*job, None)[:3]])
        engine.run_until_idle()


def came(engine: Engine) -> dict[int, float]:
    """What came, and how many minutes after the beginning."""
    begin = dt.datetime(2026, 1, 1)
    rows = engine.query("SELECT n, at_time FROM came ORDER BY at_time, n").rows
    return {row.n: (row.at_time - begin).total_seconds() / 60 for row in rows}


def pending(engine: Engine) -> list[tuple[Any, ...]]:
    found = engine.query("SELECT stream, row_values FROM tidegate.timers WHERE schedule IS NULL ORDER BY due, timer")
    return [tuple(row) for row in found.rows]


@pytest.mark.parametrize(
    ("recovery", "executor"),
    [("weak", "serial"), ("strong", "manual"), ("effects", "serial"), ("weak", "threads"), ("effects", "threads")],
)
def test_set_cancelled_undone_killed_and_replayed(
    open_engine: Make, tmp_path: Path, recovery: Any, executor: str
) -> None:
    def engine_of(app: App, path: Path) -> Engine:
        return open_engine(app, path, executor=executor)

    engine = engine_of(reminders(recovery), tmp_path)
    push(engine, (1, 10), (2, 10), (3, 20), (4, 90), (-5, 10))  # the last one aborts
    push(engine, (6, None, 2), (7, None, 99), (8, 50, 8), (-9, None, 3))  # 8 is cancelled where it was set, -9 aborts
    assert [row for _, row in pending(engine)] == ["[1]", "[3]", "[4]"]
    pass_time(engine, 9.999)
    assert came(engine) == {}
    pass_time(engine, 0.001)
    pass_time(engine)
    assert came(engine) == {1: 10}
    push(engine, (10, None, 1))  # it has come: nothing to cancel
    engine.checkpoint()
    push(engine, (11, 5))
    engine.abandon()
    engine = engine_of(reminders(recovery), tmp_path)
    assert [row for _, row in pending(engine)] == ["[11]", "[3]", "[4]"]
    pass_time(engine, 15)
    assert came(engine) == {1: 10, 3: 25, 11: 25}
    engine.abandon()
    engine = engine_of(reminders(recovery), tmp_path)
    pass_time(engine, 200)
    assert came(engine) == {1: 10, 3: 25, 11: 25, 4: 225}
    assert [row.due.hour for row in engine.query("FROM hours ORDER BY due").rows] == [1, 2, 3]
    engine.close()
    found = verify(reminders(recovery), tmp_path)
    assert found.same, found.differences


@pytest.mark.parametrize(
    ("recovery", "executor", "checkpoint"),
    [("weak", "serial", False), ("weak", "threads", True), ("strong", "manual", True), ("effects", "serial", False)],
)
def test_a_question_keeps_the_timers_set_in_front_of_it(
    open_engine: Make, tmp_path: Path, recovery: Any, executor: str, checkpoint: bool
) -> None:
    def engine_of(app: App, path: Path) -> Engine:
        return open_engine(app, path, executor=executor)

    engine = engine_of(reminders(recovery), tmp_path)
    engine.push("orders", [(1,)], 1)
    engine.push("orders", [(5,)], 2)
    engine.run_until_idle()
    assert pending(engine) == []  # not before it commits
    if checkpoint:
        engine.checkpoint()
    engine.abandon()
    engine = engine_of(reminders(recovery), tmp_path)
    pass_time(engine, 35)
    assert came(engine) == {}
    engine.push("answers", [(True,)], 1)
    engine.push("answers", [(False,)], 2)
    pass_time(engine)
    assert came(engine) == {1: 35}  # counted from when it was asked
    assert pending(engine) == [("due", "[2]")]
    engine.close()
    found = verify(reminders(recovery), tmp_path)
    assert found.same, found.differences
    assert found.timers == 1


def test_what_is_due_waits_for_room_and_comes_in_order(open_engine: Make, clock: ManualClock) -> None:
    engine = open_engine(reminders(), executor="manual", capacity=3)
    for n in range(8):
        engine.push("jobs", [(n, 8 - n, None)])
        engine.run_until_idle()
    clock.advance(3600)
    while engine.runtime.timers.pending:
        engine.tick()
        assert len(engine.scheduler.live) <= 3
        engine.run_until_idle()
        clock.advance(1)
    assert [row.n for row in engine.query("FROM came ORDER BY at_time, n DESC").rows] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_many_open_timers_that_are_cancelled_leave_nothing(open_engine: Make) -> None:
    engine = open_engine(reminders())
    engine.push("jobs", [(n, 10 + n, None) for n in range(3_000)])
    engine.push("jobs", [(-1 if n == 3_000 else n, None, n) for n in range(3_001)])  # aborts
    assert len(engine.runtime.timers.pending) == 3_000
    engine.push("jobs", [(n, None, n) for n in range(2_999)])
    pass_time(engine, 100_000)
    assert came(engine) == {2_999: 100_000}
    assert not engine.runtime.timers._heap


def test_missed_times_of_a_schedule(open_engine: Make, clock: ManualClock, tmp_path: Path) -> None:
    app = App("nightly")
    app.table("CREATE TABLE ran (due TIMESTAMP PRIMARY KEY)")
    app.stream("told", "due TIMESTAMP")

    @app.procedure(cron="0 3 * * *", outputs="told", writes=["ran"])
    def nightly(txn: Transaction, ticks: Batch) -> None:
        txn.insert("ran", ticks[0])
        txn.emit("told", [ticks[0]])

    def ran(engine: Engine) -> list[int]:
        return [row.due.day for row in engine.query("FROM ran ORDER BY due").rows]

    with tidegate.open(app, tmp_path, clock=clock) as engine:
        engine.tick()
        told = engine.query("SELECT stream, due, procedure, schedule FROM tidegate.timers").rows
        assert [tuple(row) for row in told] == [
            ("nightly_ticks", dt.datetime(2026, 1, 1, 3), "nightly", "cron 0 3 * * *, skip")
        ]
    clock.advance(4 * 86_400)  # nobody was there at three on four days
    with tidegate.open(app, tmp_path, clock=clock) as engine:
        assert ran(engine) == []  # opening does no work
        engine.tick()
        engine.tick()
        assert ran(engine) == [4]
        clock.advance(3 * 3600)
        engine.tick()
        assert ran(engine) == [4, 5]
        engine.push("nightly_ticks", [(dt.datetime(2026, 1, 20),)])  # by hand
        assert ran(engine) == [4, 5, 20]
        clock.advance(86_400)
        engine.tick()
        assert ran(engine) == [4, 5, 6, 20]


def test_time_passes_by_itself_once_the_engine_is_started(tmp_path: Path) -> None:
    for executor in ("serial", "threads"):
        app = App("soon")
        app.stream("begin", "n BIGINT", border=True)
        app.stream("later", "n BIGINT", border=True)
        app.stream("done", "n BIGINT")

        @app.procedure(inputs="begin", timers="later")
        def start(txn: Transaction, rows: Batch) -> None:
            txn.after("20ms", "later", n=rows[0].n)

        @app.procedure(inputs="later", outputs="done")
        def end(txn: Transaction, rows: Batch) -> None:
            txn.emit("done", rows)

        with tidegate.open(app, tmp_path / executor, executor=executor) as engine:
            engine.start()
            done = engine.subscribe("done")
            engine.push("begin", [(7,)])
            assert [tuple(row) for row in done.get(30)] == [(7,)]  # type: ignore[union-attr]


def test_mistakes(open_engine: Make) -> None:
    app = App("wrong")
    app.stream("rows", "what VARCHAR", border=True)
    app.stream("due", "n BIGINT NOT NULL", border=True, key="n")

    @app.procedure(inputs="rows", timers="due", on_failure="dead_letter")
    def work(txn: Transaction, rows: Batch) -> None:
        match rows[0].what:
            case "stream":
                txn.after("1m", "rows", what="x")
            case "delay":
                txn.after("soon", "due", n=1)
            case "number":
                txn.after(60, "due", n=1)  # type: ignore[arg-type]
            case "row":
                txn.after("1m", "due", n="x")
            case "far":
                txn.after(dt.timedelta(days=9_000_000), "due", n=1)
            case "cancel":
                txn.cancel(7)  # type: ignore[arg-type]

    @app.procedure(inputs="due")
    def ignore(txn: Transaction, due: Batch) -> None: ...

    engine = open_engine(app)
    for what, told in (
        ("stream", r"add timers=\['rows'\] to its declaration"),
        ("delay", "is not a length of time"),
        ("number", "text such as '10m' or a timedelta"),
        ("row", "due.n"),
        ("far", "after the year 9999"),
        ("cancel", "what txn.after returned"),
    ):
        with pytest.raises((ProcedureFailed, AccessError), match=told):
            engine.push("rows", [(what,)]).result()


def test_upgrades_carry_timers_or_refuse_to_lose_them(open_engine: Make, clock: ManualClock, tmp_path: Path) -> None:
    with open_engine(reminders(), tmp_path) as engine:
        push(engine, (1, 10), (2, 20))
        engine.push("orders", [(7,)], 1)
    renamed = reminders(due="later", columns="n BIGINT NOT NULL, note VARCHAR DEFAULT 'none'", stream="due")
    with open_engine(renamed, tmp_path) as engine:
        assert pending(engine) == [("later", '[1, "none"]'), ("later", '[2, "none"]')]
        engine.push("answers", [(True,)], 1)
        pass_time(engine, 10)
        assert came(engine) == {1: 10}
        assert ("later", '[7, "none"]') in pending(engine)
    reformed = reminders(due="later", columns="n VARCHAR NOT NULL")
    with pytest.raises(RecoveryRefused, match="3 of its batches wait"):
        open_engine(reformed, tmp_path)
    gone = reminders()
    with pytest.raises(RecoveryRefused, match="3 timers that are to enter it would never come"):
        open_engine(gone, tmp_path)
    with open_engine(gone, tmp_path, drop=["later"]) as engine:
        assert pending(engine) == []
        pass_time(engine, 100)
        assert came(engine) == {1: 10}
        assert len(engine.query("FROM hours").rows) == 1  # the schedule goes on


def test_timers_of_a_keyed_stream_run_per_key(engine_of: Make) -> None:
    app = App("keyed")
    app.table("CREATE TABLE beds (bed BIGINT PRIMARY KEY, n BIGINT)", partition_by="bed")
    app.stream("rows", "bed BIGINT NOT NULL", border=True, key="bed")
    app.stream("later", "bed BIGINT NOT NULL", border=True, key="bed")

    @app.procedure(inputs="rows", timers="later")
    def work(txn: Transaction, rows: Batch) -> None:
        txn.after("1m", "later", bed=txn.key)

    @app.procedure(inputs="later", writes=[partition("beds")])
    def count(txn: Transaction, later: Batch) -> None:
        before = txn.get("beds", txn.key)
        txn.upsert("beds", (txn.key, len(later) + (0 if before is None else before.n)))

    engine = engine_of(app)
    engine.push("rows", [(bed % 3,) for bed in range(9)])
    engine.push("rows", [(1,)])
    engine.run_until_idle()
    pass_time(engine, 1)
    assert [tuple(row) for row in engine.query("FROM beds ORDER BY bed").rows] == [(0, 1), (1, 2), (2, 1)]
