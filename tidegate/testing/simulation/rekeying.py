"""In some simulated dataflows, interior streams have a key of their own.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tidegate.testing.simulation.apps import WRITES, declarable
from tidegate.testing.simulation.specs import Access, AppSpec, FlowSpec, Op, ProcedureSpec
from tidegate.testing.simulation.world import PARTITIONED, World

TRIES = 4


def with_rekeying(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which what is emitted on some streams is split by a key of its own."""
    rng = random.Random(f"rekeying {seed}")
    if rng.random() < 0.5:
        return spec
    flows = [_in_flow(rng, world, flow, n) for n, flow in enumerate(spec.flows)]
    return replace(spec, flows=tuple(flows))


def _in_flow(rng: random.Random, world: World, flow: FlowSpec, n: int) -> FlowSpec:
    if rng.random() < 0.4:
        flow = _with_consumer(rng, world, flow, n)
    emitted = [stream for procedure in flow.procedures for stream in procedure.outputs]
    for _ in range(TRIES if emitted else 0):
        streams = rng.sample(emitted, min(rng.choice([1, 1, 1, 2]), len(emitted)))
        rekeyed = {stream: rng.choice(["k", "k", "k", "j"]) for stream in streams}
        candidate = _rekeyed(rng, flow, rekeyed)
        for answered in (candidate, replace(candidate, answers_by_key=True)):
            if declarable(world, answered):
                return answered
    return flow


def _with_consumer(rng: random.Random, world: World, flow: FlowSpec, n: int) -> FlowSpec:
    """The flow with one more procedure at its end, or two that are nested, perhaps with a person who decides."""
    names = [f"t{4 * n + i}" for i in range(4)]
    last = rng.choice(flow.procedures)
    if not last.outputs:
        changed = replace(last, outputs=(names[0],))
        flow = replace(flow, procedures=tuple(changed if p is last else p for p in flow.procedures))
        last = changed
    more = _consumer(rng, f"r{n}", last.outputs[0], names[1])
    candidates = [replace(flow, procedures=(*flow.procedures, more))]
    if more.outputs and rng.random() < 0.6:
        further = _consumer(rng, f"q{n}", names[1], names[2])
        nested = replace(flow, procedures=(*flow.procedures, more, further), nested=(*flow.nested, (f"r{n}", f"q{n}")))
        candidates.insert(0, nested)
        if flow.awaited is None and rng.random() < 0.6:
            decided = replace(further, inputs=(names[1], names[3]))
            asked = replace(nested, procedures=(*flow.procedures, more, decided), awaited=names[3])
            candidates.insert(0, asked)
    return next((candidate for candidate in candidates if declarable(world, candidate)), flow)


def _consumer(rng: random.Random, name: str, stream: str, output: str) -> ProcedureSpec:
    access = tuple(Access(table, rng.random() < 0.7) for table in PARTITIONED if rng.random() < 0.6)
    ops = [Op(rng.choice(WRITES) if a.write else "scan", a.table) for a in access for _ in range(2)]
    if rng.random() < 0.3:
        ops.insert(0, Op(rng.choice(["abort", "raise", "break"]), number=5))
    outputs = (output,) if rng.random() < 0.6 else ()
    return ProcedureSpec(name, (stream,), outputs, access, tuple(ops), on_failure=rng.choice(["dead_letter", "halt"]))


def _rekeyed(rng: random.Random, flow: FlowSpec, rekeyed: dict[str, str]) -> FlowSpec:
    behind = set(rekeyed)
    procedures = []
    for procedure in flow.procedures:
        if behind & set(procedure.inputs):
            behind |= set(procedure.outputs)
            access = tuple(_by_key(rng, flow, access) for access in procedure.access)
            procedure = replace(procedure, access=access, known=flow.borders)
        procedures.append(replace(procedure, rekeyed=tuple(s for s in procedure.outputs if s in rekeyed)))
    return replace(flow, procedures=tuple(procedures), rekeyed=tuple(rekeyed.items()))


def _by_key(rng: random.Random, flow: FlowSpec, access: Access) -> Access:
    if access.table not in PARTITIONED or access.how == "committed" or rng.random() < 0.25:
        return access
    if rng.random() < 0.2:
        return replace(access, how="named", by=("", f"{rng.choice(flow.borders)}.j"))
    return replace(access, how="partition", by=())
