"""Some simulated procedures look for patterns in their rows.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tidegate.streams.windows.patterns.declare import PatternSpec, pattern
from tidegate.testing.simulation.apps import declarable
from tidegate.testing.simulation.specs import AppSpec, FlowSpec, Op, ProcedureSpec
from tidegate.testing.simulation.world import World

TEXTS = (
    "SEQ(a, b)", "SEQ(a, !c, b)", "SEQ(a, b+, c)", "SEQ(a, !b)", "AND(a, b)", "SEQ(a, OR(b, c))", "SEQ(a, b{2})",
    "SEQ(a, c, !b)",
)  # fmt: skip
CONDITIONS = {"a": "x % 3 = 0", "b": "x % 3 = 1 AND x > prev(x)", "c": "x % 2 = 1 AND (j IS NULL OR j > 0)"}


def with_patterns(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which some procedures look for patterns."""
    rng = random.Random(f"patterns {seed}")
    if rng.random() < 0.6:
        return spec
    return replace(spec, flows=tuple(_in_flow(rng, world, flow) for flow in spec.flows))


def _in_flow(rng: random.Random, world: World, flow: FlowSpec) -> FlowSpec:
    for place, procedure in enumerate(flow.procedures):
        if rng.random() < 0.5:
            continue
        changed = _in_procedure(rng, procedure, flow.timed)
        candidate = replace(flow, procedures=(*flow.procedures[:place], changed, *flow.procedures[place + 1 :]))
        if declarable(world, candidate):
            flow = candidate
    return flow


def _in_procedure(rng: random.Random, procedure: ProcedureSpec, timed: bool) -> ProcedureSpec:
    ops = procedure.ops if procedure.window is not None else (Op("window"), *procedure.ops)
    return replace(procedure, ops=ops, window=random_pattern(rng, procedure, timed))


def random_pattern(rng: random.Random, procedure: ProcedureSpec, timed: bool) -> PatternSpec:
    """Over one of the inputs, or over all inputs of an either-procedure."""
    text = rng.choice(TEXTS if timed else [text for text in TEXTS if not text.endswith("!b)")])
    options: dict[str, Any] = {}
    if timed:
        options = {
            "on": "x", "within": rng.choice([15, 40, 90]), "delay": rng.choice([0, 0, 15]), "timeout": rng.random() < 0.5,
        }  # fmt: skip
    several = procedure.either and rng.random() < 0.5
    selected = rng.choice(["any", "next", "next", "strict"] if timed else ["next", "strict"])
    return pattern(
        procedure.inputs if several else rng.choice(procedure.inputs),
        match=text,
        define={name: condition for name, condition in CONDITIONS.items() if name in text},
        by=rng.choice([(), "k"]),
        select=selected,  # type: ignore[arg-type]
        after=rng.choice(["no_skip", "to_next", "past_last"]),
        consume=rng.choice([(), "a"]),
        measures={"n": "count(*)", "total": "sum(a.x)"},
        max_partials=50,
        **options,
    )
