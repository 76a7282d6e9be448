"""The executor with worker threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.clock import Clock
from tidegate.errors import CorruptionError, TidegateError, text_of
from tidegate.txn.context import still_waiting
from tidegate.txn.entries import Work
from tidegate.txn.execution import Execution
from tidegate.txn.executors.base import Executor
from tidegate.txn.journal import Journal
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.ticket import Ticket

log = logging.getLogger("tidegate")


class ThreadExecutor(Executor):
    """Runs executions on worker threads: worth it if procedures spend their time in DuckDB, numpy or I/O, or on people."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        journal: Journal,
        clock: Clock,
        lock: threading.RLock,
        workers: int,
        tick: Callable[[], None],
        pause_s: Callable[[], float | None],
    ) -> None:
        super().__init__(runtime, scheduler, journal, clock, lock)
        self._work = threading.Condition(self.lock)
        self._tick = tick
        self._pause_s = pause_s
        self._stopping = False
        self._running = 0
        self._threads = [
            threading.Thread(target=self._loop, name=f"tidegate-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def place(self, work: Work, ticket: Ticket | None) -> None:
        super().place(work, ticket)
        self.wake()

    def _loop(self) -> None:
        while True:
            with self.lock:
                while (execution := self.scheduler.next()) is None:
                    if self._stopping:
                        return
                    self._work.wait(self._pause_s())
                    if not self._stopping:
                        self._tick()
                self._running += 1
            try:
                self.run(execution)
            except BaseException as error:
                log.exception("%s was stopped; this worker continues", execution)
                self._give_up(execution, error)
            with self.lock:
                self._running -= 1
                self._work.notify_all()
                self.ended.notify_all()

    def _give_up(self, execution: Execution, error: BaseException) -> None:
        """Its outcome could not be recorded, so it never ends: tell its waiters, who would wait forever."""
        with self.lock:
            for ticket in execution.context.tickets:
                if not (ticket.done or ticket.stopped):
                    ticket.stop(error if isinstance(error, TidegateError) else _unrecorded(execution, error))
            self.stop_if_torn()

    def wake(self) -> None:
        with self.lock:
            self._work.notify_all()

    def step(self) -> bool:
        return False

    def run_until_idle(self) -> int:
        """Wait until nothing runs and nothing may run."""
        with self.lock:
            while self._running or self.scheduler.any_ready:
                self.ended.wait()
        return 0

    def wait(self, ticket: Ticket, timeout_s: float | None) -> None:
        event = ticket.event()
        if not event.wait(timeout_s):
            with self.lock:
                raise still_waiting(self.scheduler.waiting(), ticket)

    def close(self) -> None:
        with self.lock:
            self._stopping = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()


def _unrecorded(execution: Execution, error: BaseException) -> CorruptionError:
    return CorruptionError(
        f"{execution} ran, but its outcome could not be recorded: {type(error).__name__}: {text_of(error)}. This is a bug in "
        f"tidegate: please report it with this text. To continue, open the app again"
    )
