"""What SQL from outside may use."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import TidegateError


@dataclass(frozen=True)
class Limits:
    """Bounds on the query replica and on every query in it. They hold against hostile SQL: what can't be stopped is killed.

    ``timeout_s``: from the start of a query's work to the delivery of its last row; a client may ask for less, never
    for more. ``grace_s``: how long a query that was told to stop may keep running before the replica is killed and
    restarted.
    ``memory_mb``: of the replica process, its copy of the tables included; beyond it the replica is killed.
    ``rows``: of one answer. ``running``: queries that run at the same time, others wait their turn. One user gets all
    places but one, see :mod:`tidegate.replica.turns`. ``waiting``: queries that one user of the HTTP server may have
    running and waiting.
    ``connections``: open PostgreSQL connections; when all are taken, the longest idle one makes room. ``idle_s``: how
    long one may do nothing; ``login_s``: how long it may take to log in, the TLS handshake included.
    ``statement_bytes``: the longest SQL text; ``statements``: how many one message may have.
    ``refresh_s``: how far the replica may be behind the engine while there are queries. Without queries for a while the
    replica does not hasten merges; the first query after that waits for one.
    ``history_merges``, ``history_rows``: how many merged states, and how many replaced rows in total, are kept for AS
    OF.
    ``threads``: DuckDB's threads in the replica, shared by all queries.
    """

    timeout_s: float = 60.0
    grace_s: float = 3.0
    memory_mb: int = 2_048
    rows: int = 10_000_000
    running: int = 8
    waiting: int = 64
    connections: int = 256
    idle_s: float = 3_600.0
    login_s: float = 15.0
    statement_bytes: int = 256 << 10
    statements: int = 1_000
    refresh_s: float = 1.0
    history_merges: int = 100
    history_rows: int = 1_000_000
    threads: int = 2

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least = 0 if name.startswith("history") else 256 if name == "memory_mb" else 1e-3
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value:
                raise TidegateError(f"limit {name} must be a number of at least {least:g}, got {value!r}")
