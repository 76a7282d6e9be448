"""Tools that look before they ask: SQLAlchemy, pandas, information_schema, and what JDBC and DBeaver ask at start-up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from shops import Shop, make_app

import tidegate
from tidegate.replica import Limits, ReplicaProcess


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    app = make_app()
    app.table('CREATE TABLE parts (id INTEGER PRIMARY KEY, code VARCHAR UNIQUE, "Odd Name" INTEGER DEFAULT 7)')
    app.table("CREATE TABLE marks (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (b, a))")
    with tidegate.open(app) as engine:
        engine.push("orders", [("tea", 10), ("jam", 3)])
        engine.call("fill")
        engine.checkpoint()
        with ReplicaProcess(engine, Limits(timeout_s=20), pg_port=0) as replica:
            yield Shop(engine, replica)


@pytest.fixture(scope="module")
def database(shop: Shop) -> Iterator[sa.Engine]:
    engine = sa.create_engine(shop.url)
    yield engine
    engine.dispose()


def test_names(database: sa.Engine) -> None:
    found = sa.inspect(database)
    assert set(found.get_table_names()) == {"stock", "kinds", "parts", "marks"}
    assert found.get_schema_names() == ["information_schema", "public", "tidegate"]
    assert {"locks", "streams", "frontier"} <= set(found.get_view_names("tidegate"))
    assert found.has_table("stock")
    assert not found.has_table("nowhere")
    assert found.default_schema_name == "public"


def test_columns(database: sa.Engine) -> None:
    columns = {c["name"]: c for c in sa.inspect(database).get_columns("kinds")}
    assert {name: str(c["type"].compile(database.dialect)) for name, c in columns.items()} == {
        "id": "BIGINT",
        "n": "INTEGER",
        "price": "NUMERIC(9, 2)",
        "made": "TIMESTAMP WITHOUT TIME ZONE",
        "d": "DATE",
        "t": "TIME WITHOUT TIME ZONE",
        "b": "BYTEA",
        "u": "UUID",
        "j": "JSON",
        "l": "INTEGER[]",
        "f": "DOUBLE PRECISION",
        "ok": "BOOLEAN",
        "iv": "INTERVAL",
    }
    assert columns["n"]["default"] == "3"
    assert not columns["id"]["nullable"]
    assert columns["price"]["nullable"]


def test_keys_and_indexes(database: sa.Engine) -> None:
    found = sa.inspect(database)
    assert found.get_pk_constraint("kinds")["constrained_columns"] == ["id", "n"]
    assert found.get_pk_constraint("marks")["constrained_columns"] == ["b", "a"]
    assert [c["column_names"] for c in found.get_unique_constraints("parts")] == [["code"]]
    assert [i["column_names"] for i in found.get_indexes("parts")] == [["code"]]
    assert found.get_foreign_keys("parts") == []
    assert found.get_check_constraints("parts") == []


def test_tables_load_themselves(database: sa.Engine) -> None:
    everything = sa.MetaData()
    everything.reflect(database)
    parts = everything.tables["parts"]
    assert [c.name for c in parts.columns] == ["id", "code", "Odd Name"]
    stock = sa.Table("stock", sa.MetaData(), autoload_with=database)
    assert [c.name for c in stock.primary_key] == ["item"]
    with database.connect() as connection:
        query = sa.select(stock.c.item).where(stock.c.pieces > 5, stock.c.item.in_(["tea", "jam"])).limit(3)
        assert connection.execute(query).scalars().all() == ["tea"]
    locks = sa.Table("locks", sa.MetaData(), autoload_with=database, schema="tidegate")
    with database.connect() as connection:
        assert connection.execute(sa.select(locks)).all() == []


def test_pandas(database: sa.Engine) -> None:
    frame = pd.read_sql("SELECT * FROM stock ORDER BY item", database)
    assert frame.to_dict("list") == {"item": ["jam", "tea"], "pieces": [3, 10]}
    assert sorted(pd.read_sql_table("stock", database)["item"]) == ["jam", "tea"]
    found = pd.read_sql("SELECT pieces FROM stock WHERE item = %(item)s", database, params={"item": "tea"})
    assert list(found["pieces"]) == [10]
    chunks = pd.read_sql("SELECT * FROM range(1000)", database, chunksize=300)
    assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]


def test_information_schema(shop: Shop) -> None:
    columns = "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = 'stock'"
    assert shop.rows(columns + " ORDER BY ordinal_position") == [
        ("item", "character varying", "NO"),
        ("pieces", "integer", "NO"),
    ]
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
    assert [row[0] for row in shop.rows(tables)] == ["kinds", "marks", "parts", "stock"]
    keys = (
        "SELECT k.column_name FROM information_schema.table_constraints t JOIN information_schema.key_column_usage k "
        "USING (constraint_name) WHERE t.constraint_type = 'PRIMARY KEY' AND t.table_name = 'marks' ORDER BY k.ordinal_position"
    )
    assert shop.rows(keys) == [("b",), ("a",)]


def start_up_queries() -> dict[str, str]:
    text = (Path(__file__).parent / "startup_queries.sql").read_text()
    entries = [entry.strip().partition("\n") for entry in text.split("\n-- ")[2:]]
    return {name.strip(): sql.strip() for name, _, sql in entries}


START_UP = start_up_queries()


@pytest.fixture(scope="module")
def numbers(shop: Shop) -> dict[str, int]:
    with shop.connect() as connection:
        (table,) = connection.execute("SELECT 'kinds'::regclass::oid").fetchone() or (0,)
        (schema,) = connection.execute("SELECT oid FROM pg_namespace WHERE nspname = 'public'").fetchone() or (0,)
    return {"$1": 1007, "$2": table, "$3": schema}


@pytest.mark.parametrize("sql", START_UP.values(), ids=START_UP)
def test_start_up_queries(shop: Shop, numbers: dict[str, int], sql: str) -> None:
    with shop.connect() as connection:
        for mark, number in numbers.items():
            sql = sql.replace(mark, str(number))
        cursor = connection.execute(sql)
        if cursor.description is not None:
            assert cursor.fetchall() is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tables", [(None, "public", name, "TABLE", None, "") for name in ("kinds", "marks", "parts", "stock")]),
        (
            "primary key",
            [(None, "public", "kinds", "id", 1, "kinds_pkey"), (None, "public", "kinds", "n", 2, "kinds_pkey")],
        ),
        ("is it an array", [(True, "b", "_int4", 1007)]),
        ("delimiter of a type", [(",",)]),
        ("privileges", [(True, True)]),
        ("name of a table", [("stock",)]),
        ("read only", [("on",)]),
    ],
)
def test_start_up_answers(shop: Shop, numbers: dict[str, int], name: str, expected: list[Any]) -> None:
    sql = START_UP[name]
    for mark, number in numbers.items():
        sql = sql.replace(mark, str(number))
    with shop.connect() as connection:
        assert connection.execute(sql).fetchall() == expected


def test_a_column_called_like_a_function_is_left_alone() -> None:
    from tidegate.replica.catalog.rewrite import mentions_catalog

    assert not mentions_catalog("SELECT version, 'pg_class' FROM t -- pg_catalog.pg_class")
    assert mentions_catalog("SELECT version()")
    assert mentions_catalog('SELECT * FROM "pg_catalog"."pg_class"')
