"""Limits hold against hostile queries: they end, the replica is there again, and the engine does not notice."""

from __future__ import annotations

import contextlib
import os
import signal
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
from tidegate.replica import Limits

LIMITS = Limits(timeout_s=15.0, grace_s=1.0, memory_mb=700, rows=200_000, refresh_s=0.05, connections=8)

HOSTILE = {
    "a list that does not fit": "SELECT range(1000000000)",
    "lists that do not fit": "SELECT list_transform(range(100000000), lambda x: range(x))",
    "a text that does not fit": "SELECT length(repeat(repeat(repeat('x', 1000), 1000), 1000))",
    "texts that do not fit": "SELECT repeat('x', 100000000) || i FROM range(1000) r(i)",
    "a cross join": "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 5",
    "a cross join without columns": "SELECT sum(a.range ^ b.range) FROM range(100000000) a, range(100000) b",
    "a sort": "SELECT hash(i) h, i, repeat('x', 100) FROM range(1000000000) r(i) ORDER BY h LIMIT 1 OFFSET 100000000",
    "distinct": "SELECT count(DISTINCT hash(i)) FROM range(10000000000) r(i)",
    "grouping": "SELECT hash(i) % 100000000 g, string_agg(i::VARCHAR, ',') FROM range(1000000000) r(i) GROUP BY g",
    "an endless recursion": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "a growing recursion": "WITH RECURSIVE r(t) AS (SELECT 'xx' UNION ALL SELECT t || t FROM r) SELECT max(length(t)) FROM r",
    "a regular expression": "SELECT count(*) FROM range(100000000) r(i) WHERE regexp_matches(repeat('a', 500) || i, '(a|aa)+$b')",
    "an aggregate as a list": "SELECT list(i) FROM range(10000000000) r(i)",
    "a window": "SELECT sum(i) OVER (ORDER BY hash(i)) FROM range(10000000000) r(i)",
    "too many rows": "SELECT i FROM range(100000000000) r(i)",
    "numbers": "SELECT product(i::DOUBLE) FROM range(100000000000) r(i)",
    "levenshtein": "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
    "a matrix of text": "SELECT max(a.t < b.t) FROM (SELECT repeat('y', 10000) || i t FROM range(100000) r(i)) a, "
    "(SELECT repeat('y', 10000) || i t FROM range(100000) r(i)) b",
}
QUICK = ("a list that does not fit", "a text that does not fit", "a cross join", "an endless recursion", "levenshtein")


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from opened(LIMITS)


@pytest.fixture
def pushing(shop: Shop) -> Iterator[list[float]]:
    """Pushes all the time; gives how long each took."""
    took: list[float] = []
    stop = threading.Event()

    def push() -> None:
        while not stop.wait(0.01):
            began = time.monotonic()
            shop.engine.push("orders", [("tea", 10)])
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=push)
    thread.start()
    yield took
    stop.set()
    thread.join()


@pytest.mark.parametrize(
    "sql",
    [pytest.param(sql, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, sql in HOSTILE.items()],
)
def test_hostile_queries_end(shop: Shop, pushing: list[float], sql: str) -> None:
    before = shop.engine.sequence
    with pytest.raises((QueryFailed, QueryRefused)) as caught:
        shop.rows(sql, timeout_s=0.5)
    assert caught.value.sqlstate in ("57014", "53200", "57P01", "54000", "22003"), str(caught.value)
    assert shop.rows("SELECT 1") == [(1,)]
    shop.caught_up()
    assert shop.rows("SELECT count(*) FROM stock") == [(2,)]
    assert shop.engine.sequence > before


def test_other_sessions_are_told_why(shop: Shop) -> None:
    """A query that can't be stopped costs the replica its life; who else is connected hears the reason."""
    with shop.connect() as other:
        other.execute("SELECT 1")
        restarts = shop.replica.status["restarts"]
        with pytest.raises(QueryFailed, match="after it was told to stop"):
            shop.rows(HOSTILE["levenshtein"], timeout_s=0.5)
        with pytest.raises(psycopg.OperationalError, match=r"the query replica is restarted: a query kept running"):
            other.execute("SELECT 1")
        shop.caught_up()
        assert shop.replica.status["restarts"] > restarts
    with shop.connect() as again:
        assert again.execute("SELECT count(*) FROM stock").fetchone() == (2,)


def test_what_asks_the_service_to_stop_does_not_end_the_replica(shop: Shop) -> None:
    """systemd signals every process of a service, a terminal its whole group: the engine is asked, and ends its replica."""
    before = shop.replica.status
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(before["process"], number)
    assert shop.rows("SELECT pieces FROM stock WHERE item = 'tea'") == [(10,)]
    after = shop.replica.status
    assert (after["process"], after["restarts"]) == (before["process"], before["restarts"])


def test_killed_replica_comes_back_with_everything(shop: Shop) -> None:
    shop.engine.push("orders", [("cake", 1)])
    process = shop.replica.status["process"]
    os.kill(process, 9)
    deadline = time.monotonic() + 60
    while shop.replica.status["process"] == process and time.monotonic() < deadline:
        time.sleep(0.02)
    shop.caught_up()
    assert shop.rows("SELECT pieces FROM stock WHERE item = 'cake'") == [(1,)]
    shop.engine.call("remove", "cake")
    shop.caught_up()
    assert shop.rows("SELECT pieces FROM stock WHERE item = 'cake'") == []


def test_row_limit(shop: Shop) -> None:
    assert len(shop.rows("SELECT * FROM range(200000)")) == 200_000
    with pytest.raises(QueryFailed, match="more than 200,000 rows"):
        shop.rows("SELECT * FROM range(200001)")
    assert len(shop.rows("SELECT * FROM range(30000)", row_limit=25_000)) == 25_000  # who asks for so many gets so many
    with pytest.raises(QueryFailed, match="more than 200,000 rows"):
        shop.rows("SELECT * FROM range(300000)", row_limit=10**9)


@pytest.mark.slow
def test_timeout_can_be_lowered_only(shop: Shop) -> None:
    with pytest.raises(QueryFailed, match="at most 15 s"):
        shop.rows(HOSTILE["numbers"], timeout_s=1_000_000)


def test_slow_reader_is_cut_off(shop: Shop) -> None:
    """A client that asks for much and reads nothing holds a snapshot no longer than a query may last."""
    with socket.create_connection((shop.host, shop.port)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(startup(b"statement_timeout\0" + b"500\0"))
        sql = b"SELECT repeat('x', 1000) FROM range(150000)\0"
        line.sendall(b"Q" + (len(sql) + 4).to_bytes(4, "big") + sql)
        deadline = time.monotonic() + 30
        while shop.replica.status["connections"] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        while shop.replica.status["connections"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert shop.replica.status["connections"] == 0
    assert shop.rows("SELECT 1") == [(1,)]


def test_who_does_not_log_in_keeps_nobody_out(shop: Shop) -> None:
    idle = [socket.create_connection((shop.host, shop.port)) for _ in range(300)]
    try:
        for line in idle:
            with contextlib.suppress(OSError):  # the oldest are cut off already
                line.sendall(b"\0\0")
        with shop.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        for line in idle:
            line.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
        "SELECT " + "-" * 50_000 + " 1",
        "SELECT " + " + ".join(["1"] * 100_000),
        "SELECT " + "[" * 3_000 + "]" * 3_000,
        "SELECT " + "CASE WHEN true THEN " * 3_000 + "1" + " END" * 3_000,
        "SELECT * FROM " + "(SELECT * FROM " * 2_000 + "stock" + ")" * 2_000,
        "SELECT '" + "x" * 2_000_000 + "'",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000 + " FROM pg_class",
        "SELECT " + "NOT " * 20_000 + "true FROM pg_class",
        "WITH " + ", ".join(f"c{i} AS (SELECT * FROM stock, stock s{i})" for i in range(500)) + " SELECT 1",
    ],
    ids=range(10),
)
def test_monstrous_texts(shop: Shop, sql: str) -> None:
    with contextlib.suppress(QueryFailed, QueryRefused):
        shop.rows(sql)
    assert shop.rows("SELECT 1") == [(1,)]


def test_many_cursors(shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as connection:
        for i in range(64):
            connection.execute(f"DECLARE c{i} CURSOR FOR SELECT * FROM stock".encode())
        with pytest.raises(psycopg.Error, match="64 open cursors"):
            connection.execute("DECLARE one_more CURSOR FOR SELECT * FROM stock")


def test_the_replica_has_no_environment_and_writes_no_files(shop: Shop) -> None:
    process = shop.replica.status["process"]
    with open(f"/proc/{process}/environ", "rb") as environment:
        names = {entry.partition(b"=")[0] for entry in environment.read().split(b"\0") if entry}
    assert names <= {b"PYTHONPATH", b"LANG", b"LC_CTYPE"}
    limits: dict[str, Any] = {}
    with open(f"/proc/{process}/limits") as told:
        for line in told:
            limits[line[:25].strip()] = line[26:].split()[0]
    assert limits["Max file size"] == "0"
    assert limits["Max core file size"] == "0"
    assert limits["Max address space"].isdigit()


def test_the_replica_dies_with_the_engine() -> None:
    """The process that owns the engine is killed: nobody is left who would have to end the replica."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from shops import *; shops = opened(Limits());"
        "shop = next(shops);"
        "print(shop.replica.status['process'], flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parents[1] / "support")], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        told = owner.stdout.readline()
        alive = told.strip().isdigit() and _alive(int(told))
        owner.kill()
        owner.wait()
    assert alive
    replica = int(told)
    deadline = time.monotonic() + 30
    while _alive(replica) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(replica)


def _alive(process: int) -> bool:
    """Running, not merely waiting for somebody to ask for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
