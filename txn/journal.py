"""How executions ended: counts, aborts, dead letters and halts, kept for people and for ``tidegate.*`` views."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.dataflows.graph import Unit
from tidegate.errors import Aborted, DeadlineExceeded, ProcedureFailed, TidegateError, text_of
from tidegate.streams.batch import Batch
from tidegate.txn.entries import Work
from tidegate.txn.execution import Execution
from tidegate.txn.kept import ALL_BYTES, KeptRows, rows_as_text
from tidegate.txn.positions import Position, describe, position, sequence_of
from tidegate.txn.shown import Shown
from tidegate.txn.tally import Tally
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction

log = logging.getLogger("tidegate")


@dataclass(frozen=True)
class Abort:
    """A transaction that was undone; its batch counts as processed. ``rows``: what it worked on."""

    position: str
    procedure: str
    batch_id: int | None
    key: str | None
    reason: str
    at: dt.datetime
    rows: KeptRows


@dataclass(frozen=True)
class DeadLetter:
    """A batch (or call) whose procedure kept failing, put aside so that the dataflow continues. ``rows``: as JSON."""

    position: str | None
    procedure: str  # or the delivery
    stream: str | None
    batch_id: int | None
    key: str | None
    rows: str
    error: str
    at: dt.datetime


@dataclass(frozen=True)
class Answer:
    """A batch that a transaction waited for, and what became of the transaction. ``digest``: of what its question
    showed; None if the batch was there before anything was asked. ``outcome``: committed, or why it was undone.
    """

    position: str
    unit: str
    stream: str
    batch_id: int
    key: str | None
    rows: str
    digest: str | None
    at: dt.datetime
    outcome: str


KEPT_ABORTS = 10_000
KEPT_ANSWERS = 1_000


class OutcomeLog(Protocol):
    """Where outcomes go: the log of a durable engine, or the replay of one."""

    mode: str

    def committed(self, txn: Transaction) -> None: ...
    def ended(
        self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = (), trace: str = ""
    ) -> None: ...
    def asked(self, txn: Transaction, question: Shown) -> None: ...
    def hold(self, tickets: Iterable[Ticket]) -> None:
        """These tickets are not done before everything logged so far is on disk."""
        ...


class Journal:
    """Implements the executors' ``Journal`` protocol. The newest 10,000 aborts are kept, with their rows as long as
    those are not too many; the newest 1,000 answers; and every dead letter.
    """

    def __init__(self) -> None:
        self.commits: defaultdict[str, int] = defaultdict(int)  # by unit
        self.undone: Counter[str] = Counter()  # aborts by procedure, including those no longer kept
        self.aborts: deque[Abort] = deque(maxlen=KEPT_ABORTS)
        self.answers: deque[Answer] = deque(maxlen=KEPT_ANSWERS)
        self.dead_letters: list[DeadLetter] = []
        self.tallies: list[Tally] = []  # of the feeds in progress
        self._kept: deque[KeptRows] = deque()  # the rows of the aborts, as far as they are held
        self._kept_bytes = 0
        self._log: OutcomeLog | None = None
        self._logs_commits = False

    @property
    def log(self) -> OutcomeLog | None:
        """Where outcomes go, if anywhere."""
        return self._log

    @log.setter
    def log(self, log: OutcomeLog | None) -> None:
        self._log = log
        self._logs_commits = log is not None and log.mode != "weak"  # weak: the accepted entries are enough

    def committed(self, txn: Transaction) -> None:
        self.commits[txn.unit.name] += 1
        if self._logs_commits:
            assert self._log is not None
            self._log.committed(txn)

    def asked(self, txn: Transaction, question: Shown) -> None:
        """A transaction waits for an answer, and what it shows must stay the same."""
        if self._log is not None:
            self._log.asked(txn, question)

    def answered(
        self, execution: Execution, time: dt.datetime, shown: Iterable[Shown], error: TidegateError | None
    ) -> None:
        """A transaction that could wait for answers has ended: keep those that it got."""
        digests = {question.stream: question.digest for question in shown}
        outcome = "committed" if error is None else f"undone: {getattr(error, 'reason', None) or text_of(error)}"
        place, unit, key = describe(execution.position), execution.unit.name, _text(execution.key)
        for stream in execution.unit.awaited:
            batch = execution.inputs.get(stream)
            if batch is not None:
                rows, digest = rows_as_text(batch), digests.get(stream)
                self.answers.append(Answer(place, unit, stream, batch.id, key, rows, digest, time, outcome))

    def aborted(self, txn: Transaction, error: Aborted) -> None:
        if self.log is not None:
            self.log.ended(txn, "expired" if isinstance(error, DeadlineExceeded) else "aborted", error.reason)
        self.undone[txn.procedure] += 1
        for tally in self.tallies:
            tally.undone(sequence_of(txn.position), txn.procedure, error.reason, failed=False)
        rows = KeptRows(_taken(txn))
        self.keep(
            Abort(describe(txn.position), txn.procedure, txn.batch_id, _text(txn.key), error.reason, txn.time, rows)
        )

    def keep(self, abort: Abort) -> None:
        """Add an abort; if there are too many, drop the oldest; if their rows are, drop those of the oldest."""
        if len(self.aborts) == KEPT_ABORTS and self._kept and self._kept[0] is self.aborts[0].rows:
            self._drop_rows()
        self.aborts.append(abort)
        if abort.rows.size:
            self._kept.append(abort.rows)
            self._kept_bytes += abort.rows.size
            while self._kept_bytes > ALL_BYTES:
                self._drop_rows()

    def _drop_rows(self) -> None:
        oldest = self._kept.popleft()
        self._kept_bytes -= oldest.size
        oldest.forget()

    def dead_letter(self, txn: Transaction, error: ProcedureFailed) -> None:
        log.warning("%s; its batch was moved to tidegate.dead_letters", error, extra=_facts(txn))
        if self.log is not None:
            self.log.ended(txn, "dead_letter", str(error), trace=error.trace)
        for tally in self.tallies:
            tally.undone(sequence_of(txn.position), txn.procedure, error, failed=True)
        batches = _taken(txn)
        if not batches:
            facts = (describe(txn.position), txn.procedure)
            told = _called(*txn.arguments)
            self.dead_letters.append(DeadLetter(*facts, None, None, None, told, str(error), txn.time))
        self._put_aside(txn.position, txn.procedure, batches, error, txn.time)

    def skipped(self, execution: Execution, time: dt.datetime, error: ProcedureFailed) -> None:
        """A batch that a dataflow was halted in front of is put aside. The log has it with the resumption."""
        log.warning("%s is skipped: its batch was moved to tidegate.dead_letters", execution)
        inputs = {stream: batch for stream, batch in execution.inputs.items() if batch is not None}
        taken = taken_by(execution.unit, error.procedure, inputs)
        self._put_aside(execution.position, error.procedure, taken, error, time)

    def _put_aside(
        self, at: Position, procedure: str, batches: Iterable[Batch], error: ProcedureFailed, time: dt.datetime
    ) -> None:
        for batch in batches:
            key, rows = _text(batch.key), rows_as_text(batch)
            letter = DeadLetter(describe(at), procedure, batch.stream, batch.id, key, rows, str(error), time)
            self.dead_letters.append(letter)

    def requeued(self, letter: str) -> None:
        """The batch that was put aside at this position has been accepted again."""
        self.dead_letters = [one for one in self.dead_letters if one.position != letter]

    def skipped_record(self, work: Work, reason: str) -> None:
        """A record of the log was deliberately skipped."""
        place = describe(position(work.first, 0))
        if work.call is not None:
            told = _called(*work.call.arguments)
            letter = DeadLetter(place, work.call.unit.name, None, None, None, told, reason, work.time)
            self.dead_letters.append(letter)
        for sequence, batch in enumerate(work.batches, work.first):
            facts = (describe(position(sequence, 0)), "repair", batch.stream, batch.id, _text(batch.key))
            self.dead_letters.append(DeadLetter(*facts, rows_as_text(batch), reason, work.time))

    def refused(self, delivery: str, batch: Batch, error: str, at: dt.datetime) -> None:
        """The target of a delivery refused this batch."""
        rows = rows_as_text(batch)
        self.dead_letters.append(
            DeadLetter(None, f"delivery {delivery}", batch.stream, batch.id, _text(batch.key), rows, error, at)
        )

    def finishing(self, tickets: list[Ticket], error: Aborted | ProcedureFailed | None) -> None:
        """Report an outcome that a run after a crash might not repeat only once it is on disk."""
        if self._log is not None and (
            self._log.mode == "effects" or isinstance(error, (ProcedureFailed, DeadlineExceeded))
        ):
            self._log.hold(tickets)

    def failed(self, txn: Transaction, error: ProcedureFailed) -> None:
        """A call failed and its caller gets the error, so it must not succeed in a replay."""
        if self.log is not None:
            self.log.ended(txn, "failed", str(error), trace=error.trace)

    def halted(self, txn: Transaction, error: ProcedureFailed, parked: list[int]) -> None:
        if self.log is not None:
            self.log.ended(txn, "halted", str(error), parked, error.trace)
        dataflow = txn.unit.unit.dataflow
        log.error(
            "dataflow %s is halted in front of batch %s%s: %s. Fix the cause, then engine.resume(%r), or engine.skip(%r) to "
            "put the batch aside",
            dataflow,
            txn.batch_id,
            _halted_key(txn),
            error,
            dataflow,
            dataflow,
            extra=_facts(txn),
        )


def _halted_key(txn: Transaction) -> str:
    """The key of the batch that a dataflow halts in front of, and whether the others go on."""
    if txn.key is None:
        return ""
    return f" of key {txn.key!r}" + ("; other keys go on" if txn.unit.unit.halts_by_key else "")


def _taken(txn: Transaction) -> list[Batch]:
    """The batches the transaction worked on. An awaited batch that no procedure had asked for yet is not among them:
    whether it has already arrived depends on timing.
    """
    return taken_by(txn.unit.unit, txn.procedure, txn.inputs)


def taken_by(unit: Unit, procedure: str, inputs: Mapping[str, Batch]) -> list[Batch]:
    """Those of the batches that the members up to ``procedure`` had asked for."""
    unread = set(unit.awaited)
    for member in unit.members if unread else ():
        unread.difference_update(member.inputs)
        if member.name == procedure:
            break
    return [batch for stream, batch in inputs.items() if stream not in unread]


def _facts(txn: Transaction) -> dict[str, Any]:
    """The fields that a log line has besides its text."""
    facts = {"position": describe(txn.position), "procedure": txn.procedure, "batch_id": txn.batch_id}
    return {"facts": facts if txn.key is None else {**facts, "key": _text(txn.key)}}


def _called(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    return ", ".join([*(text_of(v, repr) for v in arguments), *(f"{k}={text_of(v, repr)}" for k, v in named.items())])


def _text(key: Any) -> str | None:
    return None if key is None else str(key)
