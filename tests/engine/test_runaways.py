"""Procedures that do not end: the engine's own deadline stops them, and they have failed."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import tidegate
from tidegate import App, Batch, Config, Engine, Transaction, window
from tidegate.errors import Runaway, TidegateError
from tidegate.windows import whole

Make = Callable[..., Engine]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ENDLESS = 10**14  # rows to count
LIMIT_S = 0.1


def loop(txn: Transaction) -> None:
    while True:
        pass


def query(txn: Transaction) -> None:
    txn.execute("SELECT sum(a.range * t.n) FROM range(?) a, t WHERE a.range % 7 = t.n % 7", ENDLESS)


def rows(txn: Transaction) -> None:
    while True:
        txn.get("t", 1)


def stubborn(txn: Transaction) -> None:
    """Takes no notice of being stopped."""
    while True:
        try:
            query(txn)
        except BaseException:
            pass
        try:
            loop(txn)
        except BaseException:
            return


def napping(txn: Transaction) -> None:
    while True:
        time.sleep(0.001)


WORK = {work.__name__: work for work in (loop, query, rows, stubborn, napping)}


def app_of(on_failure: str = "halt", deadline_s: float | None = None, recovery: str = "weak") -> App:
    app = App("runaways", recovery=recovery)
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    app.stream("jobs", "n BIGINT, work VARCHAR", border=True)
    app.stream("others", "n BIGINT", border=True)

    @app.procedure(inputs="jobs", writes=["t"], on_failure=on_failure, deadline_s=deadline_s, retries=2)
    def work(txn: Transaction, jobs: Batch) -> None:
        for job in jobs:
            txn.insert("t", (job.n,))
            if job.work in WORK:
                WORK[job.work](txn)

    @app.procedure(inputs="others", writes=["t"])
    def other(txn: Transaction, others: Batch) -> None:
        for row in others:
            txn.insert("t", row)

    @app.procedure(writes=["t"])
    def called(txn: Transaction, work: str) -> None:
        txn.insert("t", (7,))
        WORK[work](txn)

    return app


def seen(engine: Engine) -> list[int]:
    return [row.n for row in engine.query("SELECT n FROM t ORDER BY n")]


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("work", list(WORK))
def test_a_runaway_fails_and_halts_its_dataflow(open_engine: Make, executor: str, work: str) -> None:
    engine = open_engine(app_of(), config=Config(executor=executor, workers=2, procedure_deadline_s=LIMIT_S))
    engine.push("jobs", [(1, "")]).result(60)
    with pytest.raises(
        Runaway, match=r"procedure work on batch 2 ran for more than 0.1 s.*procedure_deadline_s"
    ) as raised:
        engine.push("jobs", [(2, work)]).result(60)
    assert (raised.value.procedure, raised.value.limit_s, raised.value.attempts) == ("work", LIMIT_S, 1)
    assert list(engine.scheduler.halted)
    engine.push("others", [(3,)]).result(60)
    assert seen(engine) == [1, 3]
    assert not engine.runtime.running


def test_a_runaway_becomes_a_dead_letter_if_so_declared(open_engine: Make) -> None:
    engine = open_engine(app_of("dead_letter"), procedure_deadline_s=LIMIT_S)
    for n in range(1, 4):
        ticket = engine.push("jobs", [(n, "loop" if n == 2 else "")])
        if n == 2:
            with pytest.raises(Runaway):
                ticket.result()
    assert seen(engine) == [1, 3]
    (letter,) = engine.query("SELECT procedure, batch_id, error FROM tidegate.dead_letters")
    assert (letter.procedure, letter.batch_id) == ("work", 2)
    assert "line " in letter.error


@pytest.mark.parametrize("work", ["loop", "query"])
def test_a_call_that_runs_away_raises_at_its_caller(open_engine: Make, work: str) -> None:
    engine = open_engine(app_of(), procedure_deadline_s=LIMIT_S)
    with pytest.raises(Runaway, match="called"):
        engine.call("called", work)
    assert seen(engine) == []
    assert not engine.scheduler.halted


def test_the_function_of_a_window_is_stopped_too(open_engine: Make) -> None:
    app = App("runaways")
    app.stream("jobs", "n BIGINT", border=True)

    def endless(extent: object) -> int:
        while True:
            pass

    mean = window("jobs", count=1, compute=whole(endless, returns="mean BIGINT"))

    @app.procedure(inputs="jobs", windows={"last": mean})
    def work(txn: Transaction, jobs: Batch) -> None:
        txn.window("last")

    engine = open_engine(app, procedure_deadline_s=LIMIT_S)
    with pytest.raises(Runaway, match="work"):
        engine.push("jobs", [(1,)]).result()


def test_procedures_that_ask_for_it_have_no_deadline(open_engine: Make) -> None:
    app = App("patient")
    app.stream("jobs", "n BIGINT", border=True)

    @app.procedure(inputs="jobs", deadline_s=math.inf)
    def work(txn: Transaction, jobs: Batch) -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass

    engine = open_engine(app, procedure_deadline_s=0.05)
    assert engine.executor.inline_plan("jobs") is not None
    engine.push("jobs", [(1,)]).result()
    engine = open_engine(app_of(), procedure_deadline_s=None)
    assert engine.lookout.limit_s is None
    with pytest.raises(TidegateError, match="procedure_deadline_s must be a positive number"):
        Config(procedure_deadline_s=0)


def test_the_default_leaves_the_inline_path() -> None:
    assert Config().procedure_deadline_s == 60.0
    with tidegate.open(app_of()) as engine:
        assert engine.executor.inline_plan("jobs") is not None
        threads = [t for t in threading.enumerate() if t.name == "tidegate-lookout"]
        assert threads
    assert not [t for t in threads if t.is_alive()]


def test_what_runs_is_shown_meanwhile(open_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(app_of(), procedure_deadline_s=1.0)
    found = []

    def look() -> None:
        while not found:
            found.extend(engine.query("SELECT unit, batch_id, state FROM tidegate.executions WHERE running_s > 0.2"))

    watching = threading.Thread(target=look)
    watching.start()
    with pytest.raises(Runaway):
        engine.push("jobs", [(1, "loop")]).result()
    watching.join()
    assert tuple(found[0]) == ("work", 1, "running")
    assert "procedure work has run for more than 1 s at position 1" in caplog.text


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("on_failure", ["halt", "dead_letter"])
def test_a_replay_does_not_run_it_again(tmp_path: Path, recovery: str, on_failure: str) -> None:
    app = app_of(on_failure, recovery=recovery)
    engine = tidegate.open(app, tmp_path / "db", procedure_deadline_s=LIMIT_S)
    tickets = [engine.push("jobs", [(1, "")]), engine.push("jobs", [(2, "loop")]), engine.push("others", [(3,)])]
    with pytest.raises(Runaway):
        tickets[1].result()
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    with tidegate.open(app, tmp_path / "db", procedure_deadline_s=None) as engine:  # would never end
        assert seen(engine) == [1, 3]
        assert bool(engine.scheduler.halted) is (on_failure == "halt")
        assert len(engine.journal.dead_letters) == (on_failure == "dead_letter")


def test_an_engine_that_is_dropped_is_collected_with_its_thread() -> None:
    """The thread that looks at what runs held on to engines that nobody had closed, and looked at them for ever."""
    engine = tidegate.open(app_of(), tune_process=False, procedure_deadline_s=0.2)
    thread, dropped = engine.lookout._thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert dropped() is None
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
