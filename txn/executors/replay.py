"""The executor of a replay: what is placed ends as the log says it did.

* **weak**: accepted batches and calls are run again, in position order.
* **strong**: executions are run again in the order in which they committed; nothing runs that is not in the log.
* **effects**: executions are not run; their logged write sets and emitted batches are put in place.

What might not happen again in the same way (a procedure that raised, a deadline that passed, a question that someone
was shown) is in the log in every mode; it is not run again, its outcome is repeated.

While nothing else is unfinished a batch needs no scheduler, as in the serial executor: its units end one after another.
As soon as the log says otherwise (a halt, other work in between), what is left goes to the scheduler.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidegate.clock import Clock
from tidegate.errors import Aborted, CorruptionError, DeadlineExceeded, ProcedureFailed, Runaway
from tidegate.storage.codec import RowCodec, from_json
from tidegate.streams.batch import Batch
from tidegate.txn.context import Context
from tidegate.txn.entries import Work
from tidegate.txn.execution import Execution, State
from tidegate.txn.executors.serial import SerialExecutor, call_transaction, inline_transaction
from tidegate.txn.journal import Journal
from tidegate.txn.log.record import Advanced, Any_, Asked, Called, Executed, Fed, Pushed, Reasked, Requeued, Resumed
from tidegate.txn.outcome import COMMITTED, Outcome
from tidegate.txn.positions import Position, describe, position, sequence_of
from tidegate.txn.program import UnitProgram
from tidegate.txn.repeating import Repeats, Unlogged, differs
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.shown import read_record
from tidegate.txn.ticket import Ticket
from tidegate.txn.timers import PLACE, restored_changes
from tidegate.txn.transaction import Transaction

SCHEDULED = ("halted", "failed")  # outcomes that need the scheduler
ENTERED = (Pushed, Fed, Called, Requeued, Advanced)  # records of work that came in
REPEATED = ("committed", "aborted")  # outcomes of running a procedure again, in mode strong


class Tape:
    """The records of a log, one after another. ``next`` is the upcoming one, None at the end."""

    def __init__(self) -> None:
        self._records: Iterator[Any_] = iter(())
        self._peeked: deque[Any] = deque()
        self.next: Any = None

    def insert(self, records: Iterable[Any_]) -> None:
        self._records = iter(records)
        self.take()

    def take(self) -> Any:
        """Return the next record and move past it."""
        taken = self.next
        self.next = self._peeked.popleft() if self._peeked else next(self._records, None)
        return taken

    def put_back(self, records: Iterable[Any]) -> None:
        if self.next is not None:
            self._peeked.appendleft(self.next)
        self._peeked.extendleft(reversed([*records]))
        self.next = None
        self.take()


class ReplayExecutor(SerialExecutor):
    """Runs what it must, and repeats the outcomes in the log. ``mode`` is the mode that the log was written in.

    ``outcomes``: where outcomes go during the replay. ``placed``: the last sequence number that was placed.
    """

    watched = False  # deadlines that passed are in the log; no others did

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        journal: Journal,
        clock: Clock,
        lock: threading.RLock,
        mode: str,
        codecs: Mapping[str, RowCodec],
    ) -> None:
        super().__init__(runtime, scheduler, journal, clock, lock)
        self.tape = Tape()
        self.placed = 0
        self.batches = 0
        self.executions = 0
        self.unlogged = Unlogged()
        self.ran_away: list[Runaway] = []
        self.outcomes: Unlogged | Repeats | None = None
        if mode != "effects":
            self.outcomes = Repeats() if mode == "strong" else self.unlogged
        self._as_logged = mode in ("strong", "effects")
        self._codecs = codecs
        self._held: Counter[int] = (
            Counter()
        )  # weak mode: positions with records to come, before which they must not run
        scheduler.held = self._held
        self._chunks: deque[Iterator[tuple[int, Batch, dt.datetime]]] = deque()  # accepted, but not fully admitted yet

    def look_ahead(self, record: Any) -> None:
        """Weak mode: gets every outcome and question once before the replay begins. What failed or asked must not run
        before its record.
        """
        if isinstance(record, (Executed, Asked, Resumed)) and not self._as_logged:
            self._held.update(_named(record))

    def _release(self, positions: Iterable[Position]) -> None:
        for at in positions:
            if self._held[at] > 1:
                self._held[at] -= 1
            else:
                del self._held[at]

    # ---- work in

    def place(self, work: Work, ticket: Ticket | None) -> None:
        if work.call is not None:
            self.place_call(work, ticket)
        elif work.resumption is not None:
            with self.lock:
                self._release(old for old, _ in work.resumption.moved)
                self.scheduler.divide()
                self.resumed(work.resumption)
            self.placed = work.last
            self.run_ready()
        elif work.together or len(work.batches) == 1:
            for sequence, batch in enumerate(work.batches, work.first):
                self._place_batch(sequence, batch, work.time)
        elif self._runs_at_one_go(work):
            super().place(work, None)
            self.placed = work.last
            self.batches += len(work.batches)
            self._check_repeated()
        else:
            self._chunks.append((sequence, batch, work.time) for sequence, batch in enumerate(work.batches, work.first))

    def place_call(self, work: Work, ticket: Ticket | None) -> None:
        assert work.call is not None
        self.placed = work.first
        at = position(work.first, work.call.unit.rank)
        if not self.scheduler.idle or at in self._held:
            self.admit_call(work, None)
            self.run_ready()
        elif not self._as_logged:
            super().place_call(work, None)
        elif self._ends_inline(at):
            self._end_as_logged(call_transaction(self.runtime, work))
        else:
            self.admit_call(work, None)

    def _place_batch(self, sequence: int, batch: Batch, time: dt.datetime) -> None:
        self.placed = sequence
        self.batches += 1
        units = self.inline_plan(batch.relation.name)
        if units is None or not self.scheduler.idle or (self._held and self._is_held(sequence, units)):
            self.admit(sequence, batch, time, None)
            self.run_ready()
        elif self._as_logged:
            self._repeat_inline(units, sequence, batch, time)
        else:
            self.run_inline(units, sequence, batch, time, None)

    def _is_held(self, sequence: int, units: list[UnitProgram]) -> bool:
        return any(position(sequence, unit.rank) in self._held for unit in units)

    def skip(self, work: Work, reason: str) -> None:
        """Give the work its place, but run nothing of it: what it would have caused gets batches without rows."""
        self.placed = work.last
        self.batches += len(work.batches)
        self.journal.skipped_record(work, reason)
        with self.lock:
            for sequence, batch in enumerate(work.batches, work.first):
                self.schedule(sequence, Batch(batch.relation, batch.id, (), batch.key), work.time, None)
        self.run_ready()

    # ---- running away

    def undo(self, txn: Transaction, outcome: Outcome) -> bool:
        """What does not end now, but may have ended before, because more was accepted after it, ends the replay."""
        if isinstance(outcome, Runaway):
            if self.tape.next is not None:
                raise outcome
            self.ran_away.append(outcome)
        return super().undo(txn, outcome)

    # ---- chunks

    def _runs_at_one_go(self, work: Work) -> bool:
        """May a chunk run as it did when it was fed, one batch after another?

        Mode weak: unless some outcome is to be repeated instead. Mode strong: if the log continues with the outcomes of
        the whole chunk, and then with other work; an engine that writes chunks finishes one before it takes the next.
        """
        alone = self.scheduler.idle and not self._chunks
        if not alone or self.outcomes is None or self.inline_plan(work.batches[0].stream) is None:
            return False
        if not isinstance(self.outcomes, Repeats):
            return not self._held
        tape, found = self.tape, []
        while isinstance(tape.next, Executed) and tape.next.outcome in REPEATED:
            found.append(tape.take())
        if found and sequence_of(found[-1].position) == work.last and isinstance(tape.next, ENTERED):
            self.outcomes.expected.extend(found)
            self.outcomes.running = True
            self.executions += len(found)
            return True
        tape.put_back(found)
        return False

    def _check_repeated(self) -> None:
        """Mode strong: executions that did not happen this time are left to :meth:`ended_as`, which reports them."""
        if isinstance(self.outcomes, Repeats):
            self.outcomes.running = False
            self.executions -= len(self.outcomes.expected)
            self.tape.put_back(self.outcomes.expected)
            self.outcomes.expected.clear()

    def admit_due(self) -> None:
        """Admit the part of a chunk that was admitted when the next record was written.

        A chunk is one record, but its batches entered one after another, each run before the next: if one of them
        halted its dataflow, those after it found it halted.
        """
        while self._chunks:
            following = self.tape.next
            if isinstance(following, (Executed, Asked)) and self.placed >= sequence_of(following.position):
                return
            batch = next(self._chunks[0], None)
            if batch is None:
                self._chunks.popleft()
            else:
                self._place_batch(*batch)

    # ---- modes strong and effects, while nothing else is unfinished

    def _repeat_inline(self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime) -> None:
        """End every unit the batch caused, one after another, as the log says; the scheduler gets the rest."""
        streams = {batch.relation.name: batch}
        for unit in units:
            txn = inline_transaction(self.runtime, unit, sequence, batch, streams, time)
            if txn is not None:
                if not self._ends_inline(txn.position):
                    self._admission(units, unit, sequence, batch, streams, time, None)()
                    return
                streams.update(self._end_as_logged(txn))

    def _ends_inline(self, at: Position) -> bool:
        """Does the next record say how the execution at ``at`` ended, with an outcome that needs no scheduler?"""
        record = self.tape.next
        return isinstance(record, Executed) and record.position == at and record.outcome not in SCHEDULED

    def _end_as_logged(self, txn: Transaction) -> Mapping[str, Any]:
        """Bring the transaction to the outcome in the next record; returns the batches it emitted."""
        self.executions += 1
        outcome = self._repeat(txn, self.tape.take())
        if outcome is COMMITTED:
            return self.commit_inline(txn)
        self.undo(txn, outcome)
        return {}

    # ---- executions in the scheduler

    def run_ready(self) -> None:
        """Weak mode: run what may run, except what has a record still to come."""
        while not self._as_logged:
            ready = [e for e in self.scheduler.ready() if e.position not in self._held]
            if not ready:
                return
            self.run(self.scheduler.take(ready[0]))

    def ended_as(self, record: Executed) -> None:
        """End an execution as the log says it ended."""
        execution = self._ready_for(record, f"ended ({record.outcome})")
        self.executions += 1
        txn = self.start(self.scheduler.take(execution))
        self.unlogged.repeating = True
        self.settle(execution, self._repeat(txn, record))
        self.unlogged.repeating = False
        if record.parked:
            self._divide_released()
        self.run_ready()

    def _divide_released(self) -> None:
        """A log said that these were not divided before now."""
        with self.lock:
            self.scheduler.divide()
            self._after_scheduling()

    def asked_as(self, record: Asked) -> None:
        """Have an execution ask what the log says it asked: what is in front of the question does not run."""
        execution = self._ready_for(record, f"asked on {record.stream}")
        context: Context = execution.context
        with self.lock:
            self._release_snapshot(context)
            question = read_record(record, context.program, execution.batch_id, execution.key, self.clock.monotonic())
            context.txn, context.shown = None, (*[q for q in context.shown if q.stream != record.stream], question)
            self.scheduler.suspend(self.scheduler.take(execution), record.stream)
        self.run_ready()

    def reasked(self, record: Reasked) -> None:
        """Withdraw a question, as the log says."""
        execution = self.scheduler.live.get(record.position)
        question = None if execution is None or execution.state is not State.SUSPENDED else execution.context.shown[-1]
        if execution is None or question is None or question.digest != record.digest:
            raise CorruptionError(
                f"the log says that the question at position {describe(record.position)} with digest {record.digest} was "
                f"withdrawn, but {'no question is open there' if question is None else f'its digest is {question.digest}'}"
            )
        with self.lock:
            self.reask(execution)
        self.run_ready()

    def _ready_for(self, record: Executed | Asked, what: str) -> Execution:
        """The execution that a record is about."""
        self._release(_named(record))
        execution = self.scheduler.live.get(record.position)
        if execution is None or execution.state is not State.READY:
            failures = "; ".join(f.reason for f in self.unlogged.records if isinstance(f, Executed))
            raise CorruptionError(
                f"the log says that position {describe(record.position)} {what}, but "
                f"{'nothing is there' if execution is None else f'{execution} {execution.reason}'}. Likely cause: procedures "
                f"that are not deterministic (failures in this replay: {failures or 'none'}); check what they depend on, "
                f"then open again"
            )
        return execution

    def _repeat(self, txn: Transaction, record: Executed) -> Outcome:
        """The outcome in the log; a commit or abort without logged effects is run again."""
        if record.writes is None and record.outcome in REPEATED:
            return self._run_again(txn, record)
        if record.outcome == "committed":
            self._put_effects(txn, record)
            return COMMITTED
        facts: dict[str, Any] = {"procedure": record.procedure, "position": record.position}
        txn.program = self.runtime.programs.get(record.procedure, txn.unit.members[0])
        match record.outcome:
            case "aborted":
                return Aborted(record.reason, reason=record.reason, **facts)
            case "expired":
                return DeadlineExceeded(record.reason, reason=record.reason, **facts)
        policy = "dead_letter" if record.outcome == "dead_letter" else "halt"
        told = {"on_failure": policy, "parked": record.parked, "trace": record.trace}
        return ProcedureFailed(record.reason, attempts=record.attempts, **told, **facts)

    def _run_again(self, txn: Transaction, record: Executed) -> Outcome:
        """Strong mode: the procedure runs again, and must end as it did the first time."""
        outcome = self.runtime.attempt(txn)
        if isinstance(outcome, Runaway):
            raise outcome
        if outcome is COMMITTED if record.outcome == "committed" else isinstance(outcome, Aborted):
            return outcome
        raise differs(txn, record, "committed" if outcome is COMMITTED else f"ended with: {outcome}")

    def _put_effects(self, txn: Transaction, record: Executed) -> None:
        assert record.writes is not None
        assert record.emitted is not None
        if hasattr(txn, "shown"):  # the record has all it did, including what was in front of its questions
            txn.shown = ()
            txn.restart()
        writes = {}
        for table, (written, deleted) in record.writes.items():
            rows = self._codecs[table].unpack(written)
            key_of = self.runtime.database.tables[table].schema.key_of
            writes[table] = {key_of(row): row for row in rows} | {from_json(key): None for key in deleted}
        emitted = {stream: self._codecs[stream].unpack(rows) for stream, rows in record.emitted.items()}
        timed: Any = restored_changes(self.runtime.timers, txn.position, record.timers or ())
        txn.slides[PLACE] = timed
        self.runtime.put_effects(txn, writes, emitted)


def _named(record: Executed | Asked | Resumed) -> list[int]:
    """The positions that must not run, or be divided, before this record."""
    if isinstance(record, Resumed):
        return [old for old, _ in record.moved]
    return [record.position, *(record.parked or ())] if isinstance(record, Executed) else [record.position]
