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
``WindowMapReduce(n)``   its part of every window; the parts are combined                       F decomposable
=======================  =====================================================================  =====================

``KeyFarm`` and ``WindowFarm`` can have a ``PaneFarm`` or a ``WindowMapReduce`` in the place of each worker:
``KeyFarm(PaneFarm(workers=2), workers=3)`` has 3 × 2 workers. Workers are *agnostic*: any free worker gets whole
extents. With ``active=True`` a row is assigned to its worker on arrival (by key, or window number modulo n), which
works only for kinds where a row's windows are known on arrival.

Workers may be threads or processes, so a function must depend on its window alone, and must not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.kinds import CONTEXT_FREE

if TYPE_CHECKING:
    from tidegate.streams.windows.declare.functions import Function
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


@dataclass(frozen=True)
class WindowMapReduce(_Inner):
    """The parts of each window in parallel, then one result from them."""


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
