"""Computing slides before their turn: what makes parallel evaluation pay off under an ordered scheduler.

A window's results depend on what is on its stream, never on tables, so those of batches that wait can be evaluated now, in
any order, while transactions take them strictly in order::

    the window's state          ●        after the batch committed last
    batches that wait           4   5   6   7   8
    the chain of a shadow       ●──▶●──▶●──▶●──▶●       slides on a copy of the state, with nothing evaluated yet
    one evaluation              [4   5   6   7] 8       all windows that those slides fire
    transactions                4 takes its results, then 5, …

What was computed for batch 6 assumes that 4 and 5 were committed. The chain is the proof of validity: when the window
slides by another batch than the head of the chain (5 was aborted, for example), the results are void, and are computed
again from the current state.

Nothing here depends on a thread, a clock or Spark; see :mod:`tidegate.streams.windows.evaluate.ahead` for those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate.plan import Plan


@dataclass(eq=False, slots=True)
class Coming:
    """A batch that will slide the window of ``key``. ``alone``: nothing was, or could be, computed ahead for it."""

    number: int
    key: Any
    rows: Any
    now_us: int
    alone: bool = False


@dataclass(slots=True)
class Promise:
    """A placeholder in the shadow's state for the result of a pane that is not computed yet."""

    value: Any = None


@dataclass(eq=False, slots=True)
class Step:
    """One slide of a chain: its requests to a plan and, when ``ready``, the answers."""

    coming: Coming
    whole: list[Extent] = field(default_factory=list)
    panes: list[Extent] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    labels: list[Extent] = field(default_factory=list)
    parts: list[list[Any]] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)  # for the whole windows, or for the labels
    ready: bool = False

    @property
    def asks(self) -> bool:
        """Is there anything to evaluate?"""
        return bool(self.whole or self.panes or self.labels)


class Recorder:
    """Replaces the plan (and the results) of a shadow: records what is requested, and returns promises."""

    def __init__(self) -> None:
        self.step: Step | None = None

    def whole(self, extents: Sequence[Extent]) -> list[Any]:
        assert self.step is not None
        self.step.whole = list(extents)
        return [None] * len(extents)

    def panes(self, extents: Sequence[Extent]) -> list[Any]:
        assert self.step is not None
        self.step.panes = list(extents)
        self.step.promises = [Promise() for _ in extents]
        return list(self.step.promises)

    def combine(self, labels: Sequence[Extent], panes: Sequence[Sequence[Any]]) -> list[Any]:
        assert self.step is not None
        self.step.labels = list(labels)
        self.step.parts = [list(part) for part in panes]
        return [None] * len(labels)

    def rows(self, windows: Sequence[Extent], returned: Sequence[Any]) -> list[Any]:
        """The results of a shadow are never read."""
        return []

    def none(self) -> list[Any]:
        return []


class Answered:
    """Replaces the plan of the real state: gives the results computed ahead for this slide, otherwise asks the plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.step: Step | None = None

    def whole(self, extents: Sequence[Extent]) -> list[Any]:
        if self.step is not None and _same(self.step.whole, extents):
            return self.step.found
        return self.plan.whole(extents)

    def panes(self, extents: Sequence[Extent]) -> list[Any]:
        if self.step is not None and _same(self.step.panes, extents):
            return [promise.value for promise in self.step.promises]
        return self.plan.panes(extents)

    def combine(self, labels: Sequence[Extent], panes: Sequence[Sequence[Any]]) -> list[Any]:
        if self.step is not None and _same(self.step.labels, labels):
            return self.step.found
        return self.plan.combine(labels, panes)


def _same(foreseen: Sequence[Extent], asked: Sequence[Extent]) -> bool:
    """A valid chain implies this; the check makes a mistake there cost time instead of correctness."""
    return len(foreseen) == len(asked) and all(
        (a.number, a.key, a.start, a.end, len(a)) == (b.number, b.key, b.start, b.end, len(b))
        for a, b in zip(foreseen, asked, strict=True)
    )


class Chain:
    """The slides computed ahead for one state: ``steps``, oldest first, from the current state to that of ``shadow``.

    Without a shadow no look-ahead is possible: the state has diverged, and has to be copied first.
    """

    def __init__(self) -> None:
        self.shadow: Any = None
        self.recorder = Recorder()
        self.steps: deque[Step] = deque()

    def follow(self, shadow: Any) -> None:
        """Look ahead from ``shadow``, which equals the state."""
        assert not self.steps
        shadow.plan = shadow.results = self.recorder
        shadow.sharing = None
        self.shadow = shadow

    def foresee(self, coming: Coming) -> Step:
        """Slide the shadow by a batch; raises what the slide raises, and then stays unchanged."""
        step = self.recorder.step = Step(coming)
        self.shadow.slide(coming.rows, coming.now_us).commit()
        self.steps.append(step)
        return step

    def head(self, rows: Any, now_us: int) -> Step | None:
        """The results computed ahead for the next slide, if it is this one."""
        if self.steps:
            coming = self.steps[0].coming
            if coming.rows is rows and coming.now_us == now_us:
                return self.steps[0]
        return None

    def void(self) -> list[Coming]:
        """Drop the chain; returns the batches it was made for."""
        self.shadow = None
        comings = [step.coming for step in self.steps]
        self.steps.clear()
        return comings


def evaluate(plan: Plan, steps: Sequence[Step]) -> None:
    """Everything the steps request, at once. Panes come first: windows of later steps consist of them too."""
    wholes = [extent for step in steps for extent in step.whole]
    panes = [extent for step in steps for extent in step.panes]
    labels = [label for step in steps for label in step.labels]
    whole = iter(plan.whole(wholes) if wholes else ())
    pane = iter(plan.panes(panes) if panes else ())
    for step in steps:
        for promise in step.promises:
            promise.value = next(pane)
    parts = [[_kept(part) for part in window] for step in steps for window in step.parts]
    combined = iter(plan.combine(labels, parts) if labels else ())
    for step in steps:
        step.found = [next(whole) for _ in step.whole] or [next(combined) for _ in step.labels]
        step.ready = True


def _kept(part: Any) -> Any:
    return part.value if type(part) is Promise else part


ENOUGH_S = 1.0  # an evaluation this long makes the cost of starting one small; longer ones delay transactions
ENOUGH_HERE_S = 0.1  # the same on this machine, where starting one costs next to nothing
GROWTH = 16  # times as many as before, at most: what a few took, with overhead, overestimates many


class Depth:
    """How many batches to look ahead: as many as are waiting, if their evaluation takes at most ``target_s``.

    Only batches that make windows fire are counted. It starts small, grows while there is time and something to gain,
    and drops at once when there is not.
    """

    def __init__(self, limit: int, target_s: float, first: int = 4) -> None:
        self.limit = limit
        self.target_s = target_s
        self.now = min(first, limit)

    def of(self, waiting: int) -> int:
        """How many of the waiting batches: all that are allowed, or equal shares if two evaluations are needed."""
        return max(
            1, min(waiting, self.now) if waiting > 2 * self.now else -(-waiting // 2) if waiting > self.now else waiting
        )

    @property
    def soon(self) -> int:
        """How many it is worth knowing in advance: enough for two evaluations, even if the next ones may be larger."""
        return 2 * min(self.limit, 4 * self.now)

    def took(self, batches: int, seconds: float, enough_s: float = ENOUGH_S) -> None:
        """This many batches were evaluated together in this many seconds. ``enough_s``: longer evaluations gain nothing."""
        fits = max(1, int(batches * self.target_s / max(seconds, 1e-9)))
        if fits < self.now and fits < batches:
            self.now = fits
        else:
            enough = int(batches * min(self.target_s / 2, enough_s) / max(seconds, 1e-9))
            self.now = min(self.limit, GROWTH * self.now, max(enough, self.now))
