"""Streams that fall silent: event time runs on with the engine's clock, in windows of event time and of arrival."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.errors import BatchError, DeclarationError
from tidegate.offline.verify import verify

Make = Callable[..., Engine]
DAY = dt.datetime(2026, 3, 1)


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


def readings(recovery: Any = "weak", *, key: str | None = None, name: str = "readings", **options: Any) -> App:
    """A filter, a window of 10 s behind it, one of 20 s over its results; and one of 10 s by arrival."""
    app = App("readings", recovery=recovery)
    app.table(
        "CREATE TABLE found (kind VARCHAR, start TIMESTAMP, who VARCHAR, n BIGINT, PRIMARY KEY (kind, start, who))"
    )
    columns = "who VARCHAR NOT NULL, ts TIMESTAMP NOT NULL, n BIGINT"
    app.stream(name, columns, border=True, key=key, **{"idle": "30s", **options})
    app.stream("good", columns)
    app.stream("tens", columns)

    @app.procedure(inputs=name, outputs="good")
    def keep(txn: Transaction, rows: Batch) -> None:
        txn.emit("good", [row for row in rows if row.n])

    def counted(stream: str, length: str, on: str | None = "ts") -> dict[str, Any]:
        return {"win": window(stream, time=length, on=on, by="who", compute={"n": w.sum("n")})}

    @app.procedure(inputs="good", outputs="tens", writes=["found"], windows=counted("good", "10s"))
    def ten(txn: Transaction, good: Batch) -> None:
        for r in txn.window("win").results:
            txn.insert("found", ("ten", r.window_start, r.who, r.n))
            txn.emit("tens", [(r.who, r.window_start, r.n)])

    @app.procedure(inputs="tens", writes=["found"], windows=counted("tens", "20s"))
    def twenty(txn: Transaction, tens: Batch) -> None:
        for r in txn.window("win").results:
            txn.insert("found", ("twenty", r.window_start, r.who, r.n))

    @app.procedure(inputs=name, writes=["found"], windows=counted(name, "10s", None))
    def arrived(txn: Transaction, rows: Batch) -> None:
        for r in txn.window("win").results:
            txn.upsert("found", ("arrived", r.window_start, r.who, r.n))

    return app


def found(engine: Engine, kind: str) -> list[tuple[Any, ...]]:
    rows = engine.query("SELECT start, who, n FROM found WHERE kind = ? ORDER BY ALL", kind).rows
    return [((row.start - DAY).total_seconds(), row.who, row.n) for row in rows]


def wait(engine: Engine, seconds: float) -> None:
    clock: Any = engine.clock
    for _ in range(int(seconds)):
        clock.advance(1)
        engine.tick()
        engine.run_until_idle()


@pytest.mark.parametrize(
    ("recovery", "executor", "key"),
    [("weak", "serial", None), ("strong", "manual", "who"), ("effects", "serial", "who"), ("weak", "threads", None)],
)
def test_windows_behind_a_filter_fire_in_silence(
    open_engine: Make, tmp_path: Path, recovery: Any, executor: str, key: str | None
) -> None:
    app = readings(recovery, key=key)
    engine = open_engine(app, tmp_path, executor=executor)
    engine.push("readings", [("a", at(3), 1), ("b", at(4), 2)])
    engine.push("readings", [("a", at(8), 0)])  # the filter drops it
    wait(engine, 30)  # silent for as long as it may be: time is where the rows are
    assert found(engine, "ten") == []
    wait(engine, 4)  # 8 s + 34 s - 30 s
    assert found(engine, "ten") == [(0, "a", 1), (0, "b", 2)]
    assert found(engine, "twenty") == []
    engine.push("readings", [("a", at(14), 5)])  # it is awake, and not late
    engine.run_until_idle()
    engine.abandon()
    engine = open_engine(readings(recovery, key=key), tmp_path, executor=executor)
    wait(engine, 30)
    assert found(engine, "ten") == [(0, "a", 1), (0, "b", 2)]
    wait(engine, 10)
    assert found(engine, "ten") == [(0, "a", 1), (0, "b", 2), (10, "a", 5)]
    assert found(engine, "twenty") == [(0, "a", 6), (0, "b", 2)]
    before = engine.sequence
    wait(engine, 100)
    assert engine.sequence <= before + 4 * 2  # nothing waits for time any more, so it rests
    rested = engine.sequence
    wait(engine, 100)
    assert engine.sequence == rested
    engine.close()
    checked = verify(readings(recovery, key=key), tmp_path)
    assert checked.same, checked.differences


def test_windows_by_arrival_close_with_the_clock(open_engine: Make) -> None:
    engine = open_engine(readings())
    engine.push("readings", [("a", at(3), 1)])
    wait(engine, 5)
    engine.push("readings", [("a", at(5), 1)])
    wait(engine, 29)
    assert found(engine, "arrived") == []
    wait(engine, 4)
    assert [n for _, _, n in found(engine, "arrived")] == [2]


def test_silence_goes_on_over_a_checkpoint_and_a_new_name(open_engine: Make, tmp_path: Path) -> None:
    with open_engine(readings(), tmp_path) as engine:
        engine.push("readings", [("a", at(8), 1)])
        wait(engine, 20)
    with open_engine(readings(name="samples", renamed_from="readings"), tmp_path) as engine:
        wait(engine, 11)
        assert found(engine, "ten") == []
        wait(engine, 3)
        assert found(engine, "ten") == [(0, "a", 1)]


def test_an_advance_by_hand_is_not_overtaken_backwards(open_engine: Make) -> None:
    engine = open_engine(readings())
    engine.push("readings", [("a", at(3), 1)])
    engine.advance("readings", at(100))
    assert found(engine, "ten") == [(0, "a", 1)]
    engine.push("readings", [("a", at(105), 1)])
    wait(engine, 200)
    assert found(engine, "ten") == [(0, "a", 1), (100, "a", 1)]
    with pytest.raises(BatchError, match="the engine numbers its batches"):
        engine.push("readings", [("a", at(300), 1)], 77)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"idle": "soon"}, "is not a length of time"),
        ({"idle": "0s"}, "longer than nothing"),
        ({"idle": ("n", "3s")}, "one of its TIMESTAMP columns"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        readings(**options)


def test_silence_that_nobody_waits_for_is_refused() -> None:
    app = App("deaf")
    app.stream("rows", "ts TIMESTAMP", border=True, idle="3s")

    @app.procedure(inputs="rows")
    def work(txn: Transaction, rows: Batch) -> None: ...

    with pytest.raises(DeclarationError, match="nothing waits for time"):
        app.graph()
    with pytest.raises(DeclarationError, match="is fed by a procedure"):
        app.stream("more", "ts TIMESTAMP", idle="3s")
