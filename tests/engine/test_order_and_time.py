"""Determinism, deadlines of executions, committed reads and back-pressure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate import App, Batch, Engine, Overloaded, Transaction, committed
from tidegate.clock import SystemClock
from tidegate.errors import DeadlineExceeded, EngineClosed

Make = Callable[..., Engine]
Flow = Callable[..., App]


def drawing() -> App:
    app = App()
    app.table(
        "CREATE TABLE drawn (k INTEGER, id BIGINT, r DOUBLE, u UUID, at_time TIMESTAMP, s DOUBLE, PRIMARY KEY (k, id))"
    )
    app.stream("events", "k INTEGER", border=True, key="k")
    app.stream("more", "k INTEGER")

    @app.procedure(inputs="events", outputs="more", writes=["drawn"])
    def draw(txn: Transaction, events: Batch) -> None:
        txn.insert("drawn", (txn.key, events.id, txn.random.random(), txn.uuid(), txn.now, 0.0))
        txn.emit("more", events)

    @app.procedure(inputs="more", writes=["drawn"])
    def again(txn: Transaction, more: Batch) -> None:
        txn.execute(
            "INSERT INTO drawn VALUES (?, ?, ?, uuid(), now(), random())",
            txn.key,
            -more.id,
            txn.random.random(),
        )

    return app


def test_time_and_chance_come_from_the_position(open_engine: Make) -> None:
    runs = []
    for executor in ("serial", "manual", "threads", "serial"):
        engine = open_engine(drawing(), executor=executor)
        for batch_id in range(1, 4):
            engine.push("events", [(k,) for k in range(4)], batch_id)
        engine.run_until_idle()
        runs.append([tuple(row) for row in engine.query("SELECT * FROM drawn ORDER BY k, id")])
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert len({row[2] for row in runs[0]}) == len({row[3] for row in runs[0]}) == 24, "every position draws its own"


def test_now_is_when_the_batch_was_accepted(open_engine: Make, flow: Flow, clock: Any) -> None:
    seen: list[Any] = []

    def body(txn: Transaction, events: Batch) -> None:
        seen.append(txn.now)

    engine = open_engine(flow(body), executor="manual")
    engine.push("events", [(1,)])
    accepted = clock.now()
    clock.advance(60)
    engine.run_until_idle()
    assert seen == [accepted]


# ---- deadlines of executions: these use real time, but assert nothing about it


def spin(txn: Transaction) -> None:
    while True:
        pass


def spin_and_swallow(txn: Transaction) -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:
            continue


def query_for_ever(txn: Transaction) -> None:
    txn.execute("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 5")


@pytest.mark.parametrize("hang", [spin, spin_and_swallow, query_for_ever])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_hanging_procedure_is_aborted_at_its_deadline(
    engine_of: Make, flow: Flow, hang: Callable[[Transaction], None], retries: int
) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n, "x"))
        if events[0].n == 1:
            hang(txn)

    engine = engine_of(flow(body, deadline_s=0.15, retries=retries))
    ticket = engine.push("events", [(1,)])
    with pytest.raises(DeadlineExceeded, match=r"work ran past its deadline of 0.15 s at position 1.0 and was undone"):
        ticket.result(30)
    engine.push("events", [(2,)]).result(30)
    assert [row.n for row in engine.query("SELECT n FROM t")] == [2]
    assert engine.query("SELECT reason FROM tidegate.aborts").scalar() == "deadline of 0.15 s exceeded"


def test_a_hanging_call_is_aborted_too(engine_of: Make) -> None:
    app = App()

    @app.procedure(deadline_s=0.1)
    def hang(txn: Transaction) -> None:
        spin(txn)

    engine = engine_of(app)
    with pytest.raises(DeadlineExceeded, match="hang ran past its deadline"):
        engine.call("hang")


def test_a_deadline_that_is_met_changes_nothing(engine_of: Make, flow: Flow) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n, "x"))

    engine = engine_of(flow(body, deadline_s=30.0))
    for n in range(20):
        engine.push("events", [(n,)])
    engine.run_until_idle()
    assert engine.query("SELECT count(*) FROM t").scalar() == 20


def test_a_running_execution_is_visible_with_its_locks(open_engine: Make, flow: Flow) -> None:
    inside, leave = threading.Event(), threading.Event()

    def body(txn: Transaction, events: Batch) -> None:
        inside.set()
        assert leave.wait(30)

    app = flow(body)

    @app.procedure(reads=["t"])
    def look(txn: Transaction) -> int:
        return len(txn.scan("t"))

    engine = open_engine(app, executor="threads")
    engine.push("events", [(1,)])
    assert inside.wait(30)
    waiting = engine.submit("look")
    executions = {row.unit: row for row in engine.query("SELECT * FROM tidegate.executions")}
    assert (executions["work"].state, executions["work"].running_s) == ("running", 0.0)
    assert executions["look"].reason == "waits for the lock on t behind position 1.0"
    locks = {
        (row.unit, row.table_name, row.mode, row.held, row.waits_behind, row.held_by)
        for row in engine.query("SELECT * FROM tidegate.locks")
    }
    assert locks == {("work", "t", "write", True, None, None), ("look", "t", "read", False, "1.0", "work")}
    leave.set()
    assert waiting.result(30) == 0


# ---- committed reads


def test_committed_reads_never_wait(open_engine: Make, flow: Flow) -> None:
    inside, leave = threading.Event(), threading.Event()

    def body(txn: Transaction, events: Batch) -> None:
        txn.upsert("t", (1, f"batch {events.id}"))
        if events.id == 2:
            inside.set()
            assert leave.wait(30)

    app = flow(body)

    @app.procedure(reads=[committed("t")])
    def look(txn: Transaction) -> str:
        return txn.get("t", 1).word  # type: ignore[no-any-return]

    engine = open_engine(app, executor="threads")
    engine.push("events", [(1,)]).result(30)
    engine.push("events", [(2,)])
    assert inside.wait(30)
    assert engine.submit("look").result(30) == "batch 1"
    assert engine.query("SELECT word FROM t").scalar() == "batch 1"
    leave.set()
    engine.run_until_idle()
    assert engine.call("look") == "batch 2"


def test_a_committed_read_is_one_consistent_state(open_engine: Make) -> None:
    """Two reads in one execution see the same state, whatever commits between them."""
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY, word VARCHAR)")
    between, go_on = threading.Event(), threading.Event()

    @app.procedure(writes=["t"])
    def put(txn: Transaction, word: str) -> None:
        for n in (1, 2):
            txn.upsert("t", (n, word))

    @app.procedure(reads=[committed("t")])
    def look(txn: Transaction) -> tuple[str, str, list[str]]:
        first = txn.get("t", 1).word
        between.set()
        assert go_on.wait(30)
        return first, txn.get("t", 2).word, [row.word for row in txn.scan("t")]

    engine = open_engine(app, executor="threads")
    engine.call("put", "old")
    ticket = engine.submit("look")
    assert between.wait(30)
    engine.call("put", "new")
    engine.checkpoint()
    go_on.set()
    assert ticket.result(30) == ("old", "old", ["old", "old"])


# ---- back-pressure


def test_a_full_queue_refuses_and_accepts_nothing(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter, executor="manual", capacity=4)
    for batch_id in (1, 2):  # two executions each
        engine.push("events", [("a", 1)], batch_id)
    with pytest.raises(Overloaded, match=r"4 executions are unfinished, so events .*executions.*Config.capacity"):
        engine.push("events", [("a", 1)], 3)
    assert len(engine.scheduler.live) == 4
    engine.run_until_idle()
    engine.push("events", [("a", 1)], 3).result()
    assert engine.call("total", "a") == 3


def gated(flow: Flow) -> tuple[App, threading.Event]:
    gate = threading.Event()

    def body(txn: Transaction, events: Batch) -> None:
        assert gate.wait(30)
        txn.insert("t", (events[0].n, "x"))

    return flow(body), gate


def test_with_threads_a_push_waits_for_room(open_engine: Make, flow: Flow) -> None:
    app, gate = gated(flow)
    engine = open_engine(app, executor="threads", workers=2, capacity=3)
    for n in range(3):
        engine.push("events", [(n,)])
    with pytest.raises(Overloaded):
        engine.push("events", [(3,)], timeout_s=0)
    with pytest.raises(Overloaded):
        engine.push("events", [(3,)], timeout_s=0.01)
    threading.Timer(0.05, gate.set).start()
    engine.push("events", [(3,)]).result(30)
    assert engine.query("SELECT count(*) FROM t").scalar() == 4
    assert engine.feed("events", [(n,) for n in range(10, 40)]).batches == 30
    engine.run_until_idle()
    assert engine.query("SELECT count(*) FROM t").scalar() == 34


def test_two_who_wait_with_the_same_batch_get_it_in_once(open_engine: Make, flow: Flow) -> None:
    app, gate = gated(flow)
    engine = open_engine(app, executor="threads", capacity=1)
    engine.push("events", [(0,)], 1)
    tickets: list[Any] = []
    pushers = [threading.Thread(target=lambda: tickets.append(engine.push("events", [(1,)], 2))) for _ in range(4)]
    for pusher in pushers:
        pusher.start()
    gate.set()
    for pusher in pushers:
        pusher.join(30)
    engine.run_until_idle()
    assert sorted(ticket.duplicate for ticket in tickets) == [False, True, True, True]
    assert engine.query("SELECT count(*) FROM t").scalar() == 2
    assert engine.query("SELECT count(*) FROM tidegate.aborts").scalar() == 0


def test_closing_wakes_a_push_that_waits_for_room(open_engine: Make, flow: Flow) -> None:
    app, gate = gated(flow)
    engine = open_engine(app, executor="threads", capacity=1)
    engine.push("events", [(0,)])
    errors: list[BaseException] = []

    def push() -> None:
        try:
            engine.push("events", [(1,)])
        except EngineClosed as error:
            errors.append(error)

    pusher = threading.Thread(target=push)
    pusher.start()
    while not engine.executor.ended._waiters:  # type: ignore[attr-defined]
        pass
    closer = threading.Thread(target=engine.close)
    closer.start()
    pusher.join(30)
    gate.set()
    closer.join(30)
    assert len(errors) == 1


def test_the_system_clock_is_naive_utc() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is None
    assert clock.monotonic() <= clock.monotonic()
