"""What undoes an execution: aborts, refused rows, exceptions with retries, halts, dead letters, Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tidegate import (
    Aborted,
    App,
    Batch,
    ConstraintError,
    Engine,
    ProcedureFailed,
    StillWaiting,
    Transaction,
    window,
)

Make = Callable[..., Engine]
Flow = Callable[..., App]


def table(engine: Engine, name: str = "t") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(f"SELECT * FROM {name} ORDER BY ALL")]


def test_an_abort_undoes_tables_windows_batches_and_trigger_effects(engine_of: Make) -> None:
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    app.table("CREATE TABLE arrivals (n BIGINT PRIMARY KEY)")
    app.table("CREATE TABLE emissions (n BIGINT PRIMARY KEY)")
    app.table("CREATE TABLE tops (n BIGINT PRIMARY KEY)")
    app.stream("events", "n BIGINT", border=True)
    app.stream("out", "n BIGINT")
    seen: list[list[int]] = []

    @app.procedure(inputs="events", outputs="out", writes=["t"], windows={"recent": window("events", count=2, slide=1)})
    def work(txn: Transaction, events: Batch) -> None:
        n = events[0].n
        txn.insert("t", (n,))
        txn.emit("out", n=n)
        seen.append([row.n for row in txn.window("recent").rows])
        if n == 2:
            txn.abort("two")

    app.trigger("events", "INSERT INTO arrivals SELECT n FROM events")
    app.trigger("out", "INSERT INTO emissions SELECT n FROM out")
    app.trigger("work.recent", "INSERT INTO tops SELECT max(n) FROM recent")
    engine = engine_of(app)
    emitted = engine.subscribe("out")
    for n in (1, 2, 3, 4):
        engine.push("events", [(n,)])
    engine.run_until_idle()
    assert table(engine) == table(engine, "arrivals") == table(engine, "emissions") == [(1,), (3,), (4,)]
    assert table(engine, "tops") == [(3,), (4,)]
    assert [batch[0].n for batch in emitted] == [1, 3, 4]
    assert seen == [[1], [1, 2], [1, 3], [3, 4]], "the aborted slide left no trace"
    aborts = engine.query("SELECT procedure, batch_id, reason, position FROM tidegate.aborts").rows
    assert [tuple(row) for row in aborts] == [("work", 2, "two", "2.0")]


def test_a_refused_row_aborts_and_names_table_column_and_value(engine_of: Make, flow: Flow) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (10, "kept"))
        txn.insert("t", (events[0].n, "x"))

    engine = engine_of(flow(body))
    ticket = engine.push("events", [(10,)])
    with pytest.raises(
        Aborted, match=r"work aborted at position 1.0: t already has a row with n = 10; use upsert"
    ) as caught:
        ticket.result()
    assert isinstance(caught.value.cause, ConstraintError)
    assert table(engine) == []
    engine.push("events", [(11,)]).result()
    assert table(engine) == [(10, "kept"), (11, "x")]


def test_an_exception_is_retried_then_halts_that_dataflow_only(
    engine_of: Make, flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True
    attempts: list[int] = []

    def body(txn: Transaction, events: Batch) -> None:
        attempts.append(events.id)
        txn.insert("t", (events[0].n, "x"))
        if broken and events[0].n == 2:
            raise ZeroDivisionError("no luck")

    engine = engine_of(flow(body, retries=2))
    with caplog.at_level(logging.CRITICAL, "tidegate"):
        tickets = [engine.push("events", [(n,)]) for n in (1, 2, 3)]
        engine.run_until_idle()
    assert attempts == [1, 2, 2, 2]
    assert tickets[0].result() is None
    with pytest.raises(ProcedureFailed, match=r"work raised ZeroDivisionError: no luck \(line \d+ of .*test_failures"):
        tickets[1].result()
    with pytest.raises(StillWaiting, match=r"is parked: its dataflow is halted in front of position 2.0"):
        tickets[2].result(timeout_s=0.01)
    engine.push("others", [(9,)]).result()
    assert (table(engine), table(engine, "u")) == ([(1, "x")], [(9,)])
    assert engine.query("SELECT DISTINCT state FROM tidegate.executions").rows == [("parked",)]

    broken = False
    engine.resume()
    assert [ticket.result() for ticket in tickets] == [None, None, None]
    assert table(engine) == [(1, "x"), (2, "x"), (3, "x")]


def test_a_halt_in_the_middle_of_a_dataflow_keeps_what_committed_before(engine_of: Make) -> None:
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    app.stream("events", "n BIGINT", border=True)
    app.stream("x", "n BIGINT")
    broken = True

    @app.procedure(inputs="events", outputs="x", writes=["t"])
    def first(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n,))
        txn.emit("x", n=-events[0].n)

    @app.procedure(inputs="x", writes=["t"])
    def second(txn: Transaction, x: Batch) -> None:
        if broken:
            raise RuntimeError("down")
        txn.insert("t", (x[0].n,))

    engine = engine_of(app)
    ticket = engine.push("events", [(1,)])
    engine.run_until_idle()
    assert table(engine) == [(1,)]
    assert isinstance(ticket.error, ProcedureFailed)
    later = engine.push("events", [(2,)])
    broken = False
    engine.resume("first")
    assert (ticket.result(), later.result()) == (None, None)
    assert table(engine) == [(-2,), (-1,), (1,), (2,)]


def test_resume_without_a_fix_halts_again(engine_of: Make, flow: Flow) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        raise RuntimeError("still down")

    engine = engine_of(flow(body))
    ticket = engine.push("events", [(1,)])
    for _ in range(2):
        with pytest.raises(ProcedureFailed, match="still down"):
            ticket.result(60)
        engine.resume("work")
    engine.run_until_idle()
    with pytest.raises(ProcedureFailed, match="still down"):
        ticket.result(60)


def test_a_dead_letter_lets_the_flow_go_on(engine_of: Make, flow: Flow) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n, "x"))
        txn.emit("out", n=events[0].n)
        if events[0].n == 2:
            raise ValueError("can't digest")

    engine = engine_of(flow(body, on_failure="dead_letter", retries=1))
    out = engine.subscribe("out")
    tickets = [engine.push("events", [(n,)]) for n in (1, 2, 3)]
    engine.run_until_idle()
    with pytest.raises(ProcedureFailed, match=r"can't digest.*attempt 2"):
        tickets[1].result()
    assert table(engine) == [(1, "x"), (3, "x")]
    assert [batch.id for batch in out] == [1, 3]
    (letter,) = engine.query("SELECT * FROM tidegate.dead_letters")
    assert (letter.procedure, letter.stream, letter.batch_id, letter.rows) == (
        "work",
        "events",
        2,
        '[{"n":2}]',
    )
    assert "can't digest" in letter.error


def test_a_failing_call_raises_for_its_caller_only(engine_of: Make) -> None:
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")

    @app.procedure(writes=["t"])
    def divide(txn: Transaction, n: int) -> float:
        txn.insert("t", (n,))
        return 1 / n

    engine = engine_of(app)
    with pytest.raises(ProcedureFailed, match="divide raised ZeroDivisionError") as caught:
        engine.call("divide", 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert engine.call("divide", 2) == 0.5
    assert table(engine) == [(2,)]


def test_retries_start_from_nothing(engine_of: Make, flow: Flow) -> None:
    tries = 0

    def body(txn: Transaction, events: Batch) -> None:
        nonlocal tries
        tries += 1
        txn.insert("t", (1, f"try {tries}"))
        txn.emit("out", n=tries)
        if tries < 3:
            raise ConnectionError("flaky")

    engine = engine_of(flow(body, retries=5))
    out = engine.subscribe("out")
    engine.push("events", [(1,)]).result()
    assert table(engine) == [(1, "try 3")]
    assert [[row.n for row in batch] for batch in out] == [[3]]


def test_draws_are_the_same_on_every_try(engine_of: Make, flow: Flow) -> None:
    drawn: list[Any] = []

    def body(txn: Transaction, events: Batch) -> None:
        drawn.append((txn.random.random(), txn.uuid(), txn.now))
        if len(drawn) < 3:
            raise ConnectionError("flaky")

    engine = engine_of(flow(body, retries=5))
    engine.push("events", [(1,)]).result()
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("executor", ["serial", "manual"])
def test_ctrl_c_inside_a_procedure_leaves_a_consistent_engine(
    open_engine: Make, flow: Flow, executor: str, stop: type[BaseException]
) -> None:
    interrupt = True

    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n, "x"))
        if interrupt and events[0].n == 2:
            raise stop

    engine = open_engine(flow(body), executor=executor)
    engine.push("events", [(1,)])
    engine.run_until_idle()
    with pytest.raises(stop):
        engine.push("events", [(2,)]).result()
    assert table(engine) == [(1, "x")]
    engine.push("others", [(5,)]).result()
    assert (
        engine.query("SELECT reason FROM tidegate.executions").scalar()
        == "is parked: its dataflow is halted in front of position 2.0"
    )
    interrupt = False
    engine.resume()
    engine.push("events", [(3,)]).result()
    assert table(engine) == [(1, "x"), (2, "x"), (3, "x")]


def test_a_worker_survives_what_a_procedure_throws_at_it(open_engine: Make, flow: Flow) -> None:
    stop = True

    def body(txn: Transaction, events: Batch) -> None:
        if stop:
            raise SystemExit

    engine = open_engine(flow(body), executor="threads", workers=1)
    ticket = engine.push("events", [(1,)])
    with pytest.raises(ProcedureFailed, match="interrupted by SystemExit"):
        ticket.result(60)
    engine.push("others", [(5,)]).result(60)
    stop = False
    engine.resume()
    assert ticket.result(60) is None


@pytest.mark.parametrize("executor", ["serial", "manual"])
def test_ctrl_c_in_a_call_undoes_it(open_engine: Make, executor: str) -> None:
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")

    @app.procedure(writes=["t"])
    def put(txn: Transaction, n: int) -> None:
        txn.insert("t", (n,))
        if n == 1:
            raise KeyboardInterrupt

    engine = open_engine(app, executor=executor)
    with pytest.raises(KeyboardInterrupt):
        engine.call("put", 1)
    engine.call("put", 2)
    assert table(engine) == [(2,)]


def test_a_ctrl_c_while_feeding_keeps_what_was_fed(open_engine: Make, flow: Flow) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        txn.insert("t", (events[0].n, "x"))
        if events[0].n == 3 and not resumed:
            raise KeyboardInterrupt

    resumed = False
    engine = open_engine(flow(body))
    with pytest.raises(KeyboardInterrupt):
        engine.feed("events", [(n,) for n in range(6)])
    assert table(engine) == [(0, "x"), (1, "x"), (2, "x")]
    resumed = True
    engine.resume()
    assert [n for n, _ in table(engine)] == [0, 1, 2, 3, 4, 5], "rows were accepted by the chunk, so none is lost"


def test_the_journal_logs_halts_and_dead_letters(
    open_engine: Make, flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        raise RuntimeError("down")

    open_engine(flow(body)).push("events", [(1,)])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    for fragment in (
        "dataflow work is halted in front of batch 1",
        "RuntimeError: down",
        "engine.resume('work')",
    ):
        assert fragment in record.getMessage()
