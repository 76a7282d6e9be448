"""Power lost on a real journal: a filesystem in a file is shut down (FS_IOC_SHUTDOWN) under a working engine.

The process is stopped first (SIGSTOP): otherwise the test would lose what is acknowledged meanwhile.
Needs root, loop devices and mkfs; skipped by name without them.
"""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debian import install
from recovering import make_numbers, seen

import tidegate

FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING_THE_JOURNAL = 2
MODES = ("weak", "strong", "effects")


def work(path: str, acknowledged: str, recovery: str, executor: Any, sync: Any) -> None:
    """Push numbers for ever; each that is acknowledged is noted on another disk."""
    told = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    engine = tidegate.open(
        make_numbers(recovery), path, executor=executor, sync=sync, merge_every_s=0.03, generation_bytes=5_000
    )
    number = len(seen(engine))
    os.pwrite(told, str(number).encode(), 0)
    while True:
        number += 1
        engine.push("numbers", [(number,)], number).result()
        os.pwrite(told, str(number).encode(), 0)


class Disk:
    """A filesystem in a file, mounted over loop."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind = kind
        self.image = place / "image"
        self.mounted = place / "disk"
        self.mounted.mkdir()
        with self.image.open("wb") as file:
            file.truncate(320 << 20)
        self._run(f"mkfs.{kind}", "-q", str(self.image))
        self.mount()

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(command)} does not work here: {done.stderr.strip()}")

    def mount(self) -> None:
        self._run("mount", "-o", "loop", str(self.image), str(self.mounted))

    def lose_power(self) -> None:
        handle = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_JOURNAL))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        for _ in range(100):
            if subprocess.run(["umount", self.mounted], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.mounted} can't be unmounted")


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[request.param]
    lacking = install(package, lambda: shutil.which(f"mkfs.{request.param}"))
    if lacking is not None:
        pytest.skip(lacking)
    disk = Disk(request.param, tmp_path)
    yield disk
    subprocess.run(["umount", "-l", disk.mounted], capture_output=True, check=False)


def cycle(disk: Disk, place: Path, chance: random.Random, mode: str) -> int:
    """Work, lose power, come up again; returns how many numbers were acknowledged."""
    noted = place / "acknowledged"
    noted.unlink(missing_ok=True)
    path = disk.mounted / "db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tidegate.testing.crashes", "pandas"])
    settings = (mode, chance.choice(("serial", "threads")), chance.choice(("group", "always")))
    child: Any = context.Process(target=work, args=(str(path), str(noted), *settings))
    child.start()
    give_up = time.monotonic() + 60
    while not (noted.exists() and noted.read_text()):
        assert child.exitcode is None, "the child died when it opened the directory"
        assert time.monotonic() < give_up
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.4))
    assert child.exitcode is None
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(0.02)
    acknowledged = int(noted.read_text())
    disk.lose_power()
    child.kill()
    child.join()
    disk.unmount()
    disk.mount()
    with tidegate.open(make_numbers(mode), path) as engine:
        assert len(seen(engine)) >= acknowledged, f"{acknowledged} were acknowledged"
    return acknowledged


def cycles(disk: Disk, place: Path, count: int, seed: int) -> None:
    """The modes take turns on one directory: after each cut it is closed cleanly, and a mode may change then."""
    chance = random.Random(seed)
    before = 0
    for _, mode in zip(range(count), itertools.cycle(MODES), strict=False):
        acknowledged = cycle(disk, place, chance, mode)
        assert acknowledged >= before
        before = acknowledged
    assert before > 0


def test_a_power_cut_in_every_mode(disk: Disk, tmp_path: Path) -> None:
    cycles(disk, tmp_path, 3, seed=1)


@pytest.mark.slow
def test_a_hundred_power_cuts_in_every_mode(disk: Disk, tmp_path: Path) -> None:
    cycles(disk, tmp_path, 300, seed=2)
