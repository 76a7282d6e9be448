"""``/ready`` says what the engine can do: a real write, and its lock."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

from server_process import Server

import tidegate
from tidegate import App
from tidegate.engine.readiness import PROBE, reasons_not_to
from tidegate.errors import DiskFull
from tidegate.txn.log.files import AppendFile, OsFiles


def answer(server: Server, wanted: int) -> list[str]:
    """What it says when it answers with ``wanted``; an answer is good for a second."""
    end = time.monotonic() + 60
    with server.http() as http:
        while (found := http.get("/ready")).status_code != wanted:
            assert time.monotonic() < end, found.text
            time.sleep(0.05)
        body = found.json()
    assert body["ready"] is (wanted == 200)
    assert body["last_merge_age_s"] >= 0
    return list(body["why_not"])


def test_readiness_leaves_nothing_behind_and_the_age_of_merges_is_told(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start(data=str(data))
    assert answer(server, 200) == []
    assert not (data / "log" / PROBE).exists()
    with server.http() as http:
        text = http.get("/metrics").text
        for name in ("tidegate_last_merge_age_seconds", "tidegate_merge_tries 0.0", "tidegate_rows_set_aside 0.0"):
            assert name in text
        facts = http.get("/v1/status").json()
        assert (facts["merge_tries"], facts["last_merge_failure"], facts["set_aside"]) == (0, None, [])


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    with tidegate.open(App("empty"), tmp_path) as engine:
        (tmp_path / "log" / PROBE).write_bytes(b"half")
        assert reasons_not_to(engine) == []
        (tmp_path / "log" / PROBE).write_bytes(b"half")
    with tidegate.open(App("empty"), tmp_path) as engine:
        assert reasons_not_to(engine) == []


def test_an_engine_that_is_stuck(tmp_path: Path) -> None:
    with tidegate.open(App("empty"), tmp_path) as engine:
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with engine.lock:
                held.set()
                let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        (why,) = reasons_not_to(engine)
        let_go.set()
        thread.join()
        assert "busy or stuck" in why
        assert reasons_not_to(engine) == []


def test_merges_that_fail_for_want_of_room(tmp_path: Path) -> None:
    with tidegate.open(App("empty"), tmp_path) as engine:
        engine.merger.failed = DiskFull("no room to merge")
        assert reasons_not_to(engine) == ["no room to merge"]
        engine.checkpoint()
        assert reasons_not_to(engine) == []


class FullFiles(OsFiles):
    """A disk without room for another file."""

    def create(self, name: str) -> AppendFile:
        raise OSError(errno.ENOSPC, "No space left on device", name)


def test_a_disk_that_takes_no_file(tmp_path: Path) -> None:
    with tidegate.open(App("empty"), tmp_path) as engine:
        assert engine.directory is not None
        sound, engine.directory.files = engine.directory.files, FullFiles(tmp_path / "log")
        (why,) = reasons_not_to(engine)
        assert "could not be written and synced" in why
        engine.directory.files = sound
        assert reasons_not_to(engine) == []
