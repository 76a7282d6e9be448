"""Some simulated apps set timers: their rows enter a dataflow of their own, which may set more.

They are made from finished apps by a separate generator, so that the apps of all other seeds stay the same.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tidegate.testing.simulation.specs import AppSpec, FlowSpec, Op, ProcedureSpec
from tidegate.testing.simulation.world import LATE


def with_timers(seed: int, spec: AppSpec) -> AppSpec:
    """``spec``, in which some procedures set timers, and cancel some of them."""
    rng = random.Random(f"timers {seed}")
    if rng.random() < 0.6:
        return spec
    flows = tuple(
        replace(flow, procedures=tuple(_setting(rng, procedure) for procedure in flow.procedures))
        for flow in spec.flows
    )
    calls = tuple(_setting(rng, call) for call in spec.calls)
    return replace(spec, flows=(*flows, _late(rng, spec)), calls=calls)


def _setting(rng: random.Random, procedure: ProcedureSpec) -> ProcedureSpec:
    if rng.random() < 0.4:
        return procedure
    ops = [*procedure.ops]
    ops.insert(rng.randint(0, len(ops)), Op("after", number=rng.choice([1, 30, 300])))
    return replace(procedure, ops=tuple(ops), timers=(LATE,))


def _late(rng: random.Random, spec: AppSpec) -> FlowSpec:
    """What the rows of timers start: it touches what a procedure of the app touches by table, and may set timers itself."""
    model = rng.choice([*spec.procedures()])
    access = tuple(one for one in model.access if one.how in ("table", "committed"))
    tables = {"", *(one.table for one in access)}
    ops = tuple(op for op in model.ops if op.table in tables and op.kind in KEPT)
    latecomer = ProcedureSpec("latecomer", (LATE,), (), access, ops, retries=model.retries)
    flow = FlowSpec(rng.random() < 0.5, (LATE,), (latecomer,), late=True)
    return replace(flow, procedures=(_setting(rng, latecomer),)) if rng.random() < 0.5 else flow


KEPT = (
    "get", "scan", "find", "count", "upsert", "insert", "try_insert", "update", "delete", "add", "delete_where",
    "update_each", "chance", "now", "abort", "raise", "flaky", "move", "audit", "sql_read", "sql_write",
)  # fmt: skip
