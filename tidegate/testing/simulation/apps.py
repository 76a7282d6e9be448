"""Random apps, made up from a seed, and how they become real ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tidegate.dataflows.access import AccessLike
from tidegate.dataflows.definitions import committed, either, partition
from tidegate.errors import DeclarationError, StatementError
from tidegate.testing.simulation.specs import TRIGGERS, Access, AppSpec, FlowSpec, Op, ProcedureSpec, Simulated
from tidegate.testing.simulation.windows import random_window
from tidegate.testing.simulation.work import Work
from tidegate.testing.simulation.world import PARTITIONED, PLAIN, SIDES, World
from tidegate.txn.transaction import Transaction

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


# ---- declaring it


@lru_cache(maxsize=32)
def build(spec: AppSpec, world: World) -> Simulated:
    """The real app. Definitions are data, so that all runs of a spec share it."""
    simulated = Simulated(world.app(views=len(spec.calls) % 3 == 1))
    app = simulated.app
    for flow in spec.flows:
        for name in flow.borders if flow.late else ():  # before those who set timers for it
            world.stream(app, name, border=True, key="k" if flow.keyed else None)
    for number, flow in enumerate(spec.flows):
        key = "k" if flow.keyed else None
        for name in () if flow.late else flow.borders:
            world.stream(app, name, border=True, key=key, priority=number % 3)
        if flow.awaited is not None:
            world.stream(app, flow.awaited, border=True, key="k" if flow.answers_by_key else key, awaited=True)
        own = dict(flow.rekeyed)
        for procedure in flow.procedures:
            for name in procedure.outputs:
                world.stream(app, name, border=False, key=own.get(name))
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
    for access in spec.access:
        (writes if access.write else reads).extend(_likes(access, streaming=bool(spec.inputs)))
    simulated.app.procedure(
        inputs=either(*spec.inputs) if spec.either else spec.inputs,
        outputs=spec.outputs,
        reads=reads,
        writes=writes,
        retries=spec.retries,
        on_failure=spec.on_failure,
        timers=spec.timers,
        windows={} if spec.window is None else {"win": spec.window},
    )(function)


def _likes(access: Access, streaming: bool) -> list[AccessLike]:
    if access.how == "table":
        return [access.table]
    if access.how == "committed":
        return [committed(access.table)]
    if access.how == "partition":
        return [partition(access.table, None if streaming else "k")]
    return [partition(access.table, name or None) for name in access.by]


def _streaming(spec: ProcedureSpec, simulated: Simulated) -> Callable[..., Any]:
    def body(txn: Transaction, *batches: Any) -> None:
        seen = [[tuple(row) for row in batch] for batch in batches]
        border = [row for name, rows in zip(spec.inputs, seen, strict=True) if name in spec.known for row in rows]
        work = Work(spec, txn, seen, txn.key, simulated, border)
        work.run()
        work.emit()

    return body


def _called(spec: ProcedureSpec, simulated: Simulated) -> Callable[..., Any]:
    def body(txn: Transaction, k: int, x: int, j: int | None) -> int:
        return Work(spec, txn, x, k, simulated, [(k, x, j)]).run()

    return body
