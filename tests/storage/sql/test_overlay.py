"""Queries over base ∪ overlay: at old positions, in one partition, under a merge, in any physical order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from stores import Store

from tidegate.errors import AccessError

BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "duckdb"])


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER, w DOUBLE); CREATE INDEX by_v ON t (v)")
    yield made
    made.close()


def total(store: Store, **view: Any) -> Any:
    return store.run("SELECT sum(v) FROM t", view=store.view(**view)).scalar()


def test_base_versions_and_own_writes_are_one_table(store: Store) -> None:
    store.run("INSERT INTO t (k, v) VALUES (1, 1), (2, 10), (3, 100)")
    store.merge()
    store.run("UPDATE t SET v = 20 WHERE k = 2")
    store.run("DELETE FROM t WHERE k = 1")
    view = store.view()
    assert store.run("SELECT k, v FROM t ORDER BY k DESC", view=view) == [(3, 100), (2, 20)]
    view.update("t", 3, v=300)
    view.insert("t", (1, 5, None))
    view.delete("t", 2)
    assert store.run("SELECT k, v FROM t", view=view) == [(1, 5), (3, 300)]
    assert store.run("SELECT k, v FROM t", view=store.view()) == [(2, 20), (3, 100)]


def test_an_old_position_reads_its_own_state_after_a_merge(store: Store) -> None:
    store.run("INSERT INTO t (k, v) VALUES (1, 1), (2, 10)")
    store.merge()
    old = store.view(position=5)
    for position, sql in (
        (6, "UPDATE t SET v = 7 WHERE k = 1"),
        (7, "DELETE FROM t WHERE k = 2"),
        (8, "INSERT INTO t VALUES (3, 0, 0)"),
    ):
        view = store.view(position=position)
        store.run(sql, view=view)
        store.commit(view, keep_older=True)
    before = [(1, 1), (2, 10)]
    assert store.run("SELECT k, v FROM t", view=old) == before
    store.merge(5)
    assert store.run("SELECT k, v FROM t", view=old) == before
    assert store.run("SELECT k, v FROM t WHERE v = 10", view=old) == [(2, 10)]
    assert store.run("SELECT k, v FROM t", view=store.view(position=9)) == [(1, 7), (3, 0)]


@BOTH
def test_access_by_key_sees_one_partition(compiled: bool) -> None:
    store = Store(
        "CREATE TABLE t (patient INTEGER, k INTEGER, v INTEGER, PRIMARY KEY (patient, k)); CREATE INDEX by_v ON t (v)",
        partition_by=("patient",),
    )
    store.run("INSERT INTO t VALUES (1, 1, 5), (1, 2, 5), (2, 1, 5)")
    store.merge()
    store.run("INSERT INTO t VALUES (1, 3, 5), (2, 3, 5)")
    view = store.view(by_key=(1,))
    assert store.run("SELECT count(*) FROM t", view=view, compiled=compiled).scalar() == 3
    assert store.run("SELECT count(*) FROM t WHERE v = 5", view=view, compiled=compiled).scalar() == 3
    assert store.run("UPDATE t SET v = 6 WHERE v = 5", view=view, compiled=compiled).count == 3
    with pytest.raises(AccessError, match="partition"):
        store.run("INSERT INTO t VALUES (2, 9, 9)", view=view, compiled=compiled)
    assert {key[0] for key in view.writes["t"]} == {1}
    store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(w), avg(w), stddev(w), first(k), string_agg(k::VARCHAR, ','), list(w), arg_max(k, v) FROM t",
        "SELECT v, sum(w * 0.1) FROM t GROUP BY v",
        "SELECT k FROM t LIMIT 5",
        "SELECT k FROM t ORDER BY v LIMIT 5",
        "SELECT * FROM t ORDER BY v DESC",
        "SELECT count(*), sum(k) FROM (SELECT * FROM t ORDER BY v LIMIT 7)",
        "SELECT sum(DISTINCT w), sum(w) FILTER (WHERE k > 3) FROM t",
        "SELECT DISTINCT ON (v) v, k FROM t",
        "SELECT any_value(k), last(k ORDER BY v), any_value(w ORDER BY v) FROM t",
    ],
)
def test_answers_do_not_depend_on_the_physical_order_of_rows(sql: str) -> None:
    dice = random.Random(7)
    rows = [(k, k % 3, dice.uniform(-1, 1) * 10 ** dice.randint(-8, 12)) for k in range(300)]
    answers = set()
    for seed in range(4):
        store = Store("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER, w DOUBLE)")
        shuffled = list(rows)
        random.Random(seed).shuffle(shuffled)
        cut = [0, 100, 200, 300][seed]
        view = store.view()
        for row in shuffled[:cut]:
            view.insert("t", row)
        store.commit(view)
        store.merge()
        view = store.view()
        for row in shuffled[cut:]:
            view.insert("t", row)
        answers.add(repr(store.run(sql, view=view)))
        store.close()
    assert len(answers) == 1


def test_a_reader_under_a_merge_sees_every_row_once(store: Store) -> None:
    """A merge moves rows from memory to the base; readers in another thread must never see one twice or not
    at all.
    """
    store.database.concurrent = True
    view = store.view()
    for k in range(50):
        view.insert("t", (k, 1, 0.0))
    store.commit(view)
    query = store.prepare("SELECT count(*), sum(v) FROM t")
    reader_position = 1_000_000
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(tuple(query.run(store.view(position=reader_position)).one()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(40):
            view = store.view()
            for k in range(50):
                view.update("t", k, w=float(k))
            store.commit(view)
            store.merge()
    finally:
        stop.set()
        thread.join()
    assert set(seen) == {(50, 50)}
    assert len(seen) > 3


def test_a_table_too_large_for_memory() -> None:
    store = Store(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER UNIQUE); CREATE INDEX by_v ON t (v)", cached_rows=10
    )
    store.run("INSERT INTO t SELECT i, i * 2 FROM range(100) r(i)")
    store.merge()
    assert not store.database.tables["t"].complete
    assert store.run("SELECT k FROM t WHERE v = 84").scalar() == 42
    assert store.run("SELECT v FROM t WHERE k = 77").scalar() == 154
    assert store.run("UPDATE t SET v = v + 1000").count == 100
    assert store.run("SELECT count(*), min(v) FROM t").one() == (100, 1000)
    store.close()
