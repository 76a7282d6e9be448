"""The query replica: how fast rows are returned, how fast a small query is answered, and what it costs the engine."""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tidegate
from tidegate import App
from tidegate.benchmarks.setting import setting
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import random_votes
from tidegate.replica import Limits, ReplicaProcess

Progress = Callable[[str], None]
ROWS = 1_000_000
SQL = f"SELECT i, 'name ' || i AS name, i * 1.5::DOUBLE AS x, TIMESTAMP '2026-01-01' AS made FROM range({ROWS}) r(i)"


def bench(rounds: int = 5, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Everything below, with the setting it was measured in."""
    figures: dict[str, Any] = {}
    for part in (streaming, attached):
        progress(str(part.__doc__).splitlines()[0])
        figures.update(part(rounds))
    return {**figures, "rounds": rounds, **setting()}


def streaming(rounds: int) -> dict[str, Any]:
    """A million rows of four columns, and point queries, over the PostgreSQL protocol and as Arrow."""
    app = App("bench")
    app.table("CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR)")
    seconds: dict[str, list[float]] = {"wire": [], "arrow": []}
    asked: dict[str, list[float]] = {"wire": [], "arrow": []}
    with tidegate.open(app) as engine, ReplicaProcess(engine, Limits(), pg_port=0) as replica:
        assert replica.pg_address is not None
        with socket.create_connection(replica.pg_address) as line:
            _login(line)
            for _ in range(rounds):
                seconds["wire"].append(_timed(partial(_drain, line, SQL)))
                seconds["arrow"].append(_timed(partial(_arrow, replica, SQL)))
                for _ in range(100):
                    asked["wire"].append(_timed(partial(_drain, line, "SELECT * FROM items WHERE id = 5")))
                    asked["arrow"].append(_timed(partial(_arrow, replica, "SELECT * FROM items WHERE id = 5")))
        memory_mb = replica.status["memory_mb"]
    return {
        **{f"{name}_rows_per_s": round(ROWS / statistics.median(times)) for name, times in seconds.items()},
        **{f"{name}_point_query_ms": round(statistics.median(times) * 1000, 2) for name, times in asked.items()},
        "replica_memory_mb_after": memory_mb,
    }


def attached(rounds: int, votes: int = 60_000) -> dict[str, Any]:
    """Votes a second, and processor time of the engine's process: alone, merging as often as a replica needs it, with
    an idle replica, and with one that is queried all the time.

    Alone, an engine in memory merges nothing in so short a time; ``merging`` is the same engine merging every second.
    The replica runs in its own process, which costs the engine only where there is no spare core.
    """
    cast = random_votes(votes)
    rates: dict[str, list[float]] = {"alone": [], "merging": [], "with_replica_idle": [], "with_replica": []}
    cpu: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(rounds):
        for name in rates:
            with start(leaderboard()) as engine:
                replica = ReplicaProcess(engine, Limits()).start() if "replica" in name else None
                asked = _asking(replica) if replica is not None and name == "with_replica" else lambda: None
                if name == "merging":
                    engine.merger.in_background(Limits().refresh_s)
                used = time.process_time()
                rates[name].append(votes / _timed(partial(engine.feed, "votes_in", cast)))
                cpu[name].append(time.process_time() - used)
                asked()
                if replica is not None:
                    replica.stop()
    return {
        **{f"votes_per_s_{name}": round(statistics.median(found)) for name, found in rates.items()},
        **{f"ratio_{name}": _ratio(rates[name], rates["alone"]) for name in list(rates)[1:]},
        **{f"engine_cpu_ratio_{name}": _ratio(cpu[name], cpu["alone"]) for name in list(rates)[1:]},
    }


def _asking(replica: ReplicaProcess) -> Callable[[], None]:
    """A client that sends a small query ten times a second; returns how to stop it."""
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.1):
            _arrow(replica, "SELECT count(*) FROM contestants")

    thread = threading.Thread(target=ask)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop


def _ratio(one: list[float], other: list[float]) -> float:
    return round(statistics.median([a / b for a, b in zip(one, other, strict=True)]), 3)


def _timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _arrow(replica: ReplicaProcess, sql: str) -> int:
    _, batches = replica.query_sync(sql)
    return sum(batch.num_rows for batch in batches)


def _login(line: socket.socket) -> None:
    body = struct.pack(">i", 196_608) + b"user\0bench\0database\0tidegate\0\0"
    line.sendall(struct.pack(">i", len(body) + 4) + body)
    _until_ready(line)


def _drain(line: socket.socket, sql: str) -> None:
    """Send a query, and read the answer without decoding it: the server's speed, not that of a client library."""
    text = sql.encode() + b"\0"
    line.sendall(b"Q" + struct.pack(">i", len(text) + 4) + text)
    _until_ready(line)


def _until_ready(line: socket.socket) -> None:
    last = b""
    while not last.endswith(b"Z\0\0\0\x05I"):
        last = (last + line.recv(1 << 20))[-6:]
