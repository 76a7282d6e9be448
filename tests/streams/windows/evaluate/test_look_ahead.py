"""Looking ahead changes when windows are evaluated, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import windows as w
from tidegate.errors import DeclarationError, TidegateError
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.foresight import Depth
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.testing import ManualClock

Open = Callable[..., tidegate.Engine]


def summed(extent: Extent) -> tuple[int, int]:
    return len(extent), int(extent["x"].sum())


def added(panes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(n for n, _ in panes), sum(total for _, total in panes)


def refuses_sevens(extent: Extent) -> tuple[int, int]:
    n, total = summed(extent)
    if total % 7 == 0:
        raise ArithmeticError(f"{total} in window {extent.number}")
    return n, total


FORMS = {
    "whole": w.whole(summed, "n BIGINT, total BIGINT"),
    "decomposed": w.decomposed(summed, added, "n BIGINT, total BIGINT"),
}
KINDS: dict[str, dict[str, Any]] = {
    "count": {"count": 6, "slide": 2},
    "time": {"time": 6, "slide": 2, "on": "x"},
    "arrival": {"time": "2s", "slide": "1s"},
    "session": {"session": 3, "on": "x", "by": "k"},
}


def app_of(compute: Any, kind: str = "count", *, key: str | None = None, aborts: int = 0, **more: Any) -> tidegate.App:
    """Keeps every result; a batch whose first x is divisible by ``aborts`` is aborted."""
    app = tidegate.App("ahead")
    app.table(
        "CREATE TABLE kept (batch BIGINT, k INTEGER, number BIGINT, n BIGINT, total BIGINT, PRIMARY KEY (batch, k, number))"
    )
    app.stream("points", "k INTEGER, x BIGINT NOT NULL", border=True, key=key)
    made = tidegate.window("points", **KINDS[kind], compute=compute, backend=more.pop("backend", "auto"))

    @app.procedure(inputs="points", writes=["kept"], windows={"recent": made}, on_failure="dead_letter", **more)
    def keep(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        if aborts and points[0].x % aborts == 0:
            txn.abort("not this one")
        for place, row in enumerate(txn.window("recent").results):
            txn.insert("kept", (txn.batch_id, points[0].k, row.window_number * 100 + place, row.n, row.total))

    return app


def rows_of(number: int) -> list[tuple[int, int]]:
    return [(i % 3, i * 7 % 5 + 2 * i) for i in range(number)]


def play(engine: tidegate.Engine, rows: Sequence[Any]) -> None:
    """Feed the rows with pauses in between, so that windows by the time of arrival fire as well."""
    for start in range(0, len(rows), 25):
        engine.feed("points", rows[start : start + 25], size=5)
        engine.clock.advance(0.7)  # type: ignore[attr-defined]
    engine.run_until_idle()


def kept(engine: tidegate.Engine) -> list[Any]:
    return [tuple(row) for row in engine.query("SELECT * FROM kept ORDER BY ALL")]


def state_of(engine: tidegate.Engine) -> Any:
    states = engine.runtime.programs["keep"].windows["recent"]
    return {key: (state.contents(), state.fired) for key, state in states.items()}


def ahead_of(engine: tidegate.Engine) -> Any:
    return engine.runtime.programs["keep"].ahead["recent"]


@cache
def without(form: str, kind: str, key: str | None, aborts: int) -> tuple[list[Any], Any]:
    """What is kept, and the state of the windows, of a run that does not look ahead."""
    app = app_of(FORMS[form], kind, key=key, aborts=aborts, backend="local")
    with tidegate.open(app, clock=ManualClock()) as plain:
        play(plain, rows_of(150))
        return kept(plain), state_of(plain)


@pytest.mark.parametrize(
    ("kind", "form", "key"),
    [(kind, form, "k" if (i + j) % 2 else None) for i, kind in enumerate(KINDS) for j, form in enumerate(FORMS)],
)
@pytest.mark.parametrize("aborts", [0, 3], ids=["all commit", "some abort"])
def test_the_same_as_without(kind: str, form: str, key: str | None, aborts: int, engine_of: Open) -> None:
    engine = engine_of(app_of(FORMS[form], kind, key=key, aborts=aborts), clock=ManualClock())
    play(engine, rows_of(150))
    rows, state = without(form, kind, key, aborts)
    assert kept(engine) == rows != []
    assert state_of(engine) == state
    ahead = ahead_of(engine)
    assert not ahead.pending
    if engine.config.executor != "threads":  # which may have been fast enough for nothing to wait
        assert ahead.used > 0
        assert bool(ahead.voided) is bool(aborts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("aborts", [0, 3], ids=["all commit", "some abort"])
def test_the_same_on_spark(
    spark: Any, kind: str, form: str, key: str | None, aborts: int, engine_of: Open, open_engine: Open
) -> None:
    """As above, with jobs under way in the background."""
    rows = rows_of(150)
    plain = open_engine(app_of(FORMS[form], kind, key=key, aborts=aborts, backend="local"), clock=ManualClock())
    play(plain, rows)
    app = app_of(FORMS[form], kind, key=key, aborts=aborts, backend="spark")
    engine = engine_of(app, spark=spark, clock=ManualClock())
    backend = engine.plan("keep.recent").backend
    jobs, takeovers = backend.jobs, backend.takeovers  # type: ignore[attr-defined]
    play(engine, rows)
    assert kept(engine) == kept(plain) != []
    assert state_of(engine) == state_of(plain)
    assert backend.jobs > jobs  # type: ignore[attr-defined]
    assert backend.takeovers == takeovers


def test_what_a_function_raises_stays_with_its_batch(engine_of: Open, open_engine: Open) -> None:
    """The windows of one batch raise; those around it are foreseen together with it."""

    def letters(engine: tidegate.Engine) -> list[Any]:
        return [tuple(r) for r in engine.query("SELECT batch_id, error FROM tidegate.dead_letters ORDER BY batch_id")]

    plain = open_engine(app_of(w.whole(refuses_sevens, "n BIGINT, total BIGINT"), backend="local"))
    engine = engine_of(app_of(w.whole(refuses_sevens, "n BIGINT, total BIGINT")))
    for one in (plain, engine):
        one.feed("points", rows_of(120), size=2)
        one.run_until_idle()
    assert kept(engine) == kept(plain)
    assert letters(engine) == letters(plain)
    assert len(letters(engine)) > 3


def test_batches_of_one_push_by_key_are_foreseen_together(open_engine: Open) -> None:
    app = app_of(FORMS["whole"], key="k")
    engine = open_engine(app)
    engine.push("points", [(i % 30, i) for i in range(120)])  # fewer batches than it takes to see that it can't pay
    ahead = ahead_of(engine)
    assert ahead.used > 20
    assert ahead.evaluations < ahead.used / 3


def test_a_retry_takes_what_was_foreseen(open_engine: Open) -> None:
    app = app_of(FORMS["whole"], retries=1)
    failed: set[int] = set()
    keep = app.procedures["keep"].function

    def flaky(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        if txn.batch_id not in failed:
            failed.add(txn.batch_id or 0)
            raise OSError("once")
        keep(txn, points)

    object.__setattr__(app.procedures["keep"], "function", flaky)
    engine = open_engine(app)
    engine.feed("points", rows_of(60), size=2)
    assert len(failed) == 30
    assert ahead_of(engine).used >= 28
    assert ahead_of(engine).voided == 0


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "pushed"])
def test_recovery_looks_ahead_too(tmp_path: Path, open_engine: Open, fed: bool) -> None:
    app = app_of(FORMS["decomposed"], aborts=7)
    engine = open_engine(app, tmp_path / "data")
    rows = rows_of(90)
    if fed:
        engine.feed("points", rows, size=3)
    else:
        for start in range(0, 90, 3):
            engine.push("points", rows[start : start + 3])
        engine.durable.sync()  # type: ignore[union-attr]
    expected, states = kept(engine), state_of(engine)
    engine.abandon()
    again = open_engine(app, tmp_path / "data")
    assert again.recovery.records
    assert kept(again) == expected
    assert state_of(again) == states
    assert ahead_of(again).used > 10
    again.feed("points", rows_of(30), size=3)
    assert len(kept(again)) > len(expected)


def test_results_come_in_order_while_the_next_are_worked_out(open_engine: Open) -> None:
    """The evaluation of later batches is held up; the transactions of those before it go on."""
    held, begun = threading.Event(), threading.Event()

    def waits(extent: Extent) -> tuple[int, int]:
        if extent.number == 60 and threading.current_thread() is not threading.main_thread():
            begun.set()
            assert held.wait(30)
        return summed(extent)

    app = app_of(w.whole(waits, "n BIGINT, total BIGINT"))
    keep, seen = app.procedures["keep"].function, []

    def watched(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        keep(txn, points)
        seen.append(txn.batch_id)
        if begun.is_set():
            held.set()  # this transaction ended although that evaluation has not

    object.__setattr__(app.procedures["keep"], "function", watched)
    engine = open_engine(app)
    engine.feed("points", rows_of(400), size=2)
    assert begun.is_set()
    assert held.is_set()
    assert seen == list(range(1, 201))


def test_a_slow_source_is_not_waited_for(open_engine: Open, clock: Any) -> None:
    """Feed reads ahead for as long as results may take, not until there is enough to look ahead to."""
    engine = open_engine(app_of(FORMS["whole"]))
    ahead_of(engine).depth.now = 256
    found: list[int] = []

    def rows() -> Any:
        for i in range(600):
            clock.advance(0.1)
            found.append(len(kept(engine)) if i == 400 else 0)
            yield i % 3, i

    engine.feed("points", rows(), size=50)
    assert max(found) > 50
    assert len(kept(engine)) == 298


def test_the_next_chunk_is_known_before_the_last_one_has_run(open_engine: Open) -> None:
    """So that whoever evaluates has work while the transactions of a chunk end and rows are read."""
    app = app_of(FORMS["whole"])
    keep, read, behind = app.procedures["keep"].function, [0], []

    def rows() -> Any:
        for i in range(900):
            read[0] += 1
            yield i % 3, i

    def watched(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        keep(txn, points)
        behind.append(read[0] - points[-1].x - 1)

    object.__setattr__(app.procedures["keep"], "function", watched)
    engine = open_engine(app)
    engine.feed("points", rows(), size=2)
    assert behind.index(0) == len(behind) - 1 == 449
    assert not ahead_of(engine).pending
    assert ahead_of(engine).voided == 0


def test_what_was_announced_and_never_ran_is_forgotten(open_engine: Open) -> None:
    app = app_of(FORMS["whole"], key="k")
    keep = app.procedures["keep"].function

    def interrupted(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
        if points[0].x == 100:
            raise KeyboardInterrupt
        keep(txn, points)

    object.__setattr__(app.procedures["keep"], "function", interrupted)
    engine = open_engine(app)
    with pytest.raises(KeyboardInterrupt):
        engine.feed("points", [(i % 7, i) for i in range(2_000)], size=7)
    ahead = ahead_of(engine)
    known = [coming.rows for coming in ahead.pending.values()]
    known += [step.coming.rows for chain in ahead.chains.values() for step in chain.steps]
    assert (
        max(rows[-1].x for rows in known) < 252
    )  # of the chunk that was interrupted, which has its place in the order
    assert len(ahead.chained) == sum(len(chain.steps) for chain in ahead.chains.values())


def test_a_refused_row_in_a_chunk_that_was_read_ahead(open_engine: Open) -> None:
    engine = open_engine(app_of(FORMS["whole"]))
    rows: list[Any] = rows_of(700)
    rows[555] = (1, "five")
    with pytest.raises(tidegate.DataError, match="five") as refused:
        engine.feed("points", rows, size=2)
    assert refused.value.fed == 555  # type: ignore[attr-defined]
    plain = open_engine(app_of(FORMS["whole"], backend="local"))
    plain.feed("points", rows_of(700)[:555], size=2)
    assert kept(engine) == kept(plain)
    assert state_of(engine) == state_of(plain)


def test_interior_streams_say_why_not(open_engine: Open) -> None:
    app = tidegate.App("two_steps")
    app.stream("raw", "x BIGINT NOT NULL", border=True)
    app.stream("clean", "x BIGINT NOT NULL")
    made = tidegate.window("clean", count=4, compute=FORMS["whole"], backend="auto")

    @app.procedure(inputs="raw", outputs="clean")
    def pass_on(txn: tidegate.Transaction, raw: tidegate.Batch) -> None:
        txn.emit("clean", list(raw))

    @app.procedure(inputs="clean", windows={"recent": made})
    def look(txn: tidegate.Transaction, clean: tidegate.Batch) -> None: ...

    engine = open_engine(app)
    engine.feed("raw", [(i,) for i in range(20)], size=2)
    assert "none: batches of clean are known only when it is their turn" in engine.plan("look.recent").explain()


def test_explain_and_the_system_view_tell_what_came_of_it(open_engine: Open) -> None:
    engine = open_engine(app_of(FORMS["whole"]), look_ahead=8)
    engine.feed("points", rows_of(200), size=2)
    told = engine.plan("keep.recent").explain()
    assert "8 allowed, results within 1 s" in told
    assert "by measured cost" in told
    (row,) = engine.query("SELECT * FROM tidegate.evaluations")
    assert (row.procedure, row.name, row.backend) == ("keep", "recent", "auto")
    assert row.foreseen == ahead_of(engine).foreseen >= 32
    assert row.used == ahead_of(engine).used
    assert row.takeovers == 0


def test_without_such_windows_nothing_is_kept(open_engine: Open) -> None:
    engine = open_engine(app_of(FORMS["whole"], backend="local"))
    assert engine.runtime.ahead is None
    assert not engine.runtime.programs["keep"].ahead
    engine = open_engine(app_of(FORMS["whole"]), look_ahead=1)
    assert engine.runtime.ahead is None


def test_the_depth_follows_the_backlog_and_the_target() -> None:
    depth = Depth(limit=64, target_s=1.0, first=2)
    assert depth.of(1) == 1
    assert depth.of(100) == 2
    depth.took(2, 1e-9)
    assert depth.now == 32  # sixteen times as many, at most
    depth.took(
        1, 0.02
    )  # also if few were waiting; 25 would take half a second, but 32 may be less than 32 times as much
    assert depth.now == 32
    depth.took(1, 0.01)  # 50 are half a second, which is enough for the price of a job not to matter
    assert depth.now == 50
    depth.took(32, 0.8)  # 40 would be ready in time, but nothing would be gained
    assert depth.now == 50
    depth.took(32, 3.2)  # more than three times too slow
    assert depth.now == 10
    depth.took(10, 1.1)
    assert depth.now == 9
    assert [depth.of(n) for n in (5, 9, 10, 18, 19)] == [5, 9, 5, 9, 9]  # what takes two evaluations is divided evenly
    depth.took(9, 0.001)
    assert depth.now == 64
    depth.took(64, 1e9)
    assert depth.now == depth.of(50) == 1


def looking_ahead(form: str) -> tuple[LookAhead, Any]:
    """A look-ahead over windows of four rows that slide by two, and the state that it foresees."""
    relation = Relation("points", (Column("k", column_type("INTEGER")), Column("x", column_type("BIGINT"))))
    spec = tidegate.window("points", count=4, slide=2, compute=FORMS[form])
    plan = Plan(spec, relation, timer=lambda: 0.0)
    ahead = LookAhead(plan, lambda: open_state(spec, relation, plan), 64, background=False)
    return ahead, ahead.attach((), open_state(spec, relation, plan))


def test_batches_that_make_nothing_fire_are_ready_at_once_and_tell_nothing_about_cost() -> None:
    ahead, state = looking_ahead("whole")
    first = ahead.depth.now
    single = [[(0, x)] for x in range(9)]
    fired: list[Any] = []

    def slide(batch: Any) -> None:
        slid = state.slide(batch)
        fired.extend(tuple(row)[-2:] for row in slid.results)
        slid.commit()

    for batch in single[:3]:
        ahead.coming((), batch, 0)
    slide(single[0])
    assert [step.ready for step in ahead.chains[()].steps] == [True, True]
    assert (ahead.evaluations, ahead.depth.now) == (0, first)
    for batch in single[3:]:
        ahead.coming((), batch, 0)
    for batch in single[1:]:
        slide(batch)
    assert fired == [(4, 6), (4, 14), (4, 22)]
    assert (ahead.used, ahead.foreseen, ahead.voided) == (9, 9, 0)


def test_windows_of_panes_that_are_being_evaluated_are_not_foreseen_yet() -> None:
    """Also if the batches behind those panes had nothing to evaluate."""
    ahead, state = looking_ahead("decomposed")
    batches = [[(0, 1), (0, 2)], [(0, 3)]]
    for batch in batches:
        ahead.coming((), batch, 0)
    under_way = ahead._begin((), state._state, batches[0])
    assert under_way is not None
    assert len(under_way.steps) == 1
    assert [step.ready for step in ahead.chains[()].steps] == [False, True]
    batches.append([(0, 4)])
    ahead.coming((), batches[2], 0)
    assert ahead._gathered([]).steps == []
    ahead._evaluate(under_way)
    assert len(ahead._gathered([]).steps) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "cloud", "compute": {"n": w.count()}}, "backend must be 'local', 'spark' or 'auto', got 'cloud'"),
        ({"backend": "spark"}, "compute= is missing"),
        ({"max_delay": "1s"}, "compute= is missing"),
        ({"max_delay": "soon", "compute": {"n": w.count()}}, "soon"),
    ],
)
def test_declarations_that_make_no_sense(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        tidegate.window("points", count=2, **given)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(TidegateError, match="config backend='cloud'"):
        tidegate.Config(backend="cloud")  # type: ignore[arg-type]
    with pytest.raises(TidegateError, match="look_ahead must be a positive whole number"):
        tidegate.Config(look_ahead=0)
