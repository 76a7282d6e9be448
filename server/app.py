"""The ASGI application: the table of endpoints behind the gate."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tidegate.engine.engine import Engine
from tidegate.errors import ServerError, TidegateError
from tidegate.server.answers import error_response
from tidegate.server.bodies import check_query
from tidegate.server.context import Context, check_role, check_scope
from tidegate.server.gate import Gate
from tidegate.server.metrics import Metrics
from tidegate.server.openapi import document
from tidegate.server.query import QueryService
from tidegate.server.routing import Direct
from tidegate.server.settings import Settings
from tidegate.server.table import ENDPOINTS, SOCKETS, Endpoint, Query
from tidegate.server.tokens import Tokens
from tidegate.server.tracing import Tracing
from tidegate.wire import encode


def make_app(
    engine: Engine,
    settings: Settings,
    tokens: Tokens,
    queries: QueryService | None = None,
    tracing: Tracing | None = None,
) -> Gate:
    """Everything between a socket and the engine. The caller opens the engine before and closes it afterwards."""
    metrics = Metrics()
    published = encode(document(engine.app, tokens, version("tidegate")))  # OpenAPI wants bounds of integers as numbers

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context = app.state.context = Context(engine, settings, metrics, queries)
        try:
            yield
        finally:
            await context.close()

    async def openapi(request: Request) -> Response:
        check_query(request.scope["query_string"], ())
        return Response(published, media_type="application/json")

    routes: list[Any] = [_route(endpoint) for endpoint in ENDPOINTS]
    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    routes += [_socket(*socket) for socket in SOCKETS]
    inner = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={TidegateError: _refused, HTTPException: _no_route},
    )
    direct = Direct(ENDPOINTS, lambda: inner.state.context, inner)
    return Gate(direct, settings, tokens, metrics, lambda: inner.state.context.let_go(), tracing)


def _route(endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        request.scope["state"]["route"] = endpoint.path
        check_role(request.scope["state"]["holder"], endpoint.roles)
        check_query(request.scope["query_string"], endpoint.query)
        check_scope(request.scope["state"]["holder"], endpoint.path, request.path_params)
        return await endpoint.handler(request, request.app.state.context)

    return Route(endpoint.path, handle, methods=[endpoint.method], name=endpoint.handler.__name__)


def _socket(path: str, handler: Any, roles: tuple[str, ...], query: Query) -> WebSocketRoute:
    async def handle(websocket: WebSocket) -> None:
        try:
            check_role(websocket.scope["state"]["holder"], roles)
            check_scope(websocket.scope["state"]["holder"], path, websocket.path_params)
        except TidegateError as error:
            await websocket.close(1008, str(error)[:120])
            return
        await handler(websocket, websocket.app.state.context, query)

    return WebSocketRoute(path, handle)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, TidegateError)
    return error_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        404: f"there is nothing at {request.url.path[:200]}; /openapi.json lists what there is",
        405: f"{request.url.path[:200]} does not take {request.method}; /openapi.json lists what it takes",
    }.get(error.status_code, error.detail)
    answer = error_response(ServerError(text, status=error.status_code))
    answer.headers.update(error.headers or {})
    return answer
