"""More clients than there are descriptors: files keep theirs, idle connections make room, and work goes on."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from server_process import Server

from tidegate.guard.door import room_for

DESCRIPTORS = 220
CROWD = 400
PATIENT = {"header_timeout_s": 300, "handshake_timeout_s": 300}


@contextmanager
def crowd(port: int, count: int = CROWD) -> Iterator[list[socket.socket]]:
    """So many connections that never say anything."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(count)]


def hung_up(line: socket.socket) -> bool:
    """Wait for the other side to end the connection."""
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


def healthy(line: socket.socket) -> bool:
    """Ask over a connection that stays open."""
    line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = b""
    while b"}" not in answer:
        data = line.recv(10_000)
        if not data:
            return False
        answer += data
    return b'"healthy":true' in answer


def test_work_goes_on_in_a_crowd(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(data=str(tmp_path / "data"), queries=True, descriptors=DESCRIPTORS, settings=PATIENT)
    with server.client() as before:
        before.call("deliver", "tea", 1_000)
        with crowd(server.port) as lines:
            for number in range(8):
                before.push("orders", [("tea", 1)])
                with server.client() as new:  # comes in although everything was taken
                    assert new.push("orders", [("tea", 1)], batch_id=None).error is None
                if number % 4 == 0:
                    with server.http() as http:
                        assert http.post("/v1/checkpoint").status_code == 200
            assert hung_up(lines[0])  # the longest idle went first
            with server.client() as new:
                assert new.query("SELECT count(*) FROM stock").scalar() == 1
    assert server.stop() == 0
    server.assert_no_errors()
    assert "the longest idle one is closed" in server.log
    assert f"this process may open {DESCRIPTORS} descriptors" in server.log, "the soft limit is raised first"


def test_clients_that_were_served_stay_longer_than_strangers(start: Callable[..., Server]) -> None:
    server = start(settings={"connections": 20, **PATIENT})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as known:
        assert healthy(known)
        with crowd(server.port, 60) as lines, httpx.Client(base_url=server.url) as other:
            assert other.get("/health").status_code == 200
            assert hung_up(lines[0])
            assert healthy(known)


def test_who_does_work_is_not_shown_out(start: Callable[..., Server]) -> None:
    """Connections at work are never shown out; who comes then waits, and gets in."""
    server = start(settings={"connections": 8, **PATIENT})
    with server.client() as client, client.subscribe("shipments") as shipments, crowd(server.port, 30):
        with server.client() as other:
            for number in range(5):
                other.push("orders", [("tea", 0)], batch_id=number)
        assert [shipments.get(timeout_s=30).id for _ in range(5)] == list(range(5))


def test_idle_connections_end_by_themselves(start: Callable[..., Server]) -> None:
    server = start(settings={"idle_timeout_s": 0.3})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        assert healthy(line)
        assert hung_up(line)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return {"tls_cert": str(cert), "tls_key": str(key)}


def https(server: Server, tls: dict[str, str]) -> httpx.Client:
    address = server.url.replace("127.0.0.1", "localhost")
    return httpx.Client(base_url=address, verify=ssl.create_default_context(cafile=tls["tls_cert"]), timeout=30)


def test_a_handshake_that_never_ends_is_dropped(start: Callable[..., Server], tls: dict[str, str]) -> None:
    server = start(settings={**tls, "handshake_timeout_s": 0.3})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(b"\x16\x03\x01")  # the beginning of a ClientHello
        assert hung_up(line)
    with https(server, tls) as client:
        assert client.get("/health").status_code == 200


def test_handshakes_that_never_end_keep_nobody_out(start: Callable[..., Server], tls: dict[str, str]) -> None:
    server = start(settings={**tls, **PATIENT, "connections": 20})
    with crowd(server.port, 60) as lines:
        with https(server, tls) as client:
            assert client.get("/health").status_code == 200
        assert hung_up(lines[0])


def test_too_few_descriptors_are_said() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)); from tidegate.guard.door import room_for;"
    done = subprocess.run([sys.executable, "-c", code + "room_for(1000)"], capture_output=True, text=True)
    assert "may open 20 descriptors" in done.stderr
    assert "ulimit -n" in done.stderr
    assert room_for(10) == 10
