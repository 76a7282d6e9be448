"""How long processes could have done something: time in which they waited for a processor does not count.

On a machine with forty times as much to do as it has processors, a process that needs two seconds to end takes more than a
minute. It is not stuck, and one that waits for ever is found all the same: it does not wait for a processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STEP_S = 1.0  # a wait for a processor is counted when it ends, so short steps would miss long waits


class Patience:
    """Counts the seconds in which these processes and their children had what processors they wanted.

    In each step the thread that waited longest for a processor decides. Elsewhere than on Linux every second counts.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._at = time.monotonic()
        self._waited = _waited(pids)
        self._seconds = 0.0

    def seconds(self) -> float:
        """So far."""
        passed = time.monotonic() - self._at
        if passed >= STEP_S:
            before, self._waited = self._waited, _waited(self._pids)
            longest = max((ns - before.get(thread, 0) for thread, ns in self._waited.items()), default=0)
            self._at += passed
            self._seconds += max(passed - longest / 1e9, 0.0)
        return self._seconds


def _waited(pids: tuple[int, ...]) -> dict[str, int]:
    """For each thread of the processes and their children: how many ns it has waited for a processor."""
    found: dict[str, int] = {}
    for pid in pids:
        for thread in _threads(pid):
            with suppress(OSError, IndexError, ValueError):
                found[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return found


def _threads(pid: int) -> Iterator[Path]:
    with suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
            yield thread
            children: list[str] = []
            with suppress(OSError):
                children = (thread / "children").read_text().split()
            for child in children:
                if int(child) != os.getpid():
                    yield from _threads(int(child))
