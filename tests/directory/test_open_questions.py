"""An open question keeps what it showed: over closing, kills and new code. Asked anew, it is another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doses import broken, doses, make_doses, meds, runs, shown
from recovering import frames

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.errors import BatchError, ProcedureFailed, QuestionChanged, RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.testing import History
from tidegate.testing.history import outcome_of

Kill = Callable[[Engine], None]
MODES = ("weak", "strong", "effects")


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    runs.clear()
    broken.clear()
    yield
    broken.clear()


EVERY_WAY = [(mode, executor) for mode in MODES for executor in ("serial", "manual", "threads")]
every_way = pytest.mark.parametrize("way", EVERY_WAY, ids="-".join)


@pytest.fixture(params=MODES)
def way(request: pytest.FixtureRequest) -> tuple[Any, str]:
    return request.param, "serial"


class Ward:
    """One directory, opened again and again, perhaps with other code."""

    def __init__(self, path: Path, way: tuple[Any, str], open_engine: Callable[..., Engine], kill: Kill) -> None:
        self.path, self.mode, self.executor = path, *way
        self._make, self._kill = open_engine, kill
        self.engine = self.open()

    def open(self, **app: Any) -> Engine:
        made = make_doses(self.mode, **app)
        self.engine = self._make(made, self.path, executor=self.executor, workers=2, merge_every_s=3600.0)
        return self.engine

    def reopened(self, **app: Any) -> Engine:
        self.engine.close()
        return self.open(**app)

    def killed(self, **app: Any) -> Engine:
        self._kill(self.engine)
        return self.open(**app)

    def ask(self, drug: str = "aspirin", batch_id: int = 1) -> Any:
        self.engine.push("orders", [(1, drug)], batch_id)
        self.engine.run_until_idle()
        return self.engine.questions()[-1]

    def answer(self, question: Any, give: bool = True) -> None:
        self.engine.answer(question, give=give)
        self.engine.run_until_idle()


@pytest.fixture
def ward(tmp_path: Path, way: tuple[Any, str], open_engine: Callable[..., Engine], killed: Kill) -> Ward:
    return Ward(tmp_path / "data", way, open_engine, killed)


def undisturbed(mode: Any) -> Any:
    """What the same work comes to in an engine that is never closed."""
    with tidegate.open(make_doses(mode)) as engine:
        engine.push("orders", [(1, "aspirin")], 1)
        engine.answer(engine.questions()[0], give=True)
        return _state(engine)


def _state(engine: Engine) -> Any:
    found = outcome_of(engine.runtime, engine.journal, History())
    return found.tables, found.windows


@every_way
def test_new_code_does_not_change_an_open_question(ward: Ward) -> None:
    ward.ask()
    before = shown(ward.engine)
    assert before[0][-1] == [(1, "aspirin", 5)]
    for mg in (500, 5000):
        assert shown(ward.reopened(mg=mg)) == before, "it is open at once, and as it was"
    ward.answer(ward.engine.questions()[0])
    assert (doses(ward.engine), runs["propose"]) == ([5], 1)
    assert _state(ward.engine) == undisturbed(ward.mode), "tables, windows and random numbers, too"
    assert ward.ask("ibuprofen", 2).batches["proposals"][0].mg == 5000


@every_way
def test_after_a_kill_nothing_in_front_of_the_question_runs_again(ward: Ward) -> None:
    ward.ask()
    before = shown(ward.engine)
    for _ in range(2):
        assert shown(ward.killed()) == before
    ward.engine.run_until_idle()
    assert (shown(ward.engine), runs["propose"]) == (before, 1)
    ward.answer(ward.engine.questions()[0])
    engine = ward.killed()
    assert runs["propose"] == 1
    assert _state(engine) == undisturbed(ward.mode)


def test_verifying_takes_what_was_shown_from_the_log(ward: Ward) -> None:
    ward.answer(ward.ask())
    ward.engine.close()
    found = verify(make_doses(ward.mode), ward.path)
    assert (found.differences, found.replayed["questions"], runs["propose"]) == ([], 1, 1)
    assert ("in front of 1 question" in found.proof) == (ward.mode != "effects")


@every_way
def test_what_was_answered_but_did_not_run_yet_gives_what_was_shown(
    tmp_path: Path, open_engine: Any, way: tuple[Any, str]
) -> None:
    engine = open_engine(make_doses(way[0]), tmp_path, executor="manual")
    engine.push("orders", [(1, "aspirin")], 1)
    engine.run_until_idle()
    engine.answer(engine.questions()[0], give=True)
    engine.close()
    engine = open_engine(make_doses(way[0], mg=500), tmp_path, executor=way[1])
    assert engine.questions() == []
    engine.run_until_idle()
    assert (doses(engine), runs["propose"]) == ([5], 1)


def test_a_retry_begins_behind_the_question(ward: Ward) -> None:
    ward.reopened(retries=2)
    ward.ask()
    ward.reopened(mg=500, retries=2)
    broken.add("give")
    with pytest.raises(ProcedureFailed):
        ward.engine.answer(ward.engine.questions()[0], give=True).result()
    assert (runs["give"], runs["propose"]) == (3, 1)


def _halted_behind_the_question(ward: Ward) -> Engine:
    ward.ask()
    broken.add("give")
    ward.answer(ward.engine.questions()[0])
    assert list(ward.engine.scheduler.halted)
    broken.clear()
    return ward.engine


@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_a_dataflow_that_halted_after_the_answer_uses_it_for_the_same_question(ward: Ward, kill: bool) -> None:
    _halted_behind_the_question(ward)
    engine = ward.killed() if kill else ward.reopened()
    engine.resume()
    engine.run_until_idle()
    assert doses(engine) == [5]
    assert [mg for _, _, mg, _ in meds(ward.killed())] == [5]


@pytest.mark.parametrize("how", ["other code", "other data"])
def test_an_answer_is_not_used_for_what_it_was_not_given_to(ward: Ward, how: str) -> None:
    """The halted transaction lost its locks, so it begins anew, and would ask something else."""
    engine = _halted_behind_the_question(ward)
    if how == "other code":
        engine = ward.reopened(mg=500)
    else:
        engine.call("drink_tea", 1)
    engine.resume()
    engine.run_until_idle()
    (abort,) = engine.query("SELECT procedure, reason FROM tidegate.aborts")
    assert abort.procedure == "give"
    assert "now the question would show something else" in abort.reason
    assert doses(engine) == ([] if how == "other code" else [0])
    before = _state(engine)
    engine = ward.killed(**({"mg": 500} if how == "other code" else {}))
    assert _state(engine) == before
    assert engine.query("SELECT reason FROM tidegate.aborts").rows == [(abort.reason,)]


@every_way
def test_asked_anew_it_is_another_question(ward: Ward) -> None:
    ward.ask()
    ward.reopened(mg=500)
    (old,) = ward.engine.questions()
    ward.engine.reask(old)
    ward.engine.run_until_idle()
    (new,) = ward.engine.questions()
    assert (new.id, new.batch_id, new.batches["proposals"][0].mg) == (old.id, old.batch_id, 500)
    assert new.digest != old.digest
    with pytest.raises(
        QuestionChanged, match=r"names digest .* shows \{'proposals': \[\{'patient': 1.*'mg': 500"
    ) as refused:
        ward.engine.answer(old, give=True)
    assert (refused.value.digest, refused.value.question.batches) == (new.digest, new.batches)
    with pytest.raises(QuestionChanged):
        ward.engine.reask(old)
    before = shown(ward.engine)
    assert shown(ward.killed(mg=500)) == before
    assert runs["propose"] == 2
    ward.answer(new)
    assert doses(ward.killed(mg=500)) == [500]
    ward.engine.close()
    if ward.executor == "serial":
        assert verify(make_doses(ward.mode, mg=500), ward.path).differences == []


def test_what_is_asked_anew_may_end_without_a_question(ward: Ward) -> None:
    """Also after a kill in the middle: the withdrawal is in the log."""
    question = ward.ask()
    broken.add("propose")
    ward.engine.reask(question)
    ward.engine.run_until_idle()
    assert (shown(ward.engine), list(ward.engine.scheduler.halted)) == ([], [("prescribing", 1)])
    with pytest.raises(BatchError, match="is not open"):
        ward.engine.answer(question, give=True)
    engine = ward.killed()
    assert (shown(engine), list(engine.scheduler.halted)) == ([], [("prescribing", 1)])
    broken.clear()
    engine.resume()
    engine.run_until_idle()
    (again,) = engine.questions()
    assert again.digest == question.digest
    ward.answer(again)
    assert doses(ward.killed()) == [5]


def make_two_steps(mode: Any, step: int, writes: Any = ("done",)) -> App:
    app = App("steps", recovery=mode)
    app.table("CREATE TABLE done (n INTEGER PRIMARY KEY, first INTEGER, second INTEGER)")
    app.stream("tasks", "n INTEGER NOT NULL", border=True)
    for name in ("one", "two"):
        app.stream(f"{name}_asked", "n INTEGER, v INTEGER")
        app.stream(f"{name}_said", "v INTEGER", border=True, deadline_s=60, default={"v": 0})

    @app.procedure(inputs="tasks", outputs="one_asked", writes=writes)
    def begin(txn: Transaction, tasks: Batch) -> None:
        runs["begin"] += 1
        txn.insert("done", (tasks[0].n, None, None))
        txn.emit("one_asked", n=tasks[0].n, v=step)

    @app.procedure(inputs=["one_asked", "one_said"], outputs="two_asked")
    def middle(txn: Transaction, asked: Batch, said: Batch) -> None:
        runs["middle"] += 1
        txn.emit("two_asked", n=asked[0].n, v=asked[0].v + said[0].v + step)

    @app.procedure(inputs=["two_asked", "two_said"], writes=writes)
    def end(txn: Transaction, asked: Batch, said: Batch) -> None:
        txn.upsert("done", (asked[0].n, asked[0].v, said[0].v))

    app.nested(begin, middle, end, name="steps")
    return app


@pytest.mark.parametrize("mode", MODES)
def test_the_second_question_anew_keeps_the_first_and_its_answer(mode: Any, tmp_path: Path, killed: Kill) -> None:
    old, new = make_two_steps(mode, 1), make_two_steps(mode, 1000)
    engine = tidegate.open(old, tmp_path)
    engine.push("tasks", [(7,)], 1)
    engine.answer(engine.questions()[0], v=10)
    assert engine.questions()[0].batches["two_asked"][0].v == 12
    engine.close()
    engine = tidegate.open(new, tmp_path, merge_every_s=3600.0)
    engine.reask(engine.questions()[0])
    assert [(name, batch[0].v) for name, batch in engine.questions()[0].batches.items()] == [
        ("one_asked", 1),
        ("two_asked", 1011),
    ]
    for _ in range(2):
        killed(engine)
        engine = tidegate.open(new, tmp_path, merge_every_s=3600.0)
    engine.answer(engine.questions()[0], v=3)
    assert engine.query("SELECT * FROM done").rows == [(7, 1011, 3)]
    assert (runs["begin"], runs["middle"]) == (1, 2)
    engine.close()


def make_renamed(**names: str) -> App:
    """The first question of ``make_two_steps``, with other names and wider rows."""
    app = App("steps")
    app.table(
        "CREATE TABLE finished (n INTEGER PRIMARY KEY, first INTEGER, second INTEGER, note VARCHAR NOT NULL DEFAULT 'old')",
        renamed_from="done",
    )
    app.stream("tasks", "n INTEGER NOT NULL", border=True)
    app.stream("asked", "n INTEGER, v INTEGER, unit VARCHAR DEFAULT 'mg'", renamed_from="one_asked")
    app.stream("said", "v INTEGER", border=True, deadline_s=60, default={"v": 0}, renamed_from="one_said")
    for name in ("two_asked", "two_said"):
        app.stream(name, "n INTEGER, v INTEGER" if name == "two_asked" else "v INTEGER", border=name == "two_said")

    @app.procedure(inputs="tasks", outputs="asked", writes=["finished"], renamed_from="begin")
    def start(txn: Transaction, tasks: Batch) -> None:
        txn.emit("asked", n=0, v=0, unit="kg")

    def decide(txn: Transaction, asked: Batch, said: Batch) -> None:
        found = txn.get("finished", asked[0].n)
        txn.upsert(
            "finished", (asked[0].n, asked[0].v, said[0].v, asked[0].unit + ("" if found is None else found.note))
        )

    app.procedure(inputs=["asked", "said"], writes=["finished"], **names)(decide)

    @app.procedure(inputs=["two_asked", "two_said"])
    def end(txn: Transaction, asked: Batch, said: Batch) -> None: ...

    @app.procedure(inputs="two_said", outputs="two_asked")
    def unused(txn: Transaction, said: Batch) -> None: ...

    app.nested(start, decide, name="stages", renamed_from="steps")
    return app


def test_a_question_follows_renamed_and_wider_streams_and_tables(tmp_path: Path) -> None:
    with tidegate.open(make_two_steps("weak", 1), tmp_path) as engine:
        engine.push("tasks", [(7,)], 1)
        (before,) = engine.questions()
    with pytest.raises(RecoveryRefused, match=r"an answer on said, but stages no longer has middle waiting for said"):
        tidegate.open(make_renamed(), tmp_path)
    with tidegate.open(make_renamed(renamed_from="middle"), tmp_path) as engine:
        (after,) = engine.questions()
        assert (after.unit, after.stream, after.digest) == ("stages", "said", before.digest)
        assert {name: list(batch) for name, batch in after.batches.items()} == {"asked": [(7, 1, "mg")]}
        engine.answer(after, v=3).result()
        assert engine.query("SELECT * FROM finished").rows == [(7, 1, 3, "mgold")]


def test_an_app_in_which_it_can_not_continue_is_refused(tmp_path: Path) -> None:
    with tidegate.open(make_two_steps("weak", 1), tmp_path) as engine:
        engine.push("tasks", [(7,)], 1)
        before = [q.digest for q in engine.questions()]
    with pytest.raises(
        RecoveryRefused, match=r"steps: it waits with batch 1 .* one_said, but steps no longer writes done"
    ):
        tidegate.open(make_two_steps("weak", 1, writes=()), tmp_path)
    with tidegate.open(make_two_steps("weak", 1), tmp_path) as engine:
        assert [q.digest for q in engine.questions()] == before


@pytest.mark.parametrize("mode", MODES)
def test_a_question_whose_record_did_not_reach_the_disk_is_asked_and_logged_again(
    mode: Any, tmp_path: Path, killed: Kill
) -> None:
    engine = tidegate.open(make_doses(mode), tmp_path, merge_every_s=3600.0)
    engine.push("orders", [(1, "aspirin")], 1)
    before = shown(engine)
    killed(engine)
    (segment,) = (tmp_path / "log").iterdir()
    kept = segment.read_bytes()
    place = next(
        f.offset
        for f in frames(kept)
        if b"proposals" in f.data and b"prescribing" not in f.data and b"give" in f.data and f.offset
    )
    segment.write_bytes(kept[:place])
    for asked in (2, 2):
        engine = tidegate.open(make_doses(mode), tmp_path, merge_every_s=3600.0)
        assert shown(engine) == before
        assert runs["propose"] == asked
        killed(engine)


def test_a_deadline_begins_again_when_it_is_opened_or_asked_anew(ward: Ward, clock: Any) -> None:
    question = ward.ask()
    for again in (ward.reopened, ward.killed):
        clock.advance(500)
        assert ward.engine.questions()[0].deadline_in_s == 100
        assert again().questions()[0].deadline_in_s == 600
    clock.advance(500)
    ward.engine.reask(question)
    ward.engine.run_until_idle()
    assert ward.engine.questions()[0].deadline_in_s == 600
    clock.advance(600)
    ward.engine.tick()
    ward.engine.run_until_idle()
    assert (ward.engine.questions(), doses(ward.engine)) == ([], [])
