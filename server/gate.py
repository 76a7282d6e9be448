"""The gate in front of every request: which site it comes from, who sends it, how often, and how it went.

Browsers let any web page send requests to a server on the same machine. So a server refuses requests that name a host
it is not reached by (DNS rebinding) and requests from pages of another origin (cross-site forgery).
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from tidegate.errors import NotAllowed, ServerError, TidegateError
from tidegate.server.answers import error_response
from tidegate.server.metrics import Metrics
from tidegate.server.settings import Settings
from tidegate.server.tokens import Token, Tokens
from tidegate.server.tracing import Tracing

log = logging.getLogger("tidegate.server")

OPEN = ("/health", "/ready")  # for those who watch the server; and the console's own files, which hold no data
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1", "[::1]"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_UNEXPECTED = ServerError("the server failed at this request; its log says how", status=500)
_ADDED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class Rates:
    """How often each holder may ask: a bucket of one second's worth that refills all the time."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}  # name -> (left, at)

    def take(self, name: str, rate: float, now: float) -> float:
        """0 when the request may go on, else the seconds to wait."""
        left, at = self._buckets.get(name, (rate, now))
        left = min(rate, left + (now - at) * rate)
        if left < 1.0 and rate >= 1.0:
            self._buckets[name] = (left, now)
            return (1.0 - left) / rate
        if len(self._buckets) > 10_000:  # addresses come and go; a full bucket is as good as none
            self._buckets = {n: b for n, b in self._buckets.items() if now - b[1] < 1.0}
        self._buckets[name] = (left - 1.0, now)
        return 0.0


class Gate:
    """ASGI middleware around everything else."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        tokens: Tokens,
        metrics: Metrics,
        let_go: Callable[[], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.let_go = let_go  # ends the requests that would last for ever
        self._app = app
        self._settings = settings
        self._tokens = tokens
        self._metrics = metrics
        self._tracing = tracing
        self._rates = Rates()
        self._hosts = {name.lower() for name in settings.allow_hosts}
        self._any_host = not settings.loopback and not settings.allow_hosts
        self._origins = {origin.lower().rstrip("/") for origin in settings.allow_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_ADDED]
            await send(message)

        headers = first_of_each(scope["headers"])
        holder: Token | None = None
        traced = self._tracing if scope["type"] == "http" else None
        span = None if traced is None else traced.begin(scope["method"], headers)
        try:
            self._check_site(headers, scope["path"])
            if scope["path"] not in OPEN and not _console(scope["path"]):
                holder = self._tokens.holder(headers.get("authorization"), dt.datetime.now(dt.UTC))
                self._check_rate(holder, scope)
            scope["state"] = {**scope.get("state", {}), "holder": holder, "headers": headers}
            await self._app(scope, receive, sending)
        except TidegateError as error:
            if scope["type"] == "websocket":
                await WebSocketClose(code=1008, reason=str(error)[:120])(scope, receive, send)
                return
            if status:  # in the middle of an answer: cutting it off is all that is left
                raise
            await error_response(error)(scope, receive, sending)
        except Exception:
            if status or scope["type"] == "websocket":
                raise
            log.exception("a request failed", extra={"facts": {"path": scope["path"], **_told(scope)}})
            await error_response(_UNEXPECTED)(scope, receive, sending)
        finally:
            status = status or 500
            seconds = time.perf_counter() - began
            if scope["type"] == "http":
                self._metrics.request(_route(scope), scope["method"], status, seconds)
                self._log(scope, status, seconds, holder)
                if traced is not None:
                    traced.end(span, scope["method"], _route(scope), status, _told(scope))

    def _check_site(self, headers: Mapping[str, str], path: str) -> None:
        host = headers.get("host", "")
        name = host_name(host)
        if not self._any_host and name not in LOOPBACK_NAMES and name not in self._hosts:
            raise NotAllowed(
                f"this server is not called {name or host!r}; reach it as localhost, or start it with --allow-host",
                status=421,
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().rstrip("/") not in self._origins:
            own = {f"http://{host}".lower(), f"https://{host}".lower()}
            if origin.lower() not in own:
                raise NotAllowed(
                    f"pages of {origin} may not use this server; if they should, start it with --allow-origin {origin}"
                )
        elif origin is None and headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _console(path):
            raise NotAllowed("pages of another site may not use this server")

    def _check_rate(self, holder: Token, scope: Scope) -> None:
        client = scope.get("client")
        name = holder.name if self._tokens.required else str(client[0] if client else "local")
        wait_s = self._rates.take(name, holder.rate or self._settings.rate, time.monotonic())
        if wait_s:
            raise ServerError(
                f"{name} sends more than {holder.rate or self._settings.rate:g} requests a second; wait {wait_s:.3f} s",
                status=429,
                retry_after_s=wait_s,
            )

    def _log(self, scope: Scope, status: int, seconds: float, holder: Token | None) -> None:
        level = logging.WARNING if status >= 500 else logging.INFO if self._settings.log_requests else logging.DEBUG
        if log.isEnabledFor(level):
            facts: dict[str, Any] = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(seconds * 1000, 3),
                "holder": None if holder is None else holder.name,
                **_told(scope),
            }
            log.log(level, "%s %s %s", scope["method"], scope["path"], status, extra={"facts": facts})


def first_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; of one that is sent twice the first, as everyone behind the gate reads it."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


@lru_cache(256)
def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty for what is no host."""
    try:
        found = urlsplit(f"//{host}")
        found.port  # noqa: B018
    except ValueError:
        return ""
    return "" if set(host) & set("/@\\?# ") else (found.hostname or "").lower()


def _console(path: str) -> bool:
    return path == "/" or path.startswith("/console/")


def _told(scope: Scope) -> dict[str, Any]:
    """What the handler had to say about the request."""
    found: dict[str, Any] = scope.get("state", {}).get("log", {})
    return found


def _route(scope: Scope) -> str:
    """The path as declared, so that there are few of them."""
    endpoint = scope.get("state", {}).get("route")
    return endpoint if isinstance(endpoint, str) else "other"
