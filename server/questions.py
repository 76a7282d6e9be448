"""Questions put to people, and their answers: an answer names its question, and only an open question accepts it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.dataflows.validation import unknown
from tidegate.engine.engine import Engine
from tidegate.engine.system_views import question_id
from tidegate.errors import BatchError, DataError, NotAsked
from tidegate.server.answers import json_response
from tidegate.server.bodies import Pushed, read_json, whole_number
from tidegate.server.context import Context, holder_of
from tidegate.server.status import question_facts
from tidegate.server.work import push_read

SHOWN = 5  # open questions that an error names


async def questions(request: Request, context: Context) -> Response:
    """What open nested transactions wait for, oldest first."""
    engine = context.engine
    found = await context.driver.do(lambda: [question_facts(q, context.feeds.wires) for q in engine.questions()])
    return json_response({"questions": [q for q in found if holder_of(request).may("streams", q["stream"])]})


async def answer(request: Request, context: Context) -> Response:
    """Answer a question: the row is pushed under the question's batch-id, with the question's key in it."""
    name, engine = request.path_params["stream"], context.engine
    border = engine.acceptance.border(name)
    if not engine.app.streams[name].awaited:
        awaited = [s.name for s in engine.app.streams.values() if s.awaited]
        raise unknown("answer", "stream that answers questions", name, awaited)
    row: dict[str, Any] = await read_json(request, context.settings, dict[str, Any])
    if border.key is not None and border.key not in row:
        raise DataError(f"say which question: the row needs {border.key!r}, the question's key", column=border.key)
    batch_id = whole_number(request.path_params["batch_id"], "batch_id")
    rows = border.check_rows(context.feeds.wires[name].read([row]))
    (key,) = border.split(rows)
    _check_question(request.query_params.get("question"), name, key, batch_id)
    await context.driver.do(lambda: _check_open(engine, name, key, batch_id))
    try:
        return await push_read(request, context, name, Pushed(list(rows), batch_id))
    except BatchError as error:
        raise BatchError(
            f"{_told(name, key, batch_id)} already has a different answer, given by someone else or, at its deadline, "
            "by its default; that answer stands, and this one was not accepted",
            stream=name,
            batch_id=batch_id,
        ) from error


def _check_question(given: str | None, stream: str, key: Any, batch_id: int) -> None:
    """An answer that names its question must not reach another one: that means its key or id was changed in transit."""
    expected = question_id(stream, key, batch_id)
    if given is not None and given != expected:
        raise BatchError(
            f"this answer is for question {given[:40]!r}, but {_told(stream, key, batch_id)} is question "
            f"{expected!r}; nothing was accepted. Was a key or batch-id rounded in transit? Fetch GET /v1/questions "
            "again, and send back what it says",
            stream=stream,
            batch_id=batch_id,
        )


def _check_open(engine: Engine, stream: str, key: Any, batch_id: int) -> None:
    """Raise when there is no such question. One that was answered passes: the push detects a different answer.

    Only an answer closes an open question, so the push that follows can't miss it.
    """
    open_here = [q for q in engine.questions() if q.stream == stream]
    if any(q.key == key and q.batch_id == batch_id for q in open_here):
        return
    with engine.lock:
        if engine.borders[stream].remembers(key, batch_id):
            return
    nearest = sorted(open_here, key=lambda q: q.key != key)[:SHOWN]
    named = ", ".join(f"batch {q.batch_id}" + ("" if q.key is None else f" of key {q.key!r}") for q in nearest)
    more = f" and {len(open_here) - SHOWN} more" if len(open_here) > SHOWN else ""
    raise NotAsked(
        f"{_told(stream, key, batch_id)} is not open: it was never asked, or it was settled long ago. Open there: "
        f"{named or 'none'}{more}. GET /v1/questions lists them all; an answer ahead of its question is pushed to "
        f"/v1/streams/{stream}/batches",
        stream=stream,
        batch_id=batch_id,
    )


def _told(stream: str, key: Any, batch_id: int) -> str:
    return f"the question on {stream} for batch {batch_id}{'' if key is None else f' of key {key!r}'}"
