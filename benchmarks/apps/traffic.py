"""Traffic monitoring: positions are matched to roads, and the speed on each road is averaged over its latest vehicles."""

from __future__ import annotations

import random

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows

SIDE, LATEST, EVERY = 10, 50, 10  # a grid of roads; vehicles in an average; vehicles between two averages


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    made: Rows = []
    for _ in range(count):
        x, y = rng.random() * SIDE, rng.random() * SIDE
        made.append((rng.randrange(5_000), round(x, 4), round(y, 4), rng.randrange(10, 90)))
    return made


def road_of(x: float, y: float) -> int:
    """The road whose square holds the position."""
    return int(x) * SIDE + int(y)


def app() -> App:
    app = App("traffic")
    app.table("CREATE TABLE roads (road BIGINT, number BIGINT, speed DOUBLE, PRIMARY KEY (road, number))")
    app.stream("positions", "vehicle BIGINT, x DOUBLE, y DOUBLE, speed BIGINT", border=True)
    app.stream("matched", "road BIGINT NOT NULL, speed BIGINT NOT NULL")
    latest = window("matched", count=LATEST, slide=EVERY, by="road", compute={"speed": w.mean("speed")})

    @app.procedure(inputs="positions", outputs=["matched"])
    def match(txn: Transaction, positions: Batch) -> None:
        txn.emit("matched", [(road_of(x, y), speed) for _, x, y, speed in positions])

    @app.procedure(inputs="matched", writes=["roads"], windows={"latest": latest})
    def average(txn: Transaction, matched: Batch) -> None:
        for found in txn.window("latest").results:
            txn.insert("roads", (found.road, found.window_number, found.speed))

    return app


def plain(rows: Rows) -> Rows:
    seen: dict[int, list[int]] = {}
    found: Rows = []
    for _, x, y, speed in rows:
        road = road_of(x, y)
        kept = seen.setdefault(road, [])
        kept.append(speed)
        if len(kept) >= LATEST and (len(kept) - LATEST) % EVERY == 0:
            found.append((road, (len(kept) - LATEST) // EVERY, sum(kept[-LATEST:]) / LATEST))
    return found


CASE = Case("traffic", "positions", rows, app, plain, "SELECT road, number, speed FROM roads")
