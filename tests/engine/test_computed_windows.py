"""Windows that compute, in an engine: part of the transaction, of SQL, of the checkpoint and of the system views."""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import Aborted, App, Batch, DeclarationError, Transaction, window
from tidegate import windows as w
from tidegate.errors import RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.testing import ManualClock

START = dt.datetime(2026, 1, 1)


def ward(compute: Any = None, **options: Any) -> App:
    app = App("ward")
    app.table("CREATE TABLE alerts (patient INTEGER, ends TIMESTAMP, mean DOUBLE, PRIMARY KEY (patient, ends))")
    app.stream("pap", "ts TIMESTAMP NOT NULL, patient INTEGER NOT NULL, value DOUBLE NOT NULL", border=True)
    given = {"time": "4s", "slide": "2s", "on": "ts", "by": "patient", **options}
    recent = window("pap", compute=compute or {"mean": w.mean("value"), "rows": w.count()}, **given)

    @app.procedure(inputs="pap", writes=["alerts"], windows={"recent": recent})
    def watch(txn: Transaction, pap: Batch) -> None:
        for found in txn.window("recent").results:
            txn.insert("alerts", (found.patient, found.window_end, found.mean))
        if any(row.value < 0 for row in pap):
            txn.abort("no pressure is negative")

    return app


def seconds(*given: tuple[float, int, float]) -> list[tuple[Any, ...]]:
    return [(START + dt.timedelta(seconds=second), patient, value) for second, patient, value in given]


def alerts(engine: tidegate.Engine) -> list[tuple[Any, ...]]:
    found = engine.query("SELECT patient, ends, mean FROM alerts ORDER BY ends, patient")
    return [(patient, (at - START).total_seconds(), mean) for patient, at, mean in found]


def test_results_come_when_the_watermark_passes_and_an_abort_undoes_the_slide() -> None:
    with tidegate.open(ward()) as engine:
        engine.push("pap", seconds((0, 1, 10.0), (1, 2, 40.0), (1, 1, 20.0)))
        assert alerts(engine) == []
        with pytest.raises(Aborted, match="negative"):
            engine.push("pap", seconds((2, 1, -1.0), (9, 1, 1.0))).result()
        assert alerts(engine) == []
        engine.push("pap", seconds((4, 1, 30.0)))
        assert alerts(engine) == [(1, 2.0, 15.0), (2, 2.0, 40.0), (1, 4.0, 15.0), (2, 4.0, 40.0)]


def test_sql_text_says_the_same() -> None:
    rows = seconds((0, 1, 10.0), (1, 2, 40.0), (1, 1, 20.0), (7, 1, 5.0), (9, 2, 5.0), (20, 1, 1.0))
    found = []
    for app in (
        ward(),
        ward("SELECT patient, avg(value) AS mean, count(*) AS rows FROM window GROUP BY patient", by=()),
    ):
        with tidegate.open(app) as engine:
            engine.push("pap", rows)
            found.append(alerts(engine))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("compute", [None, {"mean": w.median("value")}], ids=["numbers", "summaries"])
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_open_windows_are_there_after_a_crash_and_after_a_checkpoint(
    tmp_path: Path, recovery: Any, compute: Any
) -> None:
    @cache
    def app() -> App:
        made = ward(compute, delay="1s")
        made.recovery = recovery
        return made

    rows = [seconds((i, i % 3, float(i)), (i - 0.5, 1, 2.0 * i)) for i in range(1, 30)]
    with tidegate.open(app()) as engine:
        for batch in rows:
            engine.push("pap", batch)
        expected = alerts(engine)
    for number, batch in enumerate(rows):
        engine = tidegate.open(app(), tmp_path / "data")
        engine.push("pap", batch).result()
        if number % 3 == 0:
            engine.checkpoint()
        engine.abandon()
    with tidegate.open(app(), tmp_path / "data") as engine:
        assert alerts(engine) == expected
    assert verify(app(), tmp_path / "data").differences == []


def test_a_changed_window_does_not_take_over_what_the_old_one_held(tmp_path: Path) -> None:
    with tidegate.open(ward(), tmp_path) as engine:
        engine.push("pap", seconds((0, 1, 10.0)))
    with pytest.raises(RecoveryRefused, match=r"window watch.recent: it was declared as .*4s.*edition=2.*another name"):
        tidegate.open(ward(time="6s"), tmp_path)


def test_views_show_what_is_held_and_what_came_too_late() -> None:
    with tidegate.open(ward()) as engine:
        engine.push("pap", seconds((5, 1, 10.0), (1, 1, 99.0)))
        ((kind, computes, held, taken, fired, watermark, late),) = engine.query(
            "SELECT kind, computes, held, bytes, fired, watermark, late FROM tidegate.windows"
        )
        assert (kind, computes) == ("time 4s slide 2s on ts by patient", "mean(value) AS mean, count() AS rows")
        assert (held, fired, watermark, late) == (1, 0, START + dt.timedelta(seconds=5), 1)
        assert 500 < taken < 20_000
        engine.push("pap", seconds(*((5, patient, 10.0) for patient in range(2, 1_000))))
        ((held, more),) = engine.query("SELECT held, bytes FROM tidegate.windows")
        assert held == 999
        assert more > taken + 998 * 8 * 3  # two numbers and a tag for each pane
        ((window_name, row),) = engine.query("SELECT window_name, row_values FROM tidegate.late_rows")
        assert window_name == "recent"
        assert "99.0" in row


def test_a_late_row_can_abort_its_batch() -> None:
    with tidegate.open(ward(late="raise")) as engine:
        engine.push("pap", seconds((5, 1, 10.0)))
        with pytest.raises(Aborted, match="came too late"):
            engine.push("pap", seconds((1, 1, 99.0))).result()


def test_results_are_a_relation_in_sql_and_triggers_see_them() -> None:
    app = App("ward")
    app.table("CREATE TABLE ended (patient INTEGER, ends TIMESTAMP, PRIMARY KEY (patient, ends))")
    app.table("CREATE TABLE means (patient INTEGER, ends TIMESTAMP, mean DOUBLE, PRIMARY KEY (patient, ends))")
    app.stream("pap", "ts TIMESTAMP NOT NULL, patient INTEGER NOT NULL, value DOUBLE NOT NULL", border=True)
    recent = window("pap", time="2s", on="ts", by="patient", compute={"mean": w.mean("value")})

    @app.procedure(inputs="pap", writes=["means"], windows={"recent": recent})
    def watch(txn: Transaction, pap: Batch) -> None:
        txn.execute("INSERT INTO means SELECT patient, window_end, mean FROM recent WHERE mean > 15")
        if pap[0].value < 0:
            txn.abort("no pressure is negative")

    app.trigger("watch.recent", "INSERT INTO ended SELECT patient, window_end FROM recent")
    with tidegate.open(app) as engine:
        engine.push("pap", seconds((0, 1, 10.0), (1, 2, 40.0)))
        assert engine.push("pap", seconds((3, 1, -1.0))).error is not None  # and what its trigger did is undone
        assert engine.query("SELECT count(*) FROM ended").scalar() == 0
        engine.push("pap", seconds((3, 1, 1.0)))
        assert [tuple(row) for row in engine.query("SELECT patient, mean FROM means")] == [(2, 40.0)]
        assert [row.patient for row in engine.query("SELECT patient FROM ended ORDER BY patient")] == [1, 2]


def test_a_silent_source_holds_windows_back_until_it_is_idle() -> None:
    clock = ManualClock()
    with tidegate.open(ward(source="patient", idle="1m"), clock=clock) as engine:

        def ended() -> list[float]:
            return sorted({at for _, at, _ in alerts(engine)})

        engine.push("pap", seconds((0, 1, 10.0), (0, 2, 40.0)))
        engine.push("pap", seconds((5, 1, 10.0)))
        assert ended() == []  # of patient 2, rows from 0 s on may come
        clock.advance(30)
        engine.push("pap", seconds((6, 1, 10.0)))
        assert ended() == []
        clock.advance(31)
        engine.push("pap", seconds((7, 1, 10.0)))  # 61 s since the last row of patient 2
        assert ended() == [2.0, 4.0, 6.0]


def slope(extent: w.Extent) -> dict[str, float]:
    values = extent["value"]
    return {"first": float(values[0]), "mean": float(values.mean())}


def test_a_function_gets_columns_and_its_plan_can_be_looked_at() -> None:
    function = w.whole(slope, returns="first DOUBLE, mean DOUBLE")
    with tidegate.open(ward(function, pattern=w.KeyFarm(workers=2))) as engine:
        engine.push("pap", seconds((0, 1, 10.0), (1, 1, 20.0), (8, 1, 0.0)))
        assert alerts(engine) == [(1, 2.0, 15.0), (1, 4.0, 15.0)]
        plan = engine.plan("watch.recent")
        assert "KeyFarm" in plan.explain()
        assert plan.svg().startswith("<svg")
        with pytest.raises(DeclarationError, match=r"watch\.recent"):
            engine.plan("watch.recnt")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"on": "when"}, "'when'"),
        ({"by": "ward"}, "'ward'"),
        ({"on": "value"}, "DOUBLE"),
        ({"time": 4, "slide": 2}, "lengths of time"),
        ({"compute": {"mean": w.mean("pulse")}}, "pulse"),
        ({"compute": {"patient": w.mean("value")}}, "choose another"),
        ({"compute": {"mean": w.mean("ts")}}, "TIMESTAMP"),
        ({"pattern": w.PaneFarm(2), "compute": w.whole(slope, returns="x DOUBLE")}, "can't be decomposed"),
    ],
)
def test_a_window_that_does_not_fit_is_refused_when_it_is_declared(options: Any, why: str) -> None:
    with pytest.raises(tidegate.TidegateError, match=why):
        ward(**options)
