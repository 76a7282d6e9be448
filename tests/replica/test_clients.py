"""Real clients against the PostgreSQL endpoint: psql, psycopg in both formats, asyncpg, COPY, cursors, cancel."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from debian import install
from shops import KINDS, Shop

SLOW = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE (a.range + b.range) % 7 = 3"


def psql(shop: Shop, *commands: str) -> str:
    missing = install("postgresql-client", lambda: shutil.which("psql"))
    if missing is not None:
        pytest.skip(missing)
    arguments = [part for command in commands for part in ("-c", command)]
    done = subprocess.run(["psql", "-X", "-A", "-t", shop.dsn, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_psql_reads_tables(shop: Shop) -> None:
    assert psql(shop, "SELECT * FROM stock ORDER BY item") == "jam|3\ntea|10\n"


def test_psql_sends_several_statements_at_once(shop: Shop) -> None:
    assert psql(shop, "SELECT 1; SELECT 'a;b' -- ;\n; SELECT 3") == "1\na;b\n3\n"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (r"\dt", "public|stock|table|tidegate"),
        (r"\d stock", "item|character varying||not null|"),
        (r"\d kinds", "price|numeric(9,2)|||"),
        (r"\d+ kinds", "l|integer[]|||"),
        (r"\d tidegate.locks", "waits_behind|character varying"),
        (r"\dv tidegate.*", "tidegate|locks|view|tidegate"),
        (r"\di", "public|kinds_pkey|index|tidegate|kinds"),
        (r"\l", "tidegate|tidegate|UTF8"),
        (r"\dn", "tidegate|tidegate"),
        (r"\du", "tidegate"),
        (r"\dT", ""),
        (r"\df", ""),
        (r"\dp", "public|stock|table"),
        (r"\conninfo", 'database "tidegate"'),
    ],
)
def test_psql_describes(shop: Shop, command: str, shown: str) -> None:
    assert shown in psql(shop, command)


def test_psql_copies_out(shop: Shop) -> None:
    told = psql(shop, "COPY (SELECT * FROM stock ORDER BY item) TO STDOUT WITH (FORMAT csv, HEADER)")
    assert told == "item,pieces\njam,3\ntea,10\n"
    assert psql(shop, "COPY stock TO STDOUT").splitlines()[0].split("\t") in (["tea", "10"], ["jam", "3"])


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_gets_every_type(shop: Shop, binary: bool) -> None:
    with shop.connect() as connection:
        cursor = connection.cursor(binary=binary)
        rows = cursor.execute("SELECT * FROM kinds ORDER BY id").fetchall()
    expected = [json.loads(v) if isinstance(v, str) else list(v) if isinstance(v, tuple) else v for v in KINDS]
    assert list(rows[0]) == expected
    assert rows[1] == (2, 2, *[None] * 11)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        5,
        -(2**62),
        2**31,
        1.25,
        float("inf"),
        Decimal("123.4500"),
        Decimal("-0.0001"),
        'tea\'s \\ "x"',
        b"\x00\\x",
        True,
        dt.date(1999, 12, 31),
        dt.datetime(1969, 7, 20, 20, 17, 40, 5),
        dt.time(23, 59, 59, 1),
        [1, 2, None],
        ["a", 'b"c,{}', ""],
    ],
)
def test_parameters_come_back(shop: Shop, value: Any, binary: bool) -> None:
    with shop.connect() as connection:
        mark = "%b" if binary and not isinstance(value, (list, Decimal)) else "%s"
        mark += "::text[]" if isinstance(value, list) and isinstance(value[0], str) else ""  # or it is of unknown type
        found = connection.cursor(binary=binary).execute(f"SELECT {mark}", (value,)).fetchone()
    assert found == (value,)


def test_parameters_in_a_query(shop: Shop) -> None:
    with shop.connect() as connection:
        for _ in range(7):  # psycopg prepares a statement it has seen five times
            sql = "SELECT item FROM stock WHERE pieces > %s AND item = ANY(%s)"
            assert connection.execute(sql, (5, ["tea", "jam"])).fetchall() == [("tea",)]


def test_server_side_cursor(shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as connection, connection.cursor(name="numbers") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT i FROM range(1000) r(i) ORDER BY i")
        assert [row[0] for row in cursor] == list(range(1000))


def test_transactions_are_a_matter_of_form(shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as connection:
        with connection.transaction():
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT 2").fetchone() == (2,)


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT nothing FROM stock", "42703"),
        ("SELECT 'a'::INTEGER", "22P02"),
        ("INSERT INTO stock VALUES ('x', 1)", "25006"),
        ("SET threads = 9", "42501"),
        ("SELECT soundex('a')", "42883"),
    ],
)
def test_errors_carry_a_sqlstate(shop: Shop, sql: str, sqlstate: str) -> None:
    with shop.connect() as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(sql)
    assert caught.value.sqlstate == sqlstate


def test_settings_of_the_client(shop: Shop) -> None:
    with shop.connect(options="-c statement_timeout=5s") as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("5s",)
        connection.execute("SET application_name TO 'my tool'")
        assert connection.execute("SHOW application_name").fetchone() == ("my tool",)
        assert connection.info.parameter_status("application_name") == "my tool"


def test_a_client_may_ask_for_less_time(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("SET statement_timeout = 200")
        with pytest.raises(psycopg.errors.QueryCanceled, match="too long"):
            connection.execute(SLOW)
        connection.execute("RESET statement_timeout")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_cancel(shop: Shop) -> None:
    with shop.connect() as connection:
        ended = threading.Event()

        def cancel_until_it_ends() -> None:
            while not ended.wait(0.05):  # one that comes before the query has begun is for nothing, as in PostgreSQL
                connection.cancel()

        canceller = threading.Thread(target=cancel_until_it_ends)
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute(SLOW)
        ended.set()
        canceller.join()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_hangs_up_stops_its_query(shop: Shop) -> None:
    with shop.connect() as connection:
        asking = threading.Thread(target=_ignoring_errors, args=(connection, SLOW))
        asking.start()
        while not shop.replica.status["running"]:
            time.sleep(0.02)
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
        while shop.replica.status["running"]:
            time.sleep(0.05)
        asking.join()
    assert shop.replica.status["restarts"] == 0


def _ignoring_errors(connection: psycopg.Connection[Any], sql: str) -> None:
    try:
        connection.execute(sql)
    except psycopg.Error:
        pass


def test_asyncpg(shop: Shop) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def use() -> None:
        connection = await asyncpg.connect(host=shop.host, port=shop.port, user="anyone", database="tidegate")
        try:
            row = await connection.fetchrow("SELECT * FROM kinds WHERE id = $1", 1)
            assert row["price"] == Decimal("12.50")
            assert row["l"] == [1, 2]
            assert row["iv"] == dt.timedelta(days=1, seconds=5)
            found = await connection.fetch("SELECT item FROM stock WHERE item = ANY($1) LIMIT $2", ["tea"], 3)
            assert [r["item"] for r in found] == ["tea"]
            async with connection.transaction():
                assert [r[0] async for r in connection.cursor("SELECT i FROM range(200) r(i)")] == list(range(200))
        finally:
            await connection.close()
        pool = await asyncpg.create_pool(
            host=shop.host, port=shop.port, user="anyone", database="tidegate", min_size=1, max_size=2
        )
        async with pool.acquire() as again:
            assert await again.fetchval("SELECT 1") == 1
        async with pool.acquire() as again:  # after the pool has reset it
            assert await again.fetchval("SELECT 2") == 2
        await pool.close()

    asyncio.run(use())


def test_portals_with_a_row_limit(shop: Shop) -> None:
    """What JDBC does with a fetch size: the same portal executed again and again."""
    asyncpg = pytest.importorskip("asyncpg")

    async def use() -> list[int]:
        connection = await asyncpg.connect(host=shop.host, port=shop.port, user="anyone", database="tidegate")
        found = []
        async with connection.transaction():
            cursor = await connection.cursor("SELECT i FROM range(25000) r(i) ORDER BY i")
            while rows := await cursor.fetch(7_000):
                found.append(len(rows))
        await connection.close()
        return found

    assert asyncio.run(use()) == [7_000, 7_000, 7_000, 4_000]


def test_wrong_database_is_named(shop: Shop) -> None:
    with pytest.raises(psycopg.OperationalError, match='the only one here is "tidegate"'):
        psycopg.connect(f"host={shop.host} port={shop.port} user=me dbname=other")
