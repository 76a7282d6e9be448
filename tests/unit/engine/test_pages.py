"""Large tables in large pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tidegate
from tidegate import App, Transaction, pages

MB = 1 << 20


def region(start: int, end: int, *, rss: int, large: int = 0, access: str = "rw-p", of: str = "") -> str:
    """A region of memory as the system tells of it; sizes in bytes."""
    return (
        f"{start:012x}-{end:012x} {access} 00000000 00:00 0 {of}\n"
        f"Size:           {(end - start) >> 10:8d} kB\nKernelPageSize:        4 kB\n"
        f"Rss:            {rss >> 10:8d} kB\nPss:            {rss >> 10:8d} kB\n"
        f"AnonHugePages:  {large >> 10:8d} kB\nVmFlags: rd wr mr mw me ac\n"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(region(2 * MB, 10 * MB, rss=8 * MB), [(2 * MB, 8 * MB)], id="in-use"),
        pytest.param(region(3 * MB, 11 * MB, rss=8 * MB), [(4 * MB, 6 * MB)], id="whole-pages-only"),
        pytest.param(region(3 * MB, 5 * MB, rss=2 * MB), [], id="no-whole-page"),
        pytest.param(region(2 * MB, 10 * MB, rss=MB), [], id="hardly-in-use"),
        pytest.param(region(2 * MB, 10 * MB, rss=8 * MB, large=8 * MB), [], id="large-already"),
        pytest.param(region(2 * MB, 10 * MB, rss=8 * MB, access="r--p"), [], id="not-ours-to-write"),
        pytest.param(region(2 * MB, 10 * MB, rss=8 * MB, of="/usr/lib/x.so"), [], id="a-file"),
        pytest.param(region(2 * MB, 10 * MB, rss=8 * MB, of="[heap]"), [(2 * MB, 8 * MB)], id="heap"),
        pytest.param(
            region(2 * MB, 4 * MB, rss=0) + region(6 * MB, 8 * MB, rss=2 * MB), [(6 * MB, 2 * MB)], id="each-by-itself"
        ),
        pytest.param("", [], id="nothing"),
    ],
)
def test_memory_in_use_is_found(text: str, found: list[tuple[int, int]]) -> None:
    assert list(pages._regions(text)) == found


def large_bytes() -> int:
    found = re.search(r"AnonHugePages: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_memory_comes_to_be_in_large_pages() -> None:
    if not pages._SETTING.exists() or "[never]" in pages._SETTING.read_text():
        pytest.skip("this system has no large pages for whoever asks")
    held = bytearray(b"x") * (32 * MB)
    before = large_bytes()
    assert pages.ask() >= 30 * MB
    if large_bytes() == before:
        pytest.skip("asked for, and not given: an old Linux, or no room")
    assert large_bytes() - before >= 16 * MB
    assert held.count(b"x") == 32 * MB


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every time that large pages are asked for."""
    times: list[int] = []
    monkeypatch.setattr(pages, "ask", lambda: times.append(len(times)))
    monkeypatch.setattr(pages, "MANY", 1_000)
    return times


@pytest.fixture
def app() -> App:
    app = App("growing")
    app.table("CREATE TABLE things (id INTEGER PRIMARY KEY)")

    @app.procedure(writes=["things"])
    def add(txn: Transaction, first: int, last: int) -> None:
        for i in range(first, last):
            txn.insert("things", (i,))

    return app


def test_a_table_that_has_grown_asks_for_them(app: App, asked: list[int]) -> None:
    with tidegate.open(app) as engine:
        sizes = []
        for last in (900, 1_000, 1_400, 1_600, 2_000, 2_500):
            engine.call("add", engine.query("SELECT count(*) FROM things").scalar(), last)
            engine.checkpoint()
            sizes.append((last, len(asked)))
    assert sizes == [(900, 0), (1_000, 1), (1_400, 1), (1_600, 2), (2_000, 2), (2_500, 3)]


def test_a_process_with_rules_of_its_own_does_not(app: App, asked: list[int]) -> None:
    with tidegate.open(app, tune_process=False) as engine:
        engine.call("add", 0, 2_000)
        engine.checkpoint()
    assert asked == []


@pytest.mark.parametrize("missing", ["_SETTING", "_MEMORY"])
def test_other_systems_are_left_alone(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, missing, tmp_path / "not there")
    assert pages.ask() == 0


def test_a_system_that_says_never_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = tmp_path / "enabled"
    never.write_text("always madvise [never]\n")
    monkeypatch.setattr(pages, "_SETTING", never)
    asked_of: list[Callable[[], None]] = []
    monkeypatch.setattr(pages.ctypes, "CDLL", lambda name: asked_of.append(name))
    assert pages.ask() == 0
    assert asked_of == []
