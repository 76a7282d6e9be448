"""How executions ended: counts, aborts, dead letters and halts, kept for people and for ``tidegate.*`` views."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.errors import Aborted, DeadlineExceeded, ProcedureFailed, text_of
from tidegate.streams.batch import Batch
from tidegate.txn.positions import describe
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction

log = logging.getLogger("tidegate")


@dataclass(frozen=True)
class Abort:
    """A transaction that was undone; its batch counts as processed."""

    position: str
    procedure: str
    batch_id: int | None
    key: str | None
    reason: str
    at: dt.datetime


@dataclass(frozen=True)
class DeadLetter:
    """A batch (or call) whose procedure kept failing, put aside so that the dataflow continues."""

    position: str | None
    procedure: str  # or the delivery
    stream: str | None
    batch_id: int | None
    key: str | None
    rows: str
    error: str
    at: dt.datetime


KEPT_ABORTS = 10_000


class OutcomeLog(Protocol):
    """Where outcomes go: the log of a durable engine, or the replay of one."""

    mode: str

    def committed(self, txn: Transaction) -> None: ...
    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = ()) -> None: ...
    def hold(self, tickets: Iterable[Ticket]) -> None:
        """These tickets are not done before everything logged so far is on disk."""
        ...


class Journal:
    """Implements the executors' ``Journal`` protocol. The newest 10,000 aborts are kept, and every dead letter."""

    def __init__(self) -> None:
        self.commits: dict[str, int] = {}  # by unit
        self.undone: Counter[str] = Counter()  # aborts by procedure, including those no longer kept
        self.aborts: deque[Abort] = deque(maxlen=KEPT_ABORTS)
        self.dead_letters: list[DeadLetter] = []
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
        unit = txn.unit.name
        self.commits[unit] = self.commits.get(unit, 0) + 1
        if self._logs_commits:
            assert self._log is not None
            self._log.committed(txn)

    def aborted(self, txn: Transaction, error: Aborted) -> None:
        if self.log is not None:
            self.log.ended(txn, "expired" if isinstance(error, DeadlineExceeded) else "aborted", error.reason)
        self.undone[txn.procedure] += 1
        self.aborts.append(
            Abort(describe(txn.position), txn.procedure, txn.batch_id, _text(txn.key), error.reason, txn.time)
        )

    def dead_letter(self, txn: Transaction, error: ProcedureFailed) -> None:
        log.warning("%s; its batch was moved to tidegate.dead_letters", error, extra=_facts(txn))
        if self.log is not None:
            self.log.ended(txn, "dead_letter", str(error))
        facts = (describe(txn.position), txn.procedure)
        batches = _taken(txn)
        if not batches:
            arguments, named = txn.arguments
            told = ", ".join(
                [*(text_of(v, repr) for v in arguments), *(f"{k}={text_of(v, repr)}" for k, v in named.items())]
            )
            self.dead_letters.append(DeadLetter(*facts, None, None, None, told, str(error), txn.time))
        for batch in batches:
            rows = repr([row._asdict() for row in batch])
            self.dead_letters.append(
                DeadLetter(*facts, batch.stream, batch.id, _text(batch.key), rows, str(error), txn.time)
            )

    def refused(self, delivery: str, batch: Batch, error: str, at: dt.datetime) -> None:
        """The target of a delivery refused this batch."""
        rows = repr([row._asdict() for row in batch])
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
            self.log.ended(txn, "failed", str(error))

    def halted(self, txn: Transaction, error: ProcedureFailed, parked: list[int]) -> None:
        if self.log is not None:
            self.log.ended(txn, "halted", str(error), parked)
        log.error(
            "dataflow %s is halted in front of batch %s: %s. Fix the cause, then engine.resume(%r)",
            txn.unit.unit.dataflow,
            txn.batch_id,
            error,
            txn.unit.unit.dataflow,
            extra=_facts(txn),
        )


def _taken(txn: Transaction) -> list[Batch]:
    """The batches the transaction worked on. An awaited batch that no procedure had asked for yet is not among them:
    whether it has already arrived depends on timing.
    """
    unread = set(txn.unit.unit.awaited)
    for program in txn.unit.members:
        unread.difference_update(program.inputs)
        if program.name == txn.procedure:
            break
    return [batch for stream, batch in txn.inputs.items() if stream not in unread]


def _facts(txn: Transaction) -> dict[str, Any]:
    """The fields that a log line has besides its text."""
    facts = {"position": describe(txn.position), "procedure": txn.procedure, "batch_id": txn.batch_id}
    return {"facts": facts if txn.key is None else {**facts, "key": _text(txn.key)}}


def _text(key: Any) -> str | None:
    return None if key is None else str(key)
