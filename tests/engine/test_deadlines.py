"""Deadlines of procedures while they are in the engine: what is stopped leaves nothing behind for the next one to stumble over.

These use real time, but assert nothing about it. Some work never ends and is always stopped; the rest takes about as long as
it may, so that the deadline falls into every part of it sooner or later.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tidegate import App, Batch, Config, Engine, Transaction
from tidegate.errors import DeadlineExceeded, Runaway

Make = Callable[..., Engine]

# an expiry that comes while another library's callback of the garbage collector runs is dropped there, and comes again
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ENDLESS = 10**14  # rows to count


def sql(txn: Transaction, cost: int) -> None:
    txn.execute("SELECT sum(a.range * t.v) FROM range(?) a, t WHERE a.range % 7 = t.v % 7", cost)
    txn.execute("UPDATE t SET v = v + 1 WHERE n IN (SELECT max(n) FROM t)")


def many(txn: Transaction, cost: int) -> None:
    """Short queries: the deadline falls into their planning, their running, their fetching, or between two."""
    for _ in range(cost // 100_000):
        txn.execute("SELECT count(*), max(v) FROM t WHERE v % 2 = 0")


def rows(txn: Transaction, cost: int) -> None:
    for i in range(-1, -cost // 10_000, -1):
        txn.upsert("t", (i, -i))
        txn.scan("t", v=-i)
        txn.delete("t", i)


def generated(txn: Transaction, cost: int) -> None:
    txn.emit("done", ((i,) for i in range(cost // 1_000)))


def insistent(txn: Transaction, cost: int) -> None:
    """Takes no notice of Expired, until it asks for something again."""
    try:
        sql(txn, cost)
    except BaseException:
        pass
    sql(txn, cost)


WORK = [many, sql, rows, many, generated, insistent]


def app_of(deadline_s: float | None, nested: bool) -> App:
    app = App("deadlines")
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY, v BIGINT CHECK (v >= 0)); CREATE INDEX by_v ON t (v)")
    app.table("CREATE TABLE u (n BIGINT PRIMARY KEY, v BIGINT DEFAULT (1 + 1))")
    app.stream("jobs", "n BIGINT, work BIGINT, cost BIGINT", border=True)
    app.stream("more", "n BIGINT, cost BIGINT")
    app.stream("done", "n BIGINT")

    @app.procedure(
        inputs="jobs",
        outputs=["more", "done"],
        writes=["t"],
        deadline_s=deadline_s,
        retries=2,
        on_failure="dead_letter",
    )
    def first(txn: Transaction, jobs: Batch) -> None:
        for job in jobs:
            txn.insert("t", (job.n, job.n))
            WORK[job.work](txn, job.cost)
            txn.emit("more", n=job.n, cost=job.cost)

    @app.procedure(inputs="more", writes=["u"], deadline_s=deadline_s, on_failure="dead_letter")
    def second(txn: Transaction, more: Batch) -> None:
        txn.execute("INSERT INTO u (n) SELECT n FROM more WHERE (SELECT count(*) FROM range(?)) >= 0", more[0].cost)

    if nested:
        app.nested("first", "second", name="both")
    return app


def expire_often(engine: Engine, expiries: int) -> None:
    """Push until so many executions have run past their deadline; none may fail in any other way."""
    chance = random.Random(7)
    met, missed, waiting = set(), 0, []
    n = 0
    while missed < expiries or waiting:
        if missed < expiries:
            n += 1
            cost = ENDLESS if n % 2 else int(10 ** chance.uniform(3, 7))
            waiting.append((n, engine.push("jobs", [(n, n // 2 % len(WORK), cost)])))
        if len(waiting) > 3 or missed >= expiries:
            number, ticket = waiting.pop(0)
            try:
                ticket.result(60)
                met.add(number)
            except (DeadlineExceeded, Runaway):
                missed += 1
        if n % 25 == 0:
            engine.checkpoint()
    assert {row.n for row in engine.query("SELECT n FROM u")} == met
    assert {row.n for row in engine.query("SELECT n FROM t WHERE n > 0")} >= met


def check_nothing_left(engine: Engine) -> None:
    database = engine.database
    assert engine.scheduler.idle
    assert not engine.runtime.running
    for lock in (database.base.gate, engine.lock, database._loading, database.base._copying):
        assert lock.acquire(blocking=False)
        lock.release()
    for connection in database._connections:
        connection.cursor.execute("BEGIN TRANSACTION")  # refused inside another, or an aborted one
        for name, shown in connection._shown.items():
            found = connection.cursor.execute(f'SELECT count(*) FROM "{name}"').fetchall()
            assert found[0][0] == shown.table.num_rows
        connection.cursor.execute("ROLLBACK")


@pytest.mark.parametrize("nested", [False, True], ids=["apart", "nested"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_executions_past_their_deadline_leave_nothing_behind(open_engine: Make, executor: str, nested: bool) -> None:
    engine = open_engine(app_of(0.005, nested), config=Config(executor=executor, workers=2))
    expire_often(engine, 50)
    check_nothing_left(engine)


@pytest.mark.parametrize("nested", [False, True], ids=["apart", "nested"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_executions_past_the_engines_deadline_leave_nothing_behind(
    open_engine: Make, executor: str, nested: bool
) -> None:
    engine = open_engine(app_of(None, nested), config=Config(executor=executor, workers=2, procedure_deadline_s=0.01))
    expire_often(engine, 30)
    check_nothing_left(engine)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True], ids=["apart", "nested"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_thousands_of_executions_past_their_deadline(open_engine: Make, executor: str, nested: bool) -> None:
    engine = open_engine(app_of(0.01, nested), config=Config(executor=executor, workers=2))
    expire_often(engine, 600)
    check_nothing_left(engine)


def test_merges_while_executions_run_past_their_deadline(open_engine: Make) -> None:
    engine = open_engine(app_of(0.01, nested=False), config=Config(executor="threads", workers=2))
    stop = threading.Event()

    def merge() -> None:
        while not stop.is_set():
            engine.checkpoint()

    merging = threading.Thread(target=merge)
    merging.start()
    try:
        expire_often(engine, 40)
    finally:
        stop.set()
        merging.join()
    check_nothing_left(engine)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_an_expiry_that_python_drops_comes_again(open_engine: Make, executor: str) -> None:
    """Python drops an exception from outside that comes while a destructor runs; the procedure would never end."""
    app = App("endless")
    app.stream("jobs", "n BIGINT", border=True)
    dropped = []

    def swallow(hook: object) -> None:
        dropped.append(hook)

    class Slow:
        def __del__(self) -> None:
            for _ in range(10_000_000):
                if dropped:
                    return

    @app.procedure(inputs="jobs", deadline_s=0.01)
    def endless(txn: Transaction, jobs: Batch) -> None:
        Slow()
        patience_s = time.monotonic() + 60
        while time.monotonic() < patience_s:
            pass

    engine = open_engine(app, config=Config(executor=executor, workers=2))
    before, sys.unraisablehook = sys.unraisablehook, swallow
    try:
        with pytest.raises(DeadlineExceeded):
            engine.push("jobs", [(1,)]).result(60)
    finally:
        sys.unraisablehook = before
    assert dropped
