"""Reading the log back: every record once, torn tails cut, damage named.

A frame that does not check is either the torn end of what was being written when the machine stopped, which nobody was
told about, or damage to something acknowledged. A mark behind it that claims more to be on disk tells the two apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tidegate.errors import LogDamaged, RecoveryRefused
from tidegate.txn.log.files import Files
from tidegate.txn.log.record import FORMAT, HEADER, MAX_BODY, Any_, Mark, Segment, decode


class Entry(NamedTuple):
    """A record, the LSN of its frame, and the LSN after it."""

    lsn: int
    end: int
    record: Any_


class Cut(NamedTuple):
    """A torn tail that was cut off: where, and how many bytes."""

    file: str
    offset: int
    size: int


class LogReader:
    """The log of one directory, from ``start`` (an LSN) to its end. ``end`` and ``cut`` are known when it is read."""

    def __init__(self, files: Files, start: int = 0) -> None:
        self._files = files
        self._start = start
        self.end = start
        self.cut: Cut | None = None
        self.segment: Segment | None = None

    def __iter__(self) -> Iterator[Entry]:
        names = [name for name in self._files.names()]
        starts = [int(name.removesuffix(".log")) for name in names]
        for place, (name, begin) in enumerate(zip(names, starts, strict=True)):
            last = place == len(names) - 1
            if not last and starts[place + 1] <= self._start:
                continue
            if begin > max(self.end, self._start) and not (place == 0 and self.end == self._start == 0):
                raise LogDamaged(
                    f"the log has a gap: {name} begins at {begin}, but what is before it ends at {self.end}; a segment "
                    f"is missing. Restore it from a backup", file=name, lsn=self.end,
                )
            yield from self._segment(name, begin, last)

    def _segment(self, name: str, begin: int, last: bool) -> Iterator[Entry]:
        data = self._files.read(name)
        offset = 0
        while offset < len(data):
            entry = _entry(data, offset, begin)
            if entry is None:
                self._bad(name, data, offset, begin, last)
                return
            offset = entry.end - begin
            self.end = entry.end
            if isinstance(entry.record, Segment):
                self._check_format(name, entry.record)
            elif entry.lsn >= self._start and not isinstance(entry.record, Mark):
                yield entry
        if not data and not last:
            raise self._damaged(name, 0, begin)

    def _bad(self, name: str, data: bytes, offset: int, begin: int, last: bool) -> None:
        """A frame does not check: cut a torn tail, refuse damage."""
        lsn = begin + offset
        if not last or _claims_beyond(data, offset, lsn):
            raise self._damaged(name, offset, lsn)
        self.cut = Cut(name, offset, len(data) - offset)

    def _damaged(self, name: str, offset: int, lsn: int) -> LogDamaged:
        return LogDamaged(
            f"log segment {name} is damaged at byte {offset} (LSN {lsn}): the record there was acknowledged and can't be "
            f"read. Nothing behind it was replayed. Restore the file from a backup, then open again",
            file=name, offset=offset, lsn=lsn,
        )

    def _check_format(self, name: str, segment: Segment) -> None:
        if segment.format > FORMAT:
            raise RecoveryRefused(
                f"log segment {name} has format {segment.format}, this tidegate knows up to {FORMAT}; upgrade tidegate"
            )
        self.segment = segment


def _entry(data: bytes, offset: int, begin: int) -> Entry | None:
    """The record at ``offset``, or None when there is no whole and sound one."""
    if offset + HEADER.size > len(data):
        return None
    size, crc = HEADER.unpack_from(data, offset)
    body = data[offset + HEADER.size : offset + HEADER.size + size]
    if not 0 < size <= MAX_BODY or len(body) != size or zlib.crc32(body) != crc:
        return None
    try:
        return Entry(begin + offset, begin + offset + HEADER.size + size, decode(body))
    except msgspec.MsgspecError:
        return None


def _claims_beyond(data: bytes, offset: int, lsn: int) -> bool:
    """Is there, anywhere after ``offset``, a mark that says that the log is on disk beyond ``lsn``?"""
    for place in range(offset + 1, len(data) - HEADER.size):
        size = int.from_bytes(data[place : place + 4], "little")
        if 0 < size <= 16:  # marks are small
            entry = _entry(data, place, 0)
            if entry is not None and isinstance(entry.record, Mark) and entry.record.synced > lsn:
                return True
    return False
