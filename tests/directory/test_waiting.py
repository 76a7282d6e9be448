"""Crashes while people are being asked, dataflows are halted and letters are dead: all of it is as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recovering import let_go, make_ward

import tidegate
from tidegate import App, Batch, BatchError, Engine, Transaction
from tidegate.errors import DeadlineExceeded, FeedHalted, ProcedureFailed
from tidegate.testing import History
from tidegate.testing.history import outcome_of
from tidegate.testing.workloads import World
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader

Kill = Callable[[Engine], None]
Way = tuple[Any, str]


class Ward:
    """The ward in one directory: killed and opened again as often as a test likes."""

    def __init__(self, path: Path, way: Way, clock: Any, killed: Kill) -> None:
        self.mode, self.executor = way
        self.path = path
        self.clock = clock
        self._kill = killed
        self.engine = self._open()

    def _open(self) -> Engine:
        return tidegate.open(
            make_ward(self.mode),
            self.path,
            clock=self.clock,
            executor=self.executor,
            workers=3,
            merge_every_s=3600.0,
        )

    def crash(self, checkpoint: bool = False) -> Engine:
        """Kill it (after a checkpoint, or with everything still to be replayed) and open it again."""
        self.engine.run_until_idle()
        if checkpoint:
            self.engine.checkpoint()
        before = state(self.engine)
        self._kill(self.engine)
        self.engine = self._open()
        self.engine.run_until_idle()
        assert state(self.engine) == before, "as if nothing had happened"
        return self.engine

    def push(self, stream: str, *rows: Any, batch_id: int) -> None:
        self.engine.push(stream, rows, batch_id)
        self.engine.run_until_idle()


def state(engine: Engine) -> dict[str, Any]:
    """Tables, windows, aborts, dead letters, and everything unfinished with what it waits for."""
    outcome = outcome_of(engine.runtime, engine.journal, History())
    views = ("executions", "locks")
    columns = {
        "executions": "position, unit, batch_id, key, state, reason",
        "locks": "table_name, partition, position",
    }
    told = {view: sorted(map(tuple, engine.query(f"SELECT {columns[view]} FROM tidegate.{view}"))) for view in views}
    told["executions"] = [
        row[:5] if row[4] == "parked" else row for row in told["executions"]
    ]  # halted behind which of two
    questions = [(q.stream, q.key, q.batch_id, q.position, repr(q.batches)) for q in engine.questions()]
    halted = {halt: e.position for halt, e in engine.scheduler.halted.items()}
    outcome.windows = dict(sorted(outcome.windows.items()))
    return {**vars(outcome), **told, "questions": questions, "halted": halted, "sequence": engine.sequence}


@pytest.fixture(params=[False, True], ids=["from the log", "from a checkpoint"])
def checkpoint(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def ward(tmp_path: Path, way: Way, clock: Any, killed: Kill) -> Any:
    World.down = False
    ward = Ward(tmp_path, way, clock, killed)
    yield ward
    World.down = False
    ward.engine.close()


def meds(engine: Engine) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT * FROM meds ORDER BY ALL")]


def test_a_question_is_open_again_with_the_same_id(ward: Ward, checkpoint: bool) -> None:
    ward.push("orders", (1, "risky A"), (1, "tea"), batch_id=7)
    ward.push("orders", (2, "aspirin"), batch_id=1)
    ward.push("orders", (1, "ibuprofen"), batch_id=9)
    engine = ward.crash(checkpoint)
    (question,) = engine.questions()
    assert (question.stream, question.key, question.batch_id) == ("decisions", 1, 7)
    assert [tuple(row) for row in question.batches["risky"]] == [(1, "risky A")]
    assert meds(engine) == [(2, "aspirin")]
    ward.push("decisions", (1, True), batch_id=7)
    engine = ward.crash(checkpoint)
    assert meds(engine) == [(1, "ibuprofen"), (1, "risky A"), (1, "tea"), (2, "aspirin")]
    assert engine.questions() == []


def test_a_decision_in_the_log_is_not_asked_for_again(tmp_path: Path, way: Way, clock: Any) -> None:
    """The machine stops between the decision and what it leads to: only the log knows of it."""
    mode, executor = way
    engine = tidegate.open(make_ward(mode), tmp_path, clock=clock, executor="manual", merge_every_s=3600.0)
    engine.push("orders", [(1, "risky A")], 7)
    engine.run_until_idle()
    assert len(engine.questions()) == 1
    engine.push("decisions", [(1, True)], 7)
    assert engine.durable is not None
    engine.durable.sync()
    let_go(engine)
    with tidegate.open(make_ward(mode), tmp_path, clock=clock, executor=executor) as engine:
        engine.run_until_idle()
        assert engine.questions() == []
        assert meds(engine) == [(1, "risky A")]
        assert engine.push("decisions", [(1, True)], 7).duplicate
        with pytest.raises(BatchError, match="accepted before with other rows"):
            engine.push("decisions", [(1, False)], 7)


def test_an_early_decision_waits_for_its_question(ward: Ward, checkpoint: bool) -> None:
    ward.push("decisions", (1, True), batch_id=3)
    ward.crash(checkpoint)
    ward.push("orders", (1, "risky A"), batch_id=3)
    assert meds(ward.crash(checkpoint)) == [(1, "risky A")]


def test_the_default_at_a_deadline_is_repeated(ward: Ward, checkpoint: bool) -> None:
    ward.push("orders", (1, "risky A"), batch_id=1)
    ward.clock.advance(601)
    ward.engine.tick()
    ward.push("orders", (1, "aspirin"), batch_id=2)
    engine = ward.crash(checkpoint)
    assert meds(engine) == [(1, "aspirin")]
    assert [a.reason for a in engine.journal.aborts] == ["the doctor said no"]
    with pytest.raises(BatchError):
        engine.push("decisions", [(1, True)], 1)


def test_a_deadline_counts_on_after_a_crash(ward: Ward, checkpoint: bool) -> None:
    ward.push("orders", (1, "risky A"), batch_id=1)
    engine = ward.crash(checkpoint)
    ward.clock.advance(601)
    engine.tick()
    engine.run_until_idle()
    assert engine.questions() == []
    assert [a.reason for a in ward.crash(checkpoint).journal.aborts] == ["the doctor said no"]


def test_a_call_that_waits_for_a_person_is_run_after_the_answer(ward: Ward, checkpoint: bool) -> None:
    ward.push("orders", (1, "risky A"), batch_id=1)
    ward.engine.submit("drugs", 1, 5)
    engine = ward.crash(checkpoint)
    waiting = [e.unit.name for e in engine.scheduler.waiting()]
    assert waiting == ["prescribing", "drugs"]
    ward.push("decisions", (1, True), batch_id=1)
    assert ward.crash(checkpoint).scheduler.idle


def test_halts_and_what_was_put_aside(ward: Ward, checkpoint: bool) -> None:
    ward.push("vitals", (1, 100), (2, 100), batch_id=1)
    World.down = True
    ward.push("vitals", (1, 110), (2, 110), batch_id=2)
    ward.push("vitals", (3, 110), batch_id=2)
    World.down = False
    engine = ward.crash(checkpoint)
    assert {name for name, _ in engine.scheduler.halted} == {"watch"}
    ward.push("vitals", (1, 120), batch_id=3)
    ward.push("orders", (1, "aspirin"), batch_id=1)
    engine = ward.crash(checkpoint)
    assert meds(engine) == [(1, "aspirin")], "other dataflows go on"
    engine.resume()
    engine = ward.crash(checkpoint)
    assert engine.scheduler.idle
    beats = [tuple(row) for row in engine.query("SELECT * FROM beats ORDER BY patient")]
    assert beats == [(1, 3, 330), (2, 2, 210), (3, 1, 110)]


def test_halting_twice(ward: Ward, checkpoint: bool) -> None:
    World.down = True
    ward.push("vitals", (1, 100), batch_id=1)
    ward.push("vitals", (1, 100), batch_id=2)
    for _ in range(2):
        World.down = False
        ward.crash(checkpoint)
        World.down = True
        ward.engine.resume()
        ward.engine.run_until_idle()
    World.down = False
    engine = ward.crash(checkpoint)
    ward.push("vitals", (1, 100), batch_id=3)
    engine.resume()
    engine = ward.crash(checkpoint)
    assert [tuple(row) for row in engine.query("SELECT * FROM beats")] == [(1, 3, 300)]


def cut_off_last_record(path: Path) -> None:
    """The machine stopped just before the last record, and the mark behind it, reached the disk."""
    log = sorted((path / "log").iterdir())[-1]
    ends = [entry.end for entry in LogReader(OsFiles(path / "log"))]
    os.truncate(log, ends[-2] - int(log.stem))


def test_a_halt_that_did_not_reach_the_log_happens_again_and_is_logged(
    tmp_path: Path, clock: Any, killed: Kill
) -> None:
    World.down = True
    ward = Ward(tmp_path, ("weak", "serial"), clock, killed)
    ward.push("vitals", (1, 100), batch_id=1)
    killed(ward.engine)
    cut_off_last_record(tmp_path)
    ward.engine = ward._open()
    assert {name for name, _ in ward.engine.scheduler.halted} == {"watch"}
    ward.push("vitals", (2, 100), batch_id=1)
    World.down = False
    ward.crash()
    ward.engine.resume()
    engine = ward.crash()
    assert [tuple(row) for row in engine.query("SELECT * FROM beats ORDER BY patient")] == [
        (1, 1, 100),
        (2, 1, 100),
    ]
    engine.close()


def test_a_question_stays_open_while_its_dataflow_is_halted(
    tmp_path: Path, way: Way, checkpoint: bool, killed: Kill
) -> None:
    """Halting puts aside what has not begun; a nested transaction that waits for a person has."""
    mode, executor = way
    broken = [True]

    @cache
    def make() -> App:
        app = App("both", recovery=mode)
        app.table("CREATE TABLE t (k INTEGER PRIMARY KEY)", partition_by="k")
        app.stream("asks", "k INTEGER", border=True, key="k")
        app.stream("asked", "k INTEGER")
        app.stream("answers", "k INTEGER", border=True, key="k", deadline_s=600.0, default={})

        @app.procedure(inputs="asks", outputs="asked", writes=[tidegate.partition("t")])
        def ask(txn: Transaction, asks: Batch) -> None:
            if asks[0].k == 2 and broken[-1]:
                raise RuntimeError("broken")
            txn.emit("asked", asks)

        @app.procedure(inputs=["asked", "answers"], writes=[tidegate.partition("t")])
        def answer(txn: Transaction, asked: Batch, answers: Batch) -> None:
            txn.insert("t", asked[0])

        app.nested("ask", "answer", name="asking")
        return app

    def opened() -> Engine:
        engine = tidegate.open(make(), tmp_path, executor=executor, merge_every_s=3600.0)
        engine.run_until_idle()
        return engine

    def crash(engine: Engine) -> Engine:
        engine.run_until_idle()
        if checkpoint:
            engine.checkpoint()
        killed(engine)
        return opened()

    engine = opened()
    engine.push("asks", [(1,)], 1)
    engine.run_until_idle()
    engine.push("asks", [(2,)], 1)
    engine = crash(engine)
    assert [(q.key, q.position) for q in engine.questions()] == [(1, "1.0")]
    engine.push("answers", [(1,)], 1)
    engine = crash(engine)
    assert [row.k for row in engine.query("SELECT k FROM t")] == [1]
    broken.append(False)
    engine.resume()
    engine = crash(engine)
    engine.push("answers", [(2,)], 1)
    engine.run_until_idle()
    assert [row.k for row in engine.query("SELECT k FROM t ORDER BY k")] == [1, 2]
    engine.close()


def test_dead_letters_and_aborts(ward: Ward, checkpoint: bool) -> None:
    ward.push("vitals", (1, 13), (2, 66), batch_id=1)
    ward.push("vitals", (1, 66), (2, 66), batch_id=2)
    engine = ward.crash(checkpoint)
    assert len(engine.journal.dead_letters) == 3
    assert [a.reason for a in engine.journal.aborts] == ["a loose wire"]


def fragile(recovery: Any, world: list[str]) -> App:
    """A procedure and a call whose ends depend on the world outside."""
    app = App("fragile", recovery=recovery)
    app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    app.stream("numbers", "n INTEGER", border=True)

    @app.procedure(inputs="numbers", writes=["t"], deadline_s=0.2)
    def slow(txn: Transaction, numbers: Batch) -> None:
        while world[-1] == "slow":
            pass
        txn.insert("t", numbers[0])

    @app.procedure(writes=["t"])
    def put(txn: Transaction, n: int) -> int:
        if world[-1] == "down":
            raise ConnectionError("unreachable")
        txn.insert("t", (n,))
        return n

    return app


def test_a_failure_that_was_told_stays_one(way: Way, checkpoint: bool, tmp_path: Path, killed: Kill) -> None:
    """A call that failed and a run past its deadline do not succeed in a replay, though now they could."""
    mode, executor = way
    world = ["up"]
    app = fragile(mode, world)
    engine = tidegate.open(app, tmp_path, executor=executor, merge_every_s=3600.0)
    engine.call("put", 1)
    world.append("down")
    with pytest.raises(ProcedureFailed):
        engine.call("put", 2)
    world.append("slow")
    with pytest.raises(DeadlineExceeded):
        engine.push("numbers", [(3,)], 1).result()
    world.append("up")
    engine.push("numbers", [(4,)], 2).result()
    if checkpoint:
        engine.checkpoint()
    aborts = list(engine.journal.aborts)
    killed(engine)
    with tidegate.open(app, tmp_path) as engine:
        assert [row.n for row in engine.query("SELECT n FROM t ORDER BY n")] == [1, 4]
        assert list(engine.journal.aborts) == aborts


@pytest.mark.parametrize("mode", ["weak", "strong", "effects"])
def test_a_halt_in_the_middle_of_a_feed(mode: Any, tmp_path: Path, killed: Kill) -> None:
    """A chunk is one record; the batches behind the one that halted found their dataflow halted."""
    broken = [True]

    @cache
    def make() -> App:
        app = App("feeding", recovery=mode)
        app.table("CREATE TABLE t (n INTEGER PRIMARY KEY, dice DOUBLE)")
        app.stream("numbers", "n INTEGER", border=True)

        @app.procedure(inputs="numbers", writes=["t"])
        def keep(txn: Transaction, numbers: Batch) -> None:
            if numbers[0].n == 5 and broken[-1]:
                raise RuntimeError("five is down")
            txn.insert("t", (numbers[0].n, txn.random.random()))

        return app

    engine = tidegate.open(make(), tmp_path, merge_every_s=3600.0)
    with pytest.raises(FeedHalted, match=r"4 committed, 4 waiting; .*five is down"):
        engine.feed("numbers", [(n,) for n in range(1, 9)])
    broken.append(False)
    engine.resume()
    engine.feed("numbers", [(9,)])
    expected = [tuple(row) for row in engine.query("SELECT * FROM t ORDER BY n")]
    assert len(expected) == 9
    killed(engine)
    with tidegate.open(make(), tmp_path) as engine:
        assert [tuple(row) for row in engine.query("SELECT * FROM t ORDER BY n")] == expected
        assert engine.scheduler.idle
