"""System views: the engine's state as tables, ``tidegate.executions`` and so on."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.engine.halts import halted_rows
from tidegate.engine.questions import questions
from tidegate.errors import TidegateError, text_of
from tidegate.storage.codec import to_json
from tidegate.storage.memory import table_bytes
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.watermarks import END
from tidegate.streams.windows import WindowState
from tidegate.txn.execution import Execution, Why
from tidegate.txn.log.record import from_us
from tidegate.txn.positions import describe

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.outside.durable import DurableSubscription


@dataclass(frozen=True)
class Merge:
    """One merge of committed changes into the base."""

    number: int
    rows: int
    seconds: float
    at: dt.datetime


def _questions(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for q in questions(engine):
        told = {name: [row._asdict() for row in batch] for name, batch in q.batches.items()}
        yield (
            q.stream,
            _text(q.key),
            q.batch_id,
            q.unit,
            q.position,
            q.asked_s,
            q.deadline_in_s,
            json.dumps(told, default=str),
            q.id,
            q.digest,
        )


def _answers(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for a in engine.journal.answers:
        yield a.stream, a.key, a.batch_id, a.unit, a.position, a.at, a.rows, a.digest, a.outcome


class SystemView:
    """A relation computed from an engine on demand."""

    def __init__(self, name: str, columns: str, rows: Callable[[Engine], Iterable[tuple[Any, ...]]]) -> None:
        parsed = (column.split() for column in columns.split(","))
        self.relation = Relation(f"tidegate_{name}", tuple(Column(n, column_type(kind)) for n, kind in parsed))
        self.rows = rows


def _executions(engine: Engine) -> Iterable[tuple[Any, ...]]:
    now = engine.clock.monotonic()
    for e in engine.scheduler.waiting():
        started = e.context.started_at
        running = None if started is None else now - started
        yield (
            describe(e.position),
            e.unit.name,
            e.unit.dataflow,
            e.batch_id,
            _text(e.key),
            e.state.value,
            str(e.reason),
            running,
            e.context.time,
        )
    for txn, seconds in engine.lookout.running():
        if txn.position not in engine.scheduler.live:  # a serial engine runs most without the scheduler
            unit = txn.unit.unit
            place = (describe(txn.position), unit.name, unit.dataflow, txn.batch_id, _text(txn.key))
            yield *place, "running", f"runs {txn.procedure}", seconds, txn.time


def _locks(engine: Engine) -> Iterable[tuple[Any, ...]]:
    now = engine.clock.now()
    for e in engine.scheduler.waiting():
        waits_for = e.reason.item if e.reason.why is Why.LOCK else None
        for mode, items in (("read", e.reads), ("write", e.writes)):
            for item in items:
                waiting = waits_for == item
                behind = describe(e.reason.behind) if waiting and e.reason.behind is not None else None
                holder = engine.scheduler.live.get(e.reason.behind) if waiting and e.reason.behind is not None else None
                yield (
                    item.table,
                    None if item.partition is None else ", ".join(map(str, item.partition)),
                    mode,
                    describe(e.position),
                    e.unit.name,
                    not waiting and e.started,
                    behind,
                    None if holder is None else holder.unit.name,
                    (now - e.context.time).total_seconds(),
                    None if e.parts is None else ", ".join(sorted(e.missing or e.parts)),
                )


def _streams(engine: Engine) -> Iterable[tuple[Any, ...]]:
    waiting = list(engine.scheduler.waiting())
    for stream in engine.app.streams.values():
        border = engine.borders.get(stream.name)
        for key, sequence in (border.sequences.items() if border is not None else ()) or [(None, None)]:
            queued = sum(1 for e in waiting if _reads(e, stream.name) and (border is None or e.key == key))
            yield (
                stream.name,
                stream.border,
                stream.key,
                _text(key),
                None if sequence is None else sequence.last,
                queued,
            )


def _reads(execution: Execution, stream: str) -> bool:
    """Does it have, or wait for, a batch of this stream? An either-procedure has only some of its inputs."""
    return stream in execution.unit.inputs and (stream in execution.missing or stream in execution.inputs)


def _states(engine: Engine) -> Iterator[tuple[str, str, WindowState, Any]]:
    for program in engine.runtime.programs.values():
        for name, states in program.windows.items():
            for key, state in states.items():
                yield program.name, name, state, key


def _windows(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for procedure, name, state, key in _states(engine):
        spec = state.spec
        timed = (spec.by_time and spec.on is None) or spec.timed
        mark = state.watermark if timed else None
        watermark = None if mark is None else dt.datetime.max if mark >= END else from_us(mark)
        told = None if spec.compute is None else repr(spec.compute)
        yield (
            procedure,
            name,
            spec.stream,
            _text(key),
            str(spec),
            told,
            state.held(),
            state.bytes_held(),
            state.fired,
            watermark,
            state.late,
        )


def _late_rows(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for procedure, name, state, key in _states(engine):
        for row in state.late_rows:
            stream, row = row if len(state.spec.streams) > 1 else (state.spec.stream, row)
            yield procedure, name, stream, _text(key), json.dumps(to_json(tuple(row)))


def _tables(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for table in engine.database.tables.values():
        partition_by = ", ".join(table.schema.partition_by) or None
        cold = engine.database.cold.get(table.name)
        yield (
            *(table.name, partition_by, len(table.rows), table.complete, len(table.dirty), len(table.chains)),
            *(table_bytes(table), None if cold is None else cold.size, table.cold_reads),
        )


def _merge_state(engine: Engine) -> Iterable[tuple[Any, ...]]:
    yield engine.database.unmerged, *engine.merger.facts().values()


def _set_aside(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """Rows that DuckDB rejects."""
    for entry in list(engine.database.base.aside.rows.values()):
        since = None if entry.since is None else dt.datetime.fromisoformat(entry.since)
        told = json.dumps(to_json(entry.row))
        yield entry.table, _text(entry.key), entry.column, entry.cause, since, told


def _evaluations(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """One row for each window that is computed by a plan."""
    for program in engine.runtime.programs.values():
        for name, plan in program.plans.items():
            backend, ahead = plan.backend, program.ahead.get(name)
            decisions = "; ".join(f"{operation}: {d.way}" for operation, d in plan.decisions.items())
            counts = (None,) * 4 if ahead is None else (ahead.depth.now, ahead.foreseen, ahead.used, ahead.voided)
            named = plan.spec.backend or engine.config.backend
            note = backend.notes[-1] if backend.notes else None
            yield (program.name, name, named, repr(plan.pattern), decisions, *counts, backend.takeovers, note)


def _sources(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """Every source that ever brought rows, and the state of those that run now."""
    for name in {**engine.offsets, **engine.ingestions}:
        position = json.dumps(to_json(engine.offsets.get(name)))
        at_work = engine.ingestions.get(name)
        if at_work is None:
            yield name, None, None, None, None, None, None, None, position, None
        else:
            error = None if at_work.error is None else text_of(at_work.error)
            done = (at_work.rows, at_work.rejected, at_work.undone)
            known = (at_work.stream, at_work.state, *done, at_work.halted, at_work.lag)
            yield name, *known, position, error


def _deliveries(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for name, subscription in engine.outbox.subscriptions.items():
        delivery = engine.outbox.deliveries.get(name)
        facts: tuple[Any, ...] = (None,) * 5
        if delivery is not None:
            error = None if delivery.error is None else text_of(delivery.error)
            facts = (type(delivery.sink).__name__, delivery.state, delivery.delivered, delivery.refused, error)
        yield (name, subscription.stream, len(subscription), *facts)


def _procedures(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """How often each procedure has run, how busy it is, and what its work waits for."""
    busy, waits = engine.watching.busy(), engine.watching.waits_for()
    commits, undone = engine.journal.commits, engine.journal.undone
    for unit in (*engine.graph.units, *engine.graph.oltp.values()):
        for member in unit.members:
            if not member.internal:
                counts = commits.get(unit.name, 0), undone.get(member.name, 0)
                yield member.name, unit.name, unit.dataflow, *counts, busy.get(member.name, 0.0), waits.get(unit.name)


def _hot_keys(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """The keys that most work is for, of each unit."""
    for unit, key, share in engine.watching.hot_keys():
        yield unit, _text(key), share


def _subscriptions(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """Who follows a stream under a name, and how far behind it is."""
    for name, s in engine.outbox.subscriptions.items():
        on_lag = s.on_lag if isinstance(s.on_lag, str) else f"drop {s.on_lag[1]}"
        yield name, s.stream, s.done.next, s.lag, lag_s(s), on_lag, len(s.done.above), name in engine.outbox.deliveries


def lag_s(subscription: DurableSubscription) -> float | None:
    """How long its oldest batch has waited; None when that can't be read."""
    try:
        return subscription.lag_s
    except TidegateError:
        return None


def _topics(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """What is kept of streams, and how much room it takes."""
    for topic in engine.outbox.topics:
        keep = None if topic.keep is None else topic.keep.text
        yield (
            topic.stream,
            topic.id,
            keep,
            topic.begin,
            topic.end,
            topic.end - topic.begin,
            topic.bytes(),
            len(topic.followers),
        )


def _aborts(engine: Engine) -> Iterable[tuple[Any, ...]]:
    for a in engine.journal.aborts:
        rows = a.rows
        yield a.position, a.procedure, a.batch_id, a.key, a.reason, a.at, rows.text, rows.count, rows.truncated


def _timers(engine: Engine) -> Iterable[tuple[Any, ...]]:
    """Everything that the clock will bring in, what is due first in front."""
    timers = engine.runtime.timers
    for stream, schedule in timers.schedules.items():
        reached = timers.reached.get(stream)
        due = None if reached is None else from_us(schedule.times.after(reached))
        yield None, stream, due, stream.removesuffix("_ticks"), str(schedule), None
    for timer in timers.in_order():
        yield (
            timer.id,
            timer.stream,
            from_us(timer.due_us),
            timer.procedure,
            None,
            json.dumps(to_json(tuple(timer.row))),
        )


VIEWS = {
    view.relation.name: view
    for view in (
        SystemView(
            "executions",
            "position VARCHAR, unit VARCHAR, dataflow VARCHAR, batch_id BIGINT, key VARCHAR, state VARCHAR, "
            "reason VARCHAR, running_s DOUBLE, accepted_at TIMESTAMP",
            _executions,
        ),
        SystemView(
            "locks",
            "table_name VARCHAR, partition VARCHAR, mode VARCHAR, position VARCHAR, unit VARCHAR, held BOOLEAN, "
            "waits_behind VARCHAR, held_by VARCHAR, age_s DOUBLE, narrowed_by VARCHAR",
            _locks,
        ),
        SystemView(
            "questions",
            "stream VARCHAR, key VARCHAR, batch_id BIGINT, unit VARCHAR, position VARCHAR, asked_s DOUBLE, "
            "deadline_in_s DOUBLE, batches VARCHAR, question VARCHAR, digest VARCHAR",
            _questions,
        ),
        SystemView(
            "answers",
            "stream VARCHAR, key VARCHAR, batch_id BIGINT, unit VARCHAR, position VARCHAR, at_time TIMESTAMP, "
            "rows VARCHAR, digest VARCHAR, outcome VARCHAR",
            _answers,
        ),
        SystemView(
            "streams",
            "stream VARCHAR, border BOOLEAN, key_column VARCHAR, key VARCHAR, last_batch_id BIGINT, queued BIGINT",
            _streams,
        ),
        SystemView(
            "windows",
            "procedure VARCHAR, name VARCHAR, stream VARCHAR, key VARCHAR, kind VARCHAR, computes VARCHAR, "
            "held BIGINT, bytes BIGINT, fired BIGINT, watermark TIMESTAMP, late BIGINT",
            _windows,
        ),
        SystemView(
            "evaluations",
            "procedure VARCHAR, name VARCHAR, backend VARCHAR, pattern VARCHAR, way VARCHAR, depth BIGINT, foreseen BIGINT, "
            "used BIGINT, void BIGINT, takeovers BIGINT, note VARCHAR",
            _evaluations,
        ),
        SystemView(
            "late_rows",
            "procedure VARCHAR, window_name VARCHAR, stream VARCHAR, key VARCHAR, row_values VARCHAR",
            _late_rows,
        ),
        SystemView(
            "aborts",
            "position VARCHAR, procedure VARCHAR, batch_id BIGINT, key VARCHAR, reason VARCHAR, at_time TIMESTAMP, "
            "rows VARCHAR, row_count BIGINT, truncated BOOLEAN",
            _aborts,
        ),
        SystemView(
            "halted",
            "dataflow VARCHAR, key VARCHAR, position VARCHAR, unit VARCHAR, procedure VARCHAR, batch_id BIGINT, "
            "error VARCHAR, trace VARCHAR, waiting BIGINT, at_time TIMESTAMP, rows VARCHAR, row_count BIGINT, "
            "truncated BOOLEAN",
            halted_rows,
        ),
        SystemView(
            "dead_letters",
            "position VARCHAR, procedure VARCHAR, stream VARCHAR, batch_id BIGINT, key VARCHAR, rows VARCHAR, "
            "error VARCHAR, at_time TIMESTAMP",
            lambda e: (
                (d.position, d.procedure, d.stream, d.batch_id, d.key, d.rows, d.error, d.at)
                for d in e.journal.dead_letters
            ),
        ),
        SystemView(
            "merges",
            "number BIGINT, rows BIGINT, seconds DOUBLE, at_time TIMESTAMP",
            lambda e: ((m.number, m.rows, m.seconds, m.at) for m in e.merger.done),
        ),
        SystemView(
            "merge_state",
            "unmerged BIGINT, last_merge TIMESTAMP, last_merge_age_s DOUBLE, tries BIGINT, failing_since TIMESTAMP, "
            "last_failure VARCHAR, last_failure_at TIMESTAMP, rows_set_aside BIGINT",
            _merge_state,
        ),
        SystemView(
            "set_aside",
            "table_name VARCHAR, key VARCHAR, column_name VARCHAR, cause VARCHAR, since TIMESTAMP, row_values VARCHAR",
            _set_aside,
        ),
        SystemView(
            "sources",
            "name VARCHAR, stream VARCHAR, state VARCHAR, rows BIGINT, rejected BIGINT, undone BIGINT, halted VARCHAR, "
            "lag BIGINT, position VARCHAR, error VARCHAR",
            _sources,
        ),
        SystemView(
            "deliveries",
            "name VARCHAR, stream VARCHAR, waiting BIGINT, sink VARCHAR, state VARCHAR, delivered BIGINT, refused BIGINT, "
            "error VARCHAR",
            _deliveries,
        ),
        SystemView(
            "procedures",
            "procedure VARCHAR, unit VARCHAR, dataflow VARCHAR, committed BIGINT, undone BIGINT, busy DOUBLE, waits_for VARCHAR",
            _procedures,
        ),
        SystemView("hot_keys", "unit VARCHAR, key VARCHAR, share DOUBLE", _hot_keys),
        SystemView(
            "subscriptions",
            "name VARCHAR, stream VARCHAR, next_offset BIGINT, lag BIGINT, lag_s DOUBLE, on_lag VARCHAR, "
            "acknowledged_above BIGINT, delivery BOOLEAN",
            _subscriptions,
        ),
        SystemView(
            "topics",
            "stream VARCHAR, topic VARCHAR, keep VARCHAR, first_offset BIGINT, end_offset BIGINT, batches BIGINT, bytes BIGINT, "
            "subscriptions BIGINT",
            _topics,
        ),
        SystemView(
            "timers",
            "timer VARCHAR, stream VARCHAR, due TIMESTAMP, procedure VARCHAR, schedule VARCHAR, row_values VARCHAR",
            _timers,
        ),
        SystemView(
            "tables",
            "table_name VARCHAR, partition_by VARCHAR, rows_in_memory BIGINT, whole BOOLEAN, unmerged BIGINT, "
            "versioned BIGINT, bytes_in_memory BIGINT, cold_bytes BIGINT, cold_reads BIGINT",
            _tables,
        ),
    )
}


def _text(key: Any) -> str | None:
    return None if key is None else str(key)
