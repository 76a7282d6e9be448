"""HTTP connections that can't be held open by doing nothing: headers must be small and arrive in time.

uvicorn bounds the time between requests, not the time a request's headers take; a client that sends one byte a minute
would keep its connection (slow loris). And it accepts every connection; here :class:`tidegate.guard.door.Door` does the
accepting, and knows which connections are idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tidegate.guard.door import Door
from tidegate.server.settings import Settings

_REFUSAL = (
    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
)

_TOO_LARGE = "431 Request Header Fields Too Large"


def _names_host(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Does a whole address, as proxies get it (``GET http://host/path``), name the host that is checked?"""
    scheme, separator, rest = url.partition(b"://")
    if url.startswith((b"/", b"*")) or not separator:
        return True
    host = next((value for name, value in headers if name == b"host"), b"")
    return scheme.lower() in (b"http", b"https") and rest.partition(b"/")[0].lower() == host.lower()


def protocol_with(settings: Settings, door: Door) -> type[HttpToolsProtocol]:  # noqa: C901  a class, its methods added up
    """The protocol class for these bounds, in the form that uvicorn expects."""
    header_timeout_s, header_bytes = settings.header_timeout_s, settings.header_bytes

    class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
        _timer: asyncio.TimerHandle | None = None
        _header_size = 0
        _in_headers = True

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            door.enter(transport)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            door.leave(self.transport)
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_headers:
                self._header_size += len(data)
            super().data_received(data)
            if self._in_headers and self._header_size:
                if self._header_size > header_bytes:
                    self._refuse(_TOO_LARGE, f"headers are larger than {header_bytes} bytes")
                elif self._timer is None:
                    self._await_headers()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {"tidegate.abort": self.transport.abort}  # type: ignore[dict-item]

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._stop_timer()
            if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > header_bytes:
                self._refuse(_TOO_LARGE, f"headers are larger than {header_bytes} bytes")
                return
            if sum(name == b"host" for name, _ in self.headers) > 1:  # a proxy may have used the other one
                self._refuse("400 Bad Request", "two Host headers; send one, with the name this server is reached by")
                return
            if not _names_host(self.url, self.headers):
                self._refuse(
                    "400 Bad Request", "the request's address and its Host header name different hosts; send a path"
                )
                return
            door.busy(self.transport)
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete:  # no pipelined request is left
                door.idle(self.transport)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_headers = True
            self._header_size = 0

        def _await_headers(self) -> None:
            self._timer = self.loop.call_later(header_timeout_s, self._headers_late)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _headers_late(self) -> None:
            if self._in_headers and not self.transport.is_closing():
                self._refuse("408 Request Timeout", f"headers did not arrive within {header_timeout_s:g} seconds")

        def _refuse(self, status: str, text: str) -> None:
            body = f'{{"error":{{"type":"ServerError","message":"{text}","facts":{{"status":{status[:3]}}}}}}}'
            if not self.transport.is_closing():
                self.transport.write(_REFUSAL.format(status=status, length=len(body), body=body).encode())
                self.transport.close()

    return BoundedProtocol


def websocket_with(door: Door) -> type[WebSocketsSansIOProtocol]:
    """The protocol class for WebSockets."""

    class AbortableWebSocket(WebSocketsSansIOProtocol):
        """WebSockets that can be aborted: otherwise closing would wait for a peer that does not read."""

        async def run_asgi(self) -> None:
            self.scope["extensions"] = {**(self.scope.get("extensions") or {}), "tidegate.abort": self.transport.abort}  # type: ignore[dict-item]
            await super().run_asgi()

        def connection_lost(self, exc: Exception | None) -> None:
            door.leave(self.transport)
            super().connection_lost(exc)

    return AbortableWebSocket


class BoundedServer(uvicorn.Server):
    """uvicorn behind our own door. It does not handle signals. ``options``: of ``uvicorn.Config``."""

    def __init__(
        self, app: Any, settings: Settings, sock: socket.socket, limit: int, on_stop: Callable[[], None], **options: Any
    ) -> None:
        self._door = Door(sock, limit, "HTTP connections")
        self._handshake_s = settings.handshake_timeout_s
        self._on_stop = on_stop
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_with(settings, self._door),
                ws=websocket_with(self._door),
                lifespan="on",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type]
                **options,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._door.open(self._protocol, self.config.ssl, self._handshake_s)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        self._door.close()
        await super().shutdown(sockets)
