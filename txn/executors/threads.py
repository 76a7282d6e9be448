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
    """Runs executions on worker threads: worth it if procedures spend their time in DuckDB, numpy or I/O, or on people.

    A worker that ends an execution takes the next one under the same hold of the lock: a chain of executions stays on its
    worker, and handing work over to another thread, which costs more than most executions, happens only when there is more
    than the workers that are awake will take. Everyone takes the smallest position that may run, so nothing starves.

    At most one worker is on its way from sleep at any time; when it takes its work, it wakes the next, if there is more. So
    while anything is ready, a worker is on its way, or none sleeps. Workers without work sleep until they are woken; if the
    clock alone may bring some (a deadline, a timer), one of them looks from time to time.
    """

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
        self._asleep = 0  # workers that wait for work
        self._watching = 0  # those among them that look at the clock
        self._rousing = False  # one of them is on its way
        self._threads = [
            threading.Thread(target=self._loop, name=f"tidegate-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def place(self, work: Work, ticket: Ticket | None) -> None:
        with self.lock:
            super().place(work, ticket)
            self._rouse()

    def _loop(self) -> None:
        execution = self._wait_for_work()
        while execution is not None:
            execution = self._run_then_take(execution) or self._wait_for_work()

    def _wait_for_work(self) -> Execution | None:
        """What to run next; None when the engine closes."""
        with self.lock:
            while (execution := self._take()) is None:
                if self._stopping:
                    return None
                self._sleep()
                if not self._stopping:
                    self._tick()
            return execution

    def _take(self) -> Execution | None:
        """The next execution that may run; if there are more, another worker is woken. The caller holds the lock."""
        execution = self.scheduler.next()
        if execution is not None:
            self._running += 1
        if self._asleep:
            self._rouse()
        return execution

    def _run_then_take(self, execution: Execution) -> Execution | None:
        """Run it; returns what may run then. Its end and that choice are one hold of the lock."""
        try:
            txn = self.start(execution)
            try:
                outcome = self.outcome(execution, txn)
                with self.lock:
                    self.settle(execution, outcome)
                    following = self._take()
                    self._running -= 1
                    return following
            except BaseException as error:
                self.break_off(execution, txn, error)
                raise
        except BaseException as error:
            log.exception("%s was stopped; this worker continues", execution)
            self._give_up(execution, error)
        with self.lock:
            self._running -= 1
            self.ended.notify_all()
        return None

    def _sleep(self) -> None:
        """Until there is work; if the clock may bring some, one worker sleeps only until then. The caller holds the lock."""
        pause_s = None if self._watching else self._pause_s()
        watches = pause_s is not None
        self._asleep += 1
        self._watching += watches
        try:
            self._work.wait(pause_s)
        finally:
            self._asleep -= 1
            self._watching -= watches
            self._rousing = False

    def _rouse(self) -> None:
        """Wake a worker, if one sleeps and there is something for it to do. The caller holds the lock."""
        if self._asleep and not self._rousing and self._any_for_another():
            self._rousing = True
            self._work.notify()

    def _any_for_another(self) -> bool:
        return self.scheduler.any_ready or not (self._watching or self._pause_s() is None)

    def _give_up(self, execution: Execution, error: BaseException) -> None:
        """Its outcome could not be recorded, so it never ends: tell its waiters, who would wait forever."""
        with self.lock:
            for ticket in execution.context.tickets:
                if not (ticket.done or ticket.stopped):
                    ticket.stop(error if isinstance(error, TidegateError) else _unrecorded(execution, error))
            self.stop_if_torn()

    def wake(self) -> None:
        with self.lock:
            self._rouse()

    def step(self) -> bool:
        return False

    def run_until_idle(self) -> int:
        """Wait until nothing runs and nothing may run, what is due by the clock included."""
        with self.lock:
            self._tick()
            while self._running or self.scheduler.any_ready:
                self.ended.wait()
                if not (self._running or self.scheduler.any_ready):
                    self._tick()
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
