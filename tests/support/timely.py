"""An app in which time passes: the rows of each minute are counted, behind a filter, by room."""

from __future__ import annotations

from typing import Any

from tidegate import App, window
from tidegate import windows as w

app = App("timely")
app.table("CREATE TABLE minutes (room BIGINT, began TIMESTAMP, n BIGINT NOT NULL, PRIMARY KEY (room, began))")
app.stream("seen", "room BIGINT NOT NULL, at_time TIMESTAMP NOT NULL, loud BOOLEAN NOT NULL", border=True, key="room")
app.stream("loud", "room BIGINT NOT NULL, at_time TIMESTAMP NOT NULL")


@app.procedure(inputs="seen", outputs="loud")
def only_loud(txn: Any, seen: Any) -> None:
    txn.emit("loud", [(row.room, row.at_time) for row in seen if row.loud])


@app.procedure(
    inputs="loud",
    writes=["minutes"],
    windows={"minute": window("loud", time="1m", on="at_time", compute={"n": w.count()})},
)
def count(txn: Any, loud: Any) -> None:
    for result in txn.window("minute").results:
        txn.insert("minutes", (txn.key, result.window_start, result.n))
