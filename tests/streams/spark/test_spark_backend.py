"""Windows on Spark: the same bytes, whatever fails; what people are told."""

from __future__ import annotations

import datetime as dt
import logging
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate
from tidegate import windows as w
from tidegate.errors import SparkUnavailable
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.spark import backend as spark_backends
from tidegate.streams.spark import java
from tidegate.streams.spark.backend import SPARK, SparkBackend
from tidegate.streams.spark.jobs import answer, extents_of, load_by_reference, load_by_value
from tidegate.streams.spark.session import Spark, shared_spark
from tidegate.streams.windows.declare.functions import Extent, Whole
from tidegate.streams.windows.declare.kinds import window
from tidegate.streams.windows.declare.patterns import WindowFarm
from tidegate.streams.windows.evaluate.local import HERE, LocalBackend
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.evaluate.processes import packed, unpacked
from tidegate.streams.windows.evaluate.tasks import Task, Work
from tidegate.streams.windows.state.columns import Columns

Open = Callable[..., tidegate.Engine]

EVERY = Relation(
    "every",
    (
        Column("i", column_type("BIGINT")),
        Column("u", column_type("UBIGINT"), nullable=False),
        Column("f", column_type("DOUBLE")),
        Column("ok", column_type("BOOLEAN")),
        Column("at", column_type("TIMESTAMP")),
        Column("day", column_type("DATE")),
        Column("name", column_type("VARCHAR")),
        Column("price", column_type("DECIMAL(10,2)")),
        Column("who", column_type("UUID")),
    ),
)
ROWS: list[tuple[Any, ...]] = [
    (1, 2**64 - 1, 0.1, True, dt.datetime(1969, 12, 31), dt.date(1901, 2, 3), "Zürich", Decimal("1.10"), uuid.UUID(int=5)),
    (None, 0, None, None, None, None, None, None, None),
    (-7, 3, -0.0, False, dt.datetime(2200, 1, 1), dt.date(2262, 1, 1), "", Decimal("-3.35"), uuid.UUID(int=2**127)),
    (2**62, 4, float("nan"), True, dt.datetime(2024, 2, 29), dt.date(2024, 2, 29), "a\0b", Decimal(0), uuid.UUID(int=0)),
] * 5  # fmt: skip


def text(extent: Extent) -> str:
    return repr(extent.rows)


def sums(extent: Extent) -> tuple[float, int]:
    return float(np.cumsum(extent["x"])[-1]), len(extent)


def added(panes: Sequence[tuple[float, int]]) -> tuple[float, int]:
    return sum(total for total, _ in panes), sum(n for _, n in panes)


def dies_once(extent: Extent) -> tuple[float, int]:
    """Kills the Python worker that evaluates window 3, the first time."""
    died = Path(os.environ["SPARK_TEST_DIED"])
    if extent.number == 3 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return sums(extent)


def raises(extent: Extent) -> tuple[float, int]:
    if extent.number == 4:
        raise ArithmeticError("not the fourth")
    return sums(extent)


@pytest.fixture(scope="module")
def tasks(spark: Any) -> SparkBackend:
    backend = SparkBackend(shared_spark(spark), LocalBackend(), only=True)
    backend.warm()
    return backend


def work_of(function: Any = text) -> tuple[Work, list[Extent]]:
    columns = Columns.of_rows(EVERY, [EVERY.conform(row) for row in ROWS])
    extents = [Extent(n, ("k",), n, n + 6, columns.slice(2 * n, 2 * n + 6), [0, 3]) for n in range(7)]
    return Work(Whole(function, "t VARCHAR"), EVERY), extents


def test_rows_arrive_as_they_were_by_reference_and_by_value(tmp_path: Path) -> None:
    """Every type, NULLs, NaN and -0.0; windows that overlap are written once."""
    work, extents = work_of()
    split = [Task(work, "whole", extents[:3]), Task(work, "whole", extents[3:])]
    loads = load_by_reference(split, tmp_path / "columns")
    assert (tmp_path / "columns").stat().st_size < 8_000
    for given in (loads, [load_by_value(task) for task in split]):
        found = [extent for load in given for extent in extents_of(work, unpacked(packed(load)))]
        assert [repr(e) for e in found] == [repr(e) for e in extents]
        for one, other in zip(found, extents, strict=True):
            assert one.cuts == other.cuts
            for name in EVERY.column_names:
                assert one[name].dtype == other[name].dtype
                assert one[name].tobytes() == other[name].tobytes() or one[name].dtype == np.dtype(object)
            assert repr(one.rows) == repr(other.rows)
        assert not found[0]["i"].flags.writeable


def test_an_answer_carries_what_was_raised() -> None:
    work, extents = work_of(lambda extent: 1 // (extent.number - 2))
    reply = unpacked(answer(packed((work.packed, "whole", load_by_value(Task(work, "whole", extents))))))
    assert reply.results == [-1, -1]
    assert reply.raised == "ZeroDivisionError: integer division or modulo by zero"
    reply = unpacked(answer(packed((b"nonsense", "whole", None))))
    assert reply.refused is not None


def app_of(compute: Any, **options: Any) -> tidegate.App:
    app = tidegate.App("sparkling")
    app.table("CREATE TABLE kept (number BIGINT PRIMARY KEY, total DOUBLE, n BIGINT)")
    app.stream("points", "x DOUBLE NOT NULL", border=True)
    made = tidegate.window("points", count=40, slide=20, compute=compute, **{"backend": "spark", **options})

    @app.procedure(inputs="points", writes=["kept"], windows={"recent": made}, on_failure="dead_letter")
    def keep(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        for row in txn.window("recent").results:
            txn.insert("kept", (row.window_number, row.total, row.n))

    return app


POINTS = [(i * 0.1,) for i in range(600)]


def kept(engine: tidegate.Engine) -> str:
    return repr([tuple(row) for row in engine.query("SELECT * FROM kept ORDER BY number")])


def expected(open_engine: Open, compute: Any) -> str:
    engine = open_engine(app_of(compute, backend="local"))
    engine.feed("points", POINTS, size=20)
    return kept(engine)


@pytest.mark.parametrize("form", ["whole", "decomposed", "closure"])
def test_an_app_gives_the_same_as_on_this_machine(spark: Any, open_engine: Open, form: str) -> None:
    scale = 3.0
    compute = {
        "whole": w.whole(sums, "total DOUBLE, n BIGINT"),
        "decomposed": w.decomposed(sums, added, "total DOUBLE, n BIGINT"),
        "closure": w.whole(lambda extent: (scale * sums(extent)[0], 7), "total DOUBLE, n BIGINT"),
    }[form]
    engine = open_engine(app_of(compute), spark=spark)
    engine.feed("points", POINTS, size=20)
    assert kept(engine) == expected(open_engine, compute)
    plan = engine.plan("keep.recent")
    assert {decision.way for decision in plan.decisions.values()} == {SPARK}
    assert "always in two Spark tasks, as asked for" in plan.explain()
    assert "backend   Spark local[" in plan.explain()
    assert engine.runtime.programs["keep"].ahead["recent"].used > 20
    assert not plan.backend.notes


def test_what_raises_on_spark_raises_here(spark: Any, open_engine: Open) -> None:
    compute = w.whole(raises, "total DOUBLE, n BIGINT")
    engine = open_engine(app_of(compute), spark=spark)
    engine.feed("points", POINTS[:200], size=20)
    letters = list(engine.query("SELECT error FROM tidegate.dead_letters"))
    assert len(letters) == 5
    assert all("ArithmeticError: not the fourth" in row.error for row in letters)
    local = open_engine(app_of(compute, backend="local"))
    local.feed("points", POINTS[:200], size=20)
    assert kept(engine) == kept(local)


def test_a_dead_python_worker_is_spark_s_to_replace(
    spark: Any, open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = str(tmp_path / "died")
    monkeypatch.setenv("SPARK_TEST_DIED", died)

    def here(extent: Extent) -> tuple[float, int]:
        os.environ["SPARK_TEST_DIED"] = died
        return dies_once(extent)

    engine = open_engine(app_of(w.whole(here, "total DOUBLE, n BIGINT")), spark=spark)
    engine.feed("points", POINTS, size=20)
    assert Path(died).exists()
    assert kept(engine) == expected(open_engine, w.whole(sums, "total DOUBLE, n BIGINT"))
    assert engine.plan("keep.recent").backend.takeovers == 0


def test_when_jobs_fail_this_machine_takes_over_and_says_so(
    spark: Any, open_engine: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First one attempt fails, then all of them: each is tried again, then nothing more goes there."""
    attempts: list[int] = []
    job = SparkBackend._job

    def fails(self: SparkBackend, *arguments: Any) -> Any:
        attempts.append(1)
        if len(attempts) != 2:
            raise OSError("the cluster is on fire\nat line 7")
        return job(self, *arguments)

    monkeypatch.setattr(SparkBackend, "_job", fails)
    monkeypatch.setattr(spark_backends, "_shared", {})
    app = app_of(w.whole(sums, "total DOUBLE, n BIGINT"), max_delay="1ms")
    engine = open_engine(app, spark=spark, look_ahead=4, executor="manual")  # one evaluation at a time
    with caplog.at_level(logging.WARNING, "tidegate"):
        engine.feed("points", POINTS, size=20)
        engine.run_until_idle()
    assert kept(engine) == expected(open_engine, w.whole(sums, "total DOUBLE, n BIGINT"))
    assert len(attempts) == 2 + 2 * spark_backends.FAILURES
    told = engine.plan("keep.recent").explain()
    assert "a Spark job failed 2 times (the cluster is on fire)" in told
    assert "evaluations in a row failed on Spark: in this process" in told
    assert "the cluster is on fire" in caplog.text
    (row,) = engine.query("SELECT takeovers, note FROM tidegate.evaluations")
    assert row.takeovers == spark_backends.FAILURES
    assert "were evaluated in this process" in row.note


def test_workers_that_can_t_be_had_are_told_of_once_and_tried_again_by_the_next_engine(
    spark: Any, open_engine: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(number: int) -> int:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

        return number

    monkeypatch.setattr(spark_backends, "_shared", {})
    app = app_of(w.whole(sums, "total DOUBLE, n BIGINT"))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "tidegate"):
        patch.setattr("tidegate.streams.spark.jobs.warm", broken)
        engine = open_engine(app, spark=spark)
        backend: Any = engine.plan("keep.recent").backend
        backend.warm()
        engine.feed("points", POINTS, size=20)
    assert kept(engine) == expected(open_engine, w.whole(sums, "total DOUBLE, n BIGINT"))
    told = engine.plan("keep.recent").explain()
    reason = "ModuleNotFoundError: No module named 'no_such_module'; Spark's Python workers lack that module: install it there"
    assert f"Spark did not start ({reason}" in told
    assert [line for line in told.splitlines() if line.startswith("note")] == [
        line for line in told.splitlines() if "windows are evaluated in this process: " + reason in line
    ]
    assert backend.jobs == 0
    again = open_engine(app, spark=spark)
    again.feed("points", POINTS, size=20)
    assert again.plan("keep.recent").backend is backend
    assert backend.jobs > 0
    assert kept(again) == kept(engine)


def test_what_can_t_be_sent_is_evaluated_here(spark: Any, open_engine: Open) -> None:
    import threading

    lock = threading.Lock()

    def locked(extent: Extent) -> tuple[float, int]:
        with lock:
            return sums(extent)

    engine = open_engine(app_of(w.whole(locked, "total DOUBLE, n BIGINT")), spark=spark)
    engine.feed("points", POINTS[:200], size=20)
    assert len(eval(kept(engine))) == 9
    assert "can't be sent to another process" in engine.plan("keep.recent").explain()


def test_by_measured_cost_small_windows_stay_here(spark: Any, open_engine: Open) -> None:
    engine = open_engine(app_of(w.whole(sums, "total DOUBLE, n BIGINT"), backend="auto"), spark=spark)
    engine.feed("points", POINTS, size=20)
    told = engine.plan("keep.recent").explain()
    assert "per window measured over" in told
    assert {d.way for d in engine.plan("keep.recent").decisions.values()} <= {HERE, "threads"}


def test_aggregates_stay_vectorised_and_start_nothing(open_engine: Open) -> None:
    app = tidegate.App("aggregates")
    app.stream("points", "x DOUBLE NOT NULL", border=True)
    made = tidegate.window("points", count=4, compute={"total": w.sum("x")}, backend="spark")

    @app.procedure(inputs="points", windows={"recent": made})
    def look(txn: tidegate.Transaction, points: tidegate.Batch) -> None: ...

    spark = Spark("local[3]")
    engine = open_engine(app, spark=spark)
    engine.feed("points", POINTS[:20])
    assert "vectorised in this process" in engine.plan("look.recent").explain()
    assert not spark.ready
    assert not spark.starting


def test_without_java_opening_says_so(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(environment: Any = None) -> Any:
        raise SparkUnavailable(f"Spark needs Java, and none was found; {java.REMEDIES}")

    monkeypatch.setattr("tidegate.streams.spark.session.find_java", none)
    app = app_of(w.whole(sums, "total DOUBLE, n BIGINT"))
    with pytest.raises(SparkUnavailable, match="none was found"):
        open_engine(app, spark=Spark("local[3]"))
    engine = open_engine(app_of(w.whole(sums, "total DOUBLE, n BIGINT"), backend="auto"), spark=Spark("local[3]"))
    engine.feed("points", POINTS, size=20)
    assert kept(engine) == expected(open_engine, w.whole(sums, "total DOUBLE, n BIGINT"))


def test_every_plan_of_a_window_farm_has_tasks_for_all_slots(tasks: SparkBackend) -> None:
    _, extents = work_of()
    spec = window("every", count=6, slide=2, compute=Whole(text, "t VARCHAR"), pattern=WindowFarm(3))
    jobs = tasks.jobs
    assert Plan(spec, EVERY, tasks).whole(extents) == [text(extent) for extent in extents]
    assert tasks.jobs == jobs + 1


@pytest.mark.slow
def test_a_jvm_that_dies_loses_nothing(tmp_path: Path) -> None:
    code = """
        import logging, os, signal, tidegate
        from tidegate import windows as w
        app = tidegate.App("dying")
        app.table("CREATE TABLE kept (number BIGINT PRIMARY KEY, total DOUBLE)")
        app.stream("points", "x DOUBLE NOT NULL", border=True)
        made = tidegate.window("points", count=4, slide=2, backend="spark",
                               compute=w.whole(lambda e: float(e["x"].sum()), "total DOUBLE"))
        @app.procedure(inputs="points", writes=["kept"], windows={"recent": made})
        def keep(txn, points):
            for row in txn.window("recent").results:
                txn.insert("kept", (row.window_number, row.total))
        with tidegate.open(app) as engine:
            engine.feed("points", [(float(i),) for i in range(100)], size=2)
            backend = engine.plan("keep.recent").backend
            before = backend.jobs
            os.kill(backend.spark._gateway.proc.pid, signal.SIGKILL)
            engine.feed("points", [(float(i),) for i in range(100)], size=2)
            print(before > 0, engine.query("SELECT count(*) FROM kept").scalar(), backend.takeovers > 0)
            os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("True 99 True"), done.stderr
