"""Contenders inside this process: SQLite and DuckDB, a transaction for each vote."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from tidegate.benchmarks.peers.contest import (
    TABLES,
    Finished,
    Guarantees,
    Peer,
    Query,
    cast_vote,
    sql_state,
    timed,
)
from tidegate.examples.leaderboard.reference import Vote

ONE_CLIENT = "as long as one client does everything"
BY_HAND = "no: by the application"


def _sqlite(synchronous: str) -> Callable[[list[Vote]], Finished]:
    def run(votes: list[Vote]) -> Finished:
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
            connection = sqlite3.connect(Path(place) / "contest.sqlite", isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")

            def query(sql: str, *parameters: object) -> list[tuple[int, ...]]:
                return connection.execute(sql, parameters).fetchall()

            try:
                return _one_by_one(query, votes, "BEGIN IMMEDIATE")
            finally:
                connection.close()

    return run


def _duckdb(votes: list[Vote]) -> Finished:
    import duckdb

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        connection = duckdb.connect(str(Path(place) / "contest.duckdb"), config={"threads": 1})

        def query(sql: str, *parameters: object) -> list[tuple[int, ...]]:
            done = connection.execute(sql, parameters)
            return done.fetchall() if sql.startswith("SELECT") else []

        try:
            return _one_by_one(query, votes, "BEGIN")
        finally:
            connection.close()


def _one_by_one(query: Query, votes: list[Vote], begin: str) -> Finished:
    for statement in TABLES:
        query(statement)

    def run() -> None:
        for vote in votes:
            query(begin)
            cast_vote(query, vote)
            query("COMMIT")

    return Finished(timed(run), sql_state(query))


PEERS = (
    Peer(
        "sqlite",
        Guarantees("each vote", ONE_CLIENT, BY_HAND, "kill yes, power cut no (WAL, synchronous=NORMAL)"),
        30_000,
        _sqlite("NORMAL"),
    ),
    Peer(
        "sqlite_full",
        Guarantees("each vote", ONE_CLIENT, BY_HAND, "each vote (WAL, synchronous=FULL)"),
        10_000,
        _sqlite("FULL"),
    ),
    Peer("duckdb", Guarantees("each vote", ONE_CLIENT, BY_HAND, "each vote"), 2_000, _duckdb),
)
