"""What the tests of scheduler, low-water marks and versions against a model have in common: tables, items, versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tidegate.storage.versions import VersionedTable

TABLES = ("plain", "named", "bounded", "parts")
PARTITIONS = 4  # of the last table; the others hold one row

Item = tuple[str, int | None]  # a table, or one partition of it


def overlap(some: set[Item], others: set[Item]) -> bool:
    """Is an item of one in the other, where a table is all of its partitions?"""
    return any(t == u and (p == q or p is None or q is None) for t, p in some for u, q in others)


def rows_of(items: set[Item]) -> list[tuple[str, int]]:
    """The rows that are in these items: each table, or partition, holds one."""
    found = {(t, p if p is not None else 0) for t, p in items if t != "parts" or p is not None}
    found |= {(t, k) for t, p in items if t == "parts" and p is None for k in range(PARTITIONS)}
    return sorted(found)


def key_of(table: str, row: int) -> Any:
    return (row, 1) if table == "parts" else 1


def value_at(versions: VersionedTable, table: str, row: int, at: int) -> int:
    """What an execution at this position reads; 0 where there is no row."""
    found: Any = versions.read(key_of(table, row), at)
    return 0 if found is None else int(found[2 if table == "parts" else 1])


@dataclass
class Versions:
    """All that was ever written: position, table, row, value."""

    versions: list[tuple[int, str, int, int]] = field(default_factory=list)

    def read(self, table: str, row: int, at: int) -> int:
        visible = ((p, value) for p, *where, value in self.versions if where == [table, row] and p < at)
        return max(visible, default=(0, 0))[1]


def fill(
    model: Versions, tables: Mapping[str, VersionedTable], writes: set[Item], number: int, at: int
) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Write something in every row of these items: into the model, and yielded by table for the engine's."""
    for name in sorted({name for name, _ in writes}):
        changed = {}
        for _, which in rows_of({item for item in writes if item[0] == name}):
            value = crc32(f"{name} {which}".encode(), number)
            key = key_of(name, which)
            changed[key] = tables[name].schema.row._make(
                (*((key,) if isinstance(key, int) else key), value, None, None)
            )
            model.versions.append((at, name, which, value))
        yield name, changed
