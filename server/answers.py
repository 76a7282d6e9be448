"""Answers: JSON, and errors with the status and the facts from which a client can raise the same error."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from tidegate import errors
from tidegate.errors import TidegateError
from tidegate.txn.ticket import Ticket
from tidegate.wire import speak

# the first that fits
STATUS: tuple[tuple[type[TidegateError], int], ...] = (
    (errors.DeclarationError, 404),  # an undeclared name
    (errors.StatementError, 422),
    (errors.DataError, 422),
    (errors.AccessError, 409),
    (errors.NotAsked, 404),
    (errors.BatchError, 409),
    (errors.Aborted, 409),
    (errors.ProcedureFailed, 422),
    (errors.QueryRefused, 422),
    (errors.QueryFailed, 422),
    (errors.FeedHalted, 409),
    (errors.StillWaiting, 409),
    (errors.Overloaded, 503),
    (errors.EngineClosed, 503),
    (errors.DiskFull, 507),
    (errors.LogError, 503),
    (errors.CorruptionError, 500),
    (TidegateError, 400),
)
_SENT = (str, int, float, bool)


def status_of(error: TidegateError) -> int:
    if isinstance(error, errors.ServerError) and error.status is not None:
        return error.status
    return next(status for kind, status in STATUS if isinstance(error, kind))


def error_facts(error: TidegateError) -> dict[str, Any]:
    """An error as JSON: its class, its text, and those of its facts that JSON can represent."""
    facts = {
        name: value
        for name, value in vars(error).items()
        if name != "message"
        and (value is None or isinstance(value, _SENT))
        and not (isinstance(value, float) and not math.isfinite(value))
    }
    return {"type": type(error).__name__, "message": str(error), "facts": facts}


def error_response(error: TidegateError) -> Response:
    status = status_of(error)
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(getattr(error, "retry_after_s", 1))))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return json_response({"error": error_facts(error)}, status, headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(speak(value), status, headers, media_type="application/json")


def ticket_facts(ticket: Ticket) -> dict[str, Any]:
    """The progress of a push or a call. May take the engine's lock: not in the event loop when it is a duplicate."""
    return {
        "done": ticket.done,
        "duplicate": ticket.duplicate,
        "original": [msgspec.structs.asdict(one) for one in ticket.original] or None,
        "batch_ids": ticket.batch_ids,
        "error": None if ticket.error is None else error_facts(ticket.error),
    }
