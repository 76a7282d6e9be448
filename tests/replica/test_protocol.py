"""The protocol itself: login with passwords and TLS, many connections, many rows in little memory, bytes that make no sense."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shops import Shop, opened, startup

from tidegate.replica import Limits
from tidegate.replica.wire.scram import Exchange, Refused, Verifier

ROWS = 1_000_000


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from opened(Limits(refresh_s=0.05, connections=220))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("tls")
    made, key = place / "server.pem", place / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    options = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return made, key


@pytest.fixture(scope="module")
def guarded(certificate: tuple[Path, Path]) -> Iterator[Shop]:
    """With passwords and TLS."""
    yield from opened(Limits(), tls=certificate, passwords={"reader": "s3cret", "ünï": "pässwörd"})


# ---- login


def login(shop: Shop, user: str, password: str, mode: str = "require", **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=shop.host, port=shop.port, dbname="tidegate", user=user, password=password, sslmode=mode, **more
    )


@pytest.mark.parametrize(("user", "password"), [("reader", "s3cret"), ("ünï", "pässwörd")])
def test_the_right_password(guarded: Shop, user: str, password: str) -> None:
    with login(guarded, user, password) as connection:
        assert connection.execute("SELECT count(*) FROM stock").fetchone() == (2,)
        assert connection.pgconn.ssl_in_use


@pytest.mark.parametrize(("user", "password"), [("reader", "wrong"), ("nobody", "s3cret"), ("reader", "s3cre")])
def test_a_wrong_user_or_password(guarded: Shop, user: str, password: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        login(guarded, user, password)


def test_the_certificate_is_checked(guarded: Shop, certificate: tuple[Path, Path]) -> None:
    with login(guarded, "reader", "s3cret", "verify-full", sslrootcert=str(certificate[0])) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_without_tls_nobody_comes_in(guarded: Shop) -> None:
    with pytest.raises(psycopg.OperationalError, match="over TLS only"):
        login(guarded, "reader", "s3cret", "disable")


def test_cancel_over_tls(guarded: Shop) -> None:
    with login(guarded, "reader", "s3cret", autocommit=True) as connection:
        timer = threading.Timer(0.5, connection.cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT sum(a.range # b.range) FROM range(100000000) a, range(100000) b")
        timer.join()


def test_asyncpg_over_tls(guarded: Shop) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    import asyncio

    async def use() -> int:
        connection = await asyncpg.connect(
            host=guarded.host, port=guarded.port, user="reader", password="s3cret", database="tidegate", ssl="require"
        )
        try:
            return int(await connection.fetchval("SELECT 41 + $1::int4", 1))
        finally:
            await connection.close()

    assert asyncio.run(use()) == 42


def test_scram_refuses_a_replayed_or_bent_message() -> None:
    verifier = Verifier.of("x", salt=b"0123456789abcdef")
    for first in (b"p=tls-unique,,n=,r=abc", b"n,,n=,r=", b"", b"\xff", b"n,,m=ext,n=,r=abc"):
        with pytest.raises(Refused):
            Exchange(verifier).first(first)
    exchange = Exchange(verifier)
    challenge = exchange.first(b"n,,n=,r=abc").decode()
    nonce = challenge.split(",")[0]
    for final in (f"c=biws,{nonce},p=AAAA", "c=biws,r=other,p=", "", f"c=eSws,{nonce},p={'A' * 43}="):
        with pytest.raises(Refused):
            exchange.final(final.encode())


# ---- many


def test_two_hundred_connections(shop: Shop) -> None:
    connections = [shop.connect() for _ in range(200)]
    try:
        assert [c.execute("SELECT count(*) FROM stock").fetchone() for c in connections] == [(2,)] * 200
        failures: list[BaseException] = []

        def ask(mine: list[psycopg.Connection[Any]]) -> None:
            try:
                for connection in mine:
                    rows = connection.execute("SELECT item FROM stock WHERE pieces > %s", (5,)).fetchall()
                    assert rows == [("tea",)]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask, args=(connections[i::20],)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
    finally:
        for connection in connections:
            connection.close()


def peak_mb(process: int) -> int:
    with open(f"/proc/{process}/status") as told:
        return next(int(line.split()[1]) >> 10 for line in told if line.startswith("VmRSS"))


@pytest.mark.parametrize("how", ["simple", "cursor", "portal"])
def test_a_million_rows_in_bounded_memory(shop: Shop, how: str) -> None:
    """The replica holds a few batches at a time, however the rows are fetched."""
    sql = f"SELECT i, 'name ' || i AS name, i * 1.5::DOUBLE AS x, repeat('y', 100) AS y FROM range({ROWS}) r(i)"
    process = shop.replica.status["process"]
    before = highest = peak_mb(process)
    count = total = 0
    with psycopg.connect(shop.dsn) as connection:
        if how == "cursor":
            cursor: Any = connection.cursor(name="many")
            cursor.itersize = 50_000
            rows = cursor.execute(sql)
        else:
            rows = connection.cursor(binary=how == "portal").stream(sql, size=1)
        for row in rows:
            count += 1
            total += row[0]
            if count % 100_000 == 0:
                highest = max(highest, peak_mb(process))
        if how == "cursor":
            cursor.close()
    assert count == ROWS
    assert total == ROWS * (ROWS - 1) // 2
    assert highest - before < 200, f"{before} MB before, {highest} MB while sending 130 MB"


# ---- bytes that make no sense


def answered(shop: Shop, data: bytes) -> bytes:
    """Everything the server says to these bytes before it closes the line."""
    with socket.create_connection((shop.host, shop.port), timeout=20) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        found = b""
        while part := line.recv(65_536):
            found += part
        return found


def well(shop: Shop) -> None:
    assert shop.replica.status["restarts"] == 0
    with shop.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def message(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">i", len(body) + 4) + body


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_at_first(shop: Shop, data: bytes) -> None:
    answered(shop, data)


TAGS = st.sampled_from([bytes([c]) for c in b"QPBDECSHXdcfpFz\x00"])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.tuples(TAGS, st.binary(max_size=60)), max_size=6), rest=st.binary(max_size=30))
def test_any_messages_after_login(shop: Shop, parts: list[tuple[bytes, bytes]], rest: bytes) -> None:
    answered(shop, startup() + b"".join(message(tag, body) for tag, body in parts) + rest)


STATEMENTS = st.sampled_from(
    [
        "SELECT $1",
        "SELECT * FROM stock WHERE pieces = $1",
        "BEGIN",
        "",
        "SHOW x",
        "FETCH 3 FROM c",
        "SELEC",
        "CLOSE ALL",
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Messages with the right shape and wrong contents: names, counts, formats, lengths."""
    said = b""
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from([b"", b"a", b"b"])) + b"\0"
        kind = draw(st.sampled_from("PBDECSQ"))
        few = st.integers(0, 3)
        if kind == "P":
            oids = draw(st.lists(st.sampled_from([0, 23, 25, 1007, 1700, 114, 99_999, 705]), max_size=3))
            body = name + draw(STATEMENTS).encode() + b"\0" + struct.pack(f">h{len(oids)}I", len(oids), *oids)
        elif kind == "B":
            formats = draw(st.lists(few, max_size=2))
            values = draw(st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=2))
            body = name + draw(st.sampled_from([b"", b"a", b"b"])) + b"\0"
            body += struct.pack(f">h{len(formats)}h", len(formats), *formats) + struct.pack(">h", len(values))
            for value in values:
                body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
            body += struct.pack(">h", draw(few))
        elif kind == "E":
            body = name + struct.pack(">i", draw(st.integers(-2, 3)))
        elif kind == "Q":
            body = draw(STATEMENTS).encode() + b"\0"
        else:
            body = (draw(st.sampled_from([b"S", b"P", b"x"])) + name) if kind in "DC" else b""
        said += message(kind.encode(), body)
    return said + message(b"S", b"")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=conversations())
def test_conversations_of_the_right_shape(shop: Shop, said: bytes) -> None:
    found = answered(shop, startup() + said)
    assert b"internal error" not in found


def test_after_all_that_it_is_well(shop: Shop) -> None:
    for data in (
        struct.pack(">i", 2**31 - 1) + b"x",
        startup() + b"Q" + struct.pack(">i", 2**31 - 1),
        startup() + b"Q" + struct.pack(">i", 3),
        startup() + message(b"Q", b"\xff\xfe\0"),
        startup() + message(b"Q", b"no end"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ii", 16, 80_877_102) + b"\xff" * 8,
    ):
        answered(shop, data)
    well(shop)
