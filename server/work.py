"""Work in: pushes, calls, answers to questions, and what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.dataflows.validation import unknown
from tidegate.errors import CorruptionError, DataError
from tidegate.server.answers import error_response, json_response, ticket_facts
from tidegate.server.bodies import Called, Pushed, read_json, read_push, whole_number
from tidegate.server.context import Context, log_facts
from tidegate.server.driver import Accepted
from tidegate.server.status import question_facts
from tidegate.storage.codec import from_json, to_json
from tidegate.txn.ticket import Ticket
from tidegate.wire import finite

LONGEST_WAIT_S = 300.0
DEFAULT_WAIT_S = 30.0
LOOK_EVERY_S = 0.05


async def push(request: Request, context: Context) -> Response:
    """Push rows to a border stream as one atomic batch."""
    stream = request.path_params["stream"]
    context.engine.intake.border(stream)
    pushed = await read_push(request, context.settings)
    return await _push(request, context, stream, pushed)


async def _push(request: Request, context: Context, stream: str, pushed: Pushed) -> Response:
    wait_s = _wait_s(request)
    rows = context.feeds.wires[stream].read(pushed.rows)
    accepted = await context.driver.push(stream, rows, pushed.batch_id, pushed.source, pushed.offset, pushed.after)
    log_facts(request, stream=stream, batch_ids=accepted.ticket.batch_ids[:10], sequence=accepted.sequence)
    await _settled(context, accepted.ticket, wait_s)
    return _outcome(context, accepted)


async def feed(request: Request, context: Context) -> Response:
    """Push many rows, ``size`` to a batch; answers when all of it is done and on disk."""
    stream = request.path_params["stream"]
    context.engine.intake.border(stream)
    size = whole_number(request.query_params.get("size", "1"), "size")
    pushed = await read_push(request, context.settings)
    rows = context.feeds.wires[stream].read(pushed.rows)
    batches = await context.driver.feed(stream, rows, size, pushed.source, pushed.offset, pushed.after)
    return json_response({"batches": batches})


async def call(request: Request, context: Context) -> Response:
    """Call an OLTP procedure."""
    procedure = request.path_params["procedure"]
    declared = context.engine.app.procedures
    if procedure in declared and declared[procedure].internal:
        raise unknown("call", "procedure", procedure, [name for name, p in declared.items() if not p.internal])
    wait_s = _wait_s(request)
    called: Called = await read_json(request, context.settings, Called)
    arguments, named = called.arguments, called.named
    if called.encoding == "tagged":
        arguments = [untagged(value) for value in arguments]
        named = {name: untagged(value) for name, value in named.items()}
    elif called.encoding != "plain":
        raise DataError(f"encoding is 'plain' or 'tagged', got {called.encoding[:40]!r}", column="encoding")
    accepted = await context.driver.submit(procedure, arguments, named)
    log_facts(request, procedure=procedure, sequence=accepted.sequence)
    await _settled(context, accepted.ticket, wait_s)
    if accepted.ticket.error is not None and wait_s != 0:
        return error_response(accepted.ticket.error)
    return _outcome(context, accepted, called.encoding)


async def ticket(request: Request, context: Context) -> Response:
    """How far a push or call has come that was not done when it was answered."""
    name = request.path_params["ticket"]
    found = context.tickets.find(name)
    await _settled(context, found, _wait_s(request, default="false"))
    facts = {**_facts(found, request.query_params.get("encoding", "plain")), "ticket": None if found.done else name}
    return json_response(facts, 200 if found.done else 202)


async def questions(request: Request, context: Context) -> Response:
    """What open nested transactions wait for, oldest first."""
    engine = context.engine
    found = await context.driver.do(lambda: [question_facts(q, context.feeds.wires) for q in engine.questions()])
    return json_response({"questions": found})


async def answer(request: Request, context: Context) -> Response:
    """Answer a question: the row is pushed under the question's batch-id, with the question's key filled in."""
    stream_name, batch_id = request.path_params["stream"], request.path_params["batch_id"]
    context.engine.intake.border(stream_name)
    stream = context.engine.app.streams[stream_name]
    if not stream.awaited:
        awaited = [s.name for s in context.engine.app.streams.values() if s.awaited]
        raise unknown("answer", "stream that answers questions", stream_name, awaited)
    row = dict(await read_json(request, context.settings, dict[str, Any]))
    if stream.key is not None and stream.key not in row:
        raise DataError(f"say which question: the row needs {stream.key!r}, the question's key", column=stream.key)
    pushed = Pushed([row], whole_number(batch_id, "batch_id"))
    return await _push(request, context, stream_name, pushed)


async def position(request: Request, context: Context) -> Response:
    """The offset that a source pushed last, to go on from."""
    source = request.query_params.get("source")
    if source is None:
        raise DataError("say which source: ?source=NAME", column="source")
    offset = await context.driver.do(lambda: context.engine.position(source))
    return json_response({"source": source, "offset": finite(offset)})


# ---- outcomes


async def _settled(context: Context, found: Ticket, wait_s: float | None) -> None:
    """Wait for the ticket, ``wait_s`` seconds at most. None: until it is done or waits for something outside, as a push to
    an embedded engine does.
    """
    if found.done or wait_s == 0:
        return
    if wait_s is not None:
        await context.driver.finished(found, wait_s)
    elif context.engine.config.executor == "threads":
        for _ in range(int(DEFAULT_WAIT_S / LOOK_EVERY_S)):
            if await context.driver.finished(found, LOOK_EVERY_S) or await context.driver.do(
                lambda: _asks(context, found)
            ):
                return


def _asks(context: Context, found: Ticket) -> bool:
    """Does something that the ticket stands for wait for an answer?"""
    with context.engine.lock:
        return any(found in execution.context.tickets for execution in context.engine.scheduler.suspended())


def _outcome(context: Context, accepted: Accepted, encoding: str = "plain") -> Response:
    """200 when everything it caused has finished; 202, with a ticket to ask by, when it is accepted and goes on."""
    found = accepted.ticket
    facts = {**_facts(found, encoding), "sequence": accepted.sequence}
    if found.done:
        return json_response({**facts, "ticket": None})
    return json_response({**facts, "ticket": context.tickets.keep(found)}, 202)


def _facts(found: Ticket, encoding: str) -> dict[str, Any]:
    value, note = returned(found.value, encoding)
    return {**ticket_facts(found), "value": value, **({} if note is None else {"note": note})}


def returned(value: Any, encoding: str) -> tuple[Any, str | None]:
    """What a procedure returned, as JSON; with a note when that says less than the value did."""
    try:
        tagged = to_json(finite(value) if encoding == "plain" else value)
    except CorruptionError:
        return repr(value), f"the procedure returned {type(value).__name__}, which is shown as text"
    return (tagged, None) if encoding == "tagged" else (finite(value), None)


def untagged(value: Any) -> Any:
    """A value as :func:`tidegate.storage.codec.to_json` writes it."""
    try:
        return from_json(value)
    except (CorruptionError, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise DataError(f"a tagged value can't be read: {error}") from None


def _wait_s(request: Request, default: str = "true") -> float | None:
    """How long to wait: 0 for not at all, None for as long as it runs."""
    wait = request.query_params.get("wait", default)
    if wait not in ("true", "false"):
        raise DataError(f"wait is true or false, got {wait[:40]!r}", column="wait")
    told = request.query_params.get("timeout_s")
    if wait == "false" or told is None:
        return 0.0 if wait == "false" else None
    try:
        seconds = float(told)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise DataError(f"timeout_s is a number of seconds from 0 to {LONGEST_WAIT_S:g}", column="timeout_s")
    return seconds


# ---- for those who run the server


async def resume(request: Request, context: Context) -> Response:
    """Let a halted dataflow go on."""
    dataflow = request.path_params["dataflow"]
    await context.driver.do(lambda: context.engine.resume(dataflow))
    return json_response({"resumed": dataflow})


async def checkpoint(request: Request, context: Context) -> Response:
    """Fold everything committed into the base now."""
    await asyncio.to_thread(context.engine.checkpoint)
    return json_response({"merges": context.engine.merger.count})
