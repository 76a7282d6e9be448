"""Windows in an engine: watermarks make them fire although no row comes any more; their plan can be asked for."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, DataError, Engine, TidegateError, Transaction, window
from tidegate import windows as w

DAY = dt.datetime(2024, 5, 1)


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


def make_app(key: str | None = None, **more: Any) -> App:
    app = App("counts")
    app.table("CREATE TABLE counts (bed VARCHAR, start TIMESTAMP, n BIGINT NOT NULL, PRIMARY KEY (bed, start))")
    app.stream(
        "beats",
        "bed VARCHAR NOT NULL, taken_at TIMESTAMP NOT NULL, monitor INTEGER",
        border=True,
        key=key,
    )
    counted = window(
        "beats", time="10s", on="taken_at", by="bed", delay="5s", compute={"n": w.count()}, **more,
    )  # fmt: skip

    @app.procedure(inputs="beats", writes=["counts"], windows={"counted": counted})
    def count(txn: Transaction, beats: Batch) -> None:
        for found in txn.window("counted").results or ():
            txn.insert("counts", (found.bed, found.window_start, found.n))

    return app


def counts(engine: Engine) -> list[Any]:
    return engine.query("SELECT bed, start, n FROM counts ORDER BY ALL").rows


BEATS = [("a", at(1), 1), ("b", at(2), 2), ("a", at(9), 1), ("a", at(11), 2)]


def test_windows_fire_up_to_there() -> None:
    with tidegate.open(make_app()) as engine:
        engine.push("beats", BEATS)
        assert counts(engine) == []  # the watermark is 5 s behind
        engine.advance("beats", at(9.5))
        assert counts(engine) == []
        assert engine.advance("beats", at(10)).error is None
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]
        engine.advance("beats", at(20).isoformat())
        assert counts(engine) == [("a", at(0), 2), ("a", at(10), 1), ("b", at(0), 1)]
        engine.push("beats", [("a", at(19), 1)])  # it was said that none would follow
        assert engine.query("SELECT late FROM tidegate.windows").scalar() == 1


def test_a_keyed_stream_is_told_for_one_key_or_all() -> None:
    with tidegate.open(make_app(key="bed")) as engine:
        engine.push("beats", BEATS)
        engine.advance("beats", at(10), key="b")
        assert counts(engine) == [("b", at(0), 1)]
        engine.advance("beats", at(10))
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]


def test_it_counts_for_all_sources() -> None:
    with tidegate.open(make_app(source="monitor")) as engine:
        engine.push("beats", BEATS)
        engine.advance("beats", at(10))
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]


def test_a_stream_without_rows_yet_takes_it_too() -> None:
    with tidegate.open(make_app(key="bed", source="monitor")) as engine:
        assert engine.advance("beats", at(10)).done
    with tidegate.open(make_app(source="monitor")) as engine:
        assert engine.advance("beats", at(10)).done


def test_what_is_wrong_is_named() -> None:
    with tidegate.open(make_app()) as engine:
        with pytest.raises(TidegateError, match="has no key"):
            engine.advance("beats", at(10), key="a")
        with pytest.raises(TidegateError, match="border stream"):
            engine.advance("counts", at(10))
        with pytest.raises(DataError, match=r"its time is a timestamp.*got 10"):
            engine.advance("beats", 10)
        engine.advance("beats", at(10))
        with pytest.raises(TidegateError, match=r"does not go back.*2024-05-01 00:00:10.*00:00:09"):
            engine.advance("beats", at(9))


def test_the_plan_of_a_window_can_be_asked_for() -> None:
    with tidegate.open(make_app()) as engine:
        assert "time 10s on taken_at by bed over beats" in engine.plan("count.counted").explain()
        with pytest.raises(TidegateError, match=r"count\.counts.*count\.counted"):
            engine.plan("count.counts")
