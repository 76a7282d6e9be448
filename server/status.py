"""What an engine is doing, as one JSON value: for ``tidegate status``, the console and metrics."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.engine.questions import Question, questions
from tidegate.engine.system_views import VIEWS, lag_s
from tidegate.server.driver import Driver
from tidegate.server.feeds import Feeds
from tidegate.txn.locks import LowWaterMarks
from tidegate.txn.positions import describe
from tidegate.wire import RowWire

SHOWN = 200  # rows of each list; counts are exact
LOCK_TIMEOUT_S = 1.0


def look(engine: Engine, driver: Driver, feeds: Feeds) -> dict[str, Any]:
    """The state of everything. Waits at most a second for the engine's lock: a long procedure must not hide it."""
    found = {**counters(engine, driver, feeds), "at": dt.datetime.now(dt.UTC), "busy": False}
    if not engine.lock.acquire(timeout=LOCK_TIMEOUT_S):
        return {**found, "busy": True}
    try:
        return {**found, **_details(engine, feeds)}
    finally:
        engine.lock.release()


def counters(engine: Engine, driver: Driver, feeds: Feeds) -> dict[str, Any]:
    """Numbers that can be read at any time, without the engine's lock."""
    durable = engine.durable
    merger = engine.merger
    return {
        "app": engine.app.name,
        "closed": engine.closed,
        "sequence": engine.sequence,
        "executor": engine.config.executor,
        "capacity": engine.config.capacity,
        "unfinished": len(engine.scheduler.live) + len(engine.scheduler.parked),
        "halted": sorted({dataflow for dataflow, _ in list(engine.scheduler.halted)}),
        "bottleneck": engine.watching.bottleneck(),
        "procedures_busy": engine.watching.busy(),
        "running": [
            {
                "procedure": txn.procedure,
                "position": describe(txn.position),
                "batch_id": txn.batch_id,
                "running_s": seconds,
            }
            for txn, seconds in engine.lookout.running()
            if seconds > 0
        ],
        "requests_waiting": driver.queued,
        "overloaded": driver.refused,
        "pushed": dict(driver.pushed),
        "emitted": dict(feeds.emitted),
        "commits": dict(engine.journal.commits),
        "aborts": dict(engine.journal.undone),
        "timers": len(engine.runtime.timers.pending),
        "dead_letters": len(engine.journal.dead_letters),
        "unmerged_rows": engine.database.unmerged,
        "memory": engine.database.memory_facts(),
        "merges": merger.count,
        "merge_rows": merger.rows,
        "merge_seconds": merger.seconds,
        **merger.facts(),
        "log": None
        if durable is None
        else {
            "end": durable.writer.end,
            "synced": durable.writer.synced,
            "unsynced": max(0, durable.writer.appended - durable.writer.synced),  # marks do not count
            "syncs": durable.writer.syncs,
            "taking": durable.writer.taking,
        },
        "sources": {
            name: {
                "stream": i.stream,
                "state": i.state,
                "rows": i.rows,
                "rejected": i.rejected,
                "undone": i.undone,
                "halted": i.halted,
                "lag": i.lag,
            }
            for name, i in list(engine.ingestions.items())
        },
        "subscribers": feeds.facts(),
        "fan_out_queued": feeds.queued,
    }


def _details(engine: Engine, feeds: Feeds) -> dict[str, Any]:
    waiting = list(engine.scheduler.waiting())
    queued: Counter[str] = Counter()
    for execution in waiting:
        queued.update((*execution.unit.inputs, *execution.unit.awaited))
    oldest = min((e.context.time for e in waiting), default=None)
    return {
        "oldest_unfinished_s": 0.0 if oldest is None else (engine.clock.now() - oldest).total_seconds(),
        "streams": [_stream(engine, name, queued[name]) for name in engine.app.streams],
        "executions": _view(engine, "executions"),
        "locks": _view(engine, "locks"),
        "low_water_marks": _marks(engine),
        "questions": [question_facts(q, feeds.wires) for q in islice(questions(engine), SHOWN)],
        "recent_answers": _newest(engine, "answers", engine.journal.answers),
        "windows": _view(engine, "windows"),
        "tables": _view(engine, "tables"),
        "set_aside": _view(engine, "set_aside"),
        "next_timers": _view(engine, "timers"),
        "recent_merges": _newest(engine, "merges", engine.merger.done),
        "halts": _view(engine, "halted"),
        "recent_aborts": _newest(engine, "aborts", engine.journal.aborts),
        "recent_dead_letters": _newest(engine, "dead_letters", engine.journal.dead_letters),
        "subscriptions": [
            {
                "name": name,
                "stream": s.stream,
                "waiting": len(s),
                "lag_s": lag_s(s),
                "sink": name in engine.outbox.deliveries,
            }
            for name, s in islice(engine.outbox.subscriptions.items(), SHOWN)
        ],
        "topics": _view(engine, "topics"),
    }


def question_facts(question: Question, wires: dict[str, RowWire]) -> dict[str, Any]:
    """A question as a person sees it: where to answer, until when, and what to decide."""
    return {
        "question": question.id,
        "digest": question.digest,
        "stream": question.stream,
        "key": question.key,
        "batch_id": question.batch_id,
        "unit": question.unit,
        "position": question.position,
        "asked_s": question.asked_s,
        "deadline_in_s": question.deadline_in_s,
        "batches": {name: wires[name].write(batch.rows) for name, batch in question.batches.items()},
    }


def _stream(engine: Engine, name: str, queued: int) -> dict[str, Any]:
    stream = engine.app.streams[name]
    border = engine.borders.get(name)
    sequences = {} if border is None else border.sequences
    unkeyed = sequences.get(None)
    return {
        "stream": name,
        "border": stream.border,
        "awaited": stream.awaited,
        "key": stream.key,
        "keys": len(sequences) if stream.key is not None else None,
        "last_batch_id": None if unkeyed is None else unkeyed.last,
        "queued": queued,
    }


def _marks(engine: Engine) -> list[dict[str, Any]]:
    """The positions that later readers and writers of an item wait for."""
    locks = engine.scheduler.locks
    if not isinstance(locks, LowWaterMarks):
        return []
    marks = []
    for item, mark in islice(locks.marks().items(), SHOWN):
        holder = engine.scheduler.live.get(mark)
        marks.append(
            {"item": str(item), "position": describe(mark), "held_by": None if holder is None else holder.unit.name}
        )
    return marks


def _view(engine: Engine, name: str) -> list[dict[str, Any]]:
    view = VIEWS[f"tidegate_{name}"]
    return _as_dicts(view.relation.column_names, islice(view.rows(engine), SHOWN))


def _newest(engine: Engine, name: str, kept: Any) -> list[dict[str, Any]]:
    view = VIEWS[f"tidegate_{name}"]
    rows = islice(view.rows(engine), max(0, len(kept) - SHOWN), None)
    return _as_dicts(view.relation.column_names, rows)[::-1]


def _as_dicts(names: list[str], rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
