"""The child process of the delivery tests: feeds an app and delivers its output, until it is killed or done.

    python delivering.py DIRECTORY TARGET [--until N] [--crash POINT:COUNT] [--recovery MODE] [--executor …]

TARGET is a database address, ``files:DIRECTORY``, or ``engine``: a border stream of the same engine. Prints ``ready``,
then the number of each input that is on disk. Input i (1, 2, …) goes to sensor i % 3 as that sensor's next batch; three
rows come out of it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from collections import deque
from pathlib import Path

import tidegate
from tidegate import App, Batch, Ticket, Transaction, crashpoints, partition
from tidegate.connectors.engine_sink import EngineSink
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.sql.sink import SqlSink
from tidegate.outside.delivery import Delivery, Sink

SENSORS = 3
PARTS = 3


def make_app(recovery: str, follow: bool = False) -> App:
    app = App("delivering", recovery=recovery)
    app.table("CREATE TABLE totals (sensor INTEGER PRIMARY KEY, n BIGINT NOT NULL)", partition_by="sensor")
    app.stream("readings", "sensor INTEGER NOT NULL, n BIGINT NOT NULL", border=True, key="sensor")
    app.stream("sums", "sensor INTEGER, batch BIGINT, part INTEGER, total BIGINT")

    @app.procedure(inputs="readings", outputs="sums", writes=[partition("totals")])
    def add(txn: Transaction, readings: Batch) -> None:
        known = txn.get("totals", txn.key)
        total = (known.n if known else 0) + sum(row.n for row in readings)
        txn.upsert("totals", sensor=txn.key, n=total)
        txn.emit("sums", [(txn.key, txn.batch_id, part, total) for part in range(PARTS)])

    if follow:
        note_arrivals(app)
    return app


def note_arrivals(app: App) -> None:
    """What comes back through the border stream ``summed``, each row with its place in the order of arrival."""
    columns = "sensor INTEGER, batch BIGINT, part INTEGER, total BIGINT"
    app.stream("summed", columns, border=True, key="sensor")
    app.table("CREATE TABLE counts (sensor INTEGER PRIMARY KEY, n BIGINT NOT NULL)", partition_by="sensor")
    app.table(f"CREATE TABLE arrived ({columns}, place BIGINT, PRIMARY KEY (sensor, place))", partition_by="sensor")

    @app.procedure(inputs="summed", writes=[partition("counts"), partition("arrived")])
    def note(txn: Transaction, summed: Batch) -> None:
        known = txn.get("counts", txn.key)
        first = known.n if known else 0
        for place, row in enumerate(summed, first):
            txn.insert("arrived", (*row, place))
        txn.upsert("counts", sensor=txn.key, n=first + len(summed))


def sink_for(target: str, engine: tidegate.Engine) -> Sink:
    if target == "engine":
        return EngineSink(engine, "summed")
    if target.startswith("files:"):
        return FileSink(target.removeprefix("files:"))
    return SqlSink(target, "sums", at_once=7)


def arm(crash: str | None) -> None:
    """Die at the given crash point, the given number of times into it."""
    if crash is None:
        return
    point, count = crash.split(":")
    left = int(count)

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.listen(reached)


def feed(engine: tidegate.Engine, delivery: Delivery, until: int) -> None:
    """Push from where the last process left off, not far ahead of the delivery; say what is on disk."""
    unknown: deque[tuple[int, Ticket]] = deque()
    for i in range((engine.position("feed") or 0) + 1, until + 1):
        unknown.append((i, engine.push("readings", [(i % SENSORS, i)], source="feed", offset=i)))
        while len(delivery) > 50:
            time.sleep(0.002)
        while len(unknown) > (0 if i == until else 5):
            number, ticket = unknown.popleft()
            ticket.result()
            print(number, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("target")
    parser.add_argument("--until", type=int, default=1_000_000)
    parser.add_argument("--crash")
    parser.add_argument("--recovery", default="weak")
    parser.add_argument("--executor", default="serial")
    given = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    arm(given.crash)
    app = make_app(given.recovery, given.target == "engine")
    with tidegate.open(app, given.directory, executor=given.executor, merge_every_s=0.3) as engine:
        delivery = engine.deliver("sums", sink_for(given.target, engine), "out", background=True)
        print("ready", flush=True)
        feed(engine, delivery, max(given.until, engine.position("feed") or 0))
        assert delivery.drain(120), delivery.error


if __name__ == "__main__":
    main()
