"""Rows given as columns are stored as the same rows one by one, or refused with the same error."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from every_type import COLUMNS, NULLS, ROW
from hostile import KINDS, same, values
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import App
from tidegate.errors import TidegateError
from tidegate.storage.column_rows import ColumnRows, count_of, lists_of, plain_rows
from tidegate.storage.columnar import conform_columns, is_columnar
from tidegate.storage.schema import Relation


def relation(columns: str) -> Relation:
    app = App()
    app.stream("given", columns, border=True)
    return app.streams["given"].relation


EVERY = relation(COLUMNS)
SOME = relation('n INTEGER NOT NULL, x DOUBLE, word VARCHAR, "at" TIMESTAMP')
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678)


def outcome(relation: Relation, given: Any) -> Any:
    """The stored rows, or the error and its text."""
    try:
        if is_columnar(given):
            found = conform_columns(relation, given)
            return tuple(found)
        return relation.conform_all(given)
    except TidegateError as error:
        return type(error), str(error)


def as_arrow(relation: Relation, rows: Any) -> pa.Table:
    return ColumnRows.of_rows(relation, relation.conform_all(rows)).arrow


def test_every_type_comes_through_and_stays_columns() -> None:
    stored = EVERY.conform_all([ROW, NULLS, ROW])
    table = as_arrow(EVERY, [ROW, NULLS, ROW])
    uuids = [row[EVERY.index_of["id"]] for row in stored]
    given = table.set_column(EVERY.index_of["id"], "id", pa.array(map(as_bytes, uuids), type=pa.uuid()))
    found = conform_columns(EVERY, given)
    assert isinstance(found, ColumnRows)
    assert found.rows == stored
    assert [type(value) for value in found.rows[0]] == [type(value) for value in stored[0]]
    again = ColumnRows.unpacked(EVERY, bytes(found.packed()))
    assert again.rows == stored
    assert again.digest() == found.digest() == ColumnRows.of_rows(EVERY, stored).digest()


def as_bytes(value: uuid.UUID | None) -> bytes | None:
    return None if value is None else value.bytes


FORMS = {
    "table": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)]),
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "pandas": lambda table: table.to_pandas(),
    "pandas, Arrow types": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "duckdb": lambda table: duckdb.connect().from_arrow(table),
    "numpy": lambda table: np.array(
        [tuple(row.values()) for row in table.to_pylist()],
        dtype=[("n", "i8"), ("x", "f4"), ("word", "U5"), ("at", "M8[us]")],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_everything_that_has_columns_is_taken(form: str) -> None:
    rows = [(1, 0.5, "a", AT), (-2, 2.5, "åß", AT + dt.timedelta(days=1)), (3, -1.0, "", AT)]
    given = FORMS[form](as_arrow(SOME, rows))
    assert is_columnar(given)
    found = conform_columns(SOME, given)
    assert isinstance(found, ColumnRows)
    assert found.rows == SOME.conform_all(rows)


def test_rows_are_not_columns() -> None:
    for rows in ([(1,)], ((1,),), iter([(1,)]), {"n": [1]}, "text", np.array([[1, 2]])):
        assert not is_columnar(rows)


def test_columns_in_another_order_and_nullable_ones_left_out() -> None:
    found = conform_columns(SOME, pa.table({"word": ["a", None], "n": pa.array([1, 2], pa.uint8())}))
    assert isinstance(found, ColumnRows)
    assert found.rows == ((1, None, "a", None), (2, None, None, None))


REFUSED: dict[str, Any] = {
    "out of range": {"n": [1, 2**31, 2]},
    "below": {"n": [1, -(2**31) - 1]},
    "null": {"n": [1, None]},
    "missing": {"x": [1.0]},
    "unknown": {"n": [1], "y": [1]},
    "floats for integers": {"n": [1.0]},
    "text for numbers": {"n": [1], "x": ["1.0"]},
    "numbers for text": {"n": [1], "word": [1]},
    "dates for times": {"n": [1], "at": [dt.date(2026, 1, 1)]},
}


@pytest.mark.parametrize("columns", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_refused_with_the_error_of_its_row(columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    found = outcome(SOME, table)
    assert issubclass(found[0], TidegateError)
    assert found == outcome(SOME, table.to_pylist())


def test_what_python_can_not_hold_is_refused_by_row_and_column() -> None:
    far = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us"))
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], "i4")), pa.py_buffer(b"a\xff\xfe")]
    )
    for name, column in (("at", far), ("word", text)):
        kind, told = outcome(SOME, pa.table({"n": [1, 2], name: column}))
        assert kind.__name__ == "DataError"
        assert f"given.{name} can't take the value of row 2" in told


def test_half_a_pair_and_a_column_given_twice_are_refused() -> None:
    frame = pd.DataFrame({"n": [1, 2], "word": pd.Series(["a", "\ud800"], dtype=object)})
    assert outcome(SOME, frame) == outcome(SOME, [{"n": 1, "word": "a"}, {"n": 2, "word": "\ud800"}])
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    assert "two columns named 'n'" in outcome(SOME, twice)[1]
    assert "2 dimensions" in outcome(SOME, np.zeros((2, 2), dtype=[("n", "i8")]))[1]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Stockholm"])
def test_times_of_every_unit(unit: str, zone: str | None) -> None:
    moments = [dt.datetime(1969, 12, 31, 23, 59, 59), None, dt.datetime(2026, 7, 1, 12)]
    column = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
    found = conform_columns(SOME, pa.table({"n": [1, 2, 3], "at": column}))
    assert isinstance(found, ColumnRows)
    assert [row.at for row in found.rows] == moments  # type: ignore[attr-defined]


def test_nanoseconds_are_cut_off_as_one_by_one() -> None:
    column = pa.array([-1, 1_999, None], pa.int64()).cast(pa.timestamp("ns"))
    table = pa.table({"n": [1, 2, 3], "at": column})
    assert outcome(SOME, table) == outcome(SOME, table.to_pylist())


NUMBERS = [0.0, -0.0, 1e-46, 3.5e38, 3.4028235e38, 3.40282357e38, -1e300, math.inf, -math.inf, math.nan, 2**53 + 1]


def test_floats_are_rounded_as_one_by_one() -> None:
    single = relation("x FLOAT")
    for number in NUMBERS:
        table = pa.table({"x": [float(number)]})
        assert repr(outcome(single, table)) == repr(outcome(single, table.to_pylist()))
    integers = pa.table({"x": [2**53 + 1, 2**62 + 1, -3]})
    for kind in ("FLOAT", "DOUBLE"):
        assert outcome(relation(f"x {kind}"), integers) == outcome(relation(f"x {kind}"), integers.to_pylist())


def test_days_and_decimals_of_other_scales() -> None:
    prices = relation("price DECIMAL(5,2), day DATE, hour TIME, lasting INTERVAL")
    table = pa.table(
        {
            "price": pa.array([Decimal("1.005"), Decimal("-0.001"), None], pa.decimal128(9, 3)),
            "day": [dt.date.min, dt.date.max, None],
            "hour": pa.array([0, 86_399, None], pa.int32()).cast(pa.time32("s")),
            "lasting": pa.array([0, -5, None], pa.int64()).cast(pa.duration("ms")),
        }
    )
    found = conform_columns(prices, table)
    assert isinstance(found, ColumnRows)
    assert repr(tuple(found)) == repr(prices.conform_all(table.to_pylist()))


def test_the_memory_of_the_caller_is_not_shared() -> None:
    numbers = np.array([1.0, 2.0])
    table = pa.table({"n": [1, 2], "x": pa.array(numbers)})
    found = conform_columns(SOME, table)
    numbers[0] = 7.0
    assert [row.x for row in found] == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["INTEGER", "VARCHAR", "DECIMAL(4,1)", "BOOLEAN", "TIMESTAMP", "DATE", "BLOB", "UUID"])
def test_rows_are_split_by_key_as_one_by_one(kind: str) -> None:
    pool: dict[str, list[Any]] = {
        "INTEGER": [5, -1, 3],
        "VARCHAR": ["b", "", "a"],
        "DECIMAL(4,1)": [Decimal("2.5"), Decimal("-1.0"), Decimal("0.0")],
        "BOOLEAN": [True, False],
        "TIMESTAMP": [AT, AT - dt.timedelta(days=1)],
        "DATE": [AT.date(), dt.date.min],
        "BLOB": [b"\x00", b""],
        "UUID": [uuid.UUID(int=9), uuid.UUID(int=3)],
    }
    keyed = relation(f"key {kind} NOT NULL, n INTEGER")
    rows = keyed.conform_all([(pool[kind][i * i % len(pool[kind])], i) for i in range(20)])
    plain: dict[Any, list[Any]] = {}
    for row in rows:
        plain.setdefault(row[0], []).append(row)
    parts = ColumnRows.of_rows(keyed, rows).split(0)
    assert list(parts) == list(plain)
    assert [tuple(part) for part in parts.values()] == [tuple(part) for part in plain.values()]
    assert [len(part) for part in parts.values()] == [len(part) for part in plain.values()]


def test_a_row_of_the_log_can_be_read_by_people() -> None:
    packed = bytes(ColumnRows.of_rows(SOME, SOME.conform_all([(1, 0.5, "a", AT), (2, None, None, None)])).packed())
    assert lists_of(packed) == [[1, 0.5, "a", "2026-01-02T03:04:05.000678"], [2, None, None, None]]
    assert count_of(packed) == 2
    assert plain_rows(packed) == lists_of(packed)
    assert count_of([[1]]) == 1


def test_columns_written_before_one_was_added_are_read_with_nulls() -> None:
    before, after = relation("n INTEGER"), relation("n INTEGER, more VARCHAR")
    packed = bytes(ColumnRows.of_rows(before, before.conform_all([(1,), (2,)])).packed())
    assert ColumnRows.unpacked(after, packed).rows == ((1, None), (2, None))


HOSTILE = relation(", ".join(f"c{i} {kind}" for i, kind in enumerate(KINDS)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_values_are_stored_or_refused_as_one_by_one(data: Any) -> None:
    place = data.draw(st.integers(0, len(KINDS) - 1))
    drawn = data.draw(st.lists(st.none() | values(KINDS[place]), min_size=1, max_size=4))
    try:
        table = pa.table({f"c{place}": pa.array(drawn)})
        rows = table.to_pylist()
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return
    one, other = outcome(HOSTILE, table), outcome(HOSTILE, rows)
    assert type(one[0]) is type(other[0])
    assert (
        all(same(a, b) for a, b in zip(one, other, strict=True))
        if not isinstance(one[0], tuple)
        else all(same(a, b) for row, again in zip(one, other, strict=True) for a, b in zip(row, again, strict=True))
    )


def test_a_column_that_is_left_out_has_its_default() -> None:
    given = relation(
        "n INTEGER, price DECIMAL(6, 2) NOT NULL DEFAULT 1.5, unit VARCHAR DEFAULT 'g', tags VARCHAR[] DEFAULT ['a'], "
        "id UUID DEFAULT '6b7d9a40-8f0e-4a53-a2a2-1d2c3b4a5968', since DATE DEFAULT '2026-01-02'"
    )
    found = conform_columns(given, pa.table({"n": [1, 2]}))
    assert type(found) is ColumnRows
    assert tuple(found) == given.conform_all([{"n": 1}, {"n": 2}])
