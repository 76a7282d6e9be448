"""Engines whose tables do not fit in memory, and what opening them waits for."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.storage import database as storage


@cache
def accounts() -> tidegate.App:
    app = tidegate.App("accounts")
    app.table("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, owner VARCHAR)")
    app.stream("deposits", "id BIGINT, amount BIGINT", border=True)

    @app.procedure(inputs="deposits", writes=["accounts"])
    def deposit(txn: Any, deposits: Any) -> None:
        for one in deposits:
            row = txn.get("accounts", one.id)
            txn.upsert("accounts", (one.id, one.amount + (row.balance if row else 0), f"owner {one.id}"))

    return app


def balances(engine: tidegate.Engine) -> dict[int, int]:
    return dict(engine.query("SELECT id, balance FROM accounts").rows)


@pytest.mark.parametrize("path", [None, "d"])
def test_most_rows_are_cold(path: str | None, tmp_path: Path) -> None:
    where = None if path is None else tmp_path / path
    expected: dict[int, int] = {}
    with tidegate.open(accounts(), where, cached_rows=10, merge_rows=50) as engine:
        for number in range(6):
            rows = [(n * 7 % 101, n + number) for n in range(60)]
            engine.feed("deposits", rows)
            for account, amount in rows:
                expected[account] = expected.get(account, 0) + amount
            engine.checkpoint()
        assert engine.database.cold.get("accounts") is not None
        assert balances(engine) == expected
    if where is not None:
        with tidegate.open(accounts(), where, cached_rows=10) as engine:
            assert len(engine.database.tables["accounts"].rows) == 0
            engine.push("deposits", [(7, 1000)])
            assert len(engine.database.tables["accounts"].rows) == 1
            assert balances(engine) == {**expected, 7: expected[7] + 1000}


def test_the_first_push_waits_for_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tidegate.open(accounts(), tmp_path / "d") as engine:
        engine.feed("deposits", [(n, n) for n in range(500)])
    monkeypatch.setattr(storage, "AT_ONCE", 100)
    scanned, go_on = threading.Event(), threading.Event()
    with tidegate.open(accounts(), tmp_path / "d") as engine:
        scan = engine.database.base.scan

        def slowly(schema: Any) -> Any:
            scanned.set()
            go_on.wait(20)
            return scan(schema)

        monkeypatch.setattr(engine.database.base, "scan", slowly)
        table = engine.database.tables["accounts"]
        engine.push("deposits", [(3, 10)]).result()
        assert scanned.wait(20)
        assert len(table.rows) == 1
        assert not table.complete
        engine.push("deposits", [(600, 10)]).result()
        go_on.set()
        while not table.complete:
            time.sleep(0.01)
        assert len(table.rows) == 501
        assert balances(engine) == {**{n: n for n in range(500)}, 3: 13, 600: 10}
        table.check()


def test_closing_does_not_wait_for_a_table_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tidegate.open(accounts(), tmp_path / "d") as engine:
        engine.feed("deposits", [(n, n) for n in range(500)])
    monkeypatch.setattr(storage, "AT_ONCE", 100)
    monkeypatch.setattr(storage, "PART", 1)
    began = threading.Event()
    with tidegate.open(accounts(), tmp_path / "d") as engine:
        monkeypatch.setattr(engine.database, "_let_others_run", lambda: (began.set(), time.sleep(0.1)))
        engine.push("deposits", [(3, 10)]).result()
        assert began.wait(20)
    assert not engine.database.tables["accounts"].complete
    with tidegate.open(accounts(), tmp_path / "d") as engine:
        assert balances(engine)[3] == 13


def test_a_backup_and_an_upgrade_have_their_rows_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tidegate.open(accounts(), tmp_path / "d", cached_rows=10) as engine:
        engine.feed("deposits", [(n, n) for n in range(500)])
        engine.checkpoint()
        engine.backup(tmp_path / "copy")
    app = tidegate.App("accounts")
    app.table("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, owner VARCHAR, note VARCHAR)")
    app.stream("deposits", "id BIGINT, amount BIGINT", border=True)

    @app.procedure(inputs="deposits", writes=["accounts"])
    def deposit(txn: Any, deposits: Any) -> None:
        for one in deposits:
            txn.update("accounts", one.id, balance=txn.get("accounts", one.id).balance + one.amount, note="new")

    with caplog.at_level(logging.WARNING):
        for place in ("d", "copy"):
            with tidegate.open(app, tmp_path / place, cached_rows=10) as engine:
                assert engine.database.cold.get("accounts") is None
                engine.feed("deposits", [(n, 1) for n in range(0, 500, 2)])
                engine.checkpoint()
                cold = engine.database.cold.get("accounts")
                assert cold is not None
                assert cold.differs(engine.database.base.scan(cold.schema)) is None
                assert balances(engine) == {n: n + (n % 2 == 0) for n in range(500)}


@cache
def looked_up() -> tidegate.App:
    """Two tables, found by two columns of the input."""
    app = tidegate.App("looked_up")
    for name in ("payers", "payees"):
        app.table(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, total BIGINT NOT NULL)")
    app.stream("payments", "payer BIGINT, payee BIGINT, amount BIGINT", border=True)
    app.stream("asked", "id BIGINT", border=True)

    @app.procedure(inputs="payments", writes=["payers", "payees"])
    def pay(txn: Any, payments: Any) -> None:
        for one in payments:
            for table, key in (("payers", one.payer), ("payees", one.payee)):
                row = txn.get(table, key)
                txn.upsert(table, (key, one.amount + (row.total if row else 0)))

    @app.procedure(inputs="asked", reads=["payers"])
    def ask(txn: Any, asked: Any) -> None:
        for one in asked:
            txn.get("payers", one.id)

    return app


def test_a_feed_learns_which_column_names_which_table(tmp_path: Path) -> None:
    payments = [(n * 7 % 1_000, n * 13 % 1_000, 1) for n in range(2_000)]
    with tidegate.open(looked_up(), tmp_path / "d", cached_rows=10) as engine:
        engine.feed("payments", payments)
        engine.checkpoint()
    with tidegate.open(looked_up(), tmp_path / "d", cached_rows=10) as engine:
        assert engine.feeding.foreknown.plans == {}
        engine.feed("payments", payments)
        assert sorted(engine.feeding.foreknown.plans["payments"]) == [("payees", 1), ("payers", 0)]
        assert dict(engine.query("SELECT id, total FROM payees").rows) == dict.fromkeys(range(1_000), 4)


def test_memory_is_kept_to_while_rows_are_only_read() -> None:
    with tidegate.open(looked_up(), memory=1 << 20, merge_rows=1_000) as engine:
        engine.feed("payments", [(n, n % 10, 1) for n in range(20_000)])
        table = engine.database.tables["payers"]
        assert 100 < len(table.rows) < 8_000
        most = 0
        for begin in range(0, 20_000, 2_000):
            engine.feed("asked", [(n,) for n in range(begin, begin + 2_000)])
            most = max(most, len(table.rows))
        assert most < 8_000
        found = engine.query(
            "SELECT bytes_in_memory, cold_bytes, cold_reads FROM tidegate.tables WHERE table_name = 'payers'"
        )
        ((taken, cold, reads),) = found.rows
        assert taken < 1.2 * (1 << 20)
        assert cold > 0
        assert reads > 15_000
        assert engine.query("SELECT count(*), sum(total) FROM payers").rows == [(20_000, 20_000)]


@pytest.mark.parametrize("memory", [0, 1000, True, "2 GB", 2.5])
def test_memory_is_a_number_of_bytes(memory: Any) -> None:
    with pytest.raises(tidegate.TidegateError, match="2 GiB is 2 << 30"):
        tidegate.open(looked_up(), memory=memory)
