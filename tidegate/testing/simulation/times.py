"""Some simulated dataflows measure time: windows and joins over event time, in chains and behind filters, and watermarks.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import gcd
from typing import Any

from tidegate import windows as w
from tidegate.dataflows.graph import Graph
from tidegate.streams.windows import WindowSpec, window
from tidegate.streams.windows.declare.joins import join
from tidegate.streams.windows.declare.scales import Shifted
from tidegate.testing.driver import Advance, Input, Push
from tidegate.testing.simulation.apps import declarable
from tidegate.testing.simulation.specs import AppSpec, FlowSpec, Op, ProcedureSpec
from tidegate.testing.simulation.world import World

PACE = 10  # how far time comes with each batch-id


def with_time(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which some dataflows measure time."""
    rng = random.Random(f"time {seed}")
    if rng.random() < 0.5:
        return spec
    return replace(spec, flows=tuple(_in_flow(rng, world, flow) for flow in spec.flows))


def _in_flow(rng: random.Random, world: World, flow: FlowSpec) -> FlowSpec:
    for place, procedure in enumerate(flow.procedures):
        changed = _in_procedure(rng, procedure)
        candidate = replace(
            flow, timed=True, procedures=(*flow.procedures[:place], changed, *flow.procedures[place + 1 :])
        )
        if declarable(world, candidate):
            flow = candidate
    return flow


def _in_procedure(rng: random.Random, procedure: ProcedureSpec) -> ProcedureSpec:
    """It emits rows whose times come forward; perhaps it has a window over event time, or a join."""
    procedure = replace(procedure, near=True, drops=rng.random() < 0.3)
    if rng.random() < 0.35:
        return procedure
    ops = procedure.ops if procedure.window is not None else (Op("window"), *procedure.ops)
    if len(procedure.inputs) == 2 and rng.random() < 0.5:
        mode: Any = rng.choice(["coordinated", "coordinated", "best_effort"])
        how: Any = rng.choice(["inner", "left", "full"])
        apart: list[dict[str, Any]] = [{"within": 8}, {"time": 20}, {"time": 20, "slide": 10}]
        lengths = apart[0] if mode == "best_effort" else rng.choice(apart)
        left, right = procedure.inputs
        joined = join(left, right, left_time="x", right_time="x", mode=mode, how=how, delay=15, **lengths)
        return replace(procedure, ops=ops, window=joined)
    kinds: list[dict[str, Any]] = [
        {"time": 20}, {"time": 20}, {"time": 30, "slide": 10}, {"time": 10, "slide": 25}, {"session": 12},
        {"landmark": 40, "slide": 20}, {"time": 30, "slide_rows": 2}, {"count": 3, "slide_time": 20}, {"count": 3},
    ]  # fmt: skip
    compute = rng.choice([None, {"n": w.count(), "total": w.sum("x")}, {"middle": w.median("x")}])
    options: dict[str, Any] = {
        "on": "x",
        "by": rng.choice([(), ("k",)]),
        "delay": rng.choice([0, 0, 15, 40]),
        "compute": compute,
    }
    return replace(procedure, ops=ops, window=window(rng.choice(procedure.inputs), **rng.choice(kinds), **options))


def with_edges(seed: int, spec: AppSpec, world: World) -> AppSpec:
    """``spec``, in which some windows begin elsewhere, or fire where rows do not fill them."""
    rng = random.Random(f"edges {seed}")
    flows = []
    for flow in spec.flows:
        for place, procedure in enumerate(flow.procedures):
            changed = replace(procedure, window=_with_edge(rng, procedure.window))
            procedures = (*flow.procedures[:place], changed, *flow.procedures[place + 1 :])
            candidate = replace(flow, procedures=procedures)
            if changed != procedure and declarable(world, candidate):
                flow = candidate
        flows.append(flow)
    return replace(spec, flows=tuple(flows))


def _with_edge(rng: random.Random, spec: Any) -> Any:
    if not isinstance(spec, WindowSpec) or rng.random() < 0.5:
        return spec
    if spec.kind == "count":
        return replace(spec, partial=True)
    if spec.kind == "time" and spec.compute is not None and rng.random() < 0.7:
        return _refining(rng, spec)
    if spec.kind in ("time", "landmark") and spec.by_time:
        return replace(spec, scale=Shifted(spec.slide // 3 + 1, spec.timed))
    return spec


def _refining(rng: random.Random, spec: WindowSpec) -> WindowSpec:
    """It fires early, or again, or both."""
    unit = gcd(spec.size, spec.slide)
    early = None if rng.random() < 0.4 else unit if unit % 5 else unit // 5
    if spec.on is None or (early is not None and rng.random() < 0.5):
        return replace(spec, emit_every=early or unit)
    return replace(spec, emit_every=early, late="refire", refire=(early or unit) * rng.randint(1, 4))


def in_time(seed: int, flow: FlowSpec, border: str, graph: Graph, inputs: list[Input]) -> list[Input]:
    """The same pushes with times that come forward, and watermarks in between. Ids are doubled, to leave room for them."""
    if not flow.timed:
        return inputs
    rng = random.Random(f"times {seed} {border}")
    found: list[Input] = []
    reached, told, numbers = 0, len(graph.times.axes.get(border, ())) == 1, dict[Any, Push]()
    for item in inputs:
        assert isinstance(item, Push)
        if item.batch_id in numbers:
            found.append(numbers[item.batch_id])
            continue
        place = len(found) if item.batch_id is None else 2 * item.batch_id
        rows = tuple((k, PACE * place + rng.randrange(30), j) for k, _, j in item.rows)
        push = Push(border, rows, None if item.batch_id is None else place)
        found.append(push)
        if item.batch_id is not None:
            numbers[item.batch_id] = push
        if told and random.Random(f"{seed} {place}").random() < 0.4:
            reached = max(reached, PACE * place + rng.randrange(-20, 25))
            found.append(Advance(border, reached, None if item.batch_id is None else place + 1))
    return found
