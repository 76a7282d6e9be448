"""Large tables in large pages.

A row that is read anywhere in a large table lies on a page of memory that was not in use a moment ago. To find out where a page
is takes the processor longer than to read it, most of all in a virtual machine, and there are half a dozen of them to a row. In
pages of 2 MB instead of 4 KB there are few enough to remember. Linux makes such pages of memory that asks for it (``madvise``),
unless ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``never``; other systems are left alone.

What it is worth: ``bench growth``, "rows of state, anywhere".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.database import Database

MANY = 100_000  # rows; fewer are in reach of the processor anyway
GROWN = 1.5  # so many times as many as when it was last asked for

_SIZE = 2 << 20
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise: you may at any time; do so now (Linux 6.1)
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMORY = Path("/proc/self/smaps")
_REGION = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 +(?:\[heap\]|\[anon:.*\])?\n"
    r"(?:(?![0-9a-f]+-).*\n)*?Rss: +(\d+) kB\n(?:(?![0-9a-f]+-).*\n)*?AnonHugePages: +(\d+) kB",
    re.MULTILINE,
)


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
    """Have the memory of this process that is in use put into large pages; returns how many bytes were asked for."""
    try:
        if "[never]" in _SETTING.read_text():
            return 0
        regions = list(_regions(_MEMORY.read_text()))
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):  # not Linux
        return 0
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, size in regions:
        madvise(start, size, _HUGEPAGE)  # whether it is done is up to the system
        madvise(start, size, _COLLAPSE)
    return sum(size for _, size in regions)


def _regions(text: str) -> Iterator[tuple[int, int]]:
    """Memory that is in use for the most part, and not in large pages yet: where it begins, and its size.

    Not the stacks of threads, for example: 8 MB each, of which a few KB are in use.
    """
    for found in _REGION.finditer(text):
        first, last = (int(found[i], 16) for i in (1, 2))
        start, end = -(-first // _SIZE) * _SIZE, last // _SIZE * _SIZE
        resident, large = (int(found[i]) << 10 for i in (3, 4))
        if end > start and resident > (last - first) / 2 and large < (end - start) * 0.9:
            yield start, end - start
