"""Incoming work: pushes and calls, and their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.engine import Engine
from tidegate.errors import CorruptionError, DataError, unknown
from tidegate.server.answers import error_response, json_response, ticket_facts
from tidegate.server.bodies import LARGE, Advanced, Called, Pushed, aside, read_json, read_push, whole_number
from tidegate.server.context import Context, holder_of, log_facts
from tidegate.server.driver import Accepted
from tidegate.storage.codec import from_json, to_json
from tidegate.txn.entries import Call
from tidegate.txn.ticket import Ticket
from tidegate.wire import finite, read_value, tagged, whole

LONGEST_WAIT_S = 300.0
DEFAULT_WAIT_S = 30.0
LOOK_EVERY_S = 0.05
SHOWN = 100  # halts, and rows of each, in an answer


async def push(request: Request, context: Context) -> Response:
    """Push rows to a border stream as one atomic batch."""
    stream = request.path_params["stream"]
    pushed = await read_push(request, context.settings, row_reader(context, stream))
    _check_source(request, pushed)
    return await push_read(request, context, stream, pushed)


def _check_source(request: Request, pushed: Pushed) -> None:
    if pushed.source is not None:
        holder_of(request).check("sources", pushed.source)


def row_reader(context: Context, stream: str) -> Callable[[list[Any], bool], list[Any]]:
    """What makes rows of a border stream from JSON. Many rows are checked right there, not on the engine's thread."""
    border, wire = context.engine.acceptance.border(stream), context.feeds.wires[stream]

    def read(rows: list[Any], large: bool) -> list[Any]:
        found = wire.read(rows)
        return list(border.check_rows(found)) if large else found

    return read


async def push_read(
    request: Request, context: Context, stream: str, pushed: Pushed, digest: str | None = None
) -> Response:
    """Push rows that were read. ``digest``: they answer the question that shows this."""
    wait_s = _wait_s(request)
    assert not isinstance(pushed.batch_id, str)
    accepted = await context.driver.push(
        stream, pushed.rows, pushed.batch_id, pushed.source, pushed.offset, pushed.after, digest
    )
    log_facts(request, stream=stream, batch_ids=accepted.ticket.batch_ids[:10], sequence=accepted.sequence)
    await _settled(context, accepted.ticket, wait_s)
    return await _outcome(request, context, accepted)


async def feed(request: Request, context: Context) -> Response:
    """Push many rows, ``size`` per batch; responds when all of it is done and on disk."""
    stream = request.path_params["stream"]
    reading = row_reader(context, stream)
    size = whole_number(request.query_params.get("size", "1"), "size")
    pushed = await read_push(request, context.settings, reading)
    _check_source(request, pushed)
    if pushed.batch_id is not None:
        raise DataError(
            f"feed makes many batches and numbers them itself, so it takes no batch_id (got {pushed.batch_id}); send source, "
            f"offset and after to have a repeat recognised, or push one batch to /v1/streams/{stream}/batches",
            column="batch_id",
        )
    fed = await context.driver.feed(stream, pushed.rows, size, pushed.source, pushed.offset, pushed.after)
    return json_response({**vars(fed), "committed": fed.committed})


async def advance(request: Request, context: Context) -> Response:
    """Say that no row before a time will follow on a border stream."""
    stream = request.path_params["stream"]
    border = context.engine.acceptance.border(stream)
    told: Advanced = await read_json(request, context.settings, Advanced)
    key = told.key if border.key is None else read_value(border.relation.column(border.key).type, told.key)
    number = None if told.batch_id is None else whole(told.batch_id)
    return await _passed(
        request, context, lambda: context.engine.advance(stream, whole(told.to), key=key, batch_id=number, timeout_s=0)
    )


async def finish(request: Request, context: Context) -> Response:
    """Say that nothing will follow on a border stream: all that waits for time fires."""
    stream = request.path_params["stream"]
    return await _passed(request, context, lambda: context.engine.finish(stream, timeout_s=0))


async def finish_all(request: Request, context: Context) -> Response:
    """Say that nothing will follow on any border stream."""
    return await _passed(request, context, lambda: context.engine.finish(timeout_s=0))


async def _passed(request: Request, context: Context, act: Callable[[], Ticket]) -> Response:
    wait_s = _wait_s(request)
    accepted = await context.driver.pass_time(act)
    log_facts(request, batch_ids=accepted.ticket.batch_ids[:10], sequence=accepted.sequence)
    await _settled(context, accepted.ticket, wait_s)
    return await _outcome(request, context, accepted)


async def call(request: Request, context: Context) -> Response:
    """Call an OLTP procedure."""
    procedure = request.path_params["procedure"]
    declared = context.engine.app.procedures
    if procedure in declared and declared[procedure].internal:
        raise unknown("call", "procedure", procedure, [name for name, p in declared.items() if not p.internal])
    wait_s = _wait_s(request)
    prepare = partial(_prepared, context.engine, procedure)
    prepared, encoding = await read_json(request, context.settings, Called, prepare)
    accepted = await context.driver.submit(prepared)
    log_facts(request, procedure=procedure, sequence=accepted.sequence)
    await _settled(context, accepted.ticket, wait_s)
    if accepted.ticket.error is not None and wait_s != 0:
        return error_response(accepted.ticket.error)
    return await _outcome(request, context, accepted, encoding)


def _prepared(engine: Engine, procedure: str, called: Called) -> tuple[Call, str]:
    arguments, named = called.arguments, called.named
    if called.encoding == "tagged":
        arguments = [untagged(value) for value in arguments]
        named = {name: untagged(value) for name, value in named.items()}
    elif called.encoding not in ("plain", "text"):
        raise DataError(f"encoding must be plain, tagged or text, got {called.encoding[:40]!r}", column="encoding")
    elif procedure in engine.graph.oltp:
        text = called.encoding == "text"
        if text and not all(isinstance(value, str) for value in (*arguments, *named.values())):
            raise DataError("with encoding text, every argument is a text", column="encoding")
        arguments, named = engine.runtime.programs[procedure].arguments.read(arguments, named, text)
    return engine.acceptance.prepare_call(procedure, tuple(arguments), named), called.encoding


async def ticket(request: Request, context: Context) -> Response:
    """The progress of a push or call that was not done when its request was answered."""
    name = request.path_params["ticket"]
    found = context.tickets.find(name, holder_of(request))
    await _settled(context, found, _wait_s(request, default="false"))
    more = {"ticket": None if found.done else name}
    return await _told(found, request.query_params.get("encoding", "plain"), more, 200 if found.done else 202)


async def position(request: Request, context: Context) -> Response:
    """The offset that a source pushed last, to continue from: after all that was queued before, its own last push, too."""
    source = request.query_params.get("source")
    if source is None:
        raise DataError("name the source: ?source=NAME", column="source")
    holder_of(request).check("sources", source)
    offset = await context.driver.do(lambda: context.engine.position(source))
    exact = request.query_params.get("encoding", "plain") == "tagged"
    return json_response({"source": source, "offset": tagged(offset) if exact else finite(offset)})


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
    """Does an execution of this ticket wait for an answer?"""
    with context.engine.lock:
        return any(found in execution.context.tickets for execution in context.engine.scheduler.suspended())


async def _outcome(request: Request, context: Context, accepted: Accepted, encoding: str = "plain") -> Response:
    """200 when everything it caused has finished; 202, with a ticket's name, when it is accepted and still running."""
    found = accepted.ticket
    name = None if found.done else context.tickets.keep(found, holder_of(request))
    return await _told(found, encoding, {"sequence": accepted.sequence, "ticket": name}, 202 if name else 200)


async def _told(found: Ticket, encoding: str, more: dict[str, Any], status: int) -> Response:
    """What is known about a ticket; in a thread when that takes the engine's lock, or is large."""

    def tell() -> Response:
        value, note = returned(found.value, encoding)
        noted = {} if note is None else {"note": note}
        return json_response({**ticket_facts(found), "value": value, **noted, **more}, status)

    if found.look is not None:
        return await asyncio.to_thread(tell)
    return await aside(LARGE + 1 if _heavy(found.value) else 0, tell)


def _heavy(value: Any, most: int = 10_000) -> bool:
    """Are there many values in it, or is it much text?"""
    left, size = [value], 0
    while left:
        one = left.pop()
        if isinstance(one, (list, tuple, dict, str, bytes)):
            size += len(one)
            if size > most:
                return not isinstance(one, (str, bytes)) or size > LARGE
            if not isinstance(one, (str, bytes)):
                left.extend(one.values() if isinstance(one, dict) else one)
    return False


def returned(value: Any, encoding: str) -> tuple[Any, str | None]:
    """What a procedure returned, as JSON; with a note when that loses information."""
    try:
        if encoding != "plain":
            return tagged(value), None
        to_json(value)  # can JSON represent it?
        return finite(value), None
    except CorruptionError:
        return repr(value), f"the procedure returned {type(value).__name__}, which is shown as text"


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
        raise DataError(f"wait must be true or false, got {wait[:40]!r}", column="wait")
    told = request.query_params.get("timeout_s")
    if wait == "false" or told is None:
        return 0.0 if wait == "false" else None
    try:
        seconds = float(told)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise DataError(f"timeout_s must be a number of seconds from 0 to {LONGEST_WAIT_S:g}", column="timeout_s")
    return seconds


# ---- for operators


async def halted(_: Request, context: Context) -> Response:
    """What is halted: the error, where in the app's code, and the batch it stopped in front of."""
    return json_response({"halted": await asyncio.to_thread(halts, context)})


def halts(context: Context) -> list[dict[str, Any]]:
    """What is halted, as JSON."""
    with context.engine.lock:
        found = context.engine.halted()
    wires = context.feeds.wires
    return [
        {**vars(one), "batches": {name: wires[name].write(batch.rows[:SHOWN]) for name, batch in one.batches.items()}}
        for one in found[:SHOWN]
    ]


async def resume(request: Request, context: Context) -> Response:
    """Resume a halted dataflow, or one key of it."""
    return await _continue(request, context, context.engine.resume, "resumed")


async def skip(request: Request, context: Context) -> Response:
    """Move the batch that a halted dataflow stopped in front of to the dead letters, and continue after it."""
    return await _continue(request, context, context.engine.skip, "skipped")


async def _continue(request: Request, context: Context, act: Callable[..., None], done: str) -> Response:
    dataflow, key = request.path_params["dataflow"], request.query_params.get("key")
    engine = context.engine

    def job() -> None:
        keys = {str(one): one for name, one in engine.scheduler.halted if name == dataflow}
        act(dataflow, **({} if key is None else {"key": keys.get(key, key)}))

    await context.driver.do(job)
    return json_response({done: dataflow, "key": key})


async def requeue(request: Request, context: Context) -> Response:
    """Accept the batch of a dead letter again, as new work under a new id."""
    letter = request.path_params["position"]

    def job() -> Ticket:
        return context.engine.requeue(letter)

    found = await context.driver.do(job)
    await _settled(context, found, DEFAULT_WAIT_S)
    return await _outcome(request, context, Accepted(found, context.engine.sequence))


async def checkpoint(_: Request, context: Context) -> Response:
    """Fold everything committed into the base now."""
    await asyncio.to_thread(context.engine.checkpoint)
    return json_response({"merges": context.engine.merger.count})
