"""Questions put to people, and their answers: an answer names its question and what it showed, and counts for nothing
else.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.questions import question_id, told
from tidegate.errors import BatchError, DataError, NotAsked, QuestionChanged, unknown
from tidegate.server.answers import json_response
from tidegate.server.bodies import Pushed, read_json, whole_number
from tidegate.server.context import Context, holder_of, log_facts
from tidegate.server.status import question_facts
from tidegate.server.work import push_read
from tidegate.streams.border import Border


async def questions(request: Request, context: Context) -> Response:
    """What open nested transactions wait for, oldest first. Nobody waits here for a procedure that runs meanwhile."""
    engine = context.engine
    found = await asyncio.to_thread(lambda: [question_facts(q, context.feeds.wires) for q in engine.questions()])
    return json_response({"questions": [q for q in found if holder_of(request).may("streams", q["stream"])]})


async def answer(request: Request, context: Context) -> Response:
    """Answer a question: the row is pushed under the question's batch-id, with the question's key in it."""
    row: dict[str, Any] = await read_json(request, context.settings, dict[str, Any])
    border, rows, key, batch_id = _which(request, context, row)
    digest = _required(request, "digest")
    try:
        return await push_read(request, context, border.name, Pushed(list(rows), batch_id), digest)
    except (NotAsked, QuestionChanged):
        raise
    except BatchError as error:
        raise BatchError(
            f"{told(border.name, key, batch_id)} already has a different answer, given by someone else or, at its deadline, "
            "by its default; that answer stands, and this one was not accepted",
            stream=border.name,
            batch_id=batch_id,
        ) from error


async def reask(request: Request, context: Context) -> Response:
    """Withdraw an open question; what led to it runs again, with the code in force now, and asks anew."""
    name, engine = request.path_params["stream"], context.engine
    _awaited(context, name)
    batch_id = whole_number(request.path_params["batch_id"], "batch_id")
    which, digest = _required(request, "question"), _required(request, "digest")

    def withdraw() -> None:
        here = [q for q in engine.questions() if (q.stream, q.batch_id) == (name, batch_id)]
        found = next((q for q in here if q.id == which), None)
        if found is None:
            raise NotAsked(
                f"question {which[:40]!r} on {name} for batch {batch_id} is not open, so there is nothing to ask anew; "
                f"GET /v1/questions lists those that are",
                stream=name,
                batch_id=batch_id,
            )
        engine.reask(replace(found, digest=digest))

    log_facts(request, stream=name, batch_ids=[batch_id])
    await context.driver.do(withdraw)
    return json_response({"reasked": which})


def _required(request: Request, name: str) -> str:
    given = request.query_params.get(name)
    if given is None:
        raise DataError(
            f"say what you mean: ?{name}= the question's {name}, as GET /v1/questions shows it", column=name
        )
    return given


def _awaited(context: Context, name: str) -> Border:
    engine = context.engine
    border = engine.acceptance.border(name)
    if name not in engine.acceptance.awaited:
        raise unknown("answer", "stream that answers questions", name, engine.acceptance.awaited)
    return border


def _which(request: Request, context: Context, row: dict[str, Any]) -> tuple[Border, Any, Any, int]:
    """The stream, the rows, the key and the batch-id of an answer."""
    name = request.path_params["stream"]
    border = _awaited(context, name)
    if border.key is not None and border.key not in row:
        raise DataError(f"say which question: the row needs {border.key!r}, the question's key", column=border.key)
    batch_id = whole_number(request.path_params["batch_id"], "batch_id")
    rows = border.check_rows(context.feeds.wires[name].read([row]))
    (key,) = border.split(rows)
    _check_question(request.query_params.get("question"), name, key, batch_id)
    return border, rows, key, batch_id


def _check_question(given: str | None, stream: str, key: Any, batch_id: int) -> None:
    """An answer that names its question must not reach another one: that means its key or id was changed in transit."""
    expected = question_id(stream, key, batch_id)
    if given is not None and given != expected:
        raise BatchError(
            f"this answer is for question {given[:40]!r}, but {told(stream, key, batch_id)} is question "
            f"{expected!r}; nothing was accepted. Was a key or batch-id rounded in transit? Fetch GET /v1/questions "
            "again, and send back what it says",
            stream=stream,
            batch_id=batch_id,
        )
