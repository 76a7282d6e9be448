"""Tables that are there before a sink: types that keep every value are taken, others refused before anything is sent.

What is taken is not only believed: the outermost values of the stream's type go in, and come back as they were.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from itertools import zip_longest
from typing import Any

import pytest
import sqlalchemy as sa

from tidegate import App, Batch
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import SinkError

MOMENT, DAY, HOUR = dt.datetime(2026, 1, 2, 3, 4, 5, 678), dt.date(2026, 1, 2), dt.time(3, 4, 5, 678)
LASTING = dt.timedelta(days=9999, microseconds=7)
VALUES: dict[str, list[Any]] = {
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INTEGER": [-(2**31), 2**31 - 1],
    "BIGINT": [-(2**63), 2**63 - 1, 2**53 + 1],
    "UBIGINT": [0, 2**64 - 1],
    "FLOAT": [0.10000000149011612, 3.4028234663852886e38],
    "DOUBLE": [0.1, 1 / 3, 1.7976931348623157e308],
    "DECIMAL(9,2)": [Decimal("-9999999.99"), Decimal("0.01")],
    "DECIMAL(5,0)": [Decimal(99999)],
    "DECIMAL(30,10)": [Decimal("12345678901234567890.0123456789")],
    "VARCHAR": ["007", "12", "", "ö" * 300],
    "BOOLEAN": [True, False],
    "TIMESTAMP": [MOMENT, dt.datetime(1, 1, 1)],
    "DATE": [DAY],
    "TIME": [HOUR],
    "INTERVAL": [LASTING],
    "BLOB": [b"\x00\xff"],
    "UUID": [uuid.UUID(int=7)],
    "JSON": ['{"a": [1, 2]}', '["007"]'],
    "INTEGER[]": [(1, None, 2**31 - 1)],
}
TEXT_TOO = ("TEXT", "VARCHAR(400)")
FITTING = {
    "postgres": {
        "SMALLINT": ("SMALLINT", "INTEGER", "BIGINT", "NUMERIC", "NUMERIC(5,0)", "REAL", "DOUBLE PRECISION"),
        "INTEGER": ("INTEGER", "BIGINT", "NUMERIC", "NUMERIC(12,2)", "DOUBLE PRECISION"),
        "BIGINT": ("BIGINT", "NUMERIC(19,0)"),
        "UBIGINT": ("NUMERIC(20,0)", "NUMERIC"),
        "FLOAT": ("REAL", "DOUBLE PRECISION"),
        "DOUBLE": ("DOUBLE PRECISION",),
        "DECIMAL(9,2)": ("NUMERIC", "NUMERIC(9,2)", "NUMERIC(10,3)", "DOUBLE PRECISION"),
        "DECIMAL(5,0)": ("INTEGER", "NUMERIC(5,0)"),
        "DECIMAL(30,10)": ("NUMERIC", "NUMERIC(30,10)"),
        "VARCHAR": TEXT_TOO,
        "BOOLEAN": ("BOOLEAN",),
        "TIMESTAMP": ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP(6)"),
        "DATE": ("DATE", "TIMESTAMP"),
        "TIME": ("TIME",),
        "INTERVAL": ("INTERVAL", "BIGINT"),
        "BLOB": ("BYTEA",),
        "UUID": ("UUID", "TEXT", "VARCHAR(36)"),
        "JSON": ("JSON", "JSONB", *TEXT_TOO),
        "INTEGER[]": ("INTEGER[]", "BIGINT[]", "JSONB", "TEXT"),
    },
    "sqlite": {
        "SMALLINT": ("SMALLINT", "INT", "NUMERIC", "REAL", ""),
        "INTEGER": ("SMALLINT", "INTEGER", "NUMERIC", "DOUBLE", ""),
        "BIGINT": ("SMALLINT", "INTEGER", "BIGINT", ""),
        "UBIGINT": ("TEXT", "VARCHAR(20)"),
        "FLOAT": ("REAL", "NUMERIC", ""),
        "DOUBLE": ("REAL", "FLOAT", "DOUBLE", "NUMERIC", ""),
        "DECIMAL(9,2)": ("NUMERIC(9,2)", "DECIMAL(9,2)", "REAL", "TEXT"),
        "DECIMAL(5,0)": ("INTEGER", "NUMERIC", "TEXT"),
        "DECIMAL(30,10)": ("TEXT",),
        "VARCHAR": (*TEXT_TOO, ""),
        "BOOLEAN": ("BOOLEAN", "INTEGER", ""),
        "TIMESTAMP": ("DATETIME", "TIMESTAMP", "TEXT"),
        "DATE": ("DATE", "TEXT"),
        "TIME": ("TIME", "TEXT"),
        "INTERVAL": ("BIGINT", "INTEGER", ""),
        "BLOB": ("BLOB", ""),
        "UUID": ("TEXT", "CHAR(36)", ""),
        "JSON": ("JSON", "TEXT", ""),
        "INTEGER[]": ("JSON", "TEXT", ""),
    },
}
NUMBERS = ("SMALLINT", "BIGINT", "REAL", "NUMERIC(3,1)")
UNFIT = {
    "postgres": {
        "SMALLINT": ("NUMERIC(4,0)", "TEXT", "BOOLEAN", "TIMESTAMP"),
        "INTEGER": ("SMALLINT", "REAL", "NUMERIC(9,0)", "VARCHAR(20)", "SMALLINT[]"),
        "BIGINT": ("SMALLINT", "INTEGER", "DOUBLE PRECISION", "TEXT", "VARCHAR(20)", "DATE"),
        "UBIGINT": ("BIGINT", "NUMERIC(19,0)", "TEXT"),
        "FLOAT": ("INTEGER", "TEXT"),
        "DOUBLE": ("REAL", "NUMERIC", "NUMERIC(10,2)", "BIGINT"),
        "DECIMAL(9,2)": ("NUMERIC(8,2)", "NUMERIC(9,1)", "REAL", "BIGINT", "TEXT"),
        "DECIMAL(5,0)": ("SMALLINT",),
        "DECIMAL(30,10)": ("DOUBLE PRECISION", "NUMERIC(30,11)"),
        "VARCHAR": (*NUMBERS, "BOOLEAN", "UUID", "JSONB", "BYTEA", "TEXT[]"),
        "BOOLEAN": ("INTEGER", "TEXT"),
        "TIMESTAMP": ("INTEGER", "BIGINT", "DATE", "TIMESTAMP(0)", "TIMESTAMPTZ(3)", "TEXT"),
        "DATE": ("TIMESTAMPTZ", "TEXT", "INTEGER"),
        "TIME": ("TIMETZ", "TIME(3)", "TIMESTAMP"),
        "INTERVAL": ("INTERVAL DAY", "INTEGER", "TIME"),
        "BLOB": ("TEXT",),
        "UUID": ("CHAR(32)", "BYTEA"),
        "JSON": ("INTEGER", "BYTEA"),
        "INTEGER[]": ("SMALLINT[]", "TEXT[]", "INTEGER"),
    },
    "sqlite": {
        "INTEGER": ("TEXT", "BOOLEAN", "DATE"),
        "BIGINT": ("REAL", "NUMERIC", "TEXT", "VARCHAR(20)"),
        "UBIGINT": ("BIGINT", "NUMERIC", ""),
        "DOUBLE": ("INTEGER", "TEXT"),
        "DECIMAL(9,2)": ("INTEGER", ""),
        "DECIMAL(30,10)": ("NUMERIC(30,10)", "REAL"),
        "VARCHAR": ("INTEGER", "NUMERIC", "STRING", "BLOB", "DATE"),
        "BOOLEAN": ("TEXT", "REAL"),
        "TIMESTAMP": ("INTEGER", "DATE", ""),
        "TIME": ("INTEGER", "DATETIME"),
        "BLOB": ("TEXT",),
        "UUID": ("UUID", "CHAR(32)"),
        "JSON": ("INTEGER",),
    },
}


def stream_of(*kinds: str) -> Any:
    """A stream with a column of each kind: v, v1, v2, …"""
    app = App("fit")
    app.stream("sent", ", ".join(f"v{number or ''} {kind}" for number, kind in enumerate(kinds)))
    return app.streams["sent"].relation


def make_table(database: sa.Engine, *columns: str) -> None:
    with database.begin() as connection:
        told = ", ".join(f"v{number or ''} {column}" for number, column in enumerate(columns))
        connection.execute(sa.text(f"CREATE TABLE target ({told})"))


def pairs_of(database: sa.Engine, told: dict[str, dict[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    chosen = told["sqlite" if database.dialect.name == "sqlite" else "postgres"]
    return [(kind, column) for kind, columns in chosen.items() for column in columns]


def as_stored(kind: str, value: Any) -> Any:
    """A value that came back, in the Python type of the stream's; what got lost on the way is lost."""
    if isinstance(value, str) and kind in ("TIMESTAMP", "DATE", "TIME"):
        return {"TIMESTAMP": dt.datetime, "DATE": dt.date, "TIME": dt.time}[kind].fromisoformat(value)
    if kind == "DATE" and isinstance(value, dt.datetime):
        assert value.time() == dt.time()
        return value.date()
    if kind == "INTERVAL" and isinstance(value, int):
        return dt.timedelta(microseconds=value)
    if kind == "UUID":
        return uuid.UUID(str(value))
    if kind == "JSON":
        return json.dumps(json.loads(value) if isinstance(value, str) else value)
    if kind.endswith("[]"):
        return json.loads(value) if isinstance(value, str) else value
    if kind.startswith("DECIMAL"):
        return Decimal(str(value))
    if kind.endswith("INT") or kind == "INTEGER":
        assert isinstance(value, str) or value == int(value)
        return int(value)
    return {"BOOLEAN": bool, "BLOB": bytes}.get(kind, lambda v: v)(value)


def test_types_that_fit_keep_every_value(database: sa.Engine) -> None:
    pairs = pairs_of(database, FITTING)
    kinds, columns = zip(*pairs, strict=True)
    relation = stream_of(*kinds)
    given = relation.conform_all(zip_longest(*(VALUES[kind] for kind in kinds)))
    make_table(database, *columns)
    sink = SqlSink(database, "target")
    sink.open("out", relation)
    sink.send([Batch(relation, 1, given)])
    with database.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.text("SELECT * FROM target"))]
        counts = connection.execute(
            sa.text(f"SELECT {', '.join(f'count({c})' for c in relation.column_names)} FROM target")
        )
        assert counts.one() == tuple(len(VALUES[kind]) for kind in kinds)  # NULL is NULL
    for place, (kind, column) in enumerate(pairs):
        coerce = relation.columns[place].type.coerce
        arrived = [coerce(as_stored(kind, row[place])) for row in found if row[place] is not None]
        assert arrived == [row[place] for row in given if row[place] is not None], (kind, column)


def test_types_that_do_not_are_refused_before_anything_is_made(database: sa.Engine) -> None:
    pairs = pairs_of(database, UNFIT)
    kinds, columns = zip(*pairs, strict=True)
    make_table(database, *columns)
    for refusing in (SqlSink(database, "target").open, SqlSink(database, "target").check):
        with pytest.raises(SinkError, match="ALTER TABLE") as caught:
            refusing("out", stream_of(*kinds))
        told = caught.value.misfits  # type: ignore[attr-defined]
        missed = [pair for number, pair in enumerate(pairs) if not any(f"its v{number or ''} is" in t for t in told)]
        assert not missed
    assert not sa.inspect(database).has_table("tidegate_sinks")


def test_the_error_names_both_columns_their_types_and_one_that_fits(database: sa.Engine) -> None:
    make_table(database, "TEXT")
    with pytest.raises(SinkError) as caught:
        SqlSink(database, "target").open("out", stream_of("BIGINT"))
    assert "its v is TEXT, which does not keep every value of the stream's v BIGINT (BIGINT does)" in str(caught.value)


def test_a_table_that_the_sink_made_fits_whenever_it_is_found_again(types: App, database: sa.Engine) -> None:
    relation = types.streams["everything"].relation
    for _ in range(2):
        sink = SqlSink(database, "target")
        sink.open("out", relation)
        assert sink.check("out", relation) == "table target has its columns"


def test_a_key_that_nobody_fills_is_told(postgres: Any, database: sa.Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE target (code VARCHAR(9) NOT NULL PRIMARY KEY, v BIGINT)"))
    with pytest.raises(SinkError, match="its code is NOT NULL without a default"):
        SqlSink(database, "target").open("out", stream_of("BIGINT"))
