"""Questions put to people: what is open, answers that name what they answer, and asking anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.engine.closing import stop_if_torn
from tidegate.errors import BatchError, NotAsked, QuestionChanged, TidegateError, shown, unknown
from tidegate.storage.codec import to_json
from tidegate.storage.halfway import REASKING
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.execution import Execution
from tidegate.txn.log.record import Reasked, to_us
from tidegate.txn.positions import describe

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

NAMED = 5  # open questions that an error names


@dataclass(frozen=True)
class Question:
    """An open nested transaction that waits for a batch: give it to ``engine.answer``, or push the batch to ``stream``
    with this ``batch_id`` (and key).

    ``batches``: what its members have emitted so far, by stream, as the basis for the answer. They stay as they are,
    also after a restart with other code. ``id``: identifies the question; an answer that carries it can't go to another
    question. ``digest``: of all that it shows and would change; an answer that carries it counts only while that is
    the same.
    """

    stream: str
    key: Any
    batch_id: int
    unit: str
    position: str
    asked_s: float
    deadline_in_s: float | None
    batches: dict[str, Batch]
    id: str
    digest: str


def question_id(stream: str, key: Any, batch_id: int) -> str:
    """The id of a question: text, so that no client rounds it."""
    told = json.dumps([stream, to_json(key), batch_id])
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def questions(engine: Engine) -> list[Question]:
    """What waits for an answer now. The caller holds the engine's lock."""
    return [_question(engine, execution) for execution in engine.scheduler.suspended()]


def _question(engine: Engine, execution: Execution) -> Question:
    asked = execution.context.shown[-1]
    assert execution.batch_id is not None
    stream = engine.app.streams[asked.stream]
    asked_s = engine.clock.monotonic() - asked.at
    return Question(
        stream.name,
        execution.key,
        execution.batch_id,
        execution.unit.name,
        describe(execution.position),
        asked_s,
        None if stream.deadline_s is None else max(stream.deadline_s - asked_s, 0.0),
        dict(asked.point.emitted),
        question_id(stream.name, execution.key, execution.batch_id),
        asked.digest,
    )


def told(stream: str, key: Any, batch_id: int) -> str:
    """A question in an error message."""
    return f"the question on {stream} for batch {batch_id}{'' if key is None else f' of key {key!r}'}"


# ---- answering


def answer_rows(engine: Engine, question: Question, rows: Any, values: Mapping[str, Any]) -> list[Any]:
    """The rows of an answer, with the question's key in those that are given by name."""
    border = _awaited(engine, "answer", question.stream)
    given = [values] if rows is None else [rows] if isinstance(rows, Mapping) else list(rows)
    if rows is not None and values:
        raise TidegateError(
            f"answer() takes rows or values by name, not both: got {shown(rows)} and {', '.join(values)}"
        )
    fill = {} if border.key is None else {border.key: question.key}
    given = [{**fill, **row} if isinstance(row, Mapping) else row for row in given]
    wrong = [key for key in border.split(border.check_rows(given)) if key != question.key]
    if wrong:
        raise BatchError(
            f"this answer is for key {wrong[0]!r}, but {told(question.stream, question.key, question.batch_id)} was given; "
            f"leave {border.key!r} out, it is filled in",
            stream=question.stream,
            batch_id=question.batch_id,
        )
    return given


def check_answer(engine: Engine, border: Border, keys: Iterable[Any], batch_id: int, digest: str) -> None:
    """Raise when there is no such question, or when it shows something else than what was answered.

    One that was answered passes: the border detects a different answer. The caller holds the turn.
    """
    _awaited(engine, "push with digest=", border.name)
    with engine.lock:
        here = [q for q in questions(engine) if q.stream == border.name]
        for key in keys:
            asked = [q for q in here if q.key == key and q.batch_id == batch_id]
            if asked and digest not in [q.digest for q in asked]:
                raise _changed(asked[0], digest)
            if not asked and not border.remembers(key, batch_id):
                raise _not_asked(border.name, key, batch_id, here)


def _changed(question: Question, digest: str) -> QuestionChanged:
    batches = {name: [row._asdict() for row in batch] for name, batch in question.batches.items()}
    return QuestionChanged(
        f"{told(question.stream, question.key, question.batch_id)} is not what this answers: the answer names digest "
        f"{digest[:40]!r}, but the question was asked anew and has digest {question.digest!r}. Nothing was accepted. Now it "
        f"shows {shown(batches)}; look at it, then answer that",
        stream=question.stream,
        batch_id=question.batch_id,
        digest=question.digest,
        question=question,
    )


def _not_asked(stream: str, key: Any, batch_id: int, here: list[Question]) -> NotAsked:
    nearest = sorted(here, key=lambda q: q.key != key)[:NAMED]
    named = ", ".join(f"batch {q.batch_id}" + ("" if q.key is None else f" of key {q.key!r}") for q in nearest)
    more = f" and {len(here) - NAMED} more" if len(here) > NAMED else ""
    return NotAsked(
        f"{told(stream, key, batch_id)} is not open: it was never asked, or it was settled long ago. Open there: "
        f"{named or 'none'}{more}. questions() lists them all; an answer ahead of its question is pushed to {stream} without "
        f"a digest",
        stream=stream,
        batch_id=batch_id,
    )


def _awaited(engine: Engine, what: str, stream: str) -> Border:
    if stream not in engine.acceptance.awaited:
        raise unknown(what, "stream that answers questions", stream, engine.acceptance.awaited)
    return engine.borders[stream]


# ---- asking anew


def reask(engine: Engine, question: Question | str, key: Any, batch_id: int | None) -> None:
    """See :meth:`Engine.reask`."""
    if isinstance(question, Question):
        stream, key, batch_id, digest = question.stream, question.key, question.batch_id, question.digest
    elif batch_id is None:
        raise TidegateError(f"reask({question!r}, …) needs the batch-id of the question; engine.questions() lists them")
    else:
        stream, digest = question, ""
    try:
        with engine.turn:
            engine.acceptance.check_ready()
            with engine.lock:
                _withdraw(engine, stream, key, batch_id, digest)
        engine.executor.wake()
    except BaseException:
        stop_if_torn(engine)
        raise


def _withdraw(engine: Engine, stream: str, key: Any, batch_id: int, digest: str) -> None:
    """What is in front of the question is ready to run again. ``digest``: of what was shown, if it matters."""
    _awaited(engine, "reask", stream)
    here = [e for e in engine.scheduler.suspended() if e.reason.stream == stream]
    asked = [e for e in here if (e.key, e.batch_id) == (key, batch_id)]
    if not asked:
        raise _not_asked(stream, key, batch_id, [_question(engine, e) for e in here])
    shown_now = [e for e in asked if digest in ("", e.context.shown[-1].digest)]
    if not shown_now:
        raise _changed(_question(engine, asked[0]), digest)
    for execution in shown_now:
        with engine.halfway.step(REASKING):
            if engine.durable is not None:
                withdrawn = execution.context.shown[-1].digest
                engine.durable.append(Reasked(execution.position, withdrawn, to_us(engine.clock.now())))
            engine.executor.reask(execution)
