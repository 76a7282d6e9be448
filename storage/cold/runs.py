"""Runs: sorted, immutable sets of packed rows, in a file or in memory.

A run is a hash table that was written in one go. Its *pages* hold the records whose hashes begin alike, ascending, 8 to 16
of them; a filter says of most keys that the run does not have them; a directory says where the pages are::

    MAGIC  page page page …  directory  filter  footer  its length, its crc32, MAGIC
    page = count, hashes, ends, records            directory = where each begins, and its crc32

Every byte is covered by a crc32, which is compared when the byte is read: for a page each time, for the rest when the run is
opened. A run that is damaged raises :class:`Damaged`, and never answers.

A record is a packed row, or the packed key of a row that is *gone*: runs lie over each other, and the newest says so.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from tidegate.errors import TidegateError
from tidegate.storage.cold.packing import Hashes, Packing
from tidegate.storage.schema import Key, Row

MAGIC = b"tgrun\x001\n"
PER_PAGE = 16  # records at most, on average
BITS = 12  # of the filter, for each record
GONE = 1 << 31  # in the end of a record: it is the key of a row that is gone
MIX = 0x9E3779B1
_TAIL = struct.Struct("<II8s")
_ENDS = struct.Struct("<II").unpack_from
PART = 1 << 18  # records of a merge of runs that are in memory at a time
ABSENT: Final[Any] = object()  # nothing is known of the key here


class Damaged(TidegateError):
    """A run can't be read as it was written."""


class Entries(NamedTuple):
    """Records, ascending by hash."""

    hashes: Hashes
    records: list[bytes]
    gone: np.ndarray[Any, np.dtype[np.bool_]]


def in_order(hashes: Hashes, records: Sequence[bytes], gone: np.ndarray[Any, np.dtype[np.bool_]]) -> Entries:
    order = np.argsort(hashes, kind="stable")
    return Entries(hashes[order], [records[i] for i in order.tolist()], gone[order])


def mask_of(spread: int) -> int:
    """The bits of a key in its word of the filter."""
    mixed = spread * MIX & 0xFFFFFFFF
    return 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63) | 1 << (mixed >> 18 & 63)


def masks_of(hashes: Hashes) -> np.ndarray[Any, np.dtype[np.uint64]]:
    mixed = (hashes.astype(np.uint64) * np.uint64(MIX)) & np.uint64(0xFFFFFFFF)
    one, low = np.uint64(1), np.uint64(63)
    mask = one << (mixed & low)
    for shift in (6, 12, 18):
        mask |= one << ((mixed >> np.uint64(shift)) & low)
    return mask


class Run:
    """A run that can be read. ``path`` is None in memory. Any number of threads may read."""

    def __init__(self, content: Any, path: Path | None) -> None:
        self.path = path
        self._content = content
        size = len(content)
        if size < len(MAGIC) + _TAIL.size or bytes(content[: len(MAGIC)]) != MAGIC:
            raise Damaged(f"{_told(path)} does not begin as a run of rows", path=path)
        length, crc, magic = _TAIL.unpack_from(content, size - _TAIL.size)
        begin = size - _TAIL.size - length
        if magic != MAGIC or begin < len(MAGIC) or crc32(content[begin : begin + length]) != crc:
            raise Damaged(f"{_told(path)} does not end as it was written", path=path)
        facts = msgspec.json.decode(content[begin : begin + length])
        self.rows: int = facts["rows"]
        self.size = size
        self.mark: int = crc  # of the footer, which names the crc32 of everything else
        self._shift = 32 - facts["bits"]
        pages = 1 << facts["bits"]
        self._begins = _view(self._part(facts["begins"], "<u8", pages + 1))
        self._crcs = _view(self._part(facts["crcs"], "<u4", pages))
        self._filter = self._part(facts["filter"], "<u8", facts["words"])
        self._words = _view(self._filter)
        self._count = facts["words"]

    def _part(self, place: Sequence[int], kind: str, count: int) -> np.ndarray[Any, Any]:
        begin, crc = place
        part = bytes(self._content[begin : begin + count * np.dtype(kind).itemsize])
        if crc32(part) != crc:
            raise Damaged(f"{_told(self.path)} has a damaged directory", path=self.path)
        return np.frombuffer(part, kind)

    @property
    def held(self) -> int:
        """Bytes in memory as long as it is open, whatever the operating system keeps of the file."""
        directory: int = 12 * len(self._crcs) + 8 * self._count
        return directory if self.path is not None else directory + self.size

    # ---- one key

    def find(self, spread: int, mask: int, key: Key, packing: Packing) -> Any:
        """The row with this key, None when it is gone, or ABSENT."""
        if self._words[spread * self._count >> 32] & mask != mask:
            return ABSENT
        number = spread >> self._shift
        begins = self._begins
        page = self._content[begins[number] : begins[number + 1]]
        if crc32(page) != self._crcs[number]:
            raise self._damaged(number)
        if not page:
            return ABSENT
        count = int.from_bytes(page[:4], "little")
        ends = 4 + 4 * count
        wanted = spread.to_bytes(4, "little")
        at = page.find(wanted, 4, ends)
        while at >= 0:
            if not at & 3:
                begin, end = _ENDS(page, ends + at - 4)
                records = 8 + 8 * count
                record = page[records + (begin & ~GONE) : records + (end & ~GONE)]
                if end & GONE:
                    if packing.key(record) == key:
                        return None
                else:
                    row = packing.row(record)
                    if packing.key_of(row) == key:
                        return row
            at = page.find(wanted, at + 1, ends)
        return ABSENT

    def find_all(self, spread: int, mask: int, most: int) -> list[bytes] | None:
        """The records with this hash; None when there are more than ``most``."""
        if self._words[spread * self._count >> 32] & mask != mask:
            return []
        number = spread >> self._shift
        if self._begins[number + 1] - self._begins[number] > 64 * most:
            return None
        entries = self._page(number)
        low, high = np.searchsorted(entries.hashes, [spread, spread + 1])
        return None if high - low > most else entries.records[low:high]

    def may_have(self, hashes: Hashes, masks: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, Any]:
        """Which of these keys it may have."""
        words = self._filter[(hashes.astype(np.uint64) * np.uint64(self._count)) >> np.uint64(32)]
        there: np.ndarray[Any, Any] = (words & masks) == masks
        return there

    # ---- all of it

    def entries(self, low: int, high: int) -> Entries:
        """The records with hashes from ``low`` up to ``high``, in order."""
        parts = [self._page(number) for number in range(low >> self._shift, ((high - 1) >> self._shift) + 1)]
        hashes = np.concatenate([part.hashes for part in parts])
        gone = np.concatenate([part.gone for part in parts])
        records = [record for part in parts for record in part.records]
        first, last = np.searchsorted(hashes, [low, high])
        return Entries(hashes[first:last], records[first:last], gone[first:last])

    def _page(self, number: int) -> Entries:
        page = self._content[self._begins[number] : self._begins[number + 1]]
        if crc32(page) != self._crcs[number]:
            raise self._damaged(number)
        if not page:
            return _NONE
        count = int.from_bytes(page[:4], "little")
        hashes = np.frombuffer(page, "<u4", count, 4)
        ends = np.frombuffer(page, "<u4", count + 1, 4 + 4 * count)
        places = ((ends & 0x7FFFFFFF) + np.uint32(8 + 8 * count)).tolist()
        records = [page[places[i] : places[i + 1]] for i in range(count)]
        return Entries(hashes, records, ends[1:] >= GONE)

    def _damaged(self, number: int) -> Damaged:
        return Damaged(f"{_told(self.path)} is damaged: page {number} is not as it was written", path=self.path)


def _view(array: Any) -> memoryview:
    """Its items are read one by one as Python's numbers, faster than those of the array."""
    return memoryview(array)


_NONE = Entries(np.empty(0, np.uint32), [], np.empty(0, np.bool_))


def _told(path: Path | None) -> str:
    return "a run of rows in memory" if path is None else f"{path.parent.name}/{path.name}"


def open_run(path: Path) -> Run:
    """A run in a file. It is mapped, so its pages are the operating system's to keep or to drop."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise Damaged(f"{_told(path)} can't be read: {error}", path=path) from error
    mapped.madvise(mmap.MADV_RANDOM)
    return Run(mapped, path)


def write_run(path: Path | None, rows: int, parts: Iterable[Entries]) -> Run:
    """A new run of about so many records, which come in ascending parts. A file is complete, and not on disk yet."""
    target: Any = bytearray() if path is None else path.open("wb", buffering=1 << 20)
    write = target.extend if path is None else target.write
    bits = max(0, (max(rows, 1) // PER_PAGE).bit_length())
    shift, pages = 32 - bits, 1 << bits
    begins, crcs = np.zeros(pages + 1, np.uint64), np.zeros(pages, np.uint32)
    words = max(1, rows * BITS // 64)
    filter_ = np.zeros(words, np.uint64)
    write(MAGIC)
    at, total, reached = len(MAGIC), 0, 0
    try:
        for part in parts:
            if not len(part.hashes):
                continue
            np.bitwise_or.at(filter_, (part.hashes.astype(np.uint64) * np.uint64(words)) >> np.uint64(32),
                             masks_of(part.hashes))  # fmt: skip
            total += len(part.hashes)
            for number, page in _pages(part, shift):
                begins[reached : number + 1] = at
                write(page)
                crcs[number] = crc32(page)
                at, reached = at + len(page), number + 1
        begins[reached:] = at
        facts: dict[str, Any] = {"rows": total, "bits": bits, "words": words}
        for name, array in (("begins", begins), ("crcs", crcs), ("filter", filter_)):
            raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
            facts[name] = [at, crc32(raw)]
            write(raw)
            at += len(raw)
        footer = msgspec.json.encode(facts)
        write(footer + _TAIL.pack(len(footer), crc32(footer), MAGIC))
    finally:
        if path is not None:
            target.close()
    return Run(bytes(target), None) if path is None else open_run(path)


def _pages(part: Entries, shift: int) -> Iterator[tuple[int, bytes]]:
    """The pages of a part that begins and ends with a page."""
    records, count = part.records, len(part.hashes)
    lengths = np.fromiter(map(len, records), np.uint32, count)
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])
    numbers = part.hashes >> np.uint32(shift) if shift < 32 else np.zeros(count, np.uint32)
    firsts = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), numbers[1:] != numbers[:-1]])).tolist()
    flags = part.gone.astype(np.uint32) << np.uint32(31)
    for first, last in zip(firsts, [*firsts[1:], count], strict=True):
        marks = (ends[first : last + 1] - ends[first]).astype("<u4")
        marks[1:] |= flags[first:last]
        yield (
            int(numbers[first]),
            b"".join(
                [
                    (last - first).to_bytes(4, "little"),
                    part.hashes[first:last].astype("<u4").tobytes(),
                    marks.tobytes(),
                    *records[first:last],
                ]
            ),
        )


def merged(runs: Sequence[Run], packing: Packing, whole: bool, part: int = PART) -> Iterator[Entries]:
    """The records of runs, the newest first, as those of one. ``whole``: there are none below, so what is gone is left out."""
    total = sum(run.rows for run in runs)
    if not total:
        return
    bits = max(0, (total // part).bit_length())
    step = 1 << (32 - bits)
    for low in range(0, 1 << 32, step):
        parts = [run.entries(low, low + step) for run in runs]
        hashes = np.concatenate([one.hashes for one in parts])
        if not len(hashes):
            continue
        entries = in_order(
            hashes, [r for one in parts for r in one.records], np.concatenate([one.gone for one in parts])
        )
        yield _newest(entries, packing, whole)


def _newest(entries: Entries, packing: Packing, whole: bool) -> Entries:
    """Of each key the first record."""
    hashes, records, gone = entries
    keep = ~gone if whole else np.ones(len(hashes), np.bool_)
    same = np.flatnonzero(hashes[1:] == hashes[:-1]).tolist()
    known: set[Any] = set()
    before = -1
    for place in same:
        if place != before:
            known = {_key(packing, records[place], bool(gone[place]))}
        key = _key(packing, records[place + 1], bool(gone[place + 1]))
        if key in known:
            keep[place + 1] = False
        known.add(key)
        before = place + 1
    chosen = np.flatnonzero(keep)
    return Entries(hashes[chosen], [records[i] for i in chosen.tolist()], gone[chosen])


def _key(packing: Packing, record: bytes, gone: bool) -> Any:
    return packing.key(record) if gone else packing.key_of(packing.row(record))


def pack_rows(packing: Packing, rows: Iterable[Row], gone: Sequence[Key] = ()) -> Entries:
    """Rows, and keys whose rows are gone, in order. No key comes twice."""
    taken = list(rows)
    places = [*map(packing.place_of, taken), *gone]
    records = [*map(packing.pack, taken), *map(packing.pack_key, gone)]
    flags = np.zeros(len(places), np.bool_)
    flags[len(taken) :] = True
    return in_order(packing.spread_all(places), records, flags)
