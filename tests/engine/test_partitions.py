"""Several partitions at once: a transfer locks its two accounts and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from payments import balances, payments

from tidegate import (
    App,
    Batch,
    DataError,
    Engine,
    ProcedureFailed,
    StillWaiting,
    Transaction,
    either,
    partition,
)
from tidegate.errors import RecoveryRefused
from tidegate.txn.locks import Item

Make = Callable[..., Engine]


@pytest.fixture
def bank(engine_of: Make) -> Engine:
    """Accounts 1 to 5, with 1,000 each."""
    engine = engine_of(payments())
    engine.push("deposits", [(account, 1_000) for account in range(1, 6)]).result()
    return engine


def test_while_a_transfer_waits_for_approval_only_its_two_accounts_wait(bank: Engine) -> None:
    large = bank.push("transfers", [(1, 2, 500)], 1)
    bank.run_until_idle()
    for account in (3, 4, 5):
        bank.push("deposits", [(account, 10)]).result()
    bank.push("transfers", [(3, 4, 50)], 1).result()
    assert balances(bank) == {1: 1_000, 2: 1_000, 3: 960, 4: 1_060, 5: 1_010}
    waiting = [bank.push("deposits", [(account, 1)]) for account in (1, 2)]
    waiting += [bank.push("transfers", [(5, 2, 1)], 1), bank.submit("transfer", 4, 1, 1), bank.submit("balance", 2)]
    bank.run_until_idle()
    for ticket in waiting:
        with pytest.raises(StillWaiting, match=r"waits for the lock on accounts\[[12]\]"):
            ticket.result(timeout_s=0.01)
    assert bank.call("balance", 3) == 960, "it reads an account that no waiting transfer touches"
    bank.push("approvals", [(1, True)], 1).result()
    assert large.result() is None
    assert waiting[-1].result() == 1_502
    for ticket in waiting:
        ticket.result()
    assert balances(bank) == {1: 502, 2: 1_502, 3: 960, 4: 1_059, 5: 1_009}


def test_the_view_of_locks_shows_each_partition(bank: Engine) -> None:
    bank.push("transfers", [(1, 2, 500), (1, 3, 500)], 1)
    bank.run_until_idle()
    bank.submit("transfer", 3, 4, 1)
    rows = bank.query("SELECT unit, partition, mode, held_by FROM tidegate.locks ORDER BY position, partition").rows
    assert rows == [
        ("transferring", "1", "write", None),
        ("transferring", "2", "write", None),
        ("transferring", "3", "write", None),
        ("transfer", "3", "write", "transferring"),
        ("transfer", "4", "write", None),
    ]
    bank.push("approvals", [(1, True)], 1).result()


def test_null_names_no_partition(bank: Engine) -> None:
    bank.push("transfers", [(1, None, 5), (1, 2, 5)], 1).result()
    bank.call("transfer", 1, None, 5)
    assert balances(bank)[1] == 985
    with pytest.raises(DataError, match=r"balance: account selects the partition of accounts .* can't be NULL"):
        bank.call("balance", None)


ASK_FOR_THE_PAYEE: dict[str, Callable[[Transaction, Batch], Any]] = {
    "scan": lambda txn, rows: txn.scan("accounts", account=2),
    "delete_where": lambda txn, rows: txn.delete_where("accounts", account=2),
    "a literal": lambda txn, rows: txn.execute("SELECT sum(balance) FROM accounts WHERE account = 2"),
    "a parameter": lambda txn, rows: txn.execute("UPDATE accounts SET balance = 0 WHERE account IN (?, ?)", 1, 2),
    "an array": lambda txn, rows: txn.execute("DELETE FROM accounts WHERE account = ANY(?)", [2]),
    "the batch": lambda txn, rows: txn.execute("SELECT sum(balance) FROM accounts JOIN moves ON account = payee"),
    "the batch, by key": lambda txn, rows: txn.execute("SELECT balance FROM moves JOIN accounts ON account = payee"),
}


@pytest.mark.parametrize("way", ASK_FOR_THE_PAYEE)
def test_statements_that_ask_for_a_partition_that_is_not_named_are_refused(way: str, engine_of: Make) -> None:
    app = App("asking")
    app.table("CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL)", partition_by="account")
    app.stream("moves", "payer INTEGER NOT NULL, payee INTEGER NOT NULL", border=True)
    seen = []

    @app.procedure(inputs="moves", writes=[partition("accounts", by="payer")])
    def book(txn: Transaction, moves: Batch) -> None:
        for row in moves:
            txn.upsert("accounts", (row.payer, 10))
        seen.append(txn.execute("SELECT count(*) AS n FROM accounts WHERE balance > 1")[0].n)
        ASK_FOR_THE_PAYEE[way](txn, moves)

    @app.procedure(writes=["accounts"])
    def open_account(txn: Transaction, account: int) -> None:
        txn.insert("accounts", (account, 10))

    engine = engine_of(app)
    engine.call("open_account", 2)
    with pytest.raises(
        ProcedureFailed, match=r"works on partition .* but asked for rows with account = 2; name its part"
    ):
        engine.push("moves", [(1, 2)]).result()
    assert set(seen) == {1}, "the other row with balance > 1 is in a partition that it does not name"


def test_a_call_has_its_partitions_in_the_order_of_its_arguments(bank: Engine) -> None:
    execution = bank.scheduler.admit_call(
        99, bank.graph.oltp["transfer"], bank.runtime.programs["transfer"].bind_call((2, 1, 5), {})[1]
    )
    assert execution.writes == (Item("accounts", (2,)), Item("accounts", (1,)))
    bank.scheduler.take(execution)
    bank.scheduler.finish(execution, {})


TOUCHES: dict[str, Callable[[Transaction], Any]] = {
    "get": lambda txn: txn.get("stock", ("north", "tea")),
    "insert": lambda txn: txn.insert("stock", ("north", "tea", 1)),
    "upsert": lambda txn: txn.upsert("stock", ("north", "tea", 1)),
    "update": lambda txn: txn.update("stock", ("north", "tea"), n=1),
    "delete": lambda txn: txn.delete("stock", ("north", "tea")),
    "compiled SQL": lambda txn: txn.execute("SELECT n FROM stock WHERE site = 'north' AND item = 'tea'"),
    "DuckDB": lambda txn: txn.execute("INSERT INTO stock SELECT 'north', max(item), 1 FROM stock"),
}
ROWS = [("south", "tea", "east", None), ("south", "rum", "west", "rum")]


def warehouse(work: Callable[[Transaction], Any]) -> App:
    app = App("warehouse")
    app.table(
        "CREATE TABLE stock (site VARCHAR, item VARCHAR, n INTEGER NOT NULL, PRIMARY KEY (site, item))",
        partition_by=("site", "item"),
    )
    columns = "site VARCHAR NOT NULL, item VARCHAR NOT NULL, other_site VARCHAR, other_item VARCHAR"
    app.stream("moves", columns, border=True)
    app.stream("moved", "n INTEGER")
    named = [("site", "item"), ("other_site", "other_item")]

    @app.procedure(inputs="moves", outputs="moved", writes=[partition("stock", by=named)], on_failure="dead_letter")
    def carry(txn: Transaction, moves: Batch) -> None:
        txn.emit("moved", n=len(txn.scan("stock")))
        work(txn)

    @app.procedure(writes=[partition("stock", by=("site", "item"))])
    def put(txn: Transaction, site: str, item: str, n: int) -> None:
        txn.upsert("stock", (site, item, n))

    @app.procedure(reads=["stock"])
    def all_stock(txn: Transaction) -> list[Any]:
        return [tuple(row) for row in txn.scan("stock")]

    return app


@pytest.mark.parametrize("use", TOUCHES)
def test_composite_partitions_that_are_not_named_are_refused_by_name(use: str, engine_of: Make) -> None:
    engine = engine_of(warehouse(TOUCHES[use]))
    engine.call("put", "north", "tea", 3)
    engine.call("put", "south", "tea", 4)
    with pytest.raises(
        ProcedureFailed, match=r"works on partitions \('south', 'tea'\), \('south', 'rum'\), \('west', 'rum'\)"
    ):
        engine.push("moves", ROWS).result()
    assert engine.call("all_stock") == [("north", "tea", 3), ("south", "tea", 4)]


def test_composite_partitions_that_are_named_are_seen_and_written(engine_of: Make) -> None:
    engine = engine_of(
        warehouse(
            lambda txn: (
                txn.upsert("stock", ("west", "rum", 8)),
                txn.update("stock", ("south", "tea"), n=5),
                txn.execute("UPDATE stock SET n = n + 1"),
            )
        )
    )
    engine.call("put", "north", "tea", 3)
    engine.call("put", "south", "tea", 4)
    moved = engine.subscribe("moved")
    engine.push("moves", ROWS).result()
    assert [row.n for batch in moved for row in batch] == [1]
    assert engine.call("all_stock") == [("north", "tea", 3), ("south", "tea", 6), ("west", "rum", 9)]


def test_a_batch_that_names_no_partition_locks_and_sees_nothing(engine_of: Make) -> None:
    app = App("nobody")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER)", partition_by="k")
    app.stream("s", "k INTEGER", border=True)

    @app.procedure(inputs="s", writes=[partition("t", by="k")], on_failure="dead_letter")
    def look(txn: Transaction, s: Batch) -> None:
        assert txn.scan("t") == list(txn.execute("SELECT sum(n) FROM t HAVING sum(n) > 0")) == []
        txn.upsert("t", (1, 2))

    @app.procedure(writes=["t"])
    def fill(txn: Transaction) -> None:
        txn.upsert("t", (1, 1))

    engine = engine_of(app)
    engine.call("fill")
    with pytest.raises(
        ProcedureFailed, match=r"works on no partition \(no row of its batch names one; NULL does not\)"
    ):
        engine.push("s", [(None,)]).result()
    assert engine.query("SELECT n FROM t").scalar() == 1


def test_key_and_columns_together_and_members_take_the_union(engine_of: Make) -> None:
    app = App("union")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="k")
    app.stream("s", "k INTEGER NOT NULL, a INTEGER, b INTEGER", border=True, key="k")
    app.stream("u", "k INTEGER")
    seen: list[Any] = []

    @app.procedure(inputs="s", outputs="u", writes=[partition("t"), partition("t", by="a")])
    def first(txn: Transaction, s: Batch) -> None:
        seen.append(list(txn.partitions["t"]))
        txn.emit("u", k=1)

    @app.procedure(inputs="u", reads=[partition("t", by=["s.b", "s.a"])])
    def second(txn: Transaction, u: Batch) -> None:
        seen.append(list(txn.partitions["t"]))

    engine = engine_of(app)
    engine.push("s", [(1, 2, 3), (1, 2, 4), (1, None, 1)]).result()
    assert seen == [[1, 2], [3, 4, 1, 2]]
    app.nested(first, second)
    seen.clear()
    engine = engine_of(app)
    engine.push("s", [(1, 2, 3), (1, 2, 4), (1, None, 1)]).result()
    assert seen == [[1, 2, 3, 4], [1, 2, 3, 4]]


def test_an_either_procedure_names_partitions_by_the_batch_that_came(engine_of: Make) -> None:
    app = App("either")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="k")
    app.stream("ins", "k INTEGER NOT NULL", border=True)
    app.stream("outs", "k INTEGER NOT NULL, other INTEGER", border=True)

    @app.procedure(inputs=either("ins", "outs"), writes=[partition("t", by=["k", "other"])])
    def note(txn: Transaction, ins: Batch, outs: Batch) -> None:
        for k in txn.partitions["t"]:
            txn.upsert("t", (k, len(ins) - len(outs)))

    engine = engine_of(app)
    engine.push("ins", [(1,), (2,)]).result()
    engine.push("outs", [(2, 3)]).result()
    assert engine.query("SELECT * FROM t ORDER BY k").rows == [(1, 2), (2, -1), (3, -1)]


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("merged", [False, True])
def test_an_open_transfer_holds_its_accounts_after_a_restart(
    open_engine: Make, tmp_path: Path, recovery: str, merged: bool
) -> None:
    app = payments(recovery)
    engine = open_engine(app, tmp_path / "db")
    engine.push("deposits", [(account, 1_000) for account in range(1, 6)]).result()
    engine.push("transfers", [(1, 2, 500)], 1)
    engine.push("deposits", [(2, 7)])
    if merged:
        engine.checkpoint()
    engine.close()
    again = open_engine(app, tmp_path / "db")
    again.push("deposits", [(3, 1)]).result()
    again.push("deposits", [(2, 1)])
    assert balances(again) == {1: 1_000, 2: 1_000, 3: 1_001, 4: 1_000, 5: 1_000}
    again.push("approvals", [(1, True)], 1).result()
    assert balances(again) == {1: 500, 2: 1_508, 3: 1_001, 4: 1_000, 5: 1_000}
    again.close()
    assert balances(open_engine(app, tmp_path / "db")) == {1: 500, 2: 1_508, 3: 1_001, 4: 1_000, 5: 1_000}


def test_partitions_named_by_two_border_streams_survive_a_restart(open_engine: Make, tmp_path: Path) -> None:
    """The first batch waits for the second: its rows have to be there when the locks are taken."""
    app = App("joined")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="k")
    app.stream("a", "k INTEGER", border=True)
    app.stream("b", "k INTEGER", border=True)
    app.stream("c", "n INTEGER")

    @app.procedure(inputs="a", outputs="c")
    def pass_on(txn: Transaction, a: Batch) -> None:
        txn.emit("c", n=len(a))

    @app.procedure(inputs=["c", "b"], writes=[partition("t", by=["a.k", "b.k"])])
    def join(txn: Transaction, c: Batch, b: Batch) -> None:
        for k in txn.partitions["t"]:
            txn.upsert("t", (k, c[0].n))

    engine = open_engine(app, tmp_path / "db")
    engine.push("a", [(1,), (2,)], 1).result()
    engine.close()
    again = open_engine(app, tmp_path / "db")
    again.push("b", [(2,), (3,)], 1).result()
    assert again.query("SELECT * FROM t ORDER BY k").rows == [(1, 2), (2, 2), (3, 2)]


def asking(names: Any) -> App:
    app = App("asking")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="k")
    app.stream("s", "k INTEGER NOT NULL, other INTEGER", border=True, key="k")
    app.stream("asked", "k INTEGER")
    app.stream("answers", "k INTEGER NOT NULL", border=True, key="k", deadline_s=60, default={})

    @app.procedure(inputs="s", outputs="asked", writes=[names])
    def ask(txn: Transaction, s: Batch) -> None:
        txn.emit("asked", k=1)

    @app.procedure(inputs=["asked", "answers"])
    def answer(txn: Transaction, asked: Batch, answers: Batch) -> None: ...

    app.nested(ask, answer)
    return app


def test_what_waits_keeps_its_partitions_so_their_names_can_not_change(open_engine: Make, tmp_path: Path) -> None:
    engine = open_engine(asking(partition("t")), tmp_path / "db")
    engine.push("s", [(1, 2)], 1)
    engine.close()
    with pytest.raises(RecoveryRefused, match=r"waits with batch 1, but now its rows name partitions of other tables"):
        open_engine(asking(partition("t", by=["k", "other"])), tmp_path / "db")
    again = open_engine(asking(partition("t")), tmp_path / "db")
    again.push("answers", [(1,)], 1).result()
    again.close()
    open_engine(asking(partition("t", by=["k", "other"])), tmp_path / "db").push("s", [(1, 2)], 2)
