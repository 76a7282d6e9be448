"""SqlSink(upsert=): a table kept like the one whose changelog is delivered, each change once."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from every_type import COLUMNS, NULLS, ROW

from tidegate import App, Batch, Engine
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import SinkError

Open = Callable[..., Engine]


def accounts(partition_by: str = "") -> App:
    app = App("bank")
    app.table(
        "CREATE TABLE accounts (branch VARCHAR, id BIGINT, balance DECIMAL(12,2), note VARCHAR, PRIMARY KEY (branch, id))",
        changelog=True,
        partition_by=partition_by or (),
    )

    @app.procedure(writes=["accounts"])
    def change(txn: Any, rows: list[list[Any]]) -> None:
        for branch, number, balance in rows:
            if balance is None:
                txn.delete("accounts", (branch, number))
            else:
                txn.upsert("accounts", (branch, number, Decimal(balance), f"set to {balance}"))

    return app


def found(database: sa.Engine, table: str = "target") -> list[tuple[Any, ...]]:
    with database.begin() as connection:
        rows = connection.execute(sa.text(f"SELECT branch, id, balance, note FROM {table} ORDER BY branch, id"))
        return [(branch, number, Decimal(str(balance)), note) for branch, number, balance, note in rows]


def there(engine: Engine) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query("SELECT * FROM accounts ORDER BY branch, id").rows]


@pytest.mark.parametrize("partition_by", ["", "branch"])
def test_the_target_follows_the_table(
    open_engine: Open, database: sa.Engine, tmp_path: Path, partition_by: str
) -> None:
    """Rows that were there before, random changes, restarts between: the same rows in the end."""
    app = accounts(partition_by)
    chance = random.Random(5)
    engine = open_engine(app, tmp_path / "db")
    engine.call("change", [["north", 1, 10], ["south", 1, 20]])
    for _ in range(3):
        delivery = engine.deliver(
            "accounts_changes", SqlSink(database, "target", upsert=app.tables["accounts"], at_once=7)
        )
        for _ in range(30):
            rows = {
                (chance.choice(["north", "south"]), chance.randrange(6)): chance.choice([None, 1, 25, 99])
                for _ in range(3)
            }
            engine.call("change", [[*key, balance] for key, balance in rows.items()])
            if chance.random() < 0.3:
                delivery.pump()
        delivery.pump()
        assert found(database) == there(engine)
        engine.close()
        engine = open_engine(app, tmp_path / "db")


def test_a_batch_sent_twice_counts_once(open_engine: Open, database: sa.Engine, tmp_path: Path) -> None:
    """An old batch that comes again does not bring an old row back."""
    app = accounts()
    sink = SqlSink(database, "target", upsert=app.tables["accounts"])
    relation = app.streams["accounts_changes"].relation
    sink.open("out", relation)
    told = '{"branch":"n","id":1,"balance":"%s","note":null}'
    first = Batch(relation, 1, relation.conform_all([('["n",1]', None, told % "1.00", 1)]))
    second = Batch(relation, 2, relation.conform_all([('["n",1]', told % "1.00", told % "2.00", 2)]))
    third = Batch(relation, 3, relation.conform_all([('["n",1]', told % "2.00", None, 3)]))
    sink.send([first])
    sink.send([first, second])
    sink.send([first, second])
    assert found(database) == [("n", 1, Decimal("2.00"), None)]
    sink.send([second, third])
    sink.send([second, third])
    assert found(database) == []


def test_a_table_of_others_keeps_what_they_added(open_engine: Open, database: sa.Engine, tmp_path: Path) -> None:
    with database.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE target (branch VARCHAR(9), id BIGINT, balance NUMERIC(14,4), note VARCHAR(99), "
                "seen INTEGER DEFAULT 7, UNIQUE (id, branch))"
                if database.dialect.name == "postgresql"
                else "CREATE TABLE target (branch TEXT, id BIGINT, balance TEXT, note TEXT, seen INTEGER DEFAULT 7, "
                "UNIQUE (id, branch))"
            )
        )
    if database.dialect.name == "postgresql":
        with database.begin() as connection:
            connection.execute(sa.text("ALTER TABLE target ALTER COLUMN branch TYPE TEXT, ALTER COLUMN note TYPE TEXT"))
    app = accounts()
    engine = open_engine(app, tmp_path / "db")
    delivery = engine.deliver("accounts_changes", SqlSink(database, "target", upsert=app.tables["accounts"]))
    engine.call("change", [["n", 1, 1]])
    delivery.pump()
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE target SET seen = 8"))
    engine.call("change", [["n", 1, 2]])
    delivery.pump()
    assert found(database) == there(engine)
    with database.begin() as connection:
        assert connection.execute(sa.text("SELECT seen FROM target")).scalar() == 8


def test_every_type_is_written(open_engine: Open, database: sa.Engine, tmp_path: Path) -> None:
    """As the same rows are appended from a stream."""
    app = App("types")
    app.table(f"CREATE TABLE everything ({COLUMNS}, PRIMARY KEY (n))", changelog=True)
    app.stream("incoming", COLUMNS, border=True)
    app.stream("out", COLUMNS)

    @app.procedure(inputs="incoming", outputs="out", writes=["everything"])
    def keep(txn: Any, incoming: Batch) -> None:
        for row in incoming:
            txn.upsert("everything", row)
        txn.emit("out", incoming)

    engine = open_engine(app, tmp_path / "db")
    kept = engine.deliver("everything_changes", SqlSink(database, "kept", upsert=app.tables["everything"]))
    appended = engine.deliver("out", SqlSink(database, "appended"))
    engine.push("incoming", [ROW, NULLS])
    kept.pump()
    appended.pump()
    tables = [sa.Table(name, sa.MetaData(), autoload_with=database) for name in ("kept", "appended")]
    with database.begin() as connection:
        left, right = ([r._asdict() for r in connection.execute(t.select().order_by(t.c.n))] for t in tables)
    assert len(left) == 2
    assert left == right


def test_what_can_not_be_kept_alike_is_told(database: sa.Engine) -> None:
    app = accounts()
    app.stream("other", "x INTEGER", border=True)
    with pytest.raises(SinkError, match="deliver accounts_changes"):
        SqlSink(database, "target", upsert=app.tables["accounts"]).open("out", app.streams["other"].relation)
    with pytest.raises(SinkError, match="upsert is a table of the app"):
        SqlSink(database, "target", upsert="accounts")  # type: ignore[arg-type]
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE target (branch TEXT, id BIGINT, balance NUMERIC, note TEXT)"))
    with pytest.raises(SinkError, match=r"PRIMARY KEY or UNIQUE \(branch, id\)"):
        SqlSink(database, "target", upsert=app.tables["accounts"]).open("out", app.streams["accounts_changes"].relation)
