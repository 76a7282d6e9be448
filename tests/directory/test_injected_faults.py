"""A fault at every call that writes, and between any two lines of what writes, merges and closes: no hang, nothing lost.

Each run is made once to count its moments, then once for every moment with a fault there (a sample of them, unless slow
tests are asked for). Afterwards the engine has gone on correctly or says clearly that it stopped, and what is there when
the directory is opened again agrees with all that it ever acknowledged or answered.
"""

from __future__ import annotations

import errno
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulted import Injected, Run, in_time, sampled

from tidegate.directory.layout import OsFiles
from tidegate.errors import TidegateError
from tidegate.storage.base import Base
from tidegate.storage.generations import copy_base, sync_base
from tidegate.testing.faults import Faults, FaultyFiles, Lines, Moment

MODES = ("weak", "strong", "effects")
WAYS = list(itertools.product(MODES, ("group", "always")))
SOURCES = (
    "tidegate/txn/log/writer.py", "tidegate/txn/log/files.py", "tidegate/txn/executors/base.py",
    "tidegate/txn/executors/serial.py", "tidegate/txn/runtime.py", "tidegate/txn/scheduler.py", "tidegate/txn/ticket.py",
    "tidegate/storage/database.py", "tidegate/storage/base.py", "tidegate/storage/versions.py",
    "tidegate/storage/generations.py", "tidegate/streams/border.py", "tidegate/directory/log.py",
    "tidegate/engine/merging.py", "tidegate/engine/acceptance.py", "tidegate/engine/engine.py",
    "tidegate/engine/closing.py", "txn/journal.py", "tidegate/engine/checkpoint.py",
    "tidegate/outside/outbox.py", "threading.py", "contextlib.py",
)  # fmt: skip
OUTSIDE = (KeyboardInterrupt, MemoryError)

ERRORS: dict[str, Callable[[], BaseException] | None] = {
    "EIO": lambda: OSError(errno.EIO, "injected"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "injected"),
    "EMFILE": lambda: OSError(errno.EMFILE, "injected"),
    "MemoryError": Injected,
    "KeyboardInterrupt": KeyboardInterrupt,
    "short": None,
}


@pytest.fixture(autouse=True)
def plain_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of production: one that is watched is taken by Python code, in the middle of which a signal could come."""
    monkeypatch.setattr("tidegate.mutex.watched", False)


@pytest.fixture
def fresh() -> Iterator[Callable[[], Path]]:
    """A new directory for each run, in memory where there is one: the faults are ours, not the disk's."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="tidegate-faults-", dir=memory if memory.is_dir() else None))
    numbers = itertools.count()

    def make() -> Path:
        shutil.rmtree(place, ignore_errors=True)
        return place / str(next(numbers))

    yield make
    shutil.rmtree(place, ignore_errors=True)


# ---- calls that fail


@pytest.fixture
def use_faults(monkeypatch: pytest.MonkeyPatch) -> Callable[[Faults], None]:
    """``use_faults(faults)``: of engines opened from now on, every operation on the log and every one on the base can fail."""
    plain = {name: getattr(Base, name) for name in ("merge", "publish")}

    def use(faults: Faults) -> None:
        monkeypatch.setattr("tidegate.directory.layout.OsFiles", lambda path: FaultyFiles(OsFiles(path), faults))
        for name, function in plain.items():
            monkeypatch.setattr(Base, name, faults.around(function))
        monkeypatch.setattr("tidegate.directory.log.sync_base", faults.around(sync_base))
        monkeypatch.setattr("tidegate.directory.log.copy_base", faults.around(copy_base))

    return use


def run_with(faults: Faults, use_faults: Callable[[Faults], None], mode: str, sync: str, path: Path) -> Run:
    run = Run(mode, sync, path)
    with in_time():
        use_faults(faults)
        try:
            engine = run.open()
        except (TidegateError, OSError, *OUTSIDE) as error:
            run.errors.append(error)
        else:
            run.all(engine)
            run.close()
        use_faults(Faults())
        run.check()
    return run


def fail_calls(
    mode: str, sync: str, count: int, seed: int, use_faults: Any, fresh: Callable[[], Path]
) -> tuple[int, int]:
    """Let calls fail, ``count`` of them for every kind of fault; returns how many did, and how many were to."""
    counted = Faults()
    assert not run_with(counted, use_faults, mode, sync, fresh()).errors
    hit = tried = 0
    for number, (kind, after, for_good) in enumerate(itertools.product(ERRORS, (False, True), (False, True))):
        error = ERRORS[kind]
        if (error is None or kind == "ENOSPC") and after:
            continue  # a short write, or one that found no room, was not made whole
        if for_good and (kind in ("KeyboardInterrupt", "MemoryError") or after):
            continue
        for at in sampled(list(range(len(counted.moments))), count, seed + number):
            faults = Faults(at, error, for_good=for_good, after=after)
            run = run_with(faults, use_faults, mode, sync, fresh())
            hit += faults.hit
            tried += 1
            for told in run.errors:
                assert isinstance(told, (TidegateError, OSError, *OUTSIDE)), f"{kind} at {at}: {told!r}"
    return hit, tried


@pytest.mark.parametrize(("mode", "sync"), WAYS)
def test_a_call_that_fails(mode: str, sync: str, use_faults: Any, fresh: Callable[[], Path]) -> None:
    hit, tried = fail_calls(mode, sync, 1, WAYS.index((mode, sync)), use_faults, fresh)
    assert hit > tried * 0.5  # syncs of two pushes may be one


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("mode", "sync"), WAYS)
def test_every_call_fails_once(
    mode: str, sync: str, use_faults: Any, fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    hit, tried = fail_calls(mode, sync, 1_000_000, 0, use_faults, fresh)
    with capsys.disabled():
        print(f"\n{mode}, {sync}: {hit} calls failed, of {tried}")
    assert hit > tried * 0.9


# ---- exceptions from outside


def interrupted(executor: str, mode: str, sync: str, at: Moment | None, error: Any, path: Path) -> Lines:
    run = Run(mode, sync, path, executor)
    with in_time():
        engine = run.open()
        with Lines(SOURCES, at, error) as lines:
            run.all(engine)
            run.close()
        engine.close()
        run.check()
    if at is None:
        assert not run.errors
    for told in run.errors:
        assert isinstance(told, (TidegateError, *OUTSIDE)), f"at {at}: {told!r}"
    return lines


def interrupt(
    executor: str, mode: str, sync: str, error: Any, count: int, seed: int, fresh: Callable[[], Path]
) -> tuple[int, int]:
    """Interrupt at a sample of moments; returns how many were hit, and how many there were."""
    moments = interrupted(executor, mode, sync, None, error, fresh()).moments
    chosen = [moments[i] for i in sampled(list(range(len(moments))), count, seed)]
    return sum(interrupted(executor, mode, sync, at, error, fresh()).hit for at in chosen), len(chosen)


@pytest.mark.parametrize("error", [None, Injected], ids=["SIGINT", "MemoryError"])
@pytest.mark.parametrize(
    ("executor", "mode", "sync"),
    [("serial", "weak", "group"), ("serial", "strong", "always"), ("manual", "effects", "group")],
)
def test_an_interrupt_between_two_lines(
    executor: str, mode: str, sync: str, error: Any, fresh: Callable[[], Path]
) -> None:
    hit, tried = interrupt(executor, mode, sync, error, 6, 100 * WAYS.index((mode, sync)), fresh)
    assert hit > tried * 0.5  # who writes, the log's thread or another, is chance


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("error", [None, Injected], ids=["SIGINT", "MemoryError"])
@pytest.mark.parametrize(
    ("executor", "mode", "sync"), [*(("serial", *way) for way in WAYS), *(("manual", mode, "group") for mode in MODES)]
)
def test_an_interrupt_at_every_line(
    executor: str,
    mode: str,
    sync: str,
    error: Any,
    fresh: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    hit, tried = interrupt(executor, mode, sync, error, 1_000_000, 0, fresh)
    with capsys.disabled():
        print(f"\n{executor}, {mode}, {sync}, {error}: interrupted {hit} times, of {tried} moments")
    assert hit > tried * 0.9
