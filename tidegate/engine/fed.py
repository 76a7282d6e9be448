"""What became of the rows of a feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.errors import FeedHalted
from tidegate.txn.scheduler import halt_of
from tidegate.txn.tally import Tally

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


@dataclass(frozen=True)
class Fed:
    """What ``feed`` accepted, and what had become of it when ``feed`` returned. All counts but ``rows`` are of batches.

    ``aborted``: undone by a procedure, or by a table that refused the data. ``dead_letters``: put aside after a
    failure. ``waiting``: accepted and not finished (with threads, most may still run). ``reasons``: the first reasons
    for undoing any, with their numbers.

    >>> print(Fed(rows=10, batches=10, aborted=2, reasons={"accept: too many pieces": 2}))
    10 rows in 10 batches: 8 committed, 2 aborted (accept: too many pieces)
    """

    rows: int = 0
    batches: int = 0
    aborted: int = 0
    dead_letters: int = 0
    waiting: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        """Batches that have finished, and of which nothing was undone."""
        return max(self.batches - self.aborted - self.dead_letters - self.waiting, 0)

    @property
    def undone(self) -> int:
        return self.aborted + self.dead_letters

    def __add__(self, other: Fed) -> Fed:
        """Both feeds, one after the other."""
        reasons = dict(self.reasons)
        for reason, number in other.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
        return Fed(
            self.rows + other.rows,
            self.batches + other.batches,
            self.aborted + other.aborted,
            self.dead_letters + other.dead_letters,
            self.waiting + other.waiting,
            reasons,
        )

    def __str__(self) -> str:
        counts = {"committed": self.committed, "aborted": self.aborted, "dead letters": self.dead_letters}
        told = [f"{number:,} {what}" for what, number in {**counts, "waiting": self.waiting}.items() if number]
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.rows:,} rows in {self.batches:,} batches: {', '.join(told) or 'nothing to do'}{why}"


def outcome_of(engine: Engine, stream: str, rows: int, batches: int, tally: Tally) -> Fed:
    """What has become of the batches of a feed by now. The caller holds the engine's lock."""
    scheduler = engine.scheduler
    waiting = 0
    if not scheduler.idle:
        waiting = len({e.entry for e in scheduler.waiting() if e.entry in tally})
    if scheduler.incomplete:
        waiting = min(waiting + scheduler.incomplete[stream], batches)
    return Fed(rows, batches, len(tally.aborted), len(tally.failed), waiting, dict(tally.reasons))


def halted_behind(engine: Engine, tally: Tally) -> list[Any]:
    """The executions that dataflows are halted in front of and that keep batches of this feed waiting."""
    scheduler = engine.scheduler
    if not scheduler.halted:
        return []
    halts = {halt_of(e) for e in scheduler.parked.values() if e.entry in tally}
    return [front for halt, front in scheduler.halted.items() if halt in halts]


def feed_halted(stream: str, fronts: list[Any], fed: Fed) -> FeedHalted:
    """The error of a feed that was accepted and can't finish."""
    front = fronts[0]
    dataflow = front.unit.dataflow
    cause = "" if front.context.failure is None else f": {front.context.failure}"
    more = f" (and {len(fronts) - 1} more halts)" if len(fronts) > 1 else ""
    return FeedHalted(
        f"feed({stream!r}, …) accepted {fed}; dataflow {dataflow} is halted in front of {front}{cause}{more}. Nothing is "
        f"lost, and nothing of it needs to be fed again: fix the cause, then engine.resume({dataflow!r}), or "
        f"engine.skip({dataflow!r}) to move that batch to the dead letters",
        stream=stream,
        dataflow=dataflow,
        fed=fed.rows,
        result=fed,
    )
