"""Large tables in large pages.

A row read at random from a large table is on memory pages that were not used recently. Looking up the address of a page
takes the processor longer than reading it, above all in a virtual machine, and a row touches half a dozen pages. With
pages of 2 MB instead of 4 KB there are few enough for their addresses to stay cached. Linux uses such pages for memory
that asks for it (``madvise``), unless ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``never``; other systems are
left alone.

For the gain see ``bench growth``, "rows of state, anywhere".
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tidegate.storage.database import Database

MANY = 100_000  # rows; with fewer the processor's caches are enough
GROWN = 1.5  # ask again when there are this many times as many rows as last time

_HUGEPAGE, _COLLAPSE = 14, 25  # advice for madvise: at any time; now (Linux 6.1)
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_PROCESS = Path("/proc/self")


class LargePages:
    """Asks for large pages when the tables of a database have grown: ``look`` is called after every merge."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = MANY / GROWN

    def look(self) -> None:
        rows = sum(len(table.rows) for table in self._database.tables.values())
        if rows >= self._rows * GROWN:
            self._rows = rows
            ask()


def ask() -> int:
    """Ask the system to put the memory that this process uses into large pages; returns how many bytes that is.

    Whether it does is up to the system: large pages only affect speed.
    """
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        large = int((_SETTINGS / "hpage_pmd_size").read_text())
        regions = list(_regions((_PROCESS / "maps").read_text(), large))
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        asked = 0
        with (_PROCESS / "pagemap").open("rb", buffering=0) as pagemap:
            for start, end in regions:
                for first, last in _in_use(pagemap, start, end, large):
                    madvise(first, last - first, _HUGEPAGE)
                    madvise(first, last - first, _COLLAPSE)
                    asked += last - first
    except (OSError, AttributeError, ValueError):  # not Linux, or one with other formats in /sys and /proc
        return 0
    return asked


def _regions(maps: str, large: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the process's private memory regions, rounded inwards to whole large pages."""
    for line in maps.splitlines():
        addresses, access, _, _, inode, *named = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and (not named or named[0].startswith(("[heap]", "[anon"))):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            begin, end = -(-begin // large) * large, end // large * large
            if begin < end:
                yield begin, end


def _in_use(pagemap: BinaryIO, start: int, end: int, large: int) -> Iterator[tuple[int, int]]:
    """The parts of a region whose large pages would be at least half in use: most reserved memory is never used."""
    small = large // mmap.PAGESIZE
    pagemap.seek(start // mmap.PAGESIZE * 8)
    entries = np.frombuffer(pagemap.read((end - start) // mmap.PAGESIZE * 8), "<u8")
    present = entries[: len(entries) // small * small] >> np.uint64(63)  # the highest bit: the page is in memory
    dense = present.reshape(-1, small).sum(axis=1) >= small / 2
    edges = np.flatnonzero(np.diff(np.concatenate(([False], dense, [False])).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield start + first * large, start + last * large
