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
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tidegate.crashpoints import crash_point
from tidegate.errors import DiskFull, LogFailed, text_of
from tidegate.txn.log.files import AppendFile, Files
from tidegate.txn.log.record import Mark, Record, Segment, encode

log = logging.getLogger("tidegate")

Sync = Literal["always", "group", "off"]
SEGMENT_BYTES = 64 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class LogWriter:
    """Appends to the log. ``append`` is called under the engine's lock; everything else from any thread."""

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
        self._files = files
        self._segment = encode(segment)
        self._mode = sync
        self._max_delay_s = max_delay_s
        self._segment_bytes = segment_bytes
        self._monotonic = monotonic
        self.on_synced = on_synced
        self.on_failed = on_failed
        self.end = start  # LSN after the last appended record
        self.appended = start  # the same, marks left out: nobody waits for those
        self.synced = start  # everything below is on disk
        self.syncs = 0
        self.full: OSError | None = None
        self.failed: Exception | None = None
        self._buffer = bytearray()
        self._first: float | None = None  # when the first record in the buffer was appended; None: there is none in it
        self._guard = threading.RLock()  # of the buffer and the numbers above
        self._changed = threading.Condition(self._guard)
        self._syncing = threading.Lock()  # one writes and syncs at a time
        self._closed = False
        self._idle = False  # is the thread waiting for a first record?
        try:
            self._open_segment()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._fail(error) from error
            raise DiskFull(f"no new log segment can be begun ({error}); free some space, then open again") from error
        self._thread: threading.Thread | None = None
        if sync != "always":
            self._thread = threading.Thread(target=self._loop, name="tidegate-log", daemon=True)
            self._thread.start()

    # ---- appending

    def append(self, record: Record) -> int:
        """Put a record into the log; returns the LSN to wait for. With ``"always"`` it is on disk already, unless the
        disk is full: the record then stays in the buffer, to be written before anything else.
        """
        try:
            frame = encode(record)
        except Exception as error:
            with self._telling():
                raise self._fail(error) from error
        with self._guard:
            if self.failed is not None:
                raise self._refusal()
            if self._first is None:
                self._first = self._monotonic()
                if self._idle:
                    self._changed.notify()
            self._buffer += frame
            self.end += len(frame)
            end = self.appended = self.end
        if self._mode == "always":
            try:
                self.wait(end)
            except DiskFull:
                pass
        return end

    def check(self) -> None:
        """Raise when new work can't be taken: the log failed, or the disk is full and stays so."""
        if self.failed is not None:
            raise self._refusal()
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
                raise self._refusal()
            self._write_out(sync=self._mode != "off")
            if self.full is not None:
                self.check()

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
            with self._changed:
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
                self._write_out(sync=self._mode != "off")
            except LogFailed:
                return  # whoever waits has been told
            except Exception:
                log.exception("telling what is on disk failed; the log goes on")
            if self.full is not None:
                with self._changed:
                    self._changed.wait(0.1)

    def _write_out(self, sync: bool) -> None:
        """Write the buffer and sync it; then note in the log, unsynced, how far it is on disk."""
        with self._telling(), self._syncing:
            if self._write(sync):
                self._advance(mark=sync)
                self._write(sync=False, records=False)
                if self._segment_end - self._segment_start > self._segment_bytes:
                    self._roll()
        self.on_synced(self.synced)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A failure is told to whoever waits, when no lock of ours is held any more."""
        try:
            yield
        except LogFailed as error:
            self.on_failed(error)
            raise

    def _sync_file(self) -> None:
        if self.failed is not None:
            raise self._refusal()
        try:
            self._file.sync()
        except OSError as error:
            raise self._fail(error) from error
        self.syncs += 1

    def _fail(self, error: Exception) -> LogFailed:
        self.failed = error
        return self._refusal()

    def _write(self, sync: bool, records: bool = True) -> bool:
        """Move the buffer to the file, and to disk; False when that is full (what was not written stays in the buffer).

        ``records=False``: only if there is nothing but a mark in it; else the mark goes with the next group.
        """
        if self.failed is not None:
            raise self._refusal()
        with self._changed:
            if not records and self._first is not None:
                return True
            data, self._buffer = self._buffer, bytearray()
            first, self._first = self._first, None
        rest = memoryview(data)
        crash_point("log-before-write")
        try:
            write = self._file.write_synced if sync else self._file.write
            while rest:
                count = write(rest)
                self._segment_end += count
                rest = rest[count:]
            self.full = None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._fail(error) from error
            self.full = error
        else:
            if sync and data:
                self.syncs += 1
                crash_point("log-after-sync")
            elif sync and self.synced < self._segment_end:
                self._sync_file()  # a mark was written and not synced; somebody wants to be sure of it, too
        if rest:
            with self._changed:
                self._buffer = bytearray(rest) + self._buffer
                self._first = self._first if first is None else first
        return self.full is None

    def _advance(self, mark: bool) -> None:
        """What is in the file is on disk, or as good as that."""
        with self._changed:
            news = self.synced < self.appended
            self.synced = self._segment_end
            if mark and news:
                frame = encode(Mark(self.synced))
                self._buffer += frame
                self.end += len(frame)

    def _open_segment(self) -> None:
        """Begin a segment at the end of the log; its first record is on disk before anything refers to it.

        Raises OSError, with the old segment still in use, when there is no room for a new one.
        """
        name = segment_name(self.end)
        file = self._files.create(name)
        try:
            rest = memoryview(self._segment)
            while rest:
                rest = rest[file.write(rest) :]
            file.sync()
        except OSError:
            file.close()
            self._files.remove(name)
            raise
        self._file: AppendFile = file
        self._segment_start = self.end
        self.end += len(self._segment)
        self._segment_end = self.synced = self.end

    def _roll(self) -> None:
        with self._changed:  # nobody appends meanwhile: what is in the buffer belongs to this segment
            if not self._write(sync=self._mode != "off"):
                return
            self._advance(mark=False)
            self._sync_file()
            before = self._file
            try:
                self._open_segment()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise self._fail(error) from error
                log.warning("no room for a new log segment (%s): the old one goes on", error)
                return
            before.close()

    def _refusal(self) -> LogFailed:
        if isinstance(self.failed, OSError):
            return LogFailed(
                f"the log could not be synced to disk ({self.failed}); nobody knows what is on disk, so the engine stops "
                f"here. Check the disk, then open the app again: recovery keeps everything acknowledged"
            )
        return LogFailed(
            f"a record can't be written to the log ({type(self.failed).__name__}: {text_of(self.failed)}), so the engine stops "
            f"here rather than go on without it. This is a fault in tidegate, please report it with this text; open the app "
            f"again: recovery keeps everything acknowledged"
        )

    def close(self) -> None:
        """Sync what is left and let go of the file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self.failed is None:
            self._write_out(sync=True)
        self._file.close()


def segment_name(lsn: int) -> str:
    return f"{lsn:020d}.log"
