"""A process that waits for a processor is not stuck; one that waits for anything else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tidegate.testing.patience import Patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread waited")


@pytest.fixture
def crowd() -> Iterator[list[int]]:
    """Processes that never stop computing, all of them on one processor."""
    one = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, [{one}])\nwhile True: pass"
    with ExitStack() as kept:
        processes = [kept.enter_context(subprocess.Popen([sys.executable, "-c", busy])) for _ in range(4)]
        for process in processes:
            kept.callback(process.kill)
        yield [process.pid for process in processes]


def test_waiting_for_a_processor_does_not_count_and_waiting_for_nothing_does(crowd: list[int]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as asleep:
        began = time.monotonic()
        computing, sleeping = Patience(*crowd), Patience(asleep.pid)
        while time.monotonic() - began < 2.4:
            time.sleep(0.1)
            counted, in_full = computing.seconds(), sleeping.seconds()
        asleep.kill()
    assert in_full > 1.0
    assert counted < in_full * 0.7  # four on one processor: each waits for three quarters of the time


def test_the_children_of_a_process_count_as_it_does(crowd: list[int]) -> None:
    parent = Patience(os.getpid())
    assert {str(pid) for pid in crowd} <= set(parent._waited)
