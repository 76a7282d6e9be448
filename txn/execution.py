"""What the scheduler places in order: executions, the states they go through, and why one waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from tidegate.dataflows.graph import Unit
from tidegate.dataflows.partitions import Partitions
from tidegate.streams.batch import Batch
from tidegate.txn.locks import Item
from tidegate.txn.positions import Position, describe

Inputs = dict[str, Batch | None]  # by stream; None: its batch has no rows


class Coming(Enum):
    """In place of a batch whose producer has not ended."""

    COMING = "coming"


Part = Batch | Coming | None
Parts = dict[str, dict[Any, Part]]  # by stream and key; None: its batch has no rows


class State(Enum):
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    SUSPENDED = "suspended"
    PARKED = "parked"
    FINISHED = "finished"
    WITHDRAWN = "withdrawn"

    __hash__ = object.__hash__  # that of Enum is written in Python


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.READY, State.WITHDRAWN, State.PARKED}),
    State.READY: frozenset({State.RUNNING, State.PARKED}),
    State.RUNNING: frozenset({State.FINISHED, State.SUSPENDED, State.PARKED}),
    State.SUSPENDED: frozenset({State.READY}),
    State.PARKED: frozenset({State.WAITING, State.WITHDRAWN}),
    State.FINISHED: frozenset(),
    State.WITHDRAWN: frozenset(),
}


class Why(Enum):
    READY = "ready"
    INPUT = "input"
    ORDER = "order"
    LOCK = "lock"
    HALTED = "halted"


for _kind in (State, Why):
    for _member in _kind:  # Python 3.11 would find each by a property, which takes ten times as long
        type.__setattr__(_kind, _member.name, _member)


class Reason(msgspec.Struct, frozen=True):
    """Why an execution may run, or what it waits for. Used by the scheduler, error texts and ``tidegate.locks``.

    (A ``Struct``, because its constructor is not written in Python: the scheduler makes several for each execution.)
    """

    why: Why
    stream: str | None = None
    item: Item | None = None
    behind: Position | None = None

    def __str__(self) -> str:
        behind = "" if self.behind is None else f" behind position {describe(self.behind)}"
        match self.why:
            case Why.READY:
                return "ready"
            case Why.INPUT:
                return f"waits for its batch on stream {self.stream}"
            case Why.ORDER:
                return f"waits for its turn{behind}"
            case Why.LOCK:
                return f"waits for the lock on {self.item}{behind}"
            case Why.HALTED:
                return f"is parked: its dataflow is halted in front of position {describe(self.behind or 0)}"


READY = Reason(Why.READY)


@dataclass(eq=False, slots=True)
class Execution:
    """One unit (a procedure or a nested transaction) on one batch, or one call of an OLTP procedure.

    ``entry``: the sequence number it was admitted with; it stays the same when resuming a halted dataflow changes the
    position. ``reason``: what it was waiting for when last checked (``Scheduler.waiting`` checks again). ``until``: it
    waits for a lock, and is checked again when the execution at this position is gone. ``partitions``: what the rows of its
    batches name, if the unit names partitions by them. ``parts``: it is still to be divided into one execution per key; what is
    known of the keys on each of its inputs. ``context``: belongs to the executor; the scheduler does not look
    inside. ``tables``: those it has an intent on. ``priority``: see ``Scheduler.by_priority``. ``origin``: the border stream
    with a capacity of its own that it counts against.
    """

    unit: Unit
    position: Position
    key: Any
    batch_id: int | None
    reads: tuple[Item, ...]
    writes: tuple[Item, ...]
    inputs: Inputs
    missing: set[str]
    entry: int
    partitions: Partitions
    state: State = State.WAITING
    reason: Reason = READY
    until: Position | None = None
    started: bool = False
    context: Any = None
    parts: Parts | None = None
    tables: tuple[str, ...] = ()
    priority: int | None = None
    origin: str | None = None

    def become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self} can't go from {self.state} to {state}"
        self.state = state

    def __post_init__(self) -> None:
        items = (*self.reads, *self.writes)
        self.tables = (items[0].table,) if len(items) == 1 else tuple(dict.fromkeys([item.table for item in items]))

    @property
    def in_vain(self) -> bool:
        """Whether it will never start: a batch it needs has no rows. An either-unit: none of its batches has rows. A unit
        that minds time is told of it on any input, and waits for all of them.
        """
        if self.parts is not None:
            return not self.unit.either and not all(self.parts.values())
        if self.missing and (self.unit.either or self.unit.minds):
            return False
        return self.unit.in_vain(self.inputs.values())

    def __lt__(self, other: Execution) -> bool:
        return self.position < other.position

    def __str__(self) -> str:
        key = "" if self.key is None else f" key {self.key!r}"
        key = key if self.parts is None else " for all its keys"
        batch = "" if self.batch_id is None else f" on batch {self.batch_id}{key}"
        return f"{self.unit.name}{batch} at position {describe(self.position)}"


@dataclass(slots=True)
class Partial:
    """A unit with several border ancestors for one batch-id: what has arrived so far."""

    arrived: set[str] = field(default_factory=set)
    inputs: Inputs = field(default_factory=dict)
    named: dict[str, Batch] = field(default_factory=dict)  # batches that are no inputs, but whose rows name partitions
