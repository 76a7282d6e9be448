"""A hand-hygiene monitor for an intensive care unit, on the sensors of its doors, dispensers and beds.

    doors ──────┐                       ┌──▶ lapses (table)
    dispensers ─┼─▶ watch (patterns) ───┼──▶ reminders (the light on the worker's badge)
    beds ───────┘                       └──▶ compliance (per worker: opportunities, and how many were taken)

A badge is seen by a door when its worker enters a room, by a dispenser when it is used, by a bed when the worker is at it. Three
patterns over all of them, per worker, in the order of time:

- *before*: entered a room and touched the patient, without hygiene in between.
- *between*: touched a patient and then another one, without hygiene in between.
- *clean*: entered, used a dispenser, touched the patient: an opportunity that was taken.

The sensors are on different networks, so their rows may be up to two seconds apart (``delay``). All of it is one transaction: a
reminder is sent for exactly the lapses that are in the table, whatever is undone, killed or started again in between.
"""

from __future__ import annotations

from typing import Any

from tidegate import App, Batch, Transaction, either, pattern

SENSORS = ("doors", "dispensers", "beds")


def looked_for(match: str, **more: Any) -> Any:
    """A pattern over all sensors, per worker."""
    return pattern(SENSORS, on="seen", by="worker", within="10m", delay="2s", match=match, **more)


app = App("hygiene")
app.stream("doors", "worker BIGINT NOT NULL, seen TIMESTAMP NOT NULL, room VARCHAR NOT NULL", border=True)
app.stream("dispensers", "worker BIGINT NOT NULL, seen TIMESTAMP NOT NULL, place VARCHAR", border=True)
app.stream("beds", "worker BIGINT NOT NULL, seen TIMESTAMP NOT NULL, bed INTEGER NOT NULL", border=True)
app.stream("reminders", "worker BIGINT NOT NULL, kind VARCHAR NOT NULL, seen TIMESTAMP NOT NULL, bed INTEGER NOT NULL")
app.table(
    "CREATE TABLE lapses (kind VARCHAR, id BIGINT, worker BIGINT NOT NULL, seen TIMESTAMP NOT NULL, room VARCHAR, bed INTEGER, "
    "PRIMARY KEY (kind, id))"
)
app.table("CREATE TABLE compliance (worker BIGINT PRIMARY KEY, opportunities BIGINT NOT NULL, taken BIGINT NOT NULL)")

PATTERNS = {
    "before": looked_for(
        "SEQ(doors d, !dispensers, beds b)",
        after="past_last",
        measures={"seen": "b.seen", "room": "d.room", "bed": "b.bed"},
    ),
    "between": looked_for(
        "SEQ(beds one, !dispensers, other)",
        define={"other": "stream_name = 'beds' AND bed <> one.bed"},
        measures={"seen": "other.seen", "bed": "other.bed"},
    ),
    "clean": looked_for("SEQ(doors, dispensers, beds)", after="past_last"),
}


@app.procedure(inputs=either(*SENSORS), outputs="reminders", writes=["lapses", "compliance"], windows=PATTERNS)
def watch(txn: Transaction, doors: Batch, dispensers: Batch, beds: Batch) -> None:
    for kind in ("before", "between"):
        for found in txn.window(kind).results:
            room = found.room if kind == "before" else None
            txn.insert("lapses", (kind, found.match_id, found.worker, found.seen, room, found.bed))
            txn.emit("reminders", [(found.worker, kind, found.seen, found.bed)])
            count(txn, found.worker, taken=0)
    for found in txn.window("clean").results:
        count(txn, found.worker, taken=1)


def count(txn: Transaction, worker: int, taken: int) -> None:
    known = txn.get("compliance", worker) or (worker, 0, 0)
    txn.upsert("compliance", (worker, known[1] + 1, known[2] + taken))
