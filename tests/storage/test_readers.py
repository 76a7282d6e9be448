"""Every reader sees exactly what was committed below its position, or as of its commit, whatever is committed, trimmed, merged
and evicted around it: against a list of all commits there were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Store

from tidegate.errors import ConstraintError, CorruptionError
from tidegate.storage.indexes import Aged
from tidegate.storage.readers import CommittedReader, Reader
from tidegate.storage.view import View

TABLE = "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER)"
INDEXED = f"{TABLE}; CREATE INDEX by_v ON t (v)"
KEYS = range(6)

writes = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3) | st.none(), max_size=4)


class History:
    """Executions at positions 1, 2, …, committed in any order that locks allow; and all that was ever committed."""

    def __init__(self, ddl: str, executions: list[dict[int, int | None]], cached_rows: int) -> None:
        self.store = Store(ddl, cached_rows=cached_rows)
        self.database = self.store.database
        self.table = self.database.tables["t"]
        self.unfinished = dict(enumerate(executions, 1))
        self.snapshots: list[int] = []
        self.committed: list[tuple[int, dict[int, int | None]]] = []  # position and writes, in the order of commits

    def ready(self) -> list[int]:
        """Those in front of which nobody writes what they write."""
        return [at for at, mine in self.unfinished.items() if not mine.keys() & self.written_below(at)]

    def written_below(self, at: int) -> set[int]:
        return {key for other, theirs in self.unfinished.items() if other < at for key in theirs}

    def open_positions(self, below: int | None = None) -> list[int]:
        return [at for at in sorted(self.unfinished) if below is None or at < below]

    def commit(self, at: int) -> None:
        mine = self.unfinished.pop(at)
        older = self.open_positions(below=at)
        rows = {key: None if v is None else (key, v) for key, v in mine.items()}
        self.database.commit(
            {"t": rows}, at, bool(older or self.snapshots), lambda table: (older, sorted(self.snapshots))
        )
        self.committed.append((at, mine))

    def merge(self) -> None:
        self.database.merge(dict, lambda table: self.open_positions(), lambda: sorted(self.snapshots))

    def expected(self, at: int) -> dict[int, int]:
        found: dict[int, int | None] = {}
        for position, mine in sorted(self.committed, key=lambda each: each[0]):
            if position < at:
                found.update(mine)
        return {key: v for key, v in found.items() if v is not None}

    def expected_as_of(self, commit: int) -> dict[int, int]:
        found: dict[int, int | None] = {}
        for _, mine in self.committed[:commit]:
            found.update(mine)
        return {key: v for key, v in found.items() if v is not None}

    def check(self, trimmed: bool = False) -> None:
        self.table.check(self.open_positions(), sorted(self.snapshots), trimmed)
        for at in [*self.unfinished, 1_000]:
            view = View(self.database, at, {"t": Reader(self.table, write=True)})
            hidden = self.written_below(at)  # they wait for these
            self.compare(view, self.expected(at), [key for key in KEYS if key not in hidden])
        for commit in self.snapshots:
            view = View(self.database, 0, {"t": CommittedReader(self.table)}, commit=commit)
            self.compare(view, self.expected_as_of(commit), list(KEYS))

    def compare(self, view: View, expected: dict[int, int], keys: list[int]) -> None:
        told = {key: row.v for key in keys if (row := view.get("t", key)) is not None}
        assert told == {key: v for key, v in expected.items() if key in keys}
        if len(keys) < len(KEYS):
            return
        assert dict(view.scan("t")) == expected
        for wanted in range(4):
            having = sorted(key for key, v in expected.items() if v == wanted)
            assert [row.k for row in view.scan("t", v=wanted)] == having
            assert view.count("t", v=wanted) == len(having)
        found = self.store.prepare("SELECT k, v FROM t").run(view, ())
        assert {row[0]: row[1] for row in found} == expected


@settings(max_examples=25, deadline=None)
@given(
    executions=st.lists(writes, min_size=1, max_size=9),
    ddl=st.sampled_from([TABLE, INDEXED]),
    cached_rows=st.sampled_from([2, 1_000]),
    data=st.data(),
)
def test_every_reader_sees_what_was_committed_below_it(
    executions: list[dict[int, int | None]], ddl: str, cached_rows: int, data: st.DataObject
) -> None:
    history = History(ddl, executions, cached_rows)
    try:
        while history.unfinished:
            step = data.draw(st.sampled_from(["commit", "commit", "hold", "release", "merge"]))
            if step == "commit":
                history.commit(data.draw(st.sampled_from(history.ready())))
            elif step == "hold":
                history.snapshots.append(history.database.commits)
            elif step == "release" and history.snapshots:
                history.snapshots.pop(data.draw(st.integers(0, len(history.snapshots) - 1)))
            elif step == "merge":
                history.merge()
            history.check(trimmed=step == "merge")
        history.snapshots.clear()
        history.merge()
        assert not history.table.chains
        history.check(trimmed=True)
    finally:
        history.store.close()


def read(view: View) -> Any:
    return view.get("t", 1)


def count(view: View) -> Any:
    return view.count("t", v=1)


def scan(view: View) -> Any:
    return view.scan("t")


def update(view: View) -> Any:
    return view.update("t", 1, v=2)


def update_each(view: View) -> Any:
    return view.update_each("t", [1], v=2)


def insert(view: View) -> Any:
    return view.insert("t", (1, 2))


def absent(view: View) -> Any:
    return view.get("t", 3)


@pytest.mark.parametrize("access", [read, absent, count, scan, update, update_each, insert])
@pytest.mark.parametrize("freed", ["at once", "by a trim", "with chains left"])
def test_whoever_comes_too_late_gets_an_error_and_no_newer_row(access: Any, freed: str) -> None:
    store = Store(INDEXED)
    store.database.commit({"t": {1: (1, 1), 2: (2, 1)}}, 5, keep_older=False)
    if freed == "at once":
        store.database.commit({"t": {2: None}}, 9, keep_older=False)
    elif freed == "by a trim":
        store.database.commit({"t": {2: None}}, 9, keep_older=True)
        store.database.tables["t"].trim(())
    else:
        store.database.commit({"t": {2: (2, 5)}}, 12, keep_older=True)
        store.database.commit({"t": {1: (1, 1)}}, 9, keep_older=False)
    with pytest.raises(CorruptionError):
        access(store.view(9))
    store.close()


def test_a_commit_and_loading_the_whole_table_do_not_wait_for_one_another() -> None:
    """A commit to rows that are not in memory reads them, which may end in loading all; another thread is at that already."""
    store = Store(INDEXED, cached_rows=2)
    store.database.commit({"t": {k: (k, k) for k in range(20)}}, 1, keep_older=False)
    store.merge()
    table = store.database.tables["t"]
    assert not table.complete
    store.database.bound.rows = 1_000
    store.database._too_large.clear()
    loading, go = threading.Event(), threading.Event()
    scan = store.database.base.scan

    def slow(schema: Any) -> Any:
        loading.set()
        go.wait(0.3)
        return scan(schema)

    store.database.base.scan = slow  # type: ignore[method-assign]
    loader = threading.Thread(target=lambda: store.database.load_all(table), daemon=True)
    loader.start()
    assert loading.wait(10)
    committer = threading.Thread(
        target=lambda: store.database.commit({"t": {19: (19, 0)}}, 2, keep_older=False), daemon=True
    )
    committer.start()
    for thread in (loader, committer):
        thread.join(20)
        assert not thread.is_alive(), "they wait for one another"
    assert table.newest(19) == (19, 0)
    assert [row.k for row in store.view(3).scan("t", v=0)] == [0, 19]


class Meddled(Aged):
    """Rows in memory. ``meddle`` runs once: after a row was looked for in vain, on whatever thread that was."""

    __slots__ = ("meddle",)

    def __init__(self, rows: Any, meddle: Callable[[], None]) -> None:
        super().__init__(rows)
        self.meddle: Callable[[], None] | None = meddle

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        if found is default:
            self.now()
        return found

    def __contains__(self, key: Any) -> bool:
        found = super().__contains__(key)
        if not found:
            self.now()
        return found

    def now(self) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()


def outgrown() -> Store:
    """A table of three rows, all of them in the base and none in memory."""
    store = Store(INDEXED)
    store.database.commit({"t": {k: (k, 1) for k in (1, 2, 3)}}, 1, keep_older=False)
    store.merge()
    store.database.tables["t"].evict(0)
    store.position = 1
    return store


@pytest.mark.parametrize("use", [read, update, update_each, insert])
def test_rows_that_come_in_while_one_is_looked_for_are_not_taken_for_absent(use: Any) -> None:
    store = outgrown()
    table = store.database.tables["t"]
    table.rows = Meddled(table.rows, lambda: store.database.load_all(table))
    table.newest_held = table.rows.get
    view = store.view()
    if use is insert:
        with pytest.raises(ConstraintError, match="already has a row"):
            insert(view)
    else:
        assert use(view)
    assert table.rows.meddle is None
    store.close()


@pytest.mark.parametrize("use", [read, update, update_each, insert, scan, count])
def test_rows_that_are_evicted_while_one_is_looked_for_are_not_taken_for_absent(use: Any) -> None:
    store = outgrown()
    hold, load_all = store.database.hold, store.database.load_all

    def once(bring_in: Callable[..., Any]) -> Callable[..., Any]:
        def evicting(table: Any) -> Any:
            found = bring_in(table)
            store.database.hold, store.database.load_all = hold, load_all  # type: ignore[method-assign]
            table.evict(0)
            return found

        return evicting

    store.database.hold, store.database.load_all = once(hold), once(load_all)  # type: ignore[method-assign]
    view = store.view()
    if use is insert:
        with pytest.raises(ConstraintError, match="already has a row"):
            insert(view)
    else:
        assert use(view) in (3, (1, 1), (1, 2), [(1, 2)], [(1, 1), (2, 1), (3, 1)])
    assert store.database.hold == hold
    store.close()


def test_a_table_is_not_complete_when_rows_were_evicted_as_the_last_ones_came_in() -> None:
    store = outgrown()
    table = store.database.tables["t"]
    placing = table._placing

    class Evicting:
        """The lock of the table; when it is given up for the first time, a merge is waiting for it to evict rows."""

        def __enter__(self) -> None:
            placing.acquire()

        def __exit__(self, *error: object) -> None:
            placing.release()
            table._placing = placing
            table.evict(0)

    table._placing = Evicting()  # type: ignore[assignment]
    store.database.load_all(table)
    assert not table.complete
    assert [table.newest(k) for k in (1, 2, 3)] == [(1, 1), (2, 1), (3, 1)]
    assert sorted(store.database.all_keys(table)) == [1, 2, 3]
    store.close()
