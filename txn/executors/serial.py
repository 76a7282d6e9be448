"""The serial executor: runs everything in position order, in the call that brings it in. The reference for the others."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidegate import crashpoints
from tidegate.clock import Clock
from tidegate.crashpoints import crash_point
from tidegate.dataflows.partitions import partitions_of
from tidegate.errors import Aborted
from tidegate.mutex import Rank, reentrant
from tidegate.storage.halfway import ACCEPTING, ENDING
from tidegate.streams.batch import Batch
from tidegate.txn.entries import Work
from tidegate.txn.executors.base import Executor
from tidegate.txn.journal import Journal
from tidegate.txn.outcome import COMMITTED, Outcome
from tidegate.txn.positions import RANK_BITS, position
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime, interrupted
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


class SerialExecutor(Executor):
    """Runs executions inline, in position order, as part of ``place``.

    While nothing is waiting (the usual case) a batch needs no scheduling at all: its units run one after another, which
    *is* position order. As soon as something waits (for a person, behind a halted dataflow), the scheduler decides.
    """

    together = False

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, journal: Journal, clock: Clock, lock: threading.RLock
    ) -> None:
        super().__init__(runtime, scheduler, journal, clock, lock)
        self.turn = reentrant(Rank.TURN)
        graph = runtime.graph
        self._inline: dict[str, list[UnitProgram]] = {}
        for stream, units in graph.caused_by.items():
            plain = all(
                (unit.numbered_by is not None or unit.ancestors == {stream})
                and not (unit.awaited or unit.divided or unit.rekeyed)
                for unit in units
            )
            watched = any(runtime.units[unit.name].deadline_s is not None for unit in units)
            if plain and not watched and not runtime.app.streams[stream].awaited:
                self._inline[stream] = [runtime.units[unit.name] for unit in units]

    def inline_plan(self, stream: str) -> list[UnitProgram] | None:
        return self._inline.get(stream)

    def wake(self) -> None:
        self.run_until_idle()

    def step(self) -> bool:
        with self.turn:
            return super().step()

    def place(self, work: Work, ticket: Ticket | None) -> None:
        """Run each batch before the next is placed. All of them are placed, whatever becomes of one."""
        if work.call is not None:
            self.place_call(work, ticket)
            return
        if not work.batches:
            super().place(work, ticket)
            return
        time, left = work.time, enumerate(work.batches, work.first)
        units = self._inline.get(work.batches[0].relation.name)
        alone = not self.scheduler.live and not self.scheduler.parked
        try:
            for sequence, batch in left:
                if alone and units is not None:
                    alone = self.run_inline(units, sequence, batch, time, ticket)
                else:
                    with self.lock:
                        self.admit(sequence, batch, time, ticket)
                    self._run_admitted()
                    alone = self.scheduler.idle
        except BaseException:
            if self.halfway.entering is None:  # its own batch has its place; those after it are in the log, too
                self.halfway.entering = ACCEPTING
                with self.lock:
                    for sequence, batch in left:
                        self.admit(sequence, batch, time, ticket)
                self.halfway.entering = None
            raise

    def _run_admitted(self) -> None:
        """What was admitted has entered: from here on its executions are separate steps."""
        entering, self.halfway.entering = self.halfway.entering, None
        self.run_until_idle()
        self.halfway.entering = entering

    # ---- inline: nothing else is unfinished

    def place_call(self, work: Work, ticket: Ticket | None) -> None:
        """Run a call, inline if it may."""
        assert work.call is not None
        if work.call.unit.deadline_s is not None or not self.scheduler.idle:
            with self.lock:
                self.admit_call(work, ticket)
            self._run_admitted()
            return
        txn, admit = call_transaction(self.runtime, work), partial(self.admit_call, work, ticket)
        try:
            outcome = self.runtime.attempt(txn)
        except BaseException as error:
            self._interrupt(txn, error, admit)
            raise
        if outcome is COMMITTED:
            self.commit_inline(txn)
            if ticket is not None:
                ticket.value = txn.result
        elif isinstance(outcome, Aborted):
            self.abort_inline(txn, outcome, ticket)
        else:
            self.end_inline(txn, outcome, admit)

    def run_inline(
        self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None
    ) -> bool:
        """Run every unit the batch causes, one after another; returns whether nothing is left unfinished."""
        runtime, streams = self.runtime, {batch.relation.name: batch}
        for unit in units:
            txn = inline_transaction(runtime, unit, sequence, batch, streams, time)
            if txn is not None:
                try:
                    outcome = runtime.attempt(txn)
                except BaseException as error:
                    self._interrupt(txn, error, self._admission(units, unit, sequence, batch, streams, time, ticket))
                    raise
                if outcome is COMMITTED:
                    streams.update(self.commit_inline(txn))
                elif isinstance(outcome, Aborted):
                    self.abort_inline(txn, outcome, ticket)
                else:
                    self.end_inline(txn, outcome, self._admission(units, unit, sequence, batch, streams, time, ticket))
                    return self.scheduler.idle
        return True

    def commit_inline(self, txn: Transaction) -> Mapping[str, Any]:
        """``commit`` for what the scheduler need not know about; only queries may read what it replaces."""
        halfway = self.halfway
        with self.lock:
            halfway.through = ENDING
            if crashpoints.listened_to:
                crash_point("execution-before-commit")
            self.journal.committed(txn)
            if self.snapshots:
                outputs = self.runtime.commit(txn, True, self._readers_below(txn.position))
            else:
                outputs = self.runtime.commit(txn, False)
            if crashpoints.listened_to:
                crash_point("execution-after-commit")
            halfway.through = None
        return outputs

    def abort_inline(self, txn: Transaction, outcome: Aborted, ticket: Ticket | None) -> None:
        """An abort that the scheduler need not know about: what depends on it finds no batch."""
        with self.lock:
            self.halfway.through = ENDING
            self.undo(txn, outcome)
            if ticket is not None and ticket.error is None:
                ticket.error = outcome
            self.halfway.through = None

    def end_inline(self, txn: Transaction, outcome: Outcome, admit: Callable[[], None]) -> None:
        """Any other ending; then run what is left of its batch."""
        entering = self.halfway.entering
        self.hand_over(txn, outcome, admit)
        self.run_until_idle()
        self.halfway.entering = entering

    def hand_over(self, txn: Transaction, outcome: Outcome, admit: Callable[[], None]) -> None:
        """Bring the scheduler to the state it would have if it had been used from the start, and end the execution
        there.

        From then on its batch has entered: what follows are separate steps.
        """
        halfway = self.halfway
        with self.lock:
            admit()
            execution = self.scheduler.next()
            assert execution is not None
            assert execution.position == txn.position, f"{execution} is first instead of {txn.unit.name}"
            execution.context.txn = txn
            if txn.unit.committed:
                self.hold_snapshot(txn.commit)
            halfway.through = ENDING
            halfway.entering = None
            self.end(execution, outcome)
            halfway.through = None
            self.ended.notify_all()

    def _interrupt(self, txn: Transaction, error: BaseException, admit: Callable[[], None]) -> None:
        """Ctrl-C and the like: undo, and stop in front of the batch."""
        self.runtime.running.pop(threading.get_ident(), None)
        self.hand_over(txn, interrupted(txn, error), admit)

    def _admission(
        self,
        units: list[UnitProgram],
        ended: UnitProgram,
        sequence: int,
        batch: Batch,
        streams: Mapping[str, Batch],
        time: dt.datetime,
        ticket: Ticket | None,
    ) -> Callable[[], None]:
        """How to admit a border batch whose units before ``ended`` have already ended and left the batches ``streams``."""
        done = units[: units.index(ended)]

        def admit() -> None:
            self.schedule(sequence, batch, time, ticket)
            for unit in done:
                execution = self.scheduler.live.get(position(sequence, unit.rank))
                if execution is not None:  # else it never started: a batch it needs had no rows
                    outputs = {stream: streams[stream] for stream in unit.unit.outputs if stream in streams}
                    self.scheduler.finish(self.scheduler.take(execution), outputs)
                    self._finish_tickets(execution, None, None)
                    self._after_scheduling()

        return admit


def call_transaction(runtime: Runtime, work: Work) -> Transaction:
    """The transaction of a call."""
    assert work.call is not None
    txn = Transaction(runtime, work.call.unit, position(work.first, 0), None, None, work.time, {})
    txn.arguments, txn.partitions = work.call.arguments, work.call.partitions
    return txn


def inline_transaction(
    runtime: Runtime, unit: UnitProgram, sequence: int, batch: Batch, streams: Mapping[str, Batch], time: dt.datetime
) -> Transaction | None:
    """The transaction of a unit on the batches of its inputs; None when it does not start, because a batch has no rows."""
    only = unit.only_input
    if only is None:
        taken = {name: unit.unit.takes(streams.get(name)) for name in unit.inputs}
        if unit.unit.in_vain(taken.values()):
            return None
        inputs = unit.unit.started_by({name: batch for name, batch in taken.items() if batch is not None})
    elif only in streams and (streams[only].watermark is None or unit.unit.takes(streams[only]) is not None):
        inputs = {only: streams[only]}
    else:
        return None
    number = sequence if unit.numbered else batch.id
    txn = Transaction(runtime, unit, sequence << RANK_BITS | unit.rank, number, batch.key, time, inputs)
    if unit.named:
        txn.partitions = partitions_of(unit.named, batch.key, streams)
    return txn
