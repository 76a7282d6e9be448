"""Some simulated apps look ahead: windows over functions, evaluated for batches that wait, on this machine.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidegate.streams.windows import WindowSpec, window
from tidegate.streams.windows.declare.functions import Decomposed, Extent, Function, Whole
from tidegate.testing.simulation.apps import declarable
from tidegate.testing.simulation.specs import AppSpec, FlowSpec, Op, ProcedureSpec
from tidegate.testing.simulation.world import World

COLUMNS = "n BIGINT, total BIGINT"


def summed(extent: Extent) -> tuple[int, int]:
    return len(extent), int(extent["x"].sum())


def raises_now_and_then(extent: Extent) -> tuple[int, int]:
    n, total = summed(extent)
    if total % 5 == 0:
        raise ValueError(f"{n} rows add up to {total}")
    return n, total


def added(panes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(n for n, _ in panes), sum(total for _, total in panes)


WHOLE, DECOMPOSED = Whole(summed, COLUMNS), Decomposed(summed, added, COLUMNS)
RAISES = Whole(raises_now_and_then, COLUMNS)


def with_look_ahead(seed: int, spec: AppSpec, world: World) -> tuple[AppSpec, dict[str, Any]]:
    """``spec`` with look-ahead windows, and the settings for them; most seeds have none."""
    rng = random.Random(f"ahead {seed}")
    if rng.random() < 0.65:
        return spec, {}
    flows = tuple(_with_windows(rng, flow, world) for flow in spec.flows)
    return replace(spec, flows=flows), {"backend": "auto", "look_ahead": rng.choice([2, 3, 8, 256])}


def _with_windows(rng: random.Random, flow: FlowSpec, world: World) -> FlowSpec:
    for place, procedure in enumerate(flow.procedures):
        changed = _with_window(rng, procedure, flow)
        procedures = (*flow.procedures[:place], changed, *flow.procedures[place + 1 :])
        candidate = replace(flow, procedures=procedures)
        if changed is not procedure and declarable(world, candidate):
            flow = candidate
    return flow


def _with_window(rng: random.Random, procedure: ProcedureSpec, flow: FlowSpec) -> ProcedureSpec:
    triggered = any(on == f"{procedure.name}.win" for on, _ in flow.triggers)
    if triggered or not procedure.inputs or rng.random() < 0.2:
        return procedure
    functions: list[Function] = [WHOLE, DECOMPOSED, DECOMPOSED]
    if procedure.on_failure == "dead_letter":
        functions.append(RAISES)
    function = rng.choice(functions)
    made: WindowSpec
    if procedure.window is not None and procedure.window.compute is not None:
        made = replace(procedure.window, compute=function)
    else:
        size, by = rng.randint(1, 5), rng.choice([(), ("k",)])
        options: list[dict[str, Any]] = [{"count": size}, {"time": f"{size}s", "slide": "1s"}, {"session": "1s"}]
        made = window(rng.choice(procedure.inputs), by=by, compute=function, **rng.choice(options))
    if procedure.window is not None:
        return replace(procedure, window=made)
    return replace(procedure, window=made, ops=(Op("window"), *procedure.ops))
