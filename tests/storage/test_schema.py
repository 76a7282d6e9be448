"""Types, schemas and DDL: what is accepted, in which form it is stored, and what the errors name."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from copy import copy, deepcopy
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from stores import Store

from tidegate.errors import ConstraintError, DataError, DeclarationError
from tidegate.storage.base import META
from tidegate.storage.ddl import Scratch, from_sqlalchemy
from tidegate.storage.types import INTEGER_WIDTHS, column_type

MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        ("INTEGER", np.int16(7), 7),
        ("INTEGER", Decimal("7"), 7),
        ("DOUBLE", 3, 3.0),
        ("DOUBLE", np.float32(0.5), 0.5),
        ("FLOAT", 0.1, float(np.float32(0.1))),
        ("DECIMAL(9,2)", Decimal("1.005"), Decimal("1.01")),
        ("DECIMAL(9,2)", Decimal("-1.005"), Decimal("-1.01")),
        ("DECIMAL(9,2)", 3, Decimal("3.00")),
        ("VARCHAR", "é", "é"),
        ("BOOLEAN", np.bool_(True), True),
        (
            "TIMESTAMP",
            MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))),
            MOMENT - dt.timedelta(hours=2),
        ),
        ("TIMESTAMP", np.datetime64("2020-01-02T03:04:05.000006"), MOMENT),
        ("INTERVAL", np.timedelta64(5, "s"), dt.timedelta(seconds=5)),
        ("BLOB", bytearray(b"x"), b"x"),
        ("UUID", uuid.UUID(int=5), uuid.UUID(int=5)),
        ("JSON", {"a": [1]}, '{"a":[1]}'),
        ("INTEGER[]", np.array([1, 2]), (1, 2)),
        ("VARCHAR[][]", [["a"], []], (("a",), ())),
    ],
)
def test_stored_form(kind: str, given: Any, stored: Any) -> None:
    found = column_type(kind).coerce(given)
    assert found == stored
    assert type(found) is type(stored)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("INTEGER", 2**31), ("INTEGER", True), ("INTEGER", "7"), ("INTEGER", 7.0), ("UTINYINT", -1),
        ("DECIMAL(4,2)", Decimal(100)), ("DECIMAL(4,2)", 0.1), ("VARCHAR", 7), ("BOOLEAN", 1),
        ("TIMESTAMP", dt.date(2020, 1, 1)), ("DATE", MOMENT), ("JSON", "{"), ("INTEGER[]", ["x"]), ("BLOB", "x"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit(kind: str, given: Any) -> None:
    with pytest.raises(ValueError):
        column_type(kind).coerce(given)


@pytest.mark.parametrize("kind", ["HUGEINT", "TIMESTAMP WITH TIME ZONE", "MAP(VARCHAR, INTEGER)"])
def test_types_that_are_not_supported_name_what_to_use(kind: str) -> None:
    with pytest.raises(DeclarationError, match="use "):
        column_type(kind)


def test_errors_name_table_column_and_value(votes: Store) -> None:
    view = votes.view()
    with pytest.raises(DataError, match=r"votes\.n .*'x'"):
        view.insert("votes", phone=1, contestant=1, n="x")
    with pytest.raises(DataError, match="no column 'nope'"):
        view.insert("votes", phone=1, contestant=1, nope=1)
    with pytest.raises(ConstraintError, match=r"votes\.contestant is NOT NULL"):
        view.insert("votes", (1, None, 0, None, None, None))
    with pytest.raises(DataError, match="6 columns"):
        view.insert("votes", (1, 2))
    assert view.writes == {}


def test_row_api(votes: Store) -> None:
    view = votes.view()
    view.insert("votes", phone=1, contestant=2)
    with pytest.raises(ConstraintError, match="already has a row"):
        view.insert("votes", phone=1, contestant=2)
    assert view.update("votes", 1, n=3).n == 3
    assert view.update("votes", 9, n=3) is None
    with pytest.raises(DataError, match="primary key"):
        view.update("votes", 1, phone=2)
    with pytest.raises(ConstraintError, match="CHECK"):
        view.update("votes", 1, n=-1)
    view.upsert("votes", phone=1, contestant=5, name="a")
    with pytest.raises(ConstraintError, match="UNIQUE"):
        view.insert("votes", phone=2, contestant=5, name="a")
    assert [row.phone for row in view.scan("votes", contestant=5)] == [1]
    assert view.delete("votes", 1)
    assert not view.delete("votes", 1)
    assert view.scan("votes") == []


@pytest.mark.parametrize(
    ("ddl", "hint"),
    [
        ("CREATE TABLE t (a INTEGER)", "PRIMARY KEY"),
        ("CREATE TABLE t (a DOUBLE PRIMARY KEY)", "can't be part of a key"),
        ("CREATE TABLE t (a HUGEINT PRIMARY KEY)", "BIGINT"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER GENERATED ALWAYS AS (a + 1))", "generated"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY", "DuckDB refuses"),
        ("CREATE TABLE t (at TIMESTAMP PRIMARY KEY)", 'If at is a name: it is also an SQL keyword; write "at"'),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER); CREATE INDEX i ON t ((a + b))", "plain columns"),
        ("SELECT 1", "creates 0"),
    ],
)
def test_ddl_that_is_refused(ddl: str, hint: str) -> None:
    with pytest.raises(DeclarationError, match=hint):
        Scratch().define_table(ddl)


def test_partitions_are_part_of_every_unique_key() -> None:
    with pytest.raises(DeclarationError, match="partition"):
        Scratch().define_table("CREATE TABLE t (k INTEGER PRIMARY KEY, p INTEGER)", ("p",))
    schema = Scratch().define_table("CREATE TABLE t (k INTEGER, p INTEGER, PRIMARY KEY (k, p))", ("p",))
    assert schema.partition_of((1, 2)) == (2,)


def test_a_sqlalchemy_table() -> None:
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("k", sa.Integer, primary_key=True), sa.Column("s", sa.String(5), server_default="x"),
        sa.Column("at_time", sa.DateTime), sa.Column("m", sa.Numeric(9, 2)), sa.Column("b", sa.LargeBinary),
        sa.UniqueConstraint("s"), sa.CheckConstraint("m > 0"),
    )  # fmt: skip
    schema = Scratch().define_table(from_sqlalchemy(table))
    assert [column.type.sql for column in schema.columns] == [
        "INTEGER",
        "VARCHAR",
        "TIMESTAMP",
        "DECIMAL(9,2)",
        "BLOB",
    ]
    assert (len(schema.checks), [index.columns for index in schema.indexes]) == (1, [("s",)])
    assert schema.columns[1].default == "'x'"


def test_every_type_survives_the_base(tmp_path: Any) -> None:
    ddl = (
        "CREATE TABLE t (k INTEGER PRIMARY KEY, a DOUBLE, b DECIMAL(38,10), c VARCHAR, d BOOLEAN, e TIMESTAMP, f DATE, "
        "g TIME, h INTERVAL, i BLOB, j UUID, l JSON, m INTEGER[], n VARCHAR[][], o UBIGINT, p FLOAT)"
    )
    row = (
        1, 0.1, Decimal("1.0000000001"), "é\x00", True, MOMENT, dt.date(1900, 1, 1), dt.time(23, 59, 59, 999999),
        dt.timedelta(days=-3, microseconds=7), b"\x00\xff", uuid.UUID(int=2**127), '{"a": 1}', (1, None), (("x",), ()),
        2**64 - 1, 1.5,
    )  # fmt: skip
    store = Store(ddl, path=tmp_path / "base.duckdb")
    view = store.view()
    view.insert("t", row)
    view.insert("t", (2, *[None] * 15))
    assert [tuple(r) for r in store.run("SELECT * FROM t", view=view)] == [row, (2, *[None] * 15)]
    store.commit(view)
    store.merge()
    store.close()
    again = Store(ddl, path=tmp_path / "base.duckdb")
    assert again.rows("t") == [row, (2, *[None] * 15)]
    assert [tuple(r) for r in again.run("SELECT * FROM t")] == [row, (2, *[None] * 15)]
    again.close()
    with pytest.raises(DeclarationError, match="declared as"):
        Store("CREATE TABLE t (k BIGINT PRIMARY KEY)", path=tmp_path / "base.duckdb")


def test_merge_writes_meta_with_the_rows(votes: Store) -> None:
    votes.run("INSERT INTO votes (phone, contestant) VALUES (1, 1)")
    votes.database.merge(lambda: {"frontier": 7})
    stored = votes.database.base.cursor().execute(f"FROM {META}").fetchall()
    assert {name: json.loads(value) for name, value in stored} == {"frontier": 7, "set_aside": []}
    assert votes.database.base.count(votes.tables["votes"]) == 1
    assert votes.database.unmerged == 0


@pytest.mark.parametrize("kind", INTEGER_WIDTHS)
def test_every_whole_number_is_taken_or_refused_at_its_limits(kind: str) -> None:
    relation = Scratch().define_relation("s", f"n {kind} NOT NULL, m {kind}")
    low, high, _ = INTEGER_WIDTHS[kind]
    near = [edge + step for edge in (low, high, -(2**31), -(2**30), 0, 2**30, 2**31) for step in (-2, -1, 0, 1, 2)]
    for value in near:
        for row in ((value, 0), (1, value)):
            if low <= value <= high:
                assert relation.conform(row) == row
                assert relation.conform_all([row]) == (row,)
            else:
                with pytest.raises(DataError, match="out of range"):
                    relation.conform(row)
                with pytest.raises(DataError, match="out of range"):
                    relation.conform_all([row])


# ---- rows that were checked already


def test_rows_of_a_relation_that_fits_are_passed_on_and_what_people_make_of_them_is_checked() -> None:
    scratch = Scratch()
    source, target = (scratch.define_relation(name, "n INTEGER NOT NULL, t VARCHAR") for name in "ab")
    target.trust(source)
    assert target.trusted == {source.row}
    row = source.conform((1, "x"))
    assert type(row) is source.row
    assert type(target.conform(row)) is target.row
    assert target.conform_all([row, (2, None)]) == ((1, "x"), (2, None))
    for changed in (
        row._replace(n="no"),
        type(row)("no", "x"),
        type(row)._make(["no", "x"]),
        copy(row)._replace(n="no"),
    ):
        assert type(changed) is not source.row
        assert type(changed).__name__ == "a"
        with pytest.raises(DataError, match=r"b\.n"):
            target.conform(changed)
        with pytest.raises(DataError, match=r"b\.n"):
            target.conform_all([changed])
    assert row._replace(n=5) == (5, "x")
    assert type(row)(n=5, t="y").t == "y"
    assert row._asdict() == {"n": 1, "t": "x"}
    assert repr(row) == "a(n=1, t='x')"
    assert copy(row) == deepcopy(row) == (1, "x")
    assert deepcopy([row])[0].t == "x"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 't'"):
        type(row)(1)
    match row:
        case source.row(n=number, t="x"):
            assert number == 1
        case _:
            pytest.fail("it looks like a row of its class")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("n INTEGER", "n INTEGER NOT NULL"),
        ("n INTEGER", "n BIGINT"),
        ("n INTEGER, m INTEGER", "n INTEGER"),
        ("n INTEGER", "n INTEGER, m INTEGER"),
        ("n INTEGER[]", "n BIGINT[]"),
        ("n DECIMAL(9, 2)", "n DECIMAL(9, 3)"),
        ("n DECIMAL(9, 2)[]", "n DECIMAL(9, 3)[]"),
        ("n INTEGER[]", "n INTEGER[][]"),
    ],
)
def test_rows_of_a_relation_that_does_not_fit_are_checked(source: str, target: str) -> None:
    scratch = Scratch()
    taking = scratch.define_relation("b", target)
    taking.trust(scratch.define_relation("a", source))
    assert not taking.trusted


# ---- types are values

TYPES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), 7),
    "FLOAT": 0.5,
    "DOUBLE": 0.1,
    "DECIMAL(9,2)": Decimal("1.20"),
    "DECIMAL(38,0)": Decimal(10**37),
    "VARCHAR": "å",
    "BOOLEAN": True,
    "TIMESTAMP": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    "DATE": dt.date(2026, 1, 2),
    "TIME": dt.time(3, 4, 5),
    "INTERVAL": dt.timedelta(days=1, microseconds=7),
    "BLOB": b"\x00",
    "UUID": uuid.UUID(int=7),
    "JSON": '{"a":1}',
}
NESTED = {
    **TYPES,
    **{f"{sql}[]": (value, None) for sql, value in TYPES.items()},
    **{f"{sql}[][]": ((value,), None) for sql, value in TYPES.items()},
}


def test_a_type_equals_itself_wherever_it_was_read_and_no_other() -> None:
    once, again = ([column_type(sql) for sql in NESTED] for _ in range(2))
    assert once == again
    assert [hash(kind) for kind in once] == [hash(kind) for kind in again]
    assert len({*once, *again}) == len(NESTED)
    assert column_type("DECIMAL(9, 2)") == column_type("DECIMAL(9,2)")


@pytest.mark.parametrize("sql", NESTED)
def test_rows_of_the_same_type_are_passed_on_as_they_are(sql: str) -> None:
    source, target = (Scratch().define_relation(name, f"v {sql}, w {sql} NOT NULL") for name in "ab")
    target.trust(source)
    row = source.conform((None, NESTED[sql]))
    assert target.trusted == {source.row}
    assert target.conform(row) == row == (None, NESTED[sql])
    assert target.conform(row)[1] is row[1], "not even copied"
