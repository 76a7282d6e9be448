"""Batches never change: whatever one reader does with a batch, a window or a result, the next one sees what was committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate.windows import mean

Make = Callable[..., Engine]

GIVEN = [(1, [1, 2], {"a": [1]}, bytearray(b"x")), (2, [3], [4], b"y")]
KEPT = ((1, (1, 2), '{"a":[1]}', b"x"), (2, (3,), "[4]", b"y"))


def meddle(batch: Batch) -> None:
    """Everything that would change a batch, were it a list of lists."""
    rows: Any = batch.rows
    for change in (
        lambda: rows.clear(),
        lambda: rows.append(rows[0]),
        lambda: rows.sort(),
        lambda: rows.__setitem__(0, None),
        lambda: rows[0].__setitem__(0, None),
        lambda: rows[0][1].append(9),
        lambda: rows[0][2].update(b=1),
        lambda: rows[0][3].extend(b"z"),
        lambda: setattr(batch, "rows", ()),
        lambda: setattr(batch, "id", 99),
        lambda: setattr(batch, "key", 99),
        lambda: setattr(rows[0], "n", 99),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()
    batch.column("n").clear()
    mine = list(rows)
    mine.clear()


def passing() -> App:
    """given → first → passed → second, both of which meddle with what they get."""
    app = App("passing")
    app.table("CREATE TABLE seen (place VARCHAR, n BIGINT, l BIGINT[], j JSON, b BLOB, PRIMARY KEY (place, n))")
    columns = "n BIGINT, l BIGINT[], j JSON, b BLOB"
    app.stream("given", columns, border=True)
    app.stream("passed", columns)
    app.stream("again", columns)

    @app.procedure(inputs="given", outputs="passed")
    def first(txn: Transaction, given: Batch) -> None:
        meddle(given)
        txn.emit("passed", list(given))

    @app.procedure(inputs="passed", outputs="again", writes=["seen"])
    def second(txn: Transaction, passed: Batch) -> None:
        meddle(passed)
        for row in passed:
            txn.insert("seen", ("second", *row))
            txn.emit("again", [row])

    @app.procedure(inputs="again", writes=["seen"])
    def third(txn: Transaction, again: Batch) -> None:
        for row in again:
            txn.insert("seen", ("third", *row))

    return app


def seen(engine: Engine, place: str) -> tuple[Any, ...]:
    rows = engine.query("SELECT n, l, j, b FROM seen WHERE place = ? ORDER BY n", place).rows
    return tuple(map(tuple, rows))


@pytest.mark.parametrize("enter", ["push", "feed", "source", "with an id"])
def test_what_one_procedure_does_to_its_batch_the_next_does_not_see(engine_of: Make, enter: str) -> None:
    engine = engine_of(passing())
    if enter == "push":
        engine.push("given", GIVEN).result(30)
    elif enter == "feed":
        engine.feed("given", GIVEN, size=2)
    elif enter == "source":
        engine.feed("given", GIVEN, size=2, source="s", offset=1)
    else:
        engine.push("given", GIVEN, 7).result(30)
    engine.run_until_idle()
    assert seen(engine, "second") == seen(engine, "third") == KEPT


def test_a_pushed_list_is_the_callers_own(open_engine: Make) -> None:
    engine = open_engine(passing(), executor="manual")
    given = [[1, [1, 2], {"a": [1]}, bytearray(b"x")], [2, [3], [4], b"y"]]
    ticket = engine.push("given", given)
    given[0][1].append(9)  # type: ignore[attr-defined]
    given[0][2]["a"] = 0  # type: ignore[index]
    given[0][3].extend(b"z")  # type: ignore[attr-defined]
    given[0][0] = 7
    given.clear()
    engine.run_until_idle()
    ticket.result()
    assert seen(engine, "second") == KEPT


@pytest.mark.parametrize("mode", ["weak", "strong", "effects"])
def test_what_a_subscriber_does_no_other_sees_not_even_after_a_restart(tmp_path: Path, mode: str) -> None:
    app = passing()
    app.recovery = mode  # type: ignore[assignment]
    with tidegate.open(app, tmp_path) as engine:
        live = engine.subscribe("passed"), engine.subscribe("passed")
        durable = engine.subscribe_durably("passed", "kept")
        engine.push("given", GIVEN).result(30)
        for subscription in (*live, durable):
            batch = subscription.get()
            assert batch is not None
            assert batch.rows == KEPT
            meddle(batch)
    with tidegate.open(app, tmp_path) as engine:
        (batch,) = engine.subscribe_durably("passed", "kept").peek()
        assert batch.rows == KEPT
        meddle(batch)
        engine.push("given", [(3, *KEPT[0][1:])]).result(30)
    with tidegate.open(app, tmp_path) as engine:
        assert [batch.rows for batch in engine.subscribe_durably("passed", "kept").peek()] == [
            KEPT,
            ((3, *KEPT[0][1:]),),
        ]


def test_what_is_done_to_a_question_does_not_reach_who_decides(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    ticket = engine.push("orders", [(1, "risky one"), (1, "risky two")])
    engine.run_until_idle()
    (question,) = engine.questions()
    rows: Any = question.batches["risky"].rows
    with pytest.raises(AttributeError):
        rows.clear()
    question.batches.clear()
    engine.push("decisions", [(1, True)], question.batch_id)
    engine.run_until_idle()
    ticket.result(30)
    assert engine.query("SELECT count(*) FROM meds").scalar() == 2


@pytest.mark.parametrize("retries", [0, 1])
def test_what_a_procedure_does_to_its_window_stays_there(engine_of: Make, retries: int) -> None:
    """A second attempt sees what the first one saw, and the next execution what was committed."""
    app = App("windows")
    app.stream("values", "n BIGINT NOT NULL, v DOUBLE NOT NULL", border=True)
    app.table("CREATE TABLE found (id BIGINT PRIMARY KEY, plain BIGINT, held DOUBLE, computed DOUBLE)")
    failed: list[int] = []

    @app.procedure(
        inputs="values",
        writes=["found"],
        retries=retries,
        windows={
            "plain": window("values", count=2, slide=1),
            "held": window("values", count=2, slide=1, by="n"),
            "computed": window("values", count=2, slide=1, by="n", compute={"mean": mean("v")}),
        },
    )
    def work(txn: Transaction, values: Batch) -> None:
        plain, held, computed = (txn.window(name) for name in ("plain", "held", "computed"))
        if held.windows:
            arrays = held.windows[0]["v"], held.windows[0].columns["n"], computed.results["mean"]
            txn.insert(
                "found", (txn.batch_id, sum(r.n for r in plain.rows), float(arrays[0].sum()), float(arrays[2].sum()))
            )
            for array in arrays:
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 99
        for rows in (plain.rows, plain.added, plain.expired, held.rows, held.windows, held.late, computed.results.rows):
            assert type(rows) is tuple
        with pytest.raises(AttributeError):
            plain.expired = ()
        if len(failed) < retries:
            failed.append(1)
            raise RuntimeError("once more")

    engine = engine_of(app)
    for i in range(4):
        engine.push("values", [(1, float(i))]).result(30)
    assert [tuple(row) for row in engine.query("FROM found ORDER BY id")] == [
        (i + 2, 2, 2.0 * i + 1, i + 0.5) for i in range(3)
    ]


def test_rows_emitted_one_by_one_make_one_batch(engine_of: Make) -> None:
    """The procedure's own SQL sees them in between; a second attempt begins anew."""
    app = App("one_by_one")
    app.stream("events", "n BIGINT", border=True)
    app.stream("out", "n BIGINT")
    counted: list[int] = []

    @app.procedure(inputs="events", outputs="out", retries=1)
    def work(txn: Transaction, events: Batch) -> None:
        for i in range(5):
            txn.emit("out", n=i)
            counted.append(txn.execute("SELECT count(*) FROM out").scalar())
        txn.emit("out", [])
        txn.emit("out", [(5,), (6,)])
        if len(counted) == 5:
            raise RuntimeError("once more")

    engine = engine_of(app)
    subscription = engine.subscribe("out")
    engine.push("events", [(1,)]).result(30)
    batch = subscription.get()
    assert batch is not None
    assert batch.rows == tuple((i,) for i in range(7))
    assert counted == [1, 2, 3, 4, 5] * 2
