"""Masters of Spark: how many tasks they run at the same time, and whether they answer."""

from __future__ import annotations

import os
import re
import socket

from tidegate.clock import SystemClock
from tidegate.errors import SparkUnavailable
from tidegate.mutex import Flag

ANSWERS_WITHIN_S = 10.0  # for a master that may have just been started


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slots_of(master: str) -> int:
    """How many tasks a local master runs at the same time; of a cluster that is known only when it has started.

    >>> slots_of("local"), slots_of("local[3]"), slots_of("local[8,4]")
    (1, 3, 8)
    """
    inside = master[6:-1].partition(",")[0] if master.startswith("local[") else ""
    return int(inside) if inside.isdigit() else 1 if master == "local" else cores()


def check_answers(master: str, within_s: float = ANSWERS_WITHIN_S) -> None:
    """Does a standalone master answer, or will it soon? Spark itself takes a minute to find out, silently."""
    found = re.fullmatch(r"spark://(.+)", master)
    if found is None:
        return
    clock, pause = SystemClock(), Flag()
    until = clock.monotonic() + within_s
    while True:
        tried = [_silence(address, within_s) for address in found[1].split(",")]
        if None in tried:
            return
        if clock.monotonic() >= until:
            break
        pause.wait(0.2)
    raise SparkUnavailable(
        f"no Spark master answers at {master}, tried for {within_s:g} s ({'; '.join(map(str, tried))}); is it running, and is "
        f"that its host and port? The master prints its address when it starts (spark://host:7077)",
        master=master,
    )


def _silence(address: str, timeout_s: float) -> str | None:
    """Why nothing answers there; None when something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s or None).close()
    except (OSError, ValueError) as error:
        return f"{address}: {error}"
    return None
