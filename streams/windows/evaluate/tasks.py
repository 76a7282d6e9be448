"""What is evaluated: work that any process can carry out.

A :class:`Work` says what to do (sent to a worker once), a :class:`Task` for which windows or panes. Neither refers to
the engine.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.functions import Extent, Function
from tidegate.streams.windows.declare.scales import Scale
from tidegate.streams.windows.declare.together import WholeBatch
from tidegate.streams.windows.state.columns import times_of

log = logging.getLogger("tidegate.windows")

Operation = Literal["whole", "pane", "combine"]

PART_ROWS = 1_024  # a decomposable function gets a window without panes in parts of this many rows


@dataclass(frozen=True, eq=False)
class Work:
    """What is done to windows of one kind. ``pane``: the length of its panes, in rows (``by_rows``) or along ``on``. ``parts``:
    how many a window is divided into, if that is declared.
    """

    function: Function
    relation: Relation
    pane: int | None = None
    by_rows: bool = True
    on: str | None = None
    scale: Scale | None = None
    parts: int | None = None

    @cached_property
    def packed(self) -> bytes:
        """For another process. A function that is not in a module is sent as code, with cloudpickle."""
        panes = (self.pane, self.by_rows, self.on, self.scale, self.parts)
        facts = (self.function, self.relation.name, self.relation.columns, *panes)
        try:
            from cloudpickle import dumps  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            dumps = pickle.dumps
        packed: bytes = dumps(facts, protocol=5)
        return packed

    @staticmethod
    def unpacked(packed: bytes) -> Work:
        function, name, columns, *panes = pickle.loads(packed)
        return Work(function, Relation(name, columns), *panes)

    def panes(self, extent: Extent) -> list[Extent]:
        """What a window is divided into: its declared number of parts, or its panes that have rows, or, if it has none, parts of
        :data:`PART_ROWS` rows.
        """
        if self.parts is not None:
            places = [len(extent) * i // self.parts for i in range(self.parts + 1)]
            parts = [(i, low, high) for i, (low, high) in enumerate(pairwise(places)) if high > low]
            return [Extent(i, extent.key, extent.start, extent.end, extent.columns.slice(*at)) for i, *at in parts]
        cuts = extent.cuts or range(0, len(extent), PART_ROWS)
        bounds = zip(cuts, [*cuts[1:], len(extent)], strict=True)
        return [self._part(extent, i, low, high) for i, (low, high) in enumerate(bounds) if high > low]

    def _part(self, extent: Extent, i: int, low: int, high: int) -> Extent:
        columns = extent.columns.slice(low, high)
        if extent.cuts is None or self.pane is None:
            return Extent(i, extent.key, extent.start, extent.end, columns)
        if self.by_rows:
            number = (max(extent.start, 0) + low) // self.pane  # the first windows may begin before the first tuple
        elif self.on is not None and self.on in columns.values:
            number = self._place(int(times_of(columns[self.on][:1])[0])) // self.pane
        else:  # by batches, or by time of arrival: it is unknown which of the window's panes it is
            return Extent(i, extent.key, extent.start, extent.end, columns)
        start, end = number * self.pane, (number + 1) * self.pane
        if self.scale is not None:
            start, end = self.scale.time(start), self.scale.time(end)
        return Extent(number, extent.key, start, end, columns)

    def _place(self, time: int) -> int:
        return time if self.scale is None else self.scale.place(time)

    def do(self, operation: Operation, item: Any) -> Any:
        function = self.function
        if operation == "combine":
            return function.combine(item)
        if operation == "pane":
            return function.pane(item)
        if function.decomposable:
            return function.combine([function.pane(part) for part in self.panes(item)])
        return function.whole(item)


@dataclass(eq=False, slots=True)
class Task:
    """An operation on some items: extents, or for ``combine`` the results of each window's panes.

    ``worker``: who does it, when that is fixed in advance.
    """

    work: Work
    operation: Operation
    items: Sequence[Any]
    worker: int | None = None


@dataclass(slots=True)
class Outcome:
    """Results of a task's items up to the first that raised, and what it raised."""

    results: list[Any]
    error: Exception | None = None


def carry_out(task: Task, done: Sequence[Any] = ()) -> Outcome:
    """Do the items that are not ``done`` yet, in this process and thread."""
    results = list(done)
    function = task.work.function
    try:
        if isinstance(function, WholeBatch) and len(task.items) > len(results):
            return Outcome([*results, *function.together(task.items[len(results) :])])
    except Exception:  # one by one it will be known which window it was
        log.warning("%r raised for %d windows; they are computed one by one", function, len(task.items), exc_info=True)
    try:
        for item in task.items[len(results) :]:
            results.append(task.work.do(task.operation, item))  # noqa: PERF401 - what was done before it raised counts
    except Exception as error:
        return Outcome(results, error)
    return Outcome(results)
