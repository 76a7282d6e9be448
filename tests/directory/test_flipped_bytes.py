"""One flipped byte anywhere on disk is detected or harmless: never a wrong state, never a dead process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.errors import LogDamaged, RecoveryRefused

ROWS = 30


def make_app() -> App:
    app = App("flips")
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY, word VARCHAR NOT NULL)")
    app.stream("words", "n BIGINT NOT NULL, word VARCHAR NOT NULL", border=True)

    @app.procedure(inputs="words", writes=["t"])
    def keep(txn: Transaction, words: Batch) -> None:
        for row in words:
            txn.insert("t", row)

    return app


EXPECTED = [(n, f"word {n}") for n in range(1, ROWS + 1)]


def fill(path: Path, *, checkpoint: bool) -> None:
    """A directory as a kill leaves it: everything acknowledged, nothing merged (or all but the end)."""
    code = f"""
import os, tidegate, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_flipped_bytes import EXPECTED, make_app
engine = tidegate.open(make_app(), {str(path)!r}, merge_every_s=3600.0)
for number, row in enumerate(EXPECTED, start=1):
    engine.push("words", [row], number).result()
    if {checkpoint} and number in (10, 20):
        engine.checkpoint(generation=number == 10)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def opened(path: Path) -> list[Any] | str:
    """The table after opening, or the kind of error that says why not."""
    try:
        with tidegate.open(make_app(), path) as engine:
            return [tuple(row) for row in engine.query("SELECT * FROM t ORDER BY n")]
    except (LogDamaged, RecoveryRefused) as error:
        return type(error).__name__


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << place % 8)]))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips") / "db"
    fill(path, checkpoint=False)
    return path


def check_log_flips(filled: Path, tmp_path: Path, step: int) -> tuple[int, int]:
    """Flip every ``step``-th byte of the log; returns how many flips were detected, and how many harmless."""
    (log,) = (filled / "log").iterdir()
    size = log.stat().st_size
    detected = harmless = 0
    for place in range(0, size, step):
        path = tmp_path / str(place)
        shutil.copytree(filled, path)
        flip(path / "log" / log.name, place)
        found = opened(path)
        shutil.rmtree(path)
        if found == EXPECTED:
            harmless += 1
        else:
            assert found in ("LogDamaged", "RecoveryRefused"), f"byte {place} of {size}: {found}"
            detected += 1
    return detected, harmless


def test_the_log(filled: Path, tmp_path: Path) -> None:
    detected, _ = check_log_flips(filled, tmp_path, 37)
    assert detected > 20


@pytest.mark.slow
def test_every_byte_of_the_log(filled: Path, tmp_path: Path) -> None:
    detected, harmless = check_log_flips(filled, tmp_path, 1)
    assert detected > harmless


# ---- the base, in a process of its own: DuckDB reads what is damaged


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips") / "db"
    fill(path, checkpoint=True)
    return path


def check_base_flips(merged: Path, tmp_path: Path, name: str, count: int) -> list[Any]:
    """Flip ``count`` bytes, spread over the file; returns the reports of recovery."""
    size = (merged / name).stat().st_size
    places = [place * size // count for place in range(count)]
    reports = []
    for start in range(0, count, 25):
        paths = []
        for place in places[start : start + 25]:
            path = tmp_path / f"{name}-{place}"
            shutil.copytree(merged, path)
            flip(path / name, place)
            paths.append(str(path))
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"from test_flipped_bytes import look\nlook({paths!r})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"the process died at {len(done.stdout.splitlines())} of {paths}: {done.stderr}"
        told = [
            json.loads(line) for line in done.stdout.splitlines() if line
        ]  # an empty one came once, nobody knows from whom
        assert len(told) == len(paths)
        reports += told
        for path in paths:
            shutil.rmtree(path)
    return reports


def look(paths: list[str]) -> None:
    for path in paths:
        with tidegate.open(make_app(), path) as engine:
            found = [tuple(row) for row in engine.query("SELECT * FROM t ORDER BY n")]
            assert found == EXPECTED, f"{path}: {found}"
            print(json.dumps(engine.recovery.notes), flush=True)


@pytest.mark.parametrize("name", ["base.duckdb", "base.duckdb.wal"])
def test_the_base(merged: Path, tmp_path: Path, name: str) -> None:
    reports = check_base_flips(merged, tmp_path, name, 25)
    assert any(reports), "some of it was noticed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["base.duckdb", "base.duckdb.wal"])
def test_many_bytes_of_the_base(merged: Path, tmp_path: Path, name: str) -> None:
    check_base_flips(merged, tmp_path, name, 1_000)
