"""Questions and answers in an open engine: an answer names what it answers; a question is asked anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from doses import broken, doses, make_doses, runs, shown

from tidegate import BatchError, Engine
from tidegate.errors import DataError, DeclarationError, NotAsked, QuestionChanged, TidegateError

Make = Callable[..., Engine]


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    runs.clear()
    broken.clear()
    yield
    broken.clear()


def ask(engine: Engine, *drugs: str, patient: int = 1, batch_id: int = 1) -> Any:
    engine.push("orders", [(patient, drug) for drug in drugs], batch_id)
    engine.run_until_idle()
    return next(q for q in engine.questions() if (q.key, q.batch_id) == (patient, batch_id))


def test_an_answer_by_keyword_has_the_key_filled_in(engine_of: Make) -> None:
    engine = engine_of(make_doses())
    question = ask(engine, "aspirin")
    assert engine.answer(question, give=True).result() is None
    assert doses(engine) == [5]
    assert engine.answer(question, [(1, True)]).duplicate, "the same answer again, as rows"
    with pytest.raises(BatchError, match="accepted before with other rows"):
        engine.answer(question, {"give": False})


def test_answers_that_do_not_fit_are_refused(engine_of: Make) -> None:
    engine = engine_of(make_doses())
    question = ask(engine, "aspirin")
    with pytest.raises(BatchError, match=r"is for key 2, but the question on decisions for batch 1 of key 1 was given"):
        engine.answer(question, [(2, True)])
    with pytest.raises(TidegateError, match="rows or values by name, not both"):
        engine.answer(question, [(1, True)], give=True)
    with pytest.raises(DataError):
        engine.answer(question, given=True)
    with pytest.raises(NotAsked, match=r"batch 7 of key 1 is not open.*Open there: batch 1 of key 1"):
        engine.answer(replace(question, batch_id=7), give=True)
    with pytest.raises(DeclarationError, match="orders"):
        engine.push("orders", [(1, "tea")], 2, digest=question.digest)
    with pytest.raises(BatchError, match="push with batch_id="):
        engine.push("decisions", [(1, True)], digest=question.digest)
    assert len(engine.questions()) == 1
    engine.push("decisions", [(1, True)], 1).result()  # without a digest, as before
    assert doses(engine) == [5]


def test_a_digest_is_of_all_that_is_shown_and_would_change(engine_of: Make) -> None:
    engine = engine_of(make_doses())
    found = [
        ask(engine, "aspirin"),
        ask(engine, "ibuprofen", patient=2),
        ask(engine, "aspirin", "ibuprofen", patient=3),
        ask(engine, "aspirin", patient=4, batch_id=2),
    ]
    assert len({q.digest for q in found}) == 4
    other = engine_of(make_doses())
    assert ask(other, "aspirin").digest == found[0].digest
    rows = engine.query("SELECT question, digest FROM tidegate.questions ORDER BY position").rows
    assert rows == [(q.id, q.digest) for q in found]


def test_asked_anew_by_the_same_code_it_is_the_same(engine_of: Make, clock: Any) -> None:
    engine = engine_of(make_doses())
    question = ask(engine, "aspirin")
    waiting = engine.submit("drink_tea", 1)
    before = shown(engine)
    clock.advance(400)
    engine.reask("decisions", 1, 1)
    engine.run_until_idle()
    assert (shown(engine), runs["propose"]) == (before, 2)
    assert engine.questions()[0].deadline_in_s == 600
    assert not waiting.done, "it kept its locks"
    engine.answer(question, give=True).result()
    waiting.result()
    assert doses(engine) == [5, 0]


def test_only_an_open_question_is_asked_anew(engine_of: Make) -> None:
    engine = engine_of(make_doses())
    question = ask(engine, "aspirin")
    with pytest.raises(NotAsked, match="batch 2 of key 1 is not open"):
        engine.reask("decisions", 1, 2)
    with pytest.raises(QuestionChanged):
        engine.reask(replace(question, digest="another"))
    with pytest.raises(DeclarationError, match="orders"):
        engine.reask("orders", 1, 1)
    with pytest.raises(TidegateError, match="needs the batch-id"):
        engine.reask("decisions", 1)
    engine.answer(question, give=False).result()
    with pytest.raises(NotAsked):
        engine.reask(question)
    assert runs["propose"] == 1


def test_what_is_asked_anew_may_fail(engine_of: Make) -> None:
    engine = engine_of(make_doses())
    question = ask(engine, "aspirin")
    broken.add("propose")
    engine.reask(question)
    engine.run_until_idle()
    assert (engine.questions(), list(engine.scheduler.halted)) == ([], [("prescribing", 1)])
    broken.clear()
    engine.resume()
    engine.run_until_idle()
    assert engine.questions()[0].digest == question.digest
