"""Changelogs: what they hold, that they are the serial run's, after crashes too, and what is made of them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from banks import bank, told, work

from tidegate import Batch, Engine
from tidegate.connectors.files.sink import FileSink
from tidegate.errors import DeclarationError, TidegateError
from tidegate.offline.verify import verify
from tidegate.outside.changelog import changes_in_files, rebuild

Open = Callable[..., Engine]


def test_what_a_changelog_holds(open_engine: Open) -> None:
    engine = open_engine(bank())
    accounts, notes = engine.subscribe("accounts_changes"), engine.subscribe("notes_changes")
    engine.push("deposits", [(1, 7, Decimal("1.5"))])
    engine.push("deposits", [(1, 7, Decimal("-1"))])  # aborts
    engine.call("reform", 2)
    engine.call("reform", 1)  # changes nothing but the note
    engine.push("deposits", [(1, 7, Decimal(0)), (1, 8, Decimal(1)), (1, 8, Decimal(0))])
    first, second, third = accounts
    (row,) = first
    assert (first.key, row.row_key, row.before) == (1, "[1,7]", None)
    made = json.loads(row.after)
    assert (made["branch"], made["id"], made["money"]) == (1, 7, "1.50")
    assert dt.datetime.fromisoformat(made["since"])
    (row,) = second
    assert json.loads(row.before)["money"] == "1.50"
    assert json.loads(row.after)["money"] == "3.00"
    (row,) = third  # the account that came and went in one transaction never was
    assert (row.after, json.loads(row.before)["money"]) == (None, "3.00")
    assert first.id < second.id < third.id
    assert [[json.loads(row.after)["text"] for row in batch] for batch in notes] == [["times 2"], ["times 1"]]


@pytest.mark.parametrize("executor", ["manual", "threads"])
def test_it_is_that_of_the_serial_run(open_engine: Open, executor: str) -> None:
    """Order for every key, and the same changes whatever ran in parallel."""
    found = []
    for chosen in ("serial", executor):
        engine = open_engine(bank(), executor=chosen)
        subscriptions = [engine.subscribe("accounts_changes"), engine.subscribe("notes_changes")]
        work(engine, 3)
        batches = [list(subscription) for subscription in subscriptions]
        for of_table in batches:
            last: dict[Any, int] = {}
            for batch in of_table:
                assert batch.id > last.get(batch.key, -1)
                last[batch.key] = batch.id
        found.append([told(of_table) for of_table in batches])
    assert found[0][0]
    assert found[0] == found[1]


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("merged", [False, True])
def test_it_is_the_same_after_a_crash(open_engine: Open, tmp_path: Path, recovery: Any, merged: bool) -> None:
    """A durable subscriber gets after the crash what it would have got without one."""
    through = open_engine(bank(recovery), tmp_path / "one")
    whole = through.subscribe_durably("accounts_changes", "out")
    work(through, 5)
    engine = open_engine(bank(recovery), tmp_path / "two")
    engine.subscribe_durably("accounts_changes", "out")
    work(engine, 5, 40)
    if merged:
        engine.checkpoint()
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    again = open_engine(bank(recovery), tmp_path / "two")
    assert told(again.subscribe_durably("accounts_changes", "out")) == told(whole)


def test_an_empty_engine_is_rebuilt_from_it(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(bank(), tmp_path / "db")
    deliveries = [
        engine.deliver(f"{table}_changes", FileSink(tmp_path / table), table) for table in ("accounts", "notes")
    ]
    work(engine, 9)
    for delivery in deliveries:
        delivery.pump()
    want = {table: engine.query(f"SELECT * FROM {table} ORDER BY ALL").rows for table in ("accounts", "notes")}
    assert len(want["accounts"]) > 3
    changes = {table: changes_in_files(tmp_path / table) for table in want}
    counts = rebuild(bank(), tmp_path / "new", changes)
    assert counts == {table: len(rows) for table, rows in want.items()}
    new = open_engine(bank(), tmp_path / "new")
    for table, rows in want.items():
        assert new.query(f"SELECT * FROM {table} ORDER BY ALL").rows == rows
    new.push("deposits", [(9, 9, Decimal(1))])  # and it works on
    new.close()
    assert verify(bank(), tmp_path / "new").same
    with pytest.raises(TidegateError, match="already has data"):
        rebuild(bank(), tmp_path / "new", {})
    with pytest.raises(TidegateError, match="not a table with a changelog; those are accounts, notes"):
        rebuild(bank(), tmp_path / "other", {"deposits": []})


def test_files_that_are_missing_are_told(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(bank(), tmp_path / "db")
    delivery = engine.deliver("accounts_changes", FileSink(tmp_path / "changes"), "log")
    for money in (5, 6, 7):
        engine.push("deposits", [(1, 1, Decimal(money))])
    delivery.pump()
    with pytest.raises(TidegateError, match="holds no changes"):
        changes_in_files(tmp_path / "elsewhere")
    _, second, third = sorted((tmp_path / "changes").iterdir())
    second.unlink()
    with pytest.raises(TidegateError, match=r"has a gap.*Deliver it again, under another name"):
        rebuild(bank(), tmp_path / "new", {"accounts": changes_in_files(tmp_path / "changes")})
    third.write_text("{}\n")
    with pytest.raises(TidegateError, match=r"line 1, is not a table change"):
        changes_in_files(tmp_path / "changes")


def test_a_changelog_is_an_output_and_nothing_else(open_engine: Open) -> None:
    app = bank.__wrapped__()
    with pytest.raises(DeclarationError, match="it is an output"):

        @app.procedure(inputs="notes_changes")
        def read(txn: Any, notes_changes: Batch) -> None: ...

    with pytest.raises(DeclarationError, match="change the table instead"):

        @app.procedure(inputs="deposits", outputs="notes_changes")
        def write(txn: Any, deposits: Batch) -> None: ...

    assert "accounts_changes" not in bank(changelog=False).streams
    engine = open_engine(bank(changelog=False))
    work(engine, 3)
    assert not engine.runtime.changelogs
