"""A target that does not want a batch: kept for ever, or put aside after so many tries; and what waits is bounded."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from recovering import make_numbers, push

import tidegate
from tidegate import Batch, Engine
from tidegate.connectors.callback import CallbackSink
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import Overloaded, SinkError, SinkRefused, TidegateError
from tidegate.storage.schema import Relation

Kill = Callable[[Engine], None]
MODES = ("weak", "strong", "effects")


def letters(engine: Engine) -> list[tuple[Any, ...]]:
    found = engine.query("SELECT position, procedure, stream, batch_id, rows, error FROM tidegate.dead_letters")
    return [tuple(row) for row in found]


def pump_all(delivery: Any) -> int:
    """Pump until nothing waits; returns how often it was refused meanwhile."""
    refusals = 0
    while len(delivery):
        try:
            delivery.pump()
        except SinkRefused:
            refusals += 1
    return refusals


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A target that does not want a total of 6."""
    path = tmp_path / "warehouse.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sums (total BIGINT CHECK (total <> 6))")
    connection.close()
    return path


def stored(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    rows = [total for (total,) in connection.execute("SELECT total FROM sums ORDER BY total")]
    connection.close()
    return rows


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_refused_becomes_a_dead_letter(
    mode: str, tmp_path: Path, warehouse: Path, killed: Kill
) -> None:
    engine = tidegate.open(make_numbers(mode), tmp_path / "d")
    delivery = engine.deliver("sums", SqlSink(f"sqlite:///{warehouse}", "sums"), name="w", tries=3)
    push(engine, 1, 5)
    assert pump_all(delivery) == 3  # all together, then alone: the third time is not raised any more
    assert (delivery.delivered, delivery.refused) == (4, 1)
    assert stored(warehouse) == [1, 3, 10, 15]
    ((position, procedure, stream, batch_id, rows, error),) = before = letters(engine)
    assert (position, procedure, stream, batch_id, rows) == (None, "delivery w", "sums", 3, '[{"total":6}]')
    assert "CHECK" in error
    killed(engine)
    with tidegate.open(make_numbers(mode), tmp_path / "d") as engine:
        assert letters(engine) == before  # from the log
        assert len(engine.deliver("sums", SqlSink(f"sqlite:///{warehouse}", "sums"), name="w")) == 0
    with tidegate.open(make_numbers(mode), tmp_path / "d") as engine:
        assert letters(engine) == before  # from the base


def test_without_tries_it_is_kept(tmp_path: Path, warehouse: Path) -> None:
    with tidegate.open(make_numbers(), tmp_path / "d") as engine:
        delivery = engine.deliver("sums", SqlSink(f"sqlite:///{warehouse}", "sums"), name="w")
        push(engine, 1, 3)
        for _ in range(4):
            with pytest.raises(SinkRefused):
                delivery.pump()
        assert len(delivery) == 3
        assert letters(engine) == []
        ((name, waiting, sink, error),) = engine.query("SELECT name, waiting, sink, error FROM tidegate.deliveries")
        assert (name, waiting, sink) == ("w", 3, "SqlSink")
        assert "CHECK" in error
        connection = sqlite3.connect(warehouse)
        connection.executescript("DROP TABLE sums; CREATE TABLE sums (total BIGINT)")
        connection.close()
        assert delivery.pump() == 3
        assert engine.query("SELECT error FROM tidegate.deliveries").scalar() is None


def test_a_target_that_is_away_costs_no_batch(tmp_path: Path) -> None:
    taken: list[int] = []
    away = [True]

    class Target:
        transactional = False
        at_once = 2

        def open(self, name: str, relation: Relation) -> None:
            pass

        def send(self, batches: Sequence[Batch]) -> None:
            if away[-1]:
                raise SinkError("nobody answers", sink="target")
            taken.extend(batch[0].total for batch in batches)

        def close(self) -> None:
            pass

    with tidegate.open(make_numbers(), tmp_path) as engine:
        delivery = engine.deliver("sums", Target(), tries=1)
        push(engine, 1, 3)
        for _ in range(5):
            with pytest.raises(SinkError):
                delivery.pump()
        away.append(False)
        assert delivery.pump() == 3
        assert taken == [1, 3, 6]
        assert letters(engine) == []


def test_in_the_background(tmp_path: Path) -> None:
    taken: list[int] = []

    def take(batch: Batch) -> None:
        if batch[0].total == 3:
            raise SinkRefused("no threes", sink="take")
        taken.append(batch[0].total)

    with tidegate.open(make_numbers(), tmp_path) as engine:
        delivery = engine.deliver("sums", CallbackSink(take), background=True, tries=2)
        push(engine, 1, 4)
        assert delivery.drain(60)
        assert taken == [1, 6, 10]
        assert [letter[3] for letter in letters(engine)] == [2]


@pytest.mark.parametrize("executor", ["serial", "manual", "threads"])
def test_what_waits_is_bounded(executor: Any, tmp_path: Path) -> None:
    with tidegate.open(make_numbers(), tmp_path, executor=executor, backlog=3) as engine:
        subscription = engine.subscribe_durably("sums", "reader", on_lag="block")
        for number in (1, 2, 3):
            engine.push("numbers", [(number,)], number).result()
        with pytest.raises(Overloaded, match=r"3 batches wait for subscriber 'reader', so numbers accepts no more"):
            engine.push("numbers", [(4,)], 4, timeout_s=0)
        subscription.ack(subscription.take(1))
        engine.push("numbers", [(4,)], 4).result()
        assert len(subscription) == 3


def test_feeding_stops_too(tmp_path: Path) -> None:
    with tidegate.open(make_numbers(), tmp_path, backlog=300) as engine:
        engine.subscribe_durably("sums", "reader", on_lag="block")
        with pytest.raises(Overloaded, match="wait for subscriber 'reader'"):
            engine.feed("numbers", [(n,) for n in range(1, 2_001)])
        assert engine.query("SELECT count(*) FROM seen").scalar() == 500  # whole chunks


def test_acknowledging_lets_a_waiting_push_in(tmp_path: Path) -> None:
    with tidegate.open(make_numbers(), tmp_path, executor="threads", backlog=1) as engine:
        subscription = engine.subscribe_durably("sums", "reader", on_lag="block")
        engine.push("numbers", [(1,)], 1).result()
        acknowledging = threading.Timer(0.2, lambda: subscription.ack(subscription.take(1)))
        acknowledging.start()
        engine.push("numbers", [(2,)], 2).result()
        acknowledging.join()


@pytest.mark.parametrize("tries", [0, -1, "3", True])
def test_tries_that_make_no_sense(tries: Any, tmp_path: Path) -> None:
    with (
        tidegate.open(make_numbers(), tmp_path) as engine,
        pytest.raises(TidegateError, match="takes a positive whole number or None"),
    ):
        engine.deliver("sums", CallbackSink(print), tries=tries)
