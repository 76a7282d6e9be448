"""Shipments that are booked and have to be picked up by a time. One that is not raises an alert.

    booked ──▶ book ··timer··▶ unclaimed ──▶ raise_alert ──▶ alerts
    picked_up ──▶ pick_up ··cancels it··┘

The timer is set in the transaction that books the shipment, and cancelled in the one that picks it up. So there is a timer
for exactly the shipments that are waiting, whatever is undone, killed or started again in between.
"""

from __future__ import annotations

from tidegate import App, Batch, Transaction

app = App("shipments")
app.table(
    "CREATE TABLE shipments (id BIGINT PRIMARY KEY, due TIMESTAMP NOT NULL, timer VARCHAR, state VARCHAR NOT NULL)"
)
app.stream("booked", "id BIGINT NOT NULL, due TIMESTAMP NOT NULL", border=True)
app.stream("picked_up", "id BIGINT NOT NULL", border=True)
app.stream("unclaimed", "id BIGINT NOT NULL", border=True)
app.stream("alerts", "id BIGINT NOT NULL, due TIMESTAMP NOT NULL, raised TIMESTAMP NOT NULL")


@app.procedure(inputs="booked", writes=["shipments"], timers="unclaimed")
def book(txn: Transaction, booked: Batch) -> None:
    for shipment in booked:
        timer = txn.after(shipment.due - txn.now, "unclaimed", id=shipment.id)
        txn.insert("shipments", (shipment.id, shipment.due, timer, "waiting"))


@app.procedure(inputs="picked_up", writes=["shipments"])
def pick_up(txn: Transaction, picked_up: Batch) -> None:
    for row in picked_up:
        shipment = txn.get("shipments", row.id)
        if shipment is not None:
            txn.cancel(shipment.timer)
            txn.update("shipments", row.id, timer=None, state="picked up")


@app.procedure(inputs="unclaimed", outputs="alerts", writes=["shipments"])
def raise_alert(txn: Transaction, unclaimed: Batch) -> None:
    for row in unclaimed:
        shipment = txn.get("shipments", row.id)
        if shipment is not None and shipment.state == "waiting":  # else it was picked up just before
            txn.update("shipments", row.id, timer=None, state="overdue")
            txn.emit("alerts", id=row.id, due=shipment.due, raised=txn.now)
