"""Division by key and narrowed locks against a model that asks the definitions, see ``test_lwm_model.py``.

A whole stands for all keys, with intents on whole tables, until its keys are known and all earlier wholes of its unit are
divided. Then there is one intent for each key, on the key's partition, at the positions that follow.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.lwm import PARTITIONS, TABLES, Item, Versions, fill, overlap, rows_of, value_at

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import partition
from tidegate.dataflows.graph import Unit
from tidegate.storage.versions import VersionedTable
from tidegate.streams.batch import Batch
from tidegate.streams.dividing import divide
from tidegate.testing.simulation.run import world
from tidegate.txn.execution import Execution
from tidegate.txn.scheduler import Scheduler

ANY = "any key"


@dataclass
class Intent:
    """One that was registered and not released."""

    unit: str
    entry: int
    key: Any
    reads: set[Item]
    writes: set[Item]
    arrived: bool = False
    running: bool = False

    def hinders(self, later: Intent) -> bool:
        mine_first = self.unit == later.unit and (self.key == later.key or ANY in (self.key, later.key))
        return mine_first or overlap(self.writes, later.reads | later.writes)


@dataclass(kw_only=True)
class Model(Versions):
    """``keys``: of the wholes that are not divided, what is known: None while it is nothing."""

    consumers: dict[str, list[Unit]]
    rekeyed: set[str]  # streams with a key of their own
    intents: dict[int, Intent] = field(default_factory=dict)
    keys: dict[int, list[int] | None] = field(default_factory=dict)

    def may_run(self) -> set[int]:
        return {at for at, mine in self.intents.items() if mine.arrived and not mine.running and self.granted(at)}

    def granted(self, at: int) -> bool:
        return not any(other.hinders(self.intents[at]) for place, other in self.intents.items() if place < at)

    def place(self, unit: Unit, entry: int, key: Any, at: int, arrived: bool) -> None:
        key = ANY if unit.divided else key
        self.intents[at] = Intent(unit.name, entry, key, *items_of(unit, key), arrived)
        if unit.divided:
            self.keys[at] = None

    def end(self, at: int, unit: Unit, emitted: dict[str, list[int] | None]) -> None:
        """It is gone; what it emitted goes to its consumers. ``emitted``: by stream, the keys on a stream that has its own."""
        gone = self.intents.pop(at)
        self.keys.pop(at, None)
        for stream in unit.outputs:
            for consumer in self.consumers.get(stream, []):
                self.tell(consumer, gone, stream in emitted, emitted.get(stream))
        while self.divide_one():
            pass

    def tell(self, consumer: Unit, producer: Intent, rows: bool, keys: list[int] | None) -> None:
        mine = [at for at, i in self.intents.items() if (i.unit, i.entry) == (consumer.name, producer.entry)]
        for at in mine:
            if at in self.keys and rows:
                self.keys[at] = keys
            elif self.intents[at].key == producer.key or self.intents[at].key == ANY:
                if rows:
                    self.intents[at].arrived = True
                else:
                    self.end(at, consumer, {})

    def divide_one(self) -> bool:
        for at, keys in sorted(self.keys.items()):
            whole = self.intents[at]
            earlier = any(self.intents[other].unit == whole.unit for other in self.keys if other < at)
            if keys is None or earlier:
                continue
            del self.intents[at], self.keys[at]
            unit = next(u for units in self.consumers.values() for u in units if u.name == whole.unit)
            first = not self.rekeyed.isdisjoint(unit.inputs)
            for place, key in enumerate(sorted(keys), at + 1):
                self.intents[place] = Intent(unit.name, whole.entry, key, *items_of(unit, key), first)
            for consumer in (c for s in unit.outputs for c in self.consumers.get(s, [])):
                for other, intent in self.intents.items():
                    if (intent.unit, intent.entry) == (consumer.name, whole.entry):
                        self.keys[other] = keys
            return True
        return False


def items_of(unit: Unit, key: Any) -> tuple[set[Item], set[Item]]:
    items: dict[bool, set[Item]] = {False: set(), True: set()}
    for access in unit.access:
        items[access.write].add((access.table, None if key is ANY or not access.restricted else key))
    return items[False], items[True]


def random_chains(rng: random.Random) -> App:
    """One or two chains of two to four procedures. What one of them emits is split by key; some behind it are nested."""
    app = world().app()
    for chain in range(rng.randint(1, 2)):
        length = rng.randint(2, 4)
        split = rng.randint(1, length - 1)
        own = rng.choice([None, "k"])  # producers that are keyed themselves end in any order
        streams = [f"s{chain * 5 + i}" for i in range(length + 1)]
        for i, stream in enumerate(streams):
            world().stream(app, stream, border=i == 0, key="k" if i == split else own if i == 0 else None)
        names = []
        for i in range(length):

            def body(txn, batch):
                raise AssertionError("the model test runs nothing")

            body.__name__ = f"p{chain}{i}"
            names.append(body.__name__)
            reads = [table for table in TABLES if rng.random() < 0.3]
            writes = [table for table in TABLES if rng.random() < 0.3]
            if (i >= split or own) and rng.random() < 0.8:
                reads, writes = ([partition("parts") if t == "parts" else t for t in ts] for ts in (reads, writes))
            app.procedure(inputs=streams[i], outputs=streams[i + 1], reads=reads, writes=writes)(body)
        if length - split > 1 and rng.random() < 0.4:
            app.nested(*names[split:])
        elif split > 1 and rng.random() < 0.4:
            app.nested(*names[:split])
    return app


class Pair:
    """The engine's parts and the model, driven side by side."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.app = random_chains(rng)
        graph = self.app.graph()
        self.borders = list(graph.caused_by)
        self.scheduler = Scheduler(graph)
        self.tables = {name: VersionedTable(self.app.tables[name]) for name in TABLES}
        rekeyed = {s.name for s in self.app.streams.values() if s.key is not None and not s.border}
        self.model = Model(consumers=dict(graph.consumers), rekeyed=rekeyed)
        self.sequence = 0
        self.batch_ids = dict.fromkeys(self.borders, 0)
        self.running: dict[Execution, int] = {}
        self.divided = 0

    def batch(self, stream: str, number: int, rows: Iterable[int], key: Any = None) -> Batch:
        relation = self.app.streams[stream].relation
        return Batch(relation, number, tuple(relation.row._make((k, 0, None)) for k in rows), key)

    def admit(self) -> None:
        stream = self.rng.choice(self.borders)
        self.sequence += 1
        self.batch_ids[stream] += 1
        key = self.rng.randrange(PARTITIONS) if self.app.streams[stream].key else None
        for execution in self.scheduler.admit(self.sequence, self.batch(stream, self.batch_ids[stream], [0], key)):
            self.model.place(execution.unit, self.sequence, key, execution.position, stream in execution.unit.inputs)

    def start(self, execution: Execution) -> None:
        """Run the body: every row that may be read is read, here and in the model."""
        self.scheduler.take(execution)
        mine = self.model.intents[execution.position]
        mine.running = True
        seen = []
        for table, number in rows_of(mine.reads | mine.writes):
            seen.append(value_at(self.tables[table], table, number, execution.position))
            assert seen[-1] == self.model.read(table, number, execution.position), f"{execution} reads {table}"
        self.running[execution] = hash((execution.position, *seen)) & 0xFFFFFF

    def finish(self, execution: Execution) -> None:
        number, at = self.running.pop(execution), execution.position
        aborted, emits = number % 7 == 0, number % 5 > 0
        keep_older = (oldest := self.scheduler.oldest()) is not None and oldest < at
        writes = set() if aborted else self.model.intents[at].writes
        for name, changed in fill(self.model, self.tables, writes, number, at):
            self.tables[name].commit(changed, at, self.sequence, keep_older)
        outputs: dict[str, Any] = {}
        emitted: dict[str, list[int] | None] = {}
        for name in execution.unit.outputs if emits and not aborted else ():
            keys = self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS))
            if name in self.model.rekeyed:
                outputs[name] = divide(self.batch(name, execution.entry, keys), "k", execution.entry)
                emitted[name] = keys
            else:
                outputs[name] = self.batch(name, execution.batch_id or 0, [0], execution.key)
                emitted[name] = None
        self.model.end(at, execution.unit, emitted)
        self.scheduler.finish(execution, outputs)
        self.divided += len(self.scheduler.divided)
        for _, parts in self.scheduler.divided:
            for part in parts:
                if part.position in self.model.intents:
                    assert self.model.intents[part.position].key == part.key
        self.scheduler.divided.clear()

    def choices(self, more: bool) -> Iterator[Any]:
        ready = self.scheduler.ready()
        assert {e.position for e in ready} == self.model.may_run()
        if more:
            yield self.admit
        yield from (lambda e=e: self.start(e) for e in ready)
        yield from (lambda e=e: self.finish(e) for e in self.running)

    def step(self, more: bool) -> bool:
        choices = list(self.choices(more))
        if self.rng.random() < 0.15:
            for table in self.tables.values():
                table.trim(self.scheduler.open_positions(table.name))
        if choices:
            self.rng.choice(choices)()
        return bool(choices)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_what_may_run_and_what_is_read_agree_with_the_model(start):
    divided = 0
    for seed in range(start, start + 50):
        pair = Pair(random.Random(seed))
        while pair.step(more=pair.sequence < 12):
            pass
        assert pair.scheduler.idle
        assert not pair.model.intents
        for name, which in rows_of({(name, None) for name in TABLES}):
            assert value_at(pair.tables[name], name, which, 1 << 60) == pair.model.read(name, which, 1 << 60)
        divided += pair.divided
    assert divided > 100
