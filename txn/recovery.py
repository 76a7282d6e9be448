"""Recovery: the log, fed through the ordinary execution path.

Every record is applied exactly as it was when it was first accepted: the same sequence number, time and batch-id, by the
same admission and the same executions. That is why doing it twice is safe: starting from the same base and the same LSN
it ends in the same state, and nothing it does is visible outside before it is done.

* **weak**: accepted batches and calls are run again, in position order.
* **strong**: executions are run again in the order in which they committed; nothing runs that is not in the log.
* **effects**: executions are not run; their logged write sets and emitted batches are put in place.

What can't be expected to happen again in the same way (a procedure that raised, a deadline that passed) is in the log in
every mode, and its outcome is repeated instead of its run.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tidegate.errors import Aborted, CorruptionError, DeadlineExceeded, ProcedureFailed, RecoveryRefused
from tidegate.storage.codec import RowCodec, from_json
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.executors import Executor
from tidegate.txn.log.reader import Entry
from tidegate.txn.log.record import Called, Delivered, Executed, Fed, Pushed, Resumed, Subscribed, from_us
from tidegate.txn.positions import describe, sequence_of
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Execution, Scheduler, State
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


class Recovering(Protocol):
    """What a replay works on: an engine that is not open for work yet."""

    sequence: int
    borders: dict[str, Border]
    scheduler: Scheduler
    runtime: Runtime
    codecs: dict[str, RowCodec]
    offsets: dict[str, Any]

    def apply_delivered(self, record: Delivered) -> None: ...
    def apply_subscribed(self, record: Subscribed) -> None: ...
    def reaccept(self, record: Pushed | Fed) -> Iterator[tuple[int, Batch, dt.datetime]]: ...


@dataclass
class Report:
    """What a recovery did."""

    replayed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    unlogged: list[Executed] = field(default_factory=list)  # failures of the replay that are still to be logged

    @property
    def records(self) -> int:
        return sum(self.replayed.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in self.replayed.items())
        told = [f"replayed {counts} in {self.seconds:.2f} s" if counts else "nothing to replay", *self.notes]
        return "; ".join(told)


class Unlogged:
    """Failures that happen in a replay of mode weak without being in the log, whose end did not reach the disk.

    They go into the log when the engine opens, so that the next replay repeats them.
    """

    mode = "weak"

    def __init__(self) -> None:
        self.records: list[Executed] = []
        self.repeating = False  # the outcome at hand comes from the log

    def committed(self, txn: Transaction) -> None:
        pass

    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = ()) -> None:
        if not self.repeating and outcome != "aborted":
            self.records.append(Executed(txn.position, outcome, txn.procedure, reason, parked=list(parked)))

    def hold(self, tickets: Iterable[Ticket]) -> None:
        pass

    def to_log(self, scheduler: Scheduler) -> Iterator[Executed]:
        """The records. What came while a dataflow was halted was put aside too: the next replay meets it before the halt."""
        for record in self.records:
            if record.outcome == "halted":
                dataflow = scheduler.parked[record.position].unit.dataflow
                behind = [
                    at for at, e in scheduler.parked.items() if e.unit.dataflow == dataflow and at != record.position
                ]
                record = msgspec.structs.replace(record, parked=behind)
            yield record


class Replay:
    """Applies log records to an engine. ``mode`` is the mode the log was written in."""

    def __init__(self, engine: Recovering, executor: Executor, mode: str) -> None:
        self._engine = engine
        self._executor = executor
        self._scheduler = engine.scheduler
        self._as_logged = mode in ("strong", "effects")
        self._held: set[int] = set()  # weak mode: must not run before the record that says how they ended
        self._stepwise = self._as_logged  # executions run when their record comes, not as part of admission
        self._admitting: deque[Iterator[tuple[int, Batch, dt.datetime]]] = deque()
        self._admitted = 0  # the sequence number of the last batch admitted
        self._ticket = Ticket(executor.wait)
        self.unlogged = Unlogged()
        self.report = Report()

    def look_ahead(self, record: Any) -> None:
        """Every record is shown once before the replay begins: what failed must not be run before its time."""
        if isinstance(record, Executed) and not self._as_logged:
            self._held |= {record.position, *(record.parked or ())}
            self._stepwise = True

    def run(self, entries: Iterable[Entry]) -> Report:
        """Apply ``entries``."""
        self._executor.watched = False  # a deadline that passed is in the log; no other one did
        for entry in entries:
            self._apply(entry.record)
        self._admit_up_to(None)
        return self.report

    def _count(self, what: str, number: int = 1) -> None:
        self.report.replayed[what] = self.report.replayed.get(what, 0) + number

    def _apply(self, record: Any) -> None:
        self._admit_up_to(sequence_of(record.position) if isinstance(record, Executed) else None)
        match record:
            case Pushed() | Fed():
                self._count("batches", 1 if isinstance(record, Pushed) else -(-len(record.rows) // record.size))
                self._admitting.append(self._engine.reaccept(record))
                if isinstance(record, Pushed):
                    self._admit_up_to(None)
            case Called():
                self._count("calls")
                self._call(record)
            case Executed():
                self._executed(record)
            case Resumed():
                self._resumed(record)
            case Delivered():
                self._engine.apply_delivered(record)
            case Subscribed():
                self._engine.apply_subscribed(record)

    # ---- accepted work

    def _admit_up_to(self, sequence: int | None) -> None:
        """Admit what is left of a chunk (None: all of it), as far as it was admitted when the next record was written.

        A chunk is one record, but its batches went in one after another, each run before the next: where one of them
        halted its dataflow, those behind it found it halted.
        """
        while self._admitting and (sequence is None or self._admitted < sequence):
            batch = next(self._admitting[0], None)
            if batch is None:
                self._admitting.popleft()
            else:
                self._submit(*batch)

    def _submit(self, sequence: int, batch: Batch, time: dt.datetime) -> None:
        self._engine.sequence = self._admitted = sequence
        if self._stepwise:
            Executor.submit(self._executor, sequence, batch, time, self._ticket)
            self._run_ready()
        else:
            self._executor.submit(sequence, batch, time, self._ticket)

    def _call(self, record: Called) -> None:
        unit = self._engine.runtime.units[record.procedure]
        arguments = from_json(record.arguments)
        named = {name: from_json(value) for name, value in record.named.items()}
        bound, partitions = unit.members[0].bind_call(arguments, named)
        self._engine.sequence = self._admitted = record.sequence
        given = (record.sequence, unit, bound, partitions, from_us(record.time_us), self._ticket)
        if self._stepwise:
            Executor.submit_call(self._executor, *given)
            self._run_ready()
        else:
            self._executor.submit_call(*given)

    def _run_ready(self) -> None:
        """Weak mode with failures in the log: run what may run, except what has a record to come."""
        while not self._as_logged:
            ready = [e for e in self._scheduler.ready() if e.position not in self._held]
            if not ready:
                return
            self._executor.run(self._scheduler.take(ready[0]))

    # ---- executions

    def _executed(self, record: Executed) -> None:
        self._held -= {record.position, *(record.parked or ())}
        execution = self._scheduler.live.get(record.position)
        if execution is None or execution.state is not State.READY:
            raise CorruptionError(
                f"the log says that position {describe(record.position)} ended ({record.outcome}), but "
                f"{'it is not known' if execution is None else f'{execution} {execution.reason}'}. Likely cause: procedures "
                f"that do not do the same thing twice ({self._failures() or 'none failed'}); see to what they depend on, and "
                f"open again"
            )
        self._count("executions")
        self.unlogged.repeating = True
        self._repeat(self._scheduler.take(execution), record)
        self.unlogged.repeating = False
        self._run_ready()

    def _failures(self) -> str:
        return "; ".join(record.reason for record in self.unlogged.records)

    def _repeat(self, execution: Execution, record: Executed) -> None:
        """Bring an execution to the outcome in the log; run it when that is what the log says."""
        txn = self._executor.start(execution)
        if record.outcome in ("committed", "aborted") and record.writes is None:
            self._run_again(execution, txn, record)
            return
        facts: dict[str, Any] = {"procedure": record.procedure, "position": record.position}
        txn.procedure = record.procedure
        match record.outcome:
            case "committed":
                self._put_effects(txn, record)
                self._executor.settle(execution, None)
            case "aborted":
                self._executor.settle(execution, Aborted(record.reason, reason=record.reason, **facts))
            case "expired":
                self._executor.settle(execution, DeadlineExceeded(record.reason, reason=record.reason, **facts))
            case "dead_letter" | "halted" | "failed":
                policy = record.outcome if record.outcome == "dead_letter" else "halt"
                self._executor.settle(
                    execution,
                    ProcedureFailed(record.reason, attempts=0, on_failure=policy, parked=record.parked, **facts),
                )

    def _run_again(self, execution: Execution, txn: Transaction, record: Executed) -> None:
        """Strong mode: the procedure runs again, and must end as it did."""
        outcome = self._executor.runtime.attempt(txn)
        as_it_did = outcome is None if record.outcome == "committed" else isinstance(outcome, Aborted)
        if not as_it_did:
            raise RecoveryRefused(
                f"{execution} {record.outcome} when it first ran, but now it "
                f"{'committed' if outcome is None else f'ended with: {outcome}'}; its procedure does not do the same thing "
                f"twice. Take time and chance from txn, or declare the app with recovery='effects'",
                changed=[record.procedure],
            )
        self._executor.settle(execution, outcome)

    def _put_effects(self, txn: Any, record: Executed) -> None:
        codecs = self._engine.codecs
        assert record.writes is not None
        assert record.emitted is not None
        writes = {}
        for table, (written, deleted) in record.writes.items():
            rows = codecs[table].unpack(written)
            key_of = self._engine.runtime.database.tables[table].schema.key_of
            writes[table] = {key_of(row): row for row in rows} | {from_json(key): None for key in deleted}
        emitted = {stream: codecs[stream].unpack(rows) for stream, rows in record.emitted.items()}
        self._engine.runtime.put_effects(txn, writes, emitted)

    def _resumed(self, record: Resumed) -> None:
        def next_sequence() -> int:
            self._engine.sequence += 1
            return self._engine.sequence

        before = {execution: execution.position for execution in self._scheduler.parked.values()}
        resumed = self._scheduler.resume(record.dataflow, next_sequence)
        moved = [[before[e], e.position] for e in resumed]
        if moved != record.moved:
            raise CorruptionError(
                f"the log says that resuming {record.dataflow} moved {record.moved}, here it moved {moved} ([old, new] positions)"
            )
        for execution in resumed:
            for ticket in execution.context.tickets:
                ticket.resume()
        self._run_ready()
        if not self._stepwise:
            self._executor.wake()
