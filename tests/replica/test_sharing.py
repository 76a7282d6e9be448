"""Many clients of the SQL endpoint: nobody takes it from the others, by coming often, asking long, or doing nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shops import Shop, opened, startup

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.guard.patience import FORGIVEN_S, FREE, LONGEST_S, REMEMBERED, Patience
from tidegate.replica import Limits
from tidegate.replica.turns import Turns

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 5"
LIMITS = Limits(timeout_s=60.0, refresh_s=0.05, connections=6, running=3, login_s=1.0)
PASSWORDS = {"anna": "right", "ben": "his own"}
SCOPES = {"ben": ["stock", "tidegate.frontier"]}


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from opened(LIMITS)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Shop]:
    yield from opened(LIMITS, passwords=PASSWORDS, tables=SCOPES)


def login(shop: Shop, user: str, password: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=shop.host, port=shop.port, user=user, password=password, dbname="tidegate", autocommit=True
    )


def message(tag: bytes, body: bytes) -> bytes:
    return tag + (len(body) + 4).to_bytes(4, "big") + body


def until(line: socket.socket, wanted: bytes) -> bytes:
    """What comes, until this is in it."""
    found = b""
    while wanted not in found:
        data = line.recv(100_000)
        assert data, found
        found += data
    return found


# ---- connections


def test_who_was_idle_longest_makes_room(shop: Shop) -> None:
    held = [shop.connect() for _ in range(LIMITS.connections)]
    try:
        held[0].execute("SELECT 1")  # so that the second has been idle longest
        with shop.connect() as new:
            assert new.execute("SELECT 1").fetchone() == (1,)
            assert held[0].execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError, match="this one was idle longest"):
                held[1].execute("SELECT 1")
    finally:
        for connection in held:
            connection.close()


def connect_until_full(shop: Shop) -> None:
    """Until each of the others has begun its work, an idle one makes room."""
    for _ in range(500):
        with psycopg.connect(shop.dsn, connect_timeout=30) as new:
            new.execute("SELECT 1")


def test_when_all_are_at_work_it_is_said(shop: Shop) -> None:
    held = [shop.connect() for _ in range(LIMITS.connections)]

    def ask(connection: psycopg.Connection[Any]) -> None:
        with contextlib.suppress(psycopg.Error):
            connection.execute(ENDLESS)

    threads = [threading.Thread(target=ask, args=(connection,)) for connection in held]
    for thread in threads:
        thread.start()
    try:
        with pytest.raises(psycopg.OperationalError, match="at most 6, and all are busy"):
            connect_until_full(shop)
    finally:
        for connection in held:
            connection.cancel()
        for thread in threads:
            thread.join()
        for connection in held:
            connection.close()


def test_idle_sessions_and_slow_logins_end() -> None:
    limits = Limits(refresh_s=0.05, idle_s=0.3, login_s=0.3)
    for shop in opened(limits):
        with socket.create_connection((shop.host, shop.port), timeout=30) as line:
            line.sendall(startup())
            assert b"idle for more than 0.3 seconds" in until(line, b"57P05")
            assert line.recv(1) == b""
        with socket.create_connection((shop.host, shop.port), timeout=30) as line:
            line.sendall(startup()[:9])
            assert line.recv(1) == b""


def test_a_handshake_that_never_ends_is_dropped(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    for shop in opened(Limits(refresh_s=0.05, login_s=0.3), tls=(cert, key)):
        with socket.create_connection((shop.host, shop.port), timeout=30) as line:
            line.sendall((8).to_bytes(4, "big") + (80_877_103).to_bytes(4, "big"))
            assert line.recv(1) == b"S"
            line.sendall(b"\x16\x03\x01")
            assert line.recv(1) == b""
        with psycopg.connect(shop.dsn, sslmode="require") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_few_descriptors_are_enough_for_a_crowd() -> None:
    """More connections than descriptors: who comes after them gets in, and the engine goes on merging."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)); sys.path.insert(0, sys.argv[1]);"
        "from shops import *; shops = opened(Limits(login_s=300)); shop = next(shops);"
        "print(shop.host, shop.port, flush=True); sys.stdin.readline();"
        "shop.engine.push('orders', [('cake', 1)]); shop.caught_up(); print(shop.rows('SELECT count(*) FROM stock'))"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parents[1] / "support")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with contextlib.ExitStack() as stack:
        stack.callback(owner.wait)
        stack.callback(owner.kill)
        host, port = owner.stdout.readline().split()
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        dsn = f"host={host} port={port} user=anyone dbname=tidegate"
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT count(*) FROM stock").fetchone() == (2,)
        assert owner.communicate("go on\n", timeout=60)[0].strip() == "[(3,)]"


# ---- texts


@pytest.mark.parametrize("tag", [b"P", b"Q"])
def test_a_long_text_is_refused_before_it_is_read(shop: Shop, tag: bytes) -> None:
    sql = b"SELECT " + b"1 + " * 100_000 + b"1"
    body = b"\0" + sql + b"\0\0\0" if tag == b"P" else sql + b"\0"
    with socket.create_connection((shop.host, shop.port), timeout=60) as line:
        line.sendall(startup() + message(tag, body) + message(b"S", b""))
        assert b"at most 262,144 are read" in until(line, b"C54000\0")
        line.sendall(message(b"Q", b"SELECT 41 + 1\0"))
        assert b"42" in until(line, b"SELECT 1\0")


def test_reading_a_text_does_not_stop_the_others(shop: Shop) -> None:
    """Between any two steps of the others, one text at most was read to its end, when texts were read on the event loop."""
    texts = [b"SELECT $1::int IN (" + b"1, " * 10_000 + b"%d)" % number for number in range(4)]
    reading = b"".join(message(b"P", b"\0" + sql + b"\0\0\0") for sql in texts)
    with socket.create_connection((shop.host, shop.port), timeout=120) as line, shop.connect() as other:
        line.sendall(startup())
        until(line, b"Z\0\0\0\5I")
        line.sendall(reading + message(b"S", b""))
        for number in range(5):
            assert other.execute("SELECT %s::int", [number]).fetchone() == (number,)
        line.setblocking(False)
        early = b""
        with contextlib.suppress(BlockingIOError):
            early = line.recv(100_000)
        assert b"Z\0\0\0\5" not in early, "all texts were read before the other session had its answers"
        line.setblocking(True)
        until(line, b"Z\0\0\0\5")


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT 1;" * 1_001, "54000"),
        ("SELECT $" + "1" * 5_000, "54000"),
        ("DECLARE c" + " " * 200_000 + "x", "42601"),
        ("SELECT " + "(" * 5_000 + "$1" + ")" * 5_000, None),
        ("SELECT " + "NOT " * 20_000 + "$1", None),
        ("SELECT " + "CASE WHEN true THEN " * 3_000 + "$1" + " END" * 3_000, None),
        ("SELECT " + "[" * 3_000 + "$1" + "]" * 3_000, None),
        ("SELECT * FROM " + "(SELECT * FROM " * 2_000 + "stock" + ")" * 2_000 + " WHERE pieces = $1", None),
        ("SELECT " + " + ".join(["$1"] * 20_000), None),
    ],
    ids=["statements", "number", "blanks", "parentheses", "not", "case", "lists", "subqueries", "sum"],
)
def test_monstrous_statements_are_errors(shop: Shop, sql: str, sqlstate: str | None) -> None:
    tag = b"Q" if ";" in sql or sql.startswith("DECLARE") else b"P"
    body = sql.encode() + b"\0" if tag == b"Q" else b"\0" + sql.encode() + b"\0\0\0"
    restarts = shop.replica.status["restarts"]
    with socket.create_connection((shop.host, shop.port), timeout=60) as line:
        line.sendall(startup())
        until(line, b"Z\0\0\0\5I")
        line.sendall(message(tag, body) + message(b"S", b""))
        answer = until(line, b"Z\0\0\0\5")
        if sqlstate is not None:
            assert b"C" + sqlstate.encode() + b"\0" in answer, answer[:500]
        line.sendall(message(b"Q", b"SELECT 41 + 1\0"))
        assert b"42" in until(line, b"SELECT 1\0")
    assert shop.replica.status["restarts"] == restarts


def test_a_large_parameter_does_not_stop_the_others(shop: Shop) -> None:
    with shop.connect() as connection:
        wanted = list(range(300_000))
        found = connection.execute("SELECT len(%t::int[])", [wanted]).fetchone()
        assert found == (300_000,)


# ---- turns


def test_turns_go_round_and_the_last_place_is_for_somebody_else() -> None:
    async def run() -> list[str]:
        turns = Turns(3)
        order: list[str] = []

        async def ask(user: str, name: str) -> None:
            await turns.take(user)
            order.append(name)

        tasks = [asyncio.ensure_future(ask("a", f"a{i}")) for i in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["a0", "a1"], "one place is left for others"
        tasks += [asyncio.ensure_future(ask(user, name)) for user, name in (("b", "b0"), ("b", "b1"), ("c", "c0"))]
        for user in ("a", "b", "a", "a", "b"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append("-")
            turns.give_back(user)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["a0", "a1", "b0", "-", "c0", "-", "b1", "-", "a2", "-", "a3", "-"]


def test_who_goes_away_while_waiting_takes_no_place() -> None:
    async def run() -> None:
        turns = Turns(1)
        await turns.take("a")
        gone = asyncio.ensure_future(turns.take("a"))
        late = asyncio.ensure_future(turns.take("b"))
        await asyncio.sleep(0)
        gone.cancel()
        turns.give_back("a")  # hands the place to "a" or "b": either way it is not lost
        await asyncio.gather(gone, return_exceptions=True)
        await late

    asyncio.run(run())


def test_slow_queries_of_one_user_leave_room(shop: Shop) -> None:
    """All of the first user's queries are still at work, or waiting, when the second has its answers."""
    slow = [psycopg.connect(shop.dsn.replace("anyone", "slow"), autocommit=True) for _ in range(4)]
    done: list[int] = []

    def ask(number: int) -> None:
        with contextlib.suppress(psycopg.Error):
            slow[number].execute(ENDLESS)
        done.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(slow))]
    for thread in threads:
        thread.start()
    try:
        while shop.replica.status["running"] < LIMITS.running - 1:
            time.sleep(0.01)
        with psycopg.connect(shop.dsn.replace("anyone", "quick"), autocommit=True) as quick:
            for _ in range(5):
                assert quick.execute("SELECT count(*) FROM stock").fetchone() == (2,)
        assert shop.rows("SELECT 1") == [(1,)]
        assert not done
    finally:
        for connection in slow:
            connection.cancel()
        for thread in threads:
            thread.join()
        for connection in slow:
            connection.close()


def test_one_user_of_the_server_has_so_many_queries(shop: Shop) -> None:
    async def run() -> None:
        replica = shop.replica
        asking = [asyncio.ensure_future(replica.query(ENDLESS, user="slow", timeout_s=50)) for _ in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(QueryFailed, match="has 64 queries running or waiting"):
            await replica.query("SELECT 1", user="slow")
        _, batches = await replica.query("SELECT 1", user="quick")
        assert [batch.num_rows async for batch in batches] == [1]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        _, batches = await replica.query("SELECT 1", user="slow")
        assert [batch.num_rows async for batch in batches] == [1]

    asyncio.run(run())


# ---- passwords and tables


def test_wrong_passwords_are_slowed_down_and_the_right_one_gets_in(guarded: Shop) -> None:
    for _ in range(FREE + 3):
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            login(guarded, "anna", "wrong")
    lines = [socket.create_connection((guarded.host, guarded.port), timeout=30) for _ in range(20)]
    try:
        for line in lines:
            line.sendall(startup())
        first = [line.recv(1) for line in lines]
        assert b"E" in first, "who guesses at many connections is not even asked"
    finally:
        for line in lines:
            line.close()
    told = ""
    for _ in range(50):
        with contextlib.suppress(psycopg.OperationalError), login(guarded, "anna", "right") as connection:
            told = str(connection.execute("SELECT 1").fetchone())
            break
        time.sleep(0.1)
    assert told == "(1,)", "the right password was locked out"


def test_patience() -> None:
    patience = Patience()
    for _ in range(FREE):
        assert patience.turn_s("1.2.3.4", 100.0) == 0.0
        patience.wrong("1.2.3.4", 100.0)
    waits = []
    for number in range(8):
        now = 200.0 + number * 100
        patience.wrong("1.2.3.4", now)
        for _ in range(3):  # three minutes of decay are made up for
            patience.wrong("1.2.3.4", now)
        waits.append(patience.turn_s("1.2.3.4", now))
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_S
    assert patience.turn_s("1.2.3.4", 900.0) == 2 * LONGEST_S, "the next turn comes after the one that was taken"
    assert patience.turn_s("1.2.3.4", 900.0) is None
    assert patience.turn_s("1.2.3.5", 900.0) == 0.0
    assert patience.turn_s("1.2.3.4", 900.0 + 100 * FORGIVEN_S) == 0.0, "everything is forgotten in the end"
    for number in range(REMEMBERED + 10):
        patience.wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(patience) == REMEMBERED
    for number in range(FREE + 1):
        patience.wrong(f"2001:db8::{number}", 0.0)
    assert patience.turn_s("2001:db8::ffff", 0.0), "a network of IPv6 addresses is one"


def test_tables_of_a_user(guarded: Shop) -> None:
    with login(guarded, "ben", "his own") as connection:
        assert connection.execute("SELECT count(*) FROM stock").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM tidegate.frontier").fetchone() == (1,)
        for sql in ("SELECT * FROM kinds", "SELECT 1 WHERE EXISTS (FROM kinds)", "SELECT * FROM tidegate.merges"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not read"):
                connection.execute(sql)
    with pytest.raises(QueryRefused, match="may not read kinds"):
        asyncio.run(guarded.replica.query("SELECT * FROM kinds", tables=["st*"]))
