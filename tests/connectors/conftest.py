"""An app whose one stream has a column of every type, and batches of it; databases that sinks write to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from debian import install
from every_type import COLUMNS
from mosquitto_broker import Mosquitto

from tidegate import App, Batch


@pytest.fixture(scope="session")
def types() -> App:
    """incoming → pass_on → everything, with every type; keyed by n."""
    app = App("types")
    app.stream("incoming", COLUMNS, border=True, key="n")
    app.stream("everything", COLUMNS)

    @app.procedure(inputs="incoming", outputs="everything")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("everything", incoming)

    return app


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database of either kind."""
    if request.param == "sqlite":
        made = sa.create_engine(f"sqlite:///{tmp_path / 'target.sqlite'}")
    else:
        server = request.getfixturevalue("postgres")
        made = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
        with made.begin() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
    yield made
    made.dispose()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    why = install("mosquitto", lambda: shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin"))
    if why is not None:
        pytest.skip(why)
    broker = Mosquitto(tmp_path)
    yield broker
    broker.stop()
