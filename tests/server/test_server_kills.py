"""A served engine between a source and a sink, killed again and again: each row arrives once, in order.

The sink is in the server's process, or in one of its own (``tidegate connect``), which talks to the server and is killed, too.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from server_process import Server, killed

from tidegate.connectors.files.source import FileSource
from tidegate.outside.ingestion import ingest

Start = Callable[..., Server]
ROWS = 90  # that come for every kill


class Place:
    """Files that a source reads, and the table that a sink fills, which numbers rows as they arrive."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = root / "target.sqlite"
        self.total = 0
        (root / "in").mkdir()
        with closing(sqlite3.connect(self.target)) as database:
            database.execute("CREATE TABLE shipped (place INTEGER PRIMARY KEY, item TEXT, pieces INTEGER)")

    def add(self) -> None:
        """A file more, which appears whole."""
        first, self.total = self.total + 1, self.total + ROWS
        lines = [json.dumps({"item": f"i{n}", "pieces": 0}) + "\n" for n in range(first, self.total + 1)]
        hidden = self.root / "in" / ".new"
        hidden.write_text("".join(lines))
        hidden.rename(self.root / "in" / f"{self.total:08d}.ndjson")

    def arrived(self) -> list[str]:
        with closing(sqlite3.connect(self.target, timeout=60)) as database:
            return [item for (item,) in database.execute("SELECT item FROM shipped ORDER BY place")]

    def check(self) -> int:
        """What is there is the beginning of what must come: nothing lost, doubled or out of order."""
        found = self.arrived()
        assert found == [f"i{n}" for n in range(1, len(found) + 1)]
        return len(found)

    def wait_for(self, rows: int) -> None:
        until = time.monotonic() + 300
        while self.check() < rows:
            assert time.monotonic() < until, f"{self.check()} of {rows} rows have arrived"
            time.sleep(0.02)


@contextmanager
def connecting(place: Place, url: str) -> Iterator[subprocess.Popen[str]]:
    """``tidegate connect`` with the source and the sink, in a process of its own."""
    file = place.root / "connect.toml"
    file.write_text(f"""
url = "{url}"
[[source]]
name = "in"
kind = "files"
stream = "orders"
path = "{place.root / "in"}"
follow = true
size = 1
limit = 50
[[sink]]
name = "out"
kind = "sql"
stream = "shipments"
url = "sqlite:///{place.target}"
table = "shipped"
at_once = 7
""")
    with (place.root / "connect.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "connect", str(file)], stdout=log, stderr=log, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    with process, killed(process):
        yield process


def torment(server: Server, place: Place, chance: random.Random) -> None:
    """Kill the server while rows are on their way, and start it again."""
    before = place.check()
    place.add()
    place.wait_for(before + chance.randint(1, ROWS // 3))
    server.kill()
    place.check()
    server.start(server.port)


def sink_in_the_server(start: Start, root: Path, kills: int) -> None:
    place, chance = Place(root), random.Random(kills)
    server = start(data=str(root / "data"), sink=f"sqlite:///{place.target}", engine={"merge_every_s": 0.3})
    with server.client(retry_s=120) as client:
        source = FileSource(root / "in", follow=True)
        ingestion = ingest(client, "orders", source, "in", limit=50, size=1, background=True)
        for _ in range(kills):
            torment(server, place, chance)
        place.wait_for(place.total)
        ingestion.close()
    assert place.check() == place.total
    print(f"sink in the server: {place.total} rows, {kills} kills, 0 lost, doubled or out of order")


def sink_elsewhere(start: Start, root: Path, kills: int) -> None:
    """Every third time the process of the connectors dies instead."""
    place, chance = Place(root), random.Random(kills)
    server = start(data=str(root / "data"), engine={"merge_every_s": 0.3})
    done = 0
    while done < kills:
        with connecting(place, server.url) as connectors:
            for _ in range(min(2, kills - done)):
                torment(server, place, chance)
                assert connectors.poll() is None, (root / "connect.log").read_text()
                done += 1
            before = place.check()
            place.add()
            place.wait_for(before + chance.randint(1, ROWS // 3))
    with connecting(place, server.url):
        place.wait_for(place.total)
    assert place.check() == place.total
    print(f"sink elsewhere: {place.total} rows, {kills} kills of the server, 0 lost, doubled or out of order")


CASES = {"in the server": sink_in_the_server, "elsewhere": sink_elsewhere}


def test_three_kills_of_the_server(start: Start, tmp_path: Path) -> None:
    sink_elsewhere(start, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("where", CASES)
def test_twenty_kills_of_the_server(start: Start, tmp_path: Path, where: str) -> None:
    CASES[where](start, tmp_path, 20)
