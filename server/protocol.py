"""HTTP connections that can't be held open by doing nothing: headers must be small and arrive in time.

uvicorn bounds the time between requests, not the time a request's headers take; a client that sends one byte a minute
would keep its connection (slow loris).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_REFUSAL = (
    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
)

_TOO_LARGE = "431 Request Header Fields Too Large"


def protocol_with(header_timeout_s: float, header_bytes: int) -> type[HttpToolsProtocol]:
    """The protocol class for these bounds, in the form that uvicorn wants it."""

    class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
        _timer: asyncio.TimerHandle | None = None
        _header_size = 0
        _in_headers = True

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
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
            super().on_headers_complete()

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


class AbortableWebSocket(WebSocketsSansIOProtocol):
    """WebSockets that can be cut off: a peer that does not read would otherwise be waited for."""

    async def run_asgi(self) -> None:
        self.scope["extensions"] = {**(self.scope.get("extensions") or {}), "tidegate.abort": self.transport.abort}  # type: ignore[dict-item]
        await super().run_asgi()
