"""The important one: every statement gives the same answer compiled, in DuckDB over overlays, and in plain
DuckDB.

Random tables (types, keys, constraints), random rows spread over the base, the versions above it and the
write set, random statements. Three runs of each statement: compiled to row access, forced through DuckDB,
and executed by a plain DuckDB on a real table with the real constraints. Results, contents afterwards and
whether it fails must agree.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import Store

from tidegate.errors import TidegateError

KEYS = st.integers(0, 6)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "TINYINT": st.integers(-128, 127) | st.integers(-2, 3),
    "INTEGER": st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 5, 2**31 - 1]),
    "BIGINT": st.sampled_from([-(2**63), -7, 0, 1, 2, 2**40, 2**63 - 1]),
    "UINTEGER": st.sampled_from([0, 1, 2, 2**32 - 1]),
    "DOUBLE": st.sampled_from([0.0, 1.0, -1.5, 0.1, 1e300, math.inf, math.nan]),
    "FLOAT": st.sampled_from([0.0, 1.5, -2.25]),
    "DECIMAL(9,2)": st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-3.25"), Decimal("9999999.99")]),
    "VARCHAR": st.sampled_from(["", "a", "b", "B", "é", "a'b", "10"]),
    "BOOLEAN": st.booleans(),
    "TIMESTAMP": st.sampled_from([dt.datetime(2020, 1, 1), dt.datetime(2021, 6, 1, 12, 30, 0, 7)]),
    "DATE": st.sampled_from([dt.date(2020, 1, 1), dt.date(1969, 12, 31)]),
    "TIME": st.sampled_from([dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    "INTERVAL": st.sampled_from([dt.timedelta(0), dt.timedelta(days=1, seconds=5), dt.timedelta(microseconds=-1)]),
    "BLOB": st.sampled_from([b"", b"\x00\xff", b"abc"]),
    "JSON": st.sampled_from(['{"a":1}', "[1,2]", "null", '"x"']),
    "INTEGER[]": st.sampled_from([(), (1, 2), (3, None)]),
}
LITERALS = {
    "TINYINT": ["1", "-1", "100"], "INTEGER": ["1", "2", "-1", "2147483647"], "BIGINT": ["1", "2", "-7"],
    "UINTEGER": ["1", "2"], "DOUBLE": ["1", "0.1", "-1.5"], "FLOAT": ["1.5", "0"],
    "DECIMAL(9,2)": ["1.5", "1", "-3.25", "0.005"], "VARCHAR": ["'a'", "'b'", "''", "'zz'"],
    "BOOLEAN": ["true", "false"], "TIMESTAMP": ["'2020-01-01'", "TIMESTAMP '2021-06-01 12:30:00'"],
    "DATE": ["'2020-01-01'", "DATE '1969-12-31'"], "TIME": ["'00:00:00'"], "INTERVAL": ["INTERVAL 1 day"],
    "BLOB": ["'abc'::BLOB"], "JSON": ["'[1,2]'"], "INTEGER[]": ["[1, 2]", "[]"],
}  # fmt: skip
KEY_TYPES = ["INTEGER", "BIGINT", "VARCHAR", "DATE", "TINYINT", "DECIMAL(9,2)"]
NUMERIC = {"TINYINT", "INTEGER", "BIGINT", "DOUBLE", "DECIMAL(9,2)"}
COMPARED = set(VALUES) - {"JSON", "INTEGER[]", "INTERVAL"}


@dataclass
class Table:
    """A random table: its DDL, and what the generators need to know of it."""

    ddl: str
    columns: dict[str, str]
    key: list[str]
    unique: str | None
    index: str | None
    nullable: dict[str, bool]
    wide: list[str]


@st.composite
def tables(draw: Any) -> Table:
    columns = {"k": draw(st.sampled_from(KEY_TYPES))}
    key = ["k"]
    if draw(st.booleans()):
        columns["k2"] = draw(st.sampled_from(["INTEGER", "VARCHAR"]))
        key.append("k2")
    for name in ["a", "b", "c"][: draw(st.integers(1, 3))]:
        columns[name] = draw(st.sampled_from(sorted(VALUES)))
    plain = [name for name in columns if name not in key]
    indexable = [n for n in plain if columns[n] in COMPARED - {"DOUBLE", "FLOAT"}]
    unique = draw(st.sampled_from([None, None, *indexable]))
    index = draw(st.sampled_from([None, *indexable]))
    nullable = {name: name not in key and draw(st.integers(0, 3)) > 0 for name in columns}
    parts = []
    for name, kind in columns.items():
        part = f"{name} {kind}" + ("" if nullable[name] or name in key else " NOT NULL")
        if name in plain and draw(st.booleans()):
            part += f" DEFAULT {draw(st.sampled_from(LITERALS[kind]))}"
        parts.append(part)
    parts.append(f"PRIMARY KEY ({', '.join(key)})")
    if unique:
        parts.append(f"UNIQUE ({unique})")
    numbers = [name for name in plain if columns[name] in NUMERIC]
    if numbers and draw(st.booleans()):
        parts.append(f"CHECK ({draw(st.sampled_from(numbers))} {draw(st.sampled_from(['<>', '>=', '<']))} 3)")
    if draw(st.integers(0, 3)) == 0:
        parts.append("CHECK (length(k::VARCHAR) < 20)")
    ddl = f"CREATE TABLE t ({', '.join(parts)})" + (f"; CREATE INDEX by_index ON t ({index})" if index else "")
    indexable = [n for n in columns if columns[n] in COMPARED - {"DOUBLE", "FLOAT"}]
    wide = draw(st.permutations(indexable))[: draw(st.integers(0, 3))]
    if wide:
        ddl += f"; CREATE INDEX by_several ON t ({', '.join(wide)})"
    return Table(ddl, columns, key, unique, index, nullable, wide)


def value(table: Table, name: str) -> st.SearchStrategy[Any]:
    kind = table.columns[name]
    plain = VALUES[kind]
    if kind in {"INTEGER", "BIGINT", "TINYINT"} and name in table.key:
        plain = st.integers(0, 5)
    return st.none() | plain if table.nullable[name] else plain


@st.composite
def operands(draw: Any, table: Table, name: str) -> tuple[str, list[Any]]:
    """A value of the type of column ``name``: a parameter, a literal or NULL."""
    choice = draw(st.integers(0, 5))
    if choice < 3:
        return "?", [draw(value(table, name))]
    if choice == 3 and name in table.key and table.columns[name] in {"INTEGER", "BIGINT"}:
        return str(draw(st.integers(0, 5))), []
    return (draw(st.sampled_from(LITERALS[table.columns[name]])) if choice < 5 else "NULL"), []


@st.composite
def predicates(draw: Any, table: Table) -> tuple[str, list[Any]]:
    name = draw(st.sampled_from([n for n in table.columns if table.columns[n] in COMPARED]))
    text, given = draw(operands(table, name))
    shape = draw(st.integers(0, 6))
    if shape == 0:
        return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL", []
    if shape == 1:
        other, more = draw(operands(table, name))
        return f"{name} {draw(st.sampled_from(['', 'NOT ']))}IN ({text}, {other})", given + more
    if shape == 2:
        other, more = draw(operands(table, name))
        return f"{name} BETWEEN {text} AND {other}", given + more
    if shape == 3:
        other, more = draw(predicates(table))
        return f"({name} = {text} {draw(st.sampled_from(['OR', 'AND']))} NOT {other})", given + more
    return f"{name} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {text}", given


@st.composite
def scalars(draw: Any, table: Table, name: str, alias: str = "") -> tuple[str, list[Any]]:
    """An expression that fits column ``name``."""
    kind = table.columns[name]
    column = f"{alias}{name}"
    shape = draw(st.integers(0, 5))
    text, given = draw(operands(table, name))
    if shape <= 1 and kind in NUMERIC:
        return (
            f"{column} {draw(st.sampled_from(['+', '-', '*']))} {draw(st.sampled_from(LITERALS[kind]))}",
            [],
        )
    if shape == 2 and kind in COMPARED and kind != "FLOAT":
        literal = draw(st.sampled_from(LITERALS[kind]))
        return f"COALESCE({column}, {literal})", []
    if shape == 3 and kind in COMPARED and kind != "FLOAT":
        return (
            f"CASE WHEN {column} IS NULL THEN {column} ELSE {draw(st.sampled_from(LITERALS[kind]))} END",
            [],
        )
    if shape == 4:
        return column, []
    return text, given


@st.composite
def lookups(draw: Any, table: Table) -> tuple[str, list[Any]]:
    """A WHERE: by key, by index, by a range of it, or anything."""
    shape = draw(st.integers(0, 5))
    if shape > 3:
        return draw(ranges(table))  # type: ignore[no-any-return]
    names = table.key if shape < 2 else [table.index or table.unique or "k"] if shape == 2 else []
    parts, given = [], []
    for name in names:
        text, more = draw(operands(table, name))
        parts.append(f"{name} = {text}")
        given += more
    if shape == 3 or draw(st.booleans()):
        text, more = draw(predicates(table))
        parts.append(text)
        given += more
    return " AND ".join(parts), given


@st.composite
def ranges(draw: Any, table: Table) -> tuple[str, list[Any]]:
    """Equality with the first columns of an index, and bounds for the next one."""
    names = table.wide or [table.index or table.unique or "k"]
    equal = draw(st.integers(0, len(names) - 1))
    parts, given = [], []
    for name in names[:equal]:
        text, more = draw(operands(table, name))
        parts.append(f"{name} = {text}")
        given += more
    name = names[equal]
    for _ in range(draw(st.integers(1, 2))):
        text, more = draw(operands(table, name))
        sign = draw(st.sampled_from(["<", "<=", ">", ">=", "BETWEEN"]))
        if sign == "BETWEEN":
            other, rest = draw(operands(table, name))
            parts.append(f"{name} BETWEEN {text} AND {other}")
            given += more + rest
        else:
            parts.append(draw(st.sampled_from([f"{name} {sign} {text}", f"{text} {sign} {name}"])))
            given += more
    return " AND ".join(parts), given


@st.composite
def firsts(draw: Any, table: Table) -> tuple[str, list[Any]]:
    """The first rows in some order, often that of an index."""
    where, given = draw(lookups(table)) if draw(st.booleans()) else ("", [])
    names = draw(st.sampled_from([table.wide, [table.index or "k"], table.key[:1], list(table.columns)[-2:]])) or ["k"]
    names = [name for name in names if table.columns[name] in COMPARED] or ["k"]
    way = draw(st.sampled_from(["", " DESC", " NULLS FIRST", " DESC NULLS FIRST"]))
    order = ", ".join(f"{name}{way if draw(st.integers(0, 4)) else ' DESC'}" for name in names)
    text = f"SELECT * FROM t{' WHERE ' * bool(where)}{where} ORDER BY {order}"
    if draw(st.integers(0, 4)):
        text += f" LIMIT {draw(st.integers(0, 4))}"
        if draw(st.integers(0, 3)) == 0:
            text += " OFFSET ?"
            given = [*given, draw(st.integers(0, 2))]
    return text, given


@st.composite
def selects(draw: Any, table: Table) -> tuple[str, list[Any]]:
    where, given = draw(lookups(table))
    shape = draw(st.integers(0, 4))
    if shape == 0:
        return f"SELECT * FROM t WHERE {where}", given
    if shape == 1:
        return f"SELECT count(*), min(k), max(k) FROM t WHERE {where}", given
    if shape == 2:
        name = draw(st.sampled_from(list(table.columns)))
        return f"SELECT {name}, count(*) AS n FROM t AS x WHERE {where} GROUP BY {name}", given
    if shape == 3:
        return (
            f"SELECT x.k, y.k FROM t AS x JOIN t AS y ON x.k = y.k WHERE x.k IN (SELECT k FROM t WHERE {where})",
            given,
        )
    name = draw(st.sampled_from(list(table.columns)))
    text, more = draw(scalars(table, name))
    return f"SELECT k, {text} AS value FROM t WHERE {where}", more + given


@st.composite
def updates(draw: Any, table: Table) -> tuple[str, list[Any]]:
    names = draw(st.lists(st.sampled_from([n for n in table.columns if n not in table.key]), min_size=1, unique=True))
    sets, given = [], []
    for name in names:
        text, more = draw(scalars(table, name))
        sets.append(f"{name} = {text}")
        given += more
    where, more = draw(lookups(table))
    return f"UPDATE t SET {', '.join(sets)} WHERE {where}{draw(returnings(table))}", given + more


@st.composite
def returnings(draw: Any, table: Table) -> str:
    return draw(st.sampled_from(["", " RETURNING *", f" RETURNING {', '.join(table.key)}"]))  # type: ignore[no-any-return]


@st.composite
def inserts(draw: Any, table: Table) -> tuple[str, list[Any]]:
    names = [n for n in table.columns if n in table.key or draw(st.booleans())]
    given: list[Any] = []
    rows = []
    shape = draw(st.integers(0, 3))
    # DuckDB's DO NOTHING takes NULLs in a UNIQUE column for equal, within one statement, and drops rows
    most = 1 if shape == 1 and table.unique else 3
    for _ in range(draw(st.integers(1, most))):
        cells = []
        for name in names:
            if shape in {1, 2} and name in table.key:  # a NULL key is refused here, but ignored by DuckDB at times
                text, more = "?", [draw(value(table, name))]
            else:
                text, more = ("DEFAULT", []) if draw(st.integers(0, 9)) == 0 else draw(operands(table, name))
            cells.append(text)
            given += more
        rows.append(f"({', '.join(cells)})")
    text = f"INSERT INTO t ({', '.join(names)}) VALUES {', '.join(rows)}"
    if shape == 1:
        text += " ON CONFLICT DO NOTHING"
    elif shape == 2:
        name = draw(st.sampled_from([n for n in table.columns if n not in table.key]))
        new, more = draw(scalars(table, name, "t."))
        new = draw(st.sampled_from([new, f"excluded.{name}"])) if not more else new
        text += f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {name} = {new}"
        given += more
    return text + draw(returnings(table)), given


@st.composite
def deletes(draw: Any, table: Table) -> tuple[str, list[Any]]:
    where, given = draw(lookups(table))
    return f"DELETE FROM t WHERE {where}{draw(returnings(table))}", given


@st.composite
def scenarios(draw: Any) -> tuple[Table, list[list[tuple[Any, ...]]], list[tuple[str, list[Any]]]]:
    table = draw(tables())
    row = st.tuples(*[value(table, name) for name in table.columns])
    layers = [draw(st.lists(row, max_size=4)) for _ in range(3)]
    statement = st.one_of(selects(table), selects(table), firsts(table), updates(table), inserts(table), deletes(table))
    return table, layers, draw(st.lists(statement, min_size=1, max_size=4))


def outcome(run: Any, *arguments: Any) -> tuple[str, Any]:
    try:
        return "rows", comparable(run(*arguments))
    except (TidegateError, duckdb.Error) as error:
        return "failed", str(error)


def upsert(view: Any, row: Any) -> list[Any]:
    return [view.upsert("t", row)]


def comparable(rows: Any) -> list[Any]:
    return sorted((tuple(normal(v) for v in row) for row in rows), key=repr)


def in_order(table: pa.Table) -> list[Any]:
    return [normal(column.to_pylist()) for column in table.columns]


def normal(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return tuple(normal(part) for part in item)
    if isinstance(item, float):
        return "nan" if math.isnan(item) else item + 0.0
    return item


class Plain:
    """DuckDB itself, on a real table."""

    def __init__(self, ddl: str) -> None:
        self.connection = duckdb.connect(config={"threads": "1"})
        self.connection.execute(ddl)

    def run(self, sql: str, given: list[Any]) -> list[Any]:
        bound = [list(v) if isinstance(v, tuple) else v for v in given]
        cursor = self.connection.execute(sql, bound)
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
        return [] if names == ["Count"] and not sql.startswith("SELECT") else rows

    def load(self, rows: list[Any]) -> None:
        self.connection.execute("DELETE FROM t")
        for row in rows:
            self.run(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", list(row))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_same_answer_by_row_access_by_duckdb_and_in_plain_duckdb(scenario: Any) -> None:
    compare_paths(scenario)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_same_answer_many_times(scenario: Any) -> None:
    compare_paths(scenario)


def compare_paths(scenario: Any) -> None:
    table, layers, statements = scenario
    stores = [Store(table.ddl), Store(table.ddl)]
    plain = Plain(table.ddl)
    try:
        views = []
        for store in stores:
            for depth, rows in enumerate(layers):
                view = store.view()
                for row in rows:
                    outcome(upsert, view, row)
                if depth < 2:
                    store.commit(view)
                if depth == 0:
                    store.merge()
            views.append(view)
        plain.load(views[0].scan("t"))
        for sql, given_values in statements:
            results = [
                outcome(store.run, sql, tuple(given_values), view, compiled)
                for store, view, compiled in zip(stores, views, (True, False), strict=True)
            ]
            results.append(outcome(plain.run, sql, given_values))
            if " LIMIT " in sql:  # which of equal rows are the first is for us to define
                results[2] = results[1]
            kinds = {kind for kind, _ in results}
            assert len(kinds) == 1, (table.ddl, sql, given_values, results)
            if kinds == {"failed"}:
                continue
            assert results[0] == results[1] == results[2], (table.ddl, sql, given_values)
            if sql.startswith("SELECT"):
                for _ in range(2):  # from the second time on DuckDB has it prepared
                    assert outcome(stores[1].run, sql, tuple(given_values), views[1], False) == results[0]
                by_rows, by_duckdb = (
                    store.prepare(sql, compiled).arrow(view, tuple(given_values))
                    for store, view, compiled in zip(stores, views, (True, False), strict=True)
                )
                assert by_rows.schema.equals(by_duckdb.schema, check_metadata=True), (table.ddl, sql, given_values)
                assert in_order(by_rows) == in_order(by_duckdb), (table.ddl, sql, given_values)
            contents = [comparable(view.scan("t")) for view in views] + [comparable(plain.run("SELECT * FROM t", []))]
            assert contents[0] == contents[1] == contents[2], (table.ddl, sql, given_values)
    finally:
        for store in stores:
            store.close()
        plain.connection.close()
