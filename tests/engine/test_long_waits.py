"""A person who takes long holds back one partition, not memory."""

from __future__ import annotations

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.storage.chains import rows_of


def waiting_app() -> App:
    app = App("long_wait")
    app.table("CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("asks", "k INTEGER NOT NULL", border=True)
    app.stream("asked", "k INTEGER")
    app.stream("answers", "ok BOOLEAN", border=True, deadline_s=600, default={"ok": False})
    app.stream("hits", "id INTEGER NOT NULL", border=True)

    @app.procedure(inputs="asks", outputs="asked", reads=["counters"])
    def ask(txn: Transaction, asks: Batch) -> None:
        txn.emit("asked", [asks[0]])

    @app.procedure(inputs=["asked", "answers"], reads=["counters"])
    def answered(txn: Transaction, asked: Batch, answers: Batch) -> None:
        row = txn.get("counters", 1)
        if row is not None and row.n != 1:
            txn.abort(f"saw {row.n}")

    app.nested(ask, answered)

    @app.procedure(inputs="hits", writes=["counters"])
    def count(txn: Transaction, hits: Batch) -> None:
        row = txn.get("counters", hits[0].id)
        txn.upsert("counters", (hits[0].id, 1 if row is None else row.n + 1))

    return app


def test_a_row_that_changes_often_does_not_pile_up_versions() -> None:
    with tidegate.open(waiting_app()) as engine:
        engine.push("hits", [(1,)])
        asked = engine.push("asks", [(1,)], batch_id=1)
        engine.feed("hits", [(1,)] * 500)
        chain = engine.database.tables["counters"].chains[1]
        assert len(list(rows_of(chain))) == 2, "the newest, and the one the waiting transaction reads"
        engine.push("answers", [(True,)], batch_id=1)
        assert asked.result() is None, "it saw the row as it was before it began to wait"
        assert engine.query("SELECT n FROM counters").scalar() == 501
