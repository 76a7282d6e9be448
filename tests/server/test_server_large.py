"""One large request keeps nobody waiting: whoever asks after it is answered before it."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest
from server_process import Server

from tidegate.server.bodies import DEEPEST

CALL = b'{"arguments":[[' + b"[1]," * 1_500_000 + b"[1]]]}"
PUSH = b"[" + b'["tea",0],' * 400_000 + b'["tea",0]]'


@pytest.mark.parametrize(
    ("path", "body"), [("procedures/echo", CALL), ("streams/orders/batches", PUSH)], ids=["call", "push"]
)
def test_small_requests_sent_after_a_large_one_are_answered_before_it(shared: Server, path: str, body: bytes) -> None:
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    with socket.create_connection(("127.0.0.1", shared.port), timeout=300) as line, shared.http(timeout=300) as http:
        line.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        for _ in range(3):
            assert http.get("/health").status_code == 200
            assert http.get("/v1/questions").status_code == 200
            assert http.post("/v1/procedures/echo", json={"arguments": [1]}).json()["value"] == 1
            assert http.post("/v1/streams/orders/batches", json=[["tea", 0]]).json()["done"]
        assert not select.select([line], [], [], 0)[0], "the large one was answered before those that came after it"
        answered = b""
        while part := line.recv(1 << 20):
            answered += part
    assert answered.startswith(b"HTTP/1.1 200"), answered[:300]


def test_bodies_are_not_nested_for_ever(shared: Server) -> None:
    def nested(depth: int) -> bytes:
        return b'{"arguments":[' + b"[" * (depth - 2) + b"]" * (depth - 2) + b"]}"

    with shared.http() as http:
        json = {"content-type": "application/json"}
        for path in ("/v1/procedures/echo", "/v1/query"):
            got = http.post(path, content=nested(DEEPEST + 1), headers=json)
            assert (got.status_code, f"{DEEPEST + 1} levels deep" in got.text) == (422, True), got.text
        assert http.post("/v1/procedures/echo", content=nested(DEEPEST), headers=json).status_code == 200
        text = '[{"a":"\\"[[' * 50 + '"}]' + '\\\\"'  # brackets, quotes and backslashes in text do not count
        for value in (text, text * 5, "[" * 1000, "\\" * 999):
            assert http.post("/v1/procedures/echo", json={"arguments": [value]}).json()["value"] == value
        lines = b"[1, 0]\n" + b"[" * 200 + b"]" * 200
        got = http.post("/v1/streams/orders/batches", content=lines, headers={"content-type": "application/x-ndjson"})
        assert (got.status_code, "200 levels deep" in got.text) == (422, True), got.text


def test_one_push_has_a_largest_number_of_rows_in_json_too(tmp_path: Path) -> None:
    server = Server(tmp_path / "log", settings={"body_rows": 10})
    try:
        with server.http() as http:
            got = http.post("/v1/streams/orders/batches", json=[["tea", 0]] * 11)
            assert (got.status_code, "at most 10 rows" in got.text) == (422, True), got.text
            assert http.post("/v1/streams/orders/batches", json=[["tea", 0]] * 10).status_code == 200
    finally:
        server.stop()


def test_a_server_whose_directory_is_gone_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path / "log", data=str(tmp_path / "data"))
    try:
        with server.http() as http:
            assert http.get("/ready").status_code == 200
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            ready = http.get("/ready")
            assert (ready.status_code, "removed, moved or replaced" in ready.text) == (503, True), ready.text
            pushed = http.post("/v1/streams/orders/batches", json=[["tea", 0]])
            assert (pushed.status_code, pushed.json()["error"]["type"]) == (503, "LogFailed")
    finally:
        server.process.kill()
        server.stop()
