"""Windows over streams: kinds, event time, what is computed, and the state that is part of the transaction."""

from __future__ import annotations

from math import gcd

from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.checks import check_columns
from tidegate.streams.windows.declare.kinds import WindowSpec, window
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.results import Results, WindowState
from tidegate.streams.windows.state.shown import label_columns
from tidegate.streams.windows.state.tuples import TupleState

__all__ = ["WindowSpec", "WindowState", "open_state", "result_relation", "window"]


def open_state(spec: WindowSpec, relation: Relation, plan: Plan | None = None) -> WindowState:
    """A window's state, empty, in the form that suits its kind and what is computed.

    ``plan``: how it is computed; the states of one window (one per key of its stream) share it.
    """
    check_columns(spec, relation, f"window over {spec.stream}")
    if spec.plain:
        return TupleState(spec, relation)

    from tidegate.streams.windows.state.blocks import BlockState
    from tidegate.streams.windows.state.pane_results import PaneResultState
    from tidegate.streams.windows.state.panes import MERGED_DIRECTLY, PaneState
    from tidegate.streams.windows.state.refining import RefiningState
    from tidegate.streams.windows.state.rows import RowState

    if spec.compute is None:
        return RowState(spec, relation, None, None)
    results = Results(spec, relation)
    plan = plan or Plan(spec, relation)
    if spec.refines:
        return RefiningState(spec, relation, plan, results)
    if plan.vectorised:
        many = spec.kind == "landmark" or spec.size // gcd(spec.size, spec.slide) > MERGED_DIRECTLY
        return BlockState(spec, relation, results) if many else PaneState(spec, relation, results)
    if plan.by_pane:
        return PaneResultState(spec, relation, plan, results)
    return RowState(spec, relation, plan, results)


def result_relation(spec: WindowSpec, relation: Relation, name: str) -> Relation:
    """What SQL reads under the window's name: its results, or the rows of its windows with number and bounds."""
    if spec.compute is None:
        return Relation(name, (*label_columns(spec, relation), *relation.columns))
    return Relation(name, Results(spec, relation).relation.columns)
