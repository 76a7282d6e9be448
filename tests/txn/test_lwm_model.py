"""Scheduler, low-water marks and versions against a model that does everything the slow and obvious way.

The model keeps every intent and every version for ever and asks the definitions directly. At every step of a
random interleaving both must agree on what may run, and on every value read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from support.lwm import PARTITIONS, TABLES, Item, Versions, fill, overlap, rows_of, value_at

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import partition
from tidegate.storage.versions import VersionedTable
from tidegate.streams.batch import Batch
from tidegate.testing.simulation.run import world
from tidegate.txn.execution import Execution
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks
from tidegate.txn.scheduler import Scheduler


@dataclass(kw_only=True)
class Model(Versions):
    """Intents and versions, nothing ever forgotten, nothing ever computed ahead."""

    two_phase: bool
    intents: dict[int, tuple[str, set[Item], set[Item]]] = field(
        default_factory=dict
    )  # position -> unit, reads, writes
    arrived: set[int] = field(default_factory=set)  # positions whose input is there
    running: set[int] = field(default_factory=set)

    def may_run(self) -> set[int]:
        return {at for at in self.arrived - self.running if self.granted(at)}

    def granted(self, at: int) -> bool:
        unit, reads, writes = self.intents[at]
        for other, (name, other_reads, other_writes) in self.intents.items():
            if other < at and (name == unit or overlap(other_writes, reads | writes)):
                return False
            if other < at and self.two_phase and overlap(other_reads, writes):
                return False
        return True


def random_flows(rng: random.Random) -> App:
    """One to three chains of one to three procedures over four tables, some of them nested. Of the last table most work on
    the partitions that the rows of the border batch name.
    """
    app = world().app()
    for flow in range(rng.randint(1, 3)):
        names = []
        length = rng.randint(1, 3)
        for i in range(length + 1):
            world().stream(app, f"s{flow * 4 + i}", border=i == 0, key=None)
        for i in range(length):

            def body(txn, batch):
                raise AssertionError("the model test runs nothing")

            body.__name__ = f"p{flow}{i}"
            names.append(body.__name__)
            reads = [table for table in TABLES if rng.random() < 0.4]
            writes = [table for table in TABLES if rng.random() < 0.35]
            if rng.random() < 0.75:
                named = partition("parts", by=[f"s{flow * 4}.k", f"s{flow * 4}.j"])
                reads, writes = ([named if t == "parts" else t for t in tables] for tables in (reads, writes))
            inputs, outputs = f"s{flow * 4 + i}", f"s{flow * 4 + i + 1}"
            app.procedure(inputs=inputs, outputs=outputs, reads=reads, writes=writes)(body)
        if length > 1 and rng.random() < 0.4:
            app.nested(*names)
    return app


class Pair:
    """The engine's parts and the model, driven side by side."""

    def __init__(self, rng: random.Random, two_phase: bool) -> None:
        self.rng = rng
        self.app = random_flows(rng)
        graph = self.app.graph()
        self.units = graph.units
        self.caused_by = graph.caused_by
        self.scheduler = Scheduler(graph, TwoPhaseLocks() if two_phase else LowWaterMarks())
        self.tables = {name: VersionedTable(self.app.tables[name]) for name in TABLES}
        self.model = Model(two_phase=two_phase)
        self.sequence = 0
        self.batch_ids = dict.fromkeys(self.caused_by, 0)
        self.running: dict[Execution, int] = {}

    def admit(self) -> None:
        stream = self.rng.choice(list(self.caused_by))
        self.sequence += 1
        self.batch_ids[stream] += 1
        pick = self.rng.randrange
        rows = tuple((pick(PARTITIONS), 0, self.rng.choice([None, *range(PARTITIONS)])) for _ in range(pick(1, 3)))
        batch = Batch(self.app.streams[stream].relation, self.batch_ids[stream], rows)
        partitions = {value for k, _, j in rows for value in (k, j) if value is not None}
        for execution in self.scheduler.admit(self.sequence, batch):
            items: dict[bool, set[Item]] = {False: set(), True: set()}
            for a in execution.unit.access:
                items[a.write] |= {(a.table, p) for p in partitions} if a.restricted else {(a.table, None)}
            self.model.intents[execution.position] = (execution.unit.name, items[False], items[True])
            if stream in execution.unit.inputs:
                self.model.arrived.add(execution.position)

    def start(self, execution: Execution) -> None:
        """Run the body: every row that may be read is read, here and in the model."""
        self.scheduler.take(execution)
        self.model.running.add(execution.position)
        seen = []
        _, reads, writes = self.model.intents[execution.position]
        for table, number in rows_of(reads | writes):
            seen.append(value_at(self.tables[table], table, number, execution.position))
            assert seen[-1] == self.model.read(table, number, execution.position), f"{execution} reads {table}"
        self.running[execution] = crc32(repr((execution.position, seen)).encode())

    def finish(self, execution: Execution) -> None:
        number, at = self.running.pop(execution), execution.position
        aborted, emits = number % 7 == 0, number % 3 > 0
        keep_older = (oldest := self.scheduler.oldest()) is not None and oldest < at
        _, _, writes = self.model.intents[at]
        for name, changed in fill(self.model, self.tables, writes if not aborted else set(), number, at):
            self.tables[name].commit(changed, at, self.sequence, keep_older)
        relation = self.app.streams["s0"].relation
        outputs = {}
        for name in execution.unit.outputs if emits and not aborted else ():
            outputs[name] = Batch(
                self.app.streams[name].relation, execution.batch_id, (relation.row._make((0, number, None)),)
            )
        self.end(execution, set(outputs))
        self.scheduler.finish(execution, outputs)

    def end(self, execution: Execution, emitted: set[str]) -> None:
        """The model's side of an ending: consumers get their input, or are withdrawn with all behind them."""
        self.model.running.discard(execution.position)
        self.model.arrived.discard(execution.position)
        del self.model.intents[execution.position]
        later = [e for e in self.scheduler.live.values() if e.batch_id == execution.batch_id]
        for other in later:
            wanted = set(other.unit.inputs) & set(execution.unit.outputs)
            if other.position in self.model.intents and wanted:
                if wanted <= emitted:
                    self.model.arrived.add(other.position)
                else:
                    self.end(other, set())

    def trim(self) -> None:
        for table in self.tables.values():
            table.trim(self.scheduler.open_positions(table.name))

    def step(self, more: bool) -> bool:
        ready = self.scheduler.ready()
        assert {e.position for e in ready} == self.model.may_run()
        choices = [*([self.admit] if more else []), *(lambda e=e: self.start(e) for e in ready)]
        choices += [lambda e=e: self.finish(e) for e in self.running]
        if self.rng.random() < 0.15:
            self.trim()
        if choices:
            self.rng.choice(choices)()
        return bool(choices)


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_what_may_run_and_what_is_read_agree_with_the_model(start, two_phase):
    for seed in range(start, start + 50):
        pair = Pair(random.Random(seed), two_phase)
        while pair.step(more=pair.sequence < 12):
            pass
        assert pair.scheduler.idle
        assert not pair.model.intents
        for name, which in rows_of({(name, None) for name in TABLES}):
            assert value_at(pair.tables[name], name, which, 1 << 60) == pair.model.read(name, which, 1 << 60)
