"""Windows in an engine: punctuations make them fire although no row comes any more; their plan can be asked for."""

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


def make_app(key: str | None = None, deaf: bool = False, **more: Any) -> App:
    app = App("counts")
    app.table("CREATE TABLE counts (bed VARCHAR, start TIMESTAMP, n BIGINT NOT NULL, PRIMARY KEY (bed, start))")
    app.stream(
        "beats",
        "bed VARCHAR NOT NULL, taken_at TIMESTAMP NOT NULL, monitor INTEGER, quiet BOOLEAN",
        border=True,
        key=key,
    )
    counted = window(
        "beats", time="10s", on="taken_at", by="bed", delay="5s", punctuation=None if deaf else "quiet",
        compute={"n": w.count()}, **more,
    )  # fmt: skip

    @app.procedure(inputs="beats", writes=["counts"], windows={"counted": counted})
    def count(txn: Transaction, beats: Batch) -> None:
        for found in txn.window("counted").results or ():
            txn.insert("counts", (found.bed, found.window_start, found.n))

    return app


def counts(engine: Engine) -> list[Any]:
    return engine.query("SELECT bed, start, n FROM counts ORDER BY ALL").rows


BEATS = [("a", at(1), 1, None), ("b", at(2), 2, False), ("a", at(9), 1, None), ("a", at(11), 2, None)]


def test_windows_fire_up_to_there() -> None:
    with tidegate.open(make_app()) as engine:
        engine.push("beats", BEATS)
        assert counts(engine) == []  # the watermark is 5 s behind
        engine.punctuate("beats", at(9.5), bed="")
        assert counts(engine) == []
        assert engine.punctuate("beats", at(10), bed="").error is None
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]
        engine.punctuate("beats", at(20), bed="")
        assert counts(engine) == [("a", at(0), 2), ("a", at(10), 1), ("b", at(0), 1)]
        engine.push("beats", [("a", at(19), 1, None)])  # it was said that none would follow
        assert engine.query("SELECT late FROM tidegate.windows").scalar() == 1


def test_a_keyed_stream_is_told_for_one_key_or_all() -> None:
    with tidegate.open(make_app(key="bed")) as engine:
        engine.push("beats", BEATS)
        engine.punctuate("beats", at(10), key="b")
        assert counts(engine) == [("b", at(0), 1)]
        engine.punctuate("beats", at(10))
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]


def test_of_several_sources_one_or_all_have_come_so_far() -> None:
    with tidegate.open(make_app(source="monitor")) as engine:
        engine.push("beats", BEATS)
        engine.punctuate("beats", at(10), source=1, bed="")
        assert counts(engine) == []  # monitor 2 may be at 6 s still
        engine.punctuate("beats", at(10), bed="")
        assert counts(engine) == [("a", at(0), 2), ("b", at(0), 1)]


def test_a_stream_without_rows_yet_takes_it_too() -> None:
    with tidegate.open(make_app(key="bed", source="monitor")) as engine:
        assert engine.punctuate("beats", at(10)).done
    with tidegate.open(make_app(source="monitor")) as engine:
        assert engine.punctuate("beats", at(10), bed="").done


def test_what_is_missing_is_named() -> None:
    with tidegate.open(make_app()) as engine:
        with pytest.raises(DataError, match=r"bed of beats can't be NULL.*punctuate\('beats', at, bed=…\)"):
            engine.punctuate("beats", at(10))
        with pytest.raises(DataError, match="no column 'room'"):
            engine.punctuate("beats", at(10), bed="", room=1)
        with pytest.raises(TidegateError, match="has no key"):
            engine.punctuate("beats", at(10), key="a")
        with pytest.raises(TidegateError, match="follows a source"):
            engine.punctuate("beats", at(10), source=1, bed="")
        with pytest.raises(TidegateError, match="border stream"):
            engine.punctuate("counts", at(10))
    with (
        tidegate.open(make_app(deaf=True)) as engine,
        pytest.raises(TidegateError, match=r"count\.counted would treat it"),
    ):
        engine.punctuate("beats", at(10), bed="")


def test_the_plan_of_a_window_can_be_asked_for() -> None:
    with tidegate.open(make_app()) as engine:
        assert "time 10s on taken_at by bed over beats" in engine.plan("count.counted").explain()
        with pytest.raises(TidegateError, match=r"count\.counts.*count\.counted"):
            engine.plan("count.counts")
