"""A directory that is taken away under an open engine: nothing is acknowledged into a file that nobody finds again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovering import make_numbers, seen

import tidegate
from tidegate.errors import LogFailed


def remove(path: Path) -> None:
    shutil.rmtree(path)


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    """A copy in its place, as a backup that is restored under a running engine."""
    shutil.copytree(path, path.with_name("copy"))
    shutil.rmtree(path)
    path.with_name("copy").rename(path)


def remove_segment(path: Path) -> None:
    for segment in (path / "log").iterdir():
        segment.unlink()


WAYS = [remove, move, replace, remove_segment]


@pytest.mark.parametrize("sync", ["group", "always", "off"])
@pytest.mark.parametrize("take_away", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_acknowledged_any_more(take_away: Callable[[Path], None], sync: Any, tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = tidegate.open(make_numbers("weak"), path, sync=sync, merge_every_s=3600.0)
    engine.push("numbers", [(1,)], 1).result(60)
    take_away(path)
    with pytest.raises(LogFailed, match="removed, moved or replaced while the engine was open"):
        engine.push("numbers", [(2,)], 2).result(60)
    for work in (lambda: engine.push("numbers", [(3,)]), lambda: engine.call("total", 1), engine.checkpoint):
        with pytest.raises(LogFailed, match="removed, moved or replaced"):
            work()
    with pytest.raises(LogFailed):
        engine.close()
    if take_away is move:
        with tidegate.open(make_numbers("weak"), tmp_path / "elsewhere") as engine:
            assert 1 in seen(engine)  # what was acknowledged; the other was written, and nobody was told


@pytest.mark.parametrize("take_away", WAYS, ids=lambda way: way.__name__)
def test_a_merge_notices_too(take_away: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = tidegate.open(make_numbers("weak"), path, merge_every_s=3600.0)
    engine.push("numbers", [(1,)], 1).result(60)
    take_away(path)
    with pytest.raises(LogFailed, match="removed, moved or replaced"):
        engine.checkpoint()
    with pytest.raises(LogFailed):
        engine.push("numbers", [(2,)], 2)
    with pytest.raises(LogFailed):
        engine.close()
