"""The gate in front of every request: which site it comes from, who sends it, how often, and how it went."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from tidegate.errors import NotAllowed, ServerError, TidegateError
from tidegate.guard.patience import Patience
from tidegate.server.answers import error_response
from tidegate.server.metrics import Metrics
from tidegate.server.settings import Settings
from tidegate.server.sites import Sites
from tidegate.server.tokens import Token, Tokens
from tidegate.server.tracing import Tracing

log = logging.getLogger("tidegate.server")

OPEN = ("/health", "/ready")  # for monitoring; and the console's own files, which hold no data
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
SLOWED = 64  # answers to wrong tokens that are delayed at the same time
_UNEXPECTED = ServerError("the server failed to handle this request; its log has the details", status=500)
_ADDED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class Rates:
    """How often each holder may ask: a token bucket that holds one second's worth and refills continuously."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}  # name -> (left, at)

    def take(self, name: str, rate: float, now: float) -> float:
        """0 when the request may proceed, otherwise the seconds to wait."""
        left, at = self._buckets.get(name, (rate, now))
        left = min(rate, left + (now - at) * rate)
        if left < 1.0 and rate >= 1.0:
            self._buckets[name] = (left, now)
            return (1.0 - left) / rate
        if len(self._buckets) > 10_000:  # addresses come and go; a full bucket need not be kept
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
        self.let_go = let_go  # ends the requests that would last forever
        self._app = app
        self._settings = settings
        self._tokens = tokens
        self._metrics = metrics
        self._tracing = tracing
        self._rates = Rates()
        self._patience = Patience()
        self._slowed = 0  # wrong tokens that wait for their answer
        self._sites = Sites(settings.host, settings.allow_hosts, settings.allow_origins)

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
            self._check_address(scope, headers)
            if scope["path"] not in OPEN and not _console(scope["path"]):
                holder = await self._holder(headers.get("authorization"), scope)
                self._check_rate(holder, scope)
            scope["state"] = {**scope.get("state", {}), "holder": holder, "headers": headers}
            await self._app(scope, receive, sending)
        except TidegateError as error:
            if scope["type"] == "websocket":
                await WebSocketClose(code=1008, reason=str(error)[:120])(scope, receive, send)
                return
            if status:  # in the middle of an answer: it can only be cut off
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

    def _check_address(self, scope: Scope, headers: dict[str, str]) -> None:
        self._sites.check(headers, everyone=_console(scope["path"]))
        if "\ufffd" in scope["path"]:  # which stands for bytes that are no text: two names could become the same one
            raise ServerError("the path is not UTF-8 in percent-encoding; encode its text so", status=400)

    async def _holder(self, authorization: str | None, scope: Scope) -> Token:
        """Who sends this. A right token is never delayed; the answer to a wrong one takes longer every time.

        A token can't be guessed however fast one tries, so attempts on many connections at once are answered
        immediately: connections are scarcer.
        """
        try:
            return self._tokens.holder(authorization, dt.datetime.now(dt.UTC))
        except NotAllowed as error:
            if not getattr(error, "wrong", False):
                raise
            address = _address(scope)
            self._patience.wrong(address, time.monotonic())
            wait_s = self._patience.turn_s(address, time.monotonic())
            if wait_s is None or self._slowed >= SLOWED:
                text = f"too many wrong tokens from {address}; try again in a few seconds"
                raise NotAllowed(text, status=429, retry_after_s=5.0) from None
            self._slowed += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                self._slowed -= 1
            raise

    def _check_rate(self, holder: Token, scope: Scope) -> None:
        name = holder.name if self._tokens.required else _address(scope)
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


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"


def first_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; of one that is sent twice the first, as all code behind the gate reads it."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


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
