"""Machine outliers: machines whose use is far from the median of all machines in the same ten seconds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows, at, seconds_of

MACHINES, SECONDS, FAR = 50, 10, 6.0


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    made: Rows = []
    for i in range(count):
        wild = rng.random() < 0.002
        made.append((at(0.02 * i), i % MACHINES, round(rng.gauss(0.5, 0.1) + 3.0 * wild, 4)))
    return made


def outliers(machines: Any, used: Any) -> Rows:
    """Machines, with the largest distance from the median, in units of the median distance."""
    distance = np.abs(used - np.median(used))
    unit = float(np.median(distance)) or 1.0
    worst: dict[int, float] = {}
    for place in np.flatnonzero(distance > FAR * unit):
        machine = int(machines[place])
        worst[machine] = max(worst.get(machine, 0.0), float(distance[place]) / unit)
    return sorted(worst.items())


def app() -> App:
    app = App("machine_outlier")
    app.table("CREATE TABLE found (second BIGINT, machine BIGINT, distance DOUBLE, PRIMARY KEY (second, machine))")
    app.stream("usage", '"at" TIMESTAMP NOT NULL, machine BIGINT NOT NULL, used DOUBLE NOT NULL', border=True)
    judged = w.whole(
        lambda window: outliers(window["machine"], window["used"]),
        "machine BIGINT, distance DOUBLE",
        columns=["machine", "used"],
    )

    @app.procedure(
        inputs="usage",
        writes=["found"],
        windows={"recent": window("usage", time=f"{SECONDS}s", on="at", compute=judged)},
    )
    def report(txn: Transaction, usage: Batch) -> None:
        for found in txn.window("recent").results:
            txn.insert("found", (seconds_of(found.window_start), found.machine, found.distance))

    return app


def plain(rows: Rows) -> Rows:
    slots: dict[int, tuple[list[int], list[float]]] = {}
    for time, machine, used in rows:
        second = seconds_of(time)
        machines, values = slots.setdefault(second - second % SECONDS, ([], []))
        machines.append(machine)
        values.append(used)
    last = seconds_of(rows[-1][0])
    return [
        (second, machine, distance)
        for second, (machines, values) in slots.items()
        if second + SECONDS <= last
        for machine, distance in outliers(machines, np.array(values))
    ]


CASE = Case("machine outlier", "usage", rows, app, plain, "SELECT second, machine, distance FROM found")
