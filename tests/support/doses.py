"""A doctor who is asked about a dose, in an app whose code may change between two openings."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from tidegate import App, Batch, Engine, Transaction, partition, window

runs: Counter[str] = Counter()  # how often each procedure ran
broken: set[str] = set()  # procedures that raise


def ran(procedure: str) -> None:
    runs[procedure] += 1
    if procedure in broken:
        raise RuntimeError(f"{procedure} is broken")


@cache
def make_doses(mode: Any = "weak", *, mg: int = 5, retries: int = 0) -> App:
    """orders → propose → proposals → give, when the doctor decides. ``mg``: what the code of ``propose`` says."""
    app = App("doses", recovery=mode)
    app.table("CREATE TABLE asked (patient INTEGER, drug VARCHAR, PRIMARY KEY (patient, drug))", partition_by="patient")
    app.table(
        "CREATE TABLE meds (patient INTEGER, drug VARCHAR, mg INTEGER NOT NULL, draw DOUBLE, PRIMARY KEY (patient, drug))",
        partition_by="patient",
    )
    app.stream("orders", "patient INTEGER NOT NULL, drug VARCHAR NOT NULL", border=True, key="patient")
    app.stream("proposals", "patient INTEGER, drug VARCHAR, mg INTEGER")
    app.stream(
        "decisions",
        "patient INTEGER NOT NULL, give BOOLEAN NOT NULL",
        border=True,
        key="patient",
        deadline_s=600,
        default={"give": False},
    )
    app.stream("given", "patient INTEGER, drug VARCHAR, mg INTEGER")

    @app.procedure(
        inputs="orders",
        outputs="proposals",
        reads=[partition("meds")],
        writes=[partition("asked")],
        windows={"recent": window("orders", count=2, slide=1)},
    )
    def propose(txn: Transaction, orders: Batch) -> None:
        ran("propose")
        txn.random.random()
        more = 100 * len(txn.scan("meds", drug="tea"))
        for order in orders:
            txn.upsert("asked", order)
            txn.emit("proposals", patient=order.patient, drug=order.drug, mg=mg + more)

    @app.procedure(
        inputs=["proposals", "decisions"],
        outputs="given",
        writes=[partition("meds")],
        windows={"proposed": window("proposals", count=2, slide=1)},
        retries=retries,
    )
    def give(txn: Transaction, proposals: Batch, decisions: Batch) -> None:
        ran("give")
        if decisions[0].give:
            for proposal in proposals:
                txn.insert("meds", (*proposal, txn.random.random()))
            txn.emit("given", proposals)

    app.nested(propose, give, name="prescribing")

    @app.procedure(writes=[partition("meds", by="patient")])
    def drink_tea(txn: Transaction, patient: int) -> None:
        txn.insert("meds", (patient, "tea", 0, None))

    return app


def meds(engine: Engine) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT patient, drug, mg, draw FROM meds ORDER BY ALL")]


def doses(engine: Engine) -> list[int]:
    return [mg for _, _, mg, _ in meds(engine)]


def shown(engine: Engine) -> list[Any]:
    """The open questions, with all that stays the same."""
    return [
        (q.stream, q.key, q.batch_id, q.position, q.id, q.digest, [tuple(row) for row in q.batches["proposals"]])
        for q in engine.questions()
    ]
