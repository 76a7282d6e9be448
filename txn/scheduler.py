"""The ordered scheduler: value in, decision out.

It knows nothing of threads, clocks, files or databases. Border batches and calls are *admitted* with their sequence
number. That places every execution they may cause and registers all its lock intents, at once and in position order;
executions that turn out not to start are withdrawn. ``next`` returns an execution that may run now; ``finish``,
``suspend`` and ``halt`` report what became of it. The driver (a loop, worker threads, a seeded simulation) decides
nothing about order.

Ordered collections that mostly shrink from the front are an ``OrderedDict``: to find its first entry, a ``dict`` skips
all the removed ones.

    admit ──▶ WAITING ──▶ READY ──▶ RUNNING ──▶ FINISHED
                 │  ▲                │   ▲
                 │  └── resume ──┐   ▼   │ its batch arrives
                 ▼               │  SUSPENDED           a nested transaction waits for an awaited border batch
             WITHDRAWN ◀─skip─ PARKED                   its dataflow is halted for its key
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from tidegate.dataflows.graph import Graph, Unit
from tidegate.dataflows.partitions import NO_PARTITIONS, Partitions, partitions_of
from tidegate.streams.batch import Batch
from tidegate.streams.dividing import Divided
from tidegate.txn import locks as locking
from tidegate.txn.division import Division
from tidegate.txn.execution import READY, Execution, Inputs, Partial, Parts, Reason, State, Why
from tidegate.txn.locks import LockTable, remove
from tidegate.txn.positions import Position, position, rank_of, sequence_of

Batches = dict[str, Batch]  # by stream
Output = Batch | Divided | None  # of one stream; divided, if the stream has a key of its own
OLDEST_EVERY = 64  # picks
Halt = tuple[str, Any]  # a dataflow, and the key it is halted for: None if it has no keys


def halt_of(execution: Execution) -> Halt:
    """What is halted if this execution fails: its dataflow, for its key if it halts by keys."""
    return execution.unit.dataflow, execution.key if execution.unit.halts_by_key else None


class Scheduler(Division):
    """Places executions in a single order, and says which may run now."""

    def __init__(self, graph: Graph, locks: LockTable | None = None) -> None:
        super().__init__()
        self.graph = graph
        self.locks: LockTable = locks if locks is not None else locking.default()
        self.live: dict[Position, Execution] = OrderedDict()  # unfinished, with lock intents; ascending
        self.parked: dict[Position, Execution] = {}
        self.withdrawn: list[Execution] = []  # will never start; the driver takes them from here
        self.halted: dict[Halt, Execution] = {}  # the execution it stopped in front of
        self._open: dict[str, list[Position]] = {}  # table -> positions with an intent on it, ascending
        self._suspended: dict[Position, Execution] = {}  # open, each waits for a batch on an awaited stream
        self.by_priority = False  # does ``next`` prefer a higher priority to a smaller position?
        self._precedence = graph.precedence
        self._limited = {s.name for s in graph.app.streams.values() if s.capacity is not None}
        self.unfinished: Counter[str] = Counter()  # border stream with a capacity -> executions it has caused
        # a heap by (priority, highest first; position); those taken out of turn, or raised, stay in it for a while
        self._ready: list[tuple[int, Position, Execution]] = []
        self._oldest: list[tuple[Position, Execution]] = []  # the same by position alone, if there are priorities
        self._picks = 0
        self._stale = 0  # how many of its entries were taken out of turn
        self._blocked: dict[Position, dict[Execution, None]] = {}  # position -> executions to check when it is gone
        self._queues: dict[tuple[str, Any], dict[Execution, None]] = {}  # (unit, key) -> its executions, in order
        self._by_batch: dict[tuple[str, Any, int | None], Execution] = {}
        self.partial: dict[tuple[str, Any], dict[int, Partial]] = {}
        self.incomplete: Counter[str] = Counter()  # stream -> its batches in ``partial``, waiting for another stream's
        self.early: dict[tuple[str, Any], dict[int, Batch]] = {}  # awaited batches that arrived before their question

    # ---- admission

    def admit(self, sequence: int, batch: Batch) -> list[Execution]:
        """Place every execution this border batch may cause, in position order; returns those, and, for an awaited
        stream, the open nested transactions it answers.
        """
        created = []
        placed: set[str] = set()
        stream = batch.relation.name
        for unit in self.graph.caused_by.get(stream, ()):
            gathered = self._gather(unit, batch, placed)
            if gathered is not None:
                created.append(self._create(unit, sequence, batch, *gathered))
                placed.add(unit.name)
        for execution in created:
            self._start_or_withdraw(execution)
        for unit in self.graph.consumers.get(stream, ()):
            if stream in unit.awaited:
                created.extend(self._answer(unit, batch))
        return created

    def admit_call(self, sequence: int, unit: Unit, partitions: Partitions) -> Execution:
        """Place one call of an OLTP procedure. ``partitions``: those that its arguments name."""
        execution = self.readmit_call(unit, position(sequence, 0), partitions)
        self._consider(execution)
        return execution

    def _gather(self, unit: Unit, batch: Batch, placed: set[str]) -> tuple[Inputs, Iterable[str], Batches] | None:
        """The inputs known when the unit is placed, the streams it gets inputs from, and the batches whose rows may name
        partitions; None while it can't be placed.
        """
        name = batch.relation.name
        entered: Batches = {name: batch}
        own: Inputs = {name: unit.takes(batch)} if name in unit.inputs else {}
        if unit.numbered_by is not None:
            coming = self.graph.placed_by(unit, batch.stream, placed)
            return None if coming is None else (own, coming, entered)
        if len(unit.ancestors) == 1:
            return own, unit.inputs, entered
        partials = self.partial.setdefault((unit.name, batch.key), {})
        for batch_id in [i for i, p in partials.items() if i < batch.id and batch.stream not in p.arrived]:
            self.incomplete -= Counter(partials.pop(batch_id).arrived)  # ids ascend: it can't be completed
        partial = partials.setdefault(batch.id, Partial())
        self.incomplete[batch.stream] += batch.stream not in partial.arrived
        partial.arrived.add(batch.stream)
        partial.inputs.update(own)
        if unit.named:
            partial.named.update(entered)
        if partial.arrived != unit.ancestors:
            return None
        del partials[batch.id]
        self.incomplete -= Counter(partial.arrived)
        if not partials:
            del self.partial[unit.name, batch.key]
        return partial.inputs, unit.inputs, partial.named

    def _create(
        self, unit: Unit, sequence: int, batch: Batch, inputs: Inputs, coming: Iterable[str], known: Batches
    ) -> Execution:
        if unit.divided:
            return self._create_whole(unit, sequence, batch, inputs, coming, known)
        partitions = partitions_of(unit.named, batch.key, known) if unit.named else NO_PARTITIONS
        reads, writes = self._items(unit, batch.key, partitions)
        missing = {stream for stream in coming if stream not in inputs}
        at = position(sequence, unit.rank)
        number = batch.id if unit.numbered_by is None else sequence
        execution = Execution(unit, at, batch.key, number, reads, writes, inputs, missing, sequence, partitions)
        execution.priority = self._precedence.of(batch.stream)
        if batch.stream in self._limited:
            execution.origin = batch.stream
            self.unfinished[batch.stream] += 1
        self._take_place(execution, number)
        return execution

    def _enter(self, execution: Execution) -> None:
        if execution.priority is None:
            execution.priority = self._precedence.among(execution.unit.ancestors or (execution.unit.name,))
        if execution.batch_id is not None and execution.parts is None:
            line = (execution.unit.name, execution.key)
            queue = self._queues.get(line)
            if queue is None:
                queue = self._queues[line] = OrderedDict()
            queue[execution] = None
        if self.halted and halt_of(execution) in self.halted:
            self._park(execution)
        else:
            self._come(execution)

    def _come(self, execution: Execution) -> None:
        """Add it to the unfinished executions and register its intents."""
        self.live[execution.position] = execution
        if execution.unit.divided and execution.parts is None:
            insort(self._later, execution.position)
        self.locks.register(execution.position, execution.reads, execution.writes)
        for table in execution.tables:
            positions = self._open.get(table)
            if positions:
                insort(positions, execution.position)
            else:
                self._open[table] = [execution.position]

    def _go(self, execution: Execution) -> None:
        """Remove it from the unfinished executions and release its intents."""
        if self.live.pop(execution.position, None) is not None:
            if execution.unit.divided and execution.parts is None:
                remove(self._later, execution.position)
            self.locks.release(execution.position, execution.reads, execution.writes)
            for table in execution.tables:
                remove(self._open[table], execution.position)

    def _start_or_withdraw(self, execution: Execution) -> None:
        if execution.state is State.WITHDRAWN:  # what it depends on was
            return
        if execution.state in (State.WAITING, State.PARKED) and execution.in_vain:
            self._withdraw(execution)
        else:
            self._consider(execution)

    # ---- deciding

    def next(self) -> Execution | None:
        """The ready execution with the smallest position (``by_priority``: of those with the highest priority), now RUNNING;
        None when nothing may run.

        Any choice among the ready is correct. Every 64th pick is the oldest, so that nothing waits forever.
        """
        if self._oldest:
            self._picks += 1
            if self._picks % OLDEST_EVERY == 0:
                return self._pick_oldest()
        while self._ready:
            execution = heapq.heappop(self._ready)[2]
            if execution.state is State.READY:
                return self._start(execution)
        return None

    def _pick_oldest(self) -> Execution | None:
        while self._oldest:
            execution = heapq.heappop(self._oldest)[1]
            if execution.state is State.READY:
                return self.take(execution)
        return None

    def _make_ready(self, execution: Execution) -> None:
        """It may run from now on, or with another priority."""
        if self.by_priority and self._precedence.any:
            assert execution.priority is not None
            heapq.heappush(self._ready, (-execution.priority, execution.position, execution))
            heapq.heappush(self._oldest, (execution.position, execution))
        else:
            heapq.heappush(self._ready, (0, execution.position, execution))

    def ready(self) -> list[Execution]:
        """Everything that may run now, in position order: any choice among them is correct."""
        return sorted({e for *_, e in self._ready if e.state is State.READY})

    @property
    def any_ready(self) -> bool:
        """May anything run now?"""
        ready = self._ready
        while ready and ready[0][2].state is not State.READY:
            heapq.heappop(ready)
        return bool(ready)

    def take(self, execution: Execution) -> Execution:
        """Run this ready execution next instead of the first one."""
        self._start(execution)
        self._stale += 1
        if self._stale * 2 > len(self._ready):
            self._ready = [entry for entry in self._ready if entry[2].state is State.READY]
            heapq.heapify(self._ready)
            self._stale = 0
        return execution

    def _start(self, execution: Execution) -> Execution:
        execution.become(State.RUNNING)
        execution.started = True
        return execution

    def _why(self, execution: Execution) -> tuple[Reason, Position | None]:
        """The decision: ready, or the one thing it waits for now; for a lock, also the position to wait for."""
        if execution.missing:
            return Reason(Why.INPUT, stream=min(execution.missing)), None
        if execution.parts is not None:
            return Reason(Why.ORDER, behind=self._first_whole(execution.unit.name).position), None
        if execution.batch_id is not None:
            first = next(iter(self._queues[execution.unit.name, execution.key]))
            if first is not execution:
                return Reason(Why.ORDER, behind=first.position), None
        block = self.locks.blocker(execution.position, execution.reads, execution.writes)
        if block is not None:
            return Reason(Why.LOCK, item=block.item, behind=block.behind), block.until
        return READY, None

    def _consider(self, execution: Execution) -> None:
        if execution.state is not State.WAITING:
            return
        if execution.parts is not None:
            self._divide_in_order(execution.unit)
            return
        if execution.until is not None:
            self._forget_lock(execution)
        execution.reason, until = self._why(execution)
        if until is not None:
            execution.until = until
            self._blocked.setdefault(until, {})[execution] = None
        elif execution.reason is READY:
            execution.become(State.READY)
            self._make_ready(execution)
        if execution.priority and self.by_priority and execution.reason is not READY:
            self._raise(self._behind(execution), execution.priority)

    def _raise(self, waiting: list[Position], priority: int) -> None:
        """What someone of this priority waits for has that priority, too, and so has what that waits for."""
        while waiting:
            execution = self.live.get(waiting.pop())
            if execution is None or execution.priority is None or execution.priority >= priority:
                continue
            execution.priority = priority
            if execution.state is State.READY:
                self._make_ready(execution)
            elif execution.state is State.WAITING:
                waiting += self._behind(execution)

    def _behind(self, execution: Execution) -> list[Position]:
        """The positions of what it waits for."""
        reason, until = self._why(execution)
        if until is not None:
            return [until]
        if reason.behind is not None:
            return [reason.behind]
        producers = {self.graph.producer_of[s] for s in execution.missing if s in self.graph.producer_of}
        found = (self._by_batch.get((name, execution.key, execution.batch_id)) for name in producers)
        return [producer.position for producer in found if producer is not None]

    def _forget_lock(self, execution: Execution) -> None:
        """It no longer waits for a lock, or is about to be checked again."""
        if execution.until is not None:
            self._blocked.get(execution.until, {}).pop(execution, None)
            execution.until = None

    # ---- outcomes

    def finish(self, execution: Execution, outputs: Mapping[str, Output]) -> None:
        """It committed (or was undone, with no outputs): release its locks, pass on its batches, wake what is now
        ready.
        """
        execution.become(State.FINISHED)
        self._leave(execution)
        for stream in execution.unit.outputs:
            self._deliver(execution, stream, outputs.get(stream))

    def suspend(self, execution: Execution, stream: str) -> None:
        """It is open and waits for its batch on an awaited border stream; it keeps its locks."""
        execution.become(State.SUSPENDED)
        execution.reason = Reason(Why.INPUT, stream=stream)
        self._suspended[execution.position] = execution
        if execution.inputs.get(stream) is not None:
            self._wake_suspended(execution)

    def _answer(self, unit: Unit, batch: Batch) -> list[Execution]:
        execution = self._by_batch.get((unit.name, batch.key, batch.id))
        if execution is None:
            self.early.setdefault((batch.stream, batch.key), {})[batch.id] = batch
            return []
        execution.inputs[batch.stream] = batch
        if execution.state is State.SUSPENDED and execution.reason.stream == batch.stream:
            self._wake_suspended(execution)
        return [execution]

    def reask(self, execution: Execution) -> None:
        """Its question is withdrawn: it may run again, and keeps its locks meanwhile."""
        self._wake_suspended(execution)

    def restore_suspended(self, execution: Execution, stream: str) -> None:
        """It was suspended when its state was saved; unless its answer or something else came in between, it is again."""
        if execution.state is State.READY and execution.inputs.get(stream) is None:
            self.suspend(self.take(execution), stream)

    def _wake_suspended(self, execution: Execution) -> None:
        execution.become(State.READY)
        execution.reason = READY
        del self._suspended[execution.position]
        self._make_ready(execution)

    def awaiting(self, stream: str, key: Any) -> Execution | None:
        """The oldest execution that lacks its batch on this awaited stream: it has asked for it, or still may."""
        lacking: list[Execution] = []
        for unit in self.graph.consumers.get(stream, ()):
            queue = self._queues.get((unit.name, key), ()) if stream in unit.awaited else ()
            first = (e for e in queue if e.state is not State.PARKED and e.inputs.get(stream) is None)
            lacking += islice(first, 1)
        return min(lacking, default=None)

    @property
    def any_suspended(self) -> bool:
        """Does an open execution wait for a batch on an awaited stream?"""
        return bool(self._suspended)

    def suspended(self) -> list[Execution]:
        """The open executions that wait for a batch on an awaited stream, in position order."""
        return sorted(self._suspended.values())

    def _deliver(self, producer: Execution, stream: str, batch: Output) -> None:
        for unit in self.graph.consumers.get(stream, ()):
            if unit.divided:
                self._deliver_part(unit, producer, stream, batch)
                continue
            assert not isinstance(batch, dict)
            number = producer.batch_id if unit.numbered_by is None else producer.entry
            target = self._by_batch.get((unit.name, producer.key, number))
            if target is not None:
                self._take_input(target, stream, unit.takes(batch))
            elif producer.batch_id is not None:
                # the consumer still waits for other border batches, or (no entry) can no longer run
                partial = self.partial.get((unit.name, producer.key), {}).get(producer.batch_id)
                if partial is not None:
                    partial.inputs[stream] = unit.takes(batch)

    def _withdraw(self, execution: Execution) -> None:
        """It will never start, because a batch it needs has no rows; neither will executions that need its batches."""
        execution.become(State.WITHDRAWN)
        self.withdrawn.append(execution)
        self._leave(execution)
        for stream in execution.unit.outputs:
            self._deliver(execution, stream, None)

    def _leave(self, execution: Execution) -> None:
        self._go(execution)
        if execution.origin is not None:
            self.unfinished[execution.origin] -= 1
        if self.parked:
            self.parked.pop(execution.position, None)
        if execution.parts is not None:
            for other in self._leave_line(execution):
                self._consider(other)
        elif execution.batch_id is not None:
            del self._by_batch[execution.unit.name, execution.key, execution.batch_id]
            following = self._next_in_line(execution)
            if following is not None:
                self._consider(following)
        for other in self._blocked.pop(execution.position, ()):
            self._consider(other)

    def _next_in_line(self, execution: Execution) -> Execution | None:
        """It no longer stands in line; returns the one that is first now."""
        name = (execution.unit.name, execution.key)
        queue = self._queues[name]
        was_first = next(iter(queue)) is execution
        del queue[execution]
        if not queue:
            del self._queues[name]
            return None
        return next(iter(queue)) if was_first else None

    # ---- halting a dataflow, for one key if it has keys

    def halt(self, execution: Execution, park: Iterable[Position] | None = None) -> list[Position]:
        """Stop its dataflow in front of it, for its key. It, and everything of that dataflow and key not yet started,
        gives up its intents.

        Returns the positions of the others that were parked, and of those that were still to be divided if they have the key
        only then; when a halt is replayed from the log, ``park`` says which.
        """
        only = None if park is None else set(park)
        parked = []
        halt = halt_of(execution)
        self.halted[halt] = execution
        execution.started = False
        freed: list[Execution] = []
        for other in list(self.live.values()):
            if other is execution:
                freed += self._park(other)
            elif (
                halt_of(other) == halt
                and other.state in (State.WAITING, State.READY)
                and not other.started
                and (only is None or other.position in only)
            ):
                parked.append(other.position)
                freed += self._park(other)
        for other in freed:
            self._consider(other)
        return parked + self.unknown_to(execution)

    def unknown_to(self, front: Execution) -> list[Position]:
        """Where those are that were not divided when a dataflow was halted in front of ``front``, for its key."""
        return sorted(e.position for e in self.undivided(front.unit.dataflow)) if front.unit.divided else []

    def _park(self, execution: Execution) -> Iterable[Execution]:
        """Park it without its intents; returns the executions to check again."""
        execution.become(State.PARKED)
        self._forget_lock(execution)
        behind = self.halted[halt_of(execution)].position
        execution.reason = Reason(Why.HALTED, behind=behind)
        self.parked[execution.position] = execution
        self._go(execution)
        return self._blocked.pop(execution.position, ())

    def resume(self, halts: Collection[Halt], next_sequence: Callable[[], int], skip: bool = False) -> list[Execution]:
        """Continue what is halted: everything parked is admitted again, in its old order, at new positions.

        ``skip``: without the executions that it stopped in front of, which are withdrawn.
        """
        fronts = [self.halted.pop(halt) for halt in halts]
        for front in fronts if skip else ():
            self._withdraw(front)
        moving = self.moving(halts)
        freed: list[Execution] = []
        new: dict[int, int] = {}
        for execution in moving:
            if execution.state is State.PARKED:
                del self.parked[execution.position]
                execution.become(State.WAITING)
            else:
                self._go(execution)
                freed += self._blocked.pop(execution.position, ())
            sequence = new.setdefault(sequence_of(execution.position), 0) or next_sequence()
            new[sequence_of(execution.position)] = sequence
            execution.position = position(sequence, rank_of(execution.position))
            self._come(execution)
        for execution in (*moving, *freed):
            self._consider(execution)
        return moving

    def moving(self, halts: Collection[Halt]) -> list[Execution]:
        """What gets new positions when these halts end: all that is parked, and what is still to be divided, because the keys
        that were halted may be among its own, and their batches must stay in order.
        """
        parked = [e for e in self.parked.values() if halt_of(e) in halts]
        wholes = [whole for dataflow in {name for name, _ in halts} for whole in self.undivided(dataflow)]
        return sorted([*parked, *wholes])

    def fronts(self, stream: str) -> list[Execution]:
        """The executions in front of which dataflows that a border stream feeds are halted."""
        dataflows = {unit.dataflow for unit in self.graph.caused_by.get(stream, ())}
        return [front for front in list(self.halted.values()) if front.unit.dataflow in dataflows]

    # ---- reopening

    def readmit(
        self,
        unit: Unit,
        at: Position,
        key: Any,
        batch_id: int,
        inputs: Inputs,
        missing: set[str],
        entry: int,
        started: bool,
        partitions: Partitions = NO_PARTITIONS,
        parts: Parts | None = None,
    ) -> Execution:
        """Place an execution that was unfinished when its state was saved; it runs from the beginning.

        ``started``: it was open, so a halt of its dataflow does not park it. ``parts``: it was not divided yet.
        """
        if parts is not None:
            return self._enter_whole(unit, at, entry, missing, partitions, parts)
        reads, writes = self._items(unit, key, partitions)
        execution = Execution(
            unit, at, key, batch_id, reads, writes, inputs, missing, entry, partitions, started=started
        )
        self._by_batch[unit.name, key, batch_id] = execution
        self._enter(execution)
        return execution

    def readmit_call(self, unit: Unit, at: Position, partitions: Partitions) -> Execution:
        """Place a call that was unfinished when its state was saved."""
        reads, writes = self._items(unit, None, partitions)
        execution = Execution(unit, at, None, None, reads, writes, {}, set(), sequence_of(at), partitions)
        self._enter(execution)
        return execution

    def restore_partial(
        self, unit: str, key: Any, batch_id: int, arrived: set[str], inputs: Inputs, named: Batches
    ) -> None:
        self.partial.setdefault((unit, key), {})[batch_id] = Partial(arrived, inputs, named)
        self.incomplete.update(arrived)

    def restore_early(self, batch: Batch) -> None:
        self.early.setdefault((batch.stream, batch.key), {})[batch.id] = batch

    def reconsider(
        self, executions: Iterable[Execution], fronts: Iterable[Position], parked: Iterable[Position]
    ) -> None:
        """All are placed: halt what was halted, park what was parked, and see which of the others may run."""
        self.halted = {halt_of(self.live[at]): self.live[at] for at in fronts}
        for at in parked:
            self._park(self.live[at])
        for execution in executions:
            self._consider(execution)

    # ---- state for others

    @property
    def idle(self) -> bool:
        """Nothing admitted is unfinished."""
        return not self.live and not self.parked

    def oldest(self) -> Position | None:
        """The smallest unfinished position."""
        first = next(iter(self.live), None)
        return min(first, self._later[0]) if self._later and first is not None else first

    def open_positions(self, table: str, below: Position | None = None) -> list[Position]:
        """Positions of unfinished executions with an intent on ``table``, ascending; only those ``below`` a position."""
        positions = self._open.get(table, [])
        return positions[: len(positions) if below is None else bisect_left(positions, below)]

    def waiting(self) -> Iterable[Execution]:
        """Everything unfinished, in position order, each with its reason as of now."""
        for execution in self.live.values():
            if execution.state is State.WAITING:
                execution.reason, _ = self._why(execution)
        if self._later:
            return [*sorted(self.live.values()), *self.parked.values()]
        return [*self.live.values(), *self.parked.values()]
