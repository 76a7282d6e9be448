"""The schedules drawn in the S-Store article (figure 2), accepted and refused as it says."""

from __future__ import annotations

from collections.abc import Iterable

import tidegate
from tidegate import App
from tidegate.txn.outcome import COMMITTED

Step = tuple[str, int | None]  # a procedure and its batch-id; None for a call


def two_procedures(nested: bool) -> App:
    """SP1 writes P, SP2 reads it; an OLTP procedure writes P as well."""
    app = App("figures")
    app.table("CREATE TABLE p (id INTEGER PRIMARY KEY, by_whom VARCHAR NOT NULL)")
    app.table("CREATE TABLE seen (batch INTEGER PRIMARY KEY, by_whom VARCHAR)")
    app.stream("s1", "n INTEGER", border=True)
    app.stream("s2", "n INTEGER")

    @app.procedure(inputs="s1", outputs="s2", writes=["p"])
    def sp1(txn, s1):
        txn.upsert("p", (1, f"sp1 on batch {s1.id}"))
        txn.emit("s2", list(s1))

    @app.procedure(inputs="s2", reads=["p"], writes=["seen"])
    def sp2(txn, s2):
        txn.insert("seen", (s2.id, txn.get("p", 1).by_whom))

    @app.procedure(writes=["p"])
    def oltp(txn):
        txn.upsert("p", (1, "oltp"))

    if nested:
        app.nested(sp1, sp2)
    return app


def accepts(engine: tidegate.Engine, schedule: Iterable[Step]) -> bool:
    """Can the executions run one after another in this order? A nested transaction takes one per member."""
    open_ones = {}
    for procedure, batch_id in schedule:
        ready = [
            e
            for e in [*open_ones, *engine.scheduler.ready()]
            if e.batch_id == batch_id and procedure in [member.name for member in e.unit.members]
        ]
        if not ready:
            return False
        execution = ready[0]
        if execution not in open_ones:
            engine.scheduler.take(execution)
            open_ones[execution] = engine.executor.start(execution)
        txn = open_ones[execution]
        assert txn.unit.members[txn.cursor].name == procedure
        if engine.runtime.advance(txn, one_member=True) is COMMITTED:
            del open_ones[execution]
            engine.executor.settle(execution, COMMITTED)
    return True


def start(nested: bool) -> tidegate.Engine:
    engine = tidegate.open(two_procedures(nested), executor="manual")
    engine.push("s1", [(1,)], 1)
    return engine


BATCH_BY_BATCH = [("sp1", 1), ("sp2", 1), ("sp1", 2), ("sp2", 2)]
PIPELINED = [("sp1", 1), ("sp1", 2), ("sp2", 1), ("sp2", 2)]


def test_figure_2a_both_orders_respect_streams_and_dataflow():
    for schedule in (BATCH_BY_BATCH, PIPELINED):
        with start(nested=False) as engine:
            engine.push("s1", [(2,)], 2)
            assert accepts(engine, schedule)
            assert engine.query("SELECT * FROM seen ORDER BY batch").rows == [
                (1, "sp1 on batch 1"),
                (2, "sp1 on batch 2"),
            ]


def test_figure_2a_a_nested_transaction_is_not_interleaved():
    with start(nested=True) as engine:
        engine.push("s1", [(2,)], 2)
        assert not accepts(engine, PIPELINED)
    with start(nested=True) as engine:
        engine.push("s1", [(2,)], 2)
        assert accepts(engine, BATCH_BY_BATCH)


def test_figure_2a_streams_and_dataflows_have_an_order():
    for wrong in ([("sp1", 2)], [("sp2", 1)], [("sp1", 1), ("sp1", 2), ("sp2", 2)]):
        with start(nested=False) as engine:
            engine.push("s1", [(2,)], 2)
            assert not accepts(engine, wrong)


def test_figure_2b_oltp_comes_between_unless_nested():
    between: list[Step] = [("sp1", 1), ("oltp", None), ("sp2", 1)]
    with start(nested=False) as engine:
        engine.submit("oltp")
        assert accepts(engine, between)
        assert engine.query("SELECT by_whom FROM p").scalar() == "oltp"
        # it ran between them, and still sp2 sees what its position lets it see
        assert engine.query("SELECT by_whom FROM seen").scalar() == "sp1 on batch 1"
    with start(nested=True) as engine:
        engine.submit("oltp")
        assert not accepts(engine, between)
    with start(nested=True) as engine:
        engine.submit("oltp")
        assert accepts(engine, [("sp1", 1), ("sp2", 1), ("oltp", None)])
