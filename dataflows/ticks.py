"""Declaring what the clock brings in: the border stream of a schedule, and the streams that timers go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.dataflows.definitions import Procedure, Stream
from tidegate.dataflows.graph import Graph
from tidegate.dataflows.schedules import Schedule
from tidegate.errors import DeclarationError, unknown

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

COLUMNS = "due TIMESTAMP NOT NULL"


def declare_ticks(
    app: App, procedure: str, inputs: Any, schedule: Schedule | None, renamed_from: str | None
) -> tuple[str, ...]:
    """The border stream on which the clock starts a procedure, if it has a schedule."""
    if schedule is None:
        return ()
    if inputs:
        raise DeclarationError(
            f"procedure {procedure} has both inputs and a schedule; the clock is its input ({schedule}). Let a procedure of its "
            f"own be started by the clock, and either emit to this one or share a table with it",
            procedure=procedure,
        )
    name = f"{procedure}_ticks"
    app.stream(name, COLUMNS, border=True, renamed_from=None if renamed_from is None else f"{renamed_from}_ticks")
    app.streams[name] = Stream(name, app.streams[name].relation, True, schedule=schedule)
    return (name,)


def check_timers(app: App, procedure: Procedure) -> None:
    """Timers go to border streams; not to those with answers, which need the id of their question."""
    for name in procedure.timers:
        where = f"procedure {procedure.name}, timers"
        if name not in app.streams:
            raise unknown(where, "border stream", name, [s.name for s in app.streams.values() if s.border])
        stream = app.streams[name]
        if not stream.border or stream.awaited or stream.schedule is not None:
            why = (
                "is fed by a procedure"
                if not stream.border
                else "answers questions"
                if stream.awaited
                else "has the times of a schedule"
            )
            raise DeclarationError(
                f"{where}: {name} {why}; the rows of timers come in from outside. Declare a border stream for them",
                procedure=procedure.name,
                stream=name,
            )


def check_timed(graph: Graph) -> None:
    """What the clock brings in is numbered by the engine, so no other stream can have a batch of the same id."""
    app = graph.app
    timed = {
        name: f"procedure {one.name} sets timers for {name}" for one in app.procedures.values() for name in one.timers
    }
    timed |= {
        name: f"{name} has the times of a schedule" for name, one in app.streams.items() if one.schedule is not None
    }
    for name, told in timed.items():
        for unit in graph.caused_by.get(name, ()):
            if unit.numbered_by is None and unit.ancestors != {name}:
                others = ", ".join(sorted({*unit.ancestors} - {name}))
                raise DeclarationError(
                    f"{told}, but {unit.name} needs a batch of the same id on {others}, and what the clock brings in has an "
                    f"id of its own; read both with inputs=either(…), or keep what is needed in a table",
                    stream=name,
                )
