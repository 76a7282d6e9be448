"""Backups taken and brought back by command, with good and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recovering import make_numbers, push, seen
from typer.testing import CliRunner

import tidegate
from tidegate.cli.main import app
from tidegate.directory.backup import restore
from tidegate.errors import LogDamaged, TidegateError


def taken(path: Path) -> Path:
    with tidegate.open(make_numbers(), path / "d") as engine:
        push(engine, 1, 5)
        engine.backup(path / "b")
    return path / "b"


def test_a_backup_is_brought_back(tmp_path: Path) -> None:
    taken(tmp_path)
    done = CliRunner().invoke(app, ["restore", str(tmp_path / "b"), str(tmp_path / "again"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"directory": str(tmp_path / "b"), "target": str(tmp_path / "again")}
    with tidegate.open(make_numbers(), tmp_path / "again") as engine:
        assert len(seen(engine)) == 5


def test_a_damaged_backup_is_named_before_anything_is_copied(tmp_path: Path) -> None:
    backup = taken(tmp_path)
    log = min((backup / "log").iterdir())
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(LogDamaged, match="is damaged at byte"):
        restore(backup, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("what", ["nowhere", "empty", "file"])
def test_what_is_no_backup_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(TidegateError, match=f"{what} has no log: it is not a backup"):
        restore(tmp_path / what, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("there", ["file", "d"])
def test_a_place_that_is_taken_is_left_alone(tmp_path: Path, there: str) -> None:
    backup = taken(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TidegateError, match="already exists and is not empty"):
        restore(backup, tmp_path / there)
    assert (tmp_path / "file").read_text() == "x"


def test_a_place_that_can_t_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    backup = taken(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TidegateError, match="can't be copied to"):
        restore(backup, tmp_path / "file" / "below")
