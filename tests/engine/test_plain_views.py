"""Plain views of an app: checked when declared, answered by engine.query and the endpoint from the newest state."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from shops import Shop

import tidegate
from tidegate import App, Engine
from tidegate.dataflows.fingerprint import difference, fingerprint
from tidegate.errors import DeclarationError, StatementError
from tidegate.replica import Limits, ReplicaProcess

Make = Callable[..., Engine]


def shop_app(least: int = 5) -> App:
    app = App("shop")
    app.table(
        "CREATE TABLE stock (shop VARCHAR, item VARCHAR, pieces INTEGER, price DECIMAL(9,2), PRIMARY KEY (shop, item))"
    )
    app.view("worth", "SELECT shop, item, pieces * price AS worth FROM stock")
    app.view("by_shop", "SELECT shop, count(*) AS items, sum(worth) AS worth FROM worth GROUP BY shop")
    app.view("scarce", f"SELECT * FROM stock WHERE pieces < {least};")

    @app.procedure(writes=["stock"])
    def put(txn: Any, shop: str, item: str, pieces: int) -> None:
        txn.upsert("stock", (shop, item, pieces, Decimal("1.50")))

    return app


def test_a_view_shows_the_newest_state(open_engine: Make) -> None:
    engine = open_engine(shop_app())
    engine.call("put", "north", "tea", 10)
    engine.call("put", "north", "jam", 2)
    engine.call("put", "south", "tea", 4)
    assert engine.query("SELECT * FROM by_shop ORDER BY shop").rows == [
        ("north", 2, Decimal("18.00")),
        ("south", 1, Decimal("6.00")),
    ]
    assert engine.query("SELECT s.item, b.items FROM scarce s JOIN BY_SHOP b USING (shop) ORDER BY 1").rows == [
        ("jam", 2),
        ("tea", 1),
    ]
    engine.call("put", "south", "tea", 40)
    assert engine.query("SELECT item FROM scarce WHERE pieces = ?", 2).rows == [("jam",)]
    own = "WITH scarce AS (SELECT 7 AS n) SELECT n FROM scarce"
    assert engine.query(own).rows == [(7,)]


@pytest.mark.parametrize(
    ("name", "sql", "told"),
    [
        ("v", "SELECT nothing FROM stock", "nothing"),
        ("v", "SELECT * FROM nowhere", "nowhere"),
        ("v", "INSERT INTO stock VALUES ('a', 'b', 1, 2)", "is a SELECT"),
        ("v", "SELECT * FROM stock WHERE item = ?", "has a parameter"),
        ("v", "SELECT now() AS t FROM stock", "time or chance"),
        ("v", "SELECT item, shop AS item FROM stock", "two columns item"),
        ("v", "SELECT 1; SELECT 2", "one statement"),
        ("v", "SELECT * FROM read_csv('x')", "read_csv"),
        ("stock", "SELECT 1 AS a", "stock"),
        ("worth", "SELECT 1 AS a", "worth"),
        ("a b", "SELECT 1 AS a", "a b"),
    ],
)
def test_mistakes_are_found_when_it_is_declared(name: str, sql: str, told: str) -> None:
    app = shop_app()
    before = dict(app.views)
    with pytest.raises(DeclarationError, match=told):
        app.view(name, sql)
    assert app.views == before
    app.view("later", "SELECT count(*) AS n FROM scarce")


def test_the_name_of_a_view_is_taken() -> None:
    app = shop_app()
    with pytest.raises(DeclarationError, match="worth"):
        app.stream("worth", "x INTEGER", border=True)
    with pytest.raises(DeclarationError, match="worth"):
        app.table("CREATE TABLE worth (x INTEGER PRIMARY KEY)")


def test_procedures_read_views_through_their_tables() -> None:
    app = shop_app()

    @app.procedure(reads=["by_shop"])
    def worth_of(txn: Any, shop: str) -> Any:
        return txn.execute("SELECT worth FROM by_shop WHERE shop = ?", shop).scalar()

    @app.procedure(writes=["stock"])
    def put_and_see(txn: Any, shop: str) -> Any:
        txn.upsert("stock", (shop, "cup", 2, Decimal(10)))
        return txn.execute("SELECT worth, left(shop, -1) FROM by_shop WHERE shop = ?", shop)[0]

    assert [str(access) for access in app.procedures["worth_of"].access] == ["'stock'"]
    with tidegate.open(app) as engine:
        engine.call("put", "north", "tea", 10)
        assert engine.call("worth_of", "north") == Decimal("15.00")
        assert engine.call("put_and_see", "north") == (Decimal("35.00"), "nort")
    with pytest.raises(StatementError, match="worth"):
        app.sql("INSERT INTO worth VALUES (1)")
    with pytest.raises(DeclarationError, match="worth"):

        @app.procedure(writes=["worth"])
        def change(txn: Any) -> None:
            pass


def test_a_changed_view_is_a_changed_app(tmp_path: Path) -> None:
    before, after = fingerprint(shop_app()), fingerprint(shop_app(least=6))
    (told,) = difference(before, after)
    assert told.startswith("view scarce: was declared as (SELECT * FROM stock WHERE pieces < 5")
    with tidegate.open(shop_app(), tmp_path / "db") as engine:
        engine.call("put", "north", "tea", 5)
    with tidegate.open(shop_app(least=6), tmp_path / "db") as engine:
        assert engine.query("SELECT item FROM scarce").rows == [("tea",)]


def test_the_endpoint_publishes_views() -> None:
    with tidegate.open(shop_app()) as engine:
        engine.call("put", "north", "tea", 10)
        engine.call("put", "north", "jam", 2)
        passwords, tables = {"all": "x", "some": "y"}, {"some": ["by_shop"]}
        replica = ReplicaProcess(engine, Limits(refresh_s=0.05), pg_port=0, passwords=passwords, tables=tables)
        with replica:
            shop = Shop(engine, replica)
            shop.caught_up()
            with psycopg.connect(f"{shop.dsn.replace('anyone', 'all')} password=x", autocommit=True) as connection:
                assert connection.execute("SELECT shop, items / 2, worth FROM public.by_shop").fetchall() == [
                    ("north", 1, Decimal("18.00"))
                ]
                assert connection.execute("SELECT item FROM scarce WHERE pieces = %s", (2,)).fetchall() == [("jam",)]
                with pytest.raises(psycopg.Error, match="AS OF"):
                    connection.execute(f"SELECT * FROM by_shop AS OF {engine.sequence}".encode())
            with psycopg.connect(f"{shop.dsn.replace('anyone', 'some')} password=y", autocommit=True) as connection:
                assert connection.execute("SELECT items FROM by_shop").fetchall() == [(2,)]
                with pytest.raises(psycopg.Error, match="may not read stock"):
                    connection.execute("SELECT * FROM stock")
            assert shop.rows("SELECT items FROM by_shop") == [(2,)]
            database = sa.create_engine(shop.url.replace("anyone", "all:x"))
            inspector = sa.inspect(database)
            assert set(inspector.get_view_names()) == {"worth", "by_shop", "scarce"}
            assert [(c["name"], str(c["type"])) for c in inspector.get_columns("by_shop")][:2] == [
                ("shop", "VARCHAR"),
                ("items", "BIGINT"),
            ]
            assert inspector.get_table_names() == ["stock"]
            assert "GROUP BY" in inspector.get_view_definition("by_shop").upper()
            database.dispose()
