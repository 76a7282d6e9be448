"""Following streams: Server-Sent Events and WebSocket, by name or as a tail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from tidegate.engine.system_views import VIEWS
from tidegate.errors import CursorGone, DataError, Overloaded, TakenOver, TidegateError
from tidegate.server.answers import error_facts, json_response
from tidegate.server.bodies import (
    Acknowledged,
    Sought,
    check_query,
    decode,
    read_json,
    read_on_lag,
    read_start,
    whole_number,
)
from tidegate.server.context import Context, holder_of
from tidegate.server.feeds import Event, Tail
from tidegate.server.named import NamedConnection
from tidegate.server.tokens import Token
from tidegate.wire import speak

log = logging.getLogger("tidegate.server")


def check_subscription_name(name: str) -> None:
    """Raise when a subscription can't have this name."""
    if not name or len(name) > 200 or not name.isprintable():
        raise DataError("a subscription's name must have 1 to 200 printable characters", column="name")


class Subscriber:
    """A connection's side of a subscription: opened, read from, and always released."""

    def __init__(
        self, context: Context, holder: Token, stream: str, query: Mapping[str, str], cursor: str | None
    ) -> None:
        name = query.get("name")
        self._begins = read_start(query.get("start")), read_on_lag(query.get("on_lag"))
        if name is None and (query.get("start") is not None or query.get("on_lag") is not None):
            raise DataError("start= and on_lag= are for named subscriptions: give name=, too", column="name")
        if name is not None:
            check_subscription_name(name)
            holder.check("subscriptions", name)
        self._context = context
        self._holder = holder
        self._entered = False
        self.stream = stream
        self.name = name
        self._cursor = cursor
        self._source: Tail | NamedConnection | None = None

    async def open(self) -> str | None:
        """Begin; returns the cursor of a subscriber that has seen everything so far (None for a named one)."""
        self._context.followers.enter(self._holder)
        self._entered = True
        try:
            return await self._open()
        except BaseException:
            self.close()
            raise

    async def _open(self) -> str | None:
        context = self._context
        if self.name is not None:
            self._source = await context.named.attach(self.stream, self.name, self._cursor, self._holder, *self._begins)
            return None
        settings = context.settings
        self._source = await context.feeds.tail(
            self.stream, self._cursor, settings.buffer_batches, settings.buffer_bytes
        )
        return self._cursor or context.feeds.cursor(self.stream)

    async def take(self, timeout_s: float) -> list[Event]:
        assert self._source is not None
        return await self._source.take(timeout_s)

    async def acknowledge(self, message: Acknowledged) -> None:
        if self.name is None:
            raise DataError("only a named subscription can be acknowledged; subscribe with ?name=NAME", column="name")
        await self._context.named.acknowledge(self.name, message)

    def close(self) -> None:
        if self._entered:
            self._entered = False
            self._context.followers.leave(self._holder)
        if isinstance(self._source, Tail):
            self._context.feeds.leave(self._source)
        elif self._source is not None:
            self._context.named.detach(self._source)


# ---- Server-Sent Events


class EventStream(Response):
    """The answer to an SSE request: lasts until one side ends it."""

    def __init__(self, subscriber: Subscriber, context: Context, first: str | None) -> None:
        super().__init__()
        self._subscriber = subscriber
        self._context = context
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort: Callable[[], None] | None = scope.get("extensions", {}).get("tidegate.abort")
        gone = asyncio.ensure_future(_disconnected(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(sending.exception(), TimeoutError):
                self._context.metrics.dropped.inc()
                log.info(
                    "a subscriber of %s did not read for %g s", self._subscriber.stream, self._context.settings.stall_s
                )
                if abort is not None:
                    abort()
            elif sending.done():
                sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            self._subscriber.close()

    async def _send(self, send: Send) -> None:
        settings = self._context.settings
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opened = b"retry: 1000\n"
        if self._first is not None:
            opened += f"id: {self._first}\n".encode()
        text = opened + b"event: open\ndata: " + speak({"cursor": self._first}) + b"\n\n"
        ended = False
        while True:
            async with asyncio.timeout(settings.stall_s):
                await send({"type": "http.response.body", "body": text, "more_body": not ended})
            if ended:
                return
            try:
                events = await self._subscriber.take(settings.heartbeat_s)
            except TidegateError as error:
                if isinstance(error, Overloaded):
                    self._context.metrics.dropped.inc()
                text, ended = b"event: end\ndata: " + speak(error_facts(error)) + b"\n\n", True
            else:
                text = b"".join(_sse(event) for event in events) if events else b": still here\n\n"


def _sse(event: Event) -> bytes:
    return b"id: " + event.cursor.encode() + b"\nevent: batch\ndata: " + event.data + b"\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def events(request: Request, context: Context) -> Response:
    """Follow a stream by Server-Sent Events."""
    query = request.query_params
    if query.get("name") is None:
        context.engine.check_emitted(request.path_params["stream"])
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")
    cursor = query.get("cursor", request.headers.get("last-event-id")) or None
    subscriber = Subscriber(context, holder_of(request), request.path_params["stream"], query, cursor)
    return EventStream(subscriber, context, await subscriber.open())


# ---- WebSocket


async def socket(websocket: WebSocket, context: Context, known: Collection[str]) -> None:
    """Follow a stream over a WebSocket; a named subscriber acknowledges over it: ``{"cursors": […], "up_to": true}``.

    ``known``: the query parameters it may have.
    """
    query = websocket.query_params
    subscriber: Subscriber | None = None
    tasks: list[asyncio.Task[None]] = []
    try:
        await websocket.accept()
        try:
            check_query(websocket.scope["query_string"], known)
            stream, cursor = websocket.path_params["stream"], query.get("cursor") or None
            subscriber = Subscriber(context, holder_of(websocket), stream, query, cursor)
            first = await subscriber.open()
            await _say(websocket, context, {"event": "open", "cursor": first})
            tasks = [
                asyncio.create_task(_socket_out(websocket, subscriber, context)),
                asyncio.create_task(_socket_in(websocket, subscriber)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except TidegateError as error:
            if isinstance(error, Overloaded):
                context.metrics.dropped.inc()
            await _say(websocket, context, {"event": "end", **error_facts(error)})
            await websocket.close(_code(error))
    except (WebSocketDisconnect, TimeoutError, RuntimeError):
        abort = websocket.scope.get("extensions", {}).get("tidegate.abort")
        if abort is not None:
            abort()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if subscriber is not None:
            subscriber.close()


def _code(error: TidegateError) -> int:
    return 1013 if isinstance(error, Overloaded) else 1008 if isinstance(error, (CursorGone, TakenOver)) else 1003


async def _say(websocket: WebSocket, context: Context, facts: dict[str, Any]) -> None:
    async with asyncio.timeout(context.settings.stall_s):
        await websocket.send_text(speak(facts).decode())


async def _socket_out(websocket: WebSocket, subscriber: Subscriber, context: Context) -> None:
    settings = context.settings
    while True:
        for event in await subscriber.take(settings.heartbeat_s):
            async with asyncio.timeout(settings.stall_s):
                await websocket.send_text(event.data.decode())


async def _socket_in(websocket: WebSocket, subscriber: Subscriber) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        if message.get("text") is None:
            raise DataError('this socket takes text frames with JSON ({"cursors": […]}), but a binary frame arrived')
        await subscriber.acknowledge(decode(message["text"].encode(), Acknowledged))


# ---- named subscriptions


async def subscriptions(request: Request, context: Context) -> Response:
    """The named subscriptions that may be used with this token."""
    holder = holder_of(request)
    found = [facts for facts in await context.named.facts() if holder.may("subscriptions", facts["name"])]
    return json_response({"subscriptions": found})


async def waiting(request: Request, context: Context) -> Response:
    """The oldest batches that a named subscription has not acknowledged, without a connection to follow it."""
    query = request.query_params
    name, stream = request.path_params["name"], query.get("stream")
    if stream is None:
        raise DataError("say which stream: ?stream=NAME", column="stream")
    check_subscription_name(name)
    limit = whole_number(query["limit"], "limit") if "limit" in query else None
    if limit is not None and limit < 1:
        raise DataError(f"limit must be at least 1, got {limit}", column="limit")
    holder = holder_of(request)
    holder.check("streams", stream)
    return json_response({"batches": await context.named.waiting(stream, name, limit, holder)})


async def acknowledge(request: Request, context: Context) -> Response:
    """Acknowledge the batches with these cursors, which are not sent again; ``refused`` makes them dead letters."""
    message: Acknowledged = await read_json(request, context.settings, Acknowledged)
    count = await context.named.acknowledge(request.path_params["name"], message)
    return json_response({"acknowledged": count})


async def seek(request: Request, context: Context) -> Response:
    """Let a named subscription go on from another place: what is before it counts as acknowledged, what is after as new."""
    message: Sought = await read_json(request, context.settings, Sought)
    return json_response(await context.named.seek(request.path_params["name"], read_start(message.to)))


async def topics(request: Request, context: Context) -> Response:
    """What is kept of streams: for how long, from which offset to which, and how much room it takes."""
    holder = holder_of(request)
    view = VIEWS["tidegate_topics"]
    with context.engine.lock:
        found = [dict(zip(view.relation.column_names, row, strict=True)) for row in view.rows(context.engine)]
    return json_response({"topics": [topic for topic in found if holder.may("streams", topic["stream"])]})


async def unsubscribe(request: Request, context: Context) -> Response:
    """Forget a named subscription and what it had not acknowledged."""
    await context.named.remove(request.path_params["name"])
    return json_response({"removed": request.path_params["name"]})
