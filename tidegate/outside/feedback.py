"""Deliveries into border streams: the order that they need, and the cycles that they must not form.

A dataflow is acyclic, and so must several be that deliveries connect. Paths lead from a border stream to the streams
that its dataflow emits and to the changelogs of the tables that it writes, and from there, by deliveries, to border
streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.errors import DeclarationError

if TYPE_CHECKING:
    from tidegate.dataflows.graph import Unit
    from tidegate.engine.engine import Engine


def check_acyclic(engine: Engine, stream: str, sink: Any) -> None:
    """Refuse a delivery that would lead a stream back to its origin, alone or with others."""
    border = _fed_by(engine, sink)
    path = None if border is None else _way(engine, [stream, border])
    if path is not None:
        raise DeclarationError(
            f"delivering {stream} to {border} closes a cycle: {' → '.join(path)}. Each change would cause another "
            f"one. Have whatever follows {stream} write to a table of its own",
            stream=stream,
            cycle=path,
        )


def check_ordered(engine: Engine, stream: str, sink: Any) -> None:
    """Refuse a delivery of batches whose order is per key into a border stream that has one order for all."""
    target = getattr(sink, "target", None)
    border = getattr(target, "borders", {}).get(getattr(sink, "stream", None))
    table = engine.app.streams[stream].changelog_of
    keyed = engine.graph.keyed.get(stream) is not None if table is None else bool(engine.app.tables[table].partition_by)
    if border is not None and stream in engine.graph.unordered():
        raise DeclarationError(
            f"batch-ids ascend on {border.name}, and those of {stream} do not: it has its own key "
            f"({engine.app.streams[stream].key}), and {engine.graph.producer_of[stream]}, which emits to it, runs per another. "
            f"Deliver the output of a procedure that reads {stream}, which runs per key in order",
            stream=stream,
        )
    if border is not None and border.key is None and keyed and getattr(sink, "keep_ids", True):
        why = f"{stream} is keyed" if table is None else f"{table} is partitioned"
        raise DeclarationError(
            f"{border.name} has no key, so its batch-ids ascend; those of {stream} ascend only within each key, "
            f"because {why}. Declare {border.name} with key={'the same column' if table is None else repr('row_key')}, or have "
            f"its batches numbered anew: EngineSink(…, keep_ids=False)",
            stream=stream,
        )


def _fed_by(engine: Engine, sink: Any) -> str | None:
    """The border stream of this engine that a sink feeds; None when it feeds none."""
    return str(sink.stream) if getattr(sink, "target", None) is engine else None


def _way(engine: Engine, path: list[str]) -> list[str] | None:
    """How ``path`` leads from its last stream back to its first, if it does."""
    outputs = caused_by(engine, path[-1])
    if path[0] in outputs:
        return [*path, path[0]]
    for delivery in engine.outbox.deliveries.values():
        border = _fed_by(engine, delivery.sink)
        if border is not None and border not in path and delivery.stream in outputs:
            found = _way(engine, [*path, delivery.stream, border])
            if found is not None:
                return found
    return None


def caused_by(engine: Engine, border: str) -> set[str]:
    """The streams that may have batches because ``border`` had one: itself, too."""
    units = engine.graph.caused_by.get(border, ())
    return {border} | {stream for unit in units for stream in unit.outputs} | changed_by(engine, units)


def changed_by(engine: Engine, units: Iterable[Unit]) -> set[str]:
    """The changelogs of the tables that these write."""
    written = {access.table for unit in units for access in unit.access if access.write}
    return {s.name for s in engine.app.streams.values() if s.changelog_of in written}
