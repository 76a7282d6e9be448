"""Parallel patterns: how the work of a window is divided among workers. The results are the same under each of them.

After De Matteis and Mencagli. With W the range, S the slide and F the function:

=======================  =====================================================================  =====================
pattern                  what one worker does                                                   needs
=======================  =====================================================================  =====================
``Sequential()``         everything, in this process; pane by pane where F and the kind allow
``KeyFarm(n)``           all windows of its keys                                                ``by=`` or a keyed stream
``WindowFarm(n)``        whole windows                                                          nothing
``PaneFarm(n)``          panes of gcd(W, S), then windows from pane results: what windows       F decomposable, kind
                         share is worked out once                                               with panes
``WindowMapReduce(n)``   its part of every window, n parts of as many rows each, whatever gcd    F decomposable
                         (W, S) is; the parts are combined
=======================  =====================================================================  =====================

``KeyFarm`` and ``WindowFarm`` can have a ``PaneFarm`` or a ``WindowMapReduce`` in the place of each worker:
``KeyFarm(PaneFarm(workers=2), workers=3)`` has 3 × 2 workers. In ``WindowFarm(PaneFarm(…), workers=n)`` replica r has the
windows r, r + n, r + 2n, …, which slide by n·S: its panes are of gcd(W, n·S), larger, and each replica has its own.

Results are the same under each pattern, wherever and with however many workers it runs, except for what a declaration says
of how F is divided: ``parts`` of a WindowMapReduce (as many as workers, if not given), and replicas of pane farms.
Sums of floating-point numbers in other parts may differ in their last bits. So these are part of what the window is, and
changing them in a directory is an upgrade (:func:`divided`).

Workers are *agnostic*: any free worker gets whole extents. With ``active=True`` who evaluates a window is fixed in advance
(by key, or window number modulo n), which works only for kinds where a row's windows are known on arrival.

Workers may be threads or processes, so a function must depend on its window alone, and must not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.functions import Aggregates, Function
from tidegate.streams.windows.declare.kinds import CONTEXT_FREE

if TYPE_CHECKING:
    from tidegate.streams.windows.declare.kinds import WindowSpec


class Pattern:
    """Base of the patterns: ``replicas`` times ``width`` workers."""

    inner: Pattern | None = None
    active = False

    @property
    def replicas(self) -> int:
        """Workers of the outer farm, each of which may be a farm itself."""
        return 1

    @property
    def width(self) -> int:
        """Workers inside one replica."""
        return 1

    @property
    def total(self) -> int:
        return self.replicas * self.width

    @property
    def core(self) -> Pattern:
        """What works on the windows: the inner pattern of a nesting, else the pattern itself."""
        return self.inner or self


@dataclass(frozen=True)
class Sequential(Pattern):
    """One after another in this process."""


@dataclass(frozen=True)
class _Inner(Pattern):
    workers: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.workers, Pattern):
            raise DeclarationError(
                f"{type(self).__name__}({self.workers}) is not a possible nesting: a pattern goes into KeyFarm or "
                f"WindowFarm, for example KeyFarm({type(self).__name__}(workers=2), workers=2)"
            )
        _positive(self, self.workers)

    @property
    def width(self) -> int:
        return self.workers


@dataclass(frozen=True)
class PaneFarm(_Inner):
    """Panes in parallel, then windows from the results of their panes."""


@dataclass(frozen=True, repr=False)
class WindowMapReduce(_Inner):
    """The parts of each window in parallel, then one result from them.

    ``parts``: how many a window has; the default is one for each worker.

    >>> WindowMapReduce(2), WindowMapReduce(2, parts=8)
    (WindowMapReduce(workers=2), WindowMapReduce(workers=2, parts=8))
    """

    parts: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts is None:
            object.__setattr__(self, "parts", self.workers)
        if not isinstance(self.parts, int) or isinstance(self.parts, bool) or self.parts < self.workers:
            raise DeclarationError(
                f"WindowMapReduce: parts must be a whole number, one for each of the {self.workers} workers at least, got "
                f"{self.parts!r}"
            )

    def __repr__(self) -> str:
        told = "" if self.parts == self.workers else f", parts={self.parts}"
        return f"WindowMapReduce(workers={self.workers}{told})"


@dataclass(frozen=True, repr=False)
class _Farm(Pattern):
    inner: Any = None
    workers: int = 2
    active: bool = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        if isinstance(self.inner, int) and not isinstance(self.inner, bool):  # KeyFarm(4)
            object.__setattr__(self, "workers", self.inner)
            object.__setattr__(self, "inner", None)
        if self.inner is not None and not isinstance(self.inner, (PaneFarm, WindowMapReduce)):
            remedy = (
                f"the workers of {name} are sequential anyway: write {name}(workers={self.workers})"
                if isinstance(self.inner, Sequential)
                else f"inside {name} there can be PaneFarm or WindowMapReduce"
            )
            raise DeclarationError(f"{name}({self.inner}) is not a possible nesting; {remedy}")
        _positive(self, self.workers)

    def __repr__(self) -> str:
        inner = "" if self.inner is None else f"{self.inner!r}, "
        return f"{type(self).__name__}({inner}workers={self.workers}{', active=True' if self.active else ''})"

    @property
    def replicas(self) -> int:
        return self.workers

    @property
    def width(self) -> int:
        return 1 if self.inner is None else int(self.inner.width)


class KeyFarm(_Farm):
    """Each worker has the windows of its keys.

    >>> KeyFarm(4), KeyFarm(PaneFarm(workers=2), workers=3).total
    (KeyFarm(workers=4), 6)
    """


class WindowFarm(_Farm):
    """Each worker has whole windows.

    >>> WindowFarm(WindowMapReduce(2), workers=2, active=True)
    WindowFarm(WindowMapReduce(workers=2), workers=2, active=True)
    """


def _positive(pattern: Pattern, workers: Any) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise DeclarationError(f"{type(pattern).__name__}: workers must be a positive whole number, got {workers!r}")


def has_panes(spec: WindowSpec) -> bool:
    """Are the windows made of panes that are known in advance?"""
    return spec.kind in CONTEXT_FREE and not spec.refines


def farms_of_panes(pattern: Pattern | None, spec: WindowSpec) -> int:
    """How many replicas have panes of their own. Those of a landmark window are the same for all: they end at every slide; and so
    are those of ``partial`` windows, which may end anywhere.
    """
    of_panes = isinstance(pattern, WindowFarm) and isinstance(pattern.inner, PaneFarm)
    return pattern.replicas if pattern is not None and of_panes and spec.kind != "landmark" and not spec.partial else 1


def as_numbers(spec: WindowSpec, relation: Relation) -> bool:
    """Are a few numbers per pane enough, whatever the pattern?"""
    function = spec.compute
    return (
        isinstance(function, Aggregates)
        and has_panes(spec)
        and all(aggregate.fields(relation) is not None for aggregate in function.named.values())
    )


def divided(spec: WindowSpec, relation: Relation) -> str:
    """What the declared pattern decides besides who does the work: how the function is divided, and what is kept for it.

    >>> from tidegate.storage.schema import Column
    >>> from tidegate.storage.types import column_type
    >>> from tidegate.streams.windows import window
    >>> from tidegate.streams.windows.declare.functions import Decomposed
    >>> relation, compute = Relation("s", (Column("x", column_type("BIGINT")),)), Decomposed(len, sum, "n BIGINT")
    >>> [divided(window("s", count=6, slide=2, compute=compute, pattern=p), relation) for p in (
    ...     None, PaneFarm(2), PaneFarm(4), WindowFarm(2), WindowMapReduce(2, parts=4), WindowFarm(PaneFarm(2), workers=3))]
    ['', '', '', 'kept as rows', 'in 4 parts', 'in panes of 3 farms']
    """
    pattern = spec.pattern
    if pattern is None or spec.compute is None or not spec.compute.decomposable or as_numbers(spec, relation):
        return ""
    if isinstance(pattern.core, WindowMapReduce):
        return f"in {pattern.core.parts} parts"
    if not has_panes(spec):
        return ""
    if isinstance(pattern.core, (PaneFarm, Sequential)):
        farms = farms_of_panes(pattern, spec)
        return f"in panes of {farms} farms" if farms > 1 else ""
    return "kept as rows"


def default_pattern(spec: WindowSpec, function: Function, workers: int) -> Pattern:
    """For a window that names none. Its state is the same under every pattern, so a checkpoint always fits."""
    if workers == 1:
        return Sequential()
    return PaneFarm(workers) if function.decomposable and has_panes(spec) else WindowFarm(workers=workers)


def check(pattern: Pattern, spec: WindowSpec, function: Function, keyed: bool = False) -> None:
    """Refuse a pattern that can't give the right results here. ``keyed``: the stream itself has a key."""
    what = f"window over {spec.stream}: {pattern}"
    kind = spec.kind.replace("_", "-")
    if not isinstance(pattern, Pattern):
        raise DeclarationError(
            f"window over {spec.stream}: pattern= takes Sequential, KeyFarm, WindowFarm, PaneFarm or WindowMapReduce, "
            f"got {pattern!r}"
        )
    if isinstance(pattern, KeyFarm) and not spec.by and not keyed:
        raise DeclarationError(
            f"{what} divides by key, but there is none; name the key columns with by=, or use WindowFarm"
        )
    if isinstance(pattern.core, (PaneFarm, WindowMapReduce)) and not function.decomposable:
        raise DeclarationError(
            f"{what} computes parts of a window and combines them, but {function!r} can't be decomposed; give "
            "aggregates or decomposed(pane, combine), or use "
            f"{'KeyFarm or WindowFarm' if spec.by or keyed else 'WindowFarm'}"
        )
    if isinstance(pattern.core, PaneFarm) and not has_panes(spec):
        raise DeclarationError(
            f"{what} needs panes, but where a {kind} window begins depends on its rows, so there are none; use "
            "WindowMapReduce, or a window by count, batches, time or landmark"
        )
    if pattern.active and not has_panes(spec):
        raise DeclarationError(
            f"{what} gives rows to workers as they arrive, but which windows a row of a {kind} window is in is known only "
            f"later; leave out active=True: then any free worker gets whole windows"
        )
