"""kill -9 of the Spark driver, of the engine, and of both at once, in the middle of a pipeline: every row once, and in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from meters import make_app, oracle, put_files, readings, state

import tidegate
from tidegate.connectors.spark.pipeline import pipe

SUPPORT = Path(__file__).parents[2] / "support"
KILLS = [2, pytest.param(20, marks=pytest.mark.slow)]
MOST = 3  # micro-batches before a kill
NOW = {"availableNow": True}


class Child:
    """A process of ours in a group of its own, killed as one; ``lines`` of what it prints."""

    def __init__(self, log: Path, script: str, *arguments: Any) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(SUPPORT / script), *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def line(self) -> str:
        """The next line; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it had ended
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def told(self) -> str:
        return self._log.read_text()[-3000:]


class Served:
    """A served engine that can be killed and started again, on the same port and directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "db"
        self._log = directory / "engine.log"
        self.start(0)

    def start(self, port: int) -> None:
        self._child = Child(self._log, "engine_process.py", self.directory, port)
        self.url = self._child.line()
        assert self.url, self._child.told()
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._child.kill()

    def again(self) -> None:
        self.kill()
        self.start(self.port)


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    engine = Served(directory)
    try:
        yield engine
    finally:
        engine.kill()


def check(directory: Path, files: int) -> None:
    with tidegate.open(make_app(), directory) as engine:
        found, expected = state(engine), oracle(range(files))
        assert {row.times for row in found["seen"]} == {1}
        assert found == expected


def kill_drivers(tmp_path: Path, target: str, kills: int, chance: random.Random) -> int:
    """Start and kill drivers; returns how many were at work when they were killed."""
    hit = 0
    for _ in range(kills):
        driver = Child(tmp_path / "driver.log", "driver_process.py", tmp_path / "in", tmp_path / "c", target)
        try:
            lines = [driver.line() for _ in range(chance.randint(1, MOST))]
            assert lines[0], driver.told()
            time.sleep(chance.random() * 0.2)  # anywhere in a micro-batch
            hit += bool(lines[-1])
        finally:
            driver.kill()
    return hit


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_of_the_driver(spark: Any, kills: int, tmp_path: Path) -> None:
    files = (MOST + 2) * kills + 3
    put_files(tmp_path / "in", range(files))
    with served(tmp_path) as engine:
        assert kill_drivers(tmp_path, engine.url, kills, random.Random(kills)) > 0
        with tidegate.connect(engine.url) as client:
            last = pipe(readings(spark, tmp_path / "in"), client, "readings", checkpoint=tmp_path / "c", trigger=NOW)
            assert last.wait()
    check(engine.directory, files)


@pytest.mark.parametrize("kills", KILLS)
def test_kills_of_the_engine(spark: Any, kills: int, tmp_path: Path) -> None:
    """The driver lives, and waits while the engine is away."""
    files = (MOST + 3) * kills
    put_files(tmp_path / "in", range(files))
    chance = random.Random(kills)
    with served(tmp_path) as engine, tidegate.connect(engine.url, retry_s=0.5) as client:
        pipeline = pipe(readings(spark, tmp_path / "in"), client, "readings", checkpoint=tmp_path / "c", trigger=NOW)
        for _ in range(kills):
            until = pipeline.pushed + chance.randint(1, MOST)
            while pipeline.pushed < until and pipeline.active:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.1)
            engine.again()
        assert pipeline.wait()
        assert pipeline.pushed == files
    check(engine.directory, files)


@pytest.mark.slow
def test_kills_of_both_at_once(spark: Any, tmp_path: Path) -> None:
    """The engine is in the driver's process."""
    kills = 10
    files = (MOST + 2) * kills + 3
    put_files(tmp_path / "in", range(files))
    assert kill_drivers(tmp_path, str(tmp_path / "db"), kills, random.Random(5)) > 0
    with tidegate.open(make_app(), tmp_path / "db") as engine:
        assert pipe(readings(spark, tmp_path / "in"), engine, "readings", checkpoint=tmp_path / "c", trigger=NOW).wait()
    check(tmp_path / "db", files)
