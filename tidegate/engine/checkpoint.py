"""The engine's own state, written in the same DuckDB transaction as the tables, and read back when it opens.

It consists of the sequence number, the batch-ids accepted on every border stream, window contents, aborts and dead
letters, a fingerprint of what was emitted, and everything accepted but unfinished: executions that wait (for a person,
a lock, a batch) with their inputs, and the old row versions that they may still read.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.app import App
from tidegate.errors import RecoveryRefused, TidegateError
from tidegate.storage.codec import from_json, to_json, widened
from tidegate.storage.schema import TableSchema
from tidegate.streams.batch import Batch
from tidegate.streams.border import Sequence
from tidegate.streams.windows.declare.declared import Declared
from tidegate.txn.context import Context
from tidegate.txn.entries import Call
from tidegate.txn.execution import Execution
from tidegate.txn.journal import Abort, DeadLetter
from tidegate.txn.log.reader import OLDER
from tidegate.txn.positions import sequence_of
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

FORMAT = 2


def saved_state(engine: Engine, lsn: int) -> dict[str, Any]:
    """Everything but the tables, as of ``lsn`` in the log. The caller holds the engine's lock."""
    return {
        "format": FORMAT,
        "at": engine.clock.now().isoformat(),
        "app": engine.app.name,
        "lsn": lsn,
        **({} if engine.durable is None else engine.durable.stands),
        "schemas": {name: columns_of(schema) for name, schema in engine.app.tables.items()},
        "offsets": {source: to_json(offset) for source, offset in engine.offsets.items()},
        "subscriptions": engine.outbox.saved(),
        "emitted": engine.runtime.emitted.save(),
        "sequence": engine.sequence,
        "borders": {
            name: [[to_json(key), s.last, s.digests] for key, s in border.sequences.items()]
            for name, border in engine.borders.items()
        },
        "windows": [
            [program.name, name, to_json(key), _told_window(state.spec), base64.b64encode(state.save()).decode()]
            for program in engine.runtime.programs.values()
            for name, states in program.windows.items()
            for key, state in states.items()
        ],
        "aborts": [{**asdict(a), "at": a.at.isoformat()} for a in engine.journal.aborts],
        "dead_letters": [{**asdict(d), "at": d.at.isoformat()} for d in engine.journal.dead_letters],
        "unfinished": _unfinished(engine),
        "versions": {
            table.name: table.export_chains(to_json) for table in engine.database.tables.values() if table.chains
        },
    }


def facts_in_memory(engine: Engine) -> dict[str, Any]:
    """What a merge records in an engine without a directory: nobody will ever restore from it."""
    return {"at": engine.clock.now().isoformat(), "sequence": engine.sequence}


def _unfinished(engine: Engine) -> dict[str, Any]:
    scheduler = engine.scheduler
    return {
        "executions": [
            {
                "unit": e.unit.name,
                "position": e.position,
                "key": to_json(e.key),
                "batch_id": e.batch_id,
                "inputs": {stream: _batch(batch) for stream, batch in e.inputs.items()},
                "missing": sorted(e.missing),
                "entry": e.entry,
                "started": e.started,
                "time": e.context.time.isoformat(),
            }
            for e in sorted(scheduler.waiting())
            if e.batch_id is not None
        ],
        "calls": [
            {
                "procedure": e.unit.name,
                "position": e.position,
                "arguments": to_json(e.context.call.arguments[0]),
                "named": {name: to_json(value) for name, value in e.context.call.arguments[1].items()},
                "time": e.context.time.isoformat(),
            }
            for e in scheduler.waiting()
            if e.batch_id is None
        ],
        "parked": sorted(scheduler.parked),
        "halted": {dataflow: e.position for dataflow, e in scheduler.halted.items()},
        "partial": [
            [unit, to_json(key), batch_id, sorted(p.arrived), {s: _batch(b) for s, b in p.inputs.items()}]
            for (unit, key), partials in scheduler.partial.items()
            for batch_id, p in partials.items()
        ],
        "early": [[_batch(batch) for batch in batches.values()] for batches in scheduler.early.values()],
    }


def _batch(batch: Batch | None) -> Any:
    return None if batch is None else [batch.stream, batch.id, to_json(batch.key), to_json(list(batch.rows))]


def restore(engine: Engine, meta: Mapping[str, Any]) -> None:
    """Bring a freshly opened engine to the state that was saved with its base; nothing to do for a new one."""
    if not meta:
        return
    engine.acceptance.sequence = meta["sequence"]
    engine.offsets.update({source: from_json(offset) for source, offset in meta["offsets"].items()})
    engine.outbox.restore(meta["subscriptions"])
    engine.runtime.emitted.restore(meta.get("emitted"), engine.sequence)
    for name, sequences in meta["borders"].items():
        for key, last, digests in sequences if name in engine.borders else ():
            sequence = engine.borders[name].sequences[from_json(key)] = Sequence()
            sequence.last = last
            sequence.digests = {int(batch_id): digest for batch_id, digest in digests.items()}
    _restore_windows(engine, meta["windows"])
    engine.journal.aborts.extend(Abort(**{**a, "at": dt.datetime.fromisoformat(a["at"])}) for a in meta["aborts"])
    engine.journal.dead_letters = [
        DeadLetter(**{**d, "at": dt.datetime.fromisoformat(d["at"])}) for d in meta["dead_letters"]
    ]
    engine.database.restore_set_aside(meta.get("set_aside", ()))
    for name, chains in meta["versions"].items():
        engine.database.tables[name].restore_chains(chains, from_json)
    _restore_unfinished(engine, meta["unfinished"])


def columns_of(schema: TableSchema) -> list[list[Any]]:
    return [[c.name, c.type.sql, c.nullable] for c in schema.columns] + [["PRIMARY KEY", *schema.primary_key]]


def check_schemas(app: App, meta: Mapping[str, Any]) -> None:
    """Refuse a directory whose tables were declared differently, except where the change is safe.

    Safe: a new table, a new procedure, nullable columns added at the end of a table.
    """
    if meta and meta["format"] != FORMAT:
        raise RecoveryRefused(
            f"base.duckdb has format {meta['format']}, this tidegate reads format {FORMAT}; "
            + ("upgrade tidegate" if meta["format"] > FORMAT else OLDER)
        )
    if meta and meta["app"] != app.name:
        raise RecoveryRefused(
            f"the directory belongs to app {meta['app']!r}, not {app.name!r}; open it with the right app"
        )
    for name, stored in meta.get("schemas", {}).items():
        schema = app.tables.get(name)
        if schema is None:
            raise RecoveryRefused(
                f"table {name} is stored, but the app no longer declares it; declare it again (its data would be lost)",
                table=name,
            )
        declared = columns_of(schema)
        added = declared[len(stored) - 1 : -1]
        same = stored[:-1] == declared[: len(stored) - 1] and stored[-1] == declared[-1]
        if not same or not all(nullable for _, _, nullable in added):
            raise RecoveryRefused(
                f"table {name} is stored as ({_told(stored)}), but declared as ({_told(declared)}). Adding nullable columns at "
                f"the end is safe; for anything else declare a new table and copy the rows in a procedure",
                table=name,
            )


def _told(columns: list[list[Any]]) -> str:
    *plain, (_, *key) = columns
    told = [f"{name} {kind}" + ("" if nullable else " NOT NULL") for name, kind, nullable in plain]
    return ", ".join([*told, f"PRIMARY KEY ({', '.join(key)})"])


def _restore_windows(engine: Engine, windows: list[Any]) -> None:
    for procedure, name, key, was, saved in windows:
        program = engine.runtime.programs.get(procedure)
        if program is None or name not in program.windows:
            continue
        spec = program.window_spec(name)
        if was != _told_window(spec):
            raise RecoveryRefused(
                f"window {name} of procedure {procedure} was declared as ({was}) and holds rows, but now it is declared as "
                f"({_told_window(spec)}), which they do not fit. Declare it as it was, or give the changed window another "
                f"name: it then begins empty"
            )
        program.window(name, from_json(key)).restore(base64.b64decode(saved))


def _told_window(spec: Declared) -> str:
    """What a window's contents depend on."""
    if spec.plain:
        return f"rows by {spec.kind}"  # its range and slide may change
    return str(spec) if spec.compute is None else f"{spec} computing {spec.compute!r}"


def _restore_unfinished(engine: Engine, saved: Mapping[str, Any]) -> None:
    scheduler = engine.scheduler
    units = {unit.name: unit for unit in engine.graph.units}
    for e in saved["executions"]:
        if e["unit"] not in units or not set(e["inputs"]) <= set(engine.app.streams):
            raise TidegateError(
                f"{engine.database.base.path}: {e['unit']} still waits with batch {e['batch_id']}, but the app no longer has "
                f"such a procedure or nested transaction on {', '.join(e['inputs'])}; declare it as it was, let it finish, "
                f"then remove it"
            )
    for c in saved["calls"]:
        if c["procedure"] not in engine.graph.oltp:
            raise TidegateError(
                f"{engine.database.base.path}: a call of {c['procedure']} still waits, but the app no longer has this "
                f"procedure; declare it as it was, let it finish, then remove it"
            )
    with engine.lock:
        readmitted = []
        work = [*saved["executions"], *saved["calls"]]
        for e in sorted(work, key=lambda e: e["position"]):
            if "procedure" in e:
                readmitted.append(_readmitted_call(engine, e))
                continue
            inputs = {stream: _restored(engine, batch) for stream, batch in e["inputs"].items()}
            execution = scheduler.readmit(
                units[e["unit"]],
                e["position"],
                from_json(e["key"]),
                e["batch_id"],
                inputs,
                set(e["missing"]),
                e.get("entry", sequence_of(e["position"])),
                e["started"],
            )
            unit, time = engine.runtime.units[e["unit"]], dt.datetime.fromisoformat(e["time"])
            execution.context = Context(unit, time, Ticket(engine.teller))
            readmitted.append(execution)
        for unit, key, batch_id, arrived, inputs in saved["partial"]:
            scheduler.restore_partial(
                unit, from_json(key), batch_id, set(arrived), {s: _restored(engine, b) for s, b in inputs.items()}
            )
        for batches in saved["early"]:
            for batch in batches:
                scheduler.restore_early(_restored(engine, batch))
        scheduler.reconsider(readmitted, saved["halted"], saved["parked"])


def _readmitted_call(engine: Engine, call: Mapping[str, Any]) -> Execution:
    unit = engine.runtime.units[call["procedure"]]
    named = {name: from_json(value) for name, value in call["named"].items()}
    again = Call(unit, *unit.members[0].bind_call(from_json(call["arguments"]), named))
    execution = engine.scheduler.readmit_call(unit.unit, call["position"], again.partitions)
    execution.context = Context(unit, dt.datetime.fromisoformat(call["time"]), Ticket(engine.teller), again)
    return execution


def _restored(engine: Engine, saved: Any) -> Any:
    if saved is None:
        return None
    stream, batch_id, key, rows = saved
    relation = engine.app.streams[stream].relation
    return Batch(relation, batch_id, tuple(widened(relation, from_json(row)) for row in rows), from_json(key))
