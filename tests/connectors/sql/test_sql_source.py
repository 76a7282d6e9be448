"""Rows and changes of databases as sources, on SQLite and PostgreSQL."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from replication_slots import drop_slots
from source_apps import keeping, kept, rejected

from tidegate import Engine
from tidegate.benchmarks.peers.postgres_server import PostgresServer
from tidegate.connectors.postgres.changes import PostgresChanges
from tidegate.connectors.sql.source import SqlSource
from tidegate.errors import SourceError

Open = Callable[..., Engine]
DAY = dt.date(2026, 1, 2)


def run(database: sa.Engine, *statements: str) -> None:
    with database.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        made = sa.create_engine(f"sqlite:///{tmp_path / 'source.sqlite'}")
    else:
        server = request.getfixturevalue("postgres")
        made = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
        run(made, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    run(made, "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT, weight FLOAT, on_day DATE)")
    yield made
    made.dispose()


def insert(database: sa.Engine, *numbers: int) -> None:
    run(database, *(f"INSERT INTO things VALUES ({n}, 'thing {n}', {n}.5, '2026-01-02')" for n in numbers))


def test_a_table_is_read_by_its_cursor(open_engine: Open, tmp_path: Path, database: sa.Engine) -> None:
    insert(database, *range(1, 11))
    app = keeping("id BIGINT NOT NULL, name VARCHAR, weight DOUBLE, on_day VARCHAR" if "sqlite" in str(database.url) else
                  "id BIGINT NOT NULL, name VARCHAR, weight DOUBLE, on_day DATE")  # fmt: skip
    engine = open_engine(app, tmp_path / "db")
    ingestion = engine.ingest("things", SqlSource(database, "things", "id", follow=True), "in", limit=4)
    assert ingestion.lag == 10
    assert ingestion.pump() == 10
    insert(database, 12, 11)
    assert ingestion.source.lag == 2
    assert ingestion.pump() == 2
    assert engine.position("in") == 12
    engine.abandon()
    insert(database, 13)
    again = open_engine(app, tmp_path / "db")
    ingestion = again.ingest("things", SqlSource(database, "things", "id"), "in")
    assert ingestion.pump() == 1
    assert ingestion.finished
    assert [row[:3] for row in kept(again)] == [(n, f"thing {n}", n + 0.5) for n in range(1, 14)]


def test_a_query_with_other_names_and_bad_rows(open_engine: Open, database: sa.Engine) -> None:
    insert(database, 1, 2, 3)
    engine = open_engine(keeping("id BIGINT NOT NULL, heavy INTEGER NOT NULL"))
    query = "(SELECT id AS n, CASE WHEN id = 2 THEN NULL ELSE id * 10 END AS heavy, name FROM things)"
    source = SqlSource(database, query, "n", fields={"id": "n"}, ignore_unknown=True)
    assert engine.ingest("things", source, "in").pump() == 2
    assert kept(engine) == [(1, 10), (3, 30)]
    ((place, reason),) = rejected(engine)
    assert place == "n=2"
    assert "things.heavy is NOT NULL" in reason


def test_what_does_not_fit_is_told_at_the_start(open_engine: Open, database: sa.Engine) -> None:
    engine = open_engine(keeping("id BIGINT NOT NULL, colour VARCHAR NOT NULL"))
    with pytest.raises(
        SourceError, match=r"'name', 'weight', 'on_day', which the stream does not have; it lacks colour"
    ):
        engine.ingest("things", SqlSource(database, "things", "id"), background=True)
    with pytest.raises(SourceError, match="no column 'place' to use as a cursor"):
        engine.ingest("things", SqlSource(database, "things", "place"))
    with pytest.raises(SourceError, match="can't read nothing") as refused:
        engine.ingest("things", SqlSource(database, "nothing", "id"))
    assert refused.value.fatal
    run(database, "CREATE TABLE twice (id INTEGER, colour TEXT)", "INSERT INTO twice VALUES (1, 'a'), (1, 'b')")
    with pytest.raises(SourceError, match="is not unique"):
        engine.ingest("things", SqlSource(database, "twice", "id")).pump()


# ---- changes

CHANGES = "op VARCHAR NOT NULL, id BIGINT NOT NULL, name VARCHAR, weight DOUBLE, on_day DATE"


@pytest.fixture
def changing(postgres: PostgresServer) -> Iterator[sa.Engine]:
    made = sa.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    drop_slots(made)
    run(made, "DROP PUBLICATION IF EXISTS follow", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    run(made, "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT, weight FLOAT, on_day DATE)")
    yield made
    drop_slots(made)
    made.dispose()


def following() -> Any:
    """An app that keeps a copy of the table."""
    from tidegate import App
    from tidegate.outside.rejects import declare_rejected

    app = App("copying")
    app.stream("changes", CHANGES, border=True)
    app.stream("seen", "op VARCHAR, id BIGINT")
    app.table("CREATE TABLE copy (id BIGINT PRIMARY KEY, name VARCHAR, weight DOUBLE, on_day DATE)")
    declare_rejected(app)

    @app.procedure(inputs="changes", outputs="seen", writes=["copy"])
    def follow(txn: Any, changes: Any) -> None:
        for change in changes:
            txn.emit("seen", [(change.op, change.id)])
            if change.op == "insert":
                txn.insert("copy", change[1:])
            elif change.op == "update":
                txn.upsert("copy", change[1:])
            else:
                assert txn.delete("copy", change.id)

    return app


def test_changes_are_followed_in_order_and_by_transaction(
    open_engine: Open, tmp_path: Path, changing: sa.Engine
) -> None:
    engine = open_engine(following(), tmp_path / "db")
    seen = engine.subscribe("seen")
    ingestion = engine.ingest("changes", PostgresChanges(changing, "things", slot="follow"), "in", limit=1)
    insert(changing, 1, 2)
    run(changing, "UPDATE things SET name = 'it''s \"new\"' WHERE id = 1", "DELETE FROM things WHERE id = 2")
    run(changing, "CREATE TABLE other (id INTEGER PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    assert ingestion.pump() == 4
    batches = [[tuple(row) for row in batch] for batch in seen]
    assert batches == [[("insert", 1), ("insert", 2)], [("update", 1), ("delete", 2)]]
    assert [tuple(row) for row in engine.query("SELECT * FROM copy").rows] == [(1, 'it\'s "new"', 1.5, DAY)]
    assert ingestion.lag is not None
    engine.abandon()
    insert(changing, 3)
    again = open_engine(following(), tmp_path / "db")
    assert again.ingest("changes", PostgresChanges(changing, "public.things", slot="follow"), "in").pump() == 1
    assert again.query("SELECT count(*) FROM copy").scalar() == 2


def test_the_slot_moves_only_after_the_rows_are_in(open_engine: Open, tmp_path: Path, changing: sa.Engine) -> None:
    """The slot is left behind, as after a crash: what is in is not taken again, and a keyless update is told apart."""
    engine = open_engine(following(), tmp_path / "db")
    source = PostgresChanges(changing, "things", slot="follow")
    ingestion = engine.ingest("changes", source, "in")
    where = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    with changing.connect() as connection:
        before = connection.scalar(sa.text(where))
    insert(changing, 1)
    source.committed = lambda offset: None  # type: ignore[method-assign]
    assert ingestion.pump(5) == 1
    with changing.connect() as connection:
        assert connection.scalar(sa.text(where)) == before
    ingestion.close()
    insert(changing, 2)
    again = engine.ingest("changes", PostgresChanges(changing, "things", slot="follow"), "in")
    assert again.pump(5) == 1
    assert engine.query("SELECT count(*) FROM copy").scalar() == 2


def test_a_slot_that_is_gone_is_told(open_engine: Open, tmp_path: Path, changing: sa.Engine) -> None:
    """A new one would begin behind the changes that were lost with it."""
    engine = open_engine(keeping("op VARCHAR NOT NULL, id BIGINT NOT NULL, name VARCHAR"), tmp_path / "db")
    source = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True)
    ingestion = engine.ingest("things", source, "in")
    with changing.begin() as connection:
        connection.execute(sa.text("INSERT INTO things (id, name) VALUES (91, 'a')"))
    assert ingestion.pump(60) == 1
    ingestion.close()
    source.drop()
    with changing.begin() as connection:
        connection.execute(sa.text("INSERT INTO things (id, name) VALUES (92, 'b')"))
    with pytest.raises(SourceError, match=r"slot follow in .* is gone .*Ingest under a new name"):
        engine.ingest("things", PostgresChanges(changing, "things", slot="follow", ignore_unknown=True), "in")


def slots_and_publications(database: sa.Engine) -> list[tuple[Any, ...]]:
    sql = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots UNION ALL SELECT pubname, NULL FROM pg_publication"
    with database.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(sql))]


def test_a_check_makes_no_slot_and_moves_none(open_engine: Open, tmp_path: Path, changing: sa.Engine) -> None:
    app = keeping("op VARCHAR NOT NULL, id BIGINT NOT NULL, name VARCHAR")
    relation = app.streams["things"].relation
    source = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True)
    found = source.check("in", relation, None)
    assert found == ("slot follow will be created, publication follow will be created", 0)
    assert slots_and_publications(changing) == []
    engine = open_engine(app, tmp_path / "db")
    ingestion = engine.ingest("things", source, "in")
    assert ingestion.lag is not None
    run(changing, "INSERT INTO things VALUES (1, 'a')")
    assert ingestion.pump(60) == 1
    run(changing, "INSERT INTO things VALUES (2, 'b')")
    before = slots_and_publications(changing)
    found = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True).check(
        "in", relation, engine.position("in")
    )
    assert found.found == "slot follow exists, publication follow exists"
    assert found.lag is not None
    assert found.lag > 0
    assert slots_and_publications(changing) == before
    assert ingestion.pump(60) == 1
    ingestion.close()
    with pytest.raises(SourceError, match=r"slot other in .* is gone"):
        PostgresChanges(changing, "things", slot="other", ignore_unknown=True).check("in", relation, "0/1")


def test_what_would_keep_changes_from_coming_is_told(
    postgres: PostgresServer, open_engine: Open, changing: sa.Engine
) -> None:
    app = keeping("op VARCHAR NOT NULL, id BIGINT NOT NULL, name VARCHAR")
    relation = app.streams["things"].relation
    run(changing, "CREATE TABLE other (id INTEGER)", "CREATE PUBLICATION follow FOR TABLE other")
    source = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True)
    for asked in (source.check, source.open):
        with pytest.raises(
            SourceError, match=r"publication follow in .* exists, but without table things\. ALTER PUBL"
        ):
            asked("in", relation, None)
    run(changing, "DROP PUBLICATION follow", "CREATE ROLE guest LOGIN", "GRANT USAGE ON SCHEMA public TO guest")
    guest = PostgresChanges(changing.url.set(username="guest"), "things", slot="follow", ignore_unknown=True)
    with pytest.raises(SourceError, match=r"may not read from a slot .*REPLICATION.* or create a publication \(owner"):
        guest.check("in", relation, None)
    guest.close()
    run(changing, "DROP OWNED BY guest", "DROP ROLE guest")
    assert slots_and_publications(changing) == []


def test_mistakes_with_changes_are_told(open_engine: Open, changing: sa.Engine) -> None:
    engine = open_engine(keeping())
    with pytest.raises(SourceError, match="no column 'op'"):
        engine.ingest("things", PostgresChanges(changing, "things", slot="follow"))
    other = open_engine(keeping("id BIGINT NOT NULL, op VARCHAR, colour VARCHAR"))
    with pytest.raises(SourceError, match="the table has no colour and the stream has no name, weight, on_day"):
        other.ingest("things", PostgresChanges(changing, "things", slot="follow"))
    with pytest.raises(SourceError, match="there is no table nothing"):
        other.ingest("things", PostgresChanges(changing, "nothing", slot="follow"))
    with pytest.raises(SourceError, match="reads PostgreSQL"):
        PostgresChanges("sqlite://", "things", slot="follow")
    source = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True)
    with pytest.raises(SourceError, match="the table has no colour"):
        other.ingest("things", source)


def test_a_change_that_is_no_row_goes_to_the_dead_letters(open_engine: Open, changing: sa.Engine) -> None:
    engine = open_engine(keeping("op VARCHAR, id BIGINT NOT NULL, name INTEGER"))
    source = PostgresChanges(changing, "things", slot="follow", ignore_unknown=True)
    ingestion = engine.ingest("things", source, "in")
    run(changing, "INSERT INTO things VALUES (1, '17'), (2, 'many'), (3, '5')")
    assert ingestion.pump(30) == 2
    assert kept(engine) == [("insert", 1, 17), ("insert", 3, 5)]
    ((_, reason),) = rejected(engine)
    assert reason == "name INTEGER can't take 'many'"


def test_a_table_is_read_on_when_its_server_is_back(
    open_engine: Open, postgres: PostgresServer, changing: sa.Engine
) -> None:
    """Back-off after a failure, and then each row once."""
    engine = open_engine(keeping())
    seen = engine.subscribe("seen")
    insert(changing, 1)
    source = SqlSource(postgres.url, "things", "id", follow=True, every_s=0.05)
    ingestion = engine.ingest("things", source, "in", background=True)
    assert seen.get(60) is not None, ingestion
    changing.dispose()
    postgres.kill()
    until = time.monotonic() + 60
    while ingestion.error is None:
        assert time.monotonic() < until, ingestion
        time.sleep(0.01)
    assert ingestion.at_work
    postgres.start()
    insert(changing, 2)
    assert seen.get(60) is not None, ingestion
    ingestion.close()
    assert [row[0] for row in kept(engine)] == [1, 2]


def test_a_server_that_dies_is_connected_to_again(
    open_engine: Open, postgres: PostgresServer, changing: sa.Engine
) -> None:
    engine = open_engine(following())
    ingestion = engine.ingest("changes", PostgresChanges(postgres.url, "things", slot="follow"), "in", background=True)
    insert(changing, 1)
    changing.dispose()
    postgres.kill()
    postgres.start()
    insert(changing, 2)
    seen = set()
    with engine.subscribe("seen") as following_seen:
        seen |= {row.id for row in engine.query("SELECT id FROM copy").rows}
        while seen != {1, 2}:
            batch = following_seen.get(60)
            assert batch is not None, ingestion
            seen |= {row.id for row in batch}
    ingestion.close()
    assert engine.query("SELECT count(*) FROM copy").scalar() == 2
