"""Durability of one engine: everything accepted goes through the log before it is acknowledged.

Holds the directory, the log writer and what must be known to write records; the engine calls it at the few moments that
matter (accepted, executed, resumed, merged, delivered).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import logging
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec

from tidegate.clock import Clock
from tidegate.config import Config
from tidegate.crashpoints import crash_point
from tidegate.dataflows.app import App
from tidegate.directory import KEPT_GENERATIONS, Directory
from tidegate.errors import CorruptionError, DataError, DiskFull, LogDamaged, LogFailed, RecoveryRefused
from tidegate.process import Turns
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.database import Database
from tidegate.storage.generations import copy_base, sync_base
from tidegate.streams.batch import Batch
from tidegate.txn.log.reader import Cut, Entry, LogReader
from tidegate.txn.log.record import (
    FORMAT,
    Called,
    Checkpoint,
    Executed,
    Fed,
    Pushed,
    Record,
    Segment,
    to_us,
)
from tidegate.txn.log.writer import LogWriter
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction

log = logging.getLogger("tidegate")


class Opened:
    """What is on disk, looked at before anything is replayed: is it whole, and what will a replay meet?

    ``segments``: the headers of segments with records to apply, each with the LSN of the last of them.
    ``outcomes``: in mode weak, the records that say how an execution ended; there are few.
    """

    def __init__(self, directory: Directory) -> None:
        reader = LogReader(directory.files, survey=True)
        self.merges = 0
        self.outcomes: list[Entry] = []
        for entry in reader:
            if entry.kind is Executed:
                self.outcomes.append(entry)
            else:
                record = entry.record
                assert isinstance(record, Checkpoint)
                self.merges = record.number
        self.segments: list[tuple[Segment, int]] = reader.applied
        names = directory.files.names()
        self.oldest = int(names[0].removesuffix(".log")) if names else 0
        self.end = max(reader.end, self.oldest)
        self.cut: Cut | None = reader.cut
        if reader.cut is not None:
            directory.files.truncate(reader.cut.file, reader.cut.offset)
        elif names:
            self._make_final(directory, names[-1])
        for name in directory.files.names():
            if int(name.removesuffix(".log")) >= self.end:
                directory.files.remove(name)  # created, but nothing reached it

    def _make_final(self, directory: Directory, name: str) -> None:
        """A process that was killed may have written what it had not synced. It counts from now on, so it must be on disk
        before anything is logged behind it.
        """
        try:
            directory.files.sync(name)
        except OSError as error:
            raise LogFailed(
                f"log segment {name} can't be synced to disk ({error}); check the disk, then open again"
            ) from error

    def check(self, lsn: int) -> None:
        """A base never holds more than the log: one that does says that the end of the log is gone."""
        if lsn > self.end:
            raise LogDamaged(
                f"the base holds everything up to LSN {lsn}, but the log ends at {self.end}: its end is missing or damaged. "
                f"Restore the log from a backup, then open again",
                file=None,
                offset=None,
                lsn=self.end,
            )


class Durability:
    """The log of an engine that is open for work. ``lock``: the engine's."""

    def __init__(
        self,
        app: App,
        config: Config,
        directory: Directory,
        opened: Opened,
        merges: int,
        lock: threading.RLock,
        on_failed: Callable[[LogFailed], None],
        clock: Clock,
        turns: Turns | None = None,
    ) -> None:
        self.app = app
        self.directory = directory
        self.mode: str = app.recovery
        self.merges = merges
        self._generation_lsn = max((g.lsn for g in directory.generations()), default=opened.oldest)
        self._generation_bytes = config.generation_bytes
        self._lock = lock
        self._on_failed = on_failed
        self._turns = turns
        self._unacknowledged: deque[tuple[int, Ticket]] = deque()
        segment = Segment(FORMAT, app.name, app.recovery, code_hashes(app), stream_columns(app))
        self.writer = LogWriter(
            directory.files,
            opened.end,
            segment,
            config.sync,
            config.max_delay_s,
            self._synced,
            self._failed,
            monotonic=clock.monotonic,
        )

    # ---- acknowledging

    def acknowledge(self, ticket: Ticket, lsn: int) -> None:
        """The ticket is not done before the log is on disk up to ``lsn``."""
        ticket.pending += 1
        waiting = self._unacknowledged
        waiting.append((lsn, ticket))
        if waiting[0][0] <= self.writer.synced:
            self._tell(self.writer.synced)

    def hold(self, tickets: Iterable[Ticket]) -> None:
        """These tickets are not done before everything logged so far is on disk."""
        for ticket in tickets:
            self.acknowledge(ticket, self.writer.appended)

    def _synced(self, lsn: int) -> None:
        """The log is on disk up to ``lsn``: tell who waits for that.

        While more is appended, somebody pushes, and whoever pushes tells them (``acknowledge``). The thread of the log must
        not queue for the lock behind pushes that come one upon another, or the next group would wait with it.
        """
        if self._turns is not None:
            self._turns.step()
        if self._unacknowledged and self._lock.acquire(blocking=self.writer.appended <= lsn):
            try:
                self._tell(lsn)
            finally:
                self._lock.release()

    def _tell(self, lsn: int) -> None:
        """Everything up to ``lsn`` is on disk. Under the lock: whoever has called it knows that all up to there are told."""
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= lsn:
            _, ticket = waiting.popleft()
            ticket.pending -= 1
            if not ticket.pending:
                ticket.finish()

    def _failed(self, error: LogFailed) -> None:
        """Nothing more will be acknowledged: whoever waits is told, instead of waiting for ever."""
        with self._lock:
            self._tell(self.writer.synced)
            for _, ticket in self._unacknowledged:
                ticket.stop(error)
            self._on_failed(error)

    def sync(self) -> None:
        """Return when everything appended so far is on disk, and the tickets know."""
        self.writer.wait(self.writer.appended)
        with self._lock:
            self._tell(self.writer.synced)

    # ---- records

    def pushed(
        self, sequence: int, time: dt.datetime, batch: Batch, explicit: bool, source: str | None, offset: Any
    ) -> int:
        rows, stands = list(batch.rows), None if source is None else to_json(offset)
        return self.writer.append(
            Pushed(sequence, to_us(time), batch.relation.name, batch.id, rows, explicit, source, stands)
        )

    def fed(
        self,
        sequence: int,
        time: dt.datetime,
        stream: str,
        size: int,
        rows: list[Any],
        source: str | None = None,
        offset: Any = None,
        together: bool = False,
    ) -> int:
        """Many batches (or none, when a source moves on) in one record. ``together``: all are admitted before any runs."""
        return self.writer.append(
            Fed(sequence, to_us(time), stream, max(size, 1), rows, source, to_json(offset), together)
        )

    def called(
        self, sequence: int, time: dt.datetime, procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> int:
        listed, mapped = loggable(procedure, arguments, named)
        return self.writer.append(Called(sequence, to_us(time), procedure, listed, mapped))

    def committed(self, txn: Transaction) -> None:
        if self.mode == "strong":
            self.writer.append(Executed(txn.position, "committed", txn.procedure))
        elif self.mode == "effects":
            writes = {
                table: [
                    [row for row in rows.values() if row is not None],
                    [to_json(key) for key, row in rows.items() if row is None],
                ]
                for table, rows in txn.writes.items()
            }
            emitted = {stream: list(batch.rows) for stream, batch in txn.emitted.items()}
            self.writer.append(Executed(txn.position, "committed", txn.procedure, writes=writes, emitted=emitted))

    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = ()) -> None:
        """An execution was undone. Aborts repeat themselves when run again, so weak mode needs no record of them."""
        if outcome == "aborted" and self.mode == "weak":
            return
        effects: dict[str, Any] = {"writes": {}, "emitted": {}} if self.mode == "effects" else {}
        self.writer.append(Executed(txn.position, outcome, txn.procedure, reason, parked=list(parked), **effects))

    def append(self, record: Record) -> int:
        return self.writer.append(record)

    # ---- merging

    def begin_merge(self) -> int:
        """A merge of everything up to here begins; returns the LSN it stands for. The caller holds the engine's lock."""
        self.merges += 1
        return self.writer.end

    def merged(self, database: Database, lsn: int, generation: bool) -> None:
        """The base holds everything below ``lsn``: say so in the log, keep a copy when it is time, drop old segments."""
        assert database.base.path is not None
        sync_base(database.base.path)
        due = generation or lsn - self._generation_lsn >= self._generation_bytes
        if due:
            due = self._keep_generation(database, lsn)
        self.writer.append(Checkpoint(self.merges, lsn, due))
        self.sync()
        crash_point("merge-after-checkpoint")
        if due:
            self._forget_old()

    def _keep_generation(self, database: Database, lsn: int) -> bool:
        """Copy the base; without room for that the older generations, and the log since, still do."""
        try:
            copy_base(database.base.cursor(), self.directory.generation(self.merges, lsn))
        except (DiskFull, OSError) as error:
            log.warning("no generation was kept: %s", error)
            return False
        self._generation_lsn = lsn
        return True

    def _forget_old(self) -> None:
        """Keep the newest generations, and the log since the oldest of them."""
        generations = self.directory.generations()
        for old in generations[KEPT_GENERATIONS:]:
            crash_point("retention-before-remove")
            old.path.unlink()
        if len(generations) < KEPT_GENERATIONS:
            return  # the whole log is the oldest generation
        oldest = generations[KEPT_GENERATIONS - 1].lsn
        names = self.directory.files.names()
        for name, following in pairwise(names):
            if int(following.removesuffix(".log")) <= oldest:
                crash_point("retention-before-remove")
                self.directory.files.remove(name)

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            if self._turns is not None:
                self._turns.close()


# ---- what the log must know of the app


def code_hashes(app: App) -> dict[str, str]:
    """A fingerprint of every procedure's source: what a replay would run."""
    return {name: code_hash(procedure.function) for name, procedure in app.procedures.items()}


def code_hash(function: Callable[..., Any]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function)).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = b"" if code is None else code.co_code + repr(code.co_names).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def stream_columns(app: App) -> dict[str, list[list[str]]]:
    return {s.name: [[c.name, c.type.sql] for c in s.relation.columns] for s in app.streams.values()}


def check_segment(app: App, segment: Segment, accept_changed: bool) -> None:
    """Refuse to replay a log that this app could not have written, or whose procedures have changed since."""
    if segment.app != app.name:
        raise RecoveryRefused(f"the log belongs to app {segment.app!r}, not {app.name!r}; open it with the right app")
    if segment.mode != app.recovery:
        raise RecoveryRefused(
            f"the log was written with recovery={segment.mode!r}, the app now says {app.recovery!r}; open it once with the "
            f"old mode and close it cleanly, then change the mode"
        )
    for stream, columns in segment.streams.items():
        now = stream_columns(app).get(stream)
        if now is None or now[: len(columns)] != columns:
            raise RecoveryRefused(
                f"stream {stream} was logged with columns {columns}, the app has {now}; declare it as it was (columns may "
                f"only be added at the end), or open the log with the old app and close it cleanly first",
                stream=stream,
            )
    hashes = code_hashes(app)
    changed = sorted(name for name, old in segment.procedures.items() if hashes.get(name) != old)
    if changed and not accept_changed and segment.mode != "effects":
        raise RecoveryRefused(
            f"the log has to be replayed, but these procedures have changed since it was written: {', '.join(changed)}. "
            f"Open it with the old code and close it cleanly, or accept that the new code runs (accept_changed=True, "
            f"--accept-changed)",
            changed=changed,
        )


def as_logged(
    procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a replay would see them (lists as tuples), so that the first run sees the same."""
    listed, mapped = loggable(procedure, arguments, named)
    return from_json(listed), {name: from_json(value) for name, value in mapped.items()}


def loggable(procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments as they go into the log."""
    try:
        written = [to_json(value) for value in arguments], {name: to_json(value) for name, value in named.items()}
        msgspec.msgpack.encode(written)
        return written
    except (CorruptionError, UnicodeEncodeError, OverflowError) as error:
        kinds = sorted({type(v).__name__ for v in (*arguments, *named.values())})
        why = "" if isinstance(error, CorruptionError) else f": {error}"
        raise DataError(
            f"an argument of {procedure} can't be written to the log; pass numbers, text, bytes, dates, decimals, lists and "
            f"dicts of them (got {', '.join(kinds)}){why}",
            relation=procedure,
        ) from None
