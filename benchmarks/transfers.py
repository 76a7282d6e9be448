"""Transfers between random accounts that wait 5 ms each: what naming their two partitions gains over the whole table.

    python -m tidegate.benchmarks.transfers [transfers]

A transfer takes money from one of 1,000 accounts, waits as a call to some other system would, and gives it to another. With
``by=["payer", "payee"]`` transfers between other accounts run meanwhile; with the whole table declared none do. Every run ends
with the balances that running the transfers one after another gives.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, partition
from tidegate.benchmarks.setting import setting

ACCOUNTS = 1_000
WAIT_S = 0.005
WAYS: dict[str, Any] = {"named": partition("accounts", by=["payer", "payee"]), "whole": "accounts"}

Transfer = tuple[int, int, int]


def bench(transfers: int = 400, workers: int = 4) -> dict[str, Any]:
    """Transfers a second with one worker and with several, both ways."""
    chance = random.Random(1)
    made = [(*chance.sample(range(ACCOUNTS), 2), chance.randint(1, 9)) for _ in range(transfers)]
    figures: dict[str, Any] = {}
    for way, declared in WAYS.items():
        alone, several = (_run(declared, made, number) for number in (1, workers))
        figures |= {f"{way}_1_worker_per_s": round(alone), f"{way}_{workers}_workers_per_s": round(several)}
        figures[f"{way}_ratio"] = round(several / alone, 2)
    return {**figures, "transfers": transfers, "accounts": ACCOUNTS, **setting()}


def _run(declared: Any, transfers: list[Transfer], workers: int) -> float:
    """Transfers a second."""
    with tidegate.open(_bank(declared), executor="threads", workers=workers) as engine:
        engine.call("fill")
        begin = time.perf_counter()
        tickets = [engine.push("transfers", [transfer]) for transfer in transfers]
        for ticket in tickets:
            ticket.result()
        taken_s = time.perf_counter() - begin
        balances = dict(engine.query("SELECT account, balance FROM accounts").rows)
    if balances != _expected(transfers):
        raise AssertionError(f"wrong balances with {workers} workers and {declared}")
    return len(transfers) / taken_s


def _bank(declared: Any) -> App:
    app = App("transfers")
    app.table("CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL)", partition_by="account")
    columns = "payer INTEGER NOT NULL, payee INTEGER NOT NULL, amount BIGINT NOT NULL"
    app.stream("transfers", columns, border=True, key="payer")

    @app.procedure(inputs="transfers", writes=[declared])
    def transfer(txn: Transaction, transfers: Batch) -> None:
        for payer, payee, amount in transfers:
            txn.update("accounts", payer, balance=txn.get("accounts", payer).balance - amount)
            time.sleep(WAIT_S)
            txn.update("accounts", payee, balance=txn.get("accounts", payee).balance + amount)

    @app.procedure(writes=["accounts"])
    def fill(txn: Transaction) -> None:
        for account in range(ACCOUNTS):
            txn.insert("accounts", (account, 100))

    return app


def _expected(transfers: list[Transfer]) -> dict[int, int]:
    balances = dict.fromkeys(range(ACCOUNTS), 100)
    for payer, payee, amount in transfers:
        balances[payer] -= amount
        balances[payee] += amount
    return balances


if __name__ == "__main__":
    for name, value in bench(*map(int, sys.argv[1:2])).items():
        print(f"{name:24} {value}")
