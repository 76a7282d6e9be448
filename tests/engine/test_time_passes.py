"""Time that passes through dataflows: behind filters, along chains, over joins, without rows; undone, replayed, verified."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, either
from tidegate import windows as w
from tidegate.engine.engine import Engine
from tidegate.errors import BatchError, TidegateError
from tidegate.offline.verify import verify
from tidegate.streams.batch import Batch
from tidegate.streams.windows import window
from tidegate.streams.windows.declare.joins import join
from tidegate.txn.transaction import Transaction

EXECUTORS = ("serial", "manual", "threads")
DAY = dt.datetime(2026, 3, 1)


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


def chain_app(key: str | None = None, nested: bool = False, recovery: Any = "weak") -> App:
    """A filter that drops what has no value, and three windows, each over the results of the one before."""
    app = App("chain", recovery=recovery)
    app.table("CREATE TABLE found (who VARCHAR, start TIMESTAMP, n BIGINT NOT NULL, PRIMARY KEY (who, start))")
    app.table("CREATE TABLE runs (name VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    columns = "who VARCHAR NOT NULL, ts TIMESTAMP NOT NULL, n BIGINT"
    app.stream("events", columns, border=True, key=key)
    for name in ("kept", "tens", "twenties"):
        app.stream(name, columns)

    @app.procedure(inputs="events", outputs=["kept"])
    def keep(txn: Transaction, events: Batch) -> None:
        if any(event.n == -1 for event in events):
            txn.abort("not today")
        txn.emit("kept", [event for event in events if event.n])

    def ran(txn: Transaction, name: str) -> None:
        txn.execute("INSERT INTO runs VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1", name)

    def counted(stream: str, length: str) -> dict[str, Any]:
        return {"win": window(stream, time=length, on="ts", by="who", compute={"n": w.sum("n")})}

    @app.procedure(inputs="kept", outputs=["tens"], writes=["runs"], windows=counted("kept", "10s"))
    def ten(txn: Transaction, kept: Batch) -> None:
        ran(txn, "ten")
        txn.emit("tens", [(r.who, r.window_start, r.n) for r in txn.window("win").results])

    @app.procedure(inputs="tens", outputs=["twenties"], writes=["runs"], windows=counted("tens", "20s"))
    def twenty(txn: Transaction, tens: Batch) -> None:
        ran(txn, "twenty")
        txn.emit("twenties", [(r.who, r.window_start, r.n) for r in txn.window("win").results])

    @app.procedure(inputs="twenties", writes=["found", "runs"], windows=counted("twenties", "20s"))
    def write(txn: Transaction, twenties: Batch) -> None:
        ran(txn, "write")
        for r in txn.window("win").results:
            txn.insert("found", (r.who, r.window_start, r.n))

    if nested:
        app.nested("ten", "twenty")
    return app


def found(engine: Engine) -> list[tuple[Any, ...]]:
    engine.run_until_idle()
    return [tuple(row) for row in engine.query("SELECT who, start, n FROM found ORDER BY ALL").rows]


def runs(engine: Engine) -> dict[str, int]:
    return {row[0]: row[1] for row in engine.query("SELECT name, n FROM runs").rows}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_three_chained_windows_fire_in_the_batch_that_closes_the_first(executor: Any, nested: bool) -> None:
    with tidegate.open(chain_app(nested=nested), executor=executor) as engine:
        engine.push("events", [("a", at(1), 5), ("a", at(12), 6)])
        assert found(engine) == []
        engine.push("events", [("a", at(25), 1)])
        assert found(engine) == [("a", at(0), 11)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_filter_that_drops_everything_does_not_stop_the_window_behind_it(executor: Any) -> None:
    with tidegate.open(chain_app(), executor=executor) as engine:
        engine.push("events", [("a", at(1), 5)])
        engine.push("events", [("a", at(30), 0)])  # dropped: the window behind has not heard of it
        assert found(engine) == []
        engine.advance("events", at(30))
        assert found(engine) == [("a", at(0), 5)]


def test_only_what_is_due_is_started() -> None:
    with tidegate.open(chain_app()) as engine:
        engine.push("events", [("a", at(1), 5)])
        for seconds in range(2, 10):
            engine.advance("events", at(seconds))
        assert runs(engine) == {"ten": 1}
        engine.advance("events", at(10))
        assert runs(engine) == {"ten": 2, "twenty": 1}
        engine.advance("events", at(20))
        assert runs(engine) == {"ten": 2, "twenty": 2, "write": 1}
        assert found(engine) == [("a", at(0), 5)]


def test_an_abort_undoes_that_time_has_passed() -> None:
    with tidegate.open(chain_app()) as engine:
        engine.push("events", [("a", at(1), 5)])
        engine.push("events", [("a", at(50), -1)])
        assert found(engine) == []
        assert engine.query("SELECT watermark FROM tidegate.windows WHERE procedure = 'ten'").rows == [(at(1),)]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("key", [None, "who"])
def test_the_end_fires_what_is_open_and_nothing_may_follow(executor: Any, key: str | None) -> None:
    with tidegate.open(chain_app(key=key), executor=executor) as engine:
        engine.push("events", [("a", at(1), 5), ("b", at(12), 6), ("a", at(26), 7)])
        engine.finish()
        assert found(engine) == [("a", at(0), 5), ("a", at(20), 7), ("b", at(0), 6)]
        assert engine.finish().done  # again: nothing is left to do
        for push in (
            lambda: engine.push("events", [("a", at(99), 1)]),
            lambda: engine.feed("events", [("a", at(99), 1)]),
        ):
            with pytest.raises(BatchError, match=r"was finished.*advance"):
                push()


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_replay_gives_the_same(tmp_path: Path, recovery: Any, merged: bool, nested: bool) -> None:
    def work(engine: Engine) -> None:
        engine.push("events", [("a", at(2), 5), ("b", at(12), 6)])
        engine.advance("events", at(15))
        engine.push("events", [("a", at(31), 0), ("a", at(33), -1)])

    def after(engine: Engine) -> tuple[Any, ...]:
        engine.advance("events", at(41))
        middle = found(engine)
        engine.finish()
        marks = {name: program.marks for name, program in engine.runtime.programs.items()}
        return middle, found(engine), runs(engine), marks, engine.query("SELECT * FROM tidegate.windows").rows

    app = chain_app(nested=nested, recovery=recovery)
    with tidegate.open(app) as engine:
        work(engine)
        expected = after(engine)
    assert expected[1] == [("a", at(0), 5), ("b", at(0), 6)]
    directory = tmp_path / "data"
    with tidegate.open(app, directory) as engine:
        work(engine)
        if merged:
            engine.checkpoint()
            engine.advance("events", at(16))
        assert engine.durable is not None
        engine.durable.sync()
        shutil.copytree(directory, tmp_path / "copy")  # as after a kill: its log is to be replayed
    directory = tmp_path / "copy"
    with tidegate.open(app, directory) as engine:
        assert after(engine) == expected
    with tidegate.open(app, directory) as engine, pytest.raises(BatchError, match=r"was finished"):
        engine.push("events", [("a", at(99), 1)])
    assert verify(app, directory).same


def test_a_watermark_with_an_id_is_accepted_once() -> None:
    with tidegate.open(chain_app()) as engine:
        engine.push("events", [("a", at(1), 5)], 1)
        with pytest.raises(BatchError, match=r"sender chose.*batch_id=, larger than 1"):
            engine.advance("events", at(20))
        assert not engine.advance("events", at(20), batch_id=2).duplicate
        assert engine.advance("events", at(20), batch_id=2).duplicate
        with pytest.raises(BatchError, match="accepted before"):
            engine.advance("events", at(21), batch_id=2)
        with pytest.raises(BatchError, match="accepted before"):
            engine.push("events", [("a", at(20), 5)], 2)
        assert found(engine) == [("a", at(0), 5)]


def join_app(both: bool) -> App:
    app = App("joined")
    app.table("CREATE TABLE pairs (k INTEGER, a INTEGER, b INTEGER, PRIMARY KEY (k, a))")
    app.stream("lefts", "k INTEGER NOT NULL, t BIGINT NOT NULL", border=True)
    app.stream("rights", "k INTEGER NOT NULL, t BIGINT NOT NULL", border=True)
    app.stream("joined", "k INTEGER NOT NULL, a BIGINT NOT NULL, b BIGINT")
    matches = join("lefts", "rights", on="k", left_time="t", right_time="t", within=5, how="left",
                 select={"k": "k", "a": "lefts.t", "b": "rights.t"})  # fmt: skip

    @app.procedure(
        inputs=("lefts", "rights") if both else either("lefts", "rights"),
        outputs=["joined"],
        windows={"matches": matches},
    )
    def pair(txn: Transaction, lefts: Batch, rights: Batch) -> None:
        txn.emit("joined", [tuple(row) for row in txn.window("matches").results])

    @app.procedure(inputs="joined", writes=["pairs"], windows={"win": window("joined", time=10, on="a")})
    def write(txn: Transaction, joined: Batch) -> None:
        for one in txn.window("win").windows:
            for row in one.rows:
                txn.insert("pairs", (row.k, row.a, row.b))

    return app


def pairs(engine: Engine) -> list[tuple[Any, ...]]:
    engine.run_until_idle()
    return [tuple(row) for row in engine.query("SELECT * FROM pairs ORDER BY ALL").rows]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_time_crosses_joins(executor: Any) -> None:
    with tidegate.open(join_app(both=False), executor=executor) as engine:
        engine.push("lefts", [(1, 2), (2, 4)])
        engine.push("rights", [(1, 3)])
        engine.advance("lefts", 20)
        assert pairs(engine) == []  # the right side may still come
        engine.advance("rights", 12)
        assert pairs(engine) == [(1, 2, 3), (2, 4, None)]
        engine.push("lefts", [(3, 22)])
        engine.finish("lefts")
        assert len(pairs(engine)) == 2
        engine.finish("rights")
        assert pairs(engine) == [(1, 2, 3), (2, 4, None), (3, 22, None)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_streams_whose_batches_are_needed_together_advance_together(executor: Any) -> None:
    with tidegate.open(join_app(both=True), executor=executor) as engine:
        engine.push("lefts", [(1, 2), (2, 4)])
        engine.push("rights", [(1, 3)])
        with pytest.raises(BatchError, match=r"lefts, rights.*same batch_id="):
            engine.advance("lefts", 20)
        with pytest.raises(BatchError, match=r"finish\(\) finishes all"):
            engine.finish("lefts")
        engine.advance("lefts", 20, batch_id=2)
        engine.advance("rights", 20, batch_id=2)
        assert pairs(engine) == [(1, 2, 3), (2, 4, None)]
        engine.push("lefts", [(3, 22)])
        engine.push("rights", [(4, 23)])
        engine.finish()
        assert pairs(engine) == [(1, 2, 3), (2, 4, None), (3, 22, None)]


def test_a_window_by_count_lets_nothing_pass_but_the_end() -> None:
    app = App("counts")
    app.table("CREATE TABLE starts (start BIGINT PRIMARY KEY)")
    app.stream("events", "t BIGINT NOT NULL", border=True)
    app.stream("pairs", "t BIGINT NOT NULL")

    @app.procedure(inputs="events", outputs=["pairs"], windows={"two": window("events", count=2)})
    def pair(txn: Transaction, events: Batch) -> None:
        if txn.window("two").slid:
            txn.emit("pairs", txn.window("two").rows)

    @app.procedure(inputs="pairs", writes=["starts"], windows={"win": window("pairs", time=10, on="t")})
    def write(txn: Transaction, pairs: Batch) -> None:
        for one in txn.window("win").windows:
            txn.insert("starts", (one.start,))

    with tidegate.open(app) as engine:
        engine.push("events", [(1,), (2,), (3,)])
        with pytest.raises(TidegateError, match="no window over event time gets the time of events"):
            engine.advance("events", 100)
        engine.finish()
        assert engine.query("SELECT start FROM starts").rows == [(0,)]


def test_a_dead_letter_without_rows_says_what_to_do() -> None:
    app = App("letters")
    app.stream("events", "t BIGINT NOT NULL", border=True)
    broken = [True]
    fired: list[int] = []

    @app.procedure(inputs="events", on_failure="dead_letter", windows={"win": window("events", time=10, on="t")})
    def look(txn: Transaction, events: Batch) -> None:
        for one in txn.window("win").windows:
            if broken:
                raise OSError("the lamp is broken")
            fired.append(one.start)

    with tidegate.open(app) as engine:
        engine.push("events", [(1,)])
        engine.advance("events", 10)
        letter = engine.query("SELECT position FROM tidegate.dead_letters").scalar()
        with pytest.raises(TidegateError, match=r"has no rows.*Advance"):
            engine.requeue(letter)
        broken.clear()
        engine.advance("events", 10)
        assert fired == [0]
