"""How a server listens and what it allows: few, frozen, passed in."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import TidegateError


@dataclass(frozen=True)
class Settings:
    """Settings of one server. The defaults are safe: loopback only, everything bounded.

    ``allow_hosts``/``allow_origins``: names the server is reached by, and web pages on other origins that may use it.
    ``body_bytes``, ``body_timeout_s``, ``header_timeout_s``: how large a request may be, and how slowly it may arrive.
    ``rate``: requests a second for each token (or, without tokens, each address); a token may have its own.
    ``buffer_batches``, ``buffer_bytes``: what waits for a subscriber before it is let go; ``stall_s``: how long it may
    not read at all. ``row_limit``, ``query_timeout_s``: bounds of SQL queries.
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
    rate: float = 20_000.0
    buffer_batches: int = 10_000
    buffer_bytes: int = 8 << 20
    stall_s: float = 10.0
    heartbeat_s: float = 15.0
    row_limit: int = 1_000_000
    query_timeout_s: float = 30.0
    tickets: int = 100_000
    log_requests: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise TidegateError("TLS takes both --tls-cert and --tls-key; give both, or neither")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise TidegateError(f"there is no file {path} for --{name.replace('_', '-')}", path=path)

    @property
    def loopback(self) -> bool:
        """Does it listen to this machine only?"""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
