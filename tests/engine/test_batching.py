"""Batchers: which rows become one batch, what the source's offset says after a crash, and what a refusal leaves behind."""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, DataError, DeclarationError, Engine, Overloaded, Ticket, TidegateError, Transaction
from tidegate.errors import EngineClosed
from tidegate.testing import ManualClock

DAY = dt.datetime(2024, 5, 1)


@cache
def make_app(key: str | None = None) -> App:
    """Remembers which rows came in which batch."""
    app = App("readings")
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, batch BIGINT NOT NULL)")
    app.stream(
        "readings",
        "n BIGINT NOT NULL, taken_at TIMESTAMP NOT NULL, tick INTEGER NOT NULL, day DATE",
        border=True,
        key=key,
    )

    @app.procedure(inputs="readings", writes=["seen"])
    def see(txn: Transaction, readings: Batch) -> None:
        for reading in readings:
            txn.insert("seen", (reading.n, readings.id))

    return app


def row(n: int, seconds: float = 0, tick: int = 0) -> tuple[Any, ...]:
    return n, DAY + dt.timedelta(seconds=seconds), tick, None


def batches(engine: Engine) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for n, batch in engine.query("SELECT n, batch FROM seen ORDER BY batch, n").rows:
        found.setdefault(batch, []).append(n)
    return list(found.values())


# ---- which rows become one batch


def test_by_count() -> None:
    with tidegate.open(make_app()) as engine:
        with engine.batcher("readings", count=3) as batcher:
            assert batcher.extend(row(n) for n in range(8)) == 8
            assert (len(batcher), batcher.batches) == (2, 2)
        assert batches(engine) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_by_interval_of_event_time() -> None:
    #   s   0.1 0.9 │ 1.0 │ 3.5 0.2 3.9 │ 4.0     0.2 comes late: it goes with the batch that is open
    with tidegate.open(make_app()) as engine:
        with engine.batcher("readings", interval="1s", on="taken_at") as batcher:
            for n, seconds in enumerate([0.1, 0.9, 1.0, 3.5, 0.2, 3.9, 4.0]):
                batcher.add(row(n, seconds))
        assert batches(engine) == [[0, 1], [2], [3, 4, 5], [6]]


def test_by_interval_of_an_integer_column_below_zero_too() -> None:
    with tidegate.open(make_app()) as engine:
        with engine.batcher("readings", interval=10, on="tick") as batcher:
            for n, tick in enumerate([-15, -11, -10, -1, 0, 9, 10]):
                batcher.add(row(n, tick=tick))
        assert batches(engine) == [[0, 1], [2, 3], [4, 5], [6]]


def test_by_delay_of_the_oldest_row() -> None:
    clock = ManualClock()
    with tidegate.open(make_app(), clock=clock) as engine, engine.batcher("readings", delay="2s") as batcher:
        batcher.add(row(0))
        clock.advance(1.5)
        batcher.add(row(1))
        engine.tick()
        assert batches(engine) == []
        clock.advance(0.5)
        engine.tick()
        assert batches(engine) == [[0, 1]]
        batcher.add(row(2))
        clock.advance(5)
        batcher.add(row(3))  # finds that the one before has waited too long
        assert batches(engine) == [[0, 1], [2]]
        clock.advance(2)
        batcher.tick()
        assert batches(engine) == [[0, 1], [2], [3]]


def test_a_keyed_stream_gets_a_batch_per_key() -> None:
    with tidegate.open(make_app(key="tick")) as engine:
        tickets: list[Ticket] = []
        with engine.batcher("readings", count=4, on_batch=tickets.append) as batcher:
            batcher.extend(row(n, tick=n % 2) for n in range(8))
        assert [ticket.batch_ids for ticket in tickets] == [[1, 1], [2, 2]]
        assert batches(engine) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("seed", range(3))
def test_batches_are_runs_of_rows_as_the_definition_says(seed: int) -> None:
    """Random rows, pauses and policies, against the definition in plain words."""
    dice = random.Random(seed)
    clock = ManualClock()
    wanted: list[list[int]] = []
    pushed = 0
    n = 0
    with tidegate.open(make_app(), clock=clock) as engine:
        for _ in range(60):
            count = dice.choice([None, 1, 2, 5])
            interval = dice.choice([None, 1, 7, 20])
            delay_s = dice.choice([None, 1.0, 2.5])
            if count is interval is delay_s is None:
                continue
            batcher = engine.batcher(
                "readings",
                count=count,
                interval=interval,
                on=None if interval is None else "tick",
                delay=None if delay_s is None else dt.timedelta(seconds=delay_s),
            )
            complete, opened, number = True, 0.0, 0
            for _ in range(dice.randrange(30)):
                clock.advance(dice.choice([0, 0.1, 0.9, 1.0]))
                tick = dice.randrange(-30, 30)
                now, its = clock.monotonic(), tick // (interval or 1)
                waited = delay_s is not None and now - opened >= delay_s
                if complete or waited or (interval is not None and its > number):
                    wanted.append([])
                    opened, number = now, its
                wanted[-1].append(n)
                complete = len(wanted[-1]) == count
                batcher.add(row(n, tick=tick))
                n += 1
            batcher.close()
            pushed += batcher.batches
        assert batches(engine) == wanted
        assert pushed == len(wanted) > 50


# ---- real time


def threads() -> set[threading.Thread]:
    """Those of this process, but for the one that looks for procedures that do not end."""
    return {thread for thread in threading.enumerate() if thread.name != "tidegate-lookout"}


def test_a_thread_pushes_what_waits_and_ends() -> None:
    before = threads()
    pushed = threading.Event()
    with tidegate.open(make_app()) as engine:
        batcher = engine.batcher("readings", delay="20ms", on_batch=lambda ticket: pushed.set())
        assert threads() == before
        for n in range(3):
            pushed.clear()
            batcher.add(row(n))
            assert pushed.wait(20)
        for thread in threads() - before:
            thread.join(20)
        assert threads() == before
        batcher.add(row(3))
        batcher.close()
        assert threads() == before
        assert [n for batch in batches(engine) for n in batch] == [0, 1, 2, 3]


def test_what_the_thread_ran_into_is_told() -> None:
    def refuse(ticket: Ticket) -> None:
        refused.set()
        raise RuntimeError("no")

    refused = threading.Event()
    with tidegate.open(make_app()) as engine:
        batcher = engine.batcher("readings", delay="1ms", on_batch=refuse)
        batcher.add(row(0))
        assert refused.wait(20)
        with pytest.raises(RuntimeError, match="no"):
            batcher.close()
        assert batches(engine) == [[0]]


def test_threads_may_share_it() -> None:
    with tidegate.open(make_app(), executor="threads", workers=2, capacity=2) as engine:
        with engine.batcher("readings", count=7, delay="1ms") as batcher:
            threads = [
                threading.Thread(target=lambda k=k: [batcher.add(row(100 * k + i)) for i in range(100)])
                for k in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        engine.run_until_idle()
        assert sorted(n for batch in batches(engine) for n in batch) == sorted(
            100 * k + i for k in range(3) for i in range(100)
        )


# ---- exactly once


@pytest.mark.parametrize("key", [None, "tick"])
def test_a_source_goes_on_where_it_was(key: str | None, tmp_path: Path) -> None:
    """The process dies again and again, with rows still in the batcher; every row is there once in the end."""
    rows = [row(n, tick=n % 3) for n in range(50)]
    for crash_after in (4, 11, 12, 30, 50):
        engine = tidegate.open(make_app(key), tmp_path / "db")
        position = engine.position("feed")
        batcher = engine.batcher("readings", count=5, source="feed")
        for n in range(0 if position is None else position + 1, crash_after):
            batcher.add(rows[n], offset=n)
        assert engine.durable is not None
        engine.durable.sync()
        engine.abandon()
    with tidegate.open(make_app(key), tmp_path / "db") as engine:
        assert engine.position("feed") == 49
        assert sorted(n for batch in batches(engine) for n in batch) == list(range(50))


def test_offset_and_source_go_together() -> None:
    with tidegate.open(make_app()) as engine:
        with engine.batcher("readings", count=2) as plain, pytest.raises(TidegateError, match="no source"):
            plain.add(row(0), offset=1)
        with engine.batcher("readings", count=2, source="feed") as sourced:
            with pytest.raises(TidegateError, match="without an offset"):
                sourced.add(row(0))
            assert sourced.extend([row(0), row(1), row(2)], offsets=[10, 11, 12]) == 3
            assert engine.position("feed") == 11
        assert engine.position("feed") == 12


# ---- refusals


def test_a_row_that_does_not_fit_leaves_the_others() -> None:
    with tidegate.open(make_app()) as engine:
        with engine.batcher("readings", count=3, source="feed") as batcher:
            batcher.add(row(0), offset=0)
            with pytest.raises(
                DataError, match=r"readings\.taken_at .*'soon'.*offset 1 was not taken; the waiting rows \(1\)"
            ) as e:
                batcher.add((1, "soon", 0, None), offset=1)
            assert (e.value.relation, e.value.column) == ("readings", "taken_at")  # type: ignore[attr-defined]
            with pytest.raises(DataError) as e:
                batcher.extend([row(1), row(2), row(3), (4,)], offsets=range(4))
            assert e.value.added == 3  # type: ignore[attr-defined]
        assert batches(engine) == [[0, 1, 2], [3]]


def test_back_pressure_reaches_add() -> None:
    with tidegate.open(make_app(), executor="manual", capacity=1) as engine:
        batcher = engine.batcher("readings", count=2)
        batcher.extend([row(0), row(1), row(2), row(3)])  # the second batch is complete, but there is no room
        assert (batcher.batches, len(batcher)) == (1, 2)
        for _ in range(2):
            with pytest.raises(Overloaded):
                batcher.add(row(4))
        with pytest.raises(Overloaded):
            batcher.flush()
        engine.run_until_idle()
        batcher.add(row(4))
        engine.run_until_idle()
        batcher.close()
        engine.run_until_idle()
        assert batches(engine) == [[0, 1], [2, 3], [4]]


def test_a_batch_that_is_undone_says_so_in_its_ticket() -> None:
    with tidegate.open(make_app()) as engine:
        tickets: list[Ticket] = []
        with engine.batcher("readings", count=2, on_batch=tickets.append) as batcher:
            batcher.extend([row(0), row(1), row(1), row(2), row(3)])
            last = batcher.flush()
            assert last is not None
            assert last.error is None
            assert batcher.flush() is None
        assert [ticket.error is None for ticket in tickets] == [True, False, True]
        assert batches(engine) == [[0, 1], [3]]


def test_closed() -> None:
    with tidegate.open(make_app()) as engine:
        batcher = engine.batcher("readings", count=2)
        batcher.close()
        batcher.close()
        with pytest.raises(TidegateError, match="is closed"):
            batcher.add(row(0))
        with pytest.raises(TidegateError, match="is closed"):
            batcher.flush()


def test_an_engine_that_closes_first_says_what_it_leaves_behind(caplog: pytest.LogCaptureFixture) -> None:
    engine = tidegate.open(make_app())
    batcher = engine.batcher("readings", count=2)
    batcher.add(row(0))
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        engine.close()
    assert "1 rows wait" in caplog.text
    with pytest.raises(EngineClosed):
        batcher.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "say when a batch is complete"),
        ({"count": 0}, "positive whole number"),
        ({"count": 2.0}, "positive whole number"),
        ({"interval": "1s"}, "go together"),
        ({"count": 1, "on": "taken_at"}, "go together"),
        ({"interval": 5, "on": "taken_at"}, "'1s' or a timedelta"),
        ({"interval": "1s", "on": "tick"}, "whole number in its unit"),
        ({"interval": 0, "on": "tick"}, "positive"),
        ({"interval": "1d", "on": "day"}, "may be NULL"),
        ({"delay": 5}, "length of time"),
        ({"delay": "0s"}, "length of time"),
        ({"delay": "soon"}, "not a length of time"),
    ],
)
def test_what_can_not_be_is_refused(given: dict[str, Any], message: str) -> None:
    with tidegate.open(make_app()) as engine, pytest.raises(DeclarationError, match=message):
        engine.batcher("readings", **given)


def test_only_streams_that_take_batches_from_outside(ward: App) -> None:
    with tidegate.open(ward) as engine, pytest.raises(tidegate.BatchError, match="answers questions"):
        engine.batcher("decisions", count=1)
    with tidegate.open(make_app()) as engine:
        with pytest.raises(TidegateError, match="border stream"):
            engine.batcher("seen", count=1)
        with pytest.raises(DataError, match="no column 'when'"):
            engine.batcher("readings", interval="1s", on="when")
