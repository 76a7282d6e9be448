"""A bank whose transfers touch two accounts, and wait for an approval when they are large."""

from __future__ import annotations

from functools import cache
from typing import Any

from tidegate import App, Batch, Engine, Transaction, partition

LARGE = 100
BOTH = ["payer", "payee"]


@cache
def payments(recovery: Any = "weak") -> App:
    app = App("payments", recovery=recovery)
    app.table("CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL)", partition_by="account")
    app.stream("transfers", "payer INTEGER NOT NULL, payee INTEGER, amount BIGINT NOT NULL", border=True, key="payer")
    app.stream("deposits", "account INTEGER NOT NULL, amount BIGINT NOT NULL", border=True, key="account")
    app.stream("checked", "payer INTEGER NOT NULL, payee INTEGER, amount BIGINT NOT NULL")
    app.stream(
        "approvals",
        "payer INTEGER NOT NULL, yes BOOLEAN NOT NULL",
        border=True,
        key="payer",
        deadline_s=600,
        default={"yes": False},
    )

    @app.procedure(inputs="transfers", outputs="checked", writes=[partition("accounts", by=BOTH)])
    def check(txn: Transaction, transfers: Batch) -> None:
        for transfer in transfers:
            payer = txn.get("accounts", transfer.payer)
            if payer is None or payer.balance < transfer.amount:
                txn.abort("not covered")
        if any(transfer.amount >= LARGE for transfer in transfers):
            txn.emit("checked", list(transfers.rows))
        else:
            move(txn, transfers)

    @app.procedure(
        inputs=["checked", "approvals"],
        writes=[partition("accounts", by=["transfers.payer", "transfers.payee"])],
    )
    def book(txn: Transaction, checked: Batch, approvals: Batch) -> None:
        if not approvals[0].yes:
            txn.abort("not approved")
        move(txn, checked)

    @app.procedure(inputs="deposits", writes=[partition("accounts")])
    def deposit(txn: Transaction, deposits: Batch) -> None:
        for row in deposits:
            add(txn, row.account, row.amount)

    @app.procedure(writes=[partition("accounts", by=BOTH)])
    def transfer(txn: Transaction, payer: int, payee: int | None, amount: int) -> None:
        add(txn, payer, -amount)
        if payee is not None:
            add(txn, payee, amount)

    @app.procedure(reads=[partition("accounts", by="account")])
    def balance(txn: Transaction, account: int) -> int:
        row = txn.get("accounts", account)
        return 0 if row is None else int(row.balance)

    app.nested(check, book, name="transferring")
    return app


def add(txn: Transaction, account: int, amount: int) -> None:
    row = txn.get("accounts", account)
    if row is None:
        txn.insert("accounts", (account, amount))
    else:
        txn.update("accounts", account, balance=row.balance + amount)


def move(txn: Transaction, transfers: Batch) -> None:
    for row in transfers:
        add(txn, row.payer, -row.amount)
        if row.payee is not None:
            add(txn, row.payee, row.amount)


def balances(engine: Engine) -> dict[int, int]:
    return dict(engine.query("SELECT account, balance FROM accounts ORDER BY account").rows)
