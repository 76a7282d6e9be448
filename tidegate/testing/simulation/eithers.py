"""Some simulated dataflows get a procedure that runs for each batch of either of its inputs.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tidegate.testing.simulation.apps import declarable
from tidegate.testing.simulation.specs import AppSpec, FlowSpec, ProcedureSpec
from tidegate.testing.simulation.world import STREAMS, World

TRIES = 6


def with_eithers(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which some procedures have become either-procedures."""
    rng = random.Random(f"any {seed}")
    if rng.random() < 0.6:
        return spec
    flows = [_with_either(rng, world, flow, f"s{STREAMS - 1 - n}") for n, flow in enumerate(spec.flows)]
    return replace(spec, flows=tuple(flows))


def _with_either(rng: random.Random, world: World, flow: FlowSpec, fresh: str) -> FlowSpec:
    for _ in range(TRIES):
        borders = (*flow.borders, fresh) if rng.random() < 0.5 else flow.borders
        procedures = list(flow.procedures)
        for _ in range(rng.choice([1, 1, 2])):
            place = rng.randrange(len(procedures))
            known = [*borders, *(s for p in procedures[:place] for s in p.outputs)]
            procedures[place] = _either(rng, procedures[place], known)
        candidate = replace(flow, borders=borders, procedures=tuple(procedures))
        if declarable(world, candidate):
            return candidate
    return flow


def _either(rng: random.Random, procedure: ProcedureSpec, known: list[str]) -> ProcedureSpec:
    """The procedure over two or three streams, those it reads among them."""
    inputs = {s for s in procedure.inputs if s in known}
    wanted = min(rng.choice([2, 2, 3]), len(known))
    while len(inputs) < wanted:
        inputs.add(rng.choice(known))
    return replace(procedure, inputs=tuple(sorted(inputs)), either=True)
