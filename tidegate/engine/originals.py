"""What became of a batch that is pushed again, as far as the scheduler and the journal know now.

Nothing is kept just for this: the answer comes from unfinished executions, the newest aborts and all dead letters. If
they do not tell, the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.graph import Unit
from tidegate.errors import text_of
from tidegate.txn.execution import READY, Execution, State
from tidegate.txn.journal import KEPT_ABORTS
from tidegate.txn.scheduler import halt_of
from tidegate.txn.ticket import Original

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

RECOGNISED_BY_OFFSET = Original(
    None, None, "unknown", "it was recognised by the offset of its source; the batches it became are not recorded"
)


def originals(engine: Engine, stream: str, keys: Iterable[Any], batch_id: int) -> list[Original]:
    """What became of the batches that these keys of a border stream have under ``batch_id``."""
    with engine.lock:
        return [Original(batch_id, key, *_became(engine, stream, key, batch_id)) for key in keys]


def _became(engine: Engine, stream: str, key: Any, batch_id: int) -> tuple[str, str | None]:
    """The state and the reason for it. States that are not final take precedence."""
    graph = engine.graph
    units = [*graph.caused_by.get(stream, ()), *(u for u in graph.consumers.get(stream, ()) if stream in u.awaited)]
    unfinished = [e for e in engine.scheduler.waiting() if e.unit in units and _stands_for(e, stream, key, batch_id)]
    halted = [_why_halted(engine, e) for e in unfinished if e.state is State.PARKED]
    if halted:
        return "halted", "; ".join(halted)
    waits = [f"{e} {_doing(e)}" for e in unfinished] + _incomplete(engine, units, stream, key, batch_id)
    if waits:
        return "waiting", "; ".join(waits)
    return _ended(engine, units, key, batch_id)


def _stands_for(execution: Execution, stream: str, key: Any, batch_id: int) -> bool:
    if execution.key != key:
        return False
    if execution.unit.numbered_by is None:
        return execution.batch_id == batch_id
    own = execution.inputs.get(stream)
    return own is not None and own.id == batch_id


def _doing(execution: Execution) -> str:
    if execution.state is State.RUNNING:
        return "is running"
    return "is ready to run" if execution.reason is READY else str(execution.reason)


def _why_halted(engine: Engine, execution: Execution) -> str:
    front = engine.scheduler.halted.get(halt_of(execution))
    if front is execution:
        failure = execution.context.failure
        told = "" if failure is None else f": {text_of(failure)}"
        return f"dataflow {execution.unit.dataflow} is halted in front of it{told}"
    return f"{execution} {execution.reason}"


def _incomplete(engine: Engine, units: list[Unit], stream: str, key: Any, batch_id: int) -> list[str]:
    """Nothing runs for it yet: another stream's batch, or its question, has to arrive first."""
    scheduler = engine.scheduler
    found = []
    for unit in units:
        partial = scheduler.partial.get((unit.name, key), {}).get(batch_id)
        if partial is not None and stream in partial.arrived:
            lacking = ", ".join(sorted(unit.ancestors - partial.arrived))
            found.append(f"{unit.name} waits for batch {batch_id} on {lacking}")
    if batch_id in scheduler.early.get((stream, key), ()):
        found.append("it waits for its question, which has not been asked yet")
    return found


def _ended(engine: Engine, units: list[Unit], key: Any, batch_id: int) -> tuple[str, str | None]:
    journal = engine.journal
    procedures = {procedure.name for unit in units for procedure in unit.members}
    told = None if key is None else str(key)

    def mine(entry: Any) -> bool:
        return entry.batch_id == batch_id and entry.key == told and entry.procedure in procedures

    undone = [f"{a.procedure}: {a.reason}" for a in journal.aborts if mine(a)]
    dead = [d.error for d in journal.dead_letters if mine(d)]
    if dead:
        return "dead_letter", "; ".join([*dead, *undone])
    if undone:
        return "aborted", "; ".join(undone)
    by_sequence = [unit.name for unit in units if unit.numbered_by is not None]
    if by_sequence:
        return (
            "unknown",
            f"it has finished; {', '.join(by_sequence)} renumbers its batches, so no outcome is kept by id",
        )
    if len(journal.aborts) >= KEPT_ABORTS:
        return (
            "unknown",
            f"it has finished; only the newest {KEPT_ABORTS:,} aborts are kept, and it may be an older one",
        )
    return "done", None
