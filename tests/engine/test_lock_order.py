"""One order of locks: nothing that goes on beside the work can make it hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, mutex
from tidegate.mutex import OutOfOrder, Rank
from tidegate.testing.bystanders import Bystanders

STUCK_AFTER_S = 120.0


def shop() -> App:
    app = App("shop")
    app.table("CREATE TABLE stock (item INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, shelf INTEGER NOT NULL)")
    app.table("CREATE TABLE totals (shelf INTEGER PRIMARY KEY, pieces BIGINT NOT NULL)", changelog=True)
    app.stream("orders", "item INTEGER NOT NULL, pieces INTEGER NOT NULL", border=True)
    app.stream("shelves", "shelf INTEGER, pieces BIGINT")

    @app.procedure(inputs="orders", outputs="shelves", writes=["stock", "totals"])
    def ship(txn: Any, orders: Any) -> None:
        for order in orders:
            txn.upsert("stock", (order.item, order.pieces, order.item % 5))
        for shelf, pieces in txn.execute("SELECT shelf, sum(pieces)::BIGINT FROM stock GROUP BY shelf ORDER BY shelf"):
            txn.upsert("totals", (shelf, pieces))
            txn.emit("shelves", shelf=shelf, pieces=pieces)

    @app.procedure(reads=["stock"])
    def most(txn: Any) -> Any:
        return txn.execute("SELECT max(pieces) FROM stock WHERE pieces % 2 = 1").scalar()

    return app


TORN = """SELECT * FROM totals JOIN (SELECT shelf, sum(pieces) AS pieces FROM stock GROUP BY shelf) AS s USING (shelf)
          WHERE totals.pieces <> s.pieces"""


def finishes(work: Callable[[], None]) -> None:
    """On a thread of its own, so that a deadlock fails the test instead of stopping the suite."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK_AFTER_S)
    assert not thread.is_alive(), "work does not come to an end"
    if failed:
        raise failed[0]


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("durable", [True, False], ids=["directory", "memory"])
def test_sql_in_procedures_beside_merges_queries_and_subscribers(executor: str, durable: bool, tmp_path: Path) -> None:
    """On the code before, the serial engine stood still at one of its first merges."""
    engine = tidegate.open(shop(), tmp_path / "data" if durable else None, executor=executor, workers=2, merge_rows=10)

    def work() -> None:
        with Bystanders(engine, [TORN]) as others:
            for number in range(100):
                engine.push("orders", [(number % 17, number)]).result()
                if number % 10 == 0:
                    engine.feed("orders", [(number % 13, 1), (number % 11, 2)], size=1)
                    engine.call("most")
            while not (engine.merger.count and others.asked):
                engine.push("orders", [(1, 1)]).result()
        engine.close()

    finishes(work)
    assert engine.merger.count


@pytest.mark.parametrize("executor", ["serial", "threads", "manual"])
def test_procedures_run_without_the_engines_lock(
    executor: str, open_engine: Callable[..., tidegate.Engine], tmp_path: Path
) -> None:
    app = App("free")
    app.stream("work", "n INTEGER", border=True)
    app.table("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    engines: list[tidegate.Engine] = []
    had: list[bool] = []

    def try_lock() -> None:
        taken = engines[0].lock.acquire(timeout=5)
        if taken:
            engines[0].lock.release()
        had.append(taken)

    def elsewhere() -> None:
        thread = threading.Thread(target=try_lock)
        thread.start()
        thread.join()

    @app.procedure(inputs="work", writes=["done"])
    def streaming(txn: Any, work: Any) -> None:
        elsewhere()
        txn.insert("done", work[0])

    @app.procedure()
    def called(txn: Any) -> None:
        elsewhere()

    engines.append(open_engine(app, tmp_path, executor=executor, workers=2))
    engine = engines[0]
    engine.push("work", [(1,)]).result()
    engine.feed("work", [(2,), (3,)])
    engine.call("called")
    engine.run_until_idle()
    assert had == [True] * 4


def test_a_merge_never_stands_for_work_that_has_not_run(tmp_path: Path) -> None:
    """A merge asked for in the middle of a serial execution waits for its end: nothing else knows of it."""
    app = App("middle")
    app.stream("work", "n INTEGER", border=True)
    app.table("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    asked: list[threading.Thread] = []

    @app.procedure(inputs="work", writes=["done"])
    def slow(txn: Any, work: Any) -> None:
        if work[0].n == 2:
            asked.append(threading.Thread(target=engine.checkpoint))
            asked[0].start()
            asked[0].join(0.2)
            assert asked[0].is_alive()
        txn.insert("done", work[0])

    engine = tidegate.open(app, tmp_path)
    engine.push("work", [(1,)]).result()
    engine.push("work", [(2,)]).result()
    asked[0].join()
    engine.abandon()
    with tidegate.open(app, tmp_path) as engine:
        assert engine.query("SELECT n FROM done ORDER BY n").rows == [(1,), (2,)]


class TestMutex:
    def test_in_order(self) -> None:
        outer, inner = mutex.mutex(Rank.GATE), mutex.reentrant(Rank.ENGINE)
        with outer, inner, inner:
            assert inner._is_owned()
        assert not inner._is_owned()

    def test_out_of_order_is_refused_and_remembered(self) -> None:
        gate, engine = mutex.mutex(Rank.GATE), mutex.reentrant(Rank.ENGINE)
        with engine, pytest.raises(OutOfOrder, match="GATE is taken while ENGINE is held"):
            gate.acquire()
        assert len(mutex.violations) == 1
        mutex.violations.clear()
        with gate:
            pass

    def test_two_of_one_rank_are_refused(self) -> None:
        one, other = mutex.mutex(Rank.LEAF), mutex.mutex(Rank.LEAF)
        with one, pytest.raises(OutOfOrder):
            other.acquire()
        mutex.violations.clear()

    def test_trying_is_allowed(self) -> None:
        gate, engine = mutex.mutex(Rank.GATE), mutex.reentrant(Rank.ENGINE)
        with engine:
            assert gate.acquire(blocking=False)
            gate.release()

    def test_a_condition_lets_go_while_it_waits(self) -> None:
        lock = mutex.reentrant(Rank.ENGINE)
        condition = threading.Condition(lock)
        told: list[bool] = []

        def tell() -> None:
            with condition:
                told.append(True)
                condition.notify_all()

        with lock, condition:
            threading.Thread(target=tell).start()
            assert condition.wait_for(lambda: told, 10)
            assert lock._is_owned()
        assert not lock._is_owned()

    def test_other_peoples_code_is_not_called_with_locks_held(self) -> None:
        called = mutex.outside_locks(lambda: 1, Rank.TURN)
        with mutex.reentrant(Rank.TURN):
            assert called() == 1
        with mutex.reentrant(Rank.ENGINE), pytest.raises(OutOfOrder, match="while ENGINE is held"):
            called()
        mutex.violations.clear()
