"""Linear road: the toll of a road's segment depends on how slow and full it was in the minute before."""

from __future__ import annotations

import random

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows, at, seconds_of

VEHICLES, SEGMENTS, SLOW, FULL = 2_000, 40, 55.0, 20


def rows(count: int, seed: int) -> Rows:
    """Each vehicle drives on through the segments, slower where there are many."""
    rng = random.Random(seed)
    place = [rng.randrange(SEGMENTS) for _ in range(VEHICLES)]
    made: Rows = []
    for i in range(count):
        vehicle = rng.randrange(VEHICLES)
        if rng.random() < 0.3:
            place[vehicle] = (place[vehicle] + 1) % SEGMENTS
        speed = round(rng.gauss(50 + 20 * (place[vehicle] % 2), 10), 1)
        made.append((at(0.02 * i), vehicle, place[vehicle], speed))
    return made


def toll(cars: int, speed: float) -> int:
    return 2 * (cars - FULL) if cars > FULL and speed < SLOW else 0


def app() -> App:
    app = App("linear_road")
    app.table("CREATE TABLE minutes (segment BIGINT, minute BIGINT, toll BIGINT, PRIMARY KEY (segment, minute))")
    app.table("CREATE TABLE accounts (vehicle BIGINT PRIMARY KEY, segment BIGINT, paid BIGINT)")
    app.stream(
        "reports",
        '"at" TIMESTAMP NOT NULL, vehicle BIGINT NOT NULL, segment BIGINT NOT NULL, speed DOUBLE NOT NULL',
        border=True,
    )
    per_minute = window(
        "reports", time="1m", on="at", by="segment", compute={"cars": w.count(), "speed": w.mean("speed")}
    )

    @app.procedure(inputs="reports", writes=["minutes"], windows={"per_minute": per_minute})
    def observe(txn: Transaction, reports: Batch) -> None:
        for found in txn.window("per_minute").results:
            minute = seconds_of(found.window_start) // 60
            txn.insert("minutes", (found.segment, minute, toll(found.cars, found.speed)))

    @app.procedure(inputs="reports", reads=["minutes"], writes=["accounts"])
    def charge(txn: Transaction, reports: Batch) -> None:
        for time, vehicle, segment, _ in reports:
            account = txn.get("accounts", vehicle)
            if account is None or account.segment != segment:
                before = txn.get("minutes", (segment, seconds_of(time) // 60 - 1))
                paid = (account.paid if account else 0) + (before.toll if before else 0)
                txn.upsert("accounts", (vehicle, segment, paid))

    return app


def plain(rows: Rows) -> Rows:
    seen: dict[tuple[int, int], list[float]] = {}
    accounts: dict[int, tuple[int, int]] = {}
    for time, vehicle, segment, speed in rows:
        minute = seconds_of(time) // 60
        seen.setdefault((segment, minute), []).append(speed)
        where, paid = accounts.get(vehicle, (-1, 0))
        if where != segment:
            speeds = seen.get((segment, minute - 1), ())
            accounts[vehicle] = segment, paid + (toll(len(speeds), sum(speeds) / len(speeds)) if speeds else 0)
    return [(vehicle, paid) for vehicle, (_, paid) in accounts.items()]


CASE = Case("linear road", "reports", rows, app, plain, "SELECT vehicle, paid FROM accounts")
