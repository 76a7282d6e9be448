"""Running a server: open the engine, start the query replica, listen, and close in the right order."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.errors import TidegateError
from tidegate.guard.door import room_for
from tidegate.server.app import make_app
from tidegate.server.protocol import BoundedServer
from tidegate.server.query import QueryService
from tidegate.server.settings import Settings
from tidegate.server.tokens import Tokens
from tidegate.server.tracing import Tracing

log = logging.getLogger("tidegate.server")
CLOSE_S = 10
SWITCH_S = 0.001  # between the threads of event loop, engine and log; with Python's 5 ms requests wait for each other


def check_exposed(settings: Settings, tokens: Tokens) -> None:
    """A server that other machines can reach requires tokens."""
    if not settings.loopback and not tokens.required:
        raise TidegateError(
            f"listening on {settings.host} lets other machines connect, and there are no tokens. Create one with "
            "`tidegate token new --role push --role query`, put it into a file, and pass --tokens FILE; or listen on "
            "127.0.0.1"
        )


def listen(settings: Settings) -> socket.socket:
    """A listening socket; raises with the likely cause."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise TidegateError(
            f"can't listen on {settings.host} port {settings.port}: {error.strerror}; is another server running "
            "there? Choose another --port"
        ) from None
    found.listen(2048)
    return found


def serve(
    engine: Engine,
    settings: Settings,
    tokens: Tokens,
    queries: QueryService | None = None,
    *,
    tracing: Tracing | None = None,
    on_ready: Callable[[str], Any] = lambda url: None,
) -> None:
    """Serve until interrupted (SIGINT, SIGTERM). ``on_ready`` is called with the URL once requests are accepted."""
    check_exposed(settings, tokens)
    # one descriptor for the client, one to ask the query replica
    settings = replace(settings, connections=room_for(settings.connections, each=2))
    sys.setswitchinterval(SWITCH_S)
    sock = listen(settings)
    scheme = "http" if settings.tls_cert is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"{scheme}://{host}:{sock.getsockname()[1]}"
    application = make_app(engine, settings, tokens, queries, tracing)
    server = _Server(
        application,
        settings,
        sock,
        settings.connections,
        application.let_go,
        loop="uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        ws_per_message_deflate=False,
        ws_max_size=1 << 20,
        ws_ping_interval=20.0,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=CLOSE_S,
        ssl_certfile=None if settings.tls_cert is None else str(settings.tls_cert),
        ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
        h11_max_incomplete_event_size=settings.header_bytes,
    )
    server.on_ready = lambda: on_ready(url)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()


class _Server(BoundedServer):
    """Reports when it is ready, and does not end the process when stopped: the engine must still be closed."""

    on_ready: Callable[[], Any] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the server gracefully; a second SIGINT does not wait for its clients."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()


def start_replica(
    engine: Engine,
    settings: Settings,
    pg_port: int | None,
    passwords: Mapping[str, str] | None,
    tables: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """The query replica, started, if this installation has one; None otherwise."""
    if importlib.util.find_spec("tidegate.replica") is None:
        return None
    module = importlib.import_module("tidegate.replica")
    tls = None if settings.tls_cert is None else (settings.tls_cert, settings.tls_key)
    limits = module.Limits(timeout_s=settings.query_timeout_s, statement_bytes=settings.statement_bytes)
    return module.ReplicaProcess(
        engine, limits, pg_host=settings.host, pg_port=pg_port, tls=tls, passwords=passwords, tables=tables
    ).start()
