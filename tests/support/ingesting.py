"""The child process of the ingestion tests: takes rows in, and perhaps delivers, until it is killed or has them all.

    python ingesting.py DIRECTORY SOURCE [--sink SINK] [--until N] [--crash POINT:COUNT] [--recovery MODE] [--executor …]

SOURCE is ``files:DIRECTORY``, ``sql:URL``, ``changes:URL``, ``wfdb:RECORD`` or ``kafka:SERVERS/TOPIC``; SINK is
``kafka:SERVERS/TOPIC``. Prints ``ready``.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from pathlib import Path

from source_apps import keeping

import tidegate
from tidegate import App, crashpoints
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.postgres.changes import PostgresChanges
from tidegate.connectors.sql.source import SqlSource
from tidegate.outside.sources import Source


def make_app(source: str, recovery: str) -> App:
    if source.startswith("wfdb:"):
        return keeping("sample BIGINT NOT NULL, n DOUBLE", recovery=recovery, by="sample")
    columns = "id BIGINT NOT NULL, name VARCHAR"
    return keeping(f"op VARCHAR, {columns}" if source.startswith("changes:") else columns, recovery=recovery)


def source_for(told: str) -> Source:
    kind, _, place = told.partition(":")
    if kind == "files":
        return FileSource(place, follow=True)
    if kind == "sql":
        return SqlSource(place, "things", "id", follow=True, every_s=0.05)
    if kind == "changes":
        return PostgresChanges(place, "things", slot="kills")
    if kind == "wfdb":
        from tidegate.connectors.wfdb import WfdbSource

        return WfdbSource(place)
    from tidegate.connectors.kafka.source import KafkaSource

    servers, _, topic = place.rpartition("/")
    return KafkaSource(servers, topic)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("source")
    parser.add_argument("--sink")
    parser.add_argument("--until", type=int)
    parser.add_argument("--crash")
    parser.add_argument("--recovery", default="weak")
    parser.add_argument("--executor", default="serial")
    given = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    arm(given.crash)
    app = make_app(given.source, given.recovery)
    with tidegate.open(app, given.directory, executor=given.executor, merge_every_s=0.3) as engine:
        delivery = None
        if given.sink:
            from tidegate.connectors.kafka.sink import KafkaSink

            servers, _, topic = given.sink.removeprefix("kafka:").rpartition("/")
            delivery = engine.deliver("seen", KafkaSink(servers, topic, at_once=20), f"out-{topic}", background=True)
        ingestion = engine.ingest("things", source_for(given.source), "in", limit=17, size=3, background=True)
        print("ready", flush=True)
        while given.until is None or engine.query("SELECT count(*) FROM kept").scalar() < given.until:
            assert ingestion.at_work or ingestion.finished, ingestion.error
            time.sleep(0.02)
        ingestion.close()
        engine.run_until_idle()
        assert delivery is None or delivery.drain(120), delivery.error


if __name__ == "__main__":
    main()
