"""HTTP and WebSocket as a source, for devices that send: at least once, exactly once with a message's own id.

``POST /`` takes a JSON object, a list of them, or NDJSON, and answers 200 once the rows are on disk here; 429 when too
much is waiting, 400 when nothing in it could be read. On a WebSocket every message is answered the same way, by
``{"accepted": n, "rejected": n}``. A device that gets no answer sends again. The stream's procedure can recognise
repeats by an id that the device puts into its rows. Who may send, and how much, is bounded: see
:mod:`tidegate.connectors.http.listening`.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.connectors.http.listening import BoundedServer, Door, Handler, say_busy
from tidegate.connectors.shared.reading import RowReader
from tidegate.connectors.shared.waiting_line import Arrived, WaitingLine, arrived
from tidegate.errors import NotAllowed, Overloaded, ServerError, SourceError
from tidegate.mutex import Flag
from tidegate.outside.sources import Checked, Polled
from tidegate.storage.schema import Relation

ANSWER_S = 30.0
LARGEST_PORT = 65535
LARGEST = 4 << 20  # bytes of a request
LARGEST_MESSAGE = 1 << 20  # bytes of a message on a WebSocket
RECORDS = 10_000  # of a message: each is a row, or a reason why it is not one
DEPTH = 100  # of JSON


class _Pushed:
    """What both sources share: a queue for messages, and a wait for the disk."""

    finished = False

    def __init__(
        self,
        port: int,
        host: str,
        token: str | None,
        capacity: int,
        connections: int,
        fields: Mapping[str, str] | None,
        ignore_unknown: bool,
        allow_hosts: Iterable[str],
        allow_origins: Iterable[str],
    ) -> None:
        if not 0 <= port <= LARGEST_PORT:
            raise SourceError(f"port={port}: give one from 1 to {LARGEST_PORT}, or 0 for any free one", fatal=True)
        for name, value in (("capacity", capacity), ("connections", connections)):
            if type(value) is not int or value < 1:
                raise SourceError(f"{name}={value!r}: give a positive whole number", fatal=True)
        self.host, self.port = host, port
        self._door = Door(host, token, allow_hosts, allow_origins)
        self._connections = connections
        self._options = (fields, ignore_unknown)
        self._capacity = capacity
        self._line = WaitingLine(capacity)
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._listener: threading.Thread | None = None

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        return self._check(name, relation, self.host, self.port)

    @property
    def lag(self) -> int | None:
        """Messages that arrived and are not on disk yet."""
        return len(self._line)

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        if self._listener is not None and not self._listener.is_alive():
            raise SourceError(
                f"nothing listens on {self.host}:{self.port} any more; perhaps this process has too many open files. "
                "The port will be opened again"
            )
        return self._line.take(limit, timeout_s)

    def _listen(self, name: str, serve: Any, *arguments: Any) -> None:
        self._listener = threading.Thread(target=serve, args=arguments, name=f"tidegate-listen-{name}", daemon=True)
        self._listener.start()

    def committed(self, offset: Any) -> None:
        self._line.done()

    def _check(self, name: str, relation: Relation, host: str, port: int) -> Checked:
        """Can we listen there? The port is bound for a moment, without accepting connections."""
        RowReader(relation, *self._options)
        try:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise _deaf(name, host, port, error) from error
        return Checked(f"{host}:{port} is free to listen on" if port else "a free port will be taken", None)

    def _prepare(self, relation: Relation, offset: Any) -> None:
        self._reader = RowReader(relation, *self._options)
        self._line = WaitingLine(self._capacity)
        self._line.open(offset)

    def _accept(self, body: bytes) -> Callable[[], tuple[int, dict[str, Any]]]:
        """Queue a message. Returns a function that waits until it is on disk and gives HTTP status and answer."""
        stored = Flag()
        entry = self._entry(body, stored.set)
        self._line.put(entry)

        def wait() -> tuple[int, dict[str, Any]]:
            if not stored.wait(ANSWER_S):
                return 503, {"error": "not on disk yet; send it again"}
            told: dict[str, Any] = {"accepted": len(entry.rows), "rejected": len(entry.malformed)}
            if entry.malformed:
                told["reason"] = entry.malformed[0].reason
            return (400 if entry.malformed and not entry.rows else 200), told

        return wait

    def _entry(self, body: bytes, done: Any) -> Arrived:
        place = f"{self._run}/{next(self._numbers)}"
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            lines = [line for line in body.splitlines() if line.strip()]
            return arrived(place, _few(lines), self._reader.json, done, len(body))
        if _deep(value):
            raise ServerError(f"JSON may be nested {DEPTH} levels deep, this is deeper", status=400)
        many = isinstance(value, list) and value and isinstance(value[0], (dict, list))
        return arrived(place, _few(value) if many else [value], self._reader.row, done, len(body))


def _few(records: list[Any]) -> list[Any]:
    if len(records) > RECORDS:
        raise ServerError(f"at most {RECORDS} records in one message, this one has {len(records)}", status=413)
    return records


def _deep(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEPTH):
        inner = (v for outer in level for v in (outer.values() if isinstance(outer, dict) else outer))
        level = [v for v in inner if isinstance(v, (dict, list))]
    return bool(level)


def _deaf(name: str, host: str, port: int, error: OSError) -> SourceError:
    return SourceError(
        f"can't listen on {host}:{port}: {error.strerror or error}. Is another process listening there, perhaps this "
        "connector? Give another port, or a host of this machine",
        source=name,
    )


class HttpSource(_Pushed):
    """Listens on ``host:port`` for POST requests.

    ``token``: requests without ``Authorization: Bearer …`` are refused; required if other machines can reach ``host``.
    ``allow_hosts``, ``allow_origins``: names it is reached by besides localhost, and web origins that may send.
    ``connections``: how many at a time, and so how many threads; ``capacity``: messages that may wait for the disk.
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        path: str = "/",
        token: str | None = None,
        capacity: int = 1000,
        connections: int = 100,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
        allow_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
    ) -> None:
        super().__init__(
            port, host, token, capacity, connections, fields, ignore_unknown, allow_hosts, allow_origins
        )  # fmt: skip
        self.path = path
        self._server: BoundedServer | None = None

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        self._prepare(relation, offset)
        source = self

        class Requests(Handler):
            door = self._door
            largest = LARGEST

            def do_POST(self) -> None:
                self.respond(self.taken)

            def taken(self) -> tuple[int, dict[str, Any]]:
                if urlsplit(self.path).path != source.path:
                    return 404, {"error": f"post to {source.path}"}
                try:
                    with source._line.room(self.length()):
                        wait = source._accept(self.body())
                except Overloaded as error:
                    return 429, {"error": str(error)}
                return wait()

        try:
            self._server = BoundedServer((self.host, self.port), Requests, self._connections)
        except OSError as error:
            raise _deaf(name, self.host, self.port, error) from error
        self.port = self._server.server_port
        self._listen(name, self._server.serve_forever, 0.05)

    def close(self) -> None:
        if self._server is not None:
            self._line.close()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class WebSocketSource(_Pushed):
    """Listens on ``host:port`` for WebSocket connections; every message is a row, or several. Needs ``tidegate[server]``.

    The options are those of :class:`HttpSource`.
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        token: str | None = None,
        capacity: int = 1000,
        connections: int = 100,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
        allow_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
    ) -> None:
        super().__init__(
            port, host, token, capacity, connections, fields, ignore_unknown, allow_hosts, allow_origins
        )  # fmt: skip
        if find_spec("websockets") is None:
            raise SourceError("WebSocketSource needs websockets; pip install 'tidegate[server]'", fatal=True)
        self._server: Any = None

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.server import ServerConnection, serve

        self._prepare(relation, offset)
        slots = threading.BoundedSemaphore(self._connections)

        class Bounded(ServerConnection):
            """Limited in number: without a free slot the connection is refused, so no thread stays behind."""

            _held = False

            def __init__(self, socket: Any, *arguments: Any, **named: Any) -> None:
                if not slots.acquire(blocking=False):
                    say_busy(socket)
                    raise ConnectionRefusedError("too many connections")
                self._held = True
                super().__init__(socket, *arguments, **named)

            def close_socket(self) -> None:
                super().close_socket()
                held, self._held = self._held, False
                if held:
                    slots.release()

        def allowed(connection: Any, request: Any) -> Any:
            try:
                self._door.check(request.headers.get_all)
            except NotAllowed as error:
                return connection.respond(error.status, f"{error}\n")
            return None

        def talk(connection: Any) -> None:
            try:
                for message in connection:
                    connection.send(json.dumps(self._answer(message)))
            except ConnectionClosed:
                pass

        try:
            self._server = serve(
                talk,
                self.host,
                self.port,
                process_request=allowed,
                create_connection=Bounded,
                max_size=LARGEST_MESSAGE,
                max_queue=1,
                compression=None,
            )
        except OSError as error:
            raise _deaf(name, self.host, self.port, error) from error
        self.port = self._server.socket.getsockname()[1]
        self._listen(name, self._server.serve_forever)

    def _answer(self, message: bytes | str) -> dict[str, Any]:
        body = message.encode() if isinstance(message, str) else message
        try:
            with self._line.room(len(body)):
                wait = self._accept(body)
            return wait()[1]
        except (Overloaded, ServerError) as error:
            return {"error": str(error)}

    def close(self) -> None:
        if self._server is not None:
            self._line.close()
            self._server.shutdown()
            self._server = None
