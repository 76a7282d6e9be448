"""Dataflows that follow a changelog, through a border stream: once, in order, the same in every run; and never in a circle."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from banks import bank, work

from tidegate import App, Batch, Engine
from tidegate.connectors.engine_sink import EngineSink
from tidegate.dataflows.changelogs import COLUMNS
from tidegate.errors import DeclarationError, SinkError
from tidegate.offline.verify import verify

Open = Callable[..., Engine]


def check_followed(engine: Engine) -> None:
    """``seen`` has the accounts as they are. Its procedure has checked that each change began where the last one ended."""
    seen = {row.row_key: row.after for row in engine.query("SELECT * FROM seen").rows if row.after is not None}
    accounts = engine.query("SELECT branch, id, money FROM accounts").rows
    assert {key: Decimal(json.loads(after)["money"]) for key, after in seen.items()} == {
        f"[{row.branch},{row.id}]": row.money for row in accounts
    }
    assert engine.query("SELECT count(*) FROM tidegate.aborts WHERE procedure = 'look'").scalar() == 0


def test_other_dataflows_follow_it_through_a_border_stream(open_engine: Open, tmp_path: Path) -> None:
    app = bank.__wrapped__(follow=True)
    engine = open_engine(app, tmp_path / "db")
    delivery = engine.deliver("accounts_changes", EngineSink(engine, "followed"), "loop")
    work(engine, 11)
    batches = delivery._subscription.take(1000)
    delivery._subscription.put_back(batches)
    delivery.sink.send(batches[:5])  # as if the acknowledgement had been lost
    delivery.pump()
    check_followed(engine)
    assert engine.query("SELECT sum(changes) FROM seen").scalar() == sum(len(batch) for batch in batches)


@pytest.mark.parametrize(
    ("executor", "recovery"),
    [
        ("threads", "weak"),
        ("threads", "strong"),
        ("threads", "effects"),
        ("serial", "weak"),
        pytest.param("serial", "strong", marks=pytest.mark.slow),
        pytest.param("serial", "effects", marks=pytest.mark.slow),
    ],
)
def test_following_survives_a_crash_and_is_the_serial_run_of_its_log(
    open_engine: Open, tmp_path: Path, executor: str, recovery: Any
) -> None:
    """While others work and a thread delivers: the engine dies, goes on, and its log, run serially, gives the same tables."""

    def begin() -> Engine:
        engine = open_engine(bank(recovery, follow=True), tmp_path / "db", executor=executor)
        engine.deliver("accounts_changes", EngineSink(engine, "followed"), "loop", background=True)
        return engine

    engine = begin()
    other = threading.Thread(target=work, args=(engine, 11, 40))
    other.start()
    work(engine, 12, 40)
    other.join()
    engine.durable.sync()  # type: ignore[union-attr]
    engine.outbox.deliveries["loop"].close()  # wherever it is; what it did not acknowledge comes again
    engine.abandon()
    engine = begin()
    work(engine, 13, 20)
    assert engine.outbox.deliveries["loop"].drain(60)
    engine.run_until_idle()
    check_followed(engine)
    engine.close()
    assert verify(bank(recovery, follow=True), tmp_path / "db").same


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_full_backlog_is_worked_off_by_the_follower(open_engine: Open, tmp_path: Path, executor: str) -> None:
    """The push that makes room must not wait for room."""
    engine = open_engine(bank(follow=True), tmp_path / "db", executor=executor, backlog=3)
    delivery = engine.deliver("accounts_changes", EngineSink(engine, "followed"), "loop", on_lag="block")
    for i in range(3):
        engine.push("deposits", [(i, i, Decimal(1))])
    engine.run_until_idle()
    assert len(delivery) == 3
    assert delivery.pump() == 3
    engine.run_until_idle()
    check_followed(engine)


def circle() -> App:
    """Two tables, each followed by a procedure that writes the other."""
    app = App("circle")
    for table, other in (("ours", "theirs"), ("theirs", "ours")):
        app.table(f"CREATE TABLE {table} (id VARCHAR PRIMARY KEY, n INTEGER)", changelog=True)
        app.stream(f"from_{other}", COLUMNS, border=True, key="row_key")

    @app.procedure(inputs="from_theirs", writes=["ours"])
    def write_ours(txn: Any, from_theirs: Batch) -> None:
        txn.upsert("ours", ("x", 1))

    @app.procedure(inputs="from_ours", writes=["theirs"])
    def write_theirs(txn: Any, from_ours: Batch) -> None:
        txn.upsert("theirs", ("x", 1))

    return app


def test_circles_are_refused(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(circle(), tmp_path / "db")
    with pytest.raises(DeclarationError, match="closes a cycle: ours_changes → from_theirs → ours_changes"):
        engine.deliver("ours_changes", EngineSink(engine, "from_theirs"))
    engine.deliver("theirs_changes", EngineSink(engine, "from_theirs"))
    with pytest.raises(DeclarationError) as refused:
        engine.deliver("ours_changes", EngineSink(engine, "from_ours"))
    assert "ours_changes → from_ours → theirs_changes → from_theirs → ours_changes" in str(refused.value)
    assert "a table of its own" in str(refused.value)
    assert not any(s.stream == "ours_changes" for s in engine.outbox.subscriptions.values())
    other = open_engine(circle(), tmp_path / "other")
    engine.deliver("ours_changes", EngineSink(other, "from_ours"))  # another engine is no circle


def test_an_order_that_the_border_stream_can_not_have_is_refused(open_engine: Open, tmp_path: Path) -> None:
    app = bank.__wrapped__(follow=True)
    app.stream("whole", COLUMNS, border=True)
    app.table("CREATE TABLE places (position BIGINT PRIMARY KEY)")

    @app.procedure(inputs="whole", writes=["places"])
    def note(txn: Any, whole: Batch) -> None:
        txn.upsert("places", (whole[0].position,))

    engine = open_engine(app, tmp_path / "db")
    with pytest.raises(DeclarationError, match=r"because accounts is partitioned\. Declare whole with key='row_key'"):
        engine.deliver("accounts_changes", EngineSink(engine, "whole"))
    delivery = engine.deliver("notes_changes", EngineSink(engine, "whole"))
    work(engine, 3)
    assert delivery.pump() > 1
    with pytest.raises(SinkError, match="declare it with the same columns"):
        engine.deliver("notes_changes", EngineSink(engine, "deposits"), "wrong")
