"""Listening for requests, bounded in every direction: who may send, how much, how slowly, how many at a time.

The checks are those of the server's gate. A request is read by a thread; there are at most ``connections`` of them, and
one more request is told to try again. A request that announces too large a body is refused before it is read; one that
arrives too slowly ends at a fixed deadline.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.connectors.http.arriving import Arriving, TooMuch
from tidegate.errors import NotAllowed, ServerError, SourceError
from tidegate.guard.addresses import is_loopback
from tidegate.server.sites import Sites
from tidegate.server.tokens import Token, Tokens, digest_of

HEADER_BYTES = 32 << 10
HEADER_S = 10.0  # for the request line and the headers
BODY_S = 30.0  # for all of the body
LINGER_BYTES = 1 << 20  # read and dropped after a refusal, so that the answer is not lost along with unread data
LINGER_S = 1.0
RETRY_S = 1
BUSY = json.dumps({"error": "too many connections; send it again later"}).encode()
BUSY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: %d\r\nContent-Length: %d\r\n\r\n%s" % (RETRY_S, len(BUSY), BUSY)
)

Headers = Callable[[str], Sequence[str] | None]  # all values of a header


class Door:
    """Who may send: the sites and the token, checked as by a server. From other machines, only with a token."""

    def __init__(
        self, host: str, token: str | None, allow_hosts: Iterable[str] = (), allow_origins: Iterable[str] = ()
    ) -> None:
        if token is not None and not token.strip():
            raise SourceError("token= is empty; give one that can't be guessed: tidegate token new", fatal=True)
        if token is None and not is_loopback(host):
            raise SourceError(
                f"host={host!r} can be reached from other machines, so senders need a token: give token=, or listen on "
                f"127.0.0.1",
                fatal=True,
            )
        self._sites = Sites(host, allow_hosts, allow_origins, ("allow_hosts=", "allow_origins="))
        self._tokens = Tokens([] if token is None else [Token("device", digest_of(token), frozenset({"push"}))])

    def check(self, headers: Headers) -> None:
        """Raise NotAllowed, with the status to answer."""
        if len(headers("host") or ()) > 1:
            raise NotAllowed("a request must have one Host header, this one has several", status=400)
        names = ("host", "origin", "sec-fetch-site", "authorization")
        first = {name: values[0] for name in names if (values := headers(name))}
        self._sites.check(first)
        self._tokens.holder(first.get("authorization"), dt.datetime.now(dt.UTC))


class BoundedServer(ThreadingHTTPServer):
    """A thread for each request, ``connections`` at most; the next one is told to try again."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[Handler], connections: int) -> None:
        self._slots = threading.BoundedSemaphore(connections)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._slots.release()
                raise
        else:
            say_busy(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is the sender's business; it gets no answer and sends again."""


def say_busy(connection: socket.socket) -> None:
    """Tell a connection that there is no room, if that is possible without blocking."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(BUSY_ANSWER)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(HEADER_BYTES)  # closing with unread data would discard the answer


class Handler(BaseHTTPRequestHandler):
    """One request on one connection; ``answer`` produces the response. A refusal is a ServerError with its status."""

    door: Door
    largest: int

    def setup(self) -> None:
        super().setup()
        self._arriving = Arriving(self.connection, HEADER_BYTES, HEADER_S)
        self.rfile = io.BufferedReader(self._arriving)

    def handle(self) -> None:
        self.close_connection = True
        try:
            super().handle()
        except TooMuch:  # while reading the headers
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.say(431, {"error": f"headers of more than {HEADER_BYTES} bytes"})
            self._linger()

    def respond(self, work: Callable[[], tuple[int, dict[str, Any]]]) -> None:
        """Check the request, do the work, and answer."""
        try:
            self.door.check(self.headers.get_all)
            status, told = work()
        except ServerError as error:
            status, told = error.status or 400, {"error": str(error)}
        except TimeoutError:
            status, told = 408, {"error": f"the body did not arrive within {BODY_S:g} s"}
        self.say(status, told)
        if status >= 400:
            self._linger()

    def body(self) -> bytes:
        """The whole body: exactly as long as announced, and at most ``largest``."""
        length = self.length()
        self._arriving.allow(length + io.DEFAULT_BUFFER_SIZE, BODY_S)
        data = self.rfile.read(length)
        if len(data) < length:
            raise ServerError(f"{length} bytes were announced, but only {len(data)} came", status=400)
        return data

    def length(self) -> int:
        """The announced length of the body; ServerError when there is none, or it is too large."""
        given = self.headers.get_all("content-length") or []
        if self.headers.get("transfer-encoding") is not None or not given:
            raise ServerError("send the length of the body in Content-Length, without Transfer-Encoding", status=411)
        if len(set(given)) > 1 or not (given[0].isascii() and given[0].isdigit()):
            raise ServerError(f"Content-Length must be one whole number, got {', '.join(given)[:100]!r}", status=400)
        if len(given[0]) > 18 or int(given[0]) > self.largest:
            raise ServerError(f"at most {self.largest} bytes", status=413)
        return int(given[0])

    def say(self, status: int, told: dict[str, Any]) -> None:
        self.say_text(status, json.dumps(told), "application/json")

    def say_text(self, status: int, text: str, kind: str) -> None:
        data = text.encode(errors="backslashreplace")
        self.connection.settimeout(HEADER_S)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-content-type-options", "nosniff")
        if status in (429, 503):
            self.send_header("retry-after", str(RETRY_S))
        self.end_headers()
        self.wfile.write(data)

    def _linger(self) -> None:
        self._arriving.allow(LINGER_BYTES, LINGER_S)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1():
                pass

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
