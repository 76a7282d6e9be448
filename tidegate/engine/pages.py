"""Large tables in large pages.

A row that is read anywhere in a large table lies on a page of memory that was not in use a moment ago. To find out where a page
is takes the processor longer than to read it, most of all in a virtual machine, and there are half a dozen of them to a row. In
pages of 2 MB instead of 4 KB there are few enough to remember. Linux makes such pages of memory that asks for it (``madvise``),
unless ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``never``; other systems are left alone.

What it is worth: ``bench growth``, "rows of state, anywhere".
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tidegate.storage.database import Database

MANY = 100_000  # rows; fewer are in reach of the processor anyway
GROWN = 1.5  # so many times as many as when it was last asked for

_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise: you may at any time; do so now (Linux 6.1)
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
    """Have the memory of this process that is in use put into large pages; returns how many bytes that is.

    Whether it is done is up to the system: large pages are a matter of speed alone.
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
    except (OSError, AttributeError, ValueError):  # not Linux, or one that tells of itself in other words
        return 0
    return asked


def _regions(maps: str, large: int) -> Iterator[tuple[int, int]]:
    """Memory of the process's own, as far as it consists of whole large pages: where it begins and ends."""
    for line in maps.splitlines():
        addresses, access, _, _, inode, *named = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and (not named or named[0].startswith(("[heap]", "[anon"))):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            begin, end = -(-begin // large) * large, end // large * large
            if begin < end:
                yield begin, end


def _in_use(pagemap: BinaryIO, start: int, end: int, large: int) -> Iterator[tuple[int, int]]:
    """The parts of a region whose large pages would be in use for half or more: most of what is reserved never is."""
    small = large // mmap.PAGESIZE
    pagemap.seek(start // mmap.PAGESIZE * 8)
    entries = np.frombuffer(pagemap.read((end - start) // mmap.PAGESIZE * 8), "<u8")
    present = entries[: len(entries) // small * small] >> np.uint64(63)  # the highest bit says so
    dense = present.reshape(-1, small).sum(axis=1) >= small / 2
    edges = np.flatnonzero(np.diff(np.concatenate(([False], dense, [False])).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield start + first * large, start + last * large
