"""From a request to its handler in a few dictionary lookups.

Nearly every request is for a path of the table, and goes straight to its handler. Everything else (other methods,
unknown paths, WebSockets) goes to Starlette.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.errors import EngineClosed
from tidegate.server.bodies import check_query
from tidegate.server.context import Context, check_role, check_scope
from tidegate.server.table import Endpoint

Node = dict[str, Any]  # a segment of a path, "{}" for a parameter -> what may follow; a method -> the endpoint
PARAMETER = "{}"


class Direct:
    """An ASGI application for a table of endpoints, with another for everything else. The caller handles errors."""

    def __init__(self, endpoints: Sequence[Endpoint], context: Callable[[], Context], otherwise: ASGIApp) -> None:
        self._root: Node = {}
        self._context = context
        self._otherwise = otherwise
        for endpoint in endpoints:
            node = self._root
            for segment in endpoint.path.split("/")[1:]:
                node = node.setdefault(PARAMETER if segment.startswith("{") else segment, {})
            node[f"{endpoint.method} "] = (endpoint, _parameters(endpoint.path))  # no path segment is equal to this

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        """The endpoint and the parameters in its path; a literal segment takes precedence over a parameter."""
        node: Any = self._root
        values = []
        for segment in path.split("/")[1:]:
            following = None if segment.endswith(" ") else node.get(segment)
            if following is None and segment:
                following = node.get(PARAMETER)
                values.append(segment)
            if following is None:
                return None
            node = following
        found = node.get(f"{method} ")
        return None if found is None else (found[0], dict(zip(found[1], values, strict=True)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._otherwise(scope, receive, send)
            return
        endpoint, scope["path_params"] = found
        state = scope["state"]
        state["route"] = endpoint.path
        check_role(state["holder"], endpoint.roles)
        if scope["query_string"]:
            check_query(scope["query_string"], endpoint.query)
        check_scope(state["holder"], endpoint.path, scope["path_params"])
        context = self._context()
        try:
            answer = await endpoint.handler(Request(scope, receive, send), context)
        except asyncio.CancelledError:
            if context.stopping:
                raise stopped() from None
            raise
        await answer(scope, receive, send)


def stopped() -> EngineClosed:
    """The error for requests that have not finished when the server stops."""
    return EngineClosed(
        "the server is stopping, and the engine was busy for longer than it can wait. It is not known whether the "
        "request was carried out; repeat it when the server is back, with the same batch_id or offset"
    )


def _parameters(path: str) -> list[str]:
    return [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
