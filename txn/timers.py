"""Timers: rows that enter a border stream when their time has come.

``txn.after`` and ``txn.cancel`` are part of the transaction, as a window's slide is: an abort undoes them. What is pending
is what has been set, without what was cancelled and what has entered. So it does not depend on the order in which
transactions commit. Which timers have entered, and when, is in the log; a replay takes it from there.

No clock here: the engine says what time it is (``tidegate/engine/ticking.py``).
"""

from __future__ import annotations

import datetime as dt
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.dataflows.schedules import Schedule
from tidegate.errors import AccessError, DeclarationError, MistakeError, near, shown
from tidegate.storage.codec import from_json, to_json, widened
from tidegate.storage.columnar import Given
from tidegate.storage.schema import Relation, Row
from tidegate.streams.windows.declare.durations import microseconds
from tidegate.txn.log.record import to_us
from tidegate.txn.positions import Position, describe
from tidegate.txn.silence import Silence

if TYPE_CHECKING:
    from tidegate.txn.transaction import Transaction

TIMER_STREAM = 3  # where the stream is in a timer as it is saved
PLACE = ("", "timers")  # among the slides of a transaction
FARTHEST_US = to_us(dt.datetime(9999, 12, 31))


class Timer(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A row that enters ``stream`` at ``due_us``. ``position`` and ``number``: of the transaction that set it, and in it."""

    id: str
    due_us: int
    position: Position
    number: int
    stream: str
    procedure: str
    row: Row


def make_timer(due_us: int, position: Position, number: int, stream: str, procedure: str, row: Row) -> Timer:
    """What the transaction at this position set as its timer of this number."""
    return Timer(f"{describe(position)}/{number}", due_us, position, number, stream, procedure, row)


Change = Timer | str  # a timer that is set, or the id of one that is cancelled


class Timers:
    """All pending timers of an engine, and how far its schedules have come.

    ``relations``: of the border streams. ``next_us``: nothing is due before, though perhaps nothing then, either.
    ``reached``: the last time of each schedule that has entered, by stream; at first the time at which it began.
    """

    def __init__(
        self, schedules: Mapping[str, Schedule], relations: Mapping[str, Relation], silences: Mapping[str, Silence]
    ) -> None:
        self.silences = silences
        self.schedules = schedules
        self.relations = relations
        self.reached: dict[str, int] = {}
        self.pending: dict[str, Timer] = {}
        self._heap: list[tuple[int, Position, int, Timer]] = []
        self.next_us: float = -math.inf if schedules else math.inf

    def save(self) -> dict[str, Any]:
        """For a checkpoint."""
        timers = [
            [t.position, t.number, t.due_us, t.stream, t.procedure, to_json(t.row)] for t in self.pending.values()
        ]
        silences = {name: [one.newest, one.heard, one.told] for name, one in self.silences.items() if not one.resting}
        return {"pending": timers, "reached": self.reached, "silences": silences}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Become what was saved; what it has of schedules that are not declared any more is left out."""
        for position, number, due_us, stream, procedure, row in saved["pending"]:
            self.add(
                make_timer(due_us, position, number, stream, procedure, widened(self.relations[stream], from_json(row)))
            )
        for stream, facts in saved.get("silences", {}).items():
            if stream in self.silences:
                silence = self.silences[stream]
                silence.newest, silence.heard, silence.told = facts
                silence.resting = False
                self.next_us = min(self.next_us, silence.due_us())
        self.reached.update({stream: us for stream, us in saved["reached"].items() if stream in self.schedules})

    def apply(self, changes: Iterable[Change]) -> None:
        """A transaction that did this has committed."""
        for change in changes:
            if type(change) is Timer:
                self.add(change)
            else:
                self.pending.pop(change, None)  # type: ignore[arg-type]  # perhaps it has entered

    def add(self, timer: Timer) -> None:
        self.pending[timer.id] = timer
        heapq.heappush(self._heap, _placed(timer))
        if timer.due_us < self.next_us:
            self.next_us = timer.due_us

    def entered(self, stream: str, ids: Iterable[str], rows: Iterable[Row], time_us: int) -> None:
        """These timers have entered, or times of a schedule; a schedule without rows has begun at this time."""
        for one in ids:
            self.pending.pop(one, None)  # in a replay it may be cancelled by now, but not in the first run
        if stream in self.schedules:
            came = [to_us(row[0]) for row in rows]
            self.reached[stream] = max([*came, self.reached[stream]]) if came else time_us

    def hear(self, stream: str, parts: list[tuple[Any, Given]], time_us: int) -> None:
        """Rows have come on a stream on which time runs on after a silence."""
        silence = self.silences[stream]
        silence.hear(parts, time_us)
        self.next_us = min(self.next_us, silence.due_us())

    def unbegun(self) -> list[str]:
        """Schedules that have not begun."""
        return [stream for stream in self.schedules if stream not in self.reached]

    def first(self) -> Timer | None:
        """The pending timer that is due first."""
        heap = self._heap
        if len(heap) > 2 * len(self.pending) + 1_000:  # most of it was cancelled
            self._heap = heap = [_placed(timer) for timer in self.pending.values()]
            heapq.heapify(heap)
        while heap and self.pending.get(heap[0][3].id) is not heap[0][3]:
            heapq.heappop(heap)
        return heap[0][3] if heap else None

    def in_order(self) -> list[Timer]:
        """All pending timers, in the order in which they are due."""
        return sorted(self.pending.values(), key=_placed)

    def take(self, until_us: float, most: int) -> list[Timer]:
        """The first timers due up to this time that go to the same stream. They stay pending until they have entered."""
        found: list[Timer] = []
        while len(found) < most:
            first = self.first()
            if first is None or first.due_us > until_us or (found and first.stream != found[0].stream):
                break
            found.append(heapq.heappop(self._heap)[3])
        return found

    def put_back(self, timers: Iterable[Timer]) -> None:
        """They were taken, and could not enter."""
        for timer in timers:
            if timer.id in self.pending:
                heapq.heappush(self._heap, _placed(timer))

    def look(self, now_us: int, again_us: int) -> None:
        """What is due by now has entered, as far as there was room; the rest is tried at ``again_us``."""
        first = self.first()
        times: list[float] = [schedule.times.after(self.reached[stream]) for stream, schedule in self.schedules.items()]
        times += [silence.due_us() for silence in self.silences.values()]
        next_us = min([*times, math.inf if first is None else first.due_us])
        self.next_us = again_us if next_us <= now_us else next_us


def _placed(timer: Timer) -> tuple[int, Position, int, Timer]:
    """In the heap: in the order in which they are due, and were set."""
    return timer.due_us, timer.position, timer.number, timer


class TimerChanges:
    """What a transaction has done to timers. It is not changed: each call makes a new one, which shares the list.

    So a transaction can go back to what it had done when it asked a question.
    """

    slid = False
    __slots__ = ("_all", "_count", "_number", "_timers")

    def __init__(self, timers: Timers, changes: list[Change], count: int, number: int) -> None:
        self._timers = timers
        self._all = changes
        self._count = count
        self._number = number

    def __iter__(self) -> Iterator[Change]:
        return iter(self._all[: self._count])

    def plus(self, change: Change) -> TimerChanges:
        made = self._all if len(self._all) == self._count else self._all[: self._count]
        made.append(change)
        return TimerChanges(self._timers, made, self._count + 1, self._number + (type(change) is Timer))

    @property
    def following(self) -> int:
        """The number of the next timer that is set."""
        return self._number

    def commit(self) -> None:
        self._timers.apply(self)


def changes_of(txn: Transaction) -> TimerChanges:
    """What it has done to timers so far."""
    found: Any = txn.slides.get(PLACE)
    return TimerChanges(txn.runtime.timers, [], 0, 1) if found is None else found


def set_timer(txn: Transaction, delay: Any, stream: str, row: Any, values: Mapping[str, Any]) -> str:
    """See :meth:`Transaction.after`."""
    program = txn.program
    target = program.timers.get(stream)
    if target is None:
        raise _not_declared(txn, stream)
    relation, key = target
    checked = relation.conform(values if row is None else row)
    if key is not None and checked[relation.index_of[key]] is None:
        raise MistakeError(f"after(…, {stream!r}, …): {key} is the key of {stream} and can't be NULL", relation=stream)
    due_us = to_us(txn.time) + max(_microseconds(stream, delay), 0)
    if due_us > FARTHEST_US:
        raise MistakeError(f"after({delay!r}, {stream!r}, …) would be due after the year 9999", relation=stream)
    before = changes_of(txn)
    timer = make_timer(due_us, txn.position, before.following, stream, program.name, checked)
    txn.slides[PLACE] = before.plus(timer)  # type: ignore[assignment]
    return timer.id


def cancel_timer(txn: Transaction, timer: str | None) -> None:
    """See :meth:`Transaction.cancel`."""
    if timer is None:
        return
    if not isinstance(timer, str):
        raise MistakeError(f"cancel(…) takes what txn.after returned, text such as '12.0/1'; got {shown(timer)}")
    txn.slides[PLACE] = changes_of(txn).plus(timer)  # type: ignore[assignment]


def _microseconds(stream: str, delay: Any) -> int:
    if isinstance(delay, dt.timedelta):
        return microseconds(delay)
    if isinstance(delay, str):
        try:
            return _read(delay)
        except DeclarationError as error:
            raise MistakeError(f"after({delay!r}, {stream!r}, …): {error}", relation=stream) from None
    raise MistakeError(
        f"after({delay!r}, {stream!r}, …): the delay is text such as '10m' or a timedelta, for example shipment.due - txn.now",
        relation=stream,
    )


_read = lru_cache(maxsize=256)(microseconds)


def _not_declared(txn: Transaction, stream: str) -> AccessError:
    known, streams = txn.program.timers, txn.runtime.app.streams
    hint = near(stream, known, "they are")
    if stream in streams:
        border = streams[stream].border
        hint = (
            f"add timers=[{stream!r}] to its declaration"
            if border
            else f"{stream} is fed by a procedure; declare a border stream for them"
        )
    return AccessError(
        f"procedure {txn.procedure} sets a timer for {stream!r}, which is not one of its timers; {hint}",
        procedure=txn.procedure,
        relation=stream,
    )


# ---- in the log and in checkpoints


def saved_changes(changes: Iterable[Change]) -> list[Any] | None:
    """As records store them: [due_us, stream, procedure, row], or the id of one that is cancelled."""
    return [
        [one.due_us, one.stream, one.procedure, to_json(one.row)] if type(one) is Timer else one for one in changes
    ] or None


def restored_changes(timers: Timers, position: Position, saved: Iterable[Any]) -> TimerChanges:
    """What the transaction at this position had done, from a record of it."""
    changes = TimerChanges(timers, [], 0, 1)
    for one in saved:
        if isinstance(one, str):
            changes = changes.plus(one)
        else:
            due_us, stream, procedure, row = one
            made = widened(timers.relations[stream], from_json(row))
            changes = changes.plus(make_timer(due_us, position, changes.following, stream, procedure, made))
    return changes
