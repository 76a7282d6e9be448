"""Worker threads: who runs what, who is woken, and that nobody waits for nothing."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

import tidegate
from tidegate import App, Batch, Transaction

PATIENCE_S = 30.0


def test_a_chain_stays_on_its_worker() -> None:
    app = App("chain")
    app.stream("first", "n BIGINT", border=True)
    app.stream("second", "n BIGINT")
    app.stream("third", "n BIGINT")
    threads: dict[int, set[int]] = defaultdict(set)

    @app.procedure(inputs="first", outputs=["second"])
    def one(txn: Transaction, first: Batch) -> None:
        threads[first[0].n].add(threading.get_ident())
        txn.emit("second", first)

    @app.procedure(inputs="second", outputs=["third"])
    def two(txn: Transaction, second: Batch) -> None:
        threads[second[0].n].add(threading.get_ident())
        txn.emit("third", second)

    @app.procedure(inputs="third")
    def three(txn: Transaction, third: Batch) -> None:
        threads[third[0].n].add(threading.get_ident())

    with tidegate.open(app, executor="threads", workers=4) as engine:
        for n in range(50):
            engine.push("first", [(n,)]).result(PATIENCE_S)
    assert len(threads) == 50
    assert {len(who) for who in threads.values()} == {1}


@pytest.mark.parametrize("at_once", [True, False], ids=["one-push", "a-push-each"])
@pytest.mark.parametrize("workers", [2, 4])
def test_all_workers_get_work(workers: int, at_once: bool) -> None:
    """Each execution waits for as many others as there are workers: one worker left asleep would be one too few."""
    app = App("meeting")
    app.table("CREATE TABLE met (key BIGINT PRIMARY KEY, times BIGINT)", partition_by="key")
    app.stream("events", "key BIGINT", border=True, key="key")
    barrier = threading.Barrier(workers)

    @app.procedure(inputs="events", writes=[tidegate.partition("met")])
    def meet(txn: Transaction, events: Batch) -> None:
        barrier.wait(PATIENCE_S)
        _, times = txn.get("met", txn.key) or (txn.key, 0)
        txn.upsert("met", (txn.key, times + 1))

    with tidegate.open(app, executor="threads", workers=workers) as engine:
        for _ in range(20):
            rows = [(key,) for key in range(workers)]
            tickets = [engine.push("events", part) for part in ([rows] if at_once else [[row] for row in rows])]
            for ticket in tickets:
                ticket.result(PATIENCE_S)
        assert engine.query("SELECT DISTINCT times FROM met").scalar() == 20


def test_deadlines_pass_while_another_worker_is_busy() -> None:
    app = App("ward")
    app.table("CREATE TABLE given (id BIGINT PRIMARY KEY, dose BIGINT)")
    app.stream("alerts", "id BIGINT", border=True)
    app.stream("asked", "id BIGINT")
    app.stream("decisions", "dose BIGINT", border=True, deadline_s=0.05, default=[{"dose": 0}])
    app.stream("jobs", "n BIGINT", border=True)
    busy, release = threading.Event(), threading.Event()

    @app.procedure(inputs="alerts", outputs=["asked"])
    def ask(txn: Transaction, alerts: Batch) -> None:
        txn.emit("asked", alerts)

    @app.procedure(inputs=["asked", "decisions"], writes=["given"])
    def decide(txn: Transaction, asked: Batch, decisions: Batch) -> None:
        txn.insert("given", (asked[0].id, decisions[0].dose))

    app.nested(ask, decide, name="treatment")

    @app.procedure(inputs="jobs")
    def work(txn: Transaction, jobs: Batch) -> None:
        busy.set()
        release.wait(PATIENCE_S)

    with tidegate.open(app, executor="threads", workers=2) as engine:
        for number in range(3):
            busy.clear()
            release.clear()
            job = engine.push("jobs", [(number,)])
            busy.wait(PATIENCE_S)
            engine.push("alerts", [(number,)]).result(PATIENCE_S)  # nobody answers
            assert not job.done
            release.set()
            job.result(PATIENCE_S)
        assert engine.query("SELECT count(*) FROM given WHERE dose = 0").scalar() == 3


def test_work_of_one_key_does_not_wait_for_the_backlog_of_another() -> None:
    """Everyone takes the smallest position that may run, so a backlog that keeps all workers busy starves nothing."""
    app = App("backlog")
    app.stream("events", "key BIGINT, n BIGINT", border=True, key="key")
    order: list[tuple[int, int]] = []
    gate = threading.Event()

    @app.procedure(inputs="events")
    def note(txn: Transaction, events: Batch) -> None:
        gate.wait(PATIENCE_S)
        order.append((txn.key, events[0].n))

    with tidegate.open(app, executor="threads", workers=1) as engine:
        for n in range(100):
            engine.push("events", [(1, n)])
            if n == 10:
                engine.push("events", [(2, 0)])
        gate.set()
        engine.run_until_idle()
    assert order.index((2, 0)) == 11
