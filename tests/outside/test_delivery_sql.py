"""Exactly-once into a database, under kills of either side: each batch once, in order per key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from delivery_kills import POINTS, SENSORS, Arrived, Tormentor

from tidegate.benchmarks.peers.postgres_server import PostgresServer

# the target has a column of its own that numbers rows as they arrive
SQLITE = "CREATE TABLE sums (place INTEGER PRIMARY KEY, sensor INT, batch INT, part INT, total INT)"
POSTGRES = "CREATE TABLE sums (place BIGSERIAL PRIMARY KEY, sensor INT, batch BIGINT, part INT, total BIGINT)"


def prepare(url: str, ddl: str) -> Callable[[], Arrived]:
    """Make an empty target; returns what reads it."""
    database = sa.create_engine(url, poolclass=sa.NullPool)
    with database.begin() as connection:
        for table in ("sums", "tidegate_sinks", "tidegate_delivered"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        connection.execute(sa.text(ddl))

    def arrived() -> Arrived:
        found: Arrived = {sensor: [] for sensor in range(SENSORS)}
        with database.begin() as connection:
            for sensor, *row in connection.execute(
                sa.text("SELECT sensor, batch, part, total FROM sums ORDER BY place")
            ):
                found[sensor].append((row[0], row[1], row[2]))
        return found

    return arrived


def torment_sqlite(tmp_path: Path, kills: int, recovery: str) -> None:
    url = f"sqlite:///{tmp_path / 'target.sqlite'}"
    arrived = prepare(url, SQLITE)
    tormentor = Tormentor(tmp_path / "engine", url, arrived, kills, "--recovery", recovery)
    for number in range(kills):
        if number % 2:
            tormentor.kill_sometime()
        else:
            tormentor.kill_at(POINTS[number // 2 % 2])
    report("sqlite", recovery, tormentor)


def torment_postgres(server: PostgresServer, tmp_path: Path, kills: int, recovery: str) -> None:
    """Of five kills: one at each crash point, one at any moment, two in a run where the server dies first."""
    url = server.url.replace("postgresql://", "postgresql+psycopg://")
    arrived = prepare(url, POSTGRES)
    tormentor = Tormentor(tmp_path / "engine", url, arrived, kills, "--recovery", recovery)
    for _ in range(kills // 5):
        for point in POINTS:
            tormentor.kill_at(point)
        tormentor.kill_sometime()
        tormentor.kill_target(server.kill, server.start)
    report("postgres", recovery, tormentor)


def report(target: str, recovery: str, tormentor: Tormentor) -> None:
    batches = tormentor.finish()
    print(f"{target} ({recovery}): {batches} batches, kills {tormentor.kills}, 0 lost, doubled or out of order")


def test_sqlite_and_four_kills(tmp_path: Path) -> None:
    torment_sqlite(tmp_path, 4, "weak")


def test_postgres_and_five_kills(postgres: PostgresServer, tmp_path: Path) -> None:
    torment_postgres(postgres, tmp_path, 5, "weak")


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_sqlite_and_twenty_kills(tmp_path: Path, recovery: str) -> None:
    torment_sqlite(tmp_path, 20, recovery)


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_postgres_and_twenty_kills(postgres: PostgresServer, tmp_path: Path, recovery: str) -> None:
    torment_postgres(postgres, tmp_path, 20, recovery)


@pytest.mark.slow
def test_postgres_and_twenty_kills_of_it(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url.replace("postgresql://", "postgresql+psycopg://")
    tormentor = Tormentor(tmp_path / "engine", url, prepare(url, POSTGRES), 40, "--recovery", "weak")
    for _ in range(4):
        tormentor.kill_target(postgres.kill, postgres.start, 5)
    report("postgres", "weak", tormentor)
