"""Spike detection: a sensor's value that is well above the average of its latest values."""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows, at

SENSORS, LATEST, ABOVE = 50, 100, 1.35


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    return [(at(0.01 * i), rng.randrange(SENSORS), round(rng.gauss(20.0, 2.5), 3)) for i in range(count)]


def app() -> App:
    app = App("spike_detection")
    app.table("CREATE TABLE spikes (sensor BIGINT, number BIGINT, value DOUBLE, PRIMARY KEY (sensor, number))")
    app.stream("readings", '"at" TIMESTAMP NOT NULL, sensor BIGINT NOT NULL, value DOUBLE NOT NULL', border=True)
    latest = window(
        "readings", count=LATEST, slide=1, by="sensor", compute={"mean": w.mean("value"), "newest": w.last("value")}
    )

    @app.procedure(inputs="readings", writes=["spikes"], windows={"latest": latest})
    def detect(txn: Transaction, readings: Batch) -> None:
        results = txn.window("latest").results
        for place in np.flatnonzero(results["newest"] > ABOVE * results["mean"]):
            found = results[int(place)]
            txn.insert("spikes", (found.sensor, found.window_number, found.newest))

    return app


def plain(rows: Rows) -> Rows:
    held: dict[int, deque[float]] = {}
    sums: dict[int, float] = {}
    numbers: dict[int, int] = {}
    spikes: Rows = []
    for _, sensor, value in rows:
        kept = held.setdefault(sensor, deque())
        kept.append(value)
        sums[sensor] = sums.get(sensor, 0.0) + value
        if len(kept) > LATEST:
            sums[sensor] -= kept.popleft()
        if len(kept) == LATEST:
            number = numbers[sensor] = numbers.get(sensor, -1) + 1
            if value > ABOVE * (sums[sensor] / LATEST):
                spikes.append((sensor, number, value))
    return spikes


CASE = Case("spike detection", "readings", rows, app, plain, "SELECT sensor, number, value FROM spikes")
