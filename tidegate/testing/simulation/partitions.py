"""Some simulated procedures name the partitions they work on by values in their rows, or in their arguments.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tidegate.testing.simulation.apps import declarable
from tidegate.testing.simulation.specs import Access, AppSpec, FlowSpec, ProcedureSpec
from tidegate.testing.simulation.world import PARTITIONED, World

TRIES = 3


def with_partitions(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which some access is by partitions that are named."""
    rng = random.Random(f"partitions {seed}")
    if rng.random() < 0.4:
        return spec
    flows = tuple(_in_flow(rng, world, flow) for flow in spec.flows)
    calls = tuple(
        replace(call, access=tuple(_named(rng, access, [("k", "j")], 0.6) for access in call.access))
        for call in spec.calls
    )
    return replace(spec, flows=flows, calls=calls)


def _in_flow(rng: random.Random, world: World, flow: FlowSpec) -> FlowSpec:
    for place, procedure in enumerate(flow.procedures):
        for _ in range(TRIES):
            changed = _in_procedure(rng, flow, procedure)
            candidate = replace(flow, procedures=(*flow.procedures[:place], changed, *flow.procedures[place + 1 :]))
            if changed.access != procedure.access and declarable(world, candidate):
                flow = candidate
                break
    return flow


def _in_procedure(rng: random.Random, flow: FlowSpec, procedure: ProcedureSpec) -> ProcedureSpec:
    choices: list[tuple[str, ...]] = [("k",), ("j",), ("k", "j"), ("k", "j")]
    choices += [(f"{border}.k", f"{border}.j") for border in flow.borders]
    if len(flow.borders) > 1:
        choices.append(tuple(f"{border}.j" for border in flow.borders))
    if flow.keyed:
        choices += [("", "j"), ("", f"{flow.borders[0]}.j")]
    access = tuple(_named(rng, access, choices, 0.75) for access in procedure.access)
    return replace(procedure, access=access, known=flow.borders)


def _named(rng: random.Random, access: Access, choices: list[tuple[str, ...]], likely: float) -> Access:
    if access.table not in PARTITIONED or access.how == "committed" or rng.random() > likely:
        return access
    return replace(access, how="named", by=rng.choice(choices))
