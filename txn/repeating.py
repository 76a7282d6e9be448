"""What a replay keeps track of: its report, and whether executions that run again end as they did the first time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from tidegate.errors import RecoveryRefused
from tidegate.txn.log.record import Asked, Executed
from tidegate.txn.positions import describe
from tidegate.txn.scheduler import Scheduler, halt_of
from tidegate.txn.shown import Shown, record_of
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


@dataclass
class Report:
    """What a recovery did."""

    replayed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # records that were deliberately not run
    seconds: float = 0.0
    unlogged: list[Executed | Asked] = field(default_factory=list)  # what the replay did that is still to be logged

    @property
    def records(self) -> int:
        return sum(self.replayed.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in self.replayed.items())
        told = [f"replayed {counts} in {self.seconds:.2f} s" if counts else "nothing to replay", *self.notes]
        return "; ".join(told)


class Unlogged:
    """Failures and questions in a replay of mode weak that are not in the log, because its end did not reach the disk.

    They are logged when the engine opens, so that the next replay repeats them.
    """

    mode = "weak"

    def __init__(self) -> None:
        self.records: list[Executed | Asked] = []
        self.repeating = False  # whether the current outcome comes from the log

    def committed(self, txn: Transaction) -> None:
        pass

    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = (), trace: str = "") -> None:
        if not self.repeating and outcome != "aborted":
            self.records.append(
                Executed(
                    txn.position, outcome, txn.procedure, reason, None, None, None, list(parked), trace, txn.attempts
                )
            )

    def asked(self, txn: Transaction, question: Shown) -> None:
        self.records.append(record_of(txn.position, question, txn.unit))

    def hold(self, tickets: Iterable[Ticket]) -> None:
        pass

    def to_log(self, scheduler: Scheduler) -> Iterator[Executed | Asked]:
        """The records. What arrived while a dataflow was halted was parked, too: the next replay meets it before the
        halt. Of the questions, those that are still open.
        """
        waiting = {execution.position for execution in scheduler.suspended()}
        for record in self.records:
            if isinstance(record, Asked):
                if record.position not in waiting:
                    continue
            elif record.outcome == "halted":
                halt = halt_of(scheduler.parked[record.position])
                behind = [at for at, e in scheduler.parked.items() if halt_of(e) == halt and at != record.position]
                behind += scheduler.unknown_to(scheduler.parked[record.position])
                record = msgspec.structs.replace(record, parked=behind)
            yield record


class Repeats:
    """Mode strong: how the executions of a chunk ended, in order. They run as they did when they were fed, and must end
    the same way.
    """

    mode = "strong"

    def __init__(self) -> None:
        self.expected: deque[Executed] = deque()
        self.running = False

    def committed(self, txn: Transaction) -> None:
        if self.running:
            expected = self.expected
            if expected and expected[0].position == txn.position and expected[0].outcome == "committed":
                expected.popleft()
            else:
                self.ended(txn, "committed", "")

    def ended(self, txn: Transaction, outcome: str, reason: str, parked: Iterable[int] = (), trace: str = "") -> None:
        if self.running:
            record = self.expected.popleft() if self.expected else None
            if record is None or record.position != txn.position or record.outcome != outcome:
                raise differs(txn, record, f"{outcome}: {reason}" if reason else outcome)

    def asked(self, txn: Transaction, question: Shown) -> None:
        pass

    def hold(self, tickets: Iterable[Ticket]) -> None:
        pass


def differs(txn: Transaction, record: Executed | None, now: str) -> RecoveryRefused:
    """A procedure that ran again ended differently."""
    batch = "" if txn.batch_id is None else f" on batch {txn.batch_id}"
    known = record is not None and record.position == txn.position
    before = f"{record.outcome} when it first ran" if record is not None and known else "did not run before"
    return RecoveryRefused(
        f"{txn.unit.name}{batch} at position {describe(txn.position)} {before}, but now it {now}; its procedure is not "
        f"deterministic. Take time and randomness from txn, or declare the app with recovery='effects'",
        changed=[txn.procedure if record is None else record.procedure],
    )
