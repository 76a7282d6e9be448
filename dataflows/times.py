"""How event time travels through a dataflow: who takes it in without rows, and who passes it on.

A procedure *minds* time when it has a window in the order of time, or passes time on to one that minds it. It passes
watermarks on if every window of its own says what it holds back: windows by time over event time, and joins. A window by
count may hold rows of any age, so nothing passes it but the end. Nor does a watermark pass where times are measured in
different units. Nothing but rows starts a procedure that waits for people.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidegate.dataflows.definitions import Procedure
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

Axis = Literal["time", "number", "arrival"]  # TIMESTAMP or DATE; an integer column; when batches were accepted

KINDS = (
    "time",
    "landmark",
    "session",
    "slide_by_tuple",
    "slide_by_time",
    "join",
    "pattern",
)  # it is known what they hold back


class InTime:
    """What a unit takes in, by rows and by time."""

    inputs: tuple[str, ...]
    awaited: tuple[str, ...]
    either: bool
    minds: bool

    def takes(self, batch: Batch | None) -> Batch | None:
        """What is of interest to it: a batch with rows or, if it minds, with a watermark."""
        return batch if batch is not None and (len(batch) or (self.minds and batch.watermark is not None)) else None

    def in_vain(self, inputs: Collection[Batch | None]) -> bool:
        """Will it never start, given everything on its inputs? One without rows is enough, unless time passes on another."""
        if self.either:
            return all(batch is None for batch in inputs)
        return None in inputs and not (self.minds and any(b is not None and b.watermark is not None for b in inputs))

    def started_by(self, inputs: dict[str, Batch]) -> dict[str, Batch]:
        """What it runs with: these batches, or only their watermarks, if not all of its inputs have rows."""
        if not self.minds or self.either or all(s in inputs and len(inputs[s]) for s in self.inputs):
            return inputs
        return {
            s: batch if s in self.awaited else Batch(batch.relation, batch.id, (), batch.key, batch.watermark)
            for s, batch in inputs.items()
            if s in self.awaited or batch.watermark is not None
        }


@dataclass(eq=False)
class Times:
    """``axes``: what watermarks of a stream are measured in, for those who get them; ``ends``: streams whose end matters to
    someone. ``passes``: the outputs of a procedure on which it passes on the end of its input (True: watermarks too).
    ``left_out``: border streams of dataflows in which a stream changes its key, and a procedure there that would mind; no time
    passes in those.
    """

    app: App
    axes: dict[str, frozenset[Axis]] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)
    minding: set[str] = field(default_factory=set)
    passes: dict[str, Mapping[str, bool]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, procedures: Iterable[Procedure]) -> None:
        """Add the procedures of a dataflow, in rank order."""
        for procedure in reversed([*procedures]):
            self._add(procedure)

    def leave_out(self, procedures: Iterable[Procedure], borders: Iterable[str]) -> None:
        """These would mind, but their dataflow has a stream with a key of its own."""
        for procedure in procedures:
            if any(minds(spec) for spec in procedure.windows.values()):
                self.left_out.update(dict.fromkeys(borders, procedure.name))

    def _add(self, procedure: Procedure) -> None:
        if any(self.app.streams[stream].awaited for stream in procedure.inputs):
            return
        own = {stream: self._own(procedure, stream) for stream in procedure.inputs}
        mine = frozenset[Axis]().union(*own.values())
        behind = [stream for stream in procedure.outputs if stream in self.ends]
        clear = all(spec.kind in KINDS and _time_column(spec) is not None for spec in procedure.windows.values())
        passes = {}
        for stream in behind:
            axes = self.axes.get(stream, frozenset())
            passes[stream] = clear and len(axes) == 1 and mine <= axes
        if not mine and not behind:
            return
        self.minding.add(procedure.name)
        self.passes[procedure.name] = passes
        beyond = frozenset[Axis]().union(*(self.axes[stream] for stream, all_of_it in passes.items() if all_of_it))
        for stream, axes in own.items():
            self.ends.add(stream)
            self.axes[stream] = self.axes.get(stream, frozenset()) | (axes - {"arrival"}) | beyond

    def _own(self, procedure: Procedure, stream: str) -> frozenset[Axis]:
        """What the procedure's own windows over a stream are measured in, those that time moves."""
        found: set[Axis] = set()
        for spec in procedure.windows.values():
            if stream in spec.streams and minds(spec):
                column = _time_column(spec)
                relation = self.app.streams[spec.streams[0]].relation
                integer = column is not None and relation.column(column).type.family == "integer"
                found.add("arrival" if column is None else "number" if integer else "time")
        return frozenset(found)


def minds(spec: Any) -> bool:
    """Does time, or its end, make this window (or join) fire, or release rows that wait?"""
    return spec.kind == "join" or bool(spec.in_event_order or (spec.kind == "count" and spec.partial))


def _time_column(spec: Any) -> str | None:
    column: str | None = spec.left_time if spec.kind == "join" else spec.on
    return column
