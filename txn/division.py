"""Executions that are divided: one is placed for a batch, and becomes one for each key.

What a producer emits on a stream with a key of its own is split when it commits, so the keys that the units behind it run
for are not known when these are placed. Until then one execution, the *whole*, stands for all of them, at the position in
front of theirs and with intents on everything that any of them may touch: whole tables where the key names a partition. When
all its keys are known, it is *divided*: one execution for each key, in ascending order, at the positions that follow, each
with the intents of its key. That frees whoever waited for a partition that none of them has, and can hold up nobody: what
they have is part of what the whole had.

The wholes of a unit are divided in position order. So the executions of a key stand in line as they should, and no later
batch of any key overtakes one whose keys are unknown.

Pure, as the scheduler that it is a part of.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.graph import Graph, Unit
from tidegate.dataflows.partitions import NO_PARTITIONS, Partitions
from tidegate.streams.batch import Batch
from tidegate.streams.dividing import in_order
from tidegate.txn.execution import Coming, Execution, Inputs, Parts, State
from tidegate.txn.locks import Item
from tidegate.txn.positions import Position, position

if TYPE_CHECKING:
    from tidegate.txn.scheduler import Output


KEYS = 10_000  # keys whose items are remembered


class Division:
    """The part of the scheduler that knows of wholes.

    ``divided``: what became of them; the driver takes them from here. ``held``: positions of wholes that must not be divided
    yet, because a log says that they were not.
    """

    graph: Graph
    _by_batch: dict[tuple[str, Any, int | None], Execution]
    early: dict[tuple[str, Any], dict[int, Batch]]
    _blocked: dict[Position, dict[Execution, None]]

    def __init__(self) -> None:
        self.divided: list[tuple[Execution, list[Execution]]] = []
        self.held: Collection[Position] = ()
        self._wholes: dict[tuple[str, int], Execution] = {}  # by unit and entry
        self._lines: dict[str, dict[Execution, None]] = {}  # unit -> its wholes, in order
        self._later: list[Position] = []  # live executions that were placed after later ones; ascending
        # items of units that name no partition
        self._whole_tables: dict[str, tuple[tuple[Item, ...], tuple[Item, ...]]] = {}
        self._of_keys: dict[
            tuple[str, Any], tuple[tuple[Item, ...], tuple[Item, ...]]
        ] = {}  # where only the key names them

    # ---- placing

    def _create_whole(
        self, unit: Unit, sequence: int, batch: Batch, inputs: Inputs, coming: Iterable[str], known: dict[str, Batch]
    ) -> Execution:
        partitions: Partitions = NO_PARTITIONS
        if unit.named:
            partitions = {one.table: one.columns_only().values(None, known) for one in unit.named}
        parts: Parts = {s: {} if own is None else {own.key: own} for s, own in inputs.items()}
        missing = {stream for stream in coming if stream not in parts}
        return self._enter_whole(unit, position(sequence, unit.rank), sequence, missing, partitions, parts)

    def _enter_whole(
        self, unit: Unit, at: Position, entry: int, missing: set[str], partitions: Partitions, parts: Parts
    ) -> Execution:
        reads, writes = self._items_of_all(unit, partitions)
        whole = Execution(unit, at, None, entry, reads, writes, {}, missing, entry, partitions, parts=parts)
        self._wholes[unit.name, entry] = whole
        self._lines.setdefault(unit.name, OrderedDict())[whole] = None
        self._enter(whole)
        return whole

    def _items_of_all(self, unit: Unit, partitions: Partitions) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """What the executions of any keys may read and write."""
        by_key = {access.table: (None,) for access in unit.access if access.by_key}
        reads, writes = self._items(unit, None, {**partitions, **by_key})
        return _widened(reads, by_key), _widened(writes, by_key)

    # ---- what is known of the keys

    def _deliver_part(self, unit: Unit, producer: Execution, stream: str, output: Output) -> None:
        """Something became of a stream that a divided unit reads."""
        whole = self._wholes.get((unit.name, producer.entry))
        if producer.unit.divided and producer.parts is None:  # it has one of the keys
            assert not isinstance(output, dict)
            if whole is not None:
                if whole.parts and stream in whole.parts:
                    whole.parts[stream][producer.key] = output
                return
            target = self._by_batch.get((unit.name, producer.key, producer.entry))
            if target is not None:
                self._take_input(target, stream, output)
        elif whole is not None:
            parts = {output.key: output} if isinstance(output, Batch) else output or {}
            self._know(whole, stream, {**parts})

    def _know(self, whole: Execution, stream: str, parts: dict[Any, Any]) -> None:
        """All keys on one of its inputs are known."""
        assert whole.parts is not None
        whole.parts[stream] = parts
        whole.missing.discard(stream)
        if whole.in_vain:
            self._withdraw(whole)
        else:
            self._divide_in_order(whole.unit)

    # ---- dividing

    def _first_whole(self, unit: str) -> Execution:
        return next(iter(self._lines[unit]))

    def _divide_in_order(self, unit: Unit) -> None:
        """Divide what may be divided now."""
        while unit.name in self._lines:
            whole = self._first_whole(unit.name)
            if whole.state is not State.WAITING or whole.missing or whole.position in self.held:
                return
            self._divide(whole)

    def divide(self) -> None:
        """Divide what was held because a log said so."""
        for name in list(self._lines):
            self._divide_in_order(self._first_whole(name).unit)

    def undivided(self, dataflow: str) -> list[Execution]:
        """The wholes of a dataflow that are not parked: if one of their keys is halted, they do not know it yet."""
        return [w for w in self._wholes.values() if w.unit.dataflow == dataflow and w.state is not State.PARKED]

    def _divide(self, whole: Execution) -> None:
        whole.become(State.WITHDRAWN)
        self._leave_line(whole)
        self._go(whole)
        freed = self._blocked.pop(whole.position, {})
        keys = keys_of(whole)
        executions = [self._part_of(whole, key, at) for at, key in enumerate(keys, whole.position + 1)]
        self.divided.append((whole, executions))
        for stream in whole.unit.outputs:
            for unit in self.graph.consumers.get(stream, ()):
                after = self._wholes.get((unit.name, whole.entry))
                if after is not None:
                    self._know(after, stream, dict.fromkeys(keys, Coming.COMING))
        for execution in executions:
            self._start_or_withdraw(execution)
        for other in freed:
            self._consider(other)

    def _part_of(self, whole: Execution, key: Any, at: Position) -> Execution:
        """The execution for one key, in its place."""
        assert whole.parts is not None
        unit, partitions = whole.unit, whole.partitions
        if unit.named:
            by_key = {one.table for one in unit.named if one.by_key}
            partitions = {
                table: {key: None, **dict.fromkeys(values)} if table in by_key else values
                for table, values in partitions.items()
            }
        inputs: Inputs = {}
        missing: set[str] = set()
        for stream, parts in whole.parts.items():
            part = parts.get(key)
            if isinstance(part, Coming):
                missing.add(stream)
            else:
                inputs[stream] = part
        reads, writes = self._items(unit, key, partitions)
        number = whole.entry
        execution = Execution(unit, at, key, number, reads, writes, inputs, missing, number, partitions)
        self._take_place(execution, number)
        return execution

    def _leave_line(self, whole: Execution) -> list[Execution]:
        """It no longer stands in line; returns the one that may be divided now."""
        name = whole.unit.name
        del self._wholes[name, whole.entry]
        line = self._lines[name]
        was_first = next(iter(line)) is whole
        del line[whole]
        if not line:
            del self._lines[name]
            return []
        return [next(iter(line))] if was_first else []

    # ---- for executions of both kinds

    def _items(self, unit: Unit, key: Any, partitions: Partitions) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """What it reads and writes: tables, and the partitions that its key or, if they are given, rows or arguments name."""
        known = self._whole_tables.get(unit.name)
        if known is None and not partitions:
            known = self._of_keys.get((unit.name, key))
        if known is not None:
            return known
        reads: list[Item] = []
        writes: list[Item] = []
        for access in unit.access:
            if access.committed:
                continue
            items, table = writes if access.write else reads, access.table
            if not access.restricted:
                items.append(Item(table))
            elif table not in partitions:
                items.append(Item(table, (key,)))
            elif table in unit.wide:
                items += [Item(table, values) for values in partitions[table]]
            else:
                items += [Item(table, (value,)) for value in partitions[table]]
        if not any(access.restricted for access in unit.access):
            self._whole_tables[unit.name] = tuple(reads), tuple(writes)
        elif not partitions:
            if len(self._of_keys) >= KEYS:
                self._of_keys.clear()
            self._of_keys[unit.name, key] = tuple(reads), tuple(writes)
        return tuple(reads), tuple(writes)

    def _take_place(self, execution: Execution, number: int) -> None:
        """Its place on its streams, and in the order; answers that came early are there."""
        for stream in execution.unit.awaited:
            early = self.early.pop((stream, execution.key), {})
            if number in early:
                execution.inputs[stream] = early[number]
            if later := {i: batch for i, batch in early.items() if i > number}:
                self.early[stream, execution.key] = later
        self._by_batch[execution.unit.name, execution.key, number] = execution
        self._enter(execution)

    def _take_input(self, target: Execution, stream: str, batch: Batch | None) -> None:
        target.inputs[stream] = batch
        target.missing.discard(stream)
        if target.in_vain:
            self._withdraw(target)
        elif not target.missing:
            self._consider(target)

    if TYPE_CHECKING:  # of the scheduler

        def _enter(self, execution: Execution) -> None: ...
        def _go(self, execution: Execution) -> None: ...
        def _withdraw(self, execution: Execution) -> None: ...
        def _start_or_withdraw(self, execution: Execution) -> None: ...
        def _consider(self, execution: Execution) -> None: ...


def keys_of(whole: Execution) -> list[Any]:
    """The keys that it is divided by: those on all its inputs; of an either-unit, those on any."""
    assert whole.parts is not None
    inputs = [set(parts) for parts in whole.parts.values()]
    return in_order(set.union(*inputs) if whole.unit.either else set.intersection(*inputs))


def _widened(items: tuple[Item, ...], tables: Collection[str]) -> tuple[Item, ...]:
    """The items, with all of these tables instead of partitions of them."""
    return tuple(dict.fromkeys(Item(item.table) if item.table in tables else item for item in items))
