"""Callbacks of tickets may do what anyone may: push, wait, raise, close. The order of the work does not suffer from it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tidegate import App, Batch, Engine, Ticket, Transaction
from tidegate.errors import EngineClosed
from tidegate.offline.verify import verify
from tidegate.txn.log.record import Fed, Pushed, Record

PUSHES = 20
SETTINGS = [
    pytest.param(
        {"executor": executor, **({} if sync is None else {"sync": sync})}, id=f"{executor}-{sync or 'memory'}"
    )
    for executor in ("serial", "threads")
    for sync in (None, "always", "group", "off")
]


@cache
def make_queue(mode: str = "weak") -> App:
    """arrivals → stand: everyone gets the next place."""
    app = App("queue", recovery=mode)
    app.table("CREATE TABLE places (place BIGINT PRIMARY KEY, batch BIGINT NOT NULL, n BIGINT NOT NULL)")
    app.table("CREATE TABLE last (id INTEGER PRIMARY KEY, place BIGINT NOT NULL)")
    app.stream("arrivals", "n BIGINT NOT NULL", border=True)

    @app.procedure(inputs="arrivals", writes=["places", "last"])
    def stand(txn: Transaction, arrivals: Batch) -> None:
        before = txn.get("last", 1)
        place = 1 if before is None else before.place + 1
        txn.upsert("last", (1, place))
        txn.insert("places", (place, arrivals.id, arrivals[0].n))

    return app


@pytest.fixture(params=SETTINGS)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(params=["weak", "strong", "effects"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def synced_before_anyone_is_told(engine: Engine) -> None:
    """Let every record of a push come to disk right after it was appended: the log's thread can be that fast."""
    durable = engine.durable
    if durable is None:
        return
    append = durable.writer.append

    def append_and_sync(record: Record) -> int:
        lsn = append(record)
        if not isinstance(record, Pushed | Fed):
            return lsn
        syncing = threading.Thread(target=durable.writer.wait, args=(lsn,), daemon=True)
        syncing.start()
        while durable.writer.synced < lsn:
            pass
        return lsn

    durable.writer.append = append_and_sync  # type: ignore[method-assign]


def places(engine: Engine) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in engine.query("SELECT place, batch, n FROM places ORDER BY place")]  # type: ignore[misc]


def finished(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.result(60)


@pytest.mark.parametrize("fast_log", [False, True], ids=["any-log", "fast-log"])
def test_a_callback_that_pushes_overtakes_nobody(
    settings: dict[str, Any], mode: str, fast_log: bool, tmp_path: Path, open_engine: Callable[..., Engine]
) -> None:
    path = tmp_path / "dir" if "sync" in settings else None
    app = make_queue(mode)
    engine = open_engine(app, path, **settings)
    if fast_log:
        synced_before_anyone_is_told(engine)
    follow_ups: list[Ticket] = []
    all_followed = threading.Event()

    def follow(ticket: Ticket) -> None:
        follow_ups.append(engine.push("arrivals", [(1000 + ticket.batch_ids[0],)]))
        if len(follow_ups) == PUSHES:
            all_followed.set()

    tickets = []
    for n in range(PUSHES):
        tickets.append(engine.push("arrivals", [(n,)]))
        tickets[-1].add_done_callback(follow)
    finished(tickets)
    assert all_followed.wait(60)
    finished(follow_ups)
    engine.run_until_idle()
    found = places(engine)
    assert [place for place, _, _ in found] == list(range(1, 2 * PUSHES + 1))
    assert [batch for _, batch, _ in found] == sorted(batch for _, batch, _ in found), "somebody was overtaken"
    assert [t.batch_ids[0] + 1000 for t in tickets] == [n for _, _, n in found if n >= 1000], "told out of turn"
    if path is not None:
        engine.abandon()
        again = open_engine(app, path, **settings)
        assert places(again) == found
        again.close()
        assert verify(app, path).same


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    settings: dict[str, Any], mode: str, tmp_path: Path, open_engine: Callable[..., Engine], caplog: Any
) -> None:
    engine = open_engine(make_queue(mode), tmp_path / "dir" if "sync" in settings else None, **settings)
    synced_before_anyone_is_told(engine)
    told: list[Ticket] = []

    def fail(ticket: Ticket) -> None:
        raise ZeroDivisionError("the callback's own fault")

    tickets = []
    with caplog.at_level(logging.ERROR, "tidegate"):
        for n in range(PUSHES):
            ticket = engine.push("arrivals", [(n,)])
            ticket.add_done_callback(fail)
            ticket.add_done_callback(told.append)
            tickets.append(ticket)
        finished(tickets)
        engine.teller.drain()
    assert told == tickets
    assert [n for _, _, n in places(engine)] == list(range(PUSHES))
    failures = [r for r in caplog.records if "a ticket callback failed" in r.message]
    assert len(failures) == PUSHES
    assert "the callback's own fault" in str(failures[0].exc_info)


def test_a_callback_may_call_and_wait(settings: dict[str, Any], tmp_path: Path, open_engine: Any) -> None:
    app = make_queue.__wrapped__()

    @app.procedure(reads=["last"])
    def length(txn: Transaction) -> int:
        row = txn.get("last", 1)
        return 0 if row is None else row.place  # type: ignore[no-any-return]

    engine = open_engine(app, tmp_path / "dir" if "sync" in settings else None, **settings)
    lengths: list[int] = []
    ticket = engine.push("arrivals", [(1,)])
    ticket.add_done_callback(lambda _: lengths.append(engine.call("length")))
    ticket.result(60)
    engine.teller.drain()
    assert lengths == [1]


def test_closing_waits_for_callbacks_that_are_due(
    settings: dict[str, Any], tmp_path: Path, open_engine: Callable[..., Engine]
) -> None:
    engine = open_engine(make_queue(), tmp_path / "dir" if "sync" in settings else None, **settings)
    told: list[Ticket] = []
    tickets = [engine.push("arrivals", [(n,)]) for n in range(5)]
    for ticket in tickets:
        ticket.add_done_callback(told.append)
    engine.close()
    assert told == tickets


def test_a_callback_may_close_the_engine(open_engine: Callable[..., Engine]) -> None:
    engine = open_engine(make_queue())
    closed = threading.Event()

    def close(_: Ticket) -> None:
        engine.close()
        closed.set()

    engine.push("arrivals", [(1,)]).add_done_callback(close)
    assert closed.wait(60)
    engine.close()  # returns when it is closed; in the callback it returned at once
    with pytest.raises(EngineClosed):
        engine.push("arrivals", [(2,)])


def test_a_callback_added_after_closing_is_called(open_engine: Callable[..., Engine]) -> None:
    engine = open_engine(make_queue())
    ticket = engine.push("arrivals", [(1,)])
    engine.close()
    told = threading.Event()
    ticket.add_done_callback(lambda _: told.set())
    assert told.wait(60)


def test_whoever_waits_at_closing_is_told_why(ward: App, open_engine: Callable[..., Engine]) -> None:
    engine = open_engine(ward)
    told: list[str] = []
    ticket = engine.push("orders", [(1, "risky drug")])
    ticket.add_done_callback(lambda t: told.append(str(t.error)))
    engine.close()
    assert len(told) == 1
    assert "the engine was closed before" in told[0]


def test_no_callback_no_thread(open_engine: Callable[..., Engine]) -> None:
    before = {t.name for t in threading.enumerate()}
    engine = open_engine(make_queue())
    engine.push("arrivals", [(1,)]).result()
    assert "tidegate-teller" not in {t.name for t in threading.enumerate()} - before


def test_the_thread_goes_when_there_is_nothing_to_call(
    open_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.txn.teller.IDLE_S", 0.001)
    engine = open_engine(make_queue())
    for n in range(300):  # it goes and comes; nobody is forgotten in between
        told = threading.Event()
        engine.push("arrivals", [(n,)]).add_done_callback(lambda _, told=told: told.set())  # type: ignore[misc]
        assert told.wait(60)
        if n % 3 == 0:
            time.sleep(0.0015)
