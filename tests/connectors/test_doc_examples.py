"""The examples of docs/how-to/connectors.md that need a server or records run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from doc_blocks import run
from mosquitto_broker import Mosquitto
from replication_slots import drop_slots
from test_devices import RECORDS

from tidegate.benchmarks.peers.postgres_server import PostgresServer

PAGE = "how-to/connectors.md"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_changes_of_postgres(postgres: PostgresServer) -> None:
    database = sa.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    drop_slots(database)
    with database.begin() as connection:
        connection.execute(sa.text("DROP PUBLICATION IF EXISTS tidegate"))
        connection.execute(sa.text("DROP TABLE IF EXISTS patients"))
    address = postgres.url.removeprefix("postgresql://")
    run(PAGE, "python postgres", ("me@host/db", address))
    with database.connect() as connection:  # it says that it drops them
        assert connection.scalar(sa.text("SELECT count(*) FROM pg_replication_slots")) == 0
    database.dispose()


def test_mqtt(mosquitto: Mosquitto) -> None:
    run(PAGE, "python mqtt", ('"broker"', '"127.0.0.1"'), ("1883", str(mosquitto.port)))


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the shared WFDB records are not beside this checkout")
def test_waveforms(tmp_path: Path) -> None:
    (tmp_path / "records").symlink_to(RECORDS)
    run(PAGE, "python wfdb")
