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
    """The log of one directory, from ``start`` (an LSN) to its end. ``end`` and ``cut`` are known when it is read.

    ``segment``: the header of the segment that the last entry came from.
    """

    def __init__(self, files: Files, start: int = 0) -> None:
        self._files = files
        self._start = start
        self.end = start
        self.cut: Cut | None = None
        self.segment: Segment | None = None

    def __iter__(self) -> Iterator[Entry]:
        names = self._files.names()
        starts = [int(name.removesuffix(".log")) for name in names]
        unread = True
        for place, (name, begin) in enumerate(zip(names, starts, strict=True)):
            last = place == len(names) - 1
            if not last and starts[place + 1] <= self._start:
                continue
            whole = begin <= self._start or self._start == 0 if unread else begin == self.end
            if not whole:
                raise LogDamaged(
                    f"the log has a gap: {name} begins at {begin}, but what is before it ends at {self.end}; a segment is "
                    f"missing or cut short. Restore it from a backup",
                    file=name,
                    offset=0,
                    lsn=self.end,
                )
            unread = False
            yield from self._entries(name, begin, last)

    def _entries(self, name: str, begin: int, last: bool) -> Iterator[Entry]:
        data = self._files.read(name)
        offset = 0
        self.end = begin
        while offset < len(data):
            body = _body(data, offset)
            if body is None:
                self._bad(name, data, offset, begin, last)
                return
            lsn, offset = begin + offset, offset + HEADER.size + len(body)
            record = self._decoded(name, lsn - begin, body)
            self.end = begin + offset
            if isinstance(record, Segment):
                self._check_format(name, record)
            elif lsn >= self._start and not isinstance(record, Mark):
                yield Entry(lsn, self.end, record)
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
            file=name,
            offset=offset,
            lsn=lsn,
        )

    def _decoded(self, name: str, offset: int, body: bytes) -> Any_:
        """A sound frame that can't be decoded is not damage: never cut it."""
        try:
            return decode(body)
        except msgspec.MsgspecError:
            raise RecoveryRefused(
                f"log segment {name} holds a record at byte {offset} of a kind this tidegate does not know; a newer one wrote "
                f"it: upgrade tidegate"
            ) from None

    def _check_format(self, name: str, segment: Segment) -> None:
        if segment.format > FORMAT:
            raise RecoveryRefused(
                f"log segment {name} has format {segment.format}, this tidegate knows up to {FORMAT}; upgrade tidegate"
            )
        self.segment = segment


def _body(data: bytes, offset: int) -> bytes | None:
    """The body of the frame at ``offset``, or None when there is no whole and sound one."""
    if offset + HEADER.size > len(data):
        return None
    size, crc = HEADER.unpack_from(data, offset)
    if not 0 < size <= MAX_BODY or offset + HEADER.size + size > len(data):
        return None
    body = data[offset + HEADER.size : offset + HEADER.size + size]
    return body if zlib.crc32(body) == crc else None


def _claims_beyond(data: bytes, offset: int, lsn: int) -> bool:
    """Is there, anywhere after ``offset``, a mark that says that the log is on disk beyond ``lsn``?"""
    for place in range(offset + 1, len(data) - HEADER.size):
        size = int.from_bytes(data[place : place + 4], "little")
        if 0 < size <= 16:  # marks are small
            body = _body(data, place)
            if body is not None and _synced(body) > lsn:
                return True
    return False


def _synced(body: bytes) -> int:
    try:
        record = decode(body)
    except msgspec.MsgspecError:
        return -1
    return record.synced if isinstance(record, Mark) else -1
