"""Interrupts the use of a flag at every line of ``tidegate/mutex.py``, in a process of its own: tracing under pytest-xdist can
hang the interpreter. Prints how many interrupts there were.
"""

from __future__ import annotations

import signal
import threading
import time

from faulted import Injected

from tidegate.mutex import Flag
from tidegate.testing.faults import Lines, Moment


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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background
    for error in (None, Injected):
        print(sum(interrupted(at, error).hit for at in interrupted(None, error).moments))
