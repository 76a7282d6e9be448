"""Durability of one engine: everything accepted goes through the log before it is acknowledged.

Holds the directory, the log writer and what is needed to write records; the engine calls it at the few moments that
matter (accepted, executed, resumed, merged, delivered).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from tidegate.clock import Clock
from tidegate.config import Config
from tidegate.crashpoints import crash_point
from tidegate.dataflows.app import App
from tidegate.directory.layout import KEPT_GENERATIONS, Directory
from tidegate.directory.survey import Survey
from tidegate.errors import LogError, LogFailed, TidegateError
from tidegate.storage.base import letting_signals_through
from tidegate.storage.codec import to_json
from tidegate.storage.database import Database
from tidegate.storage.generations import copy_base, sync_base
from tidegate.storage.halfway import TELLING, Halfway
from tidegate.syncing import sync_file
from tidegate.tuning import Turns
from tidegate.txn.log.reader import begin_of
from tidegate.txn.log.record import Checkpoint, Executed, Record
from tidegate.txn.log.writer import LogWriter
from tidegate.txn.shown import Shown, record_of
from tidegate.txn.ticket import Ticket
from tidegate.txn.timers import changes_of, saved_changes
from tidegate.txn.transaction import Transaction

log = logging.getLogger("tidegate")


class DurableLog:
    """The log of an open engine. ``lock``: the engine's."""

    def __init__(
        self,
        app: App,
        config: Config,
        directory: Directory,
        survey: Survey,
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
        self._oldest = survey.oldest
        self.replayable_since = survey.replayable_since(
            app
        )  # an LSN: before it another version of the app wrote the log
        self._generation_lsn = max((g.lsn for g in directory.generations()), default=survey.oldest)
        self.generation_due = False
        self._generation_bytes = config.generation_bytes
        self._lock = lock
        self._on_failed = on_failed
        self._turns = turns
        self._halfway = halfway
        self._unacknowledged: deque[tuple[int, Ticket]] = deque()
        segment = survey.header(app)
        self.identity = segment.directory
        self.stands: dict[str, Any] = {}  # what the base of the last merge begun says about the log
        self.writer = LogWriter(
            directory.files,
            survey.end,
            segment,
            config.sync,
            config.max_delay_s,
            self._synced,
            self._failed,
            monotonic=clock.monotonic,
        )

    # ---- acknowledging

    def acknowledge(self, ticket: Ticket, lsn: int | None = None) -> None:
        """The ticket arrives when the log is on disk up to ``lsn`` (default: all logged so far). Under the lock."""
        waiting, writer = self._unacknowledged, self.writer
        waiting.append((writer.appended if lsn is None else lsn, ticket))
        if waiting[0][0] <= writer.synced:
            self._tell(writer.synced)
        if writer.failed is not None:  # the others were told before this one came
            self.stop(writer.refusal())

    def hold(self, tickets: Iterable[Ticket]) -> None:
        """These tickets are not done before everything logged so far is on disk."""
        for ticket in tickets:
            ticket.expect()
            self.acknowledge(ticket)

    def _synced(self, lsn: int) -> None:
        """The log is on disk up to ``lsn``: tell the tickets that wait for that.

        While more is appended, someone is pushing, and that thread tells them (``acknowledge``). The log thread must
        not queue for the lock behind a stream of pushes, or the next group would wait with it.
        """
        if self._turns is not None:
            self._turns.step()
        if not self._unacknowledged:
            return
        if self.writer.appended <= lsn or threading.current_thread() is threading.main_thread():
            with self._lock:
                self._tell(lsn)
        elif self._lock.acquire(blocking=False):  # no signal comes between this and the next line: not on this thread
            try:
                self._tell(lsn)
            finally:
                self._lock.release()

    def _tell(self, lsn: int) -> None:
        """Everything up to ``lsn`` is on disk. Under the lock: when it returns, all tickets up to there have been told."""
        waiting, halfway = self._unacknowledged, self._halfway
        if not waiting or waiting[0][0] > lsn:
            return
        before = halfway.through
        if before is TELLING:  # an earlier call was interrupted: the first ticket may have been told
            self.stop(halfway.stopped())
            return
        halfway.through = TELLING
        while waiting and waiting[0][0] <= lsn:
            waiting[0][1].arrive()
            waiting.popleft()
        halfway.through = before

    def stop(self, error: TidegateError) -> None:
        """Nothing more will be acknowledged: tell all waiters, who would wait forever. Under the lock."""
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
            timers = saved_changes(changes_of(txn))
            facts: dict[str, Any] = {"writes": writes, "emitted": emitted, "timers": timers}
            self.writer.append(Executed(txn.position, "committed", txn.procedure, **facts))

    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = (), trace: str = "") -> None:
        """An execution was undone. An abort happens again when run again, so weak mode needs no record of it."""
        if outcome == "aborted" and self.mode == "weak":
            return
        facts: dict[str, Any] = {"parked": list(parked), "trace": trace, "attempts": txn.attempts}
        if self.mode == "effects":
            facts |= {"writes": {}, "emitted": {}}
        self.writer.append(Executed(txn.position, outcome, txn.procedure, reason, **facts))

    def asked(self, txn: Transaction, question: Shown) -> None:
        self.writer.append(record_of(txn.position, question, txn.unit))

    def append(self, record: Record) -> int:
        return self.writer.append(record)

    # ---- merging

    def begin_merge(self, generation: bool) -> int:
        """A merge of everything up to here begins; returns its LSN. The caller holds the engine's lock.

        ``stands`` says which log this LSN belongs to: its directory, the crc32 before the LSN, and from where it is
        kept.
        """
        self.writer.check_place()  # do not merge into a base that is gone from its path
        self.merges += 1
        lsn, chain = self.writer.place()
        self.generation_due = generation or lsn - self._generation_lsn >= self._generation_bytes
        kept = self.kept_from([lsn] if self.generation_due else [])
        self.stands = {"merge": self.merges, "directory": self.identity, "chain": chain, "kept": kept}
        return lsn

    def kept_from(self, coming: Sequence[int] = ()) -> int:
        """The LSN from which the log is kept: that of the oldest kept generation; with too few, as far back as it goes."""
        lsns = [*coming] + [generation.lsn for generation in self.directory.generations()]
        return lsns[KEPT_GENERATIONS - 1] if len(lsns) >= KEPT_GENERATIONS else self._oldest

    def merged(self, database: Database, lsn: int) -> None:
        """The base holds everything below ``lsn``: log that, keep a copy when it is due, remove old segments."""
        assert database.base.path is not None
        sync_base(database.base.path)
        due = self.generation_due and self._keep_generation(database, lsn)
        self.writer.append(Checkpoint(self.merges, lsn, due))
        self.sync()
        crash_point("merge-after-checkpoint")
        if due:
            self._forget_old()

    @letting_signals_through()
    def _keep_generation(self, database: Database, lsn: int) -> bool:
        """Copy the base; if there is no disk space or file descriptor for that, the older generations and the log
        suffice.
        """
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
        """Keep the newest generations, and the log since the oldest of them. A generation is removed before the log
        that it needs.
        """
        for old in self.directory.generations()[KEPT_GENERATIONS:]:
            crash_point("retention-before-remove")
            old.path.unlink()
        sync_file(self.directory.generations_path)
        kept = self.kept_from()
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
