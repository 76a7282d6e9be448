"""Executors: who runs what the scheduler says may run.

All three give the same results; the serial one is the reference. The one with threads is in ``tidegate.txn.threads``.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tidegate import crashpoints
from tidegate.clock import Clock
from tidegate.crashpoints import crash_point
from tidegate.errors import Aborted, ProcedureFailed, StillWaiting, TidegateError
from tidegate.storage.database import Readers
from tidegate.streams.batch import Batch
from tidegate.txn.execution import Execution
from tidegate.txn.log.record import to_us
from tidegate.txn.positions import RANK_BITS, Position, position
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime, interrupted
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.teller import Teller
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction
from tidegate.txn.watchdog import Expired, Watchdog


class Journal(Protocol):
    """Where executors report how executions ended."""

    def committed(self, txn: Transaction) -> None: ...
    def aborted(self, txn: Transaction, error: Aborted) -> None: ...
    def dead_letter(self, txn: Transaction, error: ProcedureFailed) -> None: ...
    def failed(self, txn: Transaction, error: ProcedureFailed) -> None: ...
    def finishing(self, tickets: list[Ticket], error: Aborted | ProcedureFailed | None) -> None: ...
    def halted(self, txn: Transaction, error: ProcedureFailed, parked: list[Position]) -> None: ...


class Context:
    """What an executor keeps with an unfinished execution."""

    __slots__ = ("arguments", "asked_at", "partitions", "program", "started_at", "tickets", "time", "txn")

    def __init__(
        self,
        program: UnitProgram,
        time: dt.datetime,
        ticket: Ticket,
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        partitions: dict[str, tuple[Any, ...]] | None = None,
    ) -> None:
        self.program = program
        self.arguments = arguments
        self.partitions = partitions
        self.time = time
        self.tickets = [ticket]
        self.txn: Transaction | None = None
        self.started_at: float | None = None
        self.asked_at: float | None = None


class Executor:
    """Runs executions when told to: one per :meth:`step`. The other executors decide when to step.

    ``lock`` guards the scheduler and commits; user code runs outside it.
    """

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, journal: Journal, clock: Clock, lock: threading.RLock
    ) -> None:
        self.runtime = runtime
        self.scheduler = scheduler
        self.journal = journal
        self.clock = clock
        self.lock = lock
        self.snapshots: dict[int, int] = {}  # commit numbers that committed-state readers hold on to -> how many
        self.watchdog = Watchdog()
        self.watched = True  # are deadlines of procedures kept? A replay takes them from the log
        self.ended = threading.Condition(self.lock)  # notified when executions finish

    # ---- work in

    def submit(self, sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket) -> None:
        """Admit a border batch."""
        if self.runtime.ahead is not None:
            self.runtime.ahead.coming(batch.relation.name, batch.key, batch.rows, to_us(time))
        for execution in self.scheduler.admit(sequence, batch):
            if execution.context is None:
                execution.context = Context(self.runtime.units[execution.unit.name], time, ticket)
            else:
                execution.context.tickets.append(ticket)
            ticket.pending += 1
        self._after_scheduling()

    def submit_begun(
        self,
        done: Iterable[UnitProgram],
        sequence: int,
        batch: Batch,
        streams: Mapping[str, Batch],
        time: dt.datetime,
        ticket: Ticket,
    ) -> None:
        """Admit a border batch whose first units, ``done``, have ended already and left the batches ``streams``.

        Nothing else is unfinished, so the scheduler comes to where it would be had it been asked from the start.
        """
        Executor.submit(self, sequence, batch, time, ticket)
        for unit in done:
            execution = self.scheduler.live.get(position(sequence, unit.rank))
            if execution is not None:  # else it never started: a batch it needs had no rows
                self.scheduler.finish(
                    self.scheduler.take(execution), {s: streams[s] for s in unit.unit.outputs if s in streams}
                )
                self._finish_tickets(execution, None, None)
                self._after_scheduling()

    def submit_call(
        self,
        sequence: int,
        unit: UnitProgram,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        partitions: dict[str, tuple[Any, ...]],
        time: dt.datetime,
        ticket: Ticket,
    ) -> None:
        """Admit a call of an OLTP procedure."""
        execution = self.scheduler.admit_call(sequence, unit.unit, partitions)
        execution.context = Context(unit, time, ticket, arguments, partitions)
        ticket.pending += 1
        self._after_scheduling()

    def inline_plan(self, stream: str) -> list[UnitProgram] | None:
        """The units a batch on ``stream`` may cause, if they may run inline while nothing else is unfinished."""
        return None

    def run_inline(
        self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None
    ) -> bool:
        raise AssertionError("only the serial executor runs inline")

    def wake(self) -> None:
        """There may be something to run."""

    def _after_scheduling(self) -> None:
        """Executions that will never start count as finished for their tickets."""
        while self.scheduler.withdrawn:
            self._finish_tickets(self.scheduler.withdrawn.pop(), None, None)

    # ---- running

    def step(self) -> bool:
        """Run one execution that may run now; False when there is none."""
        with self.lock:
            execution = self.scheduler.next()
        if execution is None:
            return False
        self.run(execution)
        return True

    def run_until_idle(self) -> int:
        """Run until nothing may run; returns how many executions ran."""
        count = 0
        while self.step():
            count += 1
        return count

    def run(self, execution: Execution) -> None:
        """Run a RUNNING execution to its end, or to where it waits."""
        txn = self.start(execution)
        deadline_s = execution.context.program.deadline_s if self.watched else None
        try:
            outcome = self.runtime.attempt(txn) if deadline_s is None else self._attempt_watched(txn, deadline_s)
        except BaseException as error:  # Ctrl-C and the like: undo, stop in front of the batch, let it through
            self.settle(execution, interrupted(txn, error))
            raise
        self.settle(execution, outcome)

    def start(self, execution: Execution) -> Transaction:
        """The transaction of an execution, with the batches that have arrived by now."""
        context: Context = execution.context
        context.started_at = self.clock.monotonic()
        if context.txn is None:
            with self.lock:
                context.txn = self._begin(execution)
                if context.program.committed:
                    self.hold_snapshot(context.txn.commit)
        else:
            arrived = {s: b for s, b in execution.inputs.items() if b is not None and s not in context.txn.streams}
            context.txn.streams.update(arrived)
        return context.txn

    def _begin(self, execution: Execution) -> Transaction:
        context: Context = execution.context
        inputs = {stream: batch for stream, batch in execution.inputs.items() if batch is not None}
        txn = self.runtime.begin(
            context.program, execution.position, execution.batch_id, execution.key, context.time, inputs
        )
        if context.arguments is not None and context.partitions is not None:
            txn.arguments, txn.partitions = context.arguments, context.partitions
        return txn

    def _attempt_watched(self, txn: Transaction, deadline_s: float) -> str | Aborted | ProcedureFailed | None:
        outcome = None
        try:
            self.watchdog.watch(txn, deadline_s)
            try:
                outcome = self.runtime.attempt(txn)
            finally:
                self.watchdog.release(txn)
        except Expired:
            pass
        return txn.expired_error(deadline_s) if txn.expired else outcome

    def settle(self, execution: Execution, outcome: str | Aborted | ProcedureFailed | None) -> None:
        """Commit, undo, suspend or halt, as the outcome says; then let the scheduler go on from there."""
        context: Context = execution.context
        txn = context.txn
        assert txn is not None
        with self.lock:
            if outcome is None:
                outputs = self.commit(txn, self._someone_reads_older(execution.position))
                self._end(execution, outputs, None)
            elif isinstance(outcome, str):
                context.asked_at = self.clock.monotonic()
                self.scheduler.suspend(execution, outcome)
            elif isinstance(outcome, Aborted):
                self.journal.aborted(txn, outcome)
                self._end(execution, {}, outcome)
            elif outcome.on_failure == "dead_letter":
                self.journal.dead_letter(txn, outcome)
                self._end(execution, {}, outcome)
            elif execution.batch_id is None:  # an OLTP call has no dataflow to halt: its caller gets the error
                self.journal.failed(txn, outcome)
                self._end(execution, {}, outcome)
            else:
                self._release_snapshot(context)
                context.txn = None
                parked = self.scheduler.halt(execution, outcome.parked)
                self.journal.halted(txn, outcome, parked)
                for ticket in context.tickets:
                    ticket.stop(outcome)
            self._after_scheduling()
            self.ended.notify_all()

    def commit(self, txn: Transaction, keep_older: bool) -> dict[str, Batch]:
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

    def _end(self, execution: Execution, outputs: dict[str, Batch], error: Any) -> None:
        context: Context = execution.context
        self._release_snapshot(context)
        self.scheduler.finish(execution, outputs)
        self.journal.finishing(context.tickets, error)
        assert context.txn is not None
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
            ticket.pending -= 1
            ticket.error = ticket.error or error
            ticket.value = value if execution.batch_id is None else None
            if not ticket.pending:
                ticket.finish()

    # ---- waiting

    def wait(self, ticket: Ticket, timeout_s: float | None) -> None:
        """Make a ticket done, or say what it waits for."""
        self.run_until_idle()
        if not (ticket.done or ticket.stopped):
            raise still_waiting(self.scheduler.waiting(), ticket)

    def stop_waiting(self, why: Callable[[Execution], TidegateError]) -> None:
        """Tell whoever waits for an unfinished execution that it will not end for now."""
        for execution in self.scheduler.waiting():
            for ticket in execution.context.tickets:
                ticket.stop(why(execution))

    def close(self) -> None:
        """Stop running anything."""


class SerialExecutor(Executor):
    """Runs executions inline, in position order, as part of ``submit``.

    While nothing is waiting (the usual case) a batch needs no scheduling at all: its units run one after another, which
    *is* position order. As soon as something waits (for a person, behind a halted dataflow), the scheduler decides.
    """

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, journal: Journal, clock: Clock, lock: threading.RLock
    ) -> None:
        super().__init__(runtime, scheduler, journal, clock, lock)
        graph = runtime.graph
        self._inline: dict[str, list[UnitProgram]] = {}
        for stream, units in graph.caused_by.items():
            plain = all(
                (unit.numbered_by is not None or unit.ancestors == {stream}) and not unit.awaited for unit in units
            )
            watched = any(runtime.units[unit.name].deadline_s is not None for unit in units)
            if plain and not watched and not runtime.app.streams[stream].awaited:
                self._inline[stream] = [runtime.units[unit.name] for unit in units]

    def inline_plan(self, stream: str) -> list[UnitProgram] | None:
        return self._inline.get(stream)

    def wake(self) -> None:
        self.run_until_idle()

    def submit(self, sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket) -> None:
        units = self._inline.get(batch.relation.name)
        if units is None or not self.scheduler.idle:
            super().submit(sequence, batch, time, ticket)
            self.run_until_idle()
            return
        self.run_inline(units, sequence, batch, time, ticket)

    def submit_call(
        self,
        sequence: int,
        unit: UnitProgram,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        partitions: dict[str, tuple[Any, ...]],
        time: dt.datetime,
        ticket: Ticket,
    ) -> None:
        if unit.deadline_s is not None or not self.scheduler.idle:
            super().submit_call(sequence, unit, arguments, partitions, time, ticket)
            self.run_until_idle()
            return
        txn = self.runtime.begin(unit, position(sequence, 0), None, None, time, {})
        txn.arguments = arguments
        txn.partitions = partitions
        try:
            outcome = self.runtime.attempt(txn)
        except BaseException as error:  # it is in the log: say there that it did not happen
            self.journal.failed(txn, interrupted(txn, error))
            raise
        if outcome is None:
            self.commit(txn, bool(self.snapshots))
            ticket.value = txn.result
        else:
            assert not isinstance(outcome, str)
            ticket.error = outcome
            if isinstance(outcome, Aborted):
                self.journal.aborted(txn, outcome)
            elif outcome.on_failure == "dead_letter":
                self.journal.dead_letter(txn, outcome)
            else:
                self.journal.failed(txn, outcome)
        self.journal.finishing([ticket], outcome)
        if not ticket.pending:
            ticket.finish()

    def run_inline(
        self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None
    ) -> bool:
        """Every unit the batch causes, one after another. Nothing else is unfinished, so no one reads older versions.

        Returns whether that is still so: not when the dataflow was halted.
        """
        runtime = self.runtime
        streams = {batch.relation.name: batch}
        for place, unit in enumerate(units):
            txn = inline_transaction(runtime, unit, sequence, batch, streams, time)
            if txn is not None:
                try:
                    outcome = runtime.attempt(txn)
                except BaseException as error:
                    outcome = interrupted(txn, error)
                    self._halt_inline(units[:place], unit, sequence, batch, streams, time, ticket, txn, outcome)
                    raise
                if outcome is None:
                    streams.update(self.commit(txn, bool(self.snapshots)))
                elif not self.undone_inline(txn, outcome, ticket):
                    assert isinstance(outcome, ProcedureFailed)
                    self._halt_inline(units[:place], unit, sequence, batch, streams, time, ticket, txn, outcome)
                    return False
        if ticket is not None:
            self.journal.finishing([ticket], None)
            if not ticket.pending:
                ticket.finish()
        return True

    def undone_inline(self, txn: Transaction, outcome: Any, ticket: Ticket | None) -> bool:
        """Record an abort or a dead letter; False when the dataflow has to halt instead."""
        if ticket is not None:
            ticket.error = ticket.error or outcome
        if isinstance(outcome, Aborted):
            self.journal.aborted(txn, outcome)
        elif outcome.on_failure == "dead_letter":
            self.journal.dead_letter(txn, outcome)
        else:
            return False
        if ticket is not None:
            self.journal.finishing([ticket], outcome)
        return True

    def _halt_inline(
        self,
        done: list[UnitProgram],
        failed: UnitProgram,
        sequence: int,
        batch: Batch,
        streams: dict[str, Batch],
        time: dt.datetime,
        ticket: Ticket | None,
        txn: Transaction,
        error: ProcedureFailed,
    ) -> None:
        """Tell the scheduler what has run, so that it can stop the dataflow in front of the rest."""
        ticket = ticket or Ticket(Teller(self.wait))
        self.submit_begun(done, sequence, batch, streams, time, ticket)
        execution = self.scheduler.next()
        assert execution is not None
        assert execution.unit.name == failed.name
        self.journal.halted(txn, error, self.scheduler.halt(execution))
        ticket.stop(error)


def inline_transaction(
    runtime: Runtime, unit: UnitProgram, sequence: int, batch: Batch, streams: Mapping[str, Batch], time: dt.datetime
) -> Transaction | None:
    """The transaction of a unit on what there is on its inputs; None when it does not start, because a batch has no rows."""
    only = unit.only_input
    if only is None:
        inputs = {name: streams[name] for name in unit.inputs if name in streams}
        if not inputs or (len(inputs) < len(unit.inputs) and not unit.unit.either):
            return None
    elif only in streams:
        inputs = {only: streams[only]}
    else:
        return None
    number = batch.id if unit.unit.numbered_by is None else sequence
    return Transaction(runtime, unit, sequence << RANK_BITS | unit.rank, number, batch.key, time, inputs)


def still_waiting(executions: Iterable[Execution], ticket: Ticket) -> StillWaiting:
    mine = [e for e in executions if ticket in e.context.tickets]
    told = "; ".join(f"{e} {e.reason}" for e in mine) or "it has not been scheduled"
    return StillWaiting(
        f"accepted, but not finished: {told}. It will run when that is resolved; keep the ticket",
        ticket=ticket,
        reason=mine[0].reason if mine else None,
    )
