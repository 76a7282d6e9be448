"""How far a replay has come: percent, the record at hand, and the procedure that runs, for how long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tidegate.clock import SystemClock
from tidegate.errors import RecoveryRefused, Runaway
from tidegate.storage.column_rows import count_of
from tidegate.streams.watermarks import END
from tidegate.txn.log.files import Files
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Advanced, Called, Fed, Pushed, Requeued
from tidegate.txn.positions import sequence_of
from tidegate.txn.runaways import Lookout

log = logging.getLogger("tidegate")

Progress = Callable[[int, int, str], None]  # bytes of the log replayed, bytes in all, what is at hand

TOLD_EVERY_S = 5.0
PATIENCE = 2  # deadlines: a machine that has just restarted is slower than it was


def unseen(done: int, total: int, doing: str) -> None:
    """Nobody looks."""


class Showing:
    """Shows the progress of a replay while it is open: by ``progress`` whenever it is asked or looked at, in the log every
    few seconds. Meanwhile procedures have ``PATIENCE`` times as long.
    """

    def __init__(
        self, lookout: Lookout, reader: LogReader, start: int, end: int, progress: Progress, path: Path
    ) -> None:
        self._lookout = lookout
        self._reader = reader
        self._start = start
        self._end = end
        self._progress = progress
        self._path = path
        self._clock = SystemClock()
        self._told = self._clock.monotonic()
        self._limit_s = lookout.limit_s

    def __enter__(self) -> Showing:
        if self._limit_s is not None:
            self._lookout.limit_s = PATIENCE * self._limit_s
        self._lookout.told = self._look
        return self

    def __exit__(self, *_: object) -> None:
        self._lookout.told = lambda: None
        self._lookout.limit_s = self._limit_s

    def reached(self, lsn: int) -> None:
        total = self._end - self._start
        self._progress(min(max(lsn - self._start, 0), total), total, f"at record {self._reader.at}")

    def _look(self) -> None:
        """Called by the lookout, on its thread."""
        done, total, doing = self._reader.at - self._start, self._end - self._start, self._doing()
        self._progress(done, total, doing)
        if self._clock.monotonic() - self._told >= TOLD_EVERY_S:
            self._told = self._clock.monotonic()
            log.info("%s: replaying: %.0f %%, %s", self._path, 100 * done / max(total, 1), doing)

    def _doing(self) -> str:
        running = [
            f"{'a call' if txn.batch_id is None else f'batch {txn.batch_id} of {next(iter(txn.inputs), None)}'}, "
            f"procedure {txn.procedure}, {seconds:.0f} s"
            for txn, seconds in self._lookout.running()
        ]
        return f"at record {self._reader.at}" + (f" ({'; '.join(running)})" if running else "")


def refused(error: Runaway, files: Files, start: int) -> RecoveryRefused:
    """A procedure does not end in the replay, and more was accepted after its batch: it may have ended the first time."""
    found = record_of(files, start, sequence_of(error.position))
    told = "in no record: it was resumed"
    if found is not None:
        lsn, record = found
        told = f"record {lsn}, {describe(record)}"
    return RecoveryRefused(
        f"{error}. It is replayed from the log ({told}) and may have ended when it first ran, so the replay stops here: "
        f"nothing was changed. Open with a larger procedure_deadline_s (None: no limit) if it only takes long; or skip the "
        f"record: tidegate repair DIRECTORY --skip {found[0] if found is not None else 'RECORD'} --because '…'",
        changed=[error.procedure],
        lsn=None if found is None else found[0],
    )


def record_of(
    files: Files, start: int, sequence: int
) -> tuple[int, Pushed | Fed | Called | Requeued | Advanced] | None:
    """The record that holds what was accepted with this sequence number, and its LSN."""
    last = None
    for entry in LogReader(files, start):
        record = entry.record if entry.kind in (Pushed, Fed, Called, Requeued, Advanced) else None
        if isinstance(record, (Pushed, Fed, Called, Requeued, Advanced)):
            if record.sequence > sequence:
                break
            last = entry.lsn, record
    return last


def describe(record: Pushed | Fed | Called | Requeued | Advanced) -> str:
    """What a record holds, for people."""
    if isinstance(record, Called):
        return f"a call of {record.procedure}"
    if isinstance(record, Advanced):
        return f"time on {record.stream} advanced to {'the end' if record.to == END else record.to}"
    if isinstance(record, (Pushed, Requeued)):
        return f"batch {record.batch_id} of {record.stream}, {count_of(record.rows):,} rows"
    return f"{count_of(record.rows):,} rows of {record.stream} in batches of {record.size}, from sequence {record.sequence} on"
