"""Access to one partition: a key of another one is refused, whichever way it is touched and wherever its row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stores import Store

from tidegate.errors import AccessError, ConstraintError
from tidegate.storage.readers import PartitionReader, Reader
from tidegate.storage.view import View

SINGLE = "CREATE TABLE t (p INTEGER PRIMARY KEY, v INTEGER)"
WIDE = "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER, PRIMARY KEY (k, p))"
GUARDED = "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER CHECK (v < 100), PRIMARY KEY (k, p), UNIQUE (p, v))"
TABLES = {"single": SINGLE, "wide": WIDE, "guarded": GUARDED}

Use = Callable[[Store, View, Any], Any]


def key_of(store: Store, p: Any) -> Any:
    return p if len(store.tables["t"].primary_key) == 1 else (7, p)


def row_of(store: Store, p: Any, v: int) -> tuple[Any, ...]:
    return (p, v) if len(store.tables["t"].primary_key) == 1 else (7, p, v)


def where(store: Store) -> str:
    return "p = $p" if len(store.tables["t"].primary_key) == 1 else "k = 7 AND p = $p"


def by_sql(text: str, compiled: bool = True) -> Use:
    def use(store: Store, view: View, p: Any) -> Any:
        values = ", ".join(map(str, row_of(store, p, 9)))
        sql = text.format(where=where(store), values=values)
        return store.run(sql, {"p": p} if "$p" in sql else (), view, compiled)

    return use


USES: dict[str, Use] = {
    "get": lambda store, view, p: view.get("t", key_of(store, p)),
    "get, by a number of numpy": lambda store, view, p: view.get("t", key_of(store, np.int64(p))),
    "insert": lambda store, view, p: view.insert("t", row_of(store, p, 9)),
    "upsert": lambda store, view, p: view.upsert("t", row_of(store, p, 9)),
    "update": lambda store, view, p: view.update("t", key_of(store, p), v=9),
    "update again": lambda store, view, p: [view.update("t", key_of(store, q), v=9) for q in (1, p)],
    "update_each": lambda store, view, p: view.update_each("t", [key_of(store, 1), key_of(store, p)], v=9),
    "update_each, computed": lambda store, view, p: view.update_each("t", [key_of(store, p)], v=lambda row: row.v + 1),
    "delete": lambda store, view, p: view.delete("t", key_of(store, p)),
    "compiled SELECT": by_sql("SELECT v FROM t WHERE {where}"),
    "compiled UPDATE": by_sql("UPDATE t SET v = 9 WHERE {where}"),
    "compiled DELETE": by_sql("DELETE FROM t WHERE {where}"),
    "compiled INSERT": by_sql("INSERT INTO t VALUES ({values})"),
    "compiled upsert": by_sql("INSERT INTO t VALUES ({values}) ON CONFLICT DO NOTHING"),
    "DuckDB INSERT": by_sql("INSERT INTO t VALUES ({values})", compiled=False),
    "DuckDB INSERT … SELECT": by_sql("INSERT INTO t SELECT {values}", compiled=False),
    "DuckDB upsert": by_sql("INSERT INTO t VALUES ({values}) ON CONFLICT DO NOTHING", compiled=False),
}


def in_memory(store: Store) -> None:
    """As it comes."""


def merged(store: Store) -> None:
    store.merge()


def evicted(store: Store) -> None:
    merged(store)
    store.database.tables["t"].evict(0)
    assert not store.database.tables["t"].complete


def with_chains(store: Store) -> None:
    if store.database.tables["t"].chains:
        return
    newer = store.view(position=1_000)
    for p in (1, 2):
        newer.upsert("t", row_of(store, p, 50 + p))
    store.commit(newer, keep_older=True)


PLACES = [in_memory, merged, evicted, with_chains]


def filled(ddl: str, *partitions: int) -> Store:
    store = Store(ddl, partition_by=("p",))
    view = store.view()
    for p in partitions:
        view.insert("t", row_of(store, p, p))
    store.commit(view)
    return store


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLES)
def test_another_partition_is_refused(kind: str, place: Callable[[Store], None]) -> None:
    store = filled(TABLES[kind], 1, 2)
    for name, use in USES.items():
        for p in (2, 3):  # with a row, and without
            place(store)
            view = store.view(by_key=(1,))
            with pytest.raises(AccessError, match="works on partition") as refused:
                print(name, p, "gave", use(store, view, p))
            assert str(refused.value) == (
                f"procedure query works on partition (1,) of t (p), but touched key {key_of(store, p)!r}; declare the whole "
                f"table (reads=['t'] or writes=['t']) if it needs other partitions"
            ), name
            assert key_of(store, p) not in view.writes.get("t", {}), name
    store.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("partitions", [(1, 2), (2,)])
def test_the_own_partition_is_served_as_the_whole_table_is(
    partitions: tuple[int, ...], kind: str, place: Callable[[Store], None]
) -> None:
    """The same answer and the same write set, or the same refusal, as with access to all rows."""
    store = filled(TABLES[kind], *partitions)
    for name, use in USES.items():
        told = []
        for by_key in (None, (1,)):
            place(store)
            view = store.view(by_key=by_key)
            try:
                answer = use(store, view, 1)
            except ConstraintError as error:
                answer = str(error)
            told.append((answer, view.writes, view.get("t", key_of(store, 1))))
        assert told[0] == told[1], name
    store.close()


@pytest.mark.parametrize("place", PLACES)
def test_what_finds_rows_finds_those_of_the_partition(place: Callable[[Store], None]) -> None:
    store = filled(f"{WIDE}; CREATE INDEX by_v ON t (v)", 1, 2)
    place(store)
    view = store.view(by_key=(1,))
    view.insert("t", (8, 1, 1))
    assert view.scan("t") == view.scan("t", v=1) == [(7, 1, 1), (8, 1, 1)]
    assert view.count("t") == view.count("t", v=1) == 2
    assert view.scan("t", v=2) == []
    assert view.count("t", v=2) == 0
    for compiled in (True, False):
        assert store.run("SELECT k FROM t WHERE v = 2", view=view, compiled=compiled) == []
        assert store.run("SELECT k FROM t WHERE v = 1", view=view, compiled=compiled) == [(7,), (8,)]
    assert store.run("UPDATE t SET v = v + 10", view=view).count == 2
    assert view.delete_where("t", v=11) == 2
    assert store.run("DELETE FROM t", view=view).count == 0
    store.close()


@pytest.mark.parametrize("use", ["get", "update", "delete", "update_each", "compiled SELECT", "compiled UPDATE"])
@pytest.mark.parametrize("deleted", [False, True])
def test_what_another_member_of_a_nested_transaction_wrote_is_refused_too(use: str, deleted: bool) -> None:
    """The members share their write set, but each has the access that it declared."""
    store = filled(WIDE, 1)
    table = store.database.tables["t"]
    view = store.view()
    view.insert("t", (7, 2, 5))
    if deleted:
        view.delete("t", (7, 2))
    view.access, view.partitions = {"t": PartitionReader(table, write=True)}, {"t": (1,)}
    with pytest.raises(AccessError, match="works on partition"):
        USES[use](store, view, 2)
    assert view.get("t", (7, 1)) == (7, 1, 1)
    view.access = {"t": Reader(table, write=False)}
    assert view.get("t", (7, 2)) == (None if deleted else (7, 2, 5))
    store.close()


def test_own_writes_are_read_and_changed_again() -> None:
    store = filled(WIDE, 1)
    view = store.view(by_key=(1,))
    view.update("t", (7, 1), v=2)
    assert view.get("t", (7, 1)) == (7, 1, 2)
    view.update("t", (7, 1), v=view.get("t", (7, 1)).v + 1)
    assert view.update_each("t", [(7, 1), (7, 1)], v=lambda row: row.v + 1) == [(7, 1, 4), (7, 1, 5)]
    assert view.delete("t", (7, 1))
    assert view.get("t", (7, 1)) is None
    assert view.update("t", (7, 1), v=1) is None
    assert view.insert("t", (7, 1, 6)) == (7, 1, 6)
    store.commit(view)
    assert store.rows("t") == [(7, 1, 6)]
    store.close()
