"""Small apps that the engine's tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tidegate import App, Batch, Transaction, partition, window


@pytest.fixture
def counter() -> App:
    """events → count → counted → note: a count per name, and what was counted last."""
    return make_counter()


@cache
def make_counter() -> App:
    app = App("counter")
    app.table("CREATE TABLE totals (name VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    app.table("CREATE TABLE notes (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, n BIGINT NOT NULL)")
    app.stream("events", "name VARCHAR NOT NULL, n BIGINT NOT NULL", border=True)
    app.stream("counted", "name VARCHAR, n BIGINT")

    @app.procedure(
        inputs="events",
        outputs="counted",
        writes=["totals"],
        windows={"recent": window("events", count=3, slide=1)},
    )
    def count(txn: Transaction, events: Batch) -> None:
        for event in events:
            before = txn.get("totals", event.name)
            n = event.n + (before.n if before is not None else 0)
            txn.upsert("totals", (event.name, n))
            txn.emit("counted", name=event.name, n=n)
        if any(event.name == "bad" for event in events):
            txn.abort("a bad name")

    @app.procedure(inputs="counted", writes=["notes"])
    def note(txn: Transaction, counted: Batch) -> None:
        txn.insert("notes", (counted.id, counted[-1].name, counted[-1].n))

    @app.procedure(reads=["totals"])
    def total(txn: Transaction, name: str) -> int:
        row = txn.get("totals", name)
        return 0 if row is None else row.n

    @app.procedure(writes=["totals"])
    def put(txn: Transaction, name: str, n: int) -> None:
        txn.upsert("totals", (name, n))

    return app


@pytest.fixture
def ward() -> App:
    """orders → check → risky → prescribe ← decisions: a doctor decides about risky orders, per patient."""
    return make_ward()


@cache
def make_ward() -> App:
    app = App("ward")
    app.table(
        "CREATE TABLE meds (patient INTEGER, drug VARCHAR, PRIMARY KEY (patient, drug))",
        partition_by="patient",
    )
    app.table("CREATE TABLE asked (patient INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="patient")
    app.stream("orders", "patient INTEGER, drug VARCHAR NOT NULL", border=True, key="patient")
    app.stream("risky", "patient INTEGER, drug VARCHAR")
    app.stream("given", "patient INTEGER, drug VARCHAR")
    app.stream(
        "decisions",
        "patient INTEGER NOT NULL, yes BOOLEAN NOT NULL",
        border=True,
        key="patient",
        deadline_s=600.0,
        default={"yes": False},
    )

    @app.procedure(inputs="orders", outputs="risky", writes=[partition("meds"), partition("asked")])
    def check(txn: Transaction, orders: Batch) -> None:
        before = txn.get("asked", txn.key)
        txn.upsert("asked", (txn.key, 1 if before is None else before.n + 1))
        for order in orders:
            if order.drug.startswith("risky"):
                txn.emit("risky", [order])
            else:
                txn.upsert("meds", order)

    @app.procedure(inputs=["risky", "decisions"], outputs="given", writes=[partition("meds")])
    def prescribe(txn: Transaction, risky: Batch, decisions: Batch) -> None:
        if not decisions[0].yes:
            txn.abort("the doctor said no")
        for order in risky:
            txn.insert("meds", order)
            txn.emit("given", [order])

    @app.procedure(reads=[partition("meds", by="patient")])
    def drugs(txn: Transaction, patient: int) -> list[str]:
        return [row.drug for row in txn.scan("meds")]

    app.nested("check", "prescribe", name="prescribing")
    return app


@pytest.fixture
def flow() -> Callable[..., App]:
    """``flow(body, **options)``: ``body``, called ``work``, on stream ``events`` (n) with a table ``t``.

    Beside it there is an independent procedure on stream ``others`` with a table ``u``.
    """

    def make(body: Callable[..., Any], name: str = "work", **options: Any) -> App:
        app = App("flow")
        app.table("CREATE TABLE t (n BIGINT PRIMARY KEY, word VARCHAR)")
        app.table("CREATE TABLE u (n BIGINT PRIMARY KEY)")
        app.stream("events", "n BIGINT", border=True)
        app.stream("others", "n BIGINT", border=True)
        app.stream("out", "n BIGINT")
        body.__name__ = name
        options = {"writes": ["t"], "outputs": "out", **options}
        app.procedure(inputs="events", **options)(body)

        @app.procedure(inputs="others", writes=["u"])
        def other(txn: Transaction, others: Batch) -> None:
            for row in others:
                txn.upsert("u", row)

        return app

    return make
