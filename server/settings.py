"""How a server listens and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.guard.addresses import is_loopback
from tidegate.guard.private import check_secret


@dataclass(frozen=True)
class Settings:
    """Settings of one server. The defaults are safe: loopback only, everything bounded.

    ``connections``: open at a time; fewer where the process may not open that many descriptors. When all are taken, the
    longest idle one makes room for a new one. ``handshake_timeout_s``: of TLS; ``idle_timeout_s``: how long a
    connection may wait for its next request.
    ``allow_hosts``/``allow_origins``: names the server is reached by, and web pages on other origins that may use it.
    ``body_bytes``, ``body_timeout_s``, ``header_timeout_s``: how large a request may be, and how slowly it may arrive.
    ``subscriptions``, ``followers``, ``tickets``: durable subscriptions, open event streams and unfinished tickets of each
    token; ``all_tickets``: of all together.
    ``rate``: requests a second for each token (or, without tokens, each address); a token may have its own.
    ``buffer_batches``, ``buffer_bytes``: what waits for a subscriber before it is dropped; ``stall_s``: how long it may
    go without reading. ``row_limit``, ``query_timeout_s``, ``statement_bytes``: bounds of SQL queries.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    connections: int = 1_000
    body_bytes: int = 16 << 20
    body_rows: int = 1_000_000
    body_timeout_s: float = 30.0
    header_timeout_s: float = 10.0
    header_bytes: int = 32 << 10
    handshake_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    rate: float = 20_000.0
    buffer_batches: int = 10_000
    buffer_bytes: int = 8 << 20
    stall_s: float = 10.0
    heartbeat_s: float = 15.0
    row_limit: int = 1_000_000
    query_timeout_s: float = 30.0
    statement_bytes: int = 256 << 10
    subscriptions: int = 100
    followers: int = 100
    tickets: int = 10_000
    all_tickets: int = 100_000
    log_requests: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise TidegateError("TLS needs both --tls-cert and --tls-key; give both or neither")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise TidegateError(f"there is no file {path} for --{name.replace('_', '-')}", path=path)
        if self.tls_key is not None:
            check_secret(self.tls_key, "the key of the TLS certificate")

    @property
    def loopback(self) -> bool:
        """Does it listen on this machine only?"""
        return is_loopback(self.host)
