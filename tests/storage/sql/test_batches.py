"""Statements over a batch give the same row by row and in DuckDB: the same rows, the same writes, the same failures."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from stores import Store

from tidegate.errors import AccessError, TidegateError
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.sql import batches

COLUMNS = "i INTEGER, n BIGINT NOT NULL, x DOUBLE, d DECIMAL(9, 2), s VARCHAR, o BOOLEAN, tm TIMESTAMP, f FLOAT"
TABLES = (
    "CREATE TABLE k (id BIGINT PRIMARY KEY, name VARCHAR, w DOUBLE, o BOOLEAN)",
    "CREATE TABLE c (a INTEGER, s VARCHAR, v INTEGER, PRIMARY KEY (a, s))",
    "CREATE TABLE t (id BIGINT PRIMARY KEY, v INTEGER NOT NULL, s VARCHAR DEFAULT 'x', r DOUBLE DEFAULT random(),"
    " x DECIMAL(6, 1))",
)
VALUES = (
    "i", "n", "x", "d", "s", "b.o", "tm", "f", "i + 1", "n * n", "n - i", "x * 2.5e0", "x / i", "-i", "d + 1", "d * d",
    "s || 'z'", "'lit'", "NULL", "7", "i = n", "coalesce(i, n)", "coalesce(s, 'none')", "CAST(i AS DOUBLE)",
    "CASE WHEN i > 2 THEN 'big' WHEN i IS NULL THEN 'none' ELSE s END", "CASE WHEN x > 0 THEN x END",
    "CAST(n AS INTEGER)", "n BETWEEN 2 AND 5", "i IN (1, 2, NULL)", "upper(s)", "now()", "n % 3",
)  # fmt: skip
CONDITIONS = (
    "n > 3", "x > 25", "i = 2", "i <> n", "s < 'b'", "s = 'a' OR b.o", "NOT b.o", "i IS NULL", "x <= 0 AND d > 1.5", "d = 1",
    "tm > TIMESTAMP '2024-01-02'", "n + i < 6", "x = x", "CASE WHEN b.o THEN n = 1 ELSE i = 2 END", "length(s) = 1",
)  # fmt: skip
JOINS = (
    ("", ()),
    ("JOIN k ON k.id = b.n", ("k.name", "w", "k.w * x", "k.*")),
    ("LEFT JOIN k ON b.i = k.id", ("k.name", "w", "coalesce(w, 0)", "id")),
    ("LEFT JOIN k ON k.id = n + 1 AND k.w > 1 JOIN c ON c.a = i AND c.s = b.s", ("v", "name", "*", "c.v + n")),
    ("JOIN c ON c.a = b.i AND c.s = 'a' AND v > b.n", ("v", "c.s")),
    ("JOIN k ON k.o = b.o", ("k.id",)),
)
INSERTS = (
    "INSERT INTO t (id, v) SELECT n, i FROM b",
    "INSERT INTO t (id, v, s) SELECT n, i, s FROM b WHERE i IS NOT NULL ON CONFLICT DO NOTHING RETURNING *",
    "INSERT INTO t (v, id, x) SELECT 1, n, d FROM b ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v, x = excluded.x",
    "INSERT INTO t (id, v, s) SELECT k.id, n, name FROM b JOIN k ON k.id = b.i WHERE w > 0 RETURNING id, v",
    "INSERT OR REPLACE INTO t (id, v) SELECT n, CASE WHEN x > 0 THEN 1 ELSE 0 END FROM b",
    "INSERT INTO t SELECT n, i, s, x, d FROM b WHERE x IS NOT NULL ON CONFLICT DO NOTHING",
    "INSERT INTO t (id, v) SELECT n, n * 1000000000 FROM b ON CONFLICT DO NOTHING",
)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store(*TABLES)
    made.relation("b", COLUMNS)
    view = made.view()
    for key in range(6):
        view.insert("k", (key, f"name {key}", (None, 0.5, 1.5, math.nan)[key % 4], (True, False, None)[key % 3]))
        view.insert("c", (key, "ab"[key % 2], key * 3 if key != 3 else None))
        view.insert("t", (key * 2, key, None, 0.5, None))
    made.commit(view)
    yield made
    made.close()


def some_rows(dice: random.Random) -> tuple[Any, ...]:
    return tuple(
        (
            dice.choice((None, 0, 1, 2, 3, 2**31 - 1)),
            dice.choice((0, 1, 2, 3, 4, 9, 2**40, -(2**62))),
            dice.choice((None, 0.0, -0.0, 30.5, -7.25, math.nan, 1e300)),
            dice.choice((None, Decimal("1.00"), Decimal("-2.50"), Decimal("9999999.99"))),
            dice.choice((None, "a", "b", "", "é", "zz")),
            dice.choice((None, True, False)),
            dice.choice((None, dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 3, 4, 5, 6, 7))),
            dice.choice((None, 1.5, -2.25)),
        )
        for _ in range(dice.choice((0, 1, 1, 2, 5)))
    )


def some_select(dice: random.Random) -> str:
    join, more = dice.choice(JOINS)
    listed = dice.sample([*VALUES, *more, *more, *more], dice.randint(1, 3))
    listed = ["*"] if "*" in listed or dice.random() < 0.1 else [f"{text}" for text in listed]
    names = [text if "*" in text and text[-1] == "*" else f"{text} AS v{place}" for place, text in enumerate(listed)]
    where = f" WHERE {dice.choice(CONDITIONS)}" if dice.random() < 0.6 else ""
    return f"SELECT {', '.join(names)} FROM b {join}{where}"


def outcome(store: Store, statement: Any, rows: Any, position: int) -> Any:
    view = store.view(position)
    view.relations = {"b": (store.relations["b"], rows)}
    try:
        found = statement.run(view)
    except TidegateError as error:
        return type(error).__name__, str(error)
    return [tuple(map(normal, row)) for row in found], found.count, normal_writes(view.writes)


def normal(value: Any) -> Any:
    return ("float", repr(value + 0.0)) if isinstance(value, float) else (type(value).__name__, value)


def normal_writes(writes: Any) -> Any:
    return [
        (table, key, row and tuple(map(normal, row))) for table, rows in writes.items() for key, row in rows.items()
    ]


def compare(store: Store, seed: int, statements: int) -> set[str]:
    dice = random.Random(seed)
    relation = store.relations["b"]
    paths = set()
    for number in range(statements):
        sql = INSERTS[number] if number < len(INSERTS) else some_select(dice)
        try:
            compiled, plain = store.prepare(sql), store.prepare(sql, compiled=False)
        except TidegateError:  # an ambiguous name, or types that can't be compared
            continue
        paths.add(compiled.path)
        assert plain.path == "duckdb"
        for _ in range(4):
            rows: Any = tuple(relation.conform_all(list(some_rows(dice))))
            store.position = position = store.position + 1
            wanted = outcome(store, plain, rows, position)
            assert outcome(store, compiled, rows, position) == wanted, (sql, rows)
            if rows:
                assert outcome(store, compiled, ColumnRows.of_rows(relation, rows), position) == wanted, (sql, rows)
    return paths


def test_row_by_row_and_in_duckdb(store: Store) -> None:
    assert compare(store, 1, 45) == {"batch", "duckdb"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 42))
def test_row_by_row_and_in_duckdb_many_times(store: Store, seed: int) -> None:
    compare(store, seed, 100)


def test_large_batches_go_to_duckdb(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = store.prepare("SELECT n FROM b WHERE n > 1")
    assert statement.explain() == "select: row by row over the batch; DuckDB from 2,000 rows on (from b)"
    asked: list[int] = []
    assert statement._query is not None
    whole = statement._query.rows
    monkeypatch.setattr(statement._query, "rows", lambda *given: asked.append(1) or whole(*given))
    view = store.view()
    for count in (batches.MANY - 1, batches.MANY):
        rows = store.relations["b"].conform_all([(1, n, None, None, None, None, None, None) for n in range(count)])
        view.relations = {"b": (store.relations["b"], tuple(rows))}
        assert len(statement.run(view)) == count - 2
    assert asked == [1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM b",
        "SELECT n FROM b ORDER BY n LIMIT 1",
        "SELECT DISTINCT n FROM b",
        "SELECT b.n FROM b JOIN b AS other ON b.n = other.n",
        "SELECT k.w FROM k JOIN b ON b.n = k.id",
        "SELECT b.n FROM b RIGHT JOIN k ON k.id = b.n",
        "SELECT b.n FROM b JOIN k ON k.name = b.s",
        "SELECT n FROM b WHERE n IN (SELECT id FROM k)",
    ],
)
def test_what_is_left_to_duckdb(store: Store, sql: str) -> None:
    assert store.prepare(sql).path == "duckdb"


@pytest.mark.parametrize("compiled", [True, False])
def test_lookups_stay_inside_the_partition(compiled: bool) -> None:
    store = Store(
        "CREATE TABLE p (part INTEGER, id INTEGER, v INTEGER, PRIMARY KEY (part, id))", partition_by=("part",)
    )
    relation = store.relation("b", "part INTEGER, id INTEGER")
    store.run("INSERT INTO p VALUES (1, 1, 11), (2, 1, 21)")
    view = store.view(by_key=(1,))
    view.relations = {"b": (relation, tuple(relation.conform_all([(1, 1), (2, 1), (None, 1)])))}
    text = "SELECT b.part, v FROM b LEFT JOIN p ON p.part = b.part AND p.id = b.id"
    statement = store.prepare(text, compiled=compiled)
    assert statement.path == ("batch" if compiled else "duckdb")
    with pytest.raises(AccessError, match="asked for rows with part = 2"):
        statement.run(view)
    statement = store.prepare(f"{text} AND b.part = 1", compiled=compiled)
    assert [tuple(row) for row in statement.run(view)] == [(1, 11), (2, None), (None, None)]
    statement = store.prepare(f"{text} AND b.part < 2", compiled=compiled)
    assert [tuple(row) for row in statement.run(view)] == [(1, 11), (2, None), (None, None)]
    store.close()
