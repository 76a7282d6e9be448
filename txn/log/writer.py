"""Writing the log: records are buffered, written and synced together (group commit).

    append(record) ─▶ buffer ─▶ write and sync ─▶ everything up to here is acknowledged
                      └──────── many records at a time, with one call ────────┘

``sync="group"``: a background thread syncs at most ``max_delay_s`` after the first unsynced record; whoever waits for
an acknowledgement makes it sync at once. ``"always"``: every append is synced before anything else happens.
``"off"``: written in the background, never synced: for data that can be lost.

A failed sync is final: nobody knows what is on disk, so the writer refuses everything after it. So is a record that can't
be made into bytes: what it says has happened, and the log would go on without it. A full disk is not:
the buffer is kept, new work is refused with DiskFull, and the next write that succeeds lifts the refusal. What was
appended meanwhile stays appended (it has happened in memory); nobody is told that it is on disk before it is.

An exception may come from outside between any two steps (Ctrl-C, a signal handler that raises, no memory). So bytes leave the
buffer only after they are in the file, and both become known in one assignment (``_Tail``): whatever comes between them, the
same bytes are written again in the same place. Where an exception leaves something that can't be made again (a record half
appended, a segment half begun, an error of the disk that nobody noted), the writer is in doubt, and refuses everything.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple
from zlib import crc32

import msgspec

from tidegate.crashpoints import crash_point
from tidegate.errors import CorruptionError, DiskFull, LogFailed, text_of
from tidegate.forking import own
from tidegate.mutex import Rank, mutex, reentrant
from tidegate.txn.log.files import AppendFile, Files, SegmentGone
from tidegate.txn.log.record import HEADER, Mark, Record, Segment, body_of, framed, seal

log = logging.getLogger("tidegate")

Sync = Literal["always", "group", "off"]
SEGMENT_BYTES = 64 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
NO_HANDLE = {errno.EMFILE, errno.ENFILE}


class _Tail(NamedTuple):
    """Where the log ends: a segment, the LSN at which it begins, the LSN up to which it is written, and what comes then."""

    file: AppendFile
    start: int
    written: int
    buffer: bytearray


header = HEADER.pack


class LogWriter:
    """Appends to the log. ``append`` is called under the engine's lock; everything else from any thread.

    ``segment``: the header of the first segment; those of later ones are the same but for their place.
    """

    def __init__(
        self,
        files: Files,
        start: int,
        segment: Segment,
        sync: Sync = "group",
        max_delay_s: float = 0.002,
        on_synced: Callable[[int], None] = lambda lsn: None,
        on_failed: Callable[[LogFailed], None] = lambda error: None,
        segment_bytes: int = SEGMENT_BYTES,
        monotonic: Callable[[], float] = lambda: 0.0,  # where time stands still, every group takes its whole delay
    ) -> None:
        own(self)
        self._files = files
        self._segment = segment  # the header of the next segment, but for its place
        self.chain = segment.previous  # crc32 of the last appended record, from which that of the next goes on
        self._mode = sync
        self._max_delay_s = max_delay_s
        self._segment_bytes = segment_bytes
        self._monotonic = monotonic
        self.on_synced = on_synced
        self.on_failed = on_failed
        self.appended = start  # LSN after the last appended record, marks left out: nobody waits for those
        self.synced = start  # everything below is on disk
        self.syncs = 0
        self.full: OSError | None = None
        self.failed: BaseException | None = None
        self._first: float | None = None  # when the first record in the buffer was appended; None: there is none in it
        self._appending = False  # under the guard; still true for the next one: the last append was interrupted
        # of the tail and the numbers above; no signal comes between it and ``with``
        self._guard = reentrant(Rank.BUFFER)
        self._changed = threading.Condition(self._guard)
        self._syncing = mutex(Rank.SYNCING)  # one writes and syncs at a time
        self._closed = self._gone = False
        self._idle = False  # is the thread waiting for a first record?
        try:
            self._tail, self.chain, self._segment = self._open_segment(start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._fail(error) from error
            raise DiskFull(f"no new log segment can be begun ({error}); free some space, then open again") from error
        self.synced = self._tail.written
        self._thread: threading.Thread | None = None
        if sync != "always":
            self._thread = threading.Thread(target=self._loop, name="tidegate-log", daemon=True)
            self._thread.start()

    # ---- appending

    @property
    def end(self) -> int:
        """The LSN after the last record, or mark."""
        with self._guard:
            return self._tail.written + len(self._tail.buffer)

    def append(self, record: Record) -> int:
        """Put a record into the log; returns the LSN to wait for. With ``"always"`` it is on disk already, unless the
        disk is full: the record then stays in the buffer, to be written before anything else.
        """
        try:
            with self._guard:
                end = self.appended = self._put(record)
                if self._first is None:
                    self._first = self._monotonic()
                    if self._idle:
                        self._changed.notify()
                self._appending = False
        except BaseException:
            self._tell_failure()
            raise
        if self._mode == "always":
            try:
                self.wait(end)
            except DiskFull:
                pass
        return end

    def _put(self, record: Record) -> int:
        """A frame at the end of the buffer, under the guard; returns the LSN after it. The caller says when all is done."""
        if self.failed is not None:
            raise self.refusal()
        if self._appending:
            raise self._fail(Interrupted("a record was being appended"))
        self._appending = True
        try:
            body = body_of(record)
        except Exception as error:
            raise self._fail(error) from error
        chain = crc32(body, self.chain)
        tail = self._tail
        buffer = tail.buffer
        buffer += header(len(body), chain) + body
        self.chain = chain
        return tail.written + len(buffer)

    def place(self) -> tuple[int, int]:
        """The LSN after the last appended record, and its crc32."""
        with self._guard:
            if self._appending:
                raise self._fail(Interrupted("a record was being appended"))
            return self.end, self.chain

    def check(self) -> None:
        """Raise when new work can't be taken: the log failed, or the disk is full and stays so."""
        if self.failed is not None:
            raise self.refusal()
        if self.full is not None:
            self._write_out(sync=self._mode != "off")
            if self.full is not None:
                raise DiskFull(
                    f"the disk with the log is full ({self.full}); nothing new is accepted, what was acknowledged is safe. "
                    f"Free some space: work resumes by itself"
                )

    def wait(self, lsn: int) -> None:
        """Return when everything below ``lsn`` is on disk; makes it so if need be."""
        while self.synced < lsn:
            if self.failed is not None:
                raise self.refusal()
            if not self._write_out(sync=self._mode != "off"):
                self.check()
            elif self.synced < lsn:  # for ever, then
                raise self._fail(CorruptionError(f"LSN {lsn} was given away, but the log ends at {self.end}"))

    def force(self, lsn: int) -> None:
        """Like ``wait``, but syncs with ``"off"`` too: the base must never be ahead of the log."""
        self.wait(lsn)
        if self._mode == "off":
            with self._telling(), self._syncing:
                self._sync_file()

    @property
    def taking(self) -> bool:
        """Can new work be taken, as far as is known?"""
        return self.failed is None and self.full is None

    # ---- writing and syncing

    def _loop(self) -> None:
        """Write out a group when its first record is ``max_delay_s`` old.

        While somebody is at work without a pause, a thread gets its turn in the interpreter every 5 ms at best. So nothing here
        waits that need not: the call that writes and syncs is the only one of a group, and the next group is written straight
        after it, being old enough by then.
        """
        while True:
            with self._guard:
                self._idle = True
                self._changed.wait_for(lambda: self._first is not None or self._closed)
                self._idle = False
                if self._first is not None and not self._closed:
                    young = self._first + self._max_delay_s - self._monotonic()
                    if young > 0:
                        self._changed.wait(young)
                if self._closed:
                    return
                if self._first is None:
                    continue  # somebody could not wait, and has written it
            try:
                written = self._write_out(sync=self._mode != "off")
            except LogFailed:
                return  # whoever waits has been told
            except BaseException:
                log.exception("writing the log, or telling what is on disk, was interrupted; it is tried again")
                written = False
            if not written:
                with self._guard:
                    self._changed.wait(0.1)

    def _write_out(self, sync: bool) -> bool:
        """Write the buffer and sync it; then note in the log, unsynced, how far it is on disk. False: the disk is full."""
        with self._telling(), self._syncing:
            written = self._write(sync)
            if written:
                self._advance(mark=sync)
                self._write(sync=False, records=False)
                if self._tail.written - self._tail.start > self._segment_bytes:
                    self._roll()
        self.on_synced(self.synced)
        return written

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A failure is told to whoever waits, when no lock of ours is held any more."""
        try:
            yield
        except BaseException:
            self._tell_failure()
            raise

    def _tell_failure(self) -> None:
        if self.failed is not None:
            self.on_failed(self.refusal())

    def _sync_file(self) -> None:
        if self.failed is not None:
            raise self.refusal()
        with self._noting():
            self._tail.file.sync()
        self.syncs += 1

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """An error of the disk is final, also where an interrupt came before anybody had noted it."""
        try:
            yield
        except OSError as error:
            raise self._fail(error) from error
        except BaseException as error:
            if isinstance(error.__context__, OSError) and error.__context__.errno not in NO_ROOM:
                self._fail(error.__context__)
            raise

    def _fail(self, error: BaseException) -> LogFailed:
        self.failed = self.failed or error
        return self.refusal()

    def _write(self, sync: bool, records: bool = True) -> bool:
        """Move the buffer to the file, and to disk; False when that is full (what was not written stays in the buffer).

        ``records=False``: only if there is nothing but a mark in it; else the mark goes with the next group.
        """
        if self.failed is not None:
            raise self.refusal()
        with self._guard:
            if not records and self._first is not None:
                return True
            first, self._first = self._first, None
            data = bytes(self._tail.buffer)
        try:
            with self._noting():
                self.full = self._put_out(memoryview(data), sync)
        finally:
            if first is not None and self._tail.buffer:
                with self._guard:
                    self._first = first
                    self._changed.notify()
        if self.full is None and sync:
            if data:
                self.syncs += 1
                crash_point("log-after-sync")
            elif self.synced < self._tail.written:
                self._sync_file()  # a mark was written and not synced; somebody wants to be sure of it, too
        return self.full is None

    def _put_out(self, rest: memoryview, sync: bool) -> OSError | None:
        """Write the beginning of the buffer, which is ``rest``, to the file; returns why there was no room for all of it."""
        crash_point("log-before-write")
        while rest:
            tail = self._tail
            write = tail.file.write_synced if sync else tail.file.write
            try:
                count = write(rest, tail.written - tail.start)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                return error
            with self._guard:
                self._tail = tail._replace(written=tail.written + count, buffer=tail.buffer[count:])
            rest = rest[count:]
        return None

    def _advance(self, mark: bool) -> None:
        """What is in the file is on disk, or as good as that."""
        with self._guard:
            news = self.synced < self.appended
            self.synced = self._tail.written
            if mark and news:
                self._put(Mark(self.synced, seal(self._segment.directory, self.synced)))
                self._appending = False

    def _open_segment(self, start: int) -> tuple[_Tail, int, Segment]:
        """A new segment for what comes after LSN ``start``; its first record is on disk before anything refers to it.

        Returns it, the crc32 of its first record, and the header of the one after it. Raises OSError when there is no room for
        one; nothing is left of it then.
        """
        name = segment_name(start)
        segment = msgspec.structs.replace(self._segment, begin=start, previous=self.chain)
        frame, chain = framed(body_of(segment), 0)
        file = self._files.create(name)
        try:
            rest = memoryview(frame)
            while rest:
                rest = rest[file.write(rest, len(frame) - len(rest)) :]
            file.sync()
        except BaseException:
            file.close()
            self._files.remove(name)
            raise
        following = msgspec.structs.replace(segment, number=segment.number + 1)
        return _Tail(file, start, start + len(frame), bytearray()), chain, following

    def _roll(self) -> None:
        with self._guard:  # nobody appends meanwhile: what is in the buffer belongs to this segment
            if not self._write(sync=self._mode != "off"):
                return
            self._advance(mark=False)
            self._sync_file()
            before = self._tail.file
            try:
                self._tail, self.chain, self._segment = self._open_segment(self._tail.written)
            except OSError as error:
                if error.errno not in NO_ROOM | NO_HANDLE:
                    raise self._fail(error) from error
                log.warning("no new log segment can be begun (%s): the old one goes on", error)
                return
            except BaseException as error:
                self._fail(error)  # there may be a segment that nothing must be written in front of
                raise
            self.synced = self._tail.written
            before.close()

    def check_place(self) -> None:
        """Raise, and stop for good, when the segment that is written to was removed, moved or replaced."""
        if self.failed is not None:
            raise self.refusal()
        file = self._tail.file
        try:
            file.check_place()
        except SegmentGone as error:
            if file is self._tail.file:  # else a new one was begun meanwhile, and this one may go
                with self._telling():
                    raise self._fail(error) from error

    def refusal(self) -> LogFailed:
        if isinstance(self.failed, SegmentGone):
            return LogFailed(
                f"the log's directory was removed, moved or replaced while the engine was open ({self.failed.strerror}): what is "
                f"written there now would be lost, so the engine stops here and acknowledges nothing more. Put the directory "
                f"back or restore a backup, then open the app again"
            )
        if isinstance(self.failed, OSError):
            return LogFailed(
                f"the log could not be synced to disk ({self.failed}); nobody knows what is on disk, so the engine stops "
                f"here. Check the disk, then open the app again: recovery keeps everything acknowledged"
            )
        if isinstance(self.failed, Interrupted) or not isinstance(self.failed, Exception):
            return LogFailed(
                f"the log was interrupted ({text_of(self.failed) or type(self.failed).__name__}) in the middle of a step, and "
                f"nobody knows how far that came, so the engine stops here. Close it and open the app again: recovery keeps "
                f"everything acknowledged"
            )
        return LogFailed(
            f"a record can't be written to the log ({type(self.failed).__name__}: {text_of(self.failed)}), so the engine stops "
            f"here rather than go on without it. This is a fault in tidegate, please report it with this text; open the app "
            f"again: recovery keeps everything acknowledged"
        )

    def close(self) -> None:
        """Sync what is left and let go of the file; after an interrupt it may be called again."""
        with self._guard:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._gone:
            return
        try:
            if self.failed is None:
                self._write_out(sync=True)
        finally:
            self._gone = True
            self._tail.file.close()


class Interrupted(Exception):
    """An exception from outside came in the middle of a step that can't be made again."""


def segment_name(lsn: int) -> str:
    return f"{lsn:020d}.log"
