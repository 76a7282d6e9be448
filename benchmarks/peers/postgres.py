"""PostgreSQL: the logic in the client, and the logic in a PL/pgSQL function, one transaction for each vote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.benchmarks.peers.contest import (
    EVERY,
    TABLES,
    Finished,
    Guarantees,
    Missing,
    Peer,
    cast_vote,
    sql_state,
    timed,
)
from tidegate.benchmarks.peers.postgres_server import PostgresServer, Unavailable
from tidegate.examples.leaderboard.app import TRENDING, VOTES_PER_PHONE
from tidegate.examples.leaderboard.reference import Vote

FUNCTION = f"""
CREATE FUNCTION cast_vote(vote_id BIGINT, from_phone BIGINT, for_contestant INTEGER) RETURNS void AS $$
DECLARE
    calls INTEGER; counted BIGINT; former INTEGER; weakest INTEGER;
BEGIN
    PERFORM 1 FROM contestants WHERE id = for_contestant;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT count(*) INTO calls FROM votes WHERE phone = from_phone;
    IF calls >= {VOTES_PER_PHONE} THEN RETURN; END IF;
    INSERT INTO votes VALUES (vote_id, from_phone, for_contestant);
    UPDATE contest SET valid = valid + 1 WHERE id = 1 RETURNING valid INTO counted;
    INSERT INTO recent VALUES (counted, for_contestant);
    UPDATE contestants SET total = total + 1, trending = trending + 1 WHERE id = for_contestant;
    DELETE FROM recent WHERE number = counted - {TRENDING} RETURNING contestant INTO former;
    IF FOUND THEN UPDATE contestants SET trending = trending - 1 WHERE id = former; END IF;
    IF counted % {EVERY} = 0 AND (SELECT count(*) FROM contestants) > 1 THEN
        SELECT id INTO weakest FROM contestants ORDER BY total, id LIMIT 1;
        DELETE FROM votes WHERE contestant = weakest;
        DELETE FROM contestants WHERE id = weakest;
    END IF;
END $$ LANGUAGE plpgsql
"""
CALL = "SELECT cast_vote(%s, %s, %s)"


@contextmanager
def contest_database() -> Iterator[tuple[Any, str]]:
    """A private server with the tables and the function in it: a connection (autocommit), and the address."""
    try:
        import psycopg
    except ImportError as error:
        raise Missing("the Python package psycopg is not installed: pip install 'tidegate[bench]'") from error
    try:
        server = PostgresServer()
    except Unavailable as error:
        raise Missing(str(error)) from error
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            for statement in (*TABLES, FUNCTION):
                connection.execute(statement)
            yield connection, server.url
    finally:
        server.remove()


def state(connection: Any) -> Any:
    return sql_state(lambda sql: connection.execute(sql).fetchall())


def _client(votes: list[Vote]) -> Finished:
    with contest_database() as (connection, _):

        def query(sql: str, *parameters: object) -> Any:
            done = connection.execute(sql.replace("?", "%s"), parameters)
            return done.fetchall() if done.description else []

        def run() -> None:
            for vote in votes:
                with connection.transaction():
                    cast_vote(query, vote)

        return Finished(timed(run), state(connection))


def _function(votes: list[Vote]) -> Finished:
    with contest_database() as (connection, _):

        def run() -> None:
            for vote in votes:
                connection.execute(CALL, vote)

        return Finished(timed(run), state(connection))


ORDER = "as long as one client does everything"
PEERS = (
    Peer("postgres", Guarantees("each vote", ORDER, "no: by the application", "each vote"), 3_000, _client),
    Peer("postgres_function", Guarantees("each vote", ORDER, "no: by the application", "each vote"), 6_000, _function),
)
