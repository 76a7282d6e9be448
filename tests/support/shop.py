"""The app that the server's tests serve: orders, alerts with a doctor's decision, every column type, and things that fail."""

from __future__ import annotations

import os
import time
from typing import Any

from tidegate import App, partition, window

app = App("shop")
app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces BIGINT NOT NULL CHECK (pieces >= 0))")
app.view("scarce", "SELECT item, pieces FROM stock WHERE pieces < 5")
app.table(
    "CREATE TABLE doses (patient BIGINT, number INTEGER, PRIMARY KEY (patient, number))",
    partition_by="patient",
)
TYPES = (
    "small TINYINT, big BIGINT NOT NULL, unsigned UBIGINT, ratio DOUBLE, price DECIMAL(9,2), word VARCHAR, yes BOOLEAN, "
    "moment TIMESTAMP, day DATE, hour TIME, lasts INTERVAL, raw BLOB, name UUID, facts JSON, numbers INTEGER[], "
    "prices DECIMAL(9,2)[]"
)
app.table(f"CREATE TABLE kept ({TYPES.replace('big BIGINT NOT NULL', 'big BIGINT PRIMARY KEY')})")
app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)
app.stream("shipments", "item VARCHAR, pieces INTEGER")
app.stream("anything", TYPES, border=True)
app.stream("everything", TYPES)
app.stream("bad", "n INTEGER", border=True)
app.stream("alerts", "patient BIGINT NOT NULL", border=True, key="patient")
app.stream("proposals", "patient BIGINT, number INTEGER")
app.stream(
    "decisions",
    "patient BIGINT NOT NULL, give BOOLEAN NOT NULL",
    border=True,
    key="patient",
    deadline_s=600,
    default={"give": False},
)


@app.procedure(writes=["stock"])
def deliver(txn: Any, item: str, pieces: int) -> int:
    """More of an item."""
    if not isinstance(item, str) or not isinstance(pieces, int):
        txn.abort("an item is text and pieces are a whole number")
    before = txn.get("stock", item)
    after = pieces + (0 if before is None else before.pieces)
    txn.upsert("stock", (item, after))
    return after


@app.procedure()
def echo(txn: Any, value: Any = None) -> Any:
    return value


@app.procedure()
def linger(txn: Any, seconds: float) -> None:
    time.sleep(float(seconds))


@app.procedure()
def stay(txn: Any, path: str) -> None:
    """In this folder, until there is a file ``go``."""
    open(f"{path}/here", "w").close()
    until = time.monotonic() + 40
    while not os.path.exists(f"{path}/go"):
        if time.monotonic() > until:
            raise RuntimeError(f"nobody made {path}/go")
        time.sleep(0.02)


@app.procedure()
def fail(txn: Any) -> None:
    raise RuntimeError("as it must")


@app.procedure(inputs="orders", outputs="shipments", writes=["stock"])
def ship(txn: Any, orders: Any) -> None:
    for order in orders:
        if order.pieces:
            before = txn.get("stock", order.item)
            txn.upsert("stock", (order.item, (0 if before is None else before.pieces) - order.pieces))
        txn.emit("shipments", [order])


@app.procedure(inputs="shipments", windows={"recent": window("shipments", count=3, slide=1)})
def trend(txn: Any, shipments: Any) -> None:
    """Looks at what was shipped lately."""
    txn.window("recent")


@app.procedure(inputs="anything", outputs="everything", writes=["kept"])
def keep(txn: Any, anything: Any) -> None:
    for row in anything:
        txn.upsert("kept", row)
        txn.emit("everything", [row])


@app.procedure(inputs="bad", on_failure="dead_letter")
def spoil(txn: Any, bad: Any) -> None:
    raise ValueError("spoilt")


@app.procedure(inputs="alerts", outputs="proposals", reads=[partition("doses")])
def propose(txn: Any, alerts: Any) -> None:
    txn.emit("proposals", patient=txn.key, number=len(txn.scan("doses")) + 1)


@app.procedure(inputs=["proposals", "decisions"], writes=[partition("doses")])
def administer(txn: Any, proposals: Any, decisions: Any) -> None:
    if decisions[0].give:
        txn.insert("doses", proposals[0])


app.nested(propose, administer, name="treat")


app.table("CREATE TABLE followed (item VARCHAR PRIMARY KEY)", changelog=True)
