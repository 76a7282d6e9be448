"""Where the time goes: a planted slow procedure, hot key and lock are each named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tidegate
from tidegate import App, Engine


class Gate:
    """Executions wait in it until it opens."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.entered.set()
        self.opened.wait(60)


@contextmanager
def held(app: App, gate: Gate, workers: int = 2) -> Iterator[Engine]:
    with tidegate.open(app, executor="threads", workers=workers) as engine:
        try:
            yield engine
        finally:
            gate.opened.set()
            engine.run_until_idle()


def look(engine: Engine) -> dict[str, Any]:
    for _ in range(20):
        engine.watching.look()
    return {"bottleneck": engine.watching.bottleneck(), "busy": engine.watching.busy()}


def test_a_slow_procedure_is_named() -> None:
    gate, app = Gate(), App("slow")
    app.stream("orders", "n INTEGER NOT NULL", border=True)
    app.stream("packed", "n INTEGER NOT NULL")

    @app.procedure(inputs="orders", outputs="packed")
    def pack(txn: Any, orders: Any) -> None:
        txn.emit("packed", list(orders.rows))

    @app.procedure(inputs="packed")
    def ship(txn: Any, packed: Any) -> None:
        gate.wait()

    with held(app, gate, workers=1) as engine:
        for n in range(20):
            engine.push("orders", [(n,)])
        gate.entered.wait(60)
        found = look(engine)
        assert found["bottleneck"].startswith("bottleneck: ship, 100% busy; orders waits ")
        assert found["busy"] == {"ship": 1.0}
        (row,) = engine.query("SELECT * FROM tidegate.procedures WHERE procedure = 'ship'").rows
        assert (row.committed, row.busy) == (0, 1.0)
        assert row.waits_for.startswith(("input", "order"))
    assert engine.watching.bottleneck() is not None


def test_a_hot_key_is_named() -> None:
    gate, app = Gate(), App("hot")
    app.stream("orders", "shop INTEGER NOT NULL", border=True, key="shop")

    @app.procedure(inputs="orders")
    def ship(txn: Any, orders: Any) -> None:
        if txn.key == 7:
            gate.wait()

    with held(app, gate) as engine:
        for n in range(30):
            engine.push("orders", [(7,)])
            engine.push("orders", [(n + 100,)])
        gate.entered.wait(60)
        while engine.scheduler.any_ready:
            pass
        found = look(engine)
        assert found["bottleneck"].startswith("bottleneck: key 7 of ship: 100% of what waits is for it; orders waits ")
        (unit, key, share), *_ = engine.query("SELECT * FROM tidegate.hot_keys").rows
        assert (unit, key) == ("ship", "7")
        assert share > 0.9


def test_a_lock_is_named() -> None:
    gate, app = Gate(), App("locked")
    app.table("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    app.stream("orders", "shop INTEGER NOT NULL", border=True, key="shop")

    @app.procedure(writes=["stock"])
    def settle(txn: Any) -> None:
        gate.wait()

    @app.procedure(inputs="orders", writes=["stock"])
    def ship(txn: Any, orders: Any) -> None:
        txn.upsert("stock", (txn.key, 1))

    with held(app, gate) as engine:
        engine.submit("settle")
        gate.entered.wait(60)
        for n in range(30):
            engine.push("orders", [(n,)])
        found = look(engine)
        assert found["bottleneck"].startswith(
            "bottleneck: the lock on stock: 30 executions wait for it, behind settle; "
        )


def test_an_idle_engine_has_no_bottleneck(tmp_path: Any) -> None:
    app = App("idle")
    app.stream("orders", "n INTEGER NOT NULL", border=True)

    @app.procedure(inputs="orders")
    def ship(txn: Any, orders: Any) -> None:
        pass

    with tidegate.open(app, tmp_path / "d") as engine:
        engine.push("orders", [(1,)])
        found = engine.metrics()
        assert found["bottleneck"] is None
        assert found["commits"] == {"ship": 1}
        assert found["subscriptions"] == {}
