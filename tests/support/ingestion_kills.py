"""Killing a process that takes rows in, or the server it takes them from, and checking that each row came once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ingesting import make_app

import tidegate

CHILD = Path(__file__).parent / "ingesting.py"
POINTS = ("ingestion-before-push", "ingestion-before-committed", "log-before-write")
STEP = 60  # rows that come before every kill


class Child:
    """One process that takes rows in."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(CHILD), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = threading.Event()
        self._complaints = ""
        self._readers = [threading.Thread(target=read) for read in (self._listen, self._collect)]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            self.ready.set()
        self.ready.set()

    def _collect(self) -> None:
        assert self._process.stderr is not None
        self._complaints = self._process.stderr.read()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self, timeout_s: float = 180) -> int:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
            self._complaints += "did not end by itself"
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        assert code in (0, -9), self._complaints
        assert "did not end" not in self._complaints, self._complaints
        return code


class Tormentor:
    """Adds rows, kills, and at the end lets everything come in. ``add(first, last)`` puts rows into the source."""

    def __init__(self, directory: Path, source: str, add: Callable[[int, int], None], seed: int, *options: str) -> None:
        self._directory = directory
        self._source = source
        self._add = add
        self._random = random.Random(seed)
        self._options = options
        self._recovery = options[options.index("--recovery") + 1] if "--recovery" in options else "weak"
        self.rows = 0
        self.kills: dict[str, int] = {}

    def _more(self) -> None:
        self._add(self.rows + 1, self.rows + STEP)
        self.rows += STEP

    def _start(self, *more: str) -> Child:
        self._more()
        executor = self._random.choice(("serial", "threads"))
        return Child(str(self._directory), self._source, "--executor", executor, *self._options, *more)

    def _count(self, what: str) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1

    def kill_at(self, point: str) -> None:
        """The process dies at a crash point."""
        assert self._start("--crash", f"{point}:{self._random.randint(1, 3)}").wait() == -9
        self._count(point)

    def kill_sometime(self) -> None:
        """The process is killed at a random moment; now and then while it recovers."""
        child = self._start()
        if self._random.random() < 0.8:
            assert child.ready.wait(120)
        time.sleep(self._random.uniform(0, 0.7))
        child.kill()
        self._count("any moment")

    def kill_server(self, kill: Callable[[], None], start: Callable[[], None], times: int = 1) -> None:
        """The source (and the sink) dies under a living process, which goes on when it is back."""
        child = self._start()
        assert child.ready.wait(120)
        for number in range(times):
            if number:
                self._more()
            time.sleep(self._random.uniform(0, 0.5))
            kill()
            time.sleep(self._random.uniform(0, 0.2))
            start()
            assert child.running
            self._count("server")
        time.sleep(self._random.uniform(0, 1.0))
        child.kill()
        self._count("any moment")

    def finish(self) -> str:
        """Let everything come in. No row may be lost or doubled."""
        child = self._start("--until", str(self.rows + STEP))
        assert child.wait() == 0
        with tidegate.open(make_app(self._source, self._recovery), self._directory) as engine:
            number = "sample + 1 AS id" if self._source.startswith("wfdb:") else "id"
            rows = engine.query(f"SELECT {number}, times FROM kept ORDER BY id").rows
            if self._source.startswith("wfdb:"):
                assert engine.query("SELECT count(*) FROM kept WHERE n <> sample OR n IS NULL").scalar() == 0
        assert [row.id for row in rows] == list(range(1, self.rows + 1))
        assert {row.times for row in rows} == {1}
        return f"{self._source.partition(':')[0]} ({self._recovery}): {self.rows} rows, kills {self.kills}, 0 lost or doubled"
