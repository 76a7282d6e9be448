"""Ranges of an index and the first rows in its order: row access and DuckDB agree, whoever reads and wherever rows are."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from stores import Store

from tidegate.storage.sql import ranges

DDL = """CREATE TABLE t (k INTEGER PRIMARY KEY, a INTEGER NOT NULL, b INTEGER, seen TIMESTAMP NOT NULL);
CREATE INDEX by_b ON t (b); CREATE INDEX by_a_at ON t (a, seen)"""
START = dt.datetime(2024, 1, 1)
STATEMENTS: list[tuple[str, str]] = [
    ("SELECT k FROM t WHERE b < ?", "index range"),
    ("SELECT * FROM t WHERE b BETWEEN ? AND 7", "index range"),
    ("SELECT k, seen FROM t WHERE a = ? AND seen >= TIMESTAMP '2024-01-01 00:00:03'", "index range"),
    ("SELECT count(*) FROM t WHERE b > ? AND k <> 3", "index range"),
    ("SELECT k FROM t WHERE a = ? AND b IS NULL", "index range"),
    ("SELECT k FROM t WHERE ? < b ORDER BY b DESC, k DESC", "index range"),
    ("SELECT * FROM t WHERE a = ? ORDER BY seen LIMIT 2", "index order"),
    ("SELECT k, b AS a FROM t WHERE a >= ? ORDER BY t.a DESC, seen DESC LIMIT 3 OFFSET 1", "index order"),
    ("SELECT k FROM t WHERE b > ? ORDER BY b LIMIT 3", "index order"),
    ("SELECT k FROM t WHERE a = ? ORDER BY b NULLS FIRST LIMIT 3", "index range"),
    ("SELECT k, seen FROM t WHERE a = ? AND seen < now() - INTERVAL 2 SECONDS", "index range"),
]


class Both:
    """Two stores that are given the same, one asked by row access and one through DuckDB."""

    def __init__(self, **options: Any) -> None:
        self.stores = Store(DDL, **options), Store(DDL, **options)
        self.views: list[tuple[Any, Any]] = []

    def change(self, dice: random.Random, keep: bool) -> None:
        views = tuple(store.view() for store in self.stores)
        self.write(views, dice)
        for store, view in zip(self.stores, views, strict=True):
            store.commit(view, keep_older=keep)

    def write(self, views: Any, dice: random.Random) -> None:
        for _ in range(dice.randrange(1, 5)):
            key, gone = dice.randrange(20), dice.random() < 0.25
            row = (
                key,
                dice.randrange(3),
                dice.choice([None, *range(10)]),
                START + dt.timedelta(seconds=dice.randrange(6)),
            )
            for view in views:
                view.delete("t", key) if gone else view.upsert("t", row)

    def compare(self, views: Any, dice: random.Random) -> None:
        for sql, path in STATEMENTS:
            given = (dice.choice([None, *range(9)]),) if "?" in sql else ()
            answers = []
            for store, view, compiled in zip(self.stores, views, (True, False), strict=True):
                statement = store.prepare(sql, compiled)
                assert statement.path == (path if compiled else "duckdb"), sql
                answers.append([tuple(row) for row in statement.run(view, given)])
            assert answers[0] == answers[1], (sql, given)

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.fixture(params=[{}, {"cached_rows": 7}], ids=["in memory", "evicted"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(**request.param)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_older_readers_own_writes_merges_and_evictions(both: Both, seed: int) -> None:
    dice = random.Random(seed)
    older: list[Any] = []
    for _ in range(12):
        both.change(dice, keep=bool(older))
        choice = dice.randrange(4)
        if choice == 0:
            older.append(tuple(store.view() for store in both.stores))
        elif choice == 1:
            for store in both.stores:
                store.merge(*(views[0].position for views in older))
                store.database.tables["t"].check([views[0].position for views in older])
    mine = tuple(store.view() for store in both.stores)
    both.write(mine, dice)
    both.write(mine, dice)
    for views in [*older, mine]:
        both.compare(views, dice)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM t WHERE b <= 4 RETURNING k",
        "UPDATE t SET b = b + 1 WHERE b BETWEEN 2 AND 6",
        "UPDATE t SET seen = seen + INTERVAL 1 MINUTE WHERE a = 1 AND seen > TIMESTAMP '2024-01-01 00:00:02' RETURNING *",
    ],
)
def test_changes_of_a_range(both: Both, sql: str) -> None:
    dice = random.Random(sql)
    for _ in range(8):
        both.change(dice, keep=False)
    both.stores[0].merge()
    assert both.stores[0].prepare(sql).path == "index range"
    found = [sorted(store.run(sql, compiled=n == 0)) for n, store in enumerate(both.stores)]
    assert found[0] == found[1]
    assert both.stores[0].rows("t") == both.stores[1].rows("t")
    both.stores[0].database.tables["t"].check()


def test_a_partition_has_its_own_rows_only() -> None:
    store = Store(
        "CREATE TABLE t (p INTEGER, k INTEGER, v INTEGER, PRIMARY KEY (p, k)); CREATE INDEX by_v ON t (v)",
        partition_by=("p",),
    )
    view = store.view()
    for key in range(20):
        view.insert("t", (key % 2, key, 20 - key))
    store.commit(view)
    mine = store.view(by_key=(1,))
    mine.insert("t", (1, 100, 3))
    first = store.run("SELECT k FROM t WHERE v > 0 ORDER BY v LIMIT 3", (), mine)
    assert [row.k for row in first] == [19, 17, 100]
    assert store.run("DELETE FROM t WHERE v < 6", (), mine).count == 4
    store.commit(mine)
    assert len(store.rows("t")) == 20 - 3
    store.close()


def test_a_large_range_is_left_to_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MOST", 5)
    store = Store(DDL)
    view = store.view()
    for key in range(20):
        view.insert("t", (key, 0, key, START))
    store.commit(view)
    for sql in ("SELECT k FROM t WHERE b >= 2", "SELECT k FROM t WHERE a = 0 AND b > 2 AND k > 15 ORDER BY b LIMIT 2"):
        assert [row.k for row in store.run(sql)] == [row.k for row in store.run(sql, compiled=False)]
    assert store.run("DELETE FROM t WHERE b >= 2").count == 18
    store.close()


def test_the_order_is_right_while_another_thread_changes_rows() -> None:
    """The reader starts the order while values come and go; it must miss none that were there all the time."""
    store = Store(DDL)
    view = store.view()
    for key in range(0, 2_000, 2):
        view.insert("t", (key, 0, key, START))
    store.commit(view)
    stop = threading.Event()

    def change() -> None:
        dice = random.Random(1)
        while not stop.is_set():
            view = store.view()
            key = dice.randrange(1, 2_000, 2)
            view.upsert("t", (key, 0, key, START)) if dice.random() < 0.6 else view.delete("t", key)
            store.commit(view, keep_older=True)

    thread = threading.Thread(target=change)
    statement = store.prepare("SELECT k FROM t WHERE b >= 100 ORDER BY b LIMIT 300")
    reader = store.view(position=10**9)
    thread.start()
    try:
        for _ in range(30):
            found = [row.k for row in statement.run(reader)]
            assert found == sorted(found)
            assert set(range(100, found[-1], 2)) <= set(found)
    finally:
        stop.set()
        thread.join()
    store.database.tables["t"].check()
    store.close()
