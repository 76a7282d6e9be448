"""Joins of two streams, and of a batch with a table, inside transactions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, either, join
from tidegate.offline.verify import verify

EXECUTORS = ("serial", "threads", "manual")


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2024, 1, 1) + dt.timedelta(seconds=seconds)


def shop(recovery: str = "weak", key: str | None = None, **options: Any) -> App:
    app = App("shop", recovery=recovery)  # type: ignore[arg-type]
    app.table("CREATE TABLE matched_orders (number BIGINT, order_id INTEGER, item VARCHAR PRIMARY KEY, amount INTEGER)")
    app.stream(
        "orders", "shop INTEGER, order_id INTEGER, item VARCHAR, placed TIMESTAMP NOT NULL", border=True, key=key
    )
    app.stream(
        "payments", "shop INTEGER, order_id INTEGER, amount INTEGER, paid TIMESTAMP NOT NULL", border=True, key=key
    )
    declared = {"within": "10s", "how": "left", **options}

    @app.procedure(
        inputs=either("orders", "payments"),
        writes=["matched_orders"],
        windows={
            "matched": join("orders", "payments", on="order_id", left_time="placed", right_time="paid", **declared)
        },
    )
    def match(txn: Any, orders: Any, payments: Any) -> None:
        if any(payment.amount == 13 for payment in payments):
            txn.abort("unlucky")
        found = txn.window("matched").results
        assert [tuple(row) for row in found] == [tuple(row) for row in txn.execute("SELECT * FROM matched")]
        txn.execute("INSERT INTO matched_orders SELECT ?, order_id, item, amount FROM matched", txn.batch_id)

    return app


def push_all(engine: Any) -> None:
    engine.push("orders", [(1, 1, "tea", at(0)), (1, 2, "cup", at(1)), (1, None, "pot", at(2))])
    engine.push("payments", [(1, 1, 5, at(3)), (1, None, 9, at(3))], 70)
    engine.push("payments", [(1, 2, 13, at(4))], 71)  # aborted: never was
    engine.push("orders", [(1, 3, "tin", at(20))])
    engine.push("payments", [(1, 3, 8, at(21))], 75)
    engine.push("orders", [(1, 4, "bag", at(40))])
    engine.push("payments", [(1, 9, 1, at(40))], 80)
    engine.run_until_idle()


def matched(engine: Any) -> list[tuple[Any, ...]]:
    query = "SELECT order_id, item, amount FROM matched_orders ORDER BY item"
    return [tuple(row) for row in engine.query(query).rows]


EXPECTED = [(2, "cup", None), (None, "pot", None), (1, "tea", 5), (3, "tin", 8)]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("key", [None, "shop"])
def test_a_join_is_part_of_the_transaction(executor: str, key: str | None) -> None:
    with tidegate.open(shop(key=key), executor=executor) as engine:
        push_all(engine)
        assert matched(engine) == EXPECTED
        (view,) = engine.query("SELECT stream, kind, held, fired, watermark, late FROM tidegate.windows").rows
        assert tuple(view) == (
            "orders, payments",
            "left join on order_id within 10s of placed and paid",
            2,
            4,
            at(40),
            0,
        )


def test_best_effort_does_not_wait() -> None:
    with tidegate.open(shop(how="inner", mode="best_effort")) as engine:
        engine.push("orders", [(1, 1, "tea", at(0))])
        engine.push("payments", [(1, 1, 5, at(3))])
        assert matched(engine) == [(1, "tea", 5)]
        engine.push("orders", [(1, 2, "cup", at(30))])
        engine.push("payments", [(1, 1, 6, at(9))])  # order 1 is forgotten by now
        assert matched(engine) == [(1, "tea", 5)]


def test_late_rows_can_be_looked_at() -> None:
    with tidegate.open(shop()) as engine:
        engine.push("payments", [(1, 1, 5, at(9)), (1, 1, 6, at(3))])
        (late,) = engine.query("SELECT stream, row_values FROM tidegate.late_rows").rows
        assert late.stream == "payments"
        assert "6" in late.row_values


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_join_survives_a_crash(recovery: str, checkpoint: bool, tmp_path: Path) -> None:
    engine = tidegate.open(shop(recovery), tmp_path / "shop")
    engine.push("orders", [(1, 1, "tea", at(0))]).result()
    engine.push("payments", [(1, 1, 5, at(3)), (1, 1, 6, at(1))]).result()
    if checkpoint:
        engine.checkpoint()
    engine.abandon()
    with tidegate.open(shop(recovery), tmp_path / "shop") as engine:
        engine.push("orders", [(1, 2, "cup", at(20))])
        engine.push("payments", [(1, 2, 1, at(20))])
        assert matched(engine) == [(1, "tea", 5)]
        assert len(engine.query("SELECT * FROM tidegate.late_rows").rows) == 1
    found = verify(shop(recovery), tmp_path / "shop")
    assert found.same, found.differences
    assert found.windows == 1


def test_a_changed_join_does_not_take_the_old_rows(tmp_path: Path) -> None:
    with tidegate.open(shop(), tmp_path / "shop") as engine:
        engine.push("orders", [(1, 1, "tea", at(0))])
    with pytest.raises(tidegate.TidegateError, match=r"was declared as \(left join on order_id within 10s"):
        tidegate.open(shop(within="20s"), tmp_path / "shop")


def test_streams_that_come_in_pairs_can_be_joined_too() -> None:
    app = App("pairs")
    app.stream("a", "k INTEGER, t INTEGER NOT NULL", border=True)
    app.stream("b", "k INTEGER, t INTEGER NOT NULL", border=True)
    found: list[Any] = []

    @app.procedure(inputs=["a", "b"], windows={"both": join("a", "b", on="k", time=5, left_time="t", right_time="t")})
    def meet(txn: Any, a: Any, b: Any) -> None:
        found.extend(tuple(row) for row in txn.window("both").results)

    with tidegate.open(app) as engine:
        for number, (ta, tb) in enumerate([(1, 2), (4, 6), (12, 11)], 1):
            engine.push("a", [(1, ta)], number)
            engine.push("b", [(1, tb)], number)
    assert found == [(0, 5, 1, 1, 2), (0, 5, 1, 4, 2)]


def test_a_trigger_runs_when_a_join_has_results() -> None:
    app = shop(how="inner", mode="best_effort")
    app.table("CREATE TABLE notes (order_id INTEGER PRIMARY KEY)")
    app.trigger("match.matched", "INSERT INTO notes SELECT order_id FROM matched")
    with tidegate.open(app) as engine:
        engine.push("orders", [(1, 1, "tea", at(0))])
        assert engine.query("SELECT * FROM notes").rows == []
        engine.push("payments", [(1, 1, 5, at(3))])
        assert engine.query("SELECT * FROM notes").rows == [(1,)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": "orders2"}, "over stream 'orders2', which is not one of its inputs"),
        ({"on": "item"}, "join matched: names column 'item'; stream payments has"),
        ({"left_time": "item"}, "orders.item is VARCHAR; a time must be"),
    ],
)
def test_a_join_that_does_not_fit_is_refused(options: dict[str, Any], text: str) -> None:
    app = App("refused")
    app.stream("orders", "order_id INTEGER, item VARCHAR, placed TIMESTAMP NOT NULL", border=True)
    app.stream("payments", "order_id INTEGER, paid TIMESTAMP NOT NULL", border=True)
    left = options.pop("stream", "orders")
    declared = {"on": "order_id", "left_time": "placed", "right_time": "paid", **options}

    def match(txn: Any, orders: Any, payments: Any) -> None:
        pass

    with pytest.raises(tidegate.DeclarationError, match=text):
        app.procedure(
            inputs=either("orders", "payments"), windows={"matched": join(left, "payments", within="1s", **declared)}
        )(match)


# ---- a batch with a table


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_batch_is_looked_up_in_a_table_in_the_same_transaction(executor: str) -> None:
    app = App("lookup")
    app.table("CREATE TABLE products (item VARCHAR PRIMARY KEY, price INTEGER NOT NULL)")
    app.stream("orders", "id INTEGER, item VARCHAR, pieces INTEGER", border=True)
    app.stream("bills", "id INTEGER, amount INTEGER")

    @app.procedure(writes=["products"])
    def price(txn: Any, item: str, amount: int) -> None:
        txn.upsert("products", (item, amount))

    @app.procedure(inputs="orders", outputs="bills", reads=["products"])
    def bill(txn: Any, orders: Any) -> None:
        txn.emit(
            "bills",
            txn.execute(
                "SELECT o.id, o.pieces * p.price FROM orders o JOIN products p ON p.item = o.item WHERE o.pieces > ? "
                "ORDER BY o.id",
                0,
            ),
        )
        unknown = txn.execute("SELECT o.id FROM orders o LEFT JOIN products p USING (item) WHERE p.item IS NULL")
        txn.emit("bills", [(row.id, None) for row in unknown])

    with tidegate.open(app, executor=executor) as engine:
        bills = engine.subscribe("bills")
        engine.submit("price", "tea", 3)
        engine.push("orders", [(1, "tea", 2), (2, "cup", 1), (3, "tea", 5)])
        engine.submit("price", "tea", 4)  # later in the order: the order above does not see it
        engine.push("orders", [(4, "tea", 1)])
        engine.run_until_idle()
        assert [[tuple(row) for row in batch] for batch in bills] == [[(1, 6), (3, 15), (2, None)], [(4, 4)]]
