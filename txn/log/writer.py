"""Writing the log: records are buffered, written and synced together (group commit).

    append(record) ─▶ buffer ─▶ write and sync ─▶ everything up to here is acknowledged
                      └──────── many records at a time, with one call ────────┘

``sync="group"``: a background thread syncs at most ``max_delay_s`` after the first unsynced record; a thread that waits
for an acknowledgement syncs at once. ``"always"``: every append is synced before anything else happens.
``"off"``: written in the background, never synced: for data that can be lost.

A failed sync is final: it is unknown what is on disk, so the writer refuses everything after it. So is a record that
can't be encoded: what it describes has happened, and the log would continue without it. A full disk is not: the buffer
is kept, new work is refused with DiskFull, and the next write that succeeds lifts the refusal. What was appended
meanwhile stays appended (it has happened in memory); it is acknowledged only once it is on disk.

An exception may come from outside between any two steps (Ctrl-C, a signal handler that raises, out of memory). So bytes
leave the buffer only after they are in the file, and both become known in one assignment (``_Tail``): whatever comes
between them, the same bytes are written again in the same place. If an exception leaves something that can't be redone
(a record half appended, a segment half begun, a disk error that was not noted), the writer is in doubt and refuses
everything.
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
    """Where the log ends: a segment, the LSN at which it begins, the LSN up to which it is written, and what comes
    next.
    """

    file: AppendFile
    start: int
    written: int
    buffer: bytearray


header = HEADER.pack


class LogWriter:
    """Appends to the log. ``append`` is called under the engine's lock; everything else from any thread.

    ``segment``: the header of the first segment; later headers differ only in their place.
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
        monotonic: Callable[[], float] = lambda: 0.0,  # if time stands still, every group takes its full delay
    ) -> None:
        own(self)
        self._files = files
        self._segment = segment  # the header of the next segment, except for its place
        self.chain = segment.previous  # crc32 of the last appended record, which that of the next continues
        self._mode = sync
        self._max_delay_s = max_delay_s
        self._segment_bytes = segment_bytes
        self._monotonic = monotonic
        self.on_synced = on_synced
        self.on_failed = on_failed
        self.appended = start  # LSN after the last appended record, not counting marks: nobody waits for those
        self.synced = start  # everything below is on disk
        self.syncs = 0
        self.full: OSError | None = None
        self.failed: BaseException | None = None
        self._first: float | None = None  # when the first record in the buffer was appended; None: there is none
        self._appending = False  # under the guard; true when an append begins: the last one was interrupted
        # for the tail and the numbers above; no signal comes between taking it and the ``with`` block
        self._guard = reentrant(Rank.BUFFER)
        self._changed = threading.Condition(self._guard)
        self._syncing = mutex(Rank.SYNCING)  # one thread writes and syncs at a time
        self._closed = self._gone = False
        self._idle = False  # is the thread waiting for a first record?
        try:
            self._tail, self.chain, self._segment = self._open_segment(start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._fail(error) from error
            raise DiskFull(f"can't start a new log segment ({error}); free some space, then open again") from error
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
        """Append a record to the log; returns the LSN to wait for. With ``"always"`` it is already on disk, unless the
        disk is full: then the record stays in the buffer, to be written before anything else.
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
        """Add a frame to the buffer, under the guard; returns the LSN after it. The caller resets ``_appending``."""
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
        """Raise when new work can't be accepted: the log failed, or the disk is still full."""
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
        """Return when everything below ``lsn`` is on disk; writes and syncs it if need be."""
        while self.synced < lsn:
            if self.failed is not None:
                raise self.refusal()
            if not self._write_out(sync=self._mode != "off"):
                self.check()
            elif self.synced < lsn:  # it would wait forever
                raise self._fail(CorruptionError(f"LSN {lsn} was handed out, but the log ends at {self.end}"))

    def force(self, lsn: int) -> None:
        """Like ``wait``, but syncs with ``"off"`` too: the base must never be ahead of the log."""
        self.wait(lsn)
        if self._mode == "off":
            with self._telling(), self._syncing:
                self._sync_file()

    @property
    def taking(self) -> bool:
        """Can new work be accepted, as far as is known?"""
        return self.failed is None and self.full is None

    # ---- writing and syncing

    def _loop(self) -> None:
        """Write out a group when its first record is ``max_delay_s`` old.

        While another thread works without a pause, a thread gets the interpreter every 5 ms at best. So there are no
        needless waits here: each group is written and synced with a single call, and the next group, old enough by
        then, is written right after it.
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
                    continue  # a thread that could not wait has written it
            try:
                written = self._write_out(sync=self._mode != "off")
            except LogFailed:
                return  # waiters have been told
            except BaseException:
                log.exception("writing the log, or reporting what is on disk, was interrupted; trying again")
                written = False
            if not written:
                with self._guard:
                    self._changed.wait(0.1)

    def _write_out(self, sync: bool) -> bool:
        """Write and sync the buffer; then note in the log, unsynced, how far it is on disk. False: the disk is full."""
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
        """Report a failure to waiters, once no lock of the writer is held any more."""
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
        """A disk error is final, even if an interrupt came before it was noted."""
        try:
            yield
        except OSError as error:
            raise self._fail(error) from error
        except BaseException as error:
            if isinstance(error.__context__, OSError) and error.__context__.errno not in NO_ROOM:
                self._fail(error.__context__)
            raise

    def stop(self, error: OSError) -> LogFailed:
        """What is derived from the log could not be synced: nothing more is acknowledged."""
        with self._guard:
            refusal = self._fail(error)
        self._tell_failure()
        return refusal

    def _fail(self, error: BaseException) -> LogFailed:
        self.failed = self.failed or error
        return self.refusal()

    def _write(self, sync: bool, records: bool = True) -> bool:
        """Move the buffer to the file, and to disk; False when that is full (what was not written stays in the buffer).

        ``records=False``: only if it holds nothing but a mark; otherwise the mark goes with the next group.
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
                self._sync_file()  # a mark was written but not synced; the caller wants it on disk, too
        return self.full is None

    def _put_out(self, rest: memoryview, sync: bool) -> OSError | None:
        """Write ``rest``, the beginning of the buffer, to the file; returns the error if there was no room for all of
        it.
        """
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
        """What is in the file is on disk, or counts as such."""
        with self._guard:
            news = self.synced < self.appended
            self.synced = self._tail.written
            if mark and news:
                self._put(Mark(self.synced, seal(self._segment.directory, self.synced)))
                self._appending = False

    def _open_segment(self, start: int) -> tuple[_Tail, int, Segment]:
        """A new segment that begins at LSN ``start``; its first record is on disk before anything refers to it.

        Returns it, the crc32 of its first record, and the header of the segment after it. Raises OSError if it can't be
        created; then nothing is left of it.
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
                log.warning("can't start a new log segment (%s); continuing with the old one", error)
                return
            except BaseException as error:
                self._fail(error)  # there may be a new segment already: nothing may be written before it
                raise
            self.synced = self._tail.written
            before.close()

    def check_place(self) -> None:
        """Raise, and stop for good, if the current segment was removed, moved or replaced."""
        if self.failed is not None:
            raise self.refusal()
        file = self._tail.file
        try:
            file.check_place()
        except SegmentGone as error:
            if file is self._tail.file:  # else a new one was started meanwhile, and this one may be gone
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
                f"the log could not be synced to disk ({self.failed}); it is unknown what is on disk, so the engine stops "
                f"here. Check the disk, then open the app again: recovery keeps everything acknowledged"
            )
        if isinstance(self.failed, Interrupted) or not isinstance(self.failed, Exception):
            return LogFailed(
                f"the log was interrupted ({text_of(self.failed) or type(self.failed).__name__}) in the middle of a step, and "
                f"it is unknown how far that step got, so the engine stops here. Close it and open the app again: recovery "
                f"keeps everything acknowledged"
            )
        return LogFailed(
            f"a record can't be written to the log ({type(self.failed).__name__}: {text_of(self.failed)}), so the engine stops "
            f"here rather than continue without it. This is a bug in tidegate: please report it with this text. Open the app "
            f"again: recovery keeps everything acknowledged"
        )

    def close(self) -> None:
        """Sync what is left and close the file; after an interrupt it may be called again."""
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
    """An exception from outside came in the middle of a step that can't be redone."""


def segment_name(lsn: int) -> str:
    return f"{lsn:020d}.log"
