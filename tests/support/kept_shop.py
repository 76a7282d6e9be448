"""An app whose streams are kept, for the server's tests."""

from __future__ import annotations

from typing import Any

from tidegate import App

app = App("kept")
app.stream("orders", "n INTEGER NOT NULL", border=True, keep="forever")
app.stream("shipments", "n INTEGER NOT NULL", keep="1d")
app.stream("notes", "n INTEGER NOT NULL")


@app.procedure(inputs="orders", outputs=["shipments", "notes"])
def ship(txn: Any, orders: Any) -> None:
    txn.emit("shipments", list(orders.rows))
    txn.emit("notes", list(orders.rows))
