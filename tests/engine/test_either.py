"""Procedures that run for each batch of either of their inputs, in a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, DeclarationError, either, partition, window, windows
from tidegate.offline.verify import verify
from tidegate.testing import ManualClock

EXECUTORS = ("serial", "threads", "manual")


def shop(recovery: str = "weak", *, key: str | None = None, broken: set[int] | None = None) -> App:
    """Orders are looked at first, so one of the two inputs is an interior stream."""
    app = App("shop", recovery=recovery)  # type: ignore[arg-type]
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, orders VARCHAR, payments VARCHAR)")
    app.stream("orders", "k INTEGER, id INTEGER", border=True, key=key)
    app.stream("payments", "k INTEGER, id INTEGER", border=True, key=key)
    app.stream("large", "k INTEGER, id INTEGER")
    app.stream("told", "n BIGINT, what VARCHAR")
    app.stream("again", "n BIGINT, what VARCHAR")

    @app.procedure(inputs="orders", outputs="large")
    def look(txn: Any, orders: Any) -> None:
        txn.emit("large", [order for order in orders if order.id > 5])

    @app.procedure(inputs=either("large", "payments"), outputs="told", writes=["seen"])
    def match(txn: Any, large: Any, payments: Any) -> None:
        if broken and txn.batch_id in broken:
            raise OSError("out of order")
        if any(payment.id == 13 for payment in payments):
            txn.abort("unlucky")
        ids = [json.dumps([row.id for row in batch]) for batch in (large, payments)]
        txn.insert("seen", (txn.batch_id, *ids))
        txn.emit("told", [(txn.batch_id, " ".join(ids))])

    @app.procedure(inputs="told", outputs="again")
    def pass_on(txn: Any, told: Any) -> None:
        assert told.id == txn.batch_id
        txn.emit("again", told)

    return app


def seen(engine: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT * FROM seen ORDER BY n").rows]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_it_runs_for_each_batch_of_either_stream_in_order_of_arrival(executor: str) -> None:
    with tidegate.open(shop(), executor=executor) as engine:
        again = engine.subscribe("again")
        engine.push("orders", [(1, 7), (1, 2)])
        engine.push("payments", [(1, 7)], 70)  # the ids of the two streams have nothing to do with each other
        engine.push("orders", [(1, 3)])  # too small: look emits nothing
        refused = engine.push("payments", [(1, 13)], 71)
        engine.push("payments", [(2, 8)], 90)
        engine.push("orders", [(1, 9)])
        engine.run_until_idle()
        assert seen(engine) == [(1, "[7]", "[]"), (2, "[]", "[7]"), (5, "[]", "[8]"), (6, "[9]", "[]")]
        assert [(batch.id, batch[0].n) for batch in again] == [(1, 1), (2, 2), (5, 5), (6, 6)]
        assert "unlucky" in str(refused.error)
        (abort,) = engine.query("SELECT procedure, batch_id FROM tidegate.aborts").rows
        assert tuple(abort) == ("match", 4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_it_goes_by_key(executor: str) -> None:
    with tidegate.open(shop(key="k"), executor=executor) as engine:
        engine.push("orders", [(1, 7), (2, 8)])  # one batch per key, each with its own place in the order
        engine.push("payments", [(2, 20), (1, 10)])
        engine.run_until_idle()
        assert seen(engine) == [(1, "[7]", "[]"), (2, "[8]", "[]"), (3, "[]", "[20]"), (4, "[]", "[10]")]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_one_border_batch_brings_on_both_inputs_comes_together(executor: str) -> None:
    app = App("both")
    app.stream("numbers", "n INTEGER", border=True)
    app.stream("odd", "n INTEGER")
    app.stream("told", "odd INTEGER, numbers INTEGER")

    @app.procedure(inputs="numbers", outputs="odd")
    def pick(txn: Any, numbers: Any) -> None:
        txn.emit("odd", [row for row in numbers if row.n % 2])

    @app.procedure(inputs=either("odd", "numbers"), outputs="told")
    def tell(txn: Any, odd: Any, numbers: Any) -> None:
        txn.emit("told", [(len(odd), len(numbers))])

    with tidegate.open(app, executor=executor) as engine:
        told = engine.subscribe("told")
        engine.push("numbers", [(1,), (2,), (3,)])
        engine.push("numbers", [(2,)])
        engine.run_until_idle()
        assert [tuple(batch[0]) for batch in told] == [(2, 3), (0, 1)]


def test_feed_and_sql_and_triggers_see_what_came() -> None:
    app = App("fed")
    app.table("CREATE TABLE counts (id INTEGER PRIMARY KEY, a BIGINT, b BIGINT, fired BIGINT)")
    app.stream("a", "n INTEGER", border=True)
    app.stream("b", "n INTEGER", border=True)

    @app.procedure(
        inputs=either("a", "b"),
        writes=["counts"],
        windows={
            "last_two": window("a", batches=2, slide=1),
            "sums": window("b", count=2, compute={"sum": windows.sum("n")}),
        },
    )
    def count(txn: Any, a: Any, b: Any) -> None:
        txn.execute(
            "INSERT INTO counts VALUES (1, (SELECT count(*) FROM a), (SELECT count(*) FROM b), 0) ON CONFLICT (id) "
            "DO UPDATE SET a = a + excluded.a, b = b + excluded.b"
        )
        slid.append((len(txn.window("last_two").rows), [row.sum for row in txn.window("sums").results]))

    app.trigger("a", "UPDATE counts SET fired = fired + (SELECT count(*) FROM a)")
    slid: list[Any] = []
    with tidegate.open(app) as engine:
        engine.push("b", [(4,)])
        engine.feed("a", [(n,) for n in range(5)])
        engine.push("b", [(5,), (6,)])
        assert engine.query("SELECT a, b, fired FROM counts").rows == [(5, 3, 5)]
    # a window stays as it is when nothing came on its stream
    assert slid == [(0, []), (1, []), (2, []), (2, []), (2, []), (2, []), (2, [9])]


# ---- crashes, halts, reopening


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_it_is_recovered_and_verified(recovery: str, executor: str, tmp_path: Path) -> None:
    engine = tidegate.open(shop(recovery), tmp_path / "shop", executor=executor)
    waiting = engine.subscribe_durably("again", "reader")
    tickets = []
    for n in range(6):
        tickets.append(engine.push("orders", [(1, n + 3)]))
        tickets.append(engine.push("payments", [(1, n + 10)], 100 + n))
        if n == 3:
            engine.checkpoint()
    for ticket in tickets:
        try:
            ticket.result()
        except tidegate.Aborted:
            pass
    before, addresses = seen(engine), list(waiting.waiting)
    engine.abandon()
    with tidegate.open(shop(recovery), tmp_path / "shop") as engine:
        assert seen(engine) == before
        assert list(engine.subscribe_durably("again", "reader").waiting) == addresses
    found = verify(shop(recovery), tmp_path / "shop")
    assert found.same, found.differences


def test_unfinished_executions_wait_again_after_reopening(tmp_path: Path) -> None:
    with tidegate.open(shop(), tmp_path / "shop", executor="manual") as engine:
        engine.push("orders", [(1, 7)])
        engine.push("payments", [(1, 7)], 5)
        engine.push("orders", [(1, 8)])
        assert engine.step()  # look at the first order: match has its batch and has not run
        queued = {row.stream: row.queued for row in engine.query("SELECT stream, queued FROM tidegate.streams").rows}
        assert queued == {"orders": 1, "payments": 1, "large": 2, "told": 3, "again": 0}
    with tidegate.open(shop(), tmp_path / "shop", executor="manual") as engine:
        engine.run_until_idle()
        assert seen(engine) == [(1, "[7]", "[]"), (2, "[]", "[7]"), (3, "[8]", "[]")]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("reopened", [False, True])
def test_a_halted_one_goes_on_under_its_old_number(executor: str, reopened: bool, tmp_path: Path) -> None:
    broken = {2}
    app = shop(broken=broken)
    engine = tidegate.open(app, tmp_path / "shop", executor=executor)
    engine.push("orders", [(1, 7)])
    engine.push("payments", [(1, 70)])
    engine.push("orders", [(1, 8)])
    engine.run_until_idle()
    assert seen(engine) == [(1, "[7]", "[]")]
    if reopened:
        engine.abandon()
        engine = tidegate.open(app, tmp_path / "shop", executor=executor)
    broken.clear()
    engine.resume()
    engine.run_until_idle()
    assert seen(engine) == [(1, "[7]", "[]"), (2, "[]", "[70]"), (3, "[8]", "[]")]
    engine.close()
    found = verify(app, tmp_path / "shop")
    assert found.same, found.differences


def test_back_pressure_counts_its_executions() -> None:
    with tidegate.open(shop(), executor="manual", capacity=6) as engine:
        engine.push("orders", [(1, 7)])  # look, match, pass_on
        engine.push("payments", [(1, 7)])  # match, pass_on
        engine.push("payments", [(1, 8)])
        with pytest.raises(tidegate.Overloaded):
            engine.push("payments", [(1, 9)])
        engine.run_until_idle()
        assert not engine.push("payments", [(1, 9)]).done


def test_a_nested_transaction_behind_it_asks_under_its_number() -> None:
    app = shop()
    app.table("CREATE TABLE decided (n BIGINT PRIMARY KEY, yes BOOLEAN)")
    app.stream("asked", "n BIGINT")
    app.stream("answers", "yes BOOLEAN NOT NULL", border=True, deadline_s=10, default={"yes": False})

    @app.procedure(inputs="again", outputs="asked")
    def ask(txn: Any, again: Any) -> None:
        txn.emit("asked", n=again.id)

    @app.procedure(inputs=["asked", "answers"], writes=["decided"])
    def decide(txn: Any, asked: Any, answers: Any) -> None:
        txn.insert("decided", (asked[0].n, answers[0].yes))

    app.nested(ask, decide)
    clock = ManualClock()
    with tidegate.open(app, clock=clock) as engine:
        engine.push("payments", [(1, 1)], 500)
        engine.push("orders", [(1, 7)], 3)
        assert [question.batch_id for question in engine.questions()] == [1]
        engine.push("answers", [(True,)], batch_id=1)
        assert [question.batch_id for question in engine.questions()] == [2]
        clock.advance(11)
        engine.tick()
        assert engine.query("SELECT * FROM decided ORDER BY n").rows == [(1, True), (2, False)]


# ---- refusals


def declared(*, key: str | None = None, other: str = "INTEGER", awaited: bool = False) -> App:
    app = App("refused")
    app.stream("a", "k INTEGER, n INTEGER", border=True, key=key)
    more: dict[str, Any] = {"deadline_s": 1, "default": {"k": 1, "n": 1}} if awaited else {}
    app.stream("b", f"k {other}, n INTEGER", border=True, key=key, **more)
    app.stream("c", "n INTEGER")
    app.stream("d", "n INTEGER")
    app.stream("e", "n INTEGER")
    return app


def one(txn: Any, x: Any) -> None:
    pass


def two(txn: Any, x: Any, y: Any) -> None:
    pass


def three(txn: Any, x: Any, y: Any) -> None:
    pass


def _nested(app: App) -> None:
    app.procedure(inputs=either("a", "b"), outputs="c")(two)
    app.stream("more", "n INTEGER", border=True)
    app.procedure(inputs=["c", "more"])(three)
    app.nested(two, three)


def _nested_behind_another(app: App) -> None:
    app.procedure(inputs="a", outputs="c")(one)
    app.procedure(inputs=either("b", "c"))(two)
    app.nested(one, two)


def _with_a_border_stream(app: App) -> None:
    app.procedure(inputs=either("a", "b"), outputs="c")(two)
    app.procedure(inputs=["c", "a"])(three)


def _behind_different_ones(app: App) -> None:
    app.procedure(inputs=either("a", "b"), outputs="c")(two)
    app.procedure(inputs=either("a", "c"), outputs="d")(three)

    @app.procedure(inputs=["c", "d"])
    def four(txn: Any, c: Any, d: Any) -> None:
        pass


def _answers_of_both_kinds(app: App) -> None:
    app.stream("answers", "n INTEGER", border=True, deadline_s=1, default={"n": 0})
    app.stream("f", "n INTEGER")
    app.procedure(inputs=either("a", "b"), outputs="c")(two)
    for name, source, inner in (("p", "c", "d"), ("q", "a", "e")):

        def first(txn: Any, x: Any) -> None:
            pass

        def second(txn: Any, x: Any, y: Any) -> None:
            pass

        first.__name__, second.__name__ = f"{name}1", f"{name}2"
        app.procedure(inputs=source, outputs=inner)(first)
        app.procedure(inputs=[inner, "answers"])(second)
        app.nested(first, second)


@pytest.mark.parametrize(
    ("app", "declare", "text"),
    [
        (declared(), _nested, "three needs batches of the same id on c and more, but c is behind two"),
        (declared(), _nested_behind_another, "two has inputs=either.* has to be the first.*; a does not come from it"),
        (declared(), _with_a_border_stream, "three needs batches of the same id on c and a, but c is behind two"),
        (declared(), _behind_different_ones, "four needs batches of the same id on c and d.*d has its ids from three"),
        (declared(), _answers_of_both_kinds, "stream answers answers questions of .* numbered differently"),
        (
            declared(key="k", other="VARCHAR"),
            lambda app: app.procedure(inputs=either("a", "b"))(two),
            "keyed differently .a by INTEGER, b by VARCHAR.; a key of one means nothing in the other",
        ),
        (declared(), lambda app: app.procedure(inputs=either("a"))(one), "two or more streams, got a"),
        (declared(), lambda app: app.procedure(inputs=either("a", "a"))(two), "name a stream twice"),
        (declared(), lambda app: app.procedure(inputs=either("a", "x"))(two), "no stream 'x'"),
        (declared(awaited=True), lambda app: app.procedure(inputs=either("a", "b"))(two), "stream b has a deadline"),
        (declared(), lambda app: app.procedure(inputs=either("a", "b"))(one), "is called as one.txn, a, b."),
    ],
)
def test_what_can_not_be_is_refused(app: App, declare: Callable[[App], Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        declare(app)


def test_its_partitions_are_those_of_its_key() -> None:
    app = App("parts")
    app.table("CREATE TABLE sums (k INTEGER PRIMARY KEY, n INTEGER)", partition_by="k")
    app.stream("a", "k INTEGER, n INTEGER", border=True, key="k")
    app.stream("b", "k INTEGER, n INTEGER", border=True, key="k")

    @app.procedure(inputs=either("a", "b"), writes=[partition("sums")])
    def add(txn: Any, a: Any, b: Any) -> None:
        row = txn.get("sums", txn.key)
        more = sum(row.n for row in a) - sum(row.n for row in b)
        txn.upsert("sums", (txn.key, more if row is None else row.n + more))

    with tidegate.open(app, executor="threads", workers=3) as engine:
        for n in range(30):
            engine.push("ab"[n % 2], [(k, n) for k in range(4)])
        engine.run_until_idle()
        assert engine.query("SELECT n FROM sums").rows == [(-15,)] * 4
