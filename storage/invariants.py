"""What must hold for a table in memory, after any commit, load, trim, merge and eviction: ``VersionedTable.check``.

It costs a walk through the whole table. The simulation and tests call it after every step; an engine never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.storage.chains import NEVER, TRIMMED, Position, Version, as_of, below, kept, lost, rows_of
from tidegate.storage.schema import Key, Row

if TYPE_CHECKING:
    from tidegate.storage.merges import TableMerge
    from tidegate.storage.versions import VersionedTable


def broken(table: VersionedTable) -> Iterator[str]:
    """What is wrong with the table, regardless of its readers."""
    yield from _rows(table)
    yield from _chains(table)
    yield from _indexes(table)
    if table.merge is not None:
        yield from _merge(table, table.merge)


def check_readers(table: VersionedTable, positions: Sequence[Position], commits: Sequence[int]) -> None:
    """Raise CorruptionError unless everything is there that these positions, and readers of these commits, may read."""
    position, commit = table.settled
    for at in positions:
        if at <= position:
            raise lost(table.name, None, f"position {at}")
        for key, head in table.chains.items():
            if below(head, at) is TRIMMED:
                raise lost(table.name, key, f"position {at}")
    for number in commits:
        if number < commit:
            raise lost(table.name, None, f"a reader of commit {number}")
        for key, head in table.chains.items():
            if as_of(head, number) is TRIMMED:
                raise lost(table.name, key, f"a reader of commit {number}")


def surplus(table: VersionedTable, positions: Sequence[Position], commits: Sequence[int]) -> Iterator[str]:
    """Versions that a trim for these readers should have dropped."""
    for key, head in table.chains.items():
        if kept(head, positions, commits) != (head, True):
            yield f"versions of key {key!r} are kept that no reader can reach: {head}"


def _rows(table: VersionedTable) -> Iterator[str]:
    for key, row in table.rows.items():
        if row is None:
            if table.complete and not table.needed(key) and key not in table.gone:
                yield f"key {key!r} is remembered as absent, which no reader needs"
        elif not _fits(table, key, row):
            yield f"the row of key {key!r} is {row!r}"
    for key in table.dirty:
        if key not in table.rows:
            yield f"key {key!r} has changed since the last merge, and its row is not in memory"


def _fits(table: VersionedTable, key: Key, row: Row) -> bool:
    """Is it a plain tuple of all columns, under its own key?"""
    return type(row) is tuple and len(row) == len(table.schema.columns) and table.schema.key_of(row) == key


def _chains(table: VersionedTable) -> Iterator[str]:
    if (table.straight == NEVER) != bool(table.chains):
        yield f"rows are read straight away above position {table.straight}, with {len(table.chains)} chains"
    for key, head in table.chains.items():
        if key not in table.rows or table.rows[key] != head[1]:
            yield f"the newest version of key {key!r} is {head[1]}, and its row {table.rows.get(key)}"
        if head[3] > table.newest_commit:
            yield f"key {key!r} has a version of commit {head[3]}, and the newest is {table.newest_commit}"
        for newer, older in _pairs(head):
            if newer[0] <= older[0] or newer[3] < older[3]:
                yield f"versions of key {key!r} do not descend: {head}"
        for row in rows_of(head):
            if row is not None and not _fits(table, key, row):
                yield f"a version of key {key!r} is {row!r}"


def _pairs(version: Version) -> Iterator[tuple[Version, Version]]:
    """The versions of a chain, each with the next older one."""
    older: Any = version[2]
    while older is not None and older is not TRIMMED:
        yield version, older
        version, older = older, older[2]


def _indexes(table: VersionedTable) -> Iterator[str]:
    for index in table.indexes:
        wanted: dict[Any, set[Key]] = {}
        for key, newest in table.rows.items():
            for row in (newest, *rows_of(table.chains.get(key))):
                if row is not None and index.value_of(row) is not None:
                    wanted.setdefault(index.value_of(row), set()).add(key)
        if wanted != index.entries():
            yield f"index {index.name} holds {index.entries()}, and the rows have {wanted}"
        if not index.is_ordered():
            yield f"index {index.name} keeps another order than that of its values"


def _merge(table: VersionedTable, merge: TableMerge) -> Iterator[str]:
    aside = merge.aside  # read once: the merge may end it at any moment
    for key in merge.changed:
        if key not in table.rows:
            yield f"key {key!r} is being merged, and its row is not in memory"
        if aside is not None and key in table.dirty and key not in aside:
            yield f"key {key!r} changed while it is being merged, and what it was is not put aside"
    for key in (*(aside or ()), *list(merge.gone)):
        if key not in merge.changed:
            yield f"key {key!r} is held for a merge that does not write it"
