"""The files of one topic: segments of framed entries, as the command log has them (``txn/log/record.py``).

    frame   length u32 │ crc32 u32 │ body (msgpack)          crc32 continues that of the frame before it, in its segment

A segment is named after the offset of its first entry and begins with a header that says whose it is. What is appended waits
in memory until the log holds its cause on disk: a file never holds what a crash could undo. It is synced when a checkpoint
is about to rely on it, not before; what a crash takes from its end is emitted again by the replay.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, takewhile
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.crashpoints import crash_point
from tidegate.errors import DiskFull, LogDamaged, LogFailed
from tidegate.mutex import Rank, mutex
from tidegate.txn.log.files import sync_directory
from tidegate.txn.log.record import HEADER
from tidegate.txn.log.writer import NO_ROOM

FORMAT = 1
SEGMENT_BYTES = 16 << 20
WRITTEN_AT = 256 << 10  # bytes that may wait in memory before somebody writes them
INDEXED = 64  # entries from one place that is known to the next
READ_AT_ONCE = 256 << 10
PLACES = 256  # where readers stopped


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a segment. ``columns``: of the stream, when it was written."""

    format: int
    topic: str
    first: int
    columns: list[str]


class Place(NamedTuple):
    """Where an entry begins: its offset, its segment, the byte there, and the crc32 of the frame before it."""

    offset: int
    segment: int
    byte: int
    chain: int


class Raw(NamedTuple):
    """An entry as stored."""

    offset: int
    body: bytes


class _Waiting(NamedTuple):
    lsn: int
    segment: int
    byte: int
    frame: bytes
    end: int  # everything below this offset is written when this is


class Segments:
    """The files of one topic. ``append`` is called under the engine's lock; everything else from any thread."""

    def __init__(self, directory: Path, topic: str, columns: list[str]) -> None:
        self.directory = directory
        self._topic = topic
        self._columns = columns
        self.firsts: list[int] = []  # of the segments, ascending
        self.columns: dict[int, list[str]] = {}  # of each segment that was read
        self._index: dict[int, list[Place]] = {}
        self._stopped: OrderedDict[int, Place] = OrderedDict()  # where readers go on
        self._waiting: deque[_Waiting] = deque()
        self._taken_bytes = self._written_bytes = 0  # of what was appended, and of what was written
        self._end = Place(0, -1, 0, 0)
        self._writing = mutex(Rank.SYNCING)
        self._open: tuple[int, int] | None = None  # segment, handle
        self._unsynced: list[int] = []  # segments written to since the last sync
        self.failed: OSError | None = None
        self.written = 0  # everything below this offset is in the files
        self.on_disk = 0  # everything below this one was synced

    # ---- opening

    def begin(self, stands: Place, oldest: int) -> list[Raw]:
        """Continue at ``stands``, as a checkpoint says, with segments from ``oldest`` on; returns the entries after it.

        They were written before the engine stopped, and will be emitted again. A torn end is cut off.
        """
        if self.directory.exists():
            self.firsts = sorted(_first(path) for path in self.directory.glob("*.log"))
        else:
            self.directory.mkdir(mode=0o700, parents=True)
            sync_directory(self.directory.parent)
        for stray in [first for first in self.firsts if first < oldest]:
            self._remove(stray)
        self._end, self.on_disk = stands, stands.offset
        return self._ahead(stands)

    def _ahead(self, stands: Place) -> list[Raw]:
        found: list[Raw] = []
        later = [first for first in self.firsts if first >= stands.segment]
        for number, first in enumerate(later):
            path = self._path(first)
            data = path.read_bytes()
            if first == stands.segment:
                if len(data) < stands.byte:
                    raise self._missing(first, f"ends at byte {len(data)}, but the base says that it had {stands.byte}")
                self._end = stands
            elif first != self._end.offset or not self._begins(first, data):
                self._cut(later[number:])
                break
            for place, body in self._frames(first, data, self._end):
                found.append(Raw(self._end.offset, body))
                self._end = place
            if self._end.byte < len(data):
                os.truncate(path, self._end.byte)
                self._cut(later[number + 1 :])
                break
        if stands.segment >= 0 and stands.segment not in self.firsts:
            raise self._missing(stands.segment, "is gone")
        self.written = self._end.offset
        return found

    def _begins(self, first: int, data: bytes) -> bool:
        """Does a segment begin with a sound header? Then what follows continues from there."""
        found = _read_header(data)
        if found is None:
            return False
        header, byte, chain = found
        if header.first != first or header.topic != self._topic:
            return False
        self.columns[first] = header.columns
        self._end = Place(first, first, byte, chain)
        self._index[first] = [self._end]
        return True

    def _frames(self, segment: int, data: bytes, since: Place) -> Iterator[tuple[Place, bytes]]:
        """The entries of a segment after ``since``, each with the place behind it; stops where one is not sound."""
        offset, byte, chain = since.offset, since.byte, since.chain
        while byte + HEADER.size <= len(data):
            size, crc = HEADER.unpack_from(data, byte)
            body = data[byte + HEADER.size : byte + HEADER.size + size]
            if not size or len(body) != size or zlib.crc32(body, chain) != crc:
                return
            offset, byte, chain = offset + 1, byte + HEADER.size + size, crc
            yield Place(offset, segment, byte, chain), body

    def _cut(self, segments: list[int]) -> None:
        for first in segments:
            self._remove(first)

    def cut_back(self, place: Place) -> None:
        """Forget everything from ``place`` on: it was not emitted again."""
        self.flush(1 << 62)
        self._close_file()
        self._cut([first for first in self.firsts if first >= place.offset and first != place.segment])
        if place.segment >= 0:
            os.truncate(self._path(place.segment), place.byte)
        self._end, self.written = place, place.offset
        self._index = {first: [p for p in index if p.offset <= place.offset] for first, index in self._index.items()}
        self._stopped.clear()

    # ---- writing

    @property
    def stands(self) -> Place:
        """Where the next entry goes."""
        return self._end

    def append(self, body: bytes, lsn: int, ready: int) -> int:
        """Add an entry whose cause the log holds below ``lsn``; returns its offset. ``ready``: how far the log is on disk."""
        end = self._end
        if end.segment < 0 or end.byte >= SEGMENT_BYTES:
            end = self._new_segment(end.offset, lsn)
        crc = zlib.crc32(body, end.chain)
        frame = HEADER.pack(len(body), crc) + body
        if end.offset % INDEXED == 0 and end.segment in self._index:
            self._index[end.segment].append(end)
        self._waiting.append(_Waiting(lsn, end.segment, end.byte, frame, end.offset + 1))
        self._taken_bytes += len(frame)
        self._end = Place(end.offset + 1, end.segment, end.byte + len(frame), crc)
        if self.unwritten >= WRITTEN_AT and self._writing.acquire(blocking=False):
            try:
                self._write(ready)
            except OSError:
                pass  # inside a commit, which does not depend on it: a checkpoint or a reader tries again, and tells
            finally:
                self._writing.release()
        return end.offset

    def _new_segment(self, first: int, lsn: int) -> Place:
        body = msgspec.msgpack.encode(Header(FORMAT, self._topic, first, self._columns))
        chain = zlib.crc32(body)
        frame = HEADER.pack(len(body), chain) + body
        self._waiting.append(_Waiting(lsn, first, 0, frame, first))
        self._taken_bytes += len(frame)
        place = Place(first, first, len(frame), chain)
        self.columns[first], self._index[first] = self._columns, [place]
        self.firsts.append(first)
        return place

    def flush(self, ready: int) -> None:
        """Write what the log has on disk up to ``ready``."""
        with self._writing, self._telling():
            self._write(ready)

    def sync(self, ready: int) -> None:
        """The same, and return when it is on disk. A failed sync is final: it is unknown what is there."""
        with self._writing, self._telling():
            self._write(ready)
            for first in self._unsynced:
                handle = os.open(self._path(first), os.O_RDONLY)
                try:
                    os.fdatasync(handle)
                except OSError as error:
                    self.failed = error
                    raise
                finally:
                    os.close(handle)
            self._unsynced.clear()
            self.on_disk = max(self.on_disk, self.written)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        if self.failed is not None:
            raise self._refusal(self.failed) from self.failed
        try:
            yield
        except OSError as error:
            if self.failed is None and error.errno in NO_ROOM:
                raise DiskFull(
                    f"the disk with {self.directory} is full ({error}): nothing is lost, it is in the log. Free some space: work "
                    f"resumes by itself"
                ) from error
            self.failed = error
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> LogFailed:
        return LogFailed(
            f"a topic could not be written to disk in {self.directory} ({error}), so the engine stops here. Check the disk, then "
            f"open the app again: everything acknowledged is in the log, and is written again"
        )

    def _write(self, ready: int) -> None:
        """Write what waits and may be written: the entries of one segment at a time."""
        due = list(takewhile(lambda entry: entry.lsn <= ready, list(self._waiting)))
        for segment, entries in groupby(due, key=attrgetter("segment")):
            run = list(entries)
            data, byte, written = b"".join([entry.frame for entry in run]), run[0].byte, 0
            crash_point("topic-before-write")
            handle = self._handle(segment)
            while written < len(data):
                written += os.pwrite(handle, memoryview(data)[written:], byte + written)
            self.written = run[-1].end  # what an exception leaves below is written again, in the same place
            for _ in run:
                self._waiting.popleft()
            self._written_bytes += len(data)

    def _handle(self, segment: int) -> int:
        if self._open is None or self._open[0] != segment:
            self._close_file()
            path = self._path(segment)
            new = not path.exists()
            self._open = segment, os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            if new:
                sync_directory(self.directory)
        if segment not in self._unsynced:
            self._unsynced.append(segment)
        return self._open[1]

    def _close_file(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    # ---- reading

    def read(self, offset: int, limit: int) -> Iterator[Raw]:
        """Up to ``limit`` entries from ``offset`` on, of what is in the files."""
        limit = min(limit, self.written - offset)
        while limit > 0:
            segment = self.segment_of(offset)
            if segment is None:
                return
            found = 0
            for raw in self._read_segment(segment, offset, limit):
                yield raw
                found += 1
            if not found:
                return
            offset, limit = offset + found, limit - found

    def segment_of(self, offset: int) -> int | None:
        """The segment that holds an offset."""
        place = bisect_right(self.firsts, offset) - 1
        return None if place < 0 else self.firsts[place]

    def _read_segment(self, segment: int, offset: int, limit: int) -> Iterator[Raw]:
        at = self._place(segment, offset)
        path = self._path(segment)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise self._missing(segment, "is gone") from None
        try:
            data, start = b"", at.byte
            while limit > 0:
                need = at.byte - start
                if need + HEADER.size > len(data):
                    data, start, need = os.pread(handle, READ_AT_ONCE, at.byte), at.byte, 0
                    if len(data) < HEADER.size:
                        break
                size, crc = HEADER.unpack_from(data, need)
                if need + HEADER.size + size > len(data):
                    data, start, need = os.pread(handle, max(READ_AT_ONCE, HEADER.size + size), at.byte), at.byte, 0
                body = data[need + HEADER.size : need + HEADER.size + size]
                if len(body) < size or zlib.crc32(body, at.chain) != crc:
                    raise self._damaged(segment, at.byte)
                if at.offset >= offset:
                    yield Raw(at.offset, body)
                    limit -= 1
                at = Place(at.offset + 1, segment, at.byte + HEADER.size + size, crc)
        finally:
            os.close(handle)
            self._stopped[at.offset] = at
            while len(self._stopped) > PLACES:
                self._stopped.popitem(last=False)

    def _place(self, segment: int, offset: int) -> Place:
        """A known place at or before ``offset``, in its segment."""
        stopped = self._stopped.get(offset)
        if stopped is not None and stopped.segment == segment:
            return stopped
        index = self._index.get(segment)
        if index is None:
            index = self._index[segment] = self._indexed(segment)
        return index[bisect_right(index, offset, key=lambda place: place.offset) - 1]

    def _indexed(self, segment: int) -> list[Place]:
        try:
            data = self._path(segment).read_bytes()
        except FileNotFoundError:
            raise self._missing(segment, "is gone") from None
        found = _read_header(data)
        if found is None or found[0].first != segment or found[0].topic != self._topic:
            raise self._damaged(segment, 0)
        self.columns[segment] = found[0].columns
        index = [Place(segment, segment, *found[1:])]
        for place, _ in self._frames(segment, data, index[0]):
            if place.offset % INDEXED == 0:
                index.append(place)
        return index

    def columns_of(self, offset: int) -> list[str]:
        """The columns of the stream when an entry was written."""
        segment = self.segment_of(offset)
        assert segment is not None
        if segment not in self.columns:
            self._place(segment, offset)
        return self.columns.setdefault(segment, self._columns)

    # ---- removing

    @property
    def unwritten(self) -> int:
        """How many bytes wait to be written."""
        return self._taken_bytes - self._written_bytes

    def sizes(self) -> dict[int, int]:
        """How much room each segment takes."""
        return {first: path.stat().st_size for first in list(self.firsts) if (path := self._path(first)).exists()}

    def left(self, before: int) -> int:
        """The first offset that is left when segments are removed that hold only entries below ``before``."""
        place = bisect_right(self.firsts, before) - 1
        return self.firsts[place] if place >= 0 else before

    def forget(self, before: int) -> None:
        """Remove segments that hold only entries below ``before``."""
        with self._writing:
            while len(self.firsts) > 1 and self.firsts[1] <= before:
                crash_point("topic-before-remove")
                self._remove(self.firsts[0])

    def _remove(self, first: int) -> None:
        self._path(first).unlink(missing_ok=True)
        sync_directory(self.directory)
        self.firsts.remove(first)
        self._index.pop(first, None)
        self._unsynced = [segment for segment in self._unsynced if segment != first]

    def remove_all(self) -> None:
        """The topic is gone for good."""
        self.close()
        if not self.directory.exists():
            return
        for path in self.directory.glob("*.log"):
            path.unlink()
        self.directory.rmdir()
        sync_directory(self.directory.parent)

    def close(self) -> None:
        """Release the files; may be called more than once."""
        with self._writing:
            self._close_file()

    def _path(self, first: int) -> Path:
        return self.directory / f"{first:020d}.log"

    def _missing(self, segment: int, what: str) -> LogDamaged:
        return LogDamaged(
            f"segment {self._path(segment)} of a topic {what}. Restore it from a backup, then open again",
            file=self._path(segment).name,
            offset=None,
            lsn=segment,
        )

    def _damaged(self, segment: int, byte: int) -> LogDamaged:
        return LogDamaged(
            f"segment {self._path(segment)} of a topic is damaged at byte {byte}: what it kept there can't be read. Restore the "
            f"file from a backup, then open again",
            file=self._path(segment).name,
            offset=byte,
            lsn=segment,
        )


def _first(path: Path) -> int:
    return int(path.stem)


def _read_header(data: bytes) -> tuple[Header, int, int] | None:
    """The header that a segment begins with, the byte after it, and its crc32; None if it is not sound."""
    if len(data) < HEADER.size:
        return None
    size, crc = HEADER.unpack_from(data, 0)
    body = data[HEADER.size : HEADER.size + size]
    if not size or len(body) != size or zlib.crc32(body) != crc:
        return None
    try:
        header = msgspec.msgpack.decode(body, type=Header)
    except msgspec.MsgspecError:
        return None
    return (header, HEADER.size + size, crc) if header.format == FORMAT else None
