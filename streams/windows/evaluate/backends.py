"""Which backend evaluates a window: the one it was declared with, otherwise the one the engine was opened with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.streams.windows import open_state
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.local import Backend
from tidegate.streams.windows.evaluate.plan import Plan, shared_backend


@dataclass(frozen=True)
class Evaluation:
    """How an engine evaluates windows. ``backend``: for windows that name none, ``None``: all on this machine, whatever
    they name; ``spark``: a session, a master URL, or None for an embedded one; ``look_ahead``: batches at most;
    ``background``: may a thread evaluate ahead of the transactions?"""

    backend: str | None = None
    spark: Any = None
    look_ahead: int = 1
    background: bool = False

    def backend_of(self, spec: WindowSpec) -> Backend:
        named = "local" if self.backend is None else spec.backend or self.backend
        if named == "local":
            return shared_backend()
        from tidegate.streams.spark.backend import spark_backend

        return spark_backend(shared_backend(), self.spark, only=named == "spark")

    def ahead_of(self, plan: Plan, relation: Relation, known: bool) -> LookAhead | None:
        """The look-ahead of a window, if it has one. ``known``: are its stream's rows known before they are due?"""
        if plan.backend is shared_backend() or plan.vectorised or self.look_ahead == 1:
            return None
        if not known:
            plan.ahead = f"none: batches of {plan.spec.stream} are known only when it is their turn"
            return None
        opened = partial(open_state, plan.spec, relation, plan)
        measured = not plan.backend.only
        return LookAhead(plan, opened, self.look_ahead, self.background, measured=measured)


REFERENCE = Evaluation()


def start(plans: list[Plan]) -> None:
    """Start what these plans need, in the background; raises when that is impossible."""
    for plan in plans:
        if not plan.vectorised and plan.pattern.total > 1:
            plan.backend.begin()
