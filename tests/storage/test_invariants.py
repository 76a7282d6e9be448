"""Every invariant of a table in memory is noticed when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stores import Store

from tidegate.errors import CorruptionError
from tidegate.storage.chains import NEVER, TRIMMED
from tidegate.storage.versions import VersionedTable

SCHEMA = next(
    iter(Store("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER); CREATE INDEX by_v ON t (v)").tables.values())
)
OPEN = (7,)  # an execution that reads the second of three versions of key 1
HELD = (2,)  # and a reader of the commit that made it

Break = Callable[[VersionedTable], Any]


def at_rest() -> VersionedTable:
    """Rows 1 to 3, row 4 deleted; nobody reads older ones."""
    table = VersionedTable(SCHEMA)
    table.commit({k: (k, 10 * k) for k in (1, 2, 3, 4)}, 2, 1, keep_older=False)
    table.commit({4: None}, 5, 2, keep_older=False)
    return table


def with_chains() -> VersionedTable:
    """The same, and two more versions of row 1, and one of row 2."""
    table = at_rest()
    table.commit({1: (1, 11), 2: (2, 22)}, 8, 3, keep_older=True)
    table.commit({1: (1, 12)}, 9, 4, keep_older=True)
    table.trim(OPEN, HELD)
    return table


def with_a_merge() -> VersionedTable:
    """A merge is under way that has taken all, and one row has changed since it began."""
    table = at_rest()
    merge = table.begin_merge()
    parts = merge.taken(2)
    next(parts)
    table.commit({3: (3, 33)}, 8, 3, keep_older=False)
    return table


def put_row(row: Any) -> Break:
    return lambda table: table.rows.update({1: row})


def put_chain(chain: Any) -> Break:
    return lambda table: table.chains.update({1: chain})


def set_to(name: str, value: Any) -> Break:
    return lambda table: setattr(table, name, value)


BROKEN: list[tuple[Callable[[], VersionedTable], Break, str]] = [
    (at_rest, put_row((2, 10)), "the row of key 1 is"),
    (at_rest, put_row((1,)), "the row of key 1 is"),
    (at_rest, put_row(SCHEMA.named((1, 10))), "the row of key 1 is"),
    (at_rest, lambda table: table.rows.update({9: None}), "key 9 is remembered as absent"),
    (at_rest, lambda table: table.dirty.pop(4), "key 4 is remembered as absent"),
    (at_rest, lambda table: table.dirty.update({9: True}), "key 9 has changed since the last merge"),
    (at_rest, set_to("straight", NEVER), "with 0 chains"),
    (at_rest, lambda table: table.indexes[0].drop((1, 10), 1), "index .* holds"),
    (at_rest, lambda table: table.indexes[0].add((1, 77), 1), "index .* holds"),
    (at_rest, lambda table: table.rows.update({1: (1, 77)}), "index .* holds"),
    (with_chains, set_to("straight", 9), "with 2 chains"),
    (with_chains, set_to("newest_commit", 3), "a version of commit 4, and the newest is 3"),
    (with_chains, put_row((1, 13)), "the newest version of key 1 is"),
    (with_chains, lambda table: table.rows.pop(1), "has changed since the last merge"),
    (with_chains, put_chain((9, (1, 12), (9, (1, 10), None, 1), 4)), "versions of key 1 do not descend"),
    (with_chains, put_chain((9, (1, 12), (2, (1, 10), None, 5), 4)), "versions of key 1 do not descend"),
    (with_chains, put_chain((9, (1, 12), (2, (2, 10), None, 1), 4)), "a version of key 1 is"),
    (with_chains, put_chain((9, (1, 12), None, 4)), "index .* holds"),
    (with_a_merge, lambda table: table.merge.changed.update({9: True}), "key 9 is being merged"),  # type: ignore[union-attr]
    (with_a_merge, lambda table: table.merge.aside.clear(), "what it was is not put aside"),  # type: ignore[union-attr]
    (with_a_merge, lambda table: table.merge.aside.update({9: None}), "key 9 is held for a merge"),  # type: ignore[union-attr]
    (with_a_merge, lambda table: table.merge.gone.append(9), "key 9 is held for a merge"),  # type: ignore[union-attr]
]


@pytest.mark.parametrize(("make", "break_it", "told"), BROKEN)
def test_what_is_broken_is_told(make: Callable[[], VersionedTable], break_it: Break, told: str) -> None:
    table = make()
    table.check()
    break_it(table)
    with pytest.raises(CorruptionError, match=f"table t: .*{told}"):
        table.check()


@pytest.mark.parametrize(
    ("positions", "commits", "break_it"),
    [
        ((5,), (), lambda table: None),  # what was before position 5 was given up at once
        ((), (1,), lambda table: None),
        (OPEN, (), put_chain((9, (1, 12), TRIMMED, 4))),
        ((), HELD, put_chain((9, (1, 12), TRIMMED, 4))),
    ],
)
def test_a_version_that_somebody_may_still_read_and_that_is_gone(positions: Any, commits: Any, break_it: Break) -> None:
    table = with_chains()
    table.check(OPEN, HELD, trimmed=True)
    break_it(table)
    with pytest.raises(CorruptionError, match="was freed"):
        table.check(positions, commits)


@pytest.mark.parametrize(("positions", "commits"), [((), ()), ((9,), ()), ((), (3,))])
def test_a_version_that_nobody_may_read_and_that_is_kept(positions: Any, commits: Any) -> None:
    table = with_chains()
    table.check(positions, commits)
    with pytest.raises(CorruptionError, match="kept that no reader can reach"):
        table.check(positions, commits, trimmed=True)
    table.trim(positions, commits)
    table.check(positions, commits, trimmed=True)
