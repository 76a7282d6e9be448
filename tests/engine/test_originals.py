"""A batch that is pushed again: its ticket tells what became of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, either
from tidegate.testing import ManualClock
from tidegate.txn.journal import KEPT_ABORTS


def make(fixed: bool = False) -> App:
    app = App("originals")
    app.stream("numbers", "n INTEGER NOT NULL", border=True)
    app.stream("keyed", "k INTEGER NOT NULL", border=True, key="k")
    app.stream("fragile", "n INTEGER", border=True)
    for name in ("left_in", "right_in", "one", "other"):
        app.stream(name, "n INTEGER", border=True)
    app.stream("answers", "yes BOOLEAN", border=True, deadline_s=60, default={"yes": False})
    app.stream("asking", "n INTEGER", border=True)
    app.stream("asked", "n INTEGER")

    @app.procedure(inputs="numbers", on_failure="dead_letter")
    def count(txn: Any, numbers: Any) -> None:
        if numbers[0].n < 0:
            txn.abort("less than nothing")
        if numbers[0].n == 0:
            raise ValueError("nothing at all")

    @app.procedure(inputs="keyed")
    def by_key(txn: Any, keyed: Any) -> None:
        if txn.key % 2:
            txn.abort(f"{txn.key} is odd")

    @app.procedure(inputs="fragile")
    def break_down(txn: Any, fragile: Any) -> None:
        raise RuntimeError("broken")

    @app.procedure(inputs=["left_in", "right_in"])
    def join(txn: Any, left_in: Any, right_in: Any) -> None: ...

    @app.procedure(inputs=either("one", "other"))
    def any_of(txn: Any, one: Any, other: Any) -> None: ...

    @app.procedure(inputs="asking", outputs="asked")
    def ask(txn: Any, asking: Any) -> None:
        txn.emit("asked", asking)

    @app.procedure(inputs=["asked", "answers"])
    def decide(txn: Any, asked: Any, answers: Any) -> None: ...

    app.nested(ask, decide, name="asking_people")
    return app


def again(engine: Any, stream: str, rows: list[Any], batch_id: int) -> tuple[str, str]:
    ticket = engine.push(stream, rows, batch_id)
    assert ticket.duplicate
    (original,) = ticket.original
    assert original.batch_id == batch_id
    return original.state, original.reason or ""


def test_every_state_is_told() -> None:
    with tidegate.open(make()) as engine:
        assert engine.push("numbers", [(1,)], 1).original == []
        for batch_id, n in ((2, -1), (3, 0)):
            engine.push("numbers", [(n,)], batch_id)
        assert again(engine, "numbers", [(1,)], 1) == ("done", "")
        assert again(engine, "numbers", [(-1,)], 2) == ("aborted", "count: less than nothing")
        state, reason = again(engine, "numbers", [(0,)], 3)
        assert (state, "nothing at all" in reason) == ("dead_letter", True)
        for batch_id in (1, 2):
            engine.push("fragile", [(1,)], batch_id)
        state, reason = again(engine, "fragile", [(1,)], 1)
        assert (state, "halted in front of it" in reason, "broken" in reason) == ("halted", True, True)
        assert again(engine, "fragile", [(1,)], 2)[0] == "halted"
        engine.push("left_in", [(1,)], 5)
        assert again(engine, "left_in", [(1,)], 5) == ("waiting", "join waits for batch 5 on right_in")
        engine.push("right_in", [(1,)], 5)
        assert again(engine, "left_in", [(1,)], 5) == ("done", "")
        engine.push("one", [(1,)], 5)
        assert again(engine, "one", [(1,)], 5)[0] == "unknown"
        moved = engine.push("numbers", [(1,)], source="s", offset=1, after=None)
        assert moved.original == []
        repeated = engine.push("numbers", [(1,)], source="s", offset=1, after=None)
        assert [o.state for o in repeated.original] == ["unknown"]
        assert "offset of its source" in str(repeated.original[0].reason)


def test_what_waits_for_a_person_is_told_and_looked_at_anew() -> None:
    with tidegate.open(make(), clock=ManualClock()) as engine:
        engine.push("asking", [(1,)], 1)
        repeat = engine.push("asking", [(1,)], 1)
        assert [o.state for o in repeat.original] == ["waiting"]
        assert "waits for its batch on stream answers" in str(repeat.original[0].reason)
        engine.push("answers", [(True,)], 1)
        assert [o.state for o in repeat.original] == ["done"]
        engine.push("answers", [(True,)], 2)
        assert again(engine, "answers", [(True,)], 2)[0] == "waiting"  # nobody has asked yet


def test_each_key_has_its_own_and_a_part_may_be_new() -> None:
    with tidegate.open(make()) as engine:
        engine.push("keyed", [(1,), (2,)], 1)
        ticket = engine.push("keyed", [(1,), (2,), (3,)], 1)
        assert not ticket.duplicate
        assert {o.key: o.state for o in ticket.original} == {1: "aborted", 2: "done"}


@pytest.mark.parametrize("cleanly", [True, False])
def test_it_is_known_after_a_restart(tmp_path: Path, cleanly: bool) -> None:
    engine = tidegate.open(make(), tmp_path)
    for batch_id, n in ((1, -1), (2, 0), (3, 5)):
        engine.push("numbers", [(n,)], batch_id)
    engine.push("asking", [(1,)], 1)
    assert engine.durable is not None
    engine.durable.sync()
    if cleanly:
        engine.close()
    else:
        engine.abandon()
    with tidegate.open(make(), tmp_path) as engine:
        states = [again(engine, "numbers", [(n,)], batch_id)[0] for batch_id, n in ((1, -1), (2, 0), (3, 5))]
        assert states == ["aborted", "dead_letter", "done"]
        assert again(engine, "asking", [(1,)], 1)[0] == "waiting"


def test_what_is_forgotten_is_not_made_up() -> None:
    with tidegate.open(make()) as engine:
        engine.push("numbers", [(-1,)], 1)
        engine.feed("numbers", [(-2,)] * KEPT_ABORTS)
        state, reason = again(engine, "numbers", [(-1,)], 1)
        assert (state, "it may be an older one" in reason) == ("unknown", True)
