"""Changing many rows at a time: the same as one by one, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import Store

from tidegate.errors import AccessError, ConstraintError, DataError, TidegateError
from tidegate.storage import versions
from tidegate.storage.readers import Reader
from tidegate.storage.view import View

PLAIN = "CREATE TABLE t (k INTEGER PRIMARY KEY, v BIGINT, tag INTEGER); CREATE INDEX by_tag ON t (tag)"
BARE = "CREATE TABLE t (k INTEGER PRIMARY KEY, v BIGINT, tag INTEGER)"
WIDE = "CREATE TABLE t (k INTEGER PRIMARY KEY, v BIGINT, tag INTEGER); CREATE INDEX by_both ON t (tag, v)"
GUARDED = "CREATE TABLE t (k INTEGER PRIMARY KEY, v BIGINT CHECK (v < 50), tag INTEGER UNIQUE)"


# ---- the same as one by one

KEYS = st.integers(0, 7)
TAGS = st.none() | st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("upsert"), KEYS, st.integers(0, 9), TAGS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("delete_where"), st.sampled_from([{}, {"tag": 1}, {"tag": None}, {"tag": 2, "v": 3}, {"v": 4}])),
    st.tuples(st.just("update_each"), st.lists(KEYS), st.sampled_from(["add", "tag", "both"])),
)
TRANSACTIONS = st.lists(
    st.tuples(st.lists(OPERATIONS, max_size=6), st.sampled_from(["commit", "commit", "abort", "keep", "merge"])),
    max_size=6,
)
CHANGES: dict[str, dict[str, Any]] = {
    "add": {"v": lambda row: row.v * 2 + row.k},
    "tag": {"tag": 1},
    "both": {"tag": lambda row: row.v % 3, "v": 7},
}


def at_once(view: View, operation: tuple[Any, ...]) -> Any:
    kind, *asked = operation
    if kind == "delete_where":
        return view.delete_where("t", **asked[0])
    return view.update_each("t", asked[0], **CHANGES[asked[1]])


def one_by_one(view: View, operation: tuple[Any, ...]) -> Any:
    kind, *asked = operation
    if kind == "delete_where":
        rows = view.scan("t", **asked[0])
        return sum(view.delete("t", row.k) for row in rows)
    made = []
    for key in asked[0]:
        row = view.get("t", key)
        if row is not None:
            changes = {name: value(row) if callable(value) else value for name, value in CHANGES[asked[1]].items()}
            made.append(view.update("t", key, **changes))
    return made


def check_counts(view: View) -> None:
    """Rows are counted as they are found, whether by index or not."""
    for tag in (None, 0, 1, 2, 3):
        for equals in ({}, {"tag": tag}, {"v": tag}, {"tag": tag, "v": 7}, {"v": 7, "tag": tag}):
            assert view.count("t", **equals) == len(view.scan("t", **equals))


def run(store: Store, transactions: list[Any], many: Callable[[View, tuple[Any, ...]], Any]) -> list[Any]:
    """Everything that can be seen: results, write sets, contents, what the index finds, what a merge takes."""
    told: list[Any] = []
    for operations, end in transactions:
        view = store.view()
        for kind, *asked in operations:
            if kind == "upsert":
                told.append(view.upsert("t", tuple(asked)))
            elif kind == "delete":
                told.append(view.delete("t", *asked))
            else:
                told.append(many(view, (kind, *asked)))
        told += [list(view.writes.get("t", {}).items()), view.scan("t", tag=1), view.scan("t")]
        check_counts(view)
        if end != "abort":
            store.commit(view, keep_older=end == "keep")
        if end == "merge":
            store.merge()
        table = store.database.tables["t"]
        told += [store.view().scan("t", tag=tag) for tag in range(3)]
        check_counts(store.view())
        told += [sorted(table.dirty.items()), *[index.entries() for index in table.indexes], list(table.rows.items())]
    return told


@pytest.fixture(params=[1, 1_000], ids=["commits at once", "commits row by row"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many writes are many."""
    monkeypatch.setattr(versions, "MANY", request.param)
    return int(request.param)


@pytest.mark.parametrize("ddl", [PLAIN, BARE, WIDE])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transactions=TRANSACTIONS)
def test_many_rows_end_up_as_one_by_one(ddl: str, transactions: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for way, bound in ((one_by_one, 1_000), (at_once, 1_000), (at_once, 1)):
        monkeypatch.setattr(versions, "MANY", bound)
        store = Store(ddl)
        found.append(run(store, transactions, way))
        store.close()
    assert found[1] == found[0]
    assert found[2] == found[0]


# ---- counting


def test_counting_by_index_does_not_look_at_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    view = store.view()
    monkeypatch.setattr(View, "_where", lambda *_: pytest.fail("rows were looked at"))
    assert [view.count("t", tag=tag) for tag in (0, 1, 2, 3)] == [14, 13, 13, 0]


def test_counting_refuses_what_scanning_refuses(store: Store) -> None:
    view = store.view()
    for equals, told in (
        ({"tag": True}, "t.tag"),
        ({"tag": "one"}, "t.tag"),
        ({"nope": 1}, "nope"),
        ({"tag": []}, "t.tag"),
    ):
        with pytest.raises(TidegateError, match=told):
            view.count("t", **equals)
        with pytest.raises(TidegateError, match=told):
            view.scan("t", **equals)
    with pytest.raises(AccessError, match="nothing_like_it"):
        view.count("nothing_like_it")


def test_an_older_reader_counts_what_it_sees(store: Store) -> None:
    older, newer = store.view(), store.view()
    newer.delete_where("t", tag=1)
    newer.insert("t", (100, 0, 2))
    store.commit(newer, keep_older=True)
    assert [older.count("t", tag=tag) for tag in (1, 2)] == [13, 13]
    assert [store.view().count("t", tag=tag) for tag in (1, 2)] == [0, 14]


# ---- deleting


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(PLAIN)
    view = made.view()
    for k in range(40):
        view.insert("t", (k, k * 10, k % 3))
    made.commit(view)
    yield made
    made.close()


def test_deleted_rows_are_gone(store: Store, many: int) -> None:
    view = store.view()
    assert view.delete_where("t", tag=2) == 13
    assert list(view.writes["t"]) == list(range(2, 40, 3))
    assert view.scan("t", tag=2) == []
    store.commit(view)
    assert store.view().scan("t", tag=2) == []
    assert len(store.rows("t")) == 27
    assert store.database.tables["t"].indexes[0].candidates(2) == ()


def test_own_writes_are_found_and_deleted_too(store: Store) -> None:
    view = store.view()
    view.insert("t", (100, 0, 2))
    view.update("t", 2, tag=0)
    assert view.delete_where("t", tag=2) == len([*range(5, 40, 3), 100])
    assert [row.k for row in view.scan("t")] == [k for k in range(40) if k % 3 != 2 or k == 2]
    assert view.delete_where("t") == 28
    assert view.delete_where("t") == 0


def test_what_finds_nothing_writes_nothing(store: Store) -> None:
    view = store.view()
    assert view.delete_where("t", tag=9) == 0
    assert view.update_each("t", [100, 101], v=1) == []
    assert view.writes == {}


def test_an_older_reader_sees_what_was_deleted_after_it(store: Store, many: int) -> None:
    older, newer = store.view(), store.view()
    newer.delete_where("t", tag=1)
    store.commit(newer, keep_older=True)
    assert len(older.scan("t", tag=1)) == 13
    assert store.view().scan("t", tag=1) == []


def test_a_partition_deletes_and_changes_its_own_rows_only() -> None:
    store = Store("CREATE TABLE t (p INTEGER, k INTEGER, v INTEGER, PRIMARY KEY (p, k))", partition_by=("p",))
    view = store.view()
    for p, k in ((1, 1), (1, 2), (2, 1)):
        view.insert("t", (p, k, 0))
    store.commit(view)
    mine = store.view(by_key=(1,))
    assert mine.update_each("t", [(1, 2), (1, 1)], v=lambda row: row.k) == [(1, 2, 2), (1, 1, 1)]
    with pytest.raises(AccessError, match="works on partition"):
        mine.update_each("t", [(1, 1), (2, 1)], v=5)
    assert mine.scan("t") == [(1, 1, 1), (1, 2, 2)]
    assert mine.count("t") == 2
    assert mine.delete_where("t") == 2
    store.commit(mine)
    assert store.rows("t") == [(2, 1, 0)]
    store.close()


# ---- changing


def test_a_change_is_a_value_or_a_function_of_the_row(store: Store) -> None:
    view = store.view()
    made = view.update_each("t", [3, 1, 100, 3], v=lambda row: row.v + 1, tag=None)
    assert made == [(3, 31, None), (1, 11, None), (3, 32, None)]
    assert made[0].v == 31
    assert view.get("t", 3) == (3, 32, None)


def test_keys_are_taken_as_get_takes_them(store: Store) -> None:
    view = store.view()
    assert view.update_each("t", iter([True, 2.0]), v=0) == [(1, 0, 1), (2, 0, 2)]
    assert list(view.writes["t"]) == [1, 2]
    with pytest.raises(DataError, match="can't take \\[\\]"):
        view.update_each("t", [4, []], v=0)
    assert list(view.writes["t"]) == [1, 2]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"k": 1}, "part of the primary key"),
        ({"w": 1}, "has no column"),
        ({"v": lambda row: "x" * row.k}, "can't take"),
    ],
)
def test_a_refused_change_names_the_column_and_changes_nothing(
    store: Store, changes: dict[str, Any], error: str
) -> None:
    view = store.view()
    with pytest.raises(DataError, match=error):
        view.update_each("t", [1, 2], **changes)
    assert view.writes == {}


def test_a_function_that_fails_changes_nothing_and_its_error_comes_through(store: Store) -> None:
    view = store.view()
    with pytest.raises(TypeError, match="unsupported operand"):
        view.update_each("t", [1, 2], v=lambda row: row.v + None)
    assert view.writes == {}


def test_constraints_are_asked_about_every_row_in_turn_and_one_refused_means_none_changed() -> None:
    store = Store(GUARDED)
    view = store.view()
    for k in range(3):
        view.insert("t", (k, k, k))
    store.commit(view)
    own = store.view()
    own.update("t", 0, v=40)
    with pytest.raises(ConstraintError, match="CHECK"):
        own.update_each("t", [2, 0, 0], v=lambda row: row.v + 5)
    with pytest.raises(ConstraintError, match="UNIQUE"):
        own.update_each("t", [0, 1], tag=lambda row: row.tag + 1)
    assert own.writes == {"t": {0: (0, 40, 0)}}
    assert own.update_each("t", [1, 0], v=lambda row: row.v + 5) == [(1, 6, 1), (0, 45, 0)]
    store.close()


@pytest.mark.parametrize("call", [lambda view: view.delete_where("t"), lambda view: view.update_each("t", [1], v=1)])
def test_only_declared_tables_are_changed(store: Store, call: Callable[[View], Any]) -> None:
    table = store.database.tables["t"]
    with pytest.raises(AccessError, match="declared only to read it"):
        call(View(store.database, 9, {"t": Reader(table, write=False)}))
    with pytest.raises(AccessError, match="without declaring it"):
        call(View(store.database, 9, {}))


# ---- committing


def test_rows_changed_again_after_a_merge_are_dirty_again(store: Store, many: int) -> None:
    store.merge()
    for _ in range(2):
        view = store.view()
        view.update_each("t", range(20), v=lambda row: row.v + 1)
        view.delete_where("t", tag=1)
        store.commit(view)
    table = store.database.tables["t"]
    [changes] = table.begin_merge().taken(100)
    assert sorted(changes.deleted) == sorted({*range(20), *range(1, 40, 3)})
    assert sorted(changes.inserted) == [(k, k * 10 + 2, k % 3) for k in range(20) if k % 3 != 1]


def test_rows_of_a_merge_that_failed_are_dirty_still(store: Store, many: int) -> None:
    store.merge()
    table = store.database.tables["t"]
    view = store.view()
    view.update_each("t", range(20), v=0)
    store.commit(view)
    list(table.begin_merge().taken(7))
    table.merge_failed()
    again = store.view()
    again.delete_where("t")
    store.commit(again)
    assert sorted(table.dirty.items()) == [(k, True) for k in range(40)]
    store.merge()
    assert store.rows("t") == []
    assert store.database.base.count(table.schema) == 0


@pytest.mark.parametrize("ddl", [BARE, GUARDED])
@pytest.mark.parametrize(
    "write",
    [
        lambda view, row: view.insert("t", (100 + row.k, 0, None)),
        lambda view, row: view.update("t", row.k, v=1),
        lambda view, row: view.delete("t", row.k),
        lambda view, row: view.delete_where("t"),
    ],
)
def test_a_function_of_update_each_does_not_write_to_the_table(ddl: str, write: Callable[[View, Any], Any]) -> None:
    store = Store(ddl)
    view = store.view()
    view.insert("t", (1, 2, 3))
    store.commit(view)
    view = store.view()
    with pytest.raises(AccessError, match=r"writes to t in a function that update_each calls.*before or after"):
        view.update_each("t", [1], v=lambda row: write(view, row))
    assert not view.writes.get("t")
    assert view.update("t", 1, v=5) == (1, 5, 3), "and may be written to again"
