"""Where records go that a source could not turn into rows: a stream, with a table to look them up."""

from __future__ import annotations

from typing import Any

from tidegate.dataflows.app import App
from tidegate.errors import text_of
from tidegate.streams.batch import Batch
from tidegate.txn.transaction import Transaction

REJECTED = "rejected_in"
COLUMNS = (
    "source VARCHAR NOT NULL, place VARCHAR NOT NULL, stream VARCHAR NOT NULL, record VARCHAR NOT NULL, "
    "reason VARCHAR NOT NULL"
)
LONGEST = 10_000  # characters of a record that are kept


def declare_rejected(app: App) -> None:
    """Let sources set aside what does not fit: declares stream ``rejected_in``, table ``rejected`` and stream
    ``rejected_out``.

    The table has each rejected record once, by source and place, with the reason; the output stream can be followed
    and delivered like any other. Call it before the app is opened, and keep it: it is part of the app.
    """
    app.table(f"CREATE TABLE rejected ({COLUMNS}, at_time TIMESTAMP NOT NULL, PRIMARY KEY (source, place))")
    app.stream(REJECTED, COLUMNS, border=True)
    app.stream("rejected_out", COLUMNS)

    @app.procedure(inputs=REJECTED, outputs="rejected_out", writes=["rejected"])
    def put_aside(txn: Transaction, rejected_in: Batch) -> None:
        for record in rejected_in:
            if txn.get("rejected", (record.source, record.place)) is None:
                txn.insert("rejected", (*record, txn.now))
                txn.emit("rejected_out", [record])


def rejected_row(source: str, place: str, stream: str, record: str, reason: str) -> tuple[Any, ...]:
    """A row of the stream, whatever the record is: a very long one is cut, invalid Unicode is escaped."""
    return source, text_of(place), stream, text_of(record)[:LONGEST], text_of(reason)
