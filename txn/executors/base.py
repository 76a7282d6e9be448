"""The executor that runs executions when told to; the base of all others."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tidegate import crashpoints
from tidegate.clock import Clock
from tidegate.crashpoints import crash_point
from tidegate.errors import Aborted, ProcedureFailed, TidegateError
from tidegate.storage.database import Readers
from tidegate.storage.halfway import ENDING
from tidegate.streams.batch import Batch
from tidegate.streams.dividing import Divided
from tidegate.txn.context import Context, still_waiting
from tidegate.txn.entries import Resumption, Work
from tidegate.txn.execution import Execution, State
from tidegate.txn.journal import Journal
from tidegate.txn.log.record import to_us
from tidegate.txn.outcome import COMMITTED, Outcome, Waits
from tidegate.txn.positions import Position
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime, interrupted
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.shown import answered, show
from tidegate.txn.teller import Teller
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction
from tidegate.txn.watchdog import Expired, Watch
from tidegate.txn.watched import WatchedTransaction

log = logging.getLogger("tidegate")


class Executor:
    """Runs executions when told to: one per :meth:`step`. The other executors decide when to step.

    ``lock`` guards the scheduler and commits; user code runs outside it. ``turn`` is held while work is brought in, and
    taken briefly when a merge begins. If executions run later, on other threads, it is the lock itself; an executor
    that runs them at once holds it until they have ended, because the scheduler does not know about them.
    ``together``: the batches of an entry are all admitted before any of them runs. ``watched``: deadlines of procedures
    are enforced.
    """

    together = True
    watched = True

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, journal: Journal, clock: Clock, lock: threading.RLock
    ) -> None:
        self.runtime = runtime
        self.halfway = runtime.halfway
        self.scheduler = scheduler
        self.journal = journal
        self.clock = clock
        self.lock = lock
        self.turn: threading.RLock = lock
        self.snapshots: dict[int, int] = {}  # commit number -> how many committed-state readers hold it
        self.ended = threading.Condition(self.lock)  # notified when executions finish

    # ---- work in

    def place(self, work: Work, ticket: Ticket | None) -> None:
        """Give accepted work its place in the order. No ticket: nobody waits for it."""
        with self.lock:
            if work.call is not None:
                self.admit_call(work, ticket)
            elif work.resumption is not None:
                self.resumed(work.resumption)
            else:
                for sequence, batch in enumerate(work.batches, work.first):
                    self.admit(sequence, batch, work.time, ticket)

    def resumed(self, resumption: Resumption) -> None:
        """A halted dataflow continues: so do its tickets. Those of a batch that was skipped get the failure."""
        for execution in (*resumption.skipped, *(execution for _, execution in resumption.moved)):
            for ticket in execution.context.tickets:
                if ticket.stopped:
                    ticket.resume()
        for execution in resumption.skipped:
            context: Context = execution.context
            assert context.failure is not None
            self.journal.skipped(execution, context.time, context.failure)
            self.journal.finishing(context.tickets, context.failure)
            self.scheduler.withdrawn.remove(execution)
            self._finish_tickets(execution, context.failure, None)
        for _, execution in resumption.moved:
            execution.context.failure = None
        self._after_scheduling()
        self.ended.notify_all()

    def nobodys(self) -> Ticket:
        """A ticket that nobody waits for."""
        return Ticket(Teller(self.wait))

    def admit(self, sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None) -> None:
        """Have the scheduler place what a border batch causes; its windows may be evaluated ahead of time."""
        if self.runtime.ahead is not None:
            self.runtime.ahead.coming(batch.relation.name, batch.key, batch.given, to_us(time))
        self.schedule(sequence, batch, time, ticket)

    def schedule(self, sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None) -> None:
        """Have the scheduler place what a border batch causes."""
        ticket = ticket or self.nobodys()
        for execution in self.scheduler.admit(sequence, batch):
            if execution.context is None:
                execution.context = Context(self.runtime.units[execution.unit.name], time, ticket)
            else:
                execution.context.tickets.append(ticket)
                execution.context.answered = time
            ticket.expect()
        self._after_scheduling()

    def admit_call(self, work: Work, ticket: Ticket | None) -> None:
        """Have the scheduler place a call."""
        call, ticket = work.call, ticket or self.nobodys()
        assert call is not None
        execution = self.scheduler.admit_call(work.first, call.unit.unit, call.partitions)
        execution.context = Context(call.unit, work.time, ticket, call)
        ticket.expect()
        self._after_scheduling()

    def inline_plan(self, stream: str) -> list[UnitProgram] | None:
        """The units a batch on ``stream`` may cause, if they may run inline while nothing else is unfinished."""
        return None

    def wake(self) -> None:
        """There may be something to run."""

    def _after_scheduling(self) -> None:
        """Executions that will never start count as finished for their tickets; those that were divided, as their parts."""
        for whole, executions in self.scheduler.divided:
            context: Context = whole.context
            for execution in executions:
                execution.context = Context(context.program, context.time, context.tickets[0])
                execution.context.tickets = [*context.tickets]
                for ticket in context.tickets:
                    ticket.expect()
            self._finish_tickets(whole, None, None)
        self.scheduler.divided.clear()
        while self.scheduler.withdrawn:
            self._finish_tickets(self.scheduler.withdrawn.pop(), None, None)

    # ---- running

    def step(self) -> bool:
        """Run one execution that may run now; False when there is none."""
        try:
            with self.lock:
                execution = self.scheduler.next()
            if execution is None:
                return False
            self.run(execution)
        except BaseException as error:
            self._end_chosen(error)
            raise
        return True

    def _end_chosen(self, error: BaseException) -> None:
        """An interrupt came between choosing an execution and running it: stop in front of it."""
        with self.lock:
            if self.halfway.through is None:
                for execution in [e for e in self.scheduler.live.values() if e.state is State.RUNNING]:
                    self.settle(execution, interrupted(self.start(execution), error))

    def run_until_idle(self) -> int:
        """Run until nothing may run; returns how many executions ran."""
        count = 0
        while self.step():
            count += 1
        return count

    def run(self, execution: Execution) -> None:
        """Run a RUNNING execution until it ends or waits."""
        txn = self.start(execution)
        try:
            self.settle(execution, self.outcome(execution, txn))
        except BaseException as error:
            self.break_off(execution, txn, error)
            raise

    def outcome(self, execution: Execution, txn: Transaction) -> Outcome:
        """Have the procedures run; says how that ended. The caller holds no lock."""
        deadline_s = execution.context.program.deadline_s if self.watched else None
        return self.runtime.attempt(txn) if deadline_s is None else self._attempt_watched(txn, deadline_s)

    def break_off(self, execution: Execution, txn: Transaction, error: BaseException) -> None:
        """Ctrl-C and the like: undo, and stop in front of the batch."""
        self.runtime.running.pop(threading.get_ident(), None)
        with self.lock:
            if execution.state is State.RUNNING and self.halfway.through is None:
                self.settle(execution, interrupted(txn, error))

    def start(self, execution: Execution) -> Transaction:
        """The transaction of an execution, with the batches that have arrived by now."""
        context: Context = execution.context
        context.started_at = self.clock.monotonic()
        txn = context.txn
        if txn is None:
            with self.lock:
                txn = context.txn = self._begin(execution)
                if context.program.committed:
                    self.hold_snapshot(txn.commit)
        else:
            given, streams = execution.inputs, txn.streams
            for stream in execution.unit.awaited:
                if given.get(stream) is not None and stream not in streams:
                    streams[stream] = given[stream]  # type: ignore[assignment]
        return txn

    def _begin(self, execution: Execution) -> Transaction:
        context: Context = execution.context
        known = {stream: batch for stream, batch in execution.inputs.items() if batch is not None}
        inputs = execution.unit.started_by(known)
        txn = self.runtime.begin(
            context.program, execution.position, execution.batch_id, execution.key, context.time, inputs
        )
        if context.call is not None:
            txn.arguments, txn.partitions = context.call.arguments, context.call.partitions
        elif context.program.named:
            txn.partitions = execution.partitions
        if context.program.rekeyed:
            txn.entry = execution.entry
        if context.shown:
            point = context.shown[-1].point
            txn.shown, txn.attempts = context.shown, 0 if point is None else point.attempts
            txn.restart()
        return txn

    def _attempt_watched(self, txn: Transaction, deadline_s: float) -> Outcome:
        assert isinstance(txn, WatchedTransaction)
        txn.watch = watch = Watch(self.runtime.database, deadline_s)
        outcome: Outcome = COMMITTED
        try:
            watch.start()
            outcome = self.runtime.attempt(txn)
        except Expired:
            pass
        finally:
            watch.release()
            txn.watch = None
        return txn.expired_error(deadline_s) if watch.expired else outcome

    def settle(self, execution: Execution, outcome: Outcome) -> None:
        """Commit, undo, suspend or halt, as the outcome says; then let the scheduler continue from there."""
        with self.lock:
            self.halfway.check_entry()
            self.halfway.through = ENDING
            self.end(execution, outcome)
            self.halfway.through = None
            self.ended.notify_all()

    def end(self, execution: Execution, outcome: Outcome) -> None:
        """End an execution that the scheduler knows about, inside a step of the caller."""
        context: Context = execution.context
        txn = context.txn
        assert txn is not None
        if outcome is COMMITTED:
            self._finish(execution, self.commit(txn, self._someone_reads_older(execution.position)), None)
        elif isinstance(outcome, Waits):
            self._ask(execution, txn, outcome.stream)
        elif self.undo(txn, outcome):
            self._finish(execution, {}, outcome)
        else:
            assert isinstance(outcome, ProcedureFailed)
            self._release_snapshot(context)
            context.txn, context.failure, context.shown = None, outcome, answered(context.shown)
            parked = self.scheduler.halt(execution, outcome.parked)
            self.journal.halted(txn, outcome, parked)
            for ticket in context.tickets:
                ticket.stop(outcome)
        self._after_scheduling()

    def _ask(self, execution: Execution, txn: Transaction, stream: str) -> None:
        """Its next member waits for an answer: keep what the question shows. One that was restored was asked before."""
        context: Context = execution.context
        last = context.shown[-1] if context.shown else None
        if last is None or last.point is None or (last.stream, last.point.cursor) != (stream, txn.cursor):
            question = show(txn, stream, self.clock.monotonic())
            context.shown = txn.shown = (*[q for q in context.shown if q.stream != stream], question)
            self.journal.asked(txn, question)
        self.scheduler.suspend(execution, stream)

    def reask(self, execution: Execution) -> None:
        """Withdraw the question of a suspended execution: what is in front of it runs again. The caller holds the lock."""
        context: Context = execution.context
        context.shown = context.shown[:-1]
        if context.txn is not None:
            context.txn.shown = context.shown
            context.txn.restart()
        self.scheduler.reask(execution)

    def undo(self, txn: Transaction, outcome: Outcome) -> bool:
        """Record that it was undone; False if its dataflow has to halt in front of it instead."""
        if isinstance(outcome, Aborted):
            self.journal.aborted(txn, outcome)
            return True
        assert isinstance(outcome, ProcedureFailed)
        if outcome.on_failure == "dead_letter":
            self.journal.dead_letter(txn, outcome)
        elif txn.batch_id is None:  # a call has no dataflow to halt: its caller gets the error
            self.journal.failed(txn, outcome)
        else:
            return False
        return True

    def commit(self, txn: Transaction, keep_older: bool) -> Mapping[str, Batch | Divided]:
        """Log it first, then make it visible: what the log refuses has not happened."""
        if crashpoints.listened_to:
            crash_point("execution-before-commit")
        self.journal.committed(txn)
        outputs = self.runtime.commit(txn, keep_older, self._readers_below(txn.position) if keep_older else None)
        if crashpoints.listened_to:
            crash_point("execution-after-commit")
        return outputs

    def _readers_below(self, at: Position) -> Readers:
        return lambda table: (self.scheduler.open_positions(table, below=at), list(self.snapshots))

    def _someone_reads_older(self, at: Position) -> bool:
        """May an unfinished execution still read what a commit at ``at`` replaces?"""
        oldest = self.scheduler.oldest()
        return bool(self.snapshots) or (oldest is not None and oldest < at)

    def _finish(self, execution: Execution, outputs: Mapping[str, Batch | Divided], error: Any) -> None:
        context: Context = execution.context
        self._release_snapshot(context)
        self.scheduler.finish(execution, outputs)
        self.journal.finishing(context.tickets, error)
        assert context.txn is not None
        if execution.unit.awaited:
            self.journal.answered(execution, context.answered or context.time, context.shown, error)
        self._finish_tickets(execution, error, context.txn.result)

    def _release_snapshot(self, context: Context) -> None:
        if context.program.committed and context.txn is not None:
            self.release_snapshot(context.txn.commit)

    def hold_snapshot(self, commit: int) -> None:
        """Someone reads the state as of this commit number: keep its versions."""
        self.snapshots[commit] = self.snapshots.get(commit, 0) + 1

    def release_snapshot(self, commit: int) -> None:
        self.snapshots[commit] -= 1
        if not self.snapshots[commit]:
            del self.snapshots[commit]

    def _finish_tickets(self, execution: Execution, error: Any, value: Any) -> None:
        for ticket in execution.context.tickets:
            ticket.arrive(error, value)

    # ---- waiting

    def wait(self, ticket: Ticket, timeout_s: float | None) -> None:
        """Run until the ticket is done, or raise StillWaiting with what it waits for."""
        self.run_until_idle()
        with self.lock:
            if not (ticket.done or ticket.stopped):
                raise still_waiting(self.scheduler.waiting(), ticket)

    def stop_waiting(self, why: Callable[[Execution], TidegateError]) -> None:
        """Tell everyone who waits for an unfinished execution that it will not end for now."""
        for execution in self.scheduler.waiting():
            if execution.context is not None:  # else its admission was interrupted
                for ticket in execution.context.tickets:
                    ticket.stop(why(execution))

    def stop_if_torn(self) -> None:
        """After a step that was left half done nothing ends any more: tell all waiters. The caller holds turn and lock."""
        if self.halfway.through is not None or self.halfway.entering is not None:
            error = self.halfway.stopped()
            log.error("%s", error)
            self.stop_waiting(lambda execution: error)
            self.ended.notify_all()

    def close(self) -> None:
        """Stop running anything."""
