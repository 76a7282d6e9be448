"""Rows that are evicted in the middle of a read by index or of all rows: none is left out. (By key: ``test_readers``.)

The merge that evicts on another thread is played by whatever the read calls on its way, so that it falls between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stores import Store

from tidegate.errors import ConstraintError
from tidegate.storage.versions import VersionedTable

ROWS = [(k, k % 3, f"text {k}") for k in range(9)]


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, tag INTEGER, v VARCHAR UNIQUE); CREATE INDEX by_tag ON t (tag)"
    )
    view = store.view()
    for row in ROWS:
        view.insert("t", row)
    store.commit(view)
    store.merge()
    yield store
    store.database.close()


def table(store: Store) -> VersionedTable:
    return store.database.tables["t"]


def once(before: Callable[[], None], function: Callable[..., Any], after: Callable[[], None] = lambda: None) -> Any:
    """The function, with something before and after its first call."""
    left = [True]

    def called(*given: Any) -> Any:
        first = bool(left and left.pop())
        if first:
            before()
        result = function(*given)
        if first:
            after()
        return result

    return called


def test_rows_by_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = table(store)
    index = held.index_on(["tag"])
    assert index is not None
    for read in (
        lambda: store.view().scan("t", tag=1),
        lambda: store.run("SELECT * FROM t WHERE tag = 1 ORDER BY k"),
    ):
        store.database.load_all(held)
        with monkeypatch.context() as patch:
            patch.setattr(index, "candidates", once(lambda: held.evict(0), index.candidates))
            assert [tuple(row) for row in read()] == [row for row in ROWS if row[1] == 1]
    store.database.load_all(held)
    with monkeypatch.context() as patch:
        patch.setattr(index, "count", once(lambda: held.evict(0), index.count))
        assert store.view().count("t", tag=1) == 3


def test_a_unique_value_that_is_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = table(store)
    index = held.index_on(["v"])
    assert index is not None
    monkeypatch.setattr(index, "candidates", once(lambda: held.evict(0), index.candidates))
    with pytest.raises(ConstraintError, match="text 4"):
        store.view().insert("t", (99, 0, "text 4"))


def test_all_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held, database = table(store), store.database
    monkeypatch.setattr(database, "load_all", once(lambda: None, database.load_all, lambda: held.evict(0)))
    assert store.rows("t") == ROWS
