from __future__ import annotations

import datetime as dt

import pytest

import tidegate
from tidegate import App
from tidegate.testing import Call, ListSink, ListSource, ManualClock, OrderViolation, Push, check_order
from tidegate.txn.locks import LowWaterMarks


def doubler() -> App:
    app = App("doubler")
    app.table("CREATE TABLE total (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("numbers", "n BIGINT", border=True)
    app.stream("doubled", "n BIGINT")
    app.stream("answers", "n BIGINT", border=True, deadline_s=60, default={"n": 0})

    @app.procedure(inputs="numbers", outputs="doubled", writes=["total"])
    def double(txn, numbers):
        for row in numbers:
            old = txn.get("total", 1)
            txn.upsert("total", (1, row.n if old is None else old.n * 2 + row.n))
        txn.emit("doubled", [(row.n * 2,) for row in numbers])

    @app.procedure(inputs=["doubled", "answers"], writes=["total"])
    def answer(txn, doubled, answers):
        txn.upsert("total", (2, answers[0].n + txn.get("total", 1).n))

    @app.procedure(reads=["total"])
    def total(txn):
        return [tuple(row) for row in txn.scan("total")]

    app.nested(double, answer)
    return app


def test_the_clock_moves_only_when_told():
    clock = ManualClock(dt.datetime(2024, 5, 1))
    assert clock.now() == clock.now() == dt.datetime(2024, 5, 1)
    clock.advance(90)
    assert (clock.now(), clock.monotonic()) == (dt.datetime(2024, 5, 1, 0, 1, 30), 90.0)
    with pytest.raises(ValueError, match="can't go back"):
        clock.advance(-1)


def test_source_and_sink():
    clock = ManualClock()
    with tidegate.open(doubler(), clock=clock) as engine:
        sink = ListSink(engine)
        source = ListSource([("numbers", [(1,), (2,)], 1), ("numbers", [(3,)], 2)])
        assert len(source) == 2
        assert [ticket.duplicate for ticket in source.feed(engine)] == [False, False]
        clock.advance(61)
        engine.push("answers", [(5,)], 2)
        assert [ticket.duplicate for ticket in source.feed(engine)] == [True, True]
        assert [(batch.id, batch.rows) for batch in sink.batches("doubled")] == [
            (1, ((2,), (4,))),
            (2, ((6,),)),
        ]
        assert sink.rows("doubled") == [(2,), (4,), (6,)]
        sink.close()


INPUTS = [
    *(Push("numbers", ((n,),), n) for n in range(1, 5)),
    Call("total"),
    Push("numbers", ((7,), (8,)), 9),
    Push("answers", ((10,),), 2),
    Push("answers", ((20,),), 9),
]


@pytest.mark.parametrize("executor", ["manual", "serial", "threads"])
def test_check_order_agrees(executor):
    report = check_order(doubler, INPUTS, seed=3, executor=executor)
    assert report.entries >= len(INPUTS)


def test_check_order_tells_the_smallest_history(monkeypatch):
    app = App("racing")
    app.table("CREATE TABLE t (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")

    @app.procedure(writes=["t"])
    def add(txn, n):
        old = txn.get("t", 1)
        txn.upsert("t", (1, n if old is None else old.n * 2 + n))

    monkeypatch.setattr(LowWaterMarks, "blocker", lambda marks, at, reads, writes: None)
    calls = [Call("add", (n,)) for n in range(6)]
    with pytest.raises(OrderViolation) as caught:
        [check_order(app, calls, seed=seed, tries=4) for seed in range(20)]
    violation = caught.value
    assert len(violation.inputs) == 2
    assert "call('add'" in str(violation)
    assert any("table t" in difference or "calls" in difference for difference in violation.differences)
