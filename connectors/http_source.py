"""HTTP and WebSocket as a source, for devices that send: at least once, exactly once with a message's own id.

``POST /`` takes a JSON object, a list of them, or NDJSON, and answers 200 after the rows are on disk here; 429 when too
much waits, 400 when nothing in it could be read. On a WebSocket every message is answered the same way, by
``{"accepted": n, "rejected": n}``. A device that gets no answer sends again. The stream's procedure can tell by an id that the
device puts into its rows.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.connectors.reading import RowReader
from tidegate.connectors.waiting_line import Arrived, WaitingLine, arrived
from tidegate.errors import Overloaded, SourceError
from tidegate.sources import Checked, Chunk
from tidegate.storage.schema import Relation

ANSWER_S = 30.0
LARGEST_PORT = 65535
LARGEST = 4 << 20  # bytes of a message


class _Pushed:
    """What both have in common: a line that messages wait in, and a wait for the disk."""

    finished = False

    def __init__(self, port: int, capacity: int, fields: Mapping[str, str] | None, ignore_unknown: bool) -> None:
        if not 0 <= port <= LARGEST_PORT:
            raise SourceError(f"port={port}: give one from 1 to {LARGEST_PORT}, or 0 for any that is free", fatal=True)
        self._options = (fields, ignore_unknown)
        self._capacity = capacity
        self._line = WaitingLine(capacity)
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)

    @property
    def lag(self) -> int | None:
        """Messages that came and are not on disk yet."""
        return len(self._line)

    def poll(self, limit: int, timeout_s: float) -> Chunk | None:
        return self._line.take(limit, timeout_s)

    def committed(self, position: Any) -> None:
        self._line.done()

    def _check(self, name: str, relation: Relation, host: str, port: int) -> Checked:
        """Can we listen there? The port is bound for a moment, and nobody can connect to it meanwhile."""
        RowReader(relation, *self._options)
        try:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise _deaf(name, host, port, error) from error
        return Checked(f"{host}:{port} is free to listen on" if port else "a free port will be taken", None)

    def _prepare(self, relation: Relation, position: Any) -> None:
        self._reader = RowReader(relation, *self._options)
        self._line = WaitingLine(self._capacity)
        self._line.open(position)

    def take(self, body: bytes | str) -> tuple[int, dict[str, Any]]:
        """A message: returns when it is on disk, with the HTTP status and what to answer."""
        stored = threading.Event()
        entry = self._entry(body.encode() if isinstance(body, str) else body, stored.set)
        try:
            self._line.put(entry)
        except Overloaded as error:
            return 429, {"error": str(error)}
        if not stored.wait(ANSWER_S):
            return 503, {"error": "not on disk yet; send it again"}
        told: dict[str, Any] = {"accepted": len(entry.rows), "rejected": len(entry.malformed)}
        if entry.malformed:
            told["reason"] = entry.malformed[0].reason
        return (400 if entry.malformed and not entry.rows else 200), told

    def _entry(self, body: bytes, done: Any) -> Arrived:
        place = f"{self._run}/{next(self._numbers)}"
        try:
            value = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return arrived(place, [line for line in body.splitlines() if line.strip()], self._reader.json, done)
        many = isinstance(value, list) and value and isinstance(value[0], (dict, list))
        return arrived(place, value if many else [value], self._reader.row, done)


def _deaf(name: str, host: str, port: int, error: OSError) -> SourceError:
    return SourceError(
        f"can't listen on {host}:{port}: {error.strerror or error}. Does another process, perhaps this connector, listen there? "
        "Give another port, or a host of this machine",
        source=name,
    )


class HttpSource(_Pushed):
    """Listens on ``host:port`` for POST requests. ``token``: those without ``Authorization: Bearer …`` are refused."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        path: str = "/",
        token: str | None = None,
        capacity: int = 1000,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        super().__init__(port, capacity, fields, ignore_unknown)
        self.host, self.port, self.path = host, port, path
        self.token = token
        self._server: ThreadingHTTPServer | None = None

    def check(self, name: str, relation: Relation, position: Any) -> Checked:
        return self._check(name, relation, self.host, self.port)

    def open(self, name: str, relation: Relation, position: Any) -> None:
        self._prepare(relation, position)
        source = self

        class Handler(BaseHTTPRequestHandler):
            timeout = ANSWER_S

            def do_POST(self) -> None:
                self.answer(*self.taken())

            def taken(self) -> tuple[int, dict[str, Any]]:
                length = int(self.headers.get("content-length") or 0)
                if length > LARGEST:
                    return 413, {"error": f"at most {LARGEST} bytes"}
                body = self.rfile.read(length)
                if urlsplit(self.path).path != source.path:
                    return 404, {"error": f"post to {source.path}"}
                if source.token is not None and self.headers.get("authorization") != f"Bearer {source.token}":
                    return 401, {"error": "no token, or a wrong one"}
                return source.take(body)

            def answer(self, status: int, told: dict[str, Any]) -> None:
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((self.host, self.port), Handler)
        except OSError as error:
            raise _deaf(name, self.host, self.port, error) from error
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=f"tidegate-http-{name}", daemon=True
        ).start()

    def close(self) -> None:
        if self._server is not None:
            self._line.close()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class WebSocketSource(_Pushed):
    """Listens on ``host:port`` for WebSocket connections; every message is a row, or several. Needs ``tidegate[server]``."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        token: str | None = None,
        capacity: int = 1000,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        super().__init__(port, capacity, fields, ignore_unknown)
        if find_spec("websockets") is None:
            raise SourceError("WebSocketSource needs websockets; pip install 'tidegate[server]'", fatal=True)
        self.host, self.port = host, port
        self.token = token
        self._server: Any = None

    def check(self, name: str, relation: Relation, position: Any) -> Checked:
        return self._check(name, relation, self.host, self.port)

    def open(self, name: str, relation: Relation, position: Any) -> None:
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.server import serve

        self._prepare(relation, position)

        def allowed(connection: Any, request: Any) -> Any:
            if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
                return connection.respond(401, "no token, or a wrong one\n")
            return None

        def talk(connection: Any) -> None:
            try:
                for message in connection:
                    connection.send(json.dumps(self.take(message)[1]))
            except ConnectionClosed:
                pass

        try:
            self._server = serve(talk, self.host, self.port, process_request=allowed, max_size=LARGEST)
        except OSError as error:
            raise _deaf(name, self.host, self.port, error) from error
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, name=f"tidegate-websocket-{name}", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._line.close()
            self._server.shutdown()
            self._server = None
