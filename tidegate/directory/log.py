"""Durability of one engine: everything accepted goes through the log before it is acknowledged.

Holds the directory, the log writer and what must be known to write records; the engine calls it at the few moments that
matter (accepted, executed, resumed, merged, delivered).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import logging
import secrets
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from tidegate.clock import Clock
from tidegate.config import Config
from tidegate.crashpoints import crash_point
from tidegate.dataflows.app import App
from tidegate.directory.layout import KEPT_GENERATIONS, Directory
from tidegate.errors import (
    CorruptionError,
    DataError,
    LogDamaged,
    LogError,
    LogFailed,
    RecoveryRefused,
    TidegateError,
    shown,
)
from tidegate.storage.base import letting_signals_through
from tidegate.storage.codec import check_depth, from_json, to_json, writable
from tidegate.storage.database import Database
from tidegate.storage.generations import copy_base, sync_base
from tidegate.storage.halfway import TELLING, Halfway
from tidegate.storage.jsontext import DEPTH
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.syncing import sync_file
from tidegate.tuning import Turns
from tidegate.txn.log.reader import Cut, Entry, LogReader, begin_of
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

    ``identity``: whose log it is, None when there is none yet. ``last``: the header of its last segment, and ``chain`` the
    crc32 of the last frame: what is written next goes on from them.
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
        self.last: Segment | None = reader.segment
        self.identity = None if self.last is None else self.last.directory
        self.chain = reader.chain
        names = directory.files.names()
        self.oldest = begin_of(names[0]) if names else 0
        self.end = max(reader.end, self.oldest)
        self.cut: Cut | None = reader.cut
        if reader.cut is not None:
            directory.files.truncate(reader.cut.file, reader.cut.offset)
        elif names:
            self._make_final(directory, names[-1])
        for name in directory.files.names():
            if begin_of(name) >= self.end:
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

    def check(self, meta: Mapping[str, Any]) -> None:
        """A base never holds more than the log: one that does says that the end of the log is gone. The newest one knows how far
        back the log goes, too.
        """
        lsn = int(meta.get("lsn", 0))
        if lsn > self.end:
            raise LogDamaged(
                f"the base holds everything up to LSN {lsn}, but the log ends at {self.end}: its end is missing or damaged. "
                f"Restore the log from a backup, then open again",
                file=None,
                offset=None,
                lsn=self.end,
            )
        if meta and meta["merge"] >= self.merges and self.oldest > meta["kept"]:
            raise LogDamaged(
                f"the log begins at LSN {self.oldest}, but the base says that it was kept from LSN {meta['kept']} on: segments "
                f"in front are missing. Put them back, or restore a backup, then open again",
                file=None,
                offset=None,
                lsn=self.oldest,
            )

    def header(self, app: App) -> Segment:
        """Of the segment that the log goes on with."""
        number = 0 if self.last is None else self.last.number + 1
        identity = secrets.token_hex(8) if self.identity is None else self.identity
        code, columns, opening = code_hashes(app), stream_columns(app), secrets.token_hex(8)
        return Segment(FORMAT, app.name, app.recovery, code, columns, identity, opening, number, self.end, self.chain)


class Arrival(NamedTuple):
    """Rows that arrive together, checked and split into batches: one record in the log, so that no crash parts them.

    ``parts``: (key, rows) of each batch, which ``size`` rows after the other, split by key, would give again. ``batch_id``: the
    id of its only batch, given by whoever pushed it. ``source`` stands at ``offset`` from then on.
    """

    border: Border
    parts: list[tuple[Any, tuple[Any, ...]]]
    size: int = 1
    rows: Sequence[Any] | None = None
    batch_id: int | None = None
    source: str | None = None
    offset: Any = None


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
        halfway: Halfway,
        turns: Turns | None = None,
    ) -> None:
        self.app = app
        self.directory = directory
        self.mode: str = app.recovery
        self.merges = merges
        self._oldest = opened.oldest
        self._generation_lsn = max((g.lsn for g in directory.generations()), default=opened.oldest)
        self._generation_due = False
        self._generation_bytes = config.generation_bytes
        self._lock = lock
        self._on_failed = on_failed
        self._turns = turns
        self._one_by_one = config.executor == "serial"  # a batch runs before the next is admitted
        self._halfway = halfway
        self._unacknowledged: deque[tuple[int, Ticket]] = deque()
        segment = opened.header(app)
        self.identity = segment.directory
        self.stands: dict[str, Any] = {}  # what the base of the merge that began last says of the log
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
        if not self._unacknowledged:
            return
        if self.writer.appended <= lsn or threading.current_thread() is threading.main_thread():
            with self._lock:
                self._tell(lsn)
        elif self._lock.acquire(blocking=False):  # no signal comes between this and the next: not on this thread
            try:
                self._tell(lsn)
            finally:
                self._lock.release()

    def _tell(self, lsn: int) -> None:
        """Everything up to ``lsn`` is on disk. Under the lock: whoever has called it knows that all up to there are told."""
        waiting, halfway = self._unacknowledged, self._halfway
        if not waiting or waiting[0][0] > lsn:
            return
        before = halfway.through
        if before is TELLING:  # and was interrupted: the first one may have been told
            self.stop(halfway.stopped())
            return
        halfway.through = TELLING
        while waiting and waiting[0][0] <= lsn:
            ticket = waiting[0][1]
            ticket.pending -= 1
            if not ticket.pending:
                ticket.finish()
            waiting.popleft()
        halfway.through = before

    def stop(self, error: TidegateError) -> None:
        """Nothing more will be acknowledged: whoever waits is told, instead of waiting for ever. Under the lock."""
        while self._unacknowledged:
            ticket = self._unacknowledged[0][1]
            if not ticket.done:
                ticket.stop(error)
            self._unacknowledged.popleft()

    def _failed(self, error: LogFailed) -> None:
        with self._lock:
            self._tell(self.writer.synced)
            self.stop(error)
            self._on_failed(error)

    def sync(self) -> None:
        """Return when everything appended so far is on disk, and the tickets know."""
        self.writer.wait(self.writer.appended)
        with self._lock:
            self._tell(self.writer.synced)

    # ---- records

    def arrived(self, first: int, time: dt.datetime, arrival: Arrival, batches: Sequence[Batch]) -> int:
        """One record for all of it: ``Pushed`` for a single batch, else ``Fed`` (without rows, when a source only moves on)."""
        stream, source = arrival.border.name, arrival.source
        offset = None if source is None else to_json(arrival.offset)
        if len(batches) == 1:
            batch, explicit = batches[0], arrival.batch_id is not None
            record: Record = Pushed(first, to_us(time), stream, batch.id, list(batch.rows), explicit, source, offset)
        else:
            rows = arrival.rows or [row for batch in batches for row in batch.rows]
            together = not self._one_by_one or not batches
            record = Fed(first, to_us(time), stream, max(arrival.size, 1), rows, source, offset, together)  # type: ignore[arg-type]  # written like a list
        return self.writer.append(record)

    def called(self, sequence: int, time: dt.datetime, procedure: str, written: LoggedCall) -> int:
        return self.writer.append(Called(sequence, to_us(time), procedure, *written))

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

    def begin_merge(self, generation: bool) -> int:
        """A merge of everything up to here begins; returns the LSN it stands for. The caller holds the engine's lock.

        ``stands`` says which log that is an LSN of: whose, with which crc32 in front of the LSN, and kept from where on.
        """
        self.writer.check_place()  # a base that nobody finds again is not merged into
        self.merges += 1
        lsn, chain = self.writer.place()
        self._generation_due = generation or lsn - self._generation_lsn >= self._generation_bytes
        kept = self._kept_from([lsn] if self._generation_due else [])
        self.stands = {"merge": self.merges, "directory": self.identity, "chain": chain, "kept": kept}
        return lsn

    def _kept_from(self, coming: list[int]) -> int:
        """From which LSN on the log is kept: since the oldest generation that is; with too few, as far back as it goes."""
        lsns = coming + [generation.lsn for generation in self.directory.generations()]
        return lsns[KEPT_GENERATIONS - 1] if len(lsns) >= KEPT_GENERATIONS else self._oldest

    def merged(self, database: Database, lsn: int) -> None:
        """The base holds everything below ``lsn``: say so in the log, keep a copy when it is time, drop old segments."""
        assert database.base.path is not None
        sync_base(database.base.path)
        due = self._generation_due and self._keep_generation(database, lsn)
        self.writer.append(Checkpoint(self.merges, lsn, due))
        self.sync()
        crash_point("merge-after-checkpoint")
        if due:
            self._forget_old()

    @letting_signals_through()
    def _keep_generation(self, database: Database, lsn: int) -> bool:
        """Copy the base; without room for that, or descriptors, the older generations, and the log since, still do."""
        cursor = database.base.cursor()
        try:
            copy_base(cursor, self.directory.generation(self.merges, lsn))
        except (LogError, OSError) as error:
            log.warning("no generation was kept: %s", error)
            return False
        finally:
            cursor.close()
        self._generation_lsn = lsn
        return True

    def _forget_old(self) -> None:
        """Keep the newest generations, and the log since the oldest of them. A generation goes before the log that it needs."""
        for old in self.directory.generations()[KEPT_GENERATIONS:]:
            crash_point("retention-before-remove")
            old.path.unlink()
        sync_file(self.directory.generations_path)
        kept = self._kept_from([])
        for name, following in pairwise(self.directory.files.names()):
            if begin_of(following) <= kept:
                crash_point("retention-before-remove")
                self.directory.files.remove(name)
                self._oldest = begin_of(following)

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


LoggedCall = tuple[Any, Any]  # arguments and named arguments, as the bytes that the record will hold


def as_logged(
    procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[LoggedCall, tuple[Any, ...], dict[str, Any]]:
    """A call's arguments as they go into the log, and as a replay would see them (lists as tuples), so that the first run
    sees the same.
    """
    try:
        listed, mapped = to_json(arguments), {name: to_json(value) for name, value in named.items()}
        for value in (*listed, *mapped.values()):
            check_depth(value)
        written = msgspec.Raw(msgspec.msgpack.encode(listed)), msgspec.Raw(msgspec.msgpack.encode(mapped))
        return written, from_json(listed), {name: from_json(value) for name, value in mapped.items()}
    except (CorruptionError, ValueError, OverflowError, TypeError, RecursionError):
        raise _unloggable(procedure, arguments, named) from None


def _unloggable(procedure: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> DataError:
    """Which argument it is, and why."""
    for name, value in (dict(enumerate(arguments)) | named).items():
        try:
            writable(name)
            writable(value)
        except ValueError as error:
            which = f"number {name + 1}" if isinstance(name, int) else repr(name)
            return DataError(
                f"argument {which} of {procedure} can't be written to the log: {error}; pass numbers, text, bytes, dates, "
                f"decimals, lists and dicts of them, at most {DEPTH} levels deep (got {shown(value)})",
                relation=procedure,
                value=value,
            )
    return DataError(f"the arguments of {procedure} can't be written to the log", relation=procedure)
