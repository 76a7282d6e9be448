"""When and how committed changes are folded into the base: merge = checkpoint = version garbage collection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.errors import DiskFull
from tidegate.pages import LargePages
from tidegate.state import saved_state
from tidegate.views import Merge

if TYPE_CHECKING:
    from tidegate.engine import Engine

LOOK_EVERY = 250  # batches between two looks at how much is unmerged
KEPT = 10_000  # merges remembered for people


class Merger:
    """Merges when enough has changed or enough time has passed.

    In memory with the serial executor it merges inline. An engine with threads or a directory, or with a query replica,
    merges on a thread of its own, so that executions go on while DuckDB writes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_at_a_time = threading.Lock()
        self._looked_at = engine.sequence
        self._wanted = threading.Event()
        self._closing = False
        self.failed: Exception | None = None
        self._thread: threading.Thread | None = None
        self._every_s = engine.config.merge_every_s
        self._merged_at = engine.clock.monotonic()
        self.done: deque[Merge] = deque(maxlen=KEPT)
        self.count = self.rows = 0  # of all merges of this opening, also those no longer kept
        self.seconds = 0.0
        self._pages = LargePages(engine.database) if engine.config.tune_process else None
        if engine.database.concurrent:
            self._start()

    def in_background(self, every_s: float | None = None) -> None:
        """From now on merge on a thread of its own, and at least every ``every_s`` seconds when something has changed.

        For whoever shows merged state to others, and must not show it much too late. None: as often as configured.
        """
        configured = self._engine.config.merge_every_s
        with self._engine.lock:
            self._engine.database.concurrent = True
            self._every_s = configured if every_s is None else min(configured, every_s)
            if self._thread is None:
                self._start()
            else:
                self._wanted.set()  # it sleeps for the period of before still

    def merge_if_older(self, than_s: float) -> None:
        """Merge now if something has changed and the last merge is older than this."""
        if self._engine.database.unmerged and self._engine.clock.monotonic() - self._merged_at >= than_s:
            self.merge()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="tidegate-merge", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Merge (or have it merged) if that is due. Called often: costs a subtraction."""
        engine = self._engine
        if engine.sequence - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = engine.sequence
        if engine.database.unmerged >= engine.config.merge_rows:
            if self._thread is None:
                self.merge()
            else:
                self._wanted.set()

    def check(self) -> None:
        """Raise when the last merge in the background failed for good, or for want of room that is still missing."""
        if self.failed is None:
            return
        if not isinstance(self.failed, DiskFull):
            raise self.failed
        self.merge()

    def merge(self, generation: bool = False) -> None:
        """Fold everything committed into the base now; with a directory that is a checkpoint of the log."""
        engine = self._engine
        durable = engine.durable
        with self._one_at_a_time:
            started = engine.clock.monotonic()
            lsn = 0

            def facts() -> dict[str, object]:
                nonlocal lsn
                lsn = 0 if durable is None else durable.begin_merge()
                return saved_state(engine, lsn)

            rows = engine.database.merge(
                facts,
                engine.scheduler.open_positions,
                lambda: list(engine.executor.snapshots),
                engine.lock,
                before_publish=lambda: None if durable is None else durable.writer.force(lsn),
            )
            if durable is not None:
                durable.merged(engine.database, lsn, generation)
            self.failed = None
            self._merged_at = started
            took = engine.clock.monotonic() - started
            self.count, self.rows, self.seconds = self.count + 1, self.rows + rows, self.seconds + took
            self.done.append(Merge(self.count, rows, took, engine.clock.now()))
            if self._pages is not None and not self._closing:
                self._pages.look()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No merge, and so no removal of old log segments, while inside."""
        with self._one_at_a_time:
            yield

    def _loop(self) -> None:
        while not self._closing:
            asked = self._wanted.wait(self._every_s)
            if self._closing:
                return
            self._wanted.clear()
            unmerged = self._engine.database.unmerged
            if unmerged >= self._engine.config.merge_rows or (unmerged and not asked):
                try:
                    self.merge()
                except DiskFull as error:  # new work is refused until a merge succeeds
                    self.failed = error
                except Exception as error:  # reported to whoever works next
                    self.failed = error
                    return

    def close(self) -> None:
        """Stop merging in the background. The last merge is the engine's."""
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
