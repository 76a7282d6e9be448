"""A changelog begins with what its table holds: whatever runs in parallel, in every mode of the log, after every crash."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from banks import bank, told, work

from tidegate import App, Batch, Engine
from tidegate.connectors.files.sink import FileSink
from tidegate.offline.verify import verify
from tidegate.outside.changelog import changes_in_files, rebuild
from tidegate.txn.log.record import Subscribed

Open = Callable[..., Engine]
ACCOUNTS = "SELECT * FROM accounts ORDER BY branch, id"


def image(batches: Iterable[Batch]) -> dict[str, str]:
    """The table that the changes make. Each begins where the one before it ended, and ids ascend for every key."""
    rows: dict[str, str] = {}
    last: dict[Any, int] = {}
    for batch in batches:
        assert batch.id > last.get(batch.key, -1)
        last[batch.key] = batch.id
        for change in batch:
            assert rows.pop(change.row_key, None) == change.before
            if change.after is not None:
                rows[change.row_key] = change.after
    return rows


def held(engine: Engine) -> dict[str, Decimal]:
    return {f"[{row.branch},{row.id}]": row.money for row in engine.query(ACCOUNTS).rows}


def money(rows: dict[str, str]) -> dict[str, Decimal]:
    return {key: Decimal(json.loads(row)["money"]) for key, row in rows.items()}


@pytest.mark.parametrize(
    ("recovery", "crashed"), [("weak", False), ("weak", True), ("strong", True), ("effects", True)]
)
def test_a_table_that_had_rows_before_it_had_a_changelog(
    open_engine: Open, tmp_path: Path, recovery: Any, crashed: bool
) -> None:
    before = open_engine(bank(recovery, changelog=False), tmp_path / "db")
    work(before, 3)
    before.close()
    engine = open_engine(bank(recovery), tmp_path / "db")
    engine.deliver("accounts_changes", FileSink(tmp_path / "changes"), "log")
    work(engine, 4)
    if crashed:
        engine.durable.sync()  # type: ignore[union-attr]
        engine.abandon()
        engine = open_engine(bank(recovery), tmp_path / "db")
        engine.deliver("accounts_changes", FileSink(tmp_path / "changes"), "log")
    engine.outbox.deliveries["log"].pump()
    rows = engine.query(ACCOUNTS).rows
    assert len(rows) > 3
    counts = rebuild(bank(), tmp_path / "new", {"accounts": changes_in_files(tmp_path / "changes")})
    assert counts == {"accounts": len(rows)}
    assert open_engine(bank(), tmp_path / "new").query(ACCOUNTS).rows == rows


@pytest.mark.parametrize(
    ("executor", "recovery"),
    [
        ("threads", "weak"),
        ("threads", "strong"),
        ("threads", "effects"),
        ("manual", "weak"),
        ("serial", "weak"),
        *(pytest.param(e, r, marks=pytest.mark.slow) for e in ("manual", "serial") for r in ("strong", "effects")),
    ],
)
def test_it_has_its_place_in_the_order(open_engine: Open, tmp_path: Path, executor: str, recovery: Any) -> None:
    """Made in the middle of the work, it is whole and without gap; the log, run again, gives the same."""
    engine = open_engine(bank(recovery), tmp_path / "db", executor=executor)
    worker = threading.Thread(target=work, args=(engine, 8, 90)) if executor == "threads" else None
    if worker is None:
        for _ in range(20):
            engine.submit("reform", 1)
        work(engine, 7, 20)
        for i in range(9):
            engine.push("deposits", [(i % 3, i, Decimal(3))])  # with executor="manual" they wait
    else:
        worker.start()
    found = [engine.subscribe_durably("accounts_changes", f"s{i}") for i in range(3)]
    if worker is not None:
        worker.join()
    else:
        work(engine, 8, 20)
    engine.run_until_idle()
    images = [image(subscription.peek()) for subscription in found]
    assert images[0]
    assert all(money(made) == held(engine) for made in images)
    want = [told(subscription.peek()) for subscription in found]
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    again = open_engine(bank(recovery), tmp_path / "db")
    assert [told(again.subscribe_durably("accounts_changes", f"s{i}").peek()) for i in range(3)] == want
    again.close()
    assert verify(bank(recovery), tmp_path / "db").same


def test_one_that_was_made_but_not_begun_begins_after_a_crash(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(bank(), tmp_path / "db")
    work(engine, 3)
    engine.outbox.log(Subscribed("log", "accounts_changes", snapshot=True))  # and then it dies
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    again = open_engine(bank(), tmp_path / "db")
    assert not again.outbox.subscriptions["log"].begun
    again.close()  # the checkpoint knows it, too
    again = open_engine(bank(), tmp_path / "db")
    work(again, 4)
    assert not again.outbox.subscriptions["log"].waiting
    found = again.subscribe_durably("accounts_changes", "log")
    work(again, 5)
    assert money(image(found.peek())) == held(again)


def ward() -> App:
    """A treatment that waits for a doctor, who holds the patient's row meanwhile."""
    app = App("ward")
    app.table("CREATE TABLE doses (patient INTEGER PRIMARY KEY, dose INTEGER NOT NULL)", changelog=True)
    app.stream("asked", "patient INTEGER, dose INTEGER", border=True)
    app.stream("proposed", "patient INTEGER, dose INTEGER")
    app.stream("decided", "yes BOOLEAN", border=True, deadline_s=100, default=[{"yes": False}])

    @app.procedure(writes=["doses"])
    def give(txn: Any, patient: int, dose: int) -> None:
        txn.upsert("doses", (patient, dose))

    @app.procedure(inputs="asked", outputs="proposed", writes=["doses"])
    def propose(txn: Any, asked: Batch) -> None:
        txn.emit("proposed", list(asked))

    @app.procedure(inputs=["proposed", "decided"], writes=["doses"])
    def decide(txn: Any, proposed: Batch, decided: Batch) -> None:
        for row in proposed:
            txn.upsert("doses", row)

    app.nested(propose, decide)
    return app


def test_it_waits_behind_an_open_transaction(open_engine: Open, tmp_path: Path) -> None:
    """What a person has not decided yet comes before it in the order; until then nothing is delivered, nor after a crash."""
    engine = open_engine(ward(), tmp_path / "db")
    engine.call("give", 1, 10)
    engine.push("asked", [(1, 20)], 5)
    found = engine.subscribe_durably("doses_changes", "log")
    assert not found.begun
    assert not found.peek()
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    again = open_engine(ward(), tmp_path / "db")
    found = again.subscribe_durably("doses_changes", "log")
    again.push("decided", [(True,)], 5)
    again.call("give", 2, 30)
    assert image(found.peek()) == {"[1]": '{"patient":1,"dose":20}', "[2]": '{"patient":2,"dose":30}'}
    assert [row.after for row in found.peek()[0]] == ['{"patient":1,"dose":20}']


def test_one_may_begin_with_the_next_change(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(bank(), tmp_path / "db")
    work(engine, 3)
    found = engine.subscribe_durably("notes_changes", "log", snapshot=False)
    assert not found.peek()
    engine.call("reform", 7)
    ((change,),) = found.peek()
    assert change.before is not None
    assert json.loads(change.after)["text"] == "times 7"
