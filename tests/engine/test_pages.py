"""Large tables in large pages."""

from __future__ import annotations

import io
import mmap
import re
from pathlib import Path

import pytest

import tidegate
from tidegate import App, Transaction
from tidegate.engine import pages

MB = 1 << 20


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param("200000-a00000 rw-p 00000000 00:00 0", [(2 * MB, 10 * MB)], id="ours"),
        pytest.param("300000-b00000 rw-p 00000000 00:00 0", [(4 * MB, 10 * MB)], id="whole-pages-only"),
        pytest.param("300000-500000 rw-p 00000000 00:00 0", [], id="no-whole-page"),
        pytest.param("200000-a00000 r--p 00000000 00:00 0", [], id="not-ours-to-write"),
        pytest.param("200000-a00000 rw-p 00000000 fe:00 77  /usr/lib/x y.so", [], id="a-file"),
        pytest.param("200000-a00000 rw-p 00000000 00:00 0      [heap]", [(2 * MB, 10 * MB)], id="heap"),
        pytest.param("200000-a00000 rw-p 00000000 00:00 0      [anon: some name]", [(2 * MB, 10 * MB)], id="named"),
        pytest.param("200000-a00000 rw-p 00000000 00:00 0      [stack]", [], id="stack"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_regions_of_memory_are_found(line: str, found: list[tuple[int, int]]) -> None:
    assert list(pages._regions(line, 2 * MB)) == found


def pagemap(*present: int) -> io.BytesIO:
    """What the system tells of large pages from 4 MB on: so many small ones of each are in use."""
    entries = [0] * 1024  # the 4 MB before
    for count in present:
        entries += [1 << 63 | 5] * count + [1 << 62] * (512 - count)
    return io.BytesIO(b"".join(entry.to_bytes(8, "little") for entry in entries))


@pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="the numbers are those of small pages of 4 KB")
@pytest.mark.parametrize(
    ("present", "found"),
    [
        pytest.param([512], [(4, 6)], id="all"),
        pytest.param([256], [(4, 6)], id="half"),
        pytest.param([255], [], id="less"),
        pytest.param([512, 0, 512, 300, 1, 2], [(4, 6), (8, 12)], id="here-and-there"),
        pytest.param([0, 0, 512], [(8, 10)], id="at-the-end"),
    ],
)
def test_what_is_in_use_is_found(present: list[int], found: list[tuple[int, int]]) -> None:
    parts = list(pages._in_use(pagemap(*present), 4 * MB, (4 + 2 * len(present)) * MB, 2 * MB))
    assert parts == [(first * MB, last * MB) for first, last in found]


def large_bytes() -> int:
    found = re.search(r"AnonHugePages: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_memory_comes_to_be_in_large_pages() -> None:
    setting = pages._SETTINGS / "enabled"
    if not setting.exists() or "[never]" in setting.read_text():
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


def test_one_that_is_about_to_go_does_not(app: App, asked: list[int], tmp_path: Path) -> None:
    with tidegate.open(app, tmp_path) as engine:
        engine.call("add", 0, 2_000)
    assert asked == []


def test_a_process_with_rules_of_its_own_does_not(app: App, asked: list[int]) -> None:
    with tidegate.open(app, tune_process=False) as engine:
        engine.call("add", 0, 2_000)
        engine.checkpoint()
    assert asked == []


@pytest.mark.parametrize("missing", ["_SETTINGS", "_PROCESS"])
def test_other_systems_are_left_alone(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, missing, tmp_path / "not there")
    assert pages.ask() == 0


def test_a_system_that_speaks_otherwise_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a matter of speed alone: a merge must not fail by it."""
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "hpage_pmd_size").write_text("unknown\n")
    monkeypatch.setattr(pages, "_SETTINGS", tmp_path)
    assert pages.ask() == 0


def test_a_system_that_says_never_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    (tmp_path / "hpage_pmd_size").write_text(f"{2 * MB}\n")
    monkeypatch.setattr(pages, "_SETTINGS", tmp_path)
    held = bytearray(b"x") * (8 * MB)
    assert pages.ask() == 0
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    assert pages.ask() > 0
    assert len(held) == 8 * MB
