"""Killing a delivering process, or its target, and checking what arrived. Shared by the delivery tests."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

CHILD = Path(__file__).parent / "delivering.py"
SENSORS = 3
PARTS = 3
POINTS = ("delivery-before-send", "delivery-after-send")

Arrived = dict[int, list[tuple[int, int, int]]]  # sensor -> (batch, part, total), in order of arrival


class Child:
    """One delivering process. ``acknowledged`` is the last input that it said is on disk."""

    def __init__(self, directory: Path, target: str, *options: str) -> None:
        command = [sys.executable, str(CHILD), str(directory), target, *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.acknowledged = 0
        self.ready = threading.Event()
        self._complaints = ""
        self._readers = [threading.Thread(target=read) for read in (self._listen, self._collect)]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                self.ready.set()
            elif line.endswith("\n"):
                self.acknowledged = int(line)
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
        """Its exit code: 0 when it was done, -9 when it was killed. One that does neither fails the test."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
            self._complaints += "did not end by itself"
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        assert code in (0, -9), self._complaints
        assert "did not end" not in self._complaints, self._complaints
        return code


class Tormentor:
    """Kills, checks the target after each kill, lets the last process finish, and checks everything."""

    def __init__(self, directory: Path, target: str, arrived: Callable[[], Arrived], seed: int, *options: str) -> None:
        self._directory = directory
        self._target = target
        self._arrived = arrived
        self._random = random.Random(seed)
        self._options = options
        self.acknowledged = 0
        self.kills: dict[str, int] = {}

    def _start(self, *more: str) -> Child:
        executor = self._random.choice(("serial", "threads"))
        return Child(self._directory, self._target, "--executor", executor, *self._options, *more)

    def _count(self, what: str, child: Child) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1
        self.acknowledged = max(self.acknowledged, child.acknowledged)

    def kill_at(self, point: str) -> None:
        """The process dies at a crash point."""
        child = self._start("--crash", f"{point}:{self._random.randint(1, 25)}")
        assert child.wait() == -9
        self._count(point, child)
        check_prefix(self._arrived())

    def kill_sometime(self) -> None:
        """The process is killed at a random moment; now and then while it recovers."""
        child = self._start()
        if self._random.random() < 0.8:
            assert child.ready.wait(120)
        time.sleep(self._random.uniform(0, 0.7))
        child.kill()
        self._count("any moment", child)
        check_prefix(self._arrived())

    def kill_target(self, kill: Callable[[], None], start: Callable[[], None], times: int = 1) -> None:
        """The target dies under a living process, which goes on when it is back."""
        child = self._start()
        assert child.ready.wait(120)
        for _ in range(times):
            time.sleep(self._random.uniform(0, 0.7))
            kill()
            time.sleep(self._random.uniform(0, 0.2))
            start()
            assert child.running
            self._count("target", child)
        time.sleep(self._random.uniform(0, 0.3))
        child.kill()
        self._count("any moment", child)
        check_prefix(self._arrived())

    def finish(self) -> int:
        """Let everything arrive; returns how many batches. None may be lost, doubled or out of order."""
        child = self._start("--until", str(self.acknowledged + 20))
        assert child.wait() == 0
        self._count("none", child)
        del self.kills["none"]
        found = self._arrived()
        check_prefix(found)
        inputs = sum(len(rows) for rows in found.values()) // PARTS
        assert inputs >= self.acknowledged, f"{self.acknowledged} were acknowledged, {inputs} arrived"
        assert inputs == child.acknowledged or child.acknowledged == 0
        return inputs


def check_prefix(arrived: Arrived) -> None:
    """What arrived of each sensor is the beginning of what must: whole, once, in order, the right sums."""
    for sensor, rows in arrived.items():
        batches = len(rows) // PARTS
        assert rows == expected(sensor, batches), f"sensor {sensor}: {differences(sensor, rows)}"


def expected(sensor: int, batches: int) -> list[tuple[int, int, int]]:
    rows, total = [], 0
    for batch in range(1, batches + 1):
        total += sensor + (batch - 1) * SENSORS if sensor else batch * SENSORS
        rows += [(batch, part, total) for part in range(PARTS)]
    return rows


def differences(sensor: int, rows: list[tuple[int, int, int]]) -> str:
    wanted = expected(sensor, max((row[0] for row in rows), default=0))
    lost = sorted({row[0] for row in wanted} - {row[0] for row in rows})
    doubled = sorted({row[0] for row in rows if rows.count(row) > 1})
    return f"lost batches {lost[:10]}, doubled {doubled[:10]}, in order: {rows == sorted(rows)}"
