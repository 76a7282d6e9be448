"""Access to some partitions: a key of another one is refused, whichever way it is touched and wherever its row is."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from stores import Store

from tidegate.errors import AccessError, ConstraintError
from tidegate.storage.readers import Reader
from tidegate.storage.view import View

SINGLE = "CREATE TABLE t (p INTEGER PRIMARY KEY, v INTEGER)"
WIDE = "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER, PRIMARY KEY (k, p))"
GUARDED = "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER CHECK (v < 100), PRIMARY KEY (k, p), UNIQUE (p, v))"
COMPOSITE = "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER, PRIMARY KEY (p, k))"
GUARDED_COMPOSITE = (
    "CREATE TABLE t (k INTEGER, p INTEGER, v INTEGER CHECK (v < 100), PRIMARY KEY (k, p), UNIQUE (k, p, v))"
)
TABLES = {
    "single": (SINGLE, ("p",)),
    "wide": (WIDE, ("p",)),
    "guarded": (GUARDED, ("p",)),
    "composite": (COMPOSITE, ("k", "p")),
    "guarded composite": (GUARDED_COMPOSITE, ("k", "p")),
}

Use = Callable[[Store, View, Any], Any]


def key_of(store: Store, p: Any) -> Any:
    key = store.tables["t"].primary_key
    return p if len(key) == 1 else (7, p) if key[0] == "k" else (p, 7)


def named(store: Store, *partitions: int) -> Any:
    """These partitions, as a view takes them."""
    return dict.fromkeys(partitions if len(store.tables["t"].partition_by) == 1 else [(7, p) for p in partitions])


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


def filled(ddl: str, *partitions: int, by: tuple[str, ...] = ("p",)) -> Store:
    store = Store(ddl, partition_by=by)
    view = store.view()
    for p in partitions:
        view.insert("t", row_of(store, p, p))
    store.commit(view)
    return store


@pytest.mark.parametrize("mine", [(1,), (1, 5, 6), (1, *range(4, 12)), ()], ids=["one", "several", "many", "none"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLES)
def test_another_partition_is_refused(kind: str, place: Callable[[Store], None], mine: tuple[int, ...]) -> None:
    ddl, by = TABLES[kind]
    store = filled(ddl, 1, 2, by=by)
    values = [repr((p,) if len(by) == 1 else (7, p)) for p in mine]
    works_on = {
        1: f"partition {', '.join(values)}",
        3: f"partitions {', '.join(values)}",
        9: f"partitions {', '.join(values[:5])} and 4 more",
        0: "no partition (no row of its batch names one; NULL does not)",
    }[len(mine)]
    for name, use in USES.items():
        if not mine and name in ("update again", "update_each"):
            continue  # they begin with the row of partition 1
        for p in (2, 3):  # with a row, and without
            place(store)
            view = store.view(by_key=named(store, *mine))
            with pytest.raises(AccessError, match="works on ") as refused:
                print(name, p, "gave", use(store, view, p))
            assert str(refused.value) == (
                f"procedure query works on {works_on} of t ({', '.join(by)}), but touched key {key_of(store, p)!r}; name its "
                f"partition too, with partition('t', by=[…]), or declare the whole table (reads=['t'] or writes=['t'])"
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
    ddl, by = TABLES[kind]
    store = filled(ddl, *partitions, by=by)
    for name, use in USES.items():
        told = []
        for by_key in (None, named(store, 1), named(store, 5, 1, 6)):
            place(store)
            view = store.view(by_key=by_key)
            try:
                answer = use(store, view, 1)
            except ConstraintError as error:
                answer = str(error)
            told.append((answer, view.writes, view.get("t", key_of(store, 1))))
        assert told[0] == told[1] == told[2], name
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by", [("p",), ("k", "p")])
def test_what_finds_rows_finds_those_of_several_partitions(place: Callable[[Store], None], by: tuple[str, ...]) -> None:
    """By scan, index, and SQL with and without a filter, compiled and in DuckDB; none where no partition is named."""
    store = filled(f"{WIDE}; CREATE INDEX by_v ON t (v)", 1, 2, 3, by=by)
    place(store)
    view = store.view(by_key=named(store, 1, 3, 9))
    view.insert("t", (7, 9, 3))
    mine = [tuple(row) for row in view.scan("t")]
    assert [row[:2] for row in mine] == [(7, 1), (7, 3), (7, 9)]
    assert view.scan("t", v=3) == [row for row in mine if row[2] == 3]
    assert view.count("t") == 3
    for compiled in (True, False):
        assert store.run("SELECT * FROM t ORDER BY p", view=view, compiled=compiled) == mine
        assert store.run("SELECT p FROM t WHERE v = 3 ORDER BY p", view=view, compiled=compiled) == [(3,), (9,)]
        assert store.run("SELECT count(*) FROM t WHERE v = 2 OR v = 52", view=view, compiled=compiled) == [(0,)]
    nothing = store.view(by_key=named(store))
    assert nothing.scan("t") == nothing.scan("t", v=3) == store.run("SELECT * FROM t", view=nothing) == []
    assert store.run("UPDATE t SET v = v + 10", view=nothing).count == nothing.count("t") == 0
    assert store.run("UPDATE t SET v = v + 10", view=view).count == 3
    assert store.run("DELETE FROM t WHERE v > 0", view=view).count == 3
    store.close()


@pytest.mark.parametrize("kind", [kind for kind in TABLES if kind != "single"])
def test_a_row_can_not_be_moved_to_a_partition_that_is_not_named(kind: str) -> None:
    ddl, by = TABLES[kind]
    store = filled(ddl, 1, by=by)
    view = store.view(by_key=named(store, 1, 3))
    with pytest.raises(AccessError, match=r"touched key \((7, 2|2, 7)\)"):
        store.run("UPDATE t SET p = 2", view=view)
    assert not view.writes
    assert store.run("UPDATE t SET p = 3", view=view).count == 1
    store.close()


@pytest.mark.parametrize("use", ["get", "update", "delete", "update_each", "compiled SELECT", "compiled UPDATE"])
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("by", [("p",), ("k", "p")])
def test_what_another_member_of_a_nested_transaction_wrote_is_refused_too(
    use: str, deleted: bool, by: tuple[str, ...]
) -> None:
    """The members share their write set, but each has the access that it declared."""
    store = filled(WIDE, 1, by=by)
    table = store.database.tables["t"]
    view = store.view()
    view.insert("t", (7, 2, 5))
    if deleted:
        view.delete("t", (7, 2))
    restricted = store.view(by_key=named(store, 1))
    view.access, view.partitions = restricted.access, restricted.partitions
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


EVERY_KEY: dict[str, tuple[Any, Any, Any]] = {
    "TINYINT": (1, 2, -3),
    "DECIMAL(38,0)": (Decimal(2**100), Decimal(2**100 + 1), Decimal(-1)),
    "UBIGINT": (2**64 - 1, 2**64 - 2, 0),
    "BOOLEAN": (True, False, None),
    "VARCHAR": ("a", "", "it's \x00 ✓"),
    "BLOB": (b"a", b"\x00\xff", b""),
    "DECIMAL(9,2)": (Decimal("1.10"), Decimal("-0.05"), Decimal("1.11")),
    "DATE": (dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)),
    "TIME": (dt.time(1, 2, 3, 4), dt.time(0), dt.time(23, 59, 59, 999_999)),
    "TIMESTAMP": (dt.datetime(2024, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1), dt.datetime(1950, 1, 1)),
    "UUID": (uuid.UUID(int=1), uuid.UUID(int=2**127), uuid.UUID(int=3)),
}


@pytest.mark.parametrize("kind", EVERY_KEY)
def test_partitions_of_every_type_are_found_in_duckdb(kind: str) -> None:
    one, two, other = EVERY_KEY[kind]
    store = Store(f"CREATE TABLE t (p {kind}, k INTEGER, PRIMARY KEY (p, k))", partition_by=("p",))
    pairs = Store(f"CREATE TABLE t (p {kind}, k INTEGER, PRIMARY KEY (p, k))", partition_by=("k", "p"))
    for held in (store, pairs):
        view = held.view()
        for p in (one, two, other):
            for k in (7, 8) if p is not None else ():
                view.insert("t", (p, k))
        held.commit(view)
        held.merge()
    view = store.view(by_key=dict.fromkeys([one, two]))
    assert store.run("SELECT count(*), count(DISTINCT p) FROM t", view=view) == [(4, 2)]
    assert set(store.run("SELECT p FROM t WHERE k > 7", view=view, compiled=False)) == {(one,), (two,)}
    view = pairs.view(by_key=dict.fromkeys([(7, one), (8, two)]))
    assert set(pairs.run("SELECT p, k FROM t", view=view, compiled=False)) == {(one, 7), (two, 8)}
    store.close()
    pairs.close()
