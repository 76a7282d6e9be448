"""An engine with a replica beside it, and how tests reach it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import psycopg

import tidegate
from tidegate import App
from tidegate.replica import Limits, ReplicaProcess

KINDS = (
    1,
    2,
    Decimal("12.50"),
    dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    dt.date(2026, 1, 2),
    dt.time(3, 4, 5),
    b"\x00\xff",
    uuid.UUID(int=5),
    '{"a": 1}',
    (1, 2),
    1.5,
    True,
    dt.timedelta(days=1, seconds=5),
)


def make_app() -> App:
    app = App("shop")
    app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces INTEGER NOT NULL)")
    app.table(
        "CREATE TABLE kinds (id BIGINT, n INTEGER DEFAULT 3, price DECIMAL(9,2), made TIMESTAMP, d DATE, t TIME, b BLOB, "
        "u UUID, j JSON, l INTEGER[], f DOUBLE, ok BOOLEAN, iv INTERVAL, PRIMARY KEY (id, n))"
    )
    app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)

    @app.procedure(inputs="orders", writes=["stock"])
    def ship(txn: Any, orders: Any) -> None:
        for order in orders:
            txn.upsert("stock", (order.item, order.pieces))

    @app.procedure(writes=["stock"])
    def remove(txn: Any, item: str) -> None:
        txn.delete("stock", item)

    @app.procedure(writes=["kinds"])
    def fill(txn: Any) -> None:
        txn.insert("kinds", KINDS)
        txn.insert("kinds", (2, 2) + (None,) * 11)

    return app


class Shop:
    """The engine, its replica, and how to reach it."""

    def __init__(self, engine: tidegate.Engine, replica: ReplicaProcess) -> None:
        self.engine = engine
        self.replica = replica

    @property
    def host(self) -> str:
        assert self.replica.pg_address is not None
        return self.replica.pg_address[0]

    @property
    def port(self) -> int:
        assert self.replica.pg_address is not None
        return self.replica.pg_address[1]

    @property
    def dsn(self) -> str:
        return f"host={self.host} port={self.port} user=anyone dbname=tidegate"

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://anyone@{self.host}:{self.port}/tidegate"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, **options)

    def caught_up(self) -> None:
        """Everything committed so far is in the replica."""
        self.engine.checkpoint()
        assert self.replica.wait_for(self.engine.sequence)

    def rows(self, sql: str, parameters: Any = (), **options: Any) -> list[tuple[Any, ...]]:
        _, batches = self.replica.query_sync(sql, parameters, **options)
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def opened(limits: Limits, **options: Any) -> Iterator[Shop]:
    """A shop with some rows."""
    with tidegate.open(make_app()) as engine:
        engine.push("orders", [("tea", 10), ("jam", 3)])
        engine.call("fill")
        engine.checkpoint()
        with ReplicaProcess(engine, limits, pg_port=0, **options) as replica:
            yield Shop(engine, replica)


def holding(table: str, ddl: str, rows: Iterable[Any]) -> Iterator[Shop]:
    """A shop that is one table with these rows, for statements that are compared with a PostgreSQL server."""
    app = App(table)
    app.table(ddl)

    @app.procedure(writes=[table])
    def fill(txn: Any) -> None:
        for row in rows:
            txn.insert(table, row)

    with tidegate.open(app) as engine:
        engine.call("fill")
        engine.checkpoint()
        with ReplicaProcess(engine, Limits(timeout_s=60, refresh_s=0.05), pg_port=0) as replica:
            yield Shop(engine, replica)


def startup(more: bytes = b"") -> bytes:
    """The first message of a PostgreSQL client, for tests that speak the protocol themselves."""
    body = (196_608).to_bytes(4, "big") + b"user\0anyone\0database\0tidegate\0" + more + b"\0"
    return (len(body) + 4).to_bytes(4, "big") + body
