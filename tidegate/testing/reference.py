"""The oracle: one execution after another in position order.

No scheduler, no locks, no versions, nothing open: positions are computed from what entered, sorted, and run. A decision
is simply there, because the nested transaction is at *its* position whenever the answer came. Everything else is
compared with this.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.errors import Aborted, ProcedureFailed, TidegateError
from tidegate.storage.database import Database
from tidegate.streams.batch import Batch
from tidegate.testing.history import Entry, History, Outcome, call_result, outcome_of
from tidegate.txn.journal import Journal
from tidegate.txn.outcome import Waits
from tidegate.txn.positions import Position, position
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime
from tidegate.txn.transaction import Transaction


@dataclass(frozen=True)
class Planned:
    """An execution that will run if all its inputs have rows."""

    unit: str
    key: Any
    batch_id: int
    time: dt.datetime
    entry: int


def plan(graph: Graph, history: History) -> dict[Position, Planned]:
    """Every execution the batches may cause, by position: that of the last border batch it needs, or of each that leads
    to an execution of an either-unit.
    """
    planned: dict[Position, Planned] = {}
    arrived: dict[tuple[str, Any, int], set[str]] = {}
    for entry in history.entries:
        batch = entry.batch
        placed: set[str] = set()
        for unit in graph.caused_by.get(batch.stream, ()) if batch is not None else ():
            assert batch is not None
            number = batch.id
            if unit.numbered_by is None:
                so_far = arrived.setdefault((unit.name, batch.key, batch.id), set())
                so_far.add(batch.stream)
                complete = so_far == unit.ancestors
            else:
                number = entry.sequence
                complete = graph.placed_by(unit, batch.stream, placed) is not None
            if complete:
                placed.add(unit.name)
                at = history.moved.get((unit.name, batch.key, number), position(entry.sequence, unit.rank))
                planned[at] = Planned(unit.name, batch.key, number, entry.time, entry.sequence)
    return planned


class Reference:
    """Runs a history serially on its own database."""

    def __init__(self, app: App, history: History, database: Database) -> None:
        self.runtime = Runtime(app, app.graph(), database)
        self.journal = Journal()
        self.history = history
        self.record = History()
        self.record.listen(app, self.runtime)
        self.calls: dict[int, Any] = {}
        self._batches: dict[tuple[str, Any, int], Batch] = {
            (e.batch.stream, e.batch.key, e.batch.id): e.batch for e in history.entries if e.batch is not None
        }
        self._entered: dict[tuple[str, int], Batch] = {  # by the sequence number of what caused them
            (e.batch.stream, e.sequence): e.batch for e in history.entries if e.batch is not None
        }

    def run(self) -> Outcome:
        work: dict[Position, Planned | Entry] = {**plan(self.runtime.graph, self.history)}
        work.update({position(e.sequence, 0): e for e in self.history.entries if e.call is not None})
        for at in sorted(work):
            item = work[at]
            if isinstance(item, Entry):
                self._call(at, item)
            else:
                self._execute(at, item)
        outcome = outcome_of(self.runtime, self.journal, self.record)
        outcome.calls = self.calls
        return outcome

    def _execute(self, at: Position, planned: Planned) -> None:
        unit = self.runtime.units[planned.unit]
        inputs = {}
        for stream in (*unit.unit.inputs, *unit.unit.awaited):
            if unit.unit.either:
                batch = self._entered.get((stream, planned.entry))
            else:
                batch = self._batches.get((stream, planned.key, planned.batch_id))
            if batch is not None:
                inputs[stream] = batch
            elif stream in unit.unit.inputs and not unit.unit.either:
                return
        if not inputs:
            return
        txn = self.runtime.begin(unit, at, planned.batch_id, planned.key, planned.time, inputs)
        if self._finish(unit, txn) is None:
            for batch in self.runtime.commit(txn, False).values():
                self._batches[batch.stream, batch.key, batch.id] = batch
                self._entered[batch.stream, planned.entry] = batch

    def _call(self, at: Position, entry: Entry) -> None:
        assert entry.call is not None
        unit = self.runtime.units[entry.call.unit.name]
        txn = self.runtime.begin(unit, at, None, None, entry.time, {})
        txn.arguments, txn.partitions = entry.call.arguments, entry.call.partitions
        error = self._finish(unit, txn)
        if error is None:
            self.runtime.commit(txn, False)
        self.calls[entry.sequence] = call_result(txn.result if error is None else None, error)

    def _finish(self, unit: UnitProgram, txn: Transaction) -> TidegateError | None:
        outcome = self.runtime.attempt(txn)
        if isinstance(outcome, Waits):
            raise ValueError(
                f"{unit.name} waits for batch {txn.batch_id} on {outcome.stream}, which the history does not hold: "
                f"only finished histories can be compared"
            )
        if isinstance(outcome, Aborted):
            self.journal.aborted(txn, outcome)
        elif isinstance(outcome, ProcedureFailed):
            if outcome.on_failure == "dead_letter":
                self.journal.dead_letter(txn, outcome)
            elif unit.unit.inputs:
                raise outcome
        return outcome if isinstance(outcome, TidegateError) else None


def run_serially(app: App, history: History, database: Database | None = None) -> Outcome:
    """What ``history`` leads to when its executions run one after another in position order."""
    return Reference(app, history, database or Database(app.tables.values())).run()
