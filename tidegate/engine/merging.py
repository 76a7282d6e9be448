"""When and how committed changes are merged into the base: merge = checkpoint = version garbage collection."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.engine.checkpoint import facts_in_memory, saved_state
from tidegate.engine.pages import LargePages
from tidegate.engine.system_views import Merge
from tidegate.errors import BaseDamaged, DiskFull, EngineClosed, LogError, LogFailed, Overloaded, text_of
from tidegate.mutex import Flag, Rank, mutex
from tidegate.streams.windows.state.sizes import bytes_of

if TYPE_CHECKING:
    from tidegate.directory.log import DurableLog
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

LOOK_EVERY = 250  # batches between two checks of how much is unmerged
KEPT = 10_000  # merges kept for people to see
FIRST_RETRY_S, LAST_RETRY_S = 0.25, 30.0  # waits after a failure: twice as long each time
FULL_RETRY_S = 1.0  # at most, while new work is refused (disk full, base damaged)
BEHIND = 10  # times ``merge_rows`` that may be unmerged while merges fail


class Merger:
    """Merges when enough has changed or enough time has passed.

    In memory with the serial executor it merges inline. An engine with threads or a directory, or with a query replica,
    merges on a separate thread, so that executions continue while DuckDB writes.

    A merge that fails is tried again, for as long as the engine is open: what it would have merged is in the log and in
    memory. Meanwhile new work is refused only if it can't be kept: the disk is full, the base is damaged, or too much
    is unmerged.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_at_a_time = mutex(Rank.MERGING)
        self._acceptance = engine.acceptance
        self._looked_at = engine.sequence
        self._wanted = Flag()
        self._closing = self._ended = False
        self._ending = Flag()
        self.failed: Exception | None = None  # why the last merge in the background did not succeed
        self.tries = 0  # failures in a row
        self.failing_since: dt.datetime | None = None
        self.last_failure: tuple[dt.datetime, str] | None = None  # even if merges have succeeded since
        self._thread: threading.Thread | None = None
        self._every_s = engine.config.merge_every_s
        self._merged_at = engine.clock.monotonic()
        self.done: deque[Merge] = deque(maxlen=KEPT)
        self.count = self.rows = 0  # of all merges since opening, including those no longer kept
        self.seconds = 0.0
        self._set_aside = dict(engine.database.base.aside.rows)
        self._pages = LargePages(engine.database) if engine.config.tune_process else None
        engine.database.on_wanted = self._wanted.set
        if engine.config.memory is not None:
            engine.database.elsewhere = self._bytes_elsewhere
        if engine.database.concurrent:
            self._start()

    def in_background(self, every_s: float | None = None) -> None:
        """From now on merge on a separate thread, and at least every ``every_s`` seconds when something has changed.

        For readers of merged state that must not lag far behind. None: as often as configured.
        """
        configured = self._engine.config.merge_every_s
        with self._engine.lock:
            self._engine.database.concurrent = True
            self._every_s = configured if every_s is None else min(configured, every_s)
            if self._thread is None:
                self._start()
            else:
                self._wanted.set()  # it is still sleeping for the old period

    def merge_if_older(self, than_s: float) -> None:
        """Merge now if something has changed and the last merge is older than this."""
        if self._engine.database.unmerged and self._engine.clock.monotonic() - self._merged_at >= than_s:
            self.merge()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="tidegate-merge", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Merge (or have it merged) if a merge is due. Called often: costs a subtraction."""
        sequence = self._acceptance.sequence
        if sequence - self._looked_at < LOOK_EVERY:
            return
        self._looked_at, engine = sequence, self._engine
        if engine.database.unmerged >= engine.config.merge_rows or engine.database.crowded:
            if self._thread is None:
                self._try()
            else:
                self._wanted.set()

    def check(self) -> None:
        """Raise when merges fail and new work could not be kept."""
        failed, config = self.failed, self._engine.config
        if isinstance(failed, (DiskFull, BaseDamaged)):
            raise failed
        if failed is not None and (unmerged := self._engine.database.unmerged) > BEHIND * config.merge_rows:
            raise Overloaded(
                f"{unmerged} changed rows wait for a merge into the base, more than {BEHIND} times "
                f"merge_rows={config.merge_rows}: merges have failed since {self.failing_since} ({text_of(failed)}). They are "
                f"retried automatically; fix the cause, then push again",
                capacity=BEHIND * config.merge_rows,
            ) from failed

    def merge(self, generation: bool = False) -> None:
        """Merge everything committed into the base now; with a directory that is a checkpoint of the log."""
        engine = self._engine
        durable = engine.durable
        with self._one_at_a_time:
            if self._ended:
                raise EngineClosed("the engine is closed, so nothing is merged any more")
            started = engine.clock.monotonic()
            lsn = 0

            def facts() -> dict[str, object]:
                nonlocal lsn
                lsn = 0 if durable is None else durable.begin_merge(generation)
                return facts_in_memory(engine) if durable is None else saved_state(engine, lsn)

            rows = engine.database.merge(
                facts,
                engine.scheduler.open_positions,
                lambda: list(engine.executor.snapshots),
                engine.lock,
                engine.turn,
                before_publish=lambda: None if durable is None else self._force(durable, lsn),
            )
            if durable is not None:
                durable.merged(engine.database, lsn)
            engine.outbox.topics.merged()
            self._succeeded()
            self._merged_at = started
            took = engine.clock.monotonic() - started
            self.count, self.rows, self.seconds = self.count + 1, self.rows + rows, self.seconds + took
            self.done.append(Merge(self.count, rows, took, engine.clock.now()))
            self._tell_of_set_aside()
            if self._pages is not None and not self._closing:
                self._pages.look()

    def _force(self, durable: DurableLog, lsn: int) -> None:
        """The base must never be ahead of the log, nor of the topics."""
        durable.writer.force(lsn)
        try:
            self._engine.outbox.topics.sync()
        except LogFailed as error:
            if isinstance(error.__cause__, OSError):
                durable.writer.stop(error.__cause__)
            raise

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No merge, and so no removal of old log segments, while inside."""
        with self._one_at_a_time:
            yield

    def _loop(self) -> None:
        while not self._closing:
            if isinstance(self.failed, LogFailed):
                return  # the engine accepts nothing more
            if self.failed is not None:
                self._ending.wait(self._pause_s())
                if not self._closing and self.failed is not None:  # a manual merge may have succeeded
                    self._try()
                continue
            asked = self._wanted.wait(self._every_s)
            self._wanted.clear()
            self._load()
            unmerged = self._engine.database.unmerged
            due = (
                unmerged >= self._engine.config.merge_rows or (unmerged and not asked) or self._engine.database.crowded
            )
            if due and not self._closing:
                self._try()

    def _bytes_elsewhere(self) -> int:
        """What windows and waiting work take. The caller holds the engine's lock."""
        engine = self._engine
        windows = sum(
            state.bytes_held()
            for program in engine.runtime.programs.values()
            for states in program.windows.values()
            for state in states.values()
        )
        return windows + bytes_of([list(execution.inputs.values()) for execution in engine.scheduler.live.values()])

    def _load(self) -> None:
        """Load the tables that are being read and are not in memory. What a merge can't bear, it will say itself."""
        with self._one_at_a_time:
            if self._engine.database.wanted and not self._ended:
                try:
                    self._engine.database.load_wanted(lambda: self._closing)
                except Exception as error:
                    log.warning("a table could not be loaded in the background: %s", text_of(error))

    def _try(self) -> None:
        """Merge; a failure is noted and logged, and the merge is tried again later."""
        try:
            if isinstance(self.failed, BaseDamaged):
                with self._one_at_a_time:
                    self._engine.database.reopen()
            self.merge()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        now = self._engine.clock.now()
        self.tries += 1
        self.failing_since = self.failing_since or now
        self.last_failure = (now, text_of(error))
        self.failed = error
        log.warning(
            "a merge failed (%s since %s); trying again in %.1f s: %s",
            *(self.tries, self.failing_since, self._pause_s(), text_of(error)),
            exc_info=error if self.tries == 1 and not isinstance(error, LogError) else None,
        )

    def _succeeded(self) -> None:
        if self.failed is not None:
            log.warning("merges succeed again, after %s failures since %s", self.tries, self.failing_since)
        self.failed, self.failing_since, self.tries = None, None, 0

    def _pause_s(self) -> float:
        longest = FULL_RETRY_S if isinstance(self.failed, (DiskFull, BaseDamaged)) else LAST_RETRY_S
        return float(min(FIRST_RETRY_S * 2 ** min(self.tries - 1, 20), longest))

    def _tell_of_set_aside(self) -> None:
        """Log every row that is new among those which DuckDB rejects, once."""
        now = dict(self._engine.database.base.aside.rows)
        for place, entry in now.items():
            if self._set_aside.get(place) != entry:
                log.warning(
                    "DuckDB rejects %s. The row is kept in memory and next to the tables, queries of the replica do not see "
                    "it, and every merge tries it again; change or delete it in a procedure, and please report it",
                    entry,
                )
        for place, entry in self._set_aside.items():
            if place not in now:
                log.info("the row of %s with key %r is no longer set aside", entry.table, entry.key)
        self._set_aside = now

    def facts(self) -> dict[str, Any]:
        """The state of merging, for people and for monitoring."""
        engine = self._engine
        at, text = self.last_failure or (None, None)
        return {
            "last_merge": None if not self.done else self.done[-1].at,
            "last_merge_age_s": engine.clock.monotonic() - self._merged_at,
            "merge_tries": self.tries,
            "merges_failing_since": self.failing_since,
            "last_merge_failure": text,
            "last_merge_failure_at": at,
            "rows_set_aside": len(engine.database.base.aside),
        }

    def end(self) -> None:
        """Nothing is merged from now on; returns when nobody is in the middle of a merge."""
        with self._one_at_a_time:
            self._ended = True

    def close(self) -> None:
        """Stop merging in the background. The last merge is the engine's."""
        self._closing = True
        self._ending.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
