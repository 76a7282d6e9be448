"""Random apps as data.

Every procedure is a list of small operations over the tables it declared. It folds everything it sees (rows, its
batches, windows, time, chance) into one number, and what it writes, emits, refuses and fails at depends on that number:
a run that sees anything different from the serial one soon diverges from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import OnFailure
from tidegate.streams.windows.declare.declared import Declared

KEYS = 3  # values of k
IDS = 4  # values of id
TAGS = 4
COLUMN = {"k": 0, "x": 1, "j": 2}  # of every stream

Rows = Sequence[tuple[Any, ...]]
TRIGGERS = (
    "INSERT INTO plain (id, v, d, tag) "
    "SELECT x % 4, max(x) % 1000, sum(x) / 7.0, max(k) FROM {on} GROUP BY 1 "
    "ON CONFLICT (id) DO UPDATE SET v = excluded.v, d = plain.d + excluded.d",
    "UPDATE plain SET v = v + (SELECT count(*) FROM {on}) WHERE tag = 1",
)


@dataclass(frozen=True)
class Op:
    """One thing a procedure does. ``number``: how likely (abort, raise), or which statement."""

    kind: str
    table: str = ""
    number: int = 0


@dataclass(frozen=True)
class Access:
    table: str
    write: bool
    how: str = "table"  # table, partition, named or committed
    by: tuple[str, ...] = ()  # named: the columns or arguments whose values name partitions; "" is the batch's key


@dataclass(frozen=True)
class ProcedureSpec:
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    access: tuple[Access, ...] = ()
    ops: tuple[Op, ...] = ()
    window: Declared | None = None
    retries: int = 0
    on_failure: OnFailure = "dead_letter"
    either: bool = False
    known: tuple[str, ...] = ()  # border streams: their rows may name partitions
    near: bool = False  # x of the rows it emits is a time that comes forward
    drops: bool = False  # it emits nothing for most batches
    rekeyed: tuple[str, ...] = ()  # outputs with a key of their own
    timers: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlowSpec:
    keyed: bool
    borders: tuple[str, ...]
    procedures: tuple[ProcedureSpec, ...]
    nested: tuple[tuple[str, ...], ...] = ()
    awaited: str | None = None
    rekeyed: tuple[tuple[str, str], ...] = ()  # interior streams with a key of their own, and its column
    answers_by_key: bool = False  # have the answers a key, even if the borders have none?
    triggers: tuple[tuple[str, int], ...] = ()  # stream or "procedure.win", and which statement
    timed: bool = False  # x is a time
    late: bool = False  # only timers feed it


@dataclass(frozen=True)
class AppSpec:
    flows: tuple[FlowSpec, ...]
    calls: tuple[ProcedureSpec, ...] = ()
    sql: bool = False

    def procedures(self) -> Iterator[ProcedureSpec]:
        for flow in self.flows:
            yield from flow.procedures
        yield from self.calls

    def __str__(self) -> str:
        told = []
        for flow in self.flows:
            told.append(f"dataflow over {', '.join(flow.borders)}{' by k' if flow.keyed else ''}")
            told += [f"  nested: {' + '.join(group)}" for group in flow.nested]
            told += [f"  awaited: {flow.awaited}"] if flow.awaited else []
            told += [f"  {stream} by {column}" for stream, column in flow.rekeyed]
            told += [f"  trigger on {on}: {TRIGGERS[number]}" for on, number in flow.triggers]
            told += [f"  {_describe(procedure)}" for procedure in flow.procedures]
        told += [f"call {_describe(procedure)}" for procedure in self.calls]
        return "\n".join(told)


def _describe(p: ProcedureSpec) -> str:
    access = ", ".join(f"{'writes' if a.write else 'reads'} {a.how} {a.table}{a.by or ''}" for a in p.access)
    ops = ", ".join(f"{op.kind} {op.table} {op.number}".replace("  ", " ") for op in p.ops)
    inputs = (" or " if p.either else ", ").join(p.inputs)
    ops += " timers" * bool(p.timers) + " near" * p.near + " drops" * p.drops
    return f"{p.name}({inputs}) -> ({', '.join(p.outputs)}) [{access}] {p.window or ''} do: {ops}"


@dataclass
class Simulated:
    """A real app and what a test must be able to do to it."""

    app: App
    broken: set[tuple[str, Any]] = field(default_factory=set)  # procedure and batch-id: raises until repaired

    def repair(self, dataflow: str) -> None:
        self.broken.clear()
