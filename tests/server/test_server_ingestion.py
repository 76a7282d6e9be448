"""Sources and sinks that talk to a served engine: each row once, whatever happens to the connection or the server."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import Server
from typer.testing import CliRunner

import tidegate
from tidegate.cli.main import app as commands
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.shared.remote_delivery import RemoteDelivery
from tidegate.connectors.shared.toml_file import Connector
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import BatchError, SourceError, TidegateError
from tidegate.outside.ingestion import ingest

Start = Callable[..., Server]


def orders(path: Path, first: int, last: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"item": f"i{n}", "pieces": 1}) + "\n" for n in range(first, last + 1)))
    return path


@pytest.mark.parametrize("size", [None, 3])
def test_rows_come_in_once_across_a_kill_of_the_server(start: Start, tmp_path: Path, size: int | None) -> None:
    server = start(data=str(tmp_path / "data"))
    with server.client() as client:
        for n in range(1, 41):
            client.call("deliver", f"i{n}", 5)
        orders(tmp_path / "in" / "a.ndjson", 1, 20)
        ingestion = ingest(client, "orders", FileSource(tmp_path / "in", follow=True), "in", limit=7, size=size)
        assert ingestion.pump() == 20
        position = client.position("in")
        server.kill()
        server.start(server.port)
        assert json.dumps(client.position("in")) == json.dumps(position)
        orders(tmp_path / "in" / "b.ndjson", 21, 40)
        assert ingestion.pump() == 20
        for n in (1, 20, 40):  # each order took one piece
            assert client.call("deliver", f"i{n}", 0) == 4
        with pytest.raises(BatchError, match="out of turn"):
            client.feed("orders", [("i1", 1)], source="in", offset="x", after="y")
        bad = tmp_path / "bad.ndjson"
        bad.write_text("nonsense\n")
        refused = ingest(client, "orders", FileSource(bad), "bad")
        with pytest.raises(SourceError, match="is not a row of orders"):
            refused.pump()
        with pytest.raises(TidegateError, match="has no border stream 'shipments'"):
            ingest(client, "shipments", FileSource(bad), "bad")
        ingestion.close()


def test_connect_runs_against_a_server(start: Start, tmp_path: Path) -> None:
    server = start(data=str(tmp_path / "data"))
    with server.client() as client:
        for n in range(1, 6):
            client.call("deliver", f"i{n}", 5)
    orders(tmp_path / "in" / "a.ndjson", 1, 5)
    path = tmp_path / "connect.toml"
    path.write_text(f"""
url = "{server.url}"
[[source]]
name = "in"
kind = "files"
stream = "orders"
path = "{tmp_path / "in"}"
size = 1
[[sink]]
name = "out"
kind = "files"
stream = "shipments"
directory = "{tmp_path / "out"}"
""")
    checked = CliRunner().invoke(commands, ["connect", str(path), "--check", "--json"])
    assert checked.exit_code == 0, checked.output
    done: Any = CliRunner().invoke(commands, ["connect", str(path), "--once", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    source, sink = json.loads(done.stdout)
    assert (source["rows"], source["state"]) == (5, "finished")
    assert sink["batches"] == 5
    assert len(list((tmp_path / "out").glob("shipments-*.ndjson"))) == 5
    again = CliRunner().invoke(commands, ["connect", str(path), "--once", "--json"])
    assert [one.get("rows", one.get("batches")) for one in json.loads(again.stdout)] == [0, 0]


def test_a_delivery_from_a_server_goes_on_and_puts_aside_what_is_refused(start: Start, tmp_path: Path) -> None:
    """The server is away for longer than the client tries; the table refuses one row for good."""
    server = start(data=str(tmp_path / "data"))
    target = tmp_path / "target.sqlite"
    with sqlite3.connect(target) as database:
        database.execute("CREATE TABLE shipped (item TEXT CHECK (item <> 'i2'), pieces INT)")
    database.close()
    with tidegate.connect(server.url, retry_s=0.5) as client:
        connector = Connector(
            "sink[1]", "out", "sql", "shipments", SqlSink(f"sqlite:///{target}", "shipped"), {"tries": 2}
        )
        delivery = RemoteDelivery(client, connector)
        for n in (1, 2, 3, 4):
            client.call("deliver", f"i{n}", 5)
        for n in (1, 2, 3):
            client.push("orders", [(f"i{n}", 1)])
        assert delivery.drain(120)
        assert (delivery.delivered, delivery.refused) == (2, 1)
        server.kill()
        until = time.monotonic() + 120
        while delivery.error is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        server.start(server.port)
        client.push("orders", [("i4", 1)])
        while delivery.delivered < 3:
            assert time.monotonic() < until, delivery
            time.sleep(0.05)
        assert delivery.drain(120)
        letters = client.status()["recent_dead_letters"]
        assert [letter["procedure"] for letter in letters] == ["delivery out"]
        delivery.close()
    found = sqlite3.connect(target)
    assert found.execute("SELECT item FROM shipped ORDER BY item").fetchall() == [("i1",), ("i3",), ("i4",)]
    found.close()
