"""Random apps as data, and how they become real ones.

Every procedure is a list of small operations over the tables it declared. It folds everything it sees (rows, its
batches, windows, time, chance) into one number, and what it writes, emits, refuses and fails at depends on that number:
a run that sees anything different from the serial one soon diverges from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from zlib import crc32

from tidegate.dataflows.app import AccessLike, App
from tidegate.dataflows.definitions import OnFailure, committed, either, partition
from tidegate.errors import ConstraintError, DeclarationError, StatementError
from tidegate.streams.windows import WindowSpec
from tidegate.streams.windows.state.tuples import TupleSlide
from tidegate.testing.simulation.windows import random_window
from tidegate.testing.simulation.world import PARTITIONED, PLAIN, SIDES, World
from tidegate.txn.transaction import Transaction

KEYS = 3  # values of k
IDS = 4  # values of id
TAGS = 4


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
    how: str = "table"  # table, partition or committed


@dataclass(frozen=True)
class ProcedureSpec:
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    access: tuple[Access, ...] = ()
    ops: tuple[Op, ...] = ()
    window: WindowSpec | None = None
    retries: int = 0
    on_failure: OnFailure = "dead_letter"
    either: bool = False


@dataclass(frozen=True)
class FlowSpec:
    keyed: bool
    borders: tuple[str, ...]
    procedures: tuple[ProcedureSpec, ...]
    nested: tuple[tuple[str, ...], ...] = ()
    awaited: str | None = None
    triggers: tuple[tuple[str, int], ...] = ()  # stream or "procedure.win", and which statement


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
            told += [f"  trigger on {on}: {TRIGGERS[number]}" for on, number in flow.triggers]
            told += [f"  {_describe(procedure)}" for procedure in flow.procedures]
        told += [f"call {_describe(procedure)}" for procedure in self.calls]
        return "\n".join(told)


def _describe(p: ProcedureSpec) -> str:
    access = ", ".join(f"{'writes' if a.write else 'reads'} {a.how} {a.table}" for a in p.access)
    ops = ", ".join(f"{op.kind} {op.table} {op.number}".replace("  ", " ") for op in p.ops)
    inputs = (" or " if p.either else ", ").join(p.inputs)
    return f"{p.name}({inputs}) -> ({', '.join(p.outputs)}) [{access}] {p.window or ''} do: {ops}"


@dataclass
class Simulated:
    """A real app and what a test must be able to do to it."""

    app: App
    broken: set[tuple[str, Any]] = field(default_factory=set)  # procedure and batch-id: raises until repaired

    def repair(self, dataflow: str) -> None:
        self.broken.clear()


# ---- making up an app


def random_app(rng: random.Random, world: World) -> AppSpec:
    """An app that can be declared: nested transactions that the rules refuse are left out."""
    tables = rng.sample([*PLAIN, *PARTITIONED], rng.randint(1, 3))
    if rng.random() < 0.5 and not set(tables) & set(PARTITIONED):
        tables[0] = rng.choice(list(PARTITIONED))
    sql = rng.random() < 0.1
    streams = (f"s{i}" for i in range(100))
    flows = [_random_flow(rng, world, n, tables, streams, sql) for n in range(rng.choice([1, 1, 2, 2, 3]))]
    calls = [
        ProcedureSpec(
            f"call{i}",
            access=(access := _random_access(rng, tables, keyed=True)),
            ops=_random_ops(rng, access, streaming=False, sql=sql, windowed=False),
            retries=rng.choice([0, 0, 2]),
            on_failure=rng.choice(["halt", "dead_letter"]),
        )
        for i in range(rng.randint(0, 2))
    ]
    return AppSpec(tuple(flows), tuple(calls), sql)


def _random_flow(
    rng: random.Random, world: World, n: int, tables: list[str], streams: Iterator[str], sql: bool
) -> FlowSpec:
    keyed = rng.random() < 0.6
    borders = [next(streams) for _ in range(rng.choice([1, 1, 1, 2]))]
    available = list(borders)
    procedures: list[ProcedureSpec] = []
    for i in range(rng.randint(1, 4)):
        fresh = [s for s in borders if not any(s in p.inputs for p in procedures)]
        inputs = {fresh[0] if fresh and (i == 0 or rng.random() < 0.5) else rng.choice(available)}
        if len(available) > 1 and rng.random() < 0.3:
            inputs.add(rng.choice(available))
        outputs = tuple(next(streams) for _ in range(rng.choice([0, 1, 1, 1, 2])))
        if sum(len(p.outputs) for p in procedures) + len(outputs) > 4:
            outputs = ()
        access = _random_access(rng, tables, keyed)
        ordered = tuple(sorted(inputs))
        windowed = rng.random() < 0.35
        procedures.append(
            ProcedureSpec(
                f"p{n}{i}",
                ordered,
                outputs,
                access,
                _random_ops(rng, access, streaming=True, sql=sql, windowed=windowed),
                random_window(rng, ordered) if windowed else None,
                rng.choice([0, 0, 1, 2]),
                rng.choice(["dead_letter", "dead_letter", "halt"]),
            )
        )
        available += outputs
    unread = [s for s in borders if not any(s in p.inputs for p in procedures)]
    if unread:
        last = procedures[-1]
        procedures[-1] = replace(last, inputs=tuple(sorted({*last.inputs, *unread})))
    flow = FlowSpec(keyed, tuple(borders), tuple(procedures))
    flow = _with_nesting(rng, world, flow, streams)
    return _with_triggers(rng, world, flow) if sql else flow


def _with_nesting(rng: random.Random, world: World, flow: FlowSpec, streams: Iterator[str]) -> FlowSpec:
    names = [p.name for p in flow.procedures]
    if len(names) < 2 or rng.random() < 0.3:
        return flow
    start = rng.randrange(len(names) - 1)
    group = tuple(names[start : start + rng.randint(2, len(names))])
    nested = replace(flow, nested=(group,))
    candidates = [nested]
    if rng.random() < 0.6:
        decisions, member = next(streams), rng.choice(group[1:])
        waiting = tuple(replace(p, inputs=(*p.inputs, decisions)) if p.name == member else p for p in flow.procedures)
        candidates.insert(0, replace(nested, procedures=waiting, awaited=decisions))
    for candidate in candidates:
        if declarable(world, candidate):
            return candidate
    return flow


def _with_triggers(rng: random.Random, world: World, flow: FlowSpec) -> FlowSpec:
    choices = [s for p in flow.procedures for s in p.outputs] + list(flow.borders)
    choices += [f"{p.name}.win" for p in flow.procedures if p.window is not None]
    candidate = replace(flow, triggers=((rng.choice(choices), rng.randrange(len(TRIGGERS))),))
    return candidate if rng.random() < 0.4 and declarable(world, candidate) else flow


def declarable(world: World, flow: FlowSpec) -> bool:
    """Do the rules allow this dataflow? A trigger may name columns that its window does not have."""
    try:
        build(AppSpec((flow,)), world).app.graph()
    except (DeclarationError, StatementError):
        return False
    return True


def _random_access(rng: random.Random, tables: list[str], keyed: bool) -> tuple[Access, ...]:
    found = []
    for table in tables:
        chance = rng.random()
        if chance < 0.35:
            continue
        by_key = keyed and table in PARTITIONED and rng.random() < 0.75
        found.append(Access(table, chance > 0.65, "partition" if by_key else "table"))
    if rng.random() < 0.15:
        chance = rng.random()
        how = "committed" if chance < 0.5 else "table"
        found += [Access(side, how == "table", how) for side in SIDES]
    return tuple(found)


READS = ("get", "get", "scan", "find", "count")
WRITES = ("upsert", "upsert", "insert", "try_insert", "update", "delete", "add", "delete_where", "update_each")
FLOW = ("chance", "now", "abort", "raise", "flaky", "break")


def _random_ops(
    rng: random.Random, access: tuple[Access, ...], *, streaming: bool, sql: bool, windowed: bool
) -> tuple[Op, ...]:
    ops = [Op("window")] if windowed else []
    for one in access:
        if one.table in SIDES:
            if one.table == SIDES[0]:
                ops.append(Op("move" if one.write else "audit"))
            continue
        for _ in range(rng.randint(1, 3)):
            if sql and rng.random() < 0.3:
                ops.append(Op("sql_write" if one.write else "sql_read", one.table, rng.randrange(100)))
            else:
                ops.append(Op(rng.choice([*READS, *WRITES, *WRITES] if one.write else READS), one.table))
    if rng.random() < 0.6:
        kind = rng.choice(FLOW)
        if streaming or kind != "break":
            ops.append(Op(kind, number=rng.randint(3, 9)))
    rng.shuffle(ops)
    return tuple(ops)


# ---- what procedures do

READ_SQL = (
    "SELECT v, d FROM {table} WHERE id = $i",
    "SELECT id, v FROM {table} WHERE tag = $t ORDER BY id DESC",
    "SELECT sum(d), count(*), max(v) FROM {table}",
    "SELECT tag, sum(d * v) FROM {table} WHERE v > $n GROUP BY tag",
)
WRITE_SQL = (
    "UPDATE {table} SET v = v + $n WHERE id = $i AND v < 100000",
    "UPDATE {table} SET d = d * 1.1 WHERE tag = $t",
    "DELETE FROM {table} WHERE id = $i",
    "DELETE FROM {table} WHERE v % 5 = $t",
    "UPDATE {table} SET d = (SELECT sum(d) FROM {table}) / 3 WHERE v % 3 = 0",
)
TRIGGERS = (
    "INSERT INTO plain (id, v, d, tag) "
    "SELECT x % 4, max(x) % 1000, sum(x) / 7.0, max(k) FROM {on} GROUP BY 1 "
    "ON CONFLICT (id) DO UPDATE SET v = excluded.v, d = plain.d + excluded.d",
    "UPDATE plain SET v = v + (SELECT count(*) FROM {on}) WHERE tag = 1",
)


class Work:
    """One running procedure: the number everything is folded into, and the operations."""

    def __init__(self, spec: ProcedureSpec, txn: Transaction, seen: Any, key: Any, simulated: Simulated) -> None:
        self.spec = spec
        self.txn = txn
        self.key = key
        self.simulated = simulated
        self.number = crc32(repr((spec.name, txn.batch_id, key, seen)).encode())
        self.how = {access.table: access.how for access in spec.access}

    def fold(self, seen: Any) -> int:
        """Fold in what was seen; returns the new number."""
        self.number = crc32(repr(seen).encode(), self.number)
        return self.number

    def run(self) -> int:
        for op in self.spec.ops:
            getattr(self, f"do_{op.kind}")(op)
        return self.number

    def key_of(self, table: str) -> Any:
        number = self.fold(table)
        if table not in PARTITIONED:
            return number % IDS
        return (self.key if self.how[table] == "partition" else number % KEYS, number // 8 % IDS)

    def row_of(self, table: str) -> tuple[Any, ...]:
        key = self.key_of(table)
        number = self.fold("row")
        tag = number // 16 % (TAGS + 1)
        values = (number % 1000, number % 97 / 10, tag if tag < TAGS else None)
        return (*key, *values) if isinstance(key, tuple) else (key, *values)

    def do_get(self, op: Op) -> None:
        self.fold(_plain(self.txn.get(op.table, self.key_of(op.table))))

    def do_scan(self, op: Op) -> None:
        self.fold([tuple(row) for row in self.txn.scan(op.table)])

    def do_find(self, op: Op) -> None:
        self.fold([tuple(row) for row in self.txn.scan(op.table, tag=self.number % TAGS)])

    def do_count(self, op: Op) -> None:
        self.fold(self.txn.count(op.table, tag=self.number % TAGS))

    def do_upsert(self, op: Op) -> None:
        self.txn.upsert(op.table, self.row_of(op.table))

    def do_insert(self, op: Op) -> None:
        self.txn.insert(op.table, self.row_of(op.table))

    def do_try_insert(self, op: Op) -> None:
        try:
            self.txn.insert(op.table, self.row_of(op.table))
        except ConstraintError as error:
            self.fold(str(error))

    def do_update(self, op: Op) -> None:
        key = self.key_of(op.table)
        self.fold(_plain(self.txn.update(op.table, key, v=self.number % 1000, d=self.number % 89 / 10)))

    def do_add(self, op: Op) -> None:
        key = self.key_of(op.table)
        row = self.txn.get(op.table, key)
        if row is not None:
            self.txn.update(op.table, key, v=(row.v * 3 + self.number) % 1000)

    def do_delete(self, op: Op) -> None:
        self.fold(self.txn.delete(op.table, self.key_of(op.table)))

    def do_delete_where(self, op: Op) -> None:
        self.fold(self.txn.delete_where(op.table, tag=self.number % TAGS))

    def do_update_each(self, op: Op) -> None:
        """As ``add``, for a few keys, perhaps one of them twice."""
        keys = [self.key_of(op.table) for _ in range(self.number % 5)]
        made = self.txn.update_each(op.table, keys, v=lambda row: (row.v * 3 + 1) % 1000, d=self.number % 83 / 10)
        self.fold([tuple(row) for row in made])

    def do_move(self, op: Op) -> None:
        """Keep both sides equal."""
        key, value = self.number % IDS, self.number % 1000
        for side in SIDES:
            self.fold(_plain(self.txn.get(side, key)))
            self.txn.upsert(side, (key, value))

    def do_audit(self, op: Op) -> None:
        """A committed read may see any consistent state, so its result must not be folded in."""
        left, right = ([tuple(row) for row in self.txn.scan(side)] for side in SIDES)
        if left != right:
            raise AssertionError(f"a committed read saw two sides of different transactions: {left} and {right}")

    def do_sql_read(self, op: Op) -> None:
        self._sql(READ_SQL[op.number % len(READ_SQL)], op.table)

    def do_sql_write(self, op: Op) -> None:
        self._sql((*READ_SQL, *WRITE_SQL, *WRITE_SQL)[op.number % (len(READ_SQL) + 2 * len(WRITE_SQL))], op.table)

    def _sql(self, text: str, table: str) -> None:
        number = self.fold(text)
        values = {"i": number % IDS, "t": number // 8 % TAGS, "n": number // 64 % 100}
        named = {name: value for name, value in values.items() if f"${name}" in text}
        rows = self.txn.execute(text.format(table=table), **named)
        self.fold(([tuple(row) for row in rows], rows.count))

    def do_window(self, op: Op) -> None:
        slide = self.txn.window("win")
        if slide.results is not None:
            self.fold([tuple(row) for row in slide.results])
        elif isinstance(slide, TupleSlide):
            extents = [[tuple(row) for row in slide.extent(number)] for number in slide.fired]
            self.fold((extents, [tuple(row) for row in slide.rows], [tuple(row) for row in slide.expired]))
        else:
            self.fold([(e.number, e.key, e.start, e.end, [tuple(row) for row in e.rows]) for e in slide.windows])

    def do_chance(self, op: Op) -> None:
        self.fold((self.txn.random.random(), self.txn.uuid()))

    def do_now(self, op: Op) -> None:
        self.fold(self.txn.now)

    def do_abort(self, op: Op) -> None:
        if self.number % op.number == 0:
            self.txn.abort(f"number {self.number}")

    def do_raise(self, op: Op) -> None:
        if self.number % op.number == 0 and (self.spec.on_failure == "dead_letter" or not self.spec.inputs):
            raise ValueError(f"number {self.number}")

    def do_flaky(self, op: Op) -> None:
        if self.txn.attempts < self.spec.retries:
            raise OSError("try again")

    def do_break(self, op: Op) -> None:
        if (self.spec.name, self.txn.batch_id) in self.simulated.broken:
            raise OSError("out of order")

    def emit(self) -> None:
        for stream in self.spec.outputs:
            number = self.fold(stream)
            rows = [(self.key if self.key is not None else number % KEYS, number // (5 + i)) for i in range(number % 4)]
            self.txn.emit(stream, rows)


def _plain(row: Any) -> Any:
    return None if row is None else tuple(row)


# ---- declaring it


@lru_cache(maxsize=32)
def build(spec: AppSpec, world: World) -> Simulated:
    """The real app. Definitions are data, so that all runs of a spec share it."""
    simulated = Simulated(world.app())
    app = simulated.app
    for flow in spec.flows:
        key = "k" if flow.keyed else None
        for name in flow.borders:
            world.stream(app, name, border=True, key=key)
        if flow.awaited is not None:
            world.stream(app, flow.awaited, border=True, key=key, awaited=True)
        for procedure in flow.procedures:
            for name in procedure.outputs:
                world.stream(app, name, border=False, key=None)
        for procedure in flow.procedures:
            _declare(simulated, procedure, _streaming(procedure, simulated))
        for on, number in flow.triggers:
            app.trigger(on, TRIGGERS[number].format(on=on.rpartition(".")[2]))
        for group in flow.nested:
            app.nested(*group)
    for call in spec.calls:
        _declare(simulated, call, _called(call, simulated))
    return simulated


def _declare(simulated: Simulated, spec: ProcedureSpec, function: Callable[..., Any]) -> None:
    function.__name__ = spec.name
    reads: list[AccessLike] = []
    writes: list[AccessLike] = []
    by = None if spec.inputs else "k"
    for access in spec.access:
        like: AccessLike = access.table
        if access.how != "table":
            like = partition(access.table, by) if access.how == "partition" else committed(access.table)
        (writes if access.write else reads).append(like)
    simulated.app.procedure(
        inputs=either(*spec.inputs) if spec.either else spec.inputs,
        outputs=spec.outputs,
        reads=reads,
        writes=writes,
        retries=spec.retries,
        on_failure=spec.on_failure,
        windows={} if spec.window is None else {"win": spec.window},
    )(function)


def _streaming(spec: ProcedureSpec, simulated: Simulated) -> Callable[..., Any]:
    def body(txn: Transaction, *batches: Any) -> None:
        work = Work(spec, txn, [[tuple(row) for row in batch] for batch in batches], txn.key, simulated)
        work.run()
        work.emit()

    return body


def _called(spec: ProcedureSpec, simulated: Simulated) -> Callable[..., Any]:
    def body(txn: Transaction, k: int, x: int) -> int:
        return Work(spec, txn, x, k, simulated).run()

    return body
