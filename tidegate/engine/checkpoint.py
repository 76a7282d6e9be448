"""The engine's own state, written in the same DuckDB transaction as the tables, and read back when it opens.

It consists of the sequence number, the batch-ids accepted on every border stream, window contents, aborts and dead
letters, a fingerprint of what was emitted, and everything accepted but unfinished: executions that wait (for a person,
a lock, a batch) with their inputs and what they had done when they asked, and the old row versions that they may still
read.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.dataflows.fingerprint import fingerprint
from tidegate.directory.upgrading.declared import declared_facts
from tidegate.errors import ProcedureFailed, RecoveryRefused
from tidegate.storage.codec import from_json, to_json, widened
from tidegate.streams.batch import Batch
from tidegate.streams.border import Sequence
from tidegate.streams.watermarks import NEVER
from tidegate.txn.context import Context
from tidegate.txn.entries import Call
from tidegate.txn.execution import Coming, Execution, Parts
from tidegate.txn.journal import Abort, Answer, DeadLetter
from tidegate.txn.kept import KeptRows
from tidegate.txn.log.reader import OLDER
from tidegate.txn.log.record import Asked
from tidegate.txn.positions import sequence_of
from tidegate.txn.shown import Shown, read_record, record_of
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

FORMAT = 4


def saved_state(engine: Engine, lsn: int) -> dict[str, Any]:
    """Everything but the tables, as of ``lsn`` in the log. The caller holds the engine's lock."""
    return {
        "format": FORMAT,
        "at": engine.clock.now().isoformat(),
        "app": engine.app.name,
        "fingerprint": fingerprint(engine.app),
        "lsn": lsn,
        **({} if engine.durable is None else engine.durable.stands),
        "declared": declared_facts(engine.graph),
        "offsets": {source: to_json(offset) for source, offset in engine.offsets.items()},
        "topics": engine.outbox.topics.saved(lsn),
        "subscriptions": engine.outbox.saved(),
        "emitted": engine.runtime.emitted.save(),
        "sequence": engine.sequence,
        "borders": {
            name: [[to_json(key), s.last, s.digests, s.mark] for key, s in border.sequences.items()]
            for name, border in engine.borders.items()
        },
        "timers": engine.runtime.timers.save(),
        "finished": [name for name, border in engine.borders.items() if border.finished],
        "marks": [
            [program.name, to_json(key), marks]
            for program in engine.runtime.programs.values()
            for key, marks in program.marks.items()
        ],
        "windows": [
            [program.name, name, to_json(key), state.stands(), base64.b64encode(state.save()).decode()]
            for program in engine.runtime.programs.values()
            for name, states in program.windows.items()
            for key, state in states.items()
        ],
        "aborts": [_abort(abort) for abort in engine.journal.aborts],
        "dead_letters": [{**asdict(d), "at": d.at.isoformat()} for d in engine.journal.dead_letters],
        "answers": [{**asdict(a), "at": a.at.isoformat()} for a in engine.journal.answers],
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
                "partitions": {table: to_json(list(values)) for table, values in e.partitions.items()},
                **({"room": e.unit.room} if e.unit.divided else {}),
                **({} if e.parts is None else {"parts": _parts(e.parts)}),
                "time": e.context.time.isoformat(),
                "shown": [
                    msgspec.to_builtins(record_of(e.position, question, e.context.program))
                    for question in e.context.shown
                ],
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
        "halted": [[e.position, _failure(e)] for e in scheduler.halted.values()],
        "partial": [
            [
                unit,
                to_json(key),
                batch_id,
                sorted(p.arrived),
                {s: _batch(b) for s, b in p.inputs.items()},
                [_batch(b) for b in p.named.values()],
            ]
            for (unit, key), partials in scheduler.partial.items()
            for batch_id, p in partials.items()
        ],
        "early": [[_batch(batch) for batch in batches.values()] for batches in scheduler.early.values()],
    }


def _parts(parts: Parts) -> dict[str, Any]:
    """What is known of the keys of an execution that is still to be divided; "coming": what a key has is not."""
    return {
        stream: [[to_json(key), "coming" if isinstance(part, Coming) else _batch(part)] for key, part in by_key.items()]
        for stream, by_key in parts.items()
    }


def _failure(execution: Execution) -> dict[str, Any] | None:
    """Why a dataflow is halted in front of this execution."""
    failure = execution.context.failure
    if failure is None:
        return None
    return {
        "message": str(failure),
        "procedure": failure.procedure,
        "attempts": failure.attempts,
        "trace": failure.trace,
    }


def _abort(abort: Abort) -> dict[str, Any]:
    rows = abort.rows
    return {**vars(abort), "at": abort.at.isoformat(), "rows": [rows.text, rows.count, rows.truncated]}


def _batch(batch: Batch | None) -> Any:
    if batch is None:
        return None
    return [batch.stream, batch.id, to_json(batch.key), to_json(list(batch.rows)), batch.watermark]


def restore(engine: Engine, meta: Mapping[str, Any]) -> None:
    """Bring a freshly opened engine to the state that was saved with its base; nothing to do for a new one.

    Everything named in it is declared: what was not has been carried over, or opening was refused, before.
    """
    if not meta:
        return
    engine.acceptance.sequence = meta["sequence"]
    engine.offsets.update({source: from_json(offset) for source, offset in meta["offsets"].items()})
    engine.outbox.topics.restore(meta["topics"])
    engine.outbox.restore(meta["subscriptions"])
    engine.runtime.emitted.restore(meta.get("emitted"), engine.sequence)
    for name, sequences in meta["borders"].items():
        for key, last, digests, *mark in sequences:
            sequence = engine.borders[name].sequences[from_json(key)] = Sequence()
            sequence.last = last
            sequence.mark = mark[0] if mark else NEVER  # none: saved by a release that did not have them
            sequence.digests = {int(batch_id): digest for batch_id, digest in digests.items()}
    for name in meta.get("finished", ()):
        engine.borders[name].finished = True
    if "timers" in meta:  # none: saved by a release that did not have them
        engine.runtime.timers.restore(meta["timers"])
    for procedure, key, marks in meta.get("marks", ()):
        engine.runtime.programs[procedure].marks[from_json(key)] = marks
    _restore_windows(engine, meta["windows"])
    for saved in meta["aborts"]:
        at, rows = dt.datetime.fromisoformat(saved["at"]), KeptRows.restored(*saved["rows"])
        engine.journal.keep(Abort(**{**saved, "at": at, "rows": rows}))
    for saved in meta.get("answers", ()):  # none: saved by a release that did not keep them
        engine.journal.answers.append(Answer(**{**saved, "at": dt.datetime.fromisoformat(saved["at"])}))
    engine.journal.dead_letters = [
        DeadLetter(**{**d, "at": dt.datetime.fromisoformat(d["at"])}) for d in meta["dead_letters"]
    ]
    engine.database.restore_set_aside(meta.get("set_aside", ()))
    for name, chains in meta["versions"].items():
        engine.database.tables[name].restore_chains(chains, from_json)
    _restore_unfinished(engine, meta["unfinished"])


def check_format(meta: Mapping[str, Any]) -> None:
    if meta and meta["format"] != FORMAT:
        raise RecoveryRefused(
            f"base.duckdb has format {meta['format']}, this tidegate reads format {FORMAT}; "
            + ("upgrade tidegate" if meta["format"] > FORMAT else OLDER)
        )


def _restore_windows(engine: Engine, windows: list[Any]) -> None:
    """A window of which only is known where it stood begins anew."""
    for procedure, name, key, stands, saved in windows:
        state = engine.runtime.programs[procedure].window(name, from_json(key))
        if saved is None:
            state.begin_after(stands)
        else:
            state.restore(base64.b64decode(saved))


def _restore_unfinished(engine: Engine, saved: Mapping[str, Any]) -> None:
    scheduler = engine.scheduler
    units = {unit.name: unit for unit in engine.graph.units}
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
                {table: dict.fromkeys(from_json(values)) for table, values in e["partitions"].items()},
                _restored_parts(engine, e["parts"]) if "parts" in e else None,
            )
            unit, time = engine.runtime.units[e["unit"]], dt.datetime.fromisoformat(e["time"])
            execution.context = Context(unit, time, Ticket(engine.teller))
            execution.context.shown = _restored_questions(engine, execution, e["shown"])
            readmitted.append(execution)
        for unit, key, batch_id, arrived, inputs, named in saved["partial"]:
            own = {s: _restored(engine, b) for s, b in inputs.items()}
            others = {b.stream: b for b in (_restored(engine, b) for b in named)}
            scheduler.restore_partial(unit, from_json(key), batch_id, set(arrived), own, others)
        for batches in saved["early"]:
            for batch in batches:
                scheduler.restore_early(_restored(engine, batch))
        for at, failure in saved["halted"]:
            scheduler.live[at].context.failure = None if failure is None else ProcedureFailed(**failure)
        scheduler.reconsider(readmitted, [at for at, _ in saved["halted"]], saved["parked"])
        for execution in readmitted:
            last = execution.context.shown[-1] if execution.context.shown else None
            if last is not None and last.point is not None:
                scheduler.restore_suspended(execution, last.stream)


def _restored_parts(engine: Engine, saved: Mapping[str, Any]) -> Parts:
    return {
        stream: {from_json(key): Coming.COMING if part == "coming" else _restored(engine, part) for key, part in by_key}
        for stream, by_key in saved.items()
    }


def _restored_questions(engine: Engine, execution: Execution, saved: list[Any]) -> tuple[Shown, ...]:
    """The questions it had asked. Their deadlines begin again."""
    unit, now = execution.context.program, engine.clock.monotonic()
    records = [msgspec.convert(record, Asked) for record in saved]
    return tuple(read_record(record, unit, execution.batch_id, execution.key, now) for record in records)


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
    stream, batch_id, key, rows, *watermark = saved
    relation = engine.app.streams[stream].relation
    kept = tuple(widened(relation, from_json(row)) for row in rows)
    return Batch(relation, batch_id, kept, from_json(key), *watermark)
