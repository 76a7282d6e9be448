"""Flags: events that an exception can't leave locked."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tidegate.mutex import Flag


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


def test_a_flag_can_be_interrupted_at_every_line() -> None:
    script = Path(__file__).parents[1] / "support" / "interrupted_flags.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    by_signal, by_exception = map(int, done.stdout.split())
    assert by_signal > 10
    assert by_exception > 10
