"""An app whose beds fail while a file says so: one dataflow with keys, one without, one with dead letters."""

from __future__ import annotations

import os
from typing import Any

from tidegate import App

app = App("halting")
app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, bed BIGINT NOT NULL)")
for name, key in (("readings", "bed"), ("plain", None), ("letters", None)):
    app.stream(name, "bed BIGINT NOT NULL, n BIGINT NOT NULL", border=True, key=key)


def _see(txn: Any, rows: Any) -> None:
    for row in rows:
        if row.bed == 2 and not os.path.exists(os.environ["REPAIRED"]):
            txn.insert("seen", n=row.n, bad=row.bed)
        txn.insert("seen", n=row.n, bed=row.bed)


@app.procedure(inputs="readings", writes=["seen"])
def check(txn: Any, readings: Any) -> None:
    _see(txn, readings)


@app.procedure(inputs="plain", writes=["seen"])
def whole(txn: Any, plain: Any) -> None:
    _see(txn, plain)


@app.procedure(inputs="letters", writes=["seen"], on_failure="dead_letter")
def lenient(txn: Any, letters: Any) -> None:
    _see(txn, letters)
