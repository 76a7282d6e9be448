"""Who may come in, and what a hostile client can't do: each is a clear refusal, and the engine goes on."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import Server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as websocket

import tidegate
from tidegate.errors import NotAllowed, ServerError, TidegateError
from tidegate.server.gate import Rates
from tidegate.server.serve import check_exposed
from tidegate.server.settings import Settings
from tidegate.server.tokens import Tokens, digest_of, load_tokens, new_token, parse_tokens

TOKENS = {name: f"tg_{name}_{'0' * 30}" for name in ("push", "call", "query", "admin", "old", "slow")}


def entry(name: str, roles: str, more: str = "") -> str:
    digest = digest_of(TOKENS[name]).hex()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nroles = [{roles}]\n{more}\n'


FILE = (
    entry("push", '"push"')
    + entry("call", '"call"')
    + entry("query", '"query"')
    + entry("admin", '"admin"', "expires = 2099-01-01")
    + entry("old", '"admin"', "expires = 2020-01-01")
    + entry("slow", '"query"', "rate = 2")
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = {"body_bytes": 20_000, "body_timeout_s": 0.5, "header_timeout_s": 0.5, "log_requests": True}
    server = Server(folder / "server.log", tokens=FILE, settings=settings, queries=True)
    yield server
    server.stop()
    for token in TOKENS.values():
        assert token not in server.log, "a token was logged"
    server.assert_no_errors()


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, "requires a token"),
        ({"authorization": "Bearer wrong"}, "not known"),
        ({"authorization": "Bearer"}, "requires a token"),
        ({"authorization": f"Basic {TOKENS['admin']}"}, "requires a token"),
        ({"authorization": f"Bearer {TOKENS['admin']}x"}, "not known"),
        (as_("old"), "expired on 2020-01-01"),
    ],
)
def test_no_wrong_and_expired_tokens(guarded: Server, headers: dict[str, str], text: str) -> None:
    with guarded.http(headers=headers) as http:
        paths = ("/v1/app", "/v1/status", "/metrics", "/openapi.json", "/v1/nothing")
        for path in paths if text == "requires a token" else paths[:1]:  # a wrong token has to wait, longer every time
            got = http.get(path)
            assert got.status_code == 401, path
            assert text in got.json()["error"]["message"]
            assert got.headers["www-authenticate"] == "Bearer"
        assert http.get("/health").status_code == 200
        assert http.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "may"),
    [
        ("POST", "/v1/streams/orders/batches", [["tea", 0]], {"push"}),
        ("POST", "/v1/streams/orders/feed", [["tea", 0]], {"push"}),
        ("POST", "/v1/procedures/echo", {}, {"call"}),
        ("POST", "/v1/query", {"sql": "SELECT 1"}, {"query"}),
        ("GET", "/v1/status", None, {"query"}),
        ("GET", "/v1/questions", None, {"query", "push"}),
        ("GET", "/v1/subscriptions", None, {"query"}),
        ("POST", "/v1/checkpoint", None, set()),
        ("POST", "/v1/dataflows/x/resume", None, set()),
        ("POST", "/v1/dataflows/x/skip", None, set()),
        ("POST", "/v1/dead_letters/1.0/requeue", None, set()),
        ("GET", "/v1/halted", None, {"query"}),
        ("POST", "/v1/questions/decisions/1/reask?question=x&digest=x", None, set()),
        ("DELETE", "/v1/subscriptions/query", None, {"query"}),
        ("GET", "/metrics", None, {"query"}),
        ("GET", "/v1/app", None, {"query", "push", "call"}),
    ],
)
def test_roles(guarded: Server, method: str, path: str, body: Any, may: set[str]) -> None:
    with guarded.http() as http:
        for name in ("push", "call", "query", "admin"):
            got = http.request(method, path, json=body, headers=as_(name))
            if name in may or name == "admin":
                assert got.status_code in (200, 404), (name, got.text)
            else:
                assert got.status_code == 403, (name, got.text)
                assert "role" in got.json()["error"]["message"]


def test_the_client_raises_the_same(guarded: Server) -> None:
    with guarded.client("wrong") as client, pytest.raises(NotAllowed) as refused:
        client.status()
    assert refused.value.status == 401
    with guarded.client(TOKENS["query"]) as client:
        with pytest.raises(NotAllowed, match="role push"):
            client.push("orders", [("tea", 0)])
        with client.subscribe("shipments") as seen, guarded.client(TOKENS["push"]) as pushing:
            pushing.push("orders", [("tea", 0)])
            assert seen.get(10) is not None


def test_a_websocket_wants_a_token_too(guarded: Server) -> None:
    url = guarded.url.replace("http", "ws") + "/v1/streams/shipments/socket"
    for headers in ({}, as_("push"), as_("old")):
        with pytest.raises((InvalidStatus, ConnectionClosed)), websocket(url, additional_headers=headers) as ws:
            ws.recv()
    with websocket(url, additional_headers=as_("query")) as ws:
        assert "open" in ws.recv()


def test_rates_are_for_each_token(guarded: Server) -> None:
    with guarded.http(headers=as_("slow")) as http:
        got = [http.get("/v1/app") for _ in range(6)]
        assert [g.status_code for g in got[:2]] == [200, 200]
        refused = [g for g in got if g.status_code == 429]
        assert refused
        assert int(refused[0].headers["retry-after"]) >= 1
    with guarded.http(headers=as_("push")) as http:
        assert http.get("/v1/app").status_code == 200


def test_the_bucket_refills() -> None:
    rates = Rates()
    assert [rates.take("a", 2, 0.0) == 0 for _ in range(3)] == [True, True, False]
    assert rates.take("b", 2, 0.0) == 0
    assert rates.take("a", 2, 0.6) == 0
    assert 0 < rates.take("a", 2, 0.6) <= 0.5


def test_other_sites_are_refused(start: Callable[..., Server]) -> None:
    server = start(settings={"allow_origins": ["https://shop.example"], "allow_hosts": ["shop.internal"]})
    own = f"http://127.0.0.1:{server.port}"
    body = {"json": [["tea", 0]]}
    path = "/v1/streams/orders/batches"
    with server.http() as http:
        for origin in (
            "https://evil.example",
            "null",
            f"{own}.evil.example",
            f"http://localhost.evil.example:{server.port}",
        ):
            got = http.post(path, headers={"origin": origin}, **body)
            assert got.status_code == 403, origin
            assert "--allow-origin" in got.json()["error"]["message"]
        for origin in (own, "https://shop.example"):
            assert http.post(path, headers={"origin": origin}, **body).status_code == 200
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "", "a@127.0.0.1"):
            assert http.get("/v1/app", headers={"host": host}).status_code in (400, 421), host
        for host in ("localhost", f"localhost:{server.port}", "shop.internal", f"[::1]:{server.port}"):
            assert http.get("/v1/app", headers={"host": host}).status_code == 200, host
        cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert http.get("/v1/streams/shipments/events?name=x", headers=cross).status_code == 403
        assert http.get("/v1/app", headers=cross).status_code == 403
        assert http.get("/", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 200
        preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        assert "access-control-allow-origin" not in http.options(path, headers=preflight).headers
    url = server.url.replace("http", "ws") + "/v1/streams/shipments/socket"
    with pytest.raises((InvalidStatus, ConnectionClosed)), websocket(url, origin="https://evil.example") as ws:  # type: ignore[arg-type]
        ws.recv()


def test_a_large_body_is_refused_before_it_is_read(guarded: Server) -> None:
    with guarded.http(headers=as_("push")) as http:
        got = http.post("/v1/streams/orders/batches", json=[["x" * 30_000, 0]])
        assert got.status_code == 413
        assert "20,000 bytes" in got.json()["error"]["message"]

        def chunks() -> Iterator[bytes]:
            for _ in range(100):
                yield b" " * 1_000

        assert http.post("/v1/streams/orders/batches", content=chunks()).status_code == 413
        got = http.post("/v1/streams/orders/batches", content=b"x", headers={"content-encoding": "gzip"})
        assert got.status_code == 415


def raw(server: Server, *parts: bytes, pause_s: float = 0.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        except OSError:
            pass  # refused while we were still sending
        got = b""
        try:
            while part := connection.recv(65_536):
                got += part
        except ConnectionError:
            pass
        return got


def test_slow_headers_and_bodies_are_cut_off_while_others_are_served(guarded: Server) -> None:
    slow: list[bytes] = []
    headers = (
        f"POST /v1/streams/orders/batches HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKENS['push']}\r\n"
        "content-type: application/json\r\ncontent-length: 100\r\n\r\n"
    ).encode()
    dribble = [
        threading.Thread(target=lambda: slow.append(raw(guarded))),
        threading.Thread(target=lambda: slow.append(raw(guarded, b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 3))),
        threading.Thread(target=lambda: slow.append(raw(guarded, b"G", b"E", b"T", b" ", b"/", b" ", pause_s=0.2))),
        threading.Thread(target=lambda: slow.append(raw(guarded, headers, b"[", b"[", pause_s=0.1))),
    ]
    for thread in dribble:
        thread.start()
    with guarded.http(headers=as_("push")) as http:
        assert http.post("/v1/streams/orders/batches", json=[["tea", 0]]).status_code == 200
    for thread in dribble:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert len(slow) == 4
    assert all(b"408" in got.split(b"\r\n")[0] for got in slow), slow


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 50_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 20_000, b"431"),
        (b"POST /v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", b"400"),
        (
            b"POST /v1/query HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
            b"4",
        ),
    ],
)
def test_malformed_requests(guarded: Server, text: bytes, status: bytes) -> None:
    got = raw(guarded, text)
    assert got.startswith(b"HTTP/1.1 " + status), got[:200]


@pytest.mark.parametrize(
    "path",
    [
        "/console/../tokens.py",
        "/console/..%2ftokens.py",
        "/console/%2e%2e/tokens.py",
        "/console/..%5ctokens.py",
        "/console//etc/passwd",
        "/console/%00",
        "/../../../../etc/passwd",
        "/console/index.html%00.py",
        "/console/.",
    ],
)
def test_no_path_leads_out_of_the_console(guarded: Server, path: str) -> None:
    got = raw(guarded, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert got.split(b" ")[1] in (b"404", b"400", b"401"), got[:200]
    assert b"import" not in got
    assert b"root:" not in got


def test_answers_carry_the_headers_that_browsers_heed(guarded: Server) -> None:
    with guarded.http() as http:
        for path in ("/", "/health"):
            got = http.get(path)
            assert got.headers["x-content-type-options"] == "nosniff"
            assert got.headers["x-frame-options"] == "DENY"
        assert "script-src 'self'" in http.get("/").headers["content-security-policy"]


def test_listening_beyond_this_machine_takes_tokens() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(TidegateError, match="tidegate token new"):
            check_exposed(Settings(host=host), Tokens())
        check_exposed(Settings(host=host), load_tokens(None, FILE))
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_exposed(Settings(host=host), Tokens())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "not valid TOML"),
        ("", "no .*token.* entry"),
        ('[[token]]\nname = "a"', "sha256"),
        ('[[token]]\nsha256 = "00"', "name is missing"),
        (entry("push", '"boss"'), "roles must be a list"),
        (entry("push", '"push"', 'expires = "soon"'), "expires must be a date"),
        (entry("push", '"push"', "rate = -1"), "rate must be a positive"),
        (entry("push", '"push"', "password = 1"), "not a field"),
    ],
)
def test_mistakes_in_the_tokens_file(text: str, told: str) -> None:
    with pytest.raises(TidegateError, match=told):
        parse_tokens(text, "tokens.toml")


def test_names_of_tokens_are_unique_and_files_must_exist(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="two tokens are called 'push'"):
        load_tokens(None, entry("push", '"push"') * 2)
    with pytest.raises(TidegateError, match="can't be read"):
        load_tokens(tmp_path / "none", None)
    assert len({new_token() for _ in range(50)}) == 50
    with pytest.raises(TidegateError, match="both"):
        Settings(tls_cert=tmp_path / "c")
    expiring = load_tokens(None, entry("push", '"push"', "expires = 2030-01-01T12:00:00"))
    with pytest.raises(NotAllowed, match="expired"):
        expiring.holder(f"Bearer {TOKENS['push']}", dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC))


def test_tls(start: Callable[..., Server], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*make, *more], check=True, capture_output=True)
    server = start(settings={"tls_cert": str(cert), "tls_key": str(key)})
    assert server.url.startswith("https://")
    with tidegate.connect(server.url, verify=ssl.create_default_context(cafile=str(cert)), retry_s=2) as client:
        assert client.push("orders", [("tea", 0)]).done
        with client.subscribe("shipments") as seen:
            client.push("orders", [("tea", 0)])
            assert seen.get(10) is not None
    with tidegate.connect(server.url, retry_s=0) as client, pytest.raises(ServerError, match="certificate"):
        client.status()
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.url.replace("https", "http"), timeout=5)


def test_nobody_there() -> None:
    with (
        tidegate.connect("http://127.0.0.1:1", retry_s=0) as client,
        pytest.raises(ServerError, match="is the server running"),
    ):
        client.push("orders", [])
