"""Halted dataflows: one key's failure parks that key alone; resuming and skipping are entries that a replay repeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tidegate import App, Batch, Engine, ProcedureFailed, Transaction
from tidegate.errors import DeclarationError, TidegateError
from tidegate.offline.verify import verify

Make = Callable[..., Engine]


class World:
    broken: ClassVar[set[int]] = set()


@pytest.fixture(autouse=True)
def broken() -> None:
    World.broken = {2}


def ward(recovery: Any = "weak") -> App:
    """readings (keyed) → check → checked → total, both writing a table that all keys share."""
    app = App("ward", recovery=recovery)
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, bed BIGINT NOT NULL, turn BIGINT NOT NULL)")
    app.table("CREATE TABLE turns (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("readings", "bed BIGINT NOT NULL, n BIGINT NOT NULL", border=True, key="bed")
    app.stream("checked", "bed BIGINT NOT NULL, n BIGINT NOT NULL")
    app.stream("plain", "bed BIGINT NOT NULL, n BIGINT NOT NULL", border=True)

    @app.procedure(inputs="readings", outputs="checked")
    def check(txn: Transaction, readings: Batch) -> None:
        if txn.key in World.broken:
            raise RuntimeError(f"bed {txn.key} is on fire")
        txn.emit("checked", readings)

    def count(txn: Transaction, rows: Batch) -> None:
        turn = txn.get("turns", 0)
        turn = 1 if turn is None else turn.n + 1
        txn.upsert("turns", (0, turn))
        for row in rows:
            txn.insert("seen", (row.n, row.bed, turn))

    @app.procedure(inputs="checked", writes=["seen", "turns"])
    def total(txn: Transaction, checked: Batch) -> None:
        count(txn, checked)

    @app.procedure(inputs="plain", writes=["seen", "turns"])
    def unkeyed(txn: Transaction, plain: Batch) -> None:
        if plain[0].bed in World.broken:
            raise RuntimeError("on fire")
        count(txn, plain)

    return app


def seen(engine: Engine) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT n, bed FROM seen ORDER BY turn")]


def test_one_key_that_fails_parks_that_key_and_the_others_go_on(engine_of: Make) -> None:
    engine = engine_of(ward())
    tickets = [engine.push("readings", [(bed, n)]) for n, bed in enumerate([1, 2, 1, 2, 3, 2], 10)]
    engine.run_until_idle()
    assert [n for n, _ in seen(engine)] == [10, 12, 14]
    assert [ticket.done for ticket in tickets] == [True, False, True, False, True, False]
    (halted,) = engine.halted()
    assert (halted.dataflow, halted.key, halted.procedure, halted.batch_id, halted.waiting) == (
        "check",
        2,
        "check",
        1,
        6,
    )
    assert "bed 2 is on fire" in halted.error
    assert "test_halts.py" in halted.trace
    assert [tuple(row) for row in halted.batches["readings"]] == [(2, 11)]
    (row,) = engine.query("SELECT key, rows, waiting FROM tidegate.halted")
    assert (row.key, json.loads(row.rows), row.waiting) == ("2", [{"bed": 2, "n": 11}], 6)
    World.broken.clear()
    engine.resume("check")
    engine.run_until_idle()
    assert seen(engine) == [(10, 1), (12, 1), (14, 3), (11, 2), (13, 2), (15, 2)], "and its own order is kept"
    assert all(ticket.done for ticket in tickets)
    assert not engine.halted()


def test_a_dataflow_without_keys_halts_as_a_whole(engine_of: Make) -> None:
    engine = engine_of(ward())
    for n, bed in enumerate([1, 2, 1]):
        engine.push("plain", [(bed, n)])
    engine.run_until_idle()
    assert seen(engine) == [(0, 1)]
    assert [(h.dataflow, h.key, h.waiting) for h in engine.halted()] == [("unkeyed", None, 2)]


def test_skipping_moves_the_batch_to_the_dead_letters_and_goes_on(engine_of: Make) -> None:
    engine = engine_of(ward())
    tickets = [engine.push("readings", [(2, n)]) for n in (1, 2, 3)]
    engine.push("plain", [(2, 4)])
    engine.run_until_idle()
    engine.skip("check")
    engine.run_until_idle()
    with pytest.raises(ProcedureFailed, match="bed 2 is on fire"):
        tickets[0].result()
    assert tickets[0].done
    assert [h.batch_id for h in engine.halted()] == [1, 2], "the next batch fails, too"
    World.broken.clear()
    engine.skip(key=2)
    engine.run_until_idle()
    assert seen(engine) == [(3, 2)]
    letters = engine.query("SELECT procedure, stream, batch_id, key, rows FROM tidegate.dead_letters").rows
    assert [tuple(letter) for letter in letters] == [
        ("check", "readings", 1, "2", '[{"bed":2,"n":1}]'),
        ("check", "readings", 2, "2", '[{"bed":2,"n":2}]'),
    ]
    assert [h.dataflow for h in engine.halted()] == ["unkeyed"]


def test_a_key_or_dataflow_that_is_not_halted_is_refused(open_engine: Make) -> None:
    engine = open_engine(ward())
    engine.push("readings", [(2, 1)])
    with pytest.raises(DeclarationError, match=r"resume: there is no halted dataflow 'chek'; did you mean 'check'"):
        engine.resume("chek")
    with pytest.raises(DeclarationError, match=r"check is not halted for key 7; it is for 2"):
        engine.skip("check", key=7)
    assert len(engine.halted()) == 1


def test_one_of_several_keys_is_resumed(engine_of: Make) -> None:
    World.broken = {1, 2}
    engine = engine_of(ward())
    for n, bed in enumerate([1, 2, 1, 2]):
        engine.push("readings", [(bed, n)])
    engine.run_until_idle()
    World.broken.clear()
    engine.resume("check", key=2)
    engine.run_until_idle()
    assert seen(engine) == [(1, 2), (3, 2)]
    assert [h.key for h in engine.halted()] == [1]


@pytest.mark.parametrize("checkpoint", [None, "halted", "after"])
def test_halts_skips_and_resumptions_survive_a_crash(
    way: tuple[Any, str], checkpoint: str | None, open_engine: Make, killed: Callable[[Engine], None], tmp_path: Path
) -> None:
    mode, executor = way
    World.broken = {1, 2}
    app = ward(mode)
    engine = open_engine(app, tmp_path / "d", executor=executor)
    for n, bed in enumerate([1, 2, 3, 1, 2, 3, 1]):
        engine.push("readings", [(bed, n)])
    engine.run_until_idle()
    if checkpoint == "halted":
        engine.checkpoint()
    World.broken.clear()
    engine.skip("check", key=1)
    engine.push("readings", [(2, 7), (1, 8)])
    engine.run_until_idle()
    if checkpoint == "after":
        engine.checkpoint()
    before = seen(engine), engine.halted(), engine.query("SELECT * FROM tidegate.dead_letters").rows
    killed(engine)
    World.broken = {1, 2, 3}  # what failed is not run again
    if mode != "effects":
        World.broken.clear()
    again = open_engine(app, tmp_path / "d", executor=executor)
    again.run_until_idle()
    assert (seen(again), again.halted(), again.query("SELECT * FROM tidegate.dead_letters").rows) == before
    World.broken.clear()
    again.resume()
    again.run_until_idle()
    assert sorted(seen(again)) == [(n, b) for n, b in enumerate([1, 2, 3, 1, 2, 3, 1, 2, 1]) if n]
    again.close()
    assert verify(app, tmp_path / "d").same


def test_a_dead_letter_is_requeued_once_under_a_new_id(
    way: tuple[Any, str], open_engine: Make, killed: Callable[[Engine], None], tmp_path: Path
) -> None:
    mode, executor = way
    app = ward(mode)
    engine = open_engine(app, tmp_path / "d", executor=executor)
    for n in (1, 2):
        engine.push("readings", [(2, n)])
    engine.run_until_idle()
    World.broken.clear()
    engine.skip()
    engine.run_until_idle()
    (letter,) = engine.journal.dead_letters
    ticket = engine.requeue(str(letter.position))
    assert ticket.result(60) is None
    assert ticket.batch_ids == [3]
    assert seen(engine) == [(2, 2), (1, 2)]
    assert not engine.journal.dead_letters
    with pytest.raises(DeclarationError, match=r"requeue: there is no dead letter at position '1.0'"):
        engine.requeue(str(letter.position))
    killed(engine)
    again = open_engine(app, tmp_path / "d", executor=executor)
    assert seen(again) == [(2, 2), (1, 2)]
    assert not again.journal.dead_letters
    again.close()
    assert verify(app, tmp_path / "d").same


def test_what_others_have_worked_on_is_not_requeued(open_engine: Make) -> None:
    app = App("two")
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)
    app.stream("passed", "n BIGINT NOT NULL")

    @app.procedure(inputs="numbers", outputs="passed", writes=["t"])
    def first(txn: Transaction, numbers: Batch) -> None:
        txn.insert("t", numbers[0])
        txn.emit("passed", numbers)

    @app.procedure(inputs="numbers", on_failure="dead_letter")
    def second(txn: Transaction, numbers: Batch) -> None:
        raise RuntimeError("no")

    @app.procedure(inputs="passed", on_failure="dead_letter")
    def third(txn: Transaction, passed: Batch) -> None:
        raise RuntimeError("never")

    engine = open_engine(app)
    engine.push("numbers", [(1,)])
    by_procedure = {letter.procedure: str(letter.position) for letter in engine.journal.dead_letters}
    with pytest.raises(TidegateError, match=r"first, second read it, .* push what is to be done again yourself"):
        engine.requeue(by_procedure["second"])
    with pytest.raises(TidegateError, match=r"on passed can't be requeued: its stream is fed by a procedure"):
        engine.requeue(by_procedure["third"])
    assert len(engine.journal.dead_letters) == 2
