"""What a key or named partitions cost: the same rows, written by one execution, or by one for each key.

    python -m tidegate.benchmarks.keys [rows] [keys]

Each way adds a number to one of ``keys`` accounts for each row, in batches of 1,000 rows. ``whole``: one execution for a batch,
the whole table; ``by=``: one execution, and a lock for each account; ``key= at the border``, ``key= on the way``: one execution
and one lock for each account. The ways take turns, in one process; every run ends with the same balances.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, partition
from tidegate.benchmarks.setting import setting

BATCH = 1_000
ROUNDS = 9
COLUMNS = "account INTEGER NOT NULL, amount BIGINT NOT NULL"
WAYS = ("whole", "by=", "key= at the border", "key= on the way")

Rows = list[tuple[int, int]]


def bench(rows: int = 10_000, keys: int = 100) -> dict[str, Any]:
    """µs of CPU time a row, the best of some rounds, and how many times that of the whole table."""
    chance = random.Random(1)
    made = [(chance.randrange(keys), chance.randrange(10)) for _ in range(rows)]
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        for way in WAYS:
            best[way] = min(best[way], _run(way, made))
    figures: dict[str, Any] = {}
    for way, taken_s in best.items():
        figures |= {
            f"{way}, us_per_row": round(taken_s / rows * 1e6, 1),
            f"{way}, x": round(taken_s / best["whole"], 1),
        }
    return {**figures, "rows": rows, "keys": keys, **setting()}


def _run(way: str, rows: Rows) -> float:
    """Seconds of CPU time: what others do on the machine counts less."""
    with tidegate.open(_app(way)) as engine:
        begin = time.process_time()
        for start in range(0, len(rows), BATCH):
            engine.push("entries", rows[start : start + BATCH]).result()
        taken_s = time.process_time() - begin
        balances = dict(engine.query("SELECT account, balance FROM accounts").rows)
    expected: dict[int, int] = {}
    for account, amount in rows:
        expected[account] = expected.get(account, 0) + amount
    if balances != expected:
        raise AssertionError(f"wrong balances: {way}")
    return taken_s


def _app(way: str) -> App:
    app = App("keys")
    app.table("CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL)", partition_by="account")
    app.stream("entries", COLUMNS, border=True, key="account" if way == "key= at the border" else None)
    inputs, access = "entries", partition("accounts")
    if way == "key= on the way":
        app.stream("by_account", COLUMNS, key="account")
        inputs = "by_account"

        @app.procedure(inputs="entries", outputs="by_account")
        def pass_on(txn: Transaction, entries: Batch) -> None:
            txn.emit("by_account", entries)

    declared: Any = {"whole": "accounts", "by=": partition("accounts", by="account")}.get(way, access)

    @app.procedure(inputs=inputs, writes=[declared])
    def add(txn: Transaction, entries: Batch) -> None:
        for account, amount in entries:
            row = txn.get("accounts", account)
            txn.upsert("accounts", (account, amount + (0 if row is None else row.balance)))

    return app


if __name__ == "__main__":
    for name, value in bench(*map(int, sys.argv[1:3])).items():
        print(f"{name:32} {value}")
