"""The oracle: one execution after another in position order.

No scheduler, no locks, no versions, nothing open: positions are computed from what entered, sorted, and run. A decision
is simply there, because the nested transaction is at *its* position whenever the answer came. Everything else is
compared with this.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph, Unit
from tidegate.dataflows.partitions import Partitions, partitions_of
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
    """An execution that will run if all its inputs have rows. ``whole``: one for each key, known by then."""

    unit: str
    key: Any
    batch_id: int
    time: dt.datetime
    entry: int
    whole: bool = False


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
                at = position(entry.sequence, unit.rank)
                moved = history.moved.get((unit.name, batch.key, number), at)
                at = history.moved_from(at) if unit.divided else moved
                planned[at] = Planned(unit.name, batch.key, number, entry.time, entry.sequence, unit.divided)
    return planned


class Reference:
    """Runs a history serially on its own database."""

    def __init__(self, app: App, history: History, database: Database) -> None:
        self.runtime = Runtime(app, app.graph(), database)
        self.journal = Journal()
        self.history = history
        self.record = History()
        self.record.entered = history.entered
        self.record.listen(app, self.runtime)
        self.calls: dict[int, Any] = {}
        self._batches: dict[tuple[str, Any, int], Batch] = {
            (e.batch.stream, e.batch.key, e.batch.id): e.batch for e in history.entries if e.batch is not None
        }
        self._keys: dict[tuple[str, int], dict[Any, Batch | None]] = {}  # stream, sequence -> what each key has
        self._entered: dict[tuple[str, int], Batch] = {  # by the sequence number of what caused them
            (e.batch.stream, e.sequence): e.batch for e in history.entries if e.batch is not None
        }

    def run(self) -> Outcome:
        work: dict[Position, Planned | Entry] = {**plan(self.runtime.graph, self.history)}
        work.update({position(e.sequence, 0): e for e in self.history.entries if e.call is not None})
        heapify(waiting := list(work))
        while waiting:
            at = heappop(waiting)
            item = work[at]
            if isinstance(item, Entry):
                self._call(at, item)
            elif item.whole:
                for own, one in self._divided(at, item):
                    work[own] = one
                    heappush(waiting, own)
            else:
                self._execute(at, item)
        for letter in self.history.requeued:
            self.journal.requeued(letter)
        outcome = outcome_of(self.runtime, self.journal, self.record)
        outcome.calls = self.calls
        return outcome

    def _divided(self, at: Position, planned: Planned) -> list[tuple[Position, Planned]]:
        """An execution for each key of its inputs, in ascending order, at the positions that follow."""
        unit = self.runtime.units[planned.unit].unit
        inputs = [set(self._of_keys(stream, planned)) for stream in unit.inputs]
        keys = sorted(set.union(*inputs) if unit.either else set.intersection(*inputs))
        for stream in unit.outputs:
            self._keys[stream, planned.entry] = dict.fromkeys(keys)
        return [
            (self.history.moved_from(own), replace(planned, key=key, whole=False))
            for own, key in enumerate(keys, at + 1)
        ]

    def _of_keys(self, stream: str, planned: Planned) -> dict[Any, Batch | None]:
        """By key, what there is on a stream for a unit that was divided."""
        entered = self._entered.get((stream, planned.entry))
        known: dict[Any, Batch | None] = {} if entered is None else {entered.key: entered}
        return self._keys.get((stream, planned.entry), known)

    def _input(self, unit: Unit, stream: str, planned: Planned) -> Batch | None:
        if unit.divided and stream in unit.inputs:
            return self._of_keys(stream, planned).get(planned.key)
        if unit.either and stream not in unit.awaited:
            return self._entered.get((stream, planned.entry))
        return self._batches.get((stream, planned.key, planned.batch_id))

    def _execute(self, at: Position, planned: Planned) -> None:
        unit = self.runtime.units[planned.unit]
        inputs: dict[str, Batch] = {}
        answers: dict[str, Batch] = {}
        for stream in (*unit.unit.inputs, *unit.unit.awaited):
            batch = self._input(unit.unit, stream, planned)
            if stream in unit.unit.awaited:
                answers = answers if batch is None else {**answers, stream: batch}
            elif batch is not None and (len(batch) or (unit.minds and batch.watermark is not None)):
                inputs[stream] = batch
        if not self._starts(unit, inputs):
            return
        inputs = unit.unit.started_by({**inputs, **answers})
        txn = self.runtime.begin(unit, at, planned.batch_id, planned.key, planned.time, inputs)
        if unit.named:
            txn.partitions = self._partitions(unit, planned)
        skipped = self.history.skipped.get((planned.unit, planned.key, planned.batch_id))
        if skipped is not None:
            txn.program = self.runtime.programs[skipped.procedure]
            self.journal.dead_letter(txn, skipped)
            return
        answered = self.history.answered.get((planned.unit, planned.key, planned.batch_id), ())
        txn.shown = self.history.answered_at.get(at, answered)
        txn.entry = planned.entry
        if self._finish(unit, txn) is None:
            for stream, output in self.runtime.commit(txn, False).items():
                if isinstance(output, dict):
                    self._keys[stream, planned.entry] = {**output}
                elif unit.unit.divided:
                    self._keys[stream, planned.entry][planned.key] = output
                else:
                    self._batches[stream, output.key, output.id] = output
                    self._entered[stream, planned.entry] = output

    def _starts(self, unit: UnitProgram, inputs: dict[str, Batch]) -> bool:
        """Rows on all of its inputs start a unit (an either-unit: on one); one that minds time, a watermark on any."""
        timed = any(batch.watermark is not None for batch in inputs.values())
        return bool(inputs) and (unit.unit.either or timed or len(inputs) == len(unit.unit.inputs))

    def _partitions(self, unit: UnitProgram, planned: Planned) -> Partitions:
        """What the rows of the border batches name, found without the scheduler."""
        known = {}
        for stream in sorted(unit.unit.ancestors):
            if unit.unit.numbered_by is not None:
                batch = self._entered.get((stream, planned.entry))
            else:
                batch = self._batches.get((stream, planned.key, planned.batch_id))
            if batch is not None:
                known[stream] = batch
        return partitions_of(unit.named, planned.key, known)

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
