"""Whose work goes first: decided among what may run, so results do not depend on it; nothing waits forever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Engine
from tidegate.errors import DeclarationError, Overloaded
from tidegate.offline.verify import verify


def make(priority: int = 10, capacity: int | None = None) -> App:
    app = App("wards")
    app.table("CREATE TABLE beds (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="id")
    app.table("CREATE TABLE ran (id INTEGER PRIMARY KEY, what VARCHAR)")
    app.stream("bulk", "n INTEGER NOT NULL", border=True, key="n", capacity=capacity)
    app.stream("alarms", "n INTEGER NOT NULL", border=True, key="n", priority=priority)
    app.stream("raised", "n INTEGER NOT NULL")

    @app.procedure(inputs="bulk", writes=[tidegate.partition("beds")])
    def load(txn: Any, bulk: Any) -> None:
        for row in bulk:
            txn.upsert("beds", (row.n, txn.batch_id))

    @app.procedure(inputs="alarms", outputs="raised", writes=[tidegate.partition("beds")])
    def alarm(txn: Any, alarms: Any) -> None:
        for row in alarms:
            txn.upsert("beds", (row.n, -txn.batch_id))
        txn.emit("raised", list(alarms.rows))

    return app


def chosen(engine: Engine, count: int) -> list[str]:
    """What ran, one after another."""
    found = []
    for _ in range(count):
        before = {**engine.scheduler.live}
        assert engine.step()
        (gone,) = before.keys() - engine.scheduler.live.keys()
        found.append(f"{before[gone].unit.name} {before[gone].key}")
    return found


def test_what_has_priority_goes_first_with_what_it_waits_for() -> None:
    with tidegate.open(make(), executor="manual") as engine:
        for n in range(10):
            engine.push("bulk", [(n,)])
        engine.push("bulk", [(7,)])
        engine.push("alarms", [(7,)])
        engine.push("alarms", [(50,)])
        assert chosen(engine, 4) == ["load 7", "load 7", "alarm 7", "alarm 50"]
        engine.run_until_idle()


def test_the_oldest_gets_its_turn() -> None:
    with tidegate.open(make(), executor="manual") as engine:
        engine.push("bulk", [(0,)])
        for n in range(100, 300):
            engine.push("alarms", [(n,)])
        found = chosen(engine, 201)
        assert found.index("load 0") == 63
        assert found[:2] == ["alarm 100", "alarm 101"]


def test_a_tenth_of_the_capacity_is_kept_for_priorities() -> None:
    with tidegate.open(make(), executor="manual", capacity=20) as engine:
        for n in range(18):
            engine.push("bulk", [(n,)])
        with pytest.raises(Overloaded, match="18 executions are unfinished"):
            engine.push("bulk", [(18,)])
        engine.push("alarms", [(1,)])
        engine.run_until_idle()


def test_a_stream_has_a_capacity_of_its_own(tmp_path: Path) -> None:
    with tidegate.open(make(0, capacity=3), tmp_path, executor="manual") as engine:
        for n in range(3):
            engine.push("bulk", [(n,)])
        with pytest.raises(Overloaded, match="3 executions that bulk has caused are unfinished"):
            engine.push("bulk", [(3,)])
        engine.push("alarms", [(1,)])
        assert engine.step()
        engine.push("bulk", [(3,)])
        engine.run_until_idle()
        assert engine.scheduler.unfinished["bulk"] == 0
    assert verify(make(0, capacity=3), tmp_path).differences == []


def test_results_do_not_depend_on_priorities(tmp_path: Path) -> None:
    found = []
    for priority, executor in ((0, "serial"), (10, "manual"), (10, "threads")):
        path = tmp_path / f"{priority} {executor}"
        with tidegate.open(make(priority), path, executor=executor) as engine:  # type: ignore[arg-type]
            for i in range(300):
                engine.push("alarms" if i % 3 == 0 else "bulk", [(i * 7 % 11,)])
            engine.run_until_idle()
            found.append(engine.query("SELECT * FROM beds ORDER BY id").rows)
        assert verify(make(priority), path).differences == []
    assert found[0] == found[1] == found[2]


def test_an_alarm_overtakes_what_waits_in_threads() -> None:
    app = App("threads")
    app.stream("work", "n INTEGER NOT NULL", border=True, key="n")
    app.stream("alarms", "n INTEGER NOT NULL", border=True, priority=10)
    holding, may_go = threading.Event(), threading.Event()
    order: list[int] = []

    @app.procedure(inputs="work")
    def heavy(txn: Any, work: Any) -> None:
        holding.set()
        may_go.wait(60)
        order.append(work[0].n)

    @app.procedure(inputs="alarms")
    def alarm(txn: Any, alarms: Any) -> None:
        order.append(-1)

    with tidegate.open(app, executor="threads", workers=1) as engine:
        for n in range(100):
            engine.push("work", [(n,)])
        holding.wait(60)
        engine.push("alarms", [(1,)])
        may_go.set()
        engine.run_until_idle()
    assert order == [0, -1, *range(1, 100)]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda app: app.stream("s", "n INTEGER", priority=1), "belong where work comes in"),
        (lambda app: app.stream("s", "n INTEGER", border=True, priority="high"), "not a whole number"),
        (lambda app: app.stream("s", "n INTEGER", border=True, capacity=0), "not a positive whole number"),
    ],
)
def test_precedence_that_makes_no_sense(declare: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare(App("a"))
