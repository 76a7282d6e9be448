"""Exactly-once from files, waveform records and databases, under kills of either side."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from ingesting import make_app
from ingestion_kills import POINTS, Tormentor
from replication_slots import drop_slots

from tidegate.benchmarks.peers.postgres_server import PostgresServer
from tidegate.connectors.postgres.changes import PostgresChanges


def files(tmp_path: Path) -> tuple[str, Callable[[int, int], None]]:
    """A directory that files are added to, each of which appears whole, by a rename."""
    (tmp_path / "in").mkdir()

    def add(first: int, last: int) -> None:
        for start in range(first, last + 1, 20):
            lines = "".join(
                json.dumps({"id": i, "name": f"n{i}"}) + "\n" for i in range(start, min(start + 20, last + 1))
            )
            hidden = tmp_path / "in" / ".hidden"
            hidden.write_text(lines)
            hidden.rename(tmp_path / "in" / f"{start:06d}.ndjson")

    return f"files:{tmp_path / 'in'}", add


def waveform(tmp_path: Path) -> tuple[str, Callable[[int, int], None]]:
    """A record that is longer every time; sample i has the value i."""
    (tmp_path / "records").mkdir()

    def add(first: int, last: int) -> None:
        (tmp_path / "records" / "waves.dat").write_bytes(struct.pack(f"<{last}h", *range(last)))
        (tmp_path / "records" / "waves.hea").write_text(f"waves 1 250 {last}\nwaves.dat 16 1(0)/mV 16 0 0 0 0 n\n")

    return f"wfdb:{tmp_path / 'records' / 'waves'}", add


def table(url: str) -> Callable[[int, int], None]:
    database = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    if database.dialect.name == "postgresql":
        drop_slots(database)
    with database.begin() as connection:
        if database.dialect.name == "postgresql":
            connection.execute(sa.text("DROP PUBLICATION IF EXISTS kills"))
        connection.execute(sa.text("DROP TABLE IF EXISTS things"))
        connection.execute(sa.text("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)"))

    def add(first: int, last: int) -> None:
        for start in range(first, last + 1, 7):
            with database.begin() as connection:
                for i in range(start, min(start + 7, last + 1)):
                    connection.execute(sa.text(f"INSERT INTO things VALUES ({i}, 'n{i}')"))

    return add


def torment(tormentor: Tormentor, kills: int, server: PostgresServer | None = None) -> None:
    done = 0
    while done < kills:
        if server is not None and done % 5 == 3:
            tormentor.kill_server(server.kill, server.start)
            done += 2
        elif done % 2:
            tormentor.kill_sometime()
            done += 1
        else:
            tormentor.kill_at(POINTS[done // 2 % len(POINTS)])
            done += 1
    print(tormentor.finish())


def make(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[str, Callable[[int, int], None], PostgresServer | None]:
    if kind == "files":
        return (*files(tmp_path), None)
    if kind == "wfdb":
        return (*waveform(tmp_path), None)
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'source.sqlite'}"
        return f"sql:{url}", table(url), None
    server = request.getfixturevalue("postgres")
    add = table(server.url)
    if kind == "changes":  # the slot is made before the first row
        source = PostgresChanges(server.url, "things", slot="kills")
        source.open("in", make_app("changes:", "weak").streams["things"].relation, None)
        source.close()
    return f"{'changes' if kind == 'changes' else 'sql'}:{server.url}", add, server


@pytest.mark.parametrize("kind", ["files", "wfdb", "changes"])
def test_two_kills(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    source, add, _ = make(kind, tmp_path, request)
    torment(Tormentor(tmp_path / "engine", source, add, 2), 2)


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("kind", ["files", "wfdb", "sqlite", "postgres", "changes"])
def test_twenty_kills(tmp_path: Path, request: pytest.FixtureRequest, kind: str, recovery: str) -> None:
    source, add, server = make(kind, tmp_path, request)
    torment(Tormentor(tmp_path / "engine", source, add, 20, "--recovery", recovery), 20, server)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "changes"])
def test_twenty_kills_of_the_database(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    source, add, server = make(kind, tmp_path, request)
    assert server is not None
    tormentor = Tormentor(tmp_path / "engine", source, add, 40)
    for _ in range(4):
        tormentor.kill_server(server.kill, server.start, 5)
    print(tormentor.finish())
