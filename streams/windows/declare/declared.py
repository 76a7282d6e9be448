"""What declared windows, joins and patterns have in common: what they read, hold and show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.streams.windows import WindowSpec, WindowState, open_state, result_relation
from tidegate.streams.windows.declare.joins import JoinSpec, Output
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.patterns.count_state import CountState
from tidegate.streams.windows.patterns.declare import PatternSpec
from tidegate.streams.windows.patterns.plan import PatternPlan
from tidegate.streams.windows.patterns.state import PatternState
from tidegate.streams.windows.state.join_state import JoinState

Declared = WindowSpec | JoinSpec | PatternSpec


def open_window(spec: Declared, relations: Mapping[str, Relation], plan: Plan | None = None) -> WindowState:
    """Its state, empty. ``relations``: the columns of its streams, by name."""
    if isinstance(spec, JoinSpec):
        return JoinState(spec, relations[spec.left], relations[spec.right])
    if isinstance(spec, PatternSpec):
        return CountState(spec, relations) if spec.aggregate else PatternState(spec, relations)
    return open_state(spec, relations[spec.stream], plan)


def opener(
    spec: Declared, relations: Mapping[str, Relation], plan: Plan | None, key: str | None
) -> Callable[[Any], WindowState]:
    """Opens its states on a keyed stream, one for each key. They have in common what is the same for all keys: panes, if
    there are few to a window, are rows of shared arrays. ``key``: the stream's key column, if it is known.
    """
    from tidegate.streams.windows.state.keyed import SharedPanes
    from tidegate.streams.windows.state.panes import PaneState

    first: Any = open_window(spec, relations, plan)
    if isinstance(first, PaneState) and not first.blocks and first.spec.by in ((), (key,)):
        return SharedPanes(first).open
    return lambda _: first.fresh()


def restartable(spec: Declared) -> bool:
    """Can it be told which of its windows is the first whole one when it begins in the middle of its stream?"""
    if isinstance(spec, WindowSpec) and spec.partial:  # its first rows would fire windows that are not whole
        return False
    return spec.kind in ("count", "batches", "time", "session", "landmark", "slide_by_tuple", "pattern")


def window_relation(spec: Declared, relations: Mapping[str, Relation], name: str) -> Relation:
    """What SQL reads under its name."""
    if isinstance(spec, JoinSpec):
        return Relation(name, Output(spec, relations[spec.left], relations[spec.right]).relation.columns)
    if isinstance(spec, PatternSpec):
        return Relation(name, PatternPlan(spec, relations).results.columns)
    return result_relation(spec, relations[spec.stream], name)
