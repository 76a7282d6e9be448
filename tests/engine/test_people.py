"""Nested transactions, and people inside them: waits, decisions, deadlines; other patients go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Aborted, App, Batch, BatchError, Engine, StillWaiting, Transaction, partition

Make = Callable[..., Engine]


def meds(engine: Engine) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT * FROM meds ORDER BY patient, drug")]


def test_a_member_that_emits_nothing_ends_the_nested_transaction(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(1, "aspirin")]).result()
    assert meds(engine) == [(1, "aspirin")]
    assert engine.scheduler.idle


def test_it_waits_for_the_decision_while_other_patients_go_on(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    first = engine.push("orders", [(1, "risky A"), (1, "aspirin")], 1)
    behind = engine.push("orders", [(1, "ibuprofen")], 2)
    engine.push("orders", [(2, "aspirin")], 1).result()
    engine.run_until_idle()
    assert meds(engine) == [(2, "aspirin")], "nothing of an open transaction is visible"
    with pytest.raises(StillWaiting, match=r"prescribing on batch 1 key 1 .*waits for its batch on stream decisions"):
        first.result(timeout_s=0.01)
    with pytest.raises(StillWaiting, match=r"batch 2 key 1 .*waits for its turn behind position 1.0"):
        behind.result(timeout_s=0.01)

    answer = engine.push("decisions", [(1, True)], 1)
    assert (answer.result(), first.result(), behind.result()) == (None, None, None)
    assert meds(engine) == [(1, "aspirin"), (1, "ibuprofen"), (1, "risky A"), (2, "aspirin")]


def test_readers_of_that_patient_wait_and_the_others_do_not(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(1, "risky A")], 1)
    engine.run_until_idle()
    assert engine.call("drugs", 2) == []
    waiting = engine.submit("drugs", 1)
    with pytest.raises(StillWaiting, match=r"waits for the lock on meds\[1\] behind position 1.0"):
        waiting.result(timeout_s=0.01)
    engine.push("decisions", [(1, True)], 1)
    assert waiting.result() == ["risky A"]


def test_a_no_undoes_every_member(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    ticket = engine.push("orders", [(1, "aspirin"), (1, "risky A")], 1)
    given = engine.subscribe("given")
    engine.push("decisions", [(1, False)], 1)
    with pytest.raises(Aborted, match=r"prescribe aborted at position 1.1?.*the doctor said no"):
        ticket.result()
    assert meds(engine) == []
    assert engine.query("SELECT count(*) FROM asked").scalar() == 0, "what check did is undone too"
    assert list(given) == []
    engine.push("orders", [(1, "ibuprofen")], 2).result()
    assert meds(engine) == [(1, "ibuprofen")], "the batch counts as processed and the patient goes on"


def test_the_default_is_pushed_at_the_deadline_and_a_late_decision_is_refused(
    engine_of: Make, ward: App, clock: Any
) -> None:
    engine = engine_of(ward)
    ticket = engine.push("orders", [(1, "risky A")], 1)
    engine.run_until_idle()
    clock.advance(599)
    engine.push("orders", [(2, "aspirin")], 1).result()
    assert not ticket.done
    clock.advance(1)
    engine.push("orders", [(3, "aspirin")], 1).result()
    engine.run_until_idle()
    with pytest.raises(Aborted, match="the doctor said no"):
        ticket.result(60)
    with pytest.raises(BatchError, match=r"batch 1 on decisions \(key 1\).*accepted before with other rows"):
        engine.push("decisions", [(1, True)], 1)
    assert meds(engine) == [(2, "aspirin"), (3, "aspirin")]


def test_deadlines_of_different_length_are_kept_in_any_order(engine_of: Make, clock: Any) -> None:
    app = App("desks")
    waits = {"slow": 600, "quick": 10, "middle": 60}
    for desk, deadline_s in waits.items():
        app.table(f"CREATE TABLE {desk} (n INTEGER PRIMARY KEY)")
        app.stream(f"{desk}_in", "n INTEGER NOT NULL", border=True)
        app.stream(f"{desk}_asked", "n INTEGER")
        app.stream(f"{desk}_answers", "yes BOOLEAN", border=True, deadline_s=deadline_s, default={"yes": False})

        def ask(txn: Transaction, rows: Batch, desk: str = desk) -> None:
            txn.emit(f"{desk}_asked", list(rows))

        def decide(txn: Transaction, asked: Batch, answers: Batch, desk: str = desk) -> None:
            txn.insert(desk, (asked[0].n,))

        ask.__name__, decide.__name__ = f"{desk}_ask", f"{desk}_decide"
        app.procedure(inputs=f"{desk}_in", outputs=f"{desk}_asked")(ask)
        app.procedure(inputs=[f"{desk}_asked", f"{desk}_answers"], writes=[desk])(decide)
        app.nested(ask, decide, name=f"{desk}_desk")
    app.stream("moments", "n INTEGER", border=True)

    @app.procedure(inputs="moments")
    def pass_by(txn: Transaction, moments: Batch) -> None: ...

    engine = engine_of(app)
    found = []
    for at in range(0, 720, 5):
        for desk, asked in (("slow", (0,)), ("quick", (100, 590)), ("middle", (105, 585))):
            if at in asked:
                engine.push(f"{desk}_in", [(at,)])
                engine.run_until_idle()
        engine.push("moments", [(at,)]).result()
        engine.run_until_idle()
        decided = {(desk, row.n) for desk in waits for row in engine.query(f"SELECT n FROM {desk}").rows}
        found += [(at, *each) for each in sorted(decided - {(desk, n) for _, desk, n in found})]
        clock.advance(5)
    assert found == [
        (110, "quick", 100),
        (165, "middle", 105),
        (600, "quick", 590),
        (600, "slow", 0),
        (645, "middle", 585),
    ]


def test_a_decision_may_come_early(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("decisions", [(1, True)], 5).result()
    engine.push("orders", [(1, "risky A")], 5).result()
    assert meds(engine) == [(1, "risky A")]


def test_a_decision_does_not_overtake_an_open_question(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(1, "risky A")], 1)
    engine.push("orders", [(1, "risky B")], 2)
    with pytest.raises(BatchError, match=r"batch 2 on decisions would overtake batch 1.*answer that one first"):
        engine.push("decisions", [(1, True)], 2)
    engine.push("decisions", [(1, True)], 1)
    engine.push("decisions", [(1, True)], 2)
    engine.run_until_idle()
    assert meds(engine) == [(1, "risky A"), (1, "risky B")]


def test_a_decision_for_one_patient_of_several(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(1, "risky A"), (2, "risky A")], 1)
    engine.push("decisions", [(2, True)], 1)
    engine.run_until_idle()
    assert meds(engine) == [(2, "risky A")]
    assert engine.query("SELECT key FROM tidegate.executions").rows == [("1",)]


def test_answers_pass_when_the_queues_are_full(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward, capacity=1)
    engine.push("orders", [(1, "risky A")], 1)
    engine.push("decisions", [(1, True)], 1)
    engine.run_until_idle()
    assert meds(engine) == [(1, "risky A")]


@pytest.mark.parametrize("failing", ["first", "second", "third"])
def test_a_nested_transaction_commits_or_aborts_as_one(engine_of: Make, failing: str) -> None:
    app = App()
    app.table("CREATE TABLE t (name VARCHAR PRIMARY KEY)")
    app.stream("b", "a INTEGER", border=True)
    app.stream("x", "a INTEGER")
    app.stream("y", "a INTEGER")
    app.stream("z", "a INTEGER")
    aborting: set[str] = set()

    def member(name: str, source: str, target: str) -> None:
        def body(txn: Transaction, batch: Batch) -> None:
            txn.insert("t", (f"{name} {batch[0].a}",))
            txn.emit(target, batch)
            if name in aborting:
                txn.abort(name)

        body.__name__ = name
        app.procedure(inputs=source, outputs=target, writes=["t"])(body)

    member("first", "b", "x")
    member("second", "x", "y")
    member("third", "y", "z")
    app.nested("first", "second", "third", name="all")
    engine = engine_of(app)
    emitted = engine.subscribe("z")
    engine.push("b", [(1,)]).result()
    aborting.add(failing)
    with pytest.raises(Aborted):
        engine.push("b", [(2,)]).result()
    names = [row.name for row in engine.query("SELECT name FROM t ORDER BY name")]
    assert names == ["first 1", "second 1", "third 1"]
    assert [batch.id for batch in emitted] == [1]
    assert [(a.procedure, a.reason) for a in engine.query("SELECT * FROM tidegate.aborts")] == [(failing, failing)]


def test_members_see_each_others_writes_and_nobody_else_does(engine_of: Make) -> None:
    app = App()
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER)", partition_by="k")
    app.stream("b", "k INTEGER", border=True, key="k")
    app.stream("x", "k INTEGER")
    seen: list[int] = []

    @app.procedure(inputs="b", outputs="x", writes=[partition("t")])
    def first(txn: Transaction, b: Batch) -> None:
        txn.upsert("t", (txn.key, b.id))
        txn.emit("x", b)

    @app.procedure(inputs="x", reads=[partition("t")])
    def second(txn: Transaction, x: Batch) -> None:
        seen.append(txn.get("t", txn.key).n)

    app.nested(first, second)
    engine = engine_of(app)
    for batch_id in range(1, 6):
        engine.push("b", [(1,)], batch_id)
    engine.run_until_idle()
    assert seen == [1, 2, 3, 4, 5]
