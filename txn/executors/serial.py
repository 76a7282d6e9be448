"""The serial executor: everything in position order, as part of what brings it in. The reference for the others."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.clock import Clock
from tidegate.errors import Aborted, ProcedureFailed
from tidegate.mutex import Rank, reentrant
from tidegate.storage.halfway import ACCEPTING, ENDING
from tidegate.streams.batch import Batch
from tidegate.txn.context import Journal
from tidegate.txn.executors.base import Executor
from tidegate.txn.outcome import COMMITTED
from tidegate.txn.positions import RANK_BITS, position
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime, interrupted
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


class SerialExecutor(Executor):
    """Runs executions inline, in position order, as part of ``submit``.

    While nothing is waiting (the usual case) a batch needs no scheduling at all: its units run one after another, which
    *is* position order. As soon as something waits (for a person, behind a halted dataflow), the scheduler decides.
    """

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, journal: Journal, clock: Clock, lock: threading.RLock
    ) -> None:
        super().__init__(runtime, scheduler, journal, clock, lock)
        self.turn = reentrant(Rank.TURN)
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

    def step(self) -> bool:
        with self.turn:
            return super().step()

    def place(self, first: int, batches: Sequence[Batch], time: dt.datetime, ticket: Ticket | None) -> None:
        """Each batch is run before the next takes its place. All of them do, whatever becomes of one."""
        if not batches:
            return
        units, alone, left = self._inline.get(batches[0].relation.name), self.scheduler.idle, enumerate(batches, first)
        try:
            for sequence, batch in left:
                if alone and units is not None:
                    alone = self.run_inline(units, sequence, batch, time, ticket)
                else:
                    with self.lock:
                        self.admit(sequence, batch, time, ticket or self.nobodys())
                    self._run_admitted()
                    alone = self.scheduler.idle
        except BaseException:
            if self.halfway.entering is None:  # its own batch has its place; those behind it are in the log, too
                self.halfway.entering = ACCEPTING
                with self.lock:
                    for sequence, batch in left:
                        self.admit(sequence, batch, time, ticket or self.nobodys())
                self.halfway.entering = None
            raise

    def _run_admitted(self) -> None:
        """What was admitted has entered: from here on its executions are steps of their own."""
        entering, self.halfway.entering = self.halfway.entering, None
        self.run_until_idle()
        self.halfway.entering = entering

    def place_call(
        self,
        sequence: int,
        unit: UnitProgram,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        partitions: dict[str, tuple[Any, ...]],
        time: dt.datetime,
        ticket: Ticket,
    ) -> None:
        if unit.deadline_s is not None or not self.scheduler.idle:
            with self.lock:
                self.admit_call(sequence, unit, arguments, partitions, time, ticket)
            self._run_admitted()
            return
        txn = self.runtime.begin(unit, position(sequence, 0), None, None, time, {})
        txn.arguments = arguments
        txn.partitions = partitions
        halfway = self.halfway
        try:
            outcome = self.runtime.attempt(txn)
        except BaseException as error:  # it is in the log: say there that it did not happen
            self.runtime.running.pop(threading.get_ident(), None)
            with self.lock:
                self.journal.failed(txn, interrupted(txn, error))
            halfway.entering = None
            raise
        with self.lock:
            halfway.through = ENDING
            if outcome is COMMITTED:
                self.commit(txn, bool(self.snapshots))
                ticket.value = txn.result
                self.journal.finishing([ticket], None)
            else:
                assert isinstance(outcome, (Aborted, ProcedureFailed))  # a call waits for nobody
                self.undo(txn, outcome)
                ticket.error = outcome
                self.journal.finishing([ticket], outcome)
            if not ticket.pending:
                ticket.finish()
            halfway.through = None

    def run_inline(
        self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime, ticket: Ticket | None
    ) -> bool:
        """Every unit the batch causes, one after another. Nothing else is unfinished, so no one reads older versions.

        Returns whether that is still so: not when the dataflow was halted.
        """
        runtime, lock, halfway = self.runtime, self.lock, self.halfway
        streams = {batch.relation.name: batch}
        for place, unit in enumerate(units):
            txn = inline_transaction(runtime, unit, sequence, batch, streams, time)
            if txn is not None:
                try:
                    outcome = runtime.attempt(txn)
                except BaseException as error:
                    runtime.running.pop(threading.get_ident(), None)
                    outcome = interrupted(txn, error)
                    self._halt_inline(units[:place], unit, sequence, batch, streams, time, ticket, txn, outcome)
                    halfway.entering = None
                    raise
                with lock:
                    halfway.through = ENDING
                    if outcome is COMMITTED:
                        streams.update(self.commit(txn, bool(self.snapshots)))
                    else:
                        assert isinstance(outcome, (Aborted, ProcedureFailed))  # what may wait is not run inline
                        if not self.undo(txn, outcome):
                            assert isinstance(outcome, ProcedureFailed)
                            halfway.through = None
                            self._halt_inline(units[:place], unit, sequence, batch, streams, time, ticket, txn, outcome)
                            return False
                        if ticket is not None:
                            ticket.error = ticket.error or outcome
                            self.journal.finishing([ticket], outcome)
                    halfway.through = None
        if ticket is not None:
            with lock:
                self.journal.finishing([ticket], None)
                if not ticket.pending:
                    ticket.finish()
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
        ticket = ticket or self.nobodys()
        with self.lock, self.halfway.step(ENDING):
            self.admit_begun(done, sequence, batch, streams, time, ticket)
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
