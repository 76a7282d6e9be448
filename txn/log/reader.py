"""Reading the log back: every record in order, torn tails cut, damage named.

A frame that does not check is either the torn end of what was being written when the machine stopped, which nobody was
told about, or damage to something acknowledged. A mark behind it that claims more to be on disk tells the two apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from tidegate.errors import LogDamaged, RecoveryRefused
from tidegate.txn.log.files import Files
from tidegate.txn.log.record import (
    FORMAT,
    HEADER,
    KINDS,
    MAX_BODY,
    Any_,
    Checkpoint,
    Executed,
    Mark,
    Record,
    Segment,
    decode,
    decode_raw,
    kind_of,
)

UNAPPLIED = frozenset({Segment, Mark, Checkpoint})  # they say something about the log, not about the engine
CHECKPOINTS: frozenset[type[Record]] = frozenset({Checkpoint})
BEFORE_A_REPLAY = {"weak": CHECKPOINTS | {Executed}}  # what must be known, by mode; else checkpoints alone
TOLD_EVERY = 1 << 18  # bytes


class Entry(NamedTuple):
    """A record: the LSN of its frame, the LSN after it, and its kind. It is decoded when someone asks for it."""

    lsn: int
    end: int
    kind: type[Record]
    body: bytes
    file: str

    @property
    def record(self) -> Any_:
        return _decoded(self.body, self.file, self.lsn)


class Cut(NamedTuple):
    """A torn tail that was cut off: where, and how many bytes."""

    file: str
    offset: int
    size: int


class LogReader:
    """The log of one directory, from ``start`` (an LSN) to its end. ``end`` and ``cut`` are known when it is read.

    ``segment``: the header of the segment that the last entry came from. ``applied``: the headers of segments with records
    that a replay applies, each with the LSN of the last of them.
    ``survey``: check everything, but give only what must be known before a replay.
    """

    def __init__(self, files: Files, start: int = 0, survey: bool = False) -> None:
        self._files = files
        self._start = start
        self._survey = survey
        self.applied: list[tuple[Segment, int]] = []
        self.end = start
        self.cut: Cut | None = None
        self.segment: Segment | None = None

    def __iter__(self) -> Iterator[Entry]:
        for name, begin, last in self._segments():
            yield from self._entries(name, begin, last)

    def records(self, reached: Callable[[int], None] = lambda lsn: None) -> Iterator[Any_]:
        """The records alone, of a log that was gone through before and has no torn tail any more. The short way for a replay.

        Rows of chunks are left as bytes. ``reached(lsn)`` is called now and then.
        """
        header, length, crc32, start = HEADER.unpack_from, HEADER.size, zlib.crc32, self._start
        for name, begin, _ in self._segments():
            data = self._files.read(name)
            total, offset, told = len(data), 0, 0
            while offset < total:
                size, crc = header(data, offset)
                end = offset + length + size
                body = data[offset + length : end]
                if crc32(body) != crc:
                    raise self._damaged(name, offset, begin + offset)
                try:
                    record = decode_raw(body)
                except msgspec.MsgspecError:
                    raise _unknown(name, begin + offset) from None
                if begin + offset >= start and type(record) not in UNAPPLIED:
                    yield record
                offset = end
                if offset - told > TOLD_EVERY:
                    told = offset
                    reached(begin + offset)
            self.end = begin + offset

    def _segments(self) -> Iterator[tuple[str, int, bool]]:
        """Name and first LSN of each segment to read, and whether it is the last; raises where one is missing."""
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
            yield name, begin, last

    def _entries(self, name: str, begin: int, last: bool) -> Iterator[Entry]:
        data = self._files.read(name)
        total, offset, applied = len(data), 0, -1
        header, length, crc32 = HEADER.unpack_from, HEADER.size, zlib.crc32
        lsn = self.end = begin
        wanted = frozenset(KINDS.values()) - {Segment, Mark}
        while offset < total:
            size, crc = header(data, offset) if offset + length <= total else (0, 0)
            body = data[offset + length : offset + length + size]
            if not size or len(body) != size or crc32(body) != crc:
                self._bad(name, data, offset, begin, last)
                break
            kind = kind_of(body)
            if kind is None:
                raise _unknown(name, lsn)
            offset += length + size
            self.end = end = begin + offset
            if kind is Segment:
                segment = self._check_format(name, _decoded(body, name, lsn))
                if self._survey:
                    wanted = BEFORE_A_REPLAY.get(segment.mode, CHECKPOINTS)
            elif lsn >= self._start:
                if kind not in UNAPPLIED:
                    applied = lsn
                if kind in wanted:
                    yield Entry(lsn, end, kind, body, name)
            lsn = end
        if not data and not last:
            raise self._damaged(name, 0, begin)
        if applied >= 0 and self.segment is not None:
            self.applied.append((self.segment, applied))

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

    def _check_format(self, name: str, segment: Any_) -> Segment:
        assert isinstance(segment, Segment)
        if segment.format > FORMAT:
            raise RecoveryRefused(
                f"log segment {name} has format {segment.format}, this tidegate knows up to {FORMAT}; upgrade tidegate"
            )
        self.segment = segment
        return segment


def _decoded(body: bytes, name: str, lsn: int) -> Any_:
    try:
        return decode(body)
    except msgspec.MsgspecError:
        raise _unknown(name, lsn) from None


def _unknown(name: str, lsn: int) -> RecoveryRefused:
    """A sound frame that can't be decoded is not damage: it is never cut."""
    return RecoveryRefused(
        f"log segment {name} holds a record at byte {lsn - int(name.removesuffix('.log'))} of a kind this tidegate does not "
        f"know; a newer one wrote it: upgrade tidegate"
    )


def _body(data: bytes, offset: int) -> bytes | None:
    """The body of the frame at ``offset``, or None when there is no whole and sound one."""
    begin = offset + HEADER.size
    if begin > len(data):
        return None
    size, crc = HEADER.unpack_from(data, offset)
    body = data[begin : begin + size]
    return body if 0 < size <= MAX_BODY and len(body) == size and zlib.crc32(body) == crc else None


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
