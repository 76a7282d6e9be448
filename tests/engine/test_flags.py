"""Flags: events that an exception can't leave locked."""

from __future__ import annotations

import threading
import time

import pytest
from faulted import Injected

from tidegate.mutex import Flag
from tidegate.testing.faults import Lines, Moment


def test_a_flag_wakes_all_who_wait() -> None:
    flag, woken = Flag(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.wait(0.01)
    flag.set()
    for thread in threads:
        thread.join(60)
    assert woken == [True] * 3
    assert flag.is_set()
    assert flag.wait()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0)
    assert not flag.wait(-1)


def use(flag: Flag) -> None:
    flag.wait(0)
    flag.set()
    flag.wait()


def interrupted(at: Moment | None, error: type[BaseException] | None) -> Lines:
    """Someone waits, while this thread is interrupted; then it sets the flag once more."""
    flag, woken = Flag(), threading.Lock()
    woken.acquire()
    other = threading.Thread(target=lambda: flag.wait() and woken.release(), daemon=True)
    other.start()
    while not flag._waiting:
        time.sleep(0.001)
    lines = Lines(("tidegate/mutex.py",), at, error)
    try:
        with lines:
            use(flag)
    except (KeyboardInterrupt, Injected):
        pass
    flag.set()
    assert woken.acquire(timeout=60), f"interrupted at {at}, it wakes nobody"
    assert flag.wait(60)
    return lines


@pytest.mark.parametrize("error", [None, Injected], ids=["SIGINT", "MemoryError"])
def test_a_flag_can_be_interrupted_at_every_line(error: type[BaseException] | None) -> None:
    moments = interrupted(None, error).moments
    assert len(moments) > 10
    assert sum(interrupted(at, error).hit for at in moments) > 10
