"""Recovery: the log, fed through the ordinary execution path.

Every record is applied exactly as it was when it was first accepted: the same sequence number, time and batch-id, by the
same admission and the same executions. That is why doing it twice is safe: starting from the same base and the same LSN
it ends in the same state, and nothing it does is visible outside before it is done.

* **weak**: accepted batches and calls are run again, in position order.
* **strong**: executions are run again in the order in which they committed; nothing runs that is not in the log.
* **effects**: executions are not run; their logged write sets and emitted batches are put in place.

What can't be expected to happen again in the same way (a procedure that raised, a deadline that passed) is in the log in
every mode, and its outcome is repeated instead of its run.

While nothing else is unfinished a batch needs no scheduler, here as in the serial executor: its units end one after
another. As soon as the log says otherwise (a halt, other work in between), what is left goes to the scheduler, which
comes to where it would be had it been asked from the start.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from tidegate.errors import Aborted, CorruptionError, DeadlineExceeded, ProcedureFailed
from tidegate.storage.codec import RowCodec, from_json
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.execution import State
from tidegate.txn.executors.serial import SerialExecutor, inline_transaction
from tidegate.txn.log.record import Any_, Called, Delivered, Executed, Fed, Pushed, Resumed, Subscribed, from_us, to_us
from tidegate.txn.outcome import COMMITTED, Outcome
from tidegate.txn.positions import Position, describe, position, sequence_of
from tidegate.txn.program import UnitProgram
from tidegate.txn.repeating import Repeats, Report, Unlogged, differs
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.teller import Teller
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction

SCHEDULED = ("halted", "failed")  # outcomes that only the scheduler's path deals with
REPEATED = ("committed", "aborted")  # outcomes of running a procedure again, in mode strong

Parts = list[tuple[Any, tuple[Any, ...]]]


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
    def reaccept(self, record: Pushed) -> tuple[int, Batch, dt.datetime]:
        """Accept what was accepted before, under the same number."""
        ...

    def parts(self, record: Fed) -> Parts:
        """The batches of a chunk, as (key, rows), their rows as stored."""
        ...

    def reaccept_parts(self, record: Fed, parts: Parts) -> Iterator[tuple[int, Batch, dt.datetime]]:
        """Accept them one by one, under the same numbers."""
        ...

    def rerun_parts(self, record: Fed, parts: Parts) -> None:
        """Accept and run them one after another, by the same steps as when they were fed."""
        ...


class Replay:
    """Applies log records to an engine. ``mode`` is the mode the log was written in."""

    def __init__(self, engine: Recovering, executor: SerialExecutor, mode: str) -> None:
        self._engine = engine
        self._executor = executor
        self._scheduler = engine.scheduler
        self._as_logged = mode in ("strong", "effects")
        self._held: set[int] = set()  # weak mode: must not run before the record that says how they ended
        self._records: Iterator[Any_] = iter(())
        self._peeked: deque[Any] = deque()  # records behind the next one, if someone had to look
        self._next: Any = None  # the record that comes next; None at the end of the log
        self._admitting: deque[Iterator[tuple[int, Batch, dt.datetime]]] = deque()
        self._early: dict[int, list[tuple[int, Batch, dt.datetime]]] = {}  # of records read ahead
        self._sequence = engine.sequence  # of the last batch admitted
        self._batches = 0
        self._executions = 0
        self._ticket = Ticket(Teller(executor.wait))
        self.unlogged = Unlogged()
        self.outcomes: Unlogged | Repeats | None = None  # where outcomes go meanwhile
        if mode != "effects":
            self.outcomes = Repeats() if mode == "strong" else self.unlogged
        self.report = Report()

    def look_ahead(self, record: Any) -> None:
        """Weak mode: outcomes are shown once before the replay begins. What failed must not be run before its time."""
        if isinstance(record, Executed) and not self._as_logged:
            self._held |= {record.position, *(record.parked or ())}

    def run(self, records: Iterable[Any_]) -> Report:
        """Apply ``records``."""
        self._executor.watched = False  # a deadline that passed is in the log; no other one did
        self._records = iter(records) if self._executor.runtime.ahead is None else self._read_ahead(records)
        self._advance()
        if self._next is not None:
            self._run_ready()  # the base may hold work that had not run when it was saved
        while (record := self._next) is not None:
            self._advance()
            self._apply(record)
            self._admit_due()
        self._engine.sequence = self._sequence
        for what, number in (("batches", self._batches), ("executions", self._executions)):
            if number:
                self._count(what, number)
        return self.report

    def _advance(self) -> None:
        self._next = self._peeked.popleft() if self._peeked else next(self._records, None)

    def _count(self, what: str, number: int = 1) -> None:
        self.report.replayed[what] = self.report.replayed.get(what, 0) + number

    def _apply(self, record: Any) -> None:
        match record:
            case Executed():
                self._executed(record)
            case Pushed():
                for batch in self._accepted(record):
                    self._submit(*batch)
            case Fed():
                self._fed(record)
            case Called():
                self._count("calls")
                self._call(record)
            case Resumed():
                self._resumed(record)
            case Delivered():
                self._engine.apply_delivered(record)
            case Subscribed():
                self._engine.apply_subscribed(record)

    # ---- accepted work

    def _read_ahead(self, records: Iterable[Any_]) -> Iterator[Any_]:
        """The records, read so far ahead that windows can be evaluated for the batches of many of them at once.

        Batches are accepted as they are read: the order on each stream is that of the log all the same.
        """
        ahead = self._executor.runtime.ahead
        assert ahead is not None
        waiting: deque[Any_] = deque()
        wanted = 1
        for record in records:
            waiting.append(record)
            if isinstance(record, (Pushed, Fed)) and ahead.wanted(record.stream):
                wanted = ahead.wanted(record.stream)
                self._early[id(record)] = batches = list(self._accepted(record))
                for _, batch, time in batches:
                    ahead.coming(record.stream, batch.key, batch.rows, to_us(time))
            while len(waiting) > wanted:
                yield waiting.popleft()
        yield from waiting

    def _accepted(self, record: Pushed | Fed) -> Iterable[tuple[int, Batch, dt.datetime]]:
        """The batches of a record, accepted again; those of a record read ahead have been."""
        early = self._early.pop(id(record), None)
        if early is not None:
            return early
        if isinstance(record, Pushed):
            return [self._engine.reaccept(record)]
        return self._engine.reaccept_parts(record, self._engine.parts(record))

    def _fed(self, record: Fed) -> None:
        """A chunk: run at one go when nothing in the log says that it did not, else admitted batch by batch."""
        if record.together:
            for batch in self._accepted(record):
                self._submit(*batch)
            return
        units = self._executor.inline_plan(record.stream)
        alone = self._scheduler.idle and not self._admitting and id(record) not in self._early
        if units is None or not alone or self.outcomes is None:
            self._admitting.append(iter(self._accepted(record)))
            return
        parts = self._engine.parts(record)
        if self._runs_at_one_go(record.sequence + len(parts) - 1):
            self._engine.rerun_parts(record, parts)
            self._sequence = record.sequence + len(parts) - 1
            self._batches += len(parts)
            self._check_repeated()
        else:
            self._admitting.append(self._engine.reaccept_parts(record, parts))

    def _runs_at_one_go(self, last: int) -> bool:
        """May the chunk that ends with sequence ``last`` run as it did when it was fed?

        Mode weak: unless some outcome is to be repeated instead. Mode strong: if the log goes on with what became of all
        of it, and then with other work; an engine that writes chunks ends one before it takes the next.
        """
        if not isinstance(self.outcomes, Repeats):
            return not self._held
        found: list[Executed] = []
        record, peeked, records = self._next, self._peeked, self._records
        while isinstance(record, Executed) and record.outcome in REPEATED:
            found.append(record)
            record = peeked.popleft() if peeked else next(records, None)
        self._next = record
        if found and sequence_of(found[-1].position) == last and isinstance(self._next, (Pushed, Fed, Called)):
            self.outcomes.expected.extend(found)
            self._executions += len(found)
            self.outcomes.running = True
            return True
        self._put_back(found)
        return False

    def _check_repeated(self) -> None:
        """Mode strong: executions that did not come about this time are for :meth:`_executed` to complain about."""
        if isinstance(self.outcomes, Repeats):
            self.outcomes.running = False
            self._executions -= len(self.outcomes.expected)
            self._put_back(self.outcomes.expected)
            self.outcomes.expected.clear()

    def _put_back(self, records: Iterable[Executed]) -> None:
        if self._next is not None:
            self._peeked.appendleft(self._next)
        self._peeked.extendleft(reversed([*records]))
        self._advance()

    def _admit_due(self) -> None:
        """Admit of a chunk what was admitted when the next record was written.

        A chunk is one record, but its batches went in one after another, each run before the next: where one of them
        halted its dataflow, those behind it found it halted.
        """
        while self._admitting:
            following = self._next
            if isinstance(following, Executed) and self._sequence >= sequence_of(following.position):
                return
            batch = next(self._admitting[0], None)
            if batch is None:
                self._admitting.popleft()
            else:
                self._submit(*batch)

    def _submit(self, sequence: int, batch: Batch, time: dt.datetime) -> None:
        self._sequence = sequence
        self._batches += 1
        units = self._executor.inline_plan(batch.relation.name)
        if units is None or not self._scheduler.idle or (self._held and self._is_held(sequence, units)):
            self._executor.admit(sequence, batch, time, self._ticket)
            self._run_ready()
        elif self._as_logged:
            self._repeat_inline(units, sequence, batch, time)
        else:
            self._executor.place(sequence, [batch], time, None)

    def _call(self, record: Called) -> None:
        unit = self._engine.runtime.units[record.procedure]
        arguments = from_json(record.arguments)
        named = {name: from_json(value) for name, value in record.named.items()}
        bound, partitions = unit.members[0].bind_call(arguments, named)
        self._sequence = record.sequence
        at, time = position(record.sequence, unit.rank), from_us(record.time_us)
        given = (record.sequence, unit, bound, partitions, time, self._ticket)
        if not self._scheduler.idle or at in self._held:
            self._executor.admit_call(*given)
            self._run_ready()
        elif not self._as_logged:
            self._executor.place_call(*given)
        elif self._ends_inline(at):
            txn = Transaction(self._executor.runtime, unit, at, None, None, time, {})
            txn.arguments, txn.partitions = bound, partitions
            self._end_inline(txn)
        else:
            self._executor.admit_call(*given)

    def _is_held(self, sequence: int, units: list[UnitProgram]) -> bool:
        return any(position(sequence, unit.rank) in self._held for unit in units)

    # ---- modes strong and effects, while nothing else is unfinished

    def _repeat_inline(self, units: list[UnitProgram], sequence: int, batch: Batch, time: dt.datetime) -> None:
        """Every unit the batch caused, one after another, as the log says; the scheduler gets what it does not say."""
        runtime = self._executor.runtime
        streams = {batch.relation.name: batch}
        for place, unit in enumerate(units):
            txn = inline_transaction(runtime, unit, sequence, batch, streams, time)
            if txn is not None:
                if not self._ends_inline(txn.position):
                    self._executor.admit_begun(units[:place], sequence, batch, streams, time, self._ticket)
                    return
                streams.update(self._end_inline(txn))

    def _ends_inline(self, at: Position) -> bool:
        """Does the next record say how the execution at ``at`` ended, and is that not up to the scheduler?"""
        record = self._next
        return isinstance(record, Executed) and record.position == at and record.outcome not in SCHEDULED

    def _end_inline(self, txn: Transaction) -> dict[str, Batch]:
        """Bring the transaction to the outcome in the next record; returns the batches it emitted."""
        record = self._next
        self._advance()
        self._executions += 1
        outcome = self._repeat(txn, record)
        if outcome is COMMITTED:
            return self._executor.commit(txn, keep_older=False)
        self._executor.undo(txn, outcome)
        return {}

    # ---- executions in the scheduler

    def _run_ready(self) -> None:
        """Weak mode: run what may run, except what has a record to come."""
        while not self._as_logged:
            ready = [e for e in self._scheduler.ready() if e.position not in self._held]
            if not ready:
                return
            self._executor.run(self._scheduler.take(ready[0]))

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
        self._executions += 1
        txn = self._executor.start(self._scheduler.take(execution))
        self.unlogged.repeating = True
        self._executor.settle(execution, self._repeat(txn, record))
        self.unlogged.repeating = False
        self._run_ready()

    def _failures(self) -> str:
        return "; ".join(record.reason for record in self.unlogged.records)

    def _repeat(self, txn: Transaction, record: Executed) -> Outcome:
        """The outcome in the log; the transaction is run when that is what the log says."""
        if record.writes is None and record.outcome in ("committed", "aborted"):
            return self._run_again(txn, record)
        if record.outcome == "committed":
            self._put_effects(txn, record)
            return COMMITTED
        facts: dict[str, Any] = {"procedure": record.procedure, "position": record.position}
        txn.program = self._executor.runtime.programs.get(record.procedure, txn.unit.members[0])
        match record.outcome:
            case "aborted":
                return Aborted(record.reason, reason=record.reason, **facts)
            case "expired":
                return DeadlineExceeded(record.reason, reason=record.reason, **facts)
        policy = "dead_letter" if record.outcome == "dead_letter" else "halt"
        return ProcedureFailed(record.reason, attempts=0, on_failure=policy, parked=record.parked, **facts)

    def _run_again(self, txn: Transaction, record: Executed) -> Outcome:
        """Strong mode: the procedure runs again, and must end as it did."""
        outcome = self._executor.runtime.attempt(txn)
        if outcome is COMMITTED if record.outcome == "committed" else isinstance(outcome, Aborted):
            return outcome
        raise differs(txn, record, "committed" if outcome is COMMITTED else f"ended with: {outcome}")

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
            self._sequence += 1
            return self._sequence

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
