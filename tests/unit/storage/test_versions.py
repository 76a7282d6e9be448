"""Which version a reader sees, which versions a trim may free, and what a merge takes."""

from __future__ import annotations

from typing import Any

import pytest
from stores import Store

from tidegate.errors import CorruptionError
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
    made.take_changes()
    made.merged()
    assert list(made.overlay_keys()) == [1]
    made.trim((5,))
    assert seen(made, 5) == 4
    made.trim(())
    assert made.keys() == []
    assert list(made.overlay_keys()) == []


def test_changes_delete_what_the_base_has_and_insert_what_is_new() -> None:
    made = history(4)
    first = made.take_changes()
    made.merged()
    made.commit({1: made.schema.row(1, 5), 2: made.schema.row(2, 5)}, 5, 2, keep_older=False)
    second = made.take_changes()
    assert (first.deleted, first.inserted) == ([], [(1, 4)])
    assert (second.deleted, sorted(second.inserted)) == ([1], [(1, 5), (2, 5)])


def test_commits_during_a_merge_and_a_merge_that_fails() -> None:
    made = history(4)
    made.take_changes()
    made.commit({1: made.schema.row(1, 5)}, 5, 2, keep_older=False)
    made.merge_failed()
    changes = made.take_changes()
    assert (changes.deleted, changes.inserted) == ([], [(1, 5)])


def test_an_index_finds_rows_by_any_version_kept() -> None:
    made = table("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER); CREATE INDEX by_v ON t (v)")
    made.commit({1: made.schema.row(1, 10)}, 4, 1, keep_older=True)
    made.commit({1: made.schema.row(1, 20)}, 6, 2, keep_older=True)
    (index,) = made.indexes
    assert index.candidates(10) == index.candidates(20) == (1,)
    made.trim(())
    assert index.candidates(10) == ()
    assert index.candidates(20) == (1,)
