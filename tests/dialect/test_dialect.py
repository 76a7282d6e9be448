"""SQLAlchemy over an embedded engine: live, and from a directory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tidegate
import tidegate.dialect
from tidegate import App


def make_app() -> App:
    app = App("shop")
    app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces INTEGER NOT NULL)")
    app.table(
        "CREATE TABLE prices (item VARCHAR, day DATE, price DECIMAL(9,2), tags VARCHAR[], PRIMARY KEY (item, day))"
    )
    app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)

    @app.procedure(inputs="orders", writes=["stock", "prices"])
    def ship(txn: Any, orders: Any) -> None:
        for order in orders:
            txn.upsert("stock", order)
            txn.upsert("prices", (order.item, dt.date(2026, 1, 1), Decimal("1.50"), ("a", "b")))

    return app


@pytest.fixture(params=["live", "directory", "replayed"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "live":
        with tidegate.open(make_app()) as engine:
            engine.push("orders", [("tea", 10), ("jam", 3)])
            database = sa.create_engine("tidegate://", connect_args={"engine": engine})
            yield database
            database.dispose()
        return
    with tidegate.open(make_app(), tmp_path / "data") as engine:
        engine.push("orders", [("tea", 10), ("jam", 3)])
    app = f"?app={Path(__file__)}:make_app" if request.param == "replayed" else ""
    database = sa.create_engine(f"tidegate:///{tmp_path / 'data'}{app}")
    yield database
    database.dispose()


def test_reflection(database: sa.Engine) -> None:
    found = sa.inspect(database)
    assert set(found.get_table_names()) == {"stock", "prices"}
    assert [str(c["type"]) for c in found.get_columns("prices")] == ["VARCHAR", "DATE", "NUMERIC(9, 2)", "ARRAY"]
    assert found.get_pk_constraint("prices")["constrained_columns"] == ["item", "day"]
    assert found.has_table("stock")
    assert not found.has_table("nowhere")
    everything = sa.MetaData()
    everything.reflect(database)
    assert set(everything.tables) == {"stock", "prices"}
    with pytest.raises(sa.exc.NoSuchTableError):
        sa.Table("nowhere", sa.MetaData(), autoload_with=database)


def test_queries(database: sa.Engine) -> None:
    stock = sa.Table("stock", sa.MetaData(), autoload_with=database)
    prices = sa.Table("prices", sa.MetaData(), autoload_with=database)
    with database.connect() as connection:
        query = sa.select(stock.c.item, prices.c.price).join(prices, stock.c.item == prices.c.item)
        query = query.where(stock.c.pieces > 5, stock.c.item.in_(["tea", "jam"])).order_by(stock.c.item).limit(5)
        assert connection.execute(query).all() == [("tea", Decimal("1.50"))]
        assert connection.execute(sa.select(sa.func.count()).select_from(stock)).scalar() == 2
        found = connection.execute(sa.text("SELECT pieces FROM stock WHERE item = :item"), {"item": "jam"})
        assert found.scalar_one() == 3
        assert connection.execute(sa.select(prices).order_by(prices.c.item)).first() == (
            "jam",
            dt.date(2026, 1, 1),
            Decimal("1.50"),
            ("a", "b"),
        )


def test_pandas(database: sa.Engine) -> None:
    frame = pd.read_sql("SELECT * FROM stock ORDER BY item", database)
    assert frame.to_dict("list") == {"item": ["jam", "tea"], "pieces": [3, 10]}
    assert len(pd.read_sql_table("stock", database)) == 2


def test_it_only_reads(database: sa.Engine) -> None:
    stock = sa.Table("stock", sa.MetaData(), autoload_with=database)
    for statement in (sa.insert(stock).values(item="x", pieces=1), sa.delete(stock), sa.text("DROP TABLE stock")):
        with database.connect() as connection, pytest.raises(sa.exc.ProgrammingError):
            connection.execute(statement)
    with database.connect() as connection, pytest.raises(sa.exc.ProgrammingError, match="nowhere"):
        connection.execute(sa.text("SELECT * FROM nowhere"))


def test_system_views_of_a_live_engine() -> None:
    with tidegate.open(make_app()) as engine:
        database = sa.create_engine("tidegate://", connect_args={"engine": engine})
        assert "streams" in sa.inspect(database).get_view_names("tidegate")
        streams = sa.Table("streams", sa.MetaData(), autoload_with=database, schema="tidegate")
        with database.connect() as connection:
            assert connection.execute(sa.select(streams.c.stream)).scalars().all() == ["orders"]
        database.dispose()


def test_the_orm_reads() -> None:
    class Base(DeclarativeBase):
        pass

    class Stock(Base):
        __tablename__ = "stock"
        item: Mapped[str] = mapped_column(primary_key=True)
        pieces: Mapped[int]

    with tidegate.open(make_app()) as engine:
        engine.push("orders", [("tea", 10)])
        database = sa.create_engine("tidegate://", connect_args={"engine": engine})
        with Session(database) as session:
            assert session.get(Stock, "tea").pieces == 10  # type: ignore[union-attr]
            assert session.scalars(sa.select(Stock).where(Stock.pieces > 3)).one().item == "tea"
        database.dispose()


@pytest.mark.parametrize(("url", "told"), [("tidegate://", "name a directory"), ("tidegate:////nowhere", "has no log")])
def test_what_can_not_be_opened(url: str, told: str) -> None:
    with pytest.raises((sa.exc.OperationalError, sa.exc.InterfaceError), match=told):
        sa.create_engine(url).connect()
