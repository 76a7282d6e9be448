"""Scheduler, low-water marks and versions against a model that does everything the slow and obvious way.

The model keeps every intent and every version for ever and asks the definitions directly. At every step of a
random interleaving both must agree on what may run, and on every value read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from zlib import crc32

import pytest

from tidegate.dataflows.app import App
from tidegate.storage.versions import VersionedTable
from tidegate.streams.batch import Batch
from tidegate.testing.simulation.run import world
from tidegate.txn.execution import Execution
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks
from tidegate.txn.scheduler import Scheduler

TABLES = ("plain", "named", "bounded")
KEY = 1  # every table holds one row: tables are the items


@dataclass
class Model:
    """Intents and versions, nothing ever forgotten, nothing ever computed ahead."""

    two_phase: bool
    intents: dict[int, tuple[str, set[str], set[str]]] = field(default_factory=dict)  # position -> unit, reads, writes
    arrived: set[int] = field(default_factory=set)  # positions whose input is there
    running: set[int] = field(default_factory=set)
    versions: list[tuple[int, str, int]] = field(default_factory=list)

    def may_run(self) -> set[int]:
        return {at for at in self.arrived - self.running if self.granted(at)}

    def granted(self, at: int) -> bool:
        unit, reads, writes = self.intents[at]
        for other, (name, other_reads, other_writes) in self.intents.items():
            if other < at and (name == unit or other_writes & (reads | writes)):
                return False
            if other < at and self.two_phase and other_reads & writes:
                return False
        return True

    def read(self, table: str, at: int) -> int:
        return max(((p, value) for p, name, value in self.versions if name == table and p < at), default=(0, 0))[1]


def random_flows(rng: random.Random) -> App:
    """One to three chains of one to three procedures over three tables, some of them nested."""
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
        self.model = Model(two_phase)
        self.sequence = 0
        self.batch_ids = dict.fromkeys(self.caused_by, 0)
        self.running: dict[Execution, int] = {}

    def admit(self) -> None:
        stream = self.rng.choice(list(self.caused_by))
        self.sequence += 1
        self.batch_ids[stream] += 1
        batch = Batch(self.app.streams[stream].relation, self.batch_ids[stream], ((0, self.sequence),))
        for execution in self.scheduler.admit(self.sequence, batch):
            access = execution.unit.access
            reads, writes = ({a.table for a in access if a.write is write} for write in (False, True))
            self.model.intents[execution.position] = (execution.unit.name, reads, writes)
            if stream in execution.unit.inputs:
                self.model.arrived.add(execution.position)

    def start(self, execution: Execution) -> None:
        """Run the body: every table declared is read, here and in the model."""
        self.scheduler.take(execution)
        self.model.running.add(execution.position)
        seen = []
        for access in execution.unit.access:
            row = self.tables[access.table].read(KEY, execution.position)
            seen.append(0 if row is None else row[1])
            assert seen[-1] == self.model.read(access.table, execution.position), f"{execution} reads {access.table}"
        self.running[execution] = crc32(repr((execution.position, seen)).encode())

    def finish(self, execution: Execution) -> None:
        number, at = self.running.pop(execution), execution.position
        aborted, emits = number % 7 == 0, number % 3 > 0
        keep_older = (oldest := self.scheduler.oldest()) is not None and oldest < at
        for access in execution.unit.access if not aborted else ():
            if access.write:
                value = crc32(access.table.encode(), number)
                table = self.tables[access.table]
                table.commit({KEY: table.schema.row._make((KEY, value, None, None))}, at, self.sequence, keep_older)
                self.model.versions.append((at, access.table, value))
        relation = self.app.streams["s0"].relation
        outputs = {}
        for name in execution.unit.outputs if emits and not aborted else ():
            outputs[name] = Batch(
                self.app.streams[name].relation, execution.batch_id, (relation.row._make((0, number)),)
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
        for name, table in pair.tables.items():
            row = table.newest(KEY)
            assert (0 if row is None else row[1]) == pair.model.read(name, 1 << 60)
