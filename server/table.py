"""Every endpoint, in one table: routing, roles and the OpenAPI document all come from here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from tidegate.server import asking, following, looking, questions, work
from tidegate.server.context import Context

Handler = Callable[[Request, Context], Awaitable[Response]]
Expand = Literal["border", "interior", "awaited", "procedure"]

Query = dict[str, tuple[dict[str, Any], str]]

WAIT: Query = {
    "wait": ({"type": "boolean", "default": True}, "Respond only when everything it caused has finished."),
    "timeout_s": (
        {"type": "number", "minimum": 0, "maximum": 300},
        "How long to wait; without it, until it is done or waits for outside input (a person).",
    ),
}
LATER: Query = {**WAIT, "wait": ({"type": "boolean", "default": False}, "Wait until it is done.")}
WORK = {200: "ticket", 202: "ticket"}
TAGS = {"type": "string", "enum": ["plain", "tagged"], "default": "plain"}
CALL_TAGS = {"type": "string", "enum": ["plain", "tagged", "text"], "default": "plain"}


@dataclass(frozen=True)
class Endpoint:
    """One operation. ``roles``: any of them is enough. ``expand``: documented once for each stream or procedure."""

    method: str
    path: str
    handler: Handler
    roles: tuple[str, ...] = ()
    expand: Expand | None = None
    query: Query = field(default_factory=dict)
    body: str | None = None  # name of a schema, or of a group of them
    answers: dict[int, str] = field(default_factory=lambda: {200: "object"})
    hidden: bool = False

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]


KEY: Query = {"key": ({"type": "string"}, "Only this key of it.")}
PLACE: Query = {
    "source": ({"type": "string"}, "The source whose offset is stored with the batch."),
    "offset": ({"type": "string", "contentMediaType": "application/json"}, "The offset, as JSON."),
    "after": (
        {"type": "string", "contentMediaType": "application/json"},
        "The offset before this one, as JSON; a repeat is recognised, an out-of-order push is refused.",
    ),
}
BATCH: Query = {
    "batch_id": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "Ids ascend; a repeat changes nothing and returns the outcome of the original.",
    ),
    **PLACE,
}
FOLLOW: Query = {
    "cursor": ({"type": "string"}, "Continue after this batch; the header Last-Event-ID does the same."),
    "name": ({"type": "string", "minLength": 1, "maxLength": 200}, "A named, durable subscription."),
    "start": ({"type": "string"}, "Where a new name begins: now, earliest, an offset, or a time in ISO 8601."),
    "on_lag": (
        {"type": "string"},
        "What becomes of what waits: keep, block, or drop:100000 (the oldest, beyond so many).",
    ),
}
ENCODING: Query = {"encoding": (TAGS, "Of the value.")}
DIGEST: Query = {"digest": ({"type": "string"}, "The digest of what the question showed; required.")}
ANSWERED: Query = {"question": ({"type": "string"}, "The question's id, as it was asked; recommended."), **DIGEST}
WITHDRAWN: Query = {"question": ({"type": "string"}, "The question's id, as it was asked; required."), **DIGEST}

ENDPOINTS = (
    Endpoint("POST", "/v1/streams/{stream}/batches", work.push, ("push",), "border", {**WAIT, **BATCH}, "rows", WORK),
    Endpoint(
        "POST",
        "/v1/streams/{stream}/feed",
        work.feed,
        ("push",),
        "border",
        {"size": ({"type": "integer", "minimum": 1, "default": 1}, "Rows per batch."), **PLACE},
        "fed",
    ),
    Endpoint("POST", "/v1/streams/{stream}/advance", work.advance, ("push",), "border", WAIT, "advance", WORK),
    Endpoint("POST", "/v1/streams/{stream}/finish", work.finish, ("push",), "border", WAIT, answers=WORK),
    Endpoint("POST", "/v1/finish", work.finish_all, ("admin",), None, WAIT, answers=WORK),
    Endpoint(
        "GET",
        "/v1/streams/{stream}/events",
        following.events,
        ("query",),
        "interior",
        FOLLOW,
        answers={200: "events"},
    ),
    Endpoint("POST", "/v1/procedures/{procedure}", work.call, ("call",), "procedure", WAIT, "call", WORK),
    Endpoint(
        "GET",
        "/v1/tickets/{ticket}",
        work.ticket,
        ("push", "call"),
        None,
        {**LATER, **ENCODING},
        answers=WORK,
    ),
    Endpoint("GET", "/v1/questions", questions.questions, ("query", "push")),
    Endpoint(
        "POST",
        "/v1/questions/{stream}/{batch_id}",
        questions.answer,
        ("push",),
        "awaited",
        {**WAIT, **ANSWERED},
        "row",
        WORK,
    ),
    Endpoint(
        "POST",
        "/v1/questions/{stream}/{batch_id}/reask",
        questions.reask,
        ("admin",),
        "awaited",
        WITHDRAWN,
    ),
    Endpoint(
        "GET",
        "/v1/position",
        work.position,
        ("push",),
        None,
        {"source": ({"type": "string"}, "The source; required."), **ENCODING},
    ),
    Endpoint("GET", "/v1/subscriptions", following.subscriptions, ("query",)),
    Endpoint(
        "GET",
        "/v1/subscriptions/{name}/batches",
        following.waiting,
        ("query",),
        None,
        {
            "stream": ({"type": "string"}, "The stream it follows; required. A new name starts with the next batch."),
            "limit": ({"type": "integer", "minimum": 1}, "How many at most; all without it."),
        },
    ),
    Endpoint("POST", "/v1/subscriptions/{name}/ack", following.acknowledge, ("query",), body="ack"),
    Endpoint("POST", "/v1/subscriptions/{name}/seek", following.seek, ("query",), body="seek"),
    Endpoint("GET", "/v1/topics", following.topics, ("query",)),
    Endpoint("DELETE", "/v1/subscriptions/{name}", following.unsubscribe, ("query",)),
    Endpoint("POST", "/v1/query", asking.query, ("query",), body="query", answers={200: "result"}),
    Endpoint("GET", "/v1/status", looking.status, ("query",)),
    Endpoint("GET", "/v1/app", looking.describe_app),
    Endpoint(
        "GET",
        "/v1/graph",
        looking.graph,
        ("query",),
        None,
        {"format": ({"type": "string", "enum": ["json", "text", "mermaid", "svg"], "default": "json"}, "")},
        answers={200: "graph"},
    ),
    Endpoint("GET", "/v1/halted", work.halted, ("query",)),
    Endpoint("POST", "/v1/dataflows/{dataflow}/resume", work.resume, ("admin",), None, KEY),
    Endpoint("POST", "/v1/dataflows/{dataflow}/skip", work.skip, ("admin",), None, KEY),
    Endpoint("POST", "/v1/dead_letters/{position}/requeue", work.requeue, ("admin",)),
    Endpoint("POST", "/v1/checkpoint", work.checkpoint, ("admin",)),
    Endpoint("GET", "/metrics", looking.metrics, ("query",), answers={200: "text"}),
    Endpoint("GET", "/health", looking.health),
    Endpoint("GET", "/ready", looking.ready, answers={200: "object", 503: "object"}),
    Endpoint("GET", "/", looking.console, hidden=True),
    Endpoint("GET", "/console/{file}", looking.console, hidden=True),
)
SOCKETS = (("/v1/streams/{stream}/socket", following.socket, ("query",), FOLLOW),)
