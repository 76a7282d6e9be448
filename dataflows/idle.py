"""Silence on a border stream: after which time event time runs on without rows."""

from __future__ import annotations

from typing import Any

from tidegate.dataflows.graph import Graph
from tidegate.dataflows.schedules import Idle
from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.durations import microseconds


def declared_idle(relation: Relation, idle: Any, border: bool, awaited: bool) -> Idle | None:
    """What ``idle=`` of a stream means."""
    if idle is None:
        return None
    where = f"stream {relation.name}: idle={idle!r}"
    if not border or awaited:
        raise DeclarationError(
            f"{where} is for border streams that bring rows; {relation.name} "
            f"{'answers questions' if awaited else 'is fed by a procedure'}",
            stream=relation.name,
        )
    times = [column.name for column in relation.columns if column.type.sql == "TIMESTAMP"]
    given = idle if isinstance(idle, tuple) else (times[0] if len(times) == 1 else None, idle)
    if len(given) != 2 or given[0] not in times:
        raise DeclarationError(
            f"{where} needs the event time of the rows: idle=('ts', '30s') with one of its TIMESTAMP columns "
            f"({', '.join(times) or 'it has none'})",
            stream=relation.name,
        )
    us = microseconds(given[1])
    if us <= 0:
        raise DeclarationError(f"{where}: a length of time is longer than nothing", stream=relation.name)
    return Idle(given[0], us)


def check_idle(graph: Graph) -> None:
    """Somebody minds the time that runs on, and can be told."""
    times = graph.times
    for name, stream in graph.app.streams.items():
        if stream.idle is None:
            continue
        paired = {
            other for unit in graph.caused_by.get(name, ()) if unit.numbered_by is None for other in unit.ancestors
        }
        why = None
        if name in times.left_out:
            why = f"behind it an interior stream has a key of its own, and time does not pass there yet ({times.left_out[name]})"
        elif name not in times.ends:
            why = "no window in the order of time gets its rows, so nothing waits for time"
        elif times.axes.get(name, frozenset()) - {"time"}:
            why = "behind it time is measured in numbers, which no clock shows"
        elif paired - {name}:
            why = f"a procedure needs batches with the same id on {', '.join(sorted(paired))}, and time has an id of its own"
        if why is not None:
            raise DeclarationError(f"stream {name} has idle=, but {why}; leave out idle=", stream=name)
