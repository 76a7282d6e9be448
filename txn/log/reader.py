"""Reading the log back: every record in order, torn tails cut, damage reported.

An invalid frame is either the torn end of what was being written when the machine stopped, which was never
acknowledged, or damage to something acknowledged. A later mark that claims more to be on disk tells the two apart. Only
the last segment can be torn; every other one ends where the next one says, with the chain the next one says.
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
    READABLE,
    Any_,
    Asked,
    Checkpoint,
    Executed,
    Mark,
    Record,
    Resumed,
    Segment,
    Skipped,
    Upgraded,
    body_of,
    decode,
    decode_raw,
    kind_of,
    seal,
)

UNAPPLIED = frozenset({Segment, Mark, Checkpoint, Skipped, Upgraded})  # they are about the log, not about the engine
ABOUT_THE_LOG: frozenset[type[Record]] = frozenset({Checkpoint, Skipped, Upgraded})
OUTCOMES: frozenset[type[Record]] = frozenset({Executed, Asked, Resumed})
BEFORE_A_REPLAY = {
    "weak": ABOUT_THE_LOG | OUTCOMES
}  # what must be known, by mode; otherwise only what is about the log
OLDER = "open it with the release that wrote it and copy the rows over, or start with a new directory"
TOLD_EVERY = 1 << 18  # bytes
MARK = body_of(Mark(0))[:2]  # how the body of every mark begins
MARK_BYTES = len(body_of(Mark(2**63, 2**32 - 1)))  # of the longest mark


class Entry(NamedTuple):
    """A record: the LSN of its frame, the LSN after it, and its kind. It is decoded on access."""

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
    """The log of one directory, from ``start`` (an LSN) to its end. ``end``, ``chain`` (the crc32 of the last frame
    before it) and ``cut`` are known once it has been read.

    ``at``: in a replay, the LSN of the record read last.
    ``segment``: the header of the segment that the last entry came from. ``applied``: the headers of segments with records
    that a replay applies, each with the LSN of the last of them.
    ``survey``: check everything, but yield only what must be known before a replay.
    """

    def __init__(self, files: Files, start: int = 0, survey: bool = False) -> None:
        self._files = files
        self._start = start
        self._survey = survey
        self.applied: list[tuple[Segment, int]] = []
        self.end = self.at = start
        self.chain = 0
        self.cut: Cut | None = None
        self.segment: Segment | None = None
        self._before = ""  # the name of the segment that was read last

    def __iter__(self) -> Iterator[Entry]:
        for name, begin, last in self._segments():
            yield from self._entries(name, begin, last)

    def records(self, chain: int, reached: Callable[[int], None] = lambda lsn: None) -> Iterator[Any_]:
        """Only the records, of a log that was read before and has no torn tail any more. The fast path for a replay.

        ``chain``: the expected crc32 of the frame before ``start``; a log with a different one is refused. Rows of
        chunks are left as bytes. ``reached(lsn)`` is called from time to time.
        """
        header, length, crc32 = HEADER.unpack_from, HEADER.size, zlib.crc32
        for name, begin, _ in self._segments():
            data = self._files.read(name)
            offset, before = self._place(name, begin, data, chain)
            total, told = len(data), offset
            while offset < total:
                size, crc = header(data, offset)
                end = offset + length + size
                body = data[offset + length : end]
                if crc32(body, before) != crc:
                    raise self._damaged(name, offset, begin + offset)
                before = crc
                try:
                    record = decode_raw(body)
                except msgspec.MsgspecError:
                    raise _unknown(name, begin + offset) from None
                if type(record) not in UNAPPLIED:
                    self.at = begin + offset
                    yield record
                offset = end
                if offset - told > TOLD_EVERY:
                    told = offset
                    reached(begin + offset)
            self.end = begin + offset

    def _place(self, name: str, begin: int, data: bytes, chain: int) -> tuple[int, int]:
        """Where in a segment a replay begins to read, and the crc32 that its first frame continues."""
        if begin > self._start:
            return 0, 0
        offset = before = found = 0
        while offset < len(data) and begin + offset <= self._start:
            size, crc = HEADER.unpack_from(data, offset)
            body = data[offset + HEADER.size : offset + HEADER.size + size]
            if offset == 0:
                found = _header(name, begin, body).previous
            if begin + offset == self._start:
                break
            if zlib.crc32(body, before) != crc:
                raise self._damaged(name, offset, begin + offset)
            before = found = crc
            offset += HEADER.size + size
        if begin + offset != self._start or found != chain:
            raise RecoveryRefused(
                f"base.duckdb holds the log up to LSN {self._start}, but log segment {name} has different records there: they "
                f"come from copies of one directory that were used separately. Put back the files of one copy; if this is "
                f"the right log, move base.duckdb away: it is rebuilt from the rest",
                file=name,
            )
        return offset, before

    def _segments(self) -> Iterator[tuple[str, int, bool]]:
        """Name and first LSN of each segment to read, and whether it is the last; raises where one is missing."""
        names = self._files.names()
        starts = [begin_of(name) for name in names]
        unread = True
        for place, (name, begin) in enumerate(zip(names, starts, strict=True)):
            last = place == len(names) - 1
            if not last and starts[place + 1] <= self._start:
                continue
            whole = begin <= self._start or self._start == 0 if unread else begin == self.end
            if not whole:
                raise LogDamaged(
                    f"the log has a gap: {name} begins at {begin}, but the log before it"
                    f"{f' ({self._before})' if self._before else ''} ends at {self.end}; a segment is "
                    f"missing or cut short. Restore it from a backup",
                    file=name,
                    offset=0,
                    lsn=self.end,
                )
            unread = False
            yield name, begin, last

    def _entries(self, name: str, begin: int, last: bool) -> Iterator[Entry]:
        data = self._files.read(name)
        total, offset, applied, chain = len(data), 0, -1, 0
        header, length, crc32 = HEADER.unpack_from, HEADER.size, zlib.crc32
        lsn = self.end = begin
        wanted = frozenset(KINDS.values()) - {Segment, Mark}
        while offset < total:
            size, crc = header(data, offset) if offset + length <= total else (0, 0)
            body = data[offset + length : offset + length + size]
            if not size or len(body) != size or crc32(body, chain) != crc:
                self._bad(name, data, offset, begin, last)
                break
            if offset == 0:
                segment = self._follow(name, begin, body)
                if self._survey:
                    wanted = BEFORE_A_REPLAY.get(segment.mode, ABOUT_THE_LOG)
            kind = kind_of(body)
            if kind is None:
                raise _unknown(name, lsn)
            chain = crc
            offset += length + size
            self.end = end = begin + offset
            if lsn >= self._start:
                if kind not in UNAPPLIED:
                    applied = lsn
                if kind in wanted:
                    yield Entry(lsn, end, kind, body, name)
            lsn = end
        if not data and not last:
            raise self._damaged(name, 0, begin)
        if offset:
            self.chain = chain
            self._before = name
        if applied >= 0 and self.segment is not None:
            self.applied.append((self.segment, applied))

    def _follow(self, name: str, begin: int, body: bytes) -> Segment:
        """A segment begins: check that it is the next one, and of the same directory."""
        segment, before = _header(name, begin, body), self.segment
        if before is not None and segment.directory != before.directory:
            raise RecoveryRefused(
                f"log segment {name} belongs to directory {segment.directory}, but {self._before} before it belongs to "
                f"{before.directory}: a file of another directory was copied in. Put back the right one",
                file=name,
            )
        if before is not None and (segment.number, segment.previous) != (before.number + 1, self.chain):
            raise LogDamaged(
                f"log segment {name} does not continue where {self._before} ends: it is segment {segment.number} and follows "
                f"checksum {segment.previous:08x}, but before it is segment {before.number} with {self.chain:08x}. One of them "
                f"was taken from another copy of the directory, or records at the end are missing. Restore both from one "
                f"backup, then open again",
                file=name,
                offset=0,
                lsn=begin,
            )
        self.segment = segment
        return segment

    def _bad(self, name: str, data: bytes, offset: int, begin: int, last: bool) -> None:
        """A frame is invalid: cut a torn tail, refuse damage.

        A header is on disk before anything is written after it. So after an invalid header any mark means damage,
        whichever directory it is of.
        """
        lsn = begin + offset
        directory = None if offset == 0 or self.segment is None else self.segment.directory
        if not last or _claims_beyond(data, offset, lsn, directory):
            raise self._damaged(name, offset, lsn)
        self.cut = Cut(name, offset, len(data) - offset)

    def _damaged(self, name: str, offset: int, lsn: int) -> LogDamaged:
        return LogDamaged(
            f"log segment {name} is damaged at byte {offset} (LSN {lsn}): the record there was acknowledged and can't be "
            f"read, or is not the one that belongs there. Nothing after it was replayed. Restore the file from a backup, "
            f"then open again",
            file=name,
            offset=offset,
            lsn=lsn,
        )


def begin_of(name: str) -> int:
    """The LSN that a segment begins at, by its name."""
    try:
        return int(name.removesuffix(".log"))
    except ValueError:
        raise RecoveryRefused(
            f"the log has a file {name}, which is not a segment: segments are named after the LSN they begin at. Move it away",
            file=name,
        ) from None


def _header(name: str, begin: int, body: bytes) -> Segment:
    """The header that a segment begins with; raises if it is missing, of another format, or of another segment."""
    if kind_of(body) is not Segment:
        raise LogDamaged(
            f"log segment {name} does not begin with a header, but with another record: its beginning is missing. Restore "
            f"the file from a backup, then open again",
            file=name,
            offset=0,
            lsn=begin,
        )
    written = msgspec.msgpack.decode(body)[1]
    if written not in READABLE:
        raise RecoveryRefused(
            f"log segment {name} has format {written}, this tidegate reads format {FORMAT}; "
            + ("upgrade tidegate" if written > FORMAT else OLDER)
        )
    segment = _decoded(body, name, begin)
    assert isinstance(segment, Segment)
    if segment.begin != begin:
        raise LogDamaged(
            f"the header of log segment {name} says that it begins at LSN {segment.begin}: it was renamed, or swapped with "
            f"another. Give every segment its own name ({segment.begin:020d}.log), then open again",
            file=name,
            offset=0,
            lsn=begin,
        )
    return segment


def _decoded(body: bytes, name: str, lsn: int) -> Any_:
    try:
        return decode(body)
    except msgspec.MsgspecError:
        raise _unknown(name, lsn) from None


def _unknown(name: str, lsn: int) -> RecoveryRefused:
    """A valid frame that can't be decoded is not damage: it is never cut."""
    return RecoveryRefused(
        f"log segment {name} holds a record at byte {lsn - begin_of(name)} of a kind this tidegate does not "
        f"know; a newer release wrote it: upgrade tidegate"
    )


def _claims_beyond(data: bytes, offset: int, lsn: int, directory: str | None) -> bool:
    """Does a mark (of this directory), anywhere after ``offset``, say that the log is on disk beyond ``lsn``?"""
    place = data.find(MARK, offset + HEADER.size)
    while place >= 0:
        size, _ = HEADER.unpack_from(data, place - HEADER.size)
        if size <= MARK_BYTES and _claimed(data[place : place + size], directory) > lsn:
            return True
        place = data.find(MARK, place + 1)
    return False


def _claimed(body: bytes, directory: str | None) -> int:
    try:
        mark = decode(body)
    except msgspec.MsgspecError:
        return -1
    if not isinstance(mark, Mark) or mark.synced < 0:
        return -1
    return mark.synced if directory is None or mark.seal == seal(directory, mark.synced) else -1
