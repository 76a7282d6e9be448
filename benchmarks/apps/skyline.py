"""Skyline: the points of a window that no other point beats in both directions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows

SIZE, SLIDE = 1_000, 200


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    return [(round(rng.random(), 6), round(rng.random(), 6)) for _ in range(count)]


def skyline(x: Any, y: Any) -> tuple[int, float]:
    """How many points are in it, and what their coordinates add up to: from right to left, each one higher than all before."""
    order = np.lexsort((-y, -x))
    heights = y[order]
    highest = np.maximum.accumulate(heights)
    kept = np.concatenate(([True], heights[1:] > highest[:-1]))
    return int(kept.sum()), float((x[order][kept] + heights[kept]).sum())


def app() -> App:
    app = App("skyline")
    app.table("CREATE TABLE skylines (number BIGINT PRIMARY KEY, points BIGINT, total DOUBLE)")
    app.stream("points", "x DOUBLE NOT NULL, y DOUBLE NOT NULL", border=True)
    compute = w.whole(lambda window: skyline(window["x"], window["y"]), "points BIGINT, total DOUBLE")

    @app.procedure(
        inputs="points",
        writes=["skylines"],
        windows={"latest": window("points", count=SIZE, slide=SLIDE, compute=compute)},
    )
    def keep(txn: Transaction, points: Batch) -> None:
        for found in txn.window("latest").results:
            txn.insert("skylines", (found.window_number, found.points, found.total))

    return app


def plain(rows: Rows) -> Rows:
    found: Rows = []
    for number in range((len(rows) - SIZE) // SLIDE + 1):
        points = np.array(rows[number * SLIDE : number * SLIDE + SIZE])
        found.append((number, *skyline(points[:, 0], points[:, 1])))
    return found


CASE = Case("skyline", "points", rows, app, plain, "SELECT number, points, total FROM skylines")
