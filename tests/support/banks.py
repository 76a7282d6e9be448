"""A bank whose tables have changelogs, work for it, and what its changelogs told. Shared by the tests here."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import cache
from typing import Any

from tidegate import App, Batch, Engine, partition

Change = tuple[Any, int, str, Any, Any]  # key, batch-id, row key, before, after


@cache
def bank(recovery: Any = "weak", changelog: bool = True, follow: bool = False) -> App:
    """Accounts by branch; deposits touch one branch, a reform touches all."""
    app = App("bank", recovery=recovery)
    app.table(
        """CREATE TABLE accounts (branch INTEGER, id INTEGER, money DECIMAL(9,2) NOT NULL, since TIMESTAMP,
           PRIMARY KEY (branch, id))""",
        partition_by="branch",
        changelog=changelog,
    )
    app.table("CREATE TABLE notes (id INTEGER PRIMARY KEY, text VARCHAR)", changelog=changelog)
    app.stream("deposits", "branch INTEGER NOT NULL, id INTEGER, money DECIMAL(9,2)", border=True, key="branch")
    if follow:
        app.table("CREATE TABLE seen (row_key VARCHAR PRIMARY KEY, after VARCHAR, changes INTEGER NOT NULL)")
        columns = "row_key VARCHAR NOT NULL, before VARCHAR, after VARCHAR, position BIGINT NOT NULL"
        app.stream("followed", columns, border=True, key="row_key")

        @app.procedure(inputs="followed", writes=["seen"])
        def look(txn: Any, followed: Batch) -> None:
            for change in followed:
                known = txn.get("seen", change.row_key)
                assert (known.after if known else None) == change.before
                txn.upsert("seen", (change.row_key, change.after, 1 + (known.changes if known else 0)))

    @app.procedure(inputs="deposits", writes=[partition("accounts")])
    def deposit(txn: Any, deposits: Batch) -> None:
        for row in deposits:
            known = txn.get("accounts", (row.branch, row.id))
            if known is None:
                txn.insert("accounts", (row.branch, row.id, row.money, txn.now))
            elif row.money == 0:
                txn.delete("accounts", (row.branch, row.id))
            elif row.money < 0:
                txn.update("accounts", (row.branch, row.id), money=row.money)
                txn.abort("no debts")
            else:
                txn.update("accounts", (row.branch, row.id), money=known.money + row.money)

    @app.procedure(writes=["accounts", "notes"])
    def reform(txn: Any, factor: int) -> int:
        changed = txn.execute("UPDATE accounts SET money = money * ? WHERE money < 100", factor).count
        txn.upsert("notes", (1, f"times {factor}"))
        txn.insert("notes", (2, "never there"))
        txn.delete("notes", 2)
        return int(changed)

    return app


def work(engine: Engine, seed: int, steps: int = 40) -> None:
    chance = random.Random(seed)
    for _ in range(steps):
        if chance.random() < 0.15:
            engine.submit("reform", chance.randint(1, 3))
        else:
            money = chance.choice([Decimal("-1"), Decimal(0), Decimal("1.50"), Decimal(7)])
            engine.push("deposits", [(chance.randint(1, 3), chance.randint(1, 4), money) for _ in range(2)])
    engine.run_until_idle()


def told(batches: Any) -> list[Change]:
    """In an order that does not depend on the run: by position, then key."""
    rows = [
        (batch.key, batch.id, row.row_key, row.before, row.after, row.position) for batch in batches for row in batch
    ]
    assert all(row[1] == row[5] for row in rows)
    return sorted((row[:5] for row in rows), key=lambda row: (row[1], row[2]))
