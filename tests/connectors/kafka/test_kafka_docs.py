"""The examples of docs/how-to/connectors.md with a broker run as they are written."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fastavro
import pytest
import sqlalchemy as sa
from doc_blocks import block, run

from tidegate.benchmarks.kafka_broker import KafkaBroker, read
from tidegate.benchmarks.peers.postgres_server import PostgresServer

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

PAGE = "how-to/connectors.md"
ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "pieces", "type": "int"}],
}  # fmt: skip
READING = {"type": "record", "name": "Reading", "fields": [{"name": "pressure", "type": "double"}]}
APP = """
from tidegate import App

app = App("shop")
app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)
app.stream("shipments", "item VARCHAR, pieces INTEGER")


@app.procedure(inputs="orders", outputs="shipments")
def ship(txn, orders):
    txn.emit("shipments", orders)
"""


def avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), record)
    return data.getvalue()


def test_readings_in_and_alerts_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: KafkaBroker, topic: Any, write: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    readings, alerts = topic(), f"alerts-{tmp_path.name}"
    write(readings, avro(READING, {"pressure": 80.0}), avro(READING, {"pressure": 50.0}), key=b"7")
    run(
        PAGE, "python kafka", ("broker:9092", broker.servers), (', "readings", key', f', "{readings}", key'),
        (', "alerts", key', f', "{alerts}", key'),
    )  # fmt: skip
    (record,) = read(broker.servers, alerts)
    assert (record[0], json.loads(record[1])) == (b"7", {"patient": 7, "pressure": 50.0})


def test_a_file_without_code(
    tmp_path: Path, broker: KafkaBroker, postgres: PostgresServer, topic: Any, write: Any
) -> None:
    """Checked, run until Ctrl-C, and run again: it goes on where it was."""
    orders, table = topic(), f"shipments_{os.getpid()}"
    text = block(PAGE, "toml").lstrip()
    for was, now in (
        ("broker:9092", broker.servers), ('topic = "orders"', f'topic = "{orders}"'),
        ('table = "shipments"', f'table = "{table}"'),
        ("postgresql://shop:${PASSWORD}@db/shop", postgres.url.replace("@", ":${PASSWORD}@")),
    ):  # fmt: skip
        assert was in text
        text = text.replace(was, now)
    (tmp_path / "connector.toml").write_text(text)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    database = sa.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))

    def connect(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidegate", "connect", "connector.toml", *options]
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, "PASSWORD": "x", "PYTHONPATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    checked = connect("--check")
    told, complaints = checked.communicate(timeout=120)
    assert checked.returncode == 0, complaints
    assert f"table {table} will be created" in told
    for pieces in (1, 2):
        write(orders, avro(ORDER, {"item": "tea", "pieces": pieces}))
        at_work = connect()
        try:
            until = time.monotonic() + 120
            while shipped(database, table) < pieces:
                assert at_work.poll() is None, at_work.communicate()
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            at_work.send_signal(signal.SIGINT)
            told, complaints = at_work.communicate(timeout=120)
        assert at_work.returncode == 0, complaints
    assert shipped(database, table) == 2
    database.dispose()


def shipped(database: sa.Engine, table: str) -> int:
    if not sa.inspect(database).has_table(table):
        return 0
    with database.connect() as connection:
        return int(connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) or 0)
