"""Which version a reader sees, which versions a trim may free, and what a merge takes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Store

from tidegate.errors import CorruptionError
from tidegate.storage.merges import Changes
from tidegate.storage.versions import VersionedTable


def table(ddl: str = "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER)") -> VersionedTable:
    return VersionedTable(next(iter(Store(ddl).tables.values())))


def history(*positions: int) -> VersionedTable:
    """Key 1 written at each of these positions, with the position as its value."""
    made = table()
    for number, position in enumerate(positions, 1):
        made.commit({1: made.schema.row(1, position)}, position, number, keep_older=True)
    return made


def seen(made: VersionedTable, position: int) -> Any:
    row = made.read(1, position)
    return None if row is None else row[1]


def test_a_reader_sees_the_newest_version_below_its_position() -> None:
    made = history(4, 9)
    assert [seen(made, p) for p in (4, 5, 9, 10)] == [None, 4, 4, 9]


@pytest.mark.parametrize(
    ("open_positions", "kept"),
    [
        ((), {12: 9}),
        ((12,), {12: 9}),
        ((5,), {5: 4, 12: 9}),
        ((7,), {7: 6, 12: 9}),
        ((5, 9), {5: 4, 9: 6, 12: 9}),
        ((3,), {3: None, 12: 9}),
    ],
)
def test_trim_keeps_the_newest_and_the_newest_below_each_open_position(
    open_positions: tuple[int, ...], kept: dict[int, int | None]
) -> None:
    made = history(4, 6, 9)
    made.trim(open_positions)
    assert {position: seen(made, position) for position in kept} == kept


@pytest.mark.parametrize(("open_positions", "lost"), [((), 9), ((), 5), ((9,), 5), ((9,), 3)])
def test_reading_what_was_freed_is_an_error_never_another_version(open_positions: tuple[int, ...], lost: int) -> None:
    made = history(4, 6, 9)
    made.trim(open_positions)
    with pytest.raises(CorruptionError):
        made.read(1, lost)


def test_trim_keeps_what_a_reader_of_the_committed_state_holds_on_to() -> None:
    made = history(4, 6, 9)
    made.trim((), open_commits=(2,))
    row = made.read_committed(1, 2)
    assert row is not None
    assert row[1] == 6


def test_without_older_readers_the_old_version_goes_at_once() -> None:
    made = history(4)
    made.commit({1: None}, 7, 2, keep_older=False)
    assert made.read(1, 8) is None
    with pytest.raises(CorruptionError):
        made.read(1, 6)


def test_a_deleted_row_is_forgotten_when_merged_and_unread() -> None:
    made = history(4)
    made.commit({1: None}, 6, 2, keep_older=True)
    take_changes(made)
    made.merged()
    made.forget(10)
    assert list(made.overlay_keys()) == [1]
    made.trim((5,))
    assert seen(made, 5) == 4
    made.trim(())
    assert made.keys() == []
    assert list(made.overlay_keys()) == []


def take_changes(made: VersionedTable) -> Changes:
    """All changes up to now, as one part."""
    parts = list(made.begin_merge().taken(100))
    return Changes([k for part in parts for k in part.deleted], [row for part in parts for row in part.inserted])


writes_of_keys = st.dictionaries(st.integers(0, 9), st.integers(0, 99) | st.none(), max_size=12)


INDEXED = table("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER); CREATE INDEX by_v ON t (v)").schema


@settings(deadline=None)
@given(
    before=st.lists(writes_of_keys, max_size=3),
    between=st.lists(writes_of_keys, max_size=12),
    size=st.integers(1, 4),
    keep_older=st.booleans(),
    fails=st.booleans(),
)
def test_a_merge_takes_what_there_was_when_it_began(
    before: list[Any], between: list[Any], size: int, keep_older: bool, fails: bool
) -> None:
    """Commits go on between its parts; what they write is for the next merge. A base follows along, as a plain dict."""
    made = VersionedTable(INDEXED)
    commits = 0
    base: dict[int, Any] = {}

    def commit(writes: dict[int, int | None]) -> None:
        nonlocal commits
        commits += 1
        rows = {k: None if v is None else made.schema.row(k, v) for k, v in writes.items()}
        made.commit(rows, 10 * commits, commits, keep_older)
        made.check()

    def current() -> dict[int, Any]:
        return {key: row for key in made.rows if (row := made.newest(key)) is not None}

    def fold(parts: Iterable[Changes], into: dict[int, Any]) -> None:
        for part in parts:
            for key in part.deleted:
                assert fails or key in into
                into.pop(key, None)
            into.update({row[0]: row for row in part.inserted})

    for writes in before:
        commit(writes)
    expected = current()
    merge = made.begin_merge()
    waiting = iter(between)
    found = dict(base)
    for part in merge.taken(size):
        fold([part], found)
        made.check()
        for writes in islice(waiting, 2):
            commit(writes)
    assert found == expected
    for writes in waiting:
        commit(writes)
    if fails:
        made.merge_failed()
    else:
        base = found
        made.merged()
        while made.forget(size):
            made.check()
    made.check()
    expected = current()
    parts = list(made.begin_merge().taken(size))
    made.check()
    for before_it in [base, found] if fails else [base]:  # of a merge that failed nobody knows whether the base has it
        fold(parts, before_it)
        assert before_it == expected == current()


def test_changes_delete_what_the_base_has_and_insert_what_is_new() -> None:
    made = history(4)
    first = take_changes(made)
    made.merged()
    made.commit({1: made.schema.row(1, 5), 2: made.schema.row(2, 5)}, 5, 2, keep_older=False)
    second = take_changes(made)
    assert (first.deleted, first.inserted) == ([], [(1, 4)])
    assert (second.deleted, sorted(second.inserted)) == ([1], [(1, 5), (2, 5)])


def test_commits_during_a_merge_and_a_merge_that_fails() -> None:
    made = history(4)
    take_changes(made)
    made.commit({1: made.schema.row(1, 5)}, 5, 2, keep_older=False)
    made.merge_failed()
    changes = take_changes(made)
    assert (changes.deleted, changes.inserted) == ([1], [(1, 5)])  # the base may have it all the same


def test_an_index_finds_rows_by_any_version_kept() -> None:
    made = table("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER); CREATE INDEX by_v ON t (v)")
    made.commit({1: made.schema.row(1, 10)}, 4, 1, keep_older=True)
    made.commit({1: made.schema.row(1, 20)}, 6, 2, keep_older=True)
    (index,) = made.indexes
    assert index.candidates(10) == index.candidates(20) == (1,)
    made.trim(())
    assert index.candidates(10) == ()
    assert index.candidates(20) == (1,)


def test_a_merge_that_ends_in_the_middle_of_a_commit_is_no_harm() -> None:
    """It ends without a lock: between a commit's look at what to put aside, and the putting."""
    made = history(4)
    merge = made.begin_merge()

    class Ends(dict[int, Any]):
        def __iter__(self) -> Any:
            list(merge.taken(10))
            return super().__iter__()

    made.commit(Ends({1: made.schema.row(1, 5)}), 5, 2, keep_older=False)
    made.merged()
    assert seen(made, 6) == 5


@pytest.mark.parametrize("change", ["insert", "delete", "trim"])
def test_a_row_that_is_read_in_while_another_changes_is_found_by_the_index(change: str) -> None:
    """The index has nothing, or one key, under a value; two threads are about to change that at once."""
    store = Store("CREATE TABLE t (k INTEGER PRIMARY KEY, tag INTEGER); CREATE INDEX by_tag ON t (tag)", cached_rows=2)
    view = store.view()
    for k in range(20):
        view.insert("t", (k, 7 if k == 0 else k + 100))
    store.commit(view)
    store.merge()
    table = store.database.tables["t"]
    index = table.indexes[0]
    assert not table.complete
    if change != "insert":
        old = store.view()
        old.upsert("t", (50, 7))
        store.commit(old, keep_older=change == "trim")
        if change == "trim":
            newer = store.view()
            newer.update("t", 50, tag=8)
            store.commit(newer, keep_older=True)
    for key in list(table.rows):
        if key == 0:
            del table.rows[key]  # as if it had been evicted
            index.drop((0, 7), 0)
    reached, go = threading.Event(), threading.Event()

    class Slow(dict[Any, Any]):
        def get(self, value: Any, default: Any = None) -> Any:
            found = super().get(value, default)
            if threading.current_thread() is reader:
                reached.set()
                go.wait(0.3)
            return found

    index._keys = Slow(index._keys)
    reader = threading.Thread(target=lambda: table.fetch([0]))
    reader.start()
    assert reached.wait(10)
    if change == "trim":
        table.trim(())
    else:
        writing = store.view()
        if change == "insert":
            writing.insert("t", (60, 7))
        else:
            writing.delete("t", 50)
        store.commit(writing)
    go.set()
    reader.join()
    assert index.candidates(7) == ((0,) if change != "insert" else (0, 60))
    store.close()
