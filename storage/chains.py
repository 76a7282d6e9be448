"""Chains of versions: earlier rows of a table, kept for as long as some reader may need them.

::

    key ─▶ (position 9, row) ─▶ (position 4, row) ─▶ None       did not exist before position 4
    key ─▶ (position 9, row) ─▶ TRIMMED                         no reader may need what was before

Plain tuples, not named ones: the cyclic garbage collector does not track a plain tuple of plain values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidegate.errors import CorruptionError
from tidegate.storage.schema import Key, Row

Position = int

# (position, row or None if deleted, older version, commit number)
Version = tuple[Position, Row | None, Any, int]

BASE: Final[Position] = -1  # of a row that every reader may see: below every execution
NEVER: Final[Position] = 1 << 200  # above every position
# nothing is left here. Not an instance of a class: the cyclic garbage collector then does not track its holder
TRIMMED: Final = object()


def rows_of(version: Any) -> Iterator[Row | None]:
    """The rows of a chain of versions, newest first."""
    while version is not None and version is not TRIMMED:
        yield version[1]
        version = version[2]


def below(version: Any, position: Position) -> Any:
    """The version of a chain that an execution at ``position`` sees; None where there was no row yet, or TRIMMED."""
    while version is not None and version is not TRIMMED and version[0] >= position:
        version = version[2]
    return version


def as_of(version: Any, commit: int) -> Any:
    """The newest version committed no later than ``commit``; None where there was no row yet, or TRIMMED."""
    while version is not None and version is not TRIMMED and version[3] > commit:
        version = version[2]
    return version


def kept(head: Version, positions: Sequence[Position], commits: Sequence[int]) -> tuple[Version, bool]:
    """``head`` with only the versions still needed below it, and whether any reader is older than ``head``."""
    chain: list[Version] = []
    version: Any = head
    while version is not None and version is not TRIMMED:
        chain.append(version)
        version = version[2]
    end = version
    needed = [head]
    for newer, older in zip(chain, [*chain[1:], None], strict=True):
        # a reader r sees `older` (or nothing, at the end) when older < r <= newer
        if older is not None and (
            _any_in(positions, older[0], newer[0]) or any(older[3] <= c < newer[3] for c in commits)
        ):
            needed.append(older)
    reads_before = (bool(positions) and positions[0] <= head[0]) or any(c < head[3] for c in commits)
    oldest = chain[-1]
    reads_end = (bool(positions) and positions[0] <= oldest[0]) or any(c < oldest[3] for c in commits)
    tail: Any = end if reads_end or (end is None and len(needed) == len(chain)) else TRIMMED
    for version in reversed(needed):
        tail = (version[0], version[1], tail, version[3])
    return tail, reads_before


def _any_in(positions: Sequence[Position], low: Position, high: Position) -> bool:
    """Is there a position r with low < r <= high?"""
    place = bisect_left(positions, low + 1)
    return place < len(positions) and positions[place] <= high


def lost(table: str, key: Key, reader: str) -> CorruptionError:
    """The error for a ``reader`` whose version is gone."""
    return CorruptionError(
        f"the version of {table}[{key!r}] that {reader} must read was freed; "
        f"this is a bug in tidegate, not in your app: please report it with the app and the seed",
        table=table,
        key=key,
    )
