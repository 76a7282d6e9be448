"""The child process of the topic kill tests: feeds an app, follows what it emits, and merges now and then, until it is killed.

    python topic_reading.py DIRECTORY SEEN SEED [--crash POINT:COUNT] [--executor …]

Every batch that a reader gets is appended to the file SEEN, with its offset, before it is acknowledged (or not: it comes again).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from delivering import arm

import tidegate
from tidegate import App, Batch, Transaction, partition
from tidegate.outside.topics import segments

UNTIL = 4_000
READERS = ("sums", "readings")
LATE = "late"


def make_app() -> App:
    app = App("topics")
    app.table("CREATE TABLE totals (sensor INTEGER PRIMARY KEY, n BIGINT NOT NULL)", partition_by="sensor")
    app.stream("readings", "sensor INTEGER NOT NULL, n BIGINT NOT NULL", border=True, key="sensor", keep="forever")
    app.stream("sums", "sensor INTEGER, total BIGINT", keep="forever")

    @app.procedure(inputs="readings", outputs="sums", writes=[partition("totals")])
    def add(txn: Transaction, readings: Batch) -> None:
        known = txn.get("totals", txn.key)
        total = (known.n if known else 0) + sum(row.n for row in readings)
        txn.upsert("totals", sensor=txn.key, n=total)
        txn.emit("sums", [(txn.key, total)])

    return app


def told(offset: int, batch: Batch) -> str:
    return json.dumps([batch.stream, offset, batch.key, batch.id, [list(row) for row in batch]])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory", type=Path)
    options.add_argument("seen", type=Path)
    options.add_argument("seed", type=int)
    options.add_argument("--crash")
    options.add_argument("--executor", default="serial")
    asked = options.parse_args()
    segments.SEGMENT_BYTES, segments.WRITTEN_AT = 3_000, 200
    chance = random.Random(asked.seed)
    engine = tidegate.open(make_app(), asked.directory, executor=asked.executor, generation_bytes=20_000)
    arm(asked.crash)
    readers = [engine.subscribe_durably(stream, f"early {stream}", start="earliest") for stream in READERS]
    with asked.seen.open("a") as seen:
        for i in range((engine.position("feed") or 0) + 1, UNTIL):
            engine.push("readings", [(sensor, i) for sensor in range(3)], source="feed", offset=i)
            for reader in readers if chance.random() < 0.2 else ():
                taken = reader.taken(chance.randrange(1, 40))
                seen.writelines(told(offset, batch) + "\n" for offset, batch in taken.items())
                seen.flush()
                reader.ack([batch for batch in taken.values() if chance.random() < 0.8])
            if chance.random() < 0.01:
                engine.checkpoint()
            if i == 5:
                print("ready", flush=True)


if __name__ == "__main__":
    main()
