"""What happened in one run: what entered the engine, in order, and what it caused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.engine.engine import Engine
from tidegate.errors import Aborted, ProcedureFailed, TidegateError
from tidegate.streams.batch import Batch
from tidegate.txn.entries import Call, Work
from tidegate.txn.execution import Execution
from tidegate.txn.journal import Journal
from tidegate.txn.positions import Position
from tidegate.txn.runtime import Runtime
from tidegate.txn.shown import Shown
from tidegate.txn.ticket import Ticket

Lane = tuple[str, Any]  # a stream, and the key of its batches


@dataclass(frozen=True)
class Entry:
    """A border batch or a call, with its place in the order."""

    sequence: int
    time: dt.datetime
    ticket: Ticket
    batch: Batch | None = None
    call: Call | None = None

    def __str__(self) -> str:
        if self.call is not None:
            arguments, named = self.call.arguments
            told = ", ".join([*map(repr, arguments), *(f"{k}={v!r}" for k, v in named.items())])
            return f"{self.sequence}: call {self.call.unit.name}({told})"
        assert self.batch is not None
        rows = [tuple(row) for row in self.batch]
        mark = "" if self.batch.watermark is None else f" watermark {self.batch.watermark}"
        return f"{self.sequence}: batch {self.batch.id} on {self.batch.stream} {rows}{mark}"


class History:
    """Records one engine's run: all that entered, with its sequence number and time, and all batches emitted.

    ``moved``: new positions of executions that a halted dataflow had parked; ``moves``: the same by the position before, for
    executions that were divided, or are still to be. ``answered``: the questions that they had
    an answer to. ``steps``: what a driver did, as text.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.moved: dict[tuple[str, Any, int | None], Position] = {}
        self.moves: dict[Position, Position] = {}
        self.requeued: set[str] = set()  # positions of dead letters
        self.answered: dict[tuple[str, Any, int | None], tuple[Shown, ...]] = {}
        self.answered_at: dict[Position, tuple[Shown, ...]] = {}  # the same, where only the position is known
        self.entered: set[str] = set()  # timers
        self.skipped: dict[tuple[str, Any, int | None], ProcedureFailed] = {}
        self.emitted: dict[Lane, list[tuple[int, list[Any]]]] = {}
        self.steps: list[str] = []

    def attach(self, engine: Engine) -> None:
        """Record from now on. A reopened engine is attached again, to the same history."""
        executor, scheduler = engine.executor, engine.scheduler
        place, resume, requeued = executor.place, scheduler.resume, engine.journal.requeued

        entered = engine.runtime.timers.entered

        def recorded_timers(stream: str, ids: Any, rows: Any, time_us: int) -> None:
            self.entered.update(ids)
            entered(stream, ids, rows, time_us)

        engine.runtime.timers.entered = recorded_timers  # type: ignore[method-assign]

        def recorded_requeue(letter: str) -> None:
            self.requeued.add(letter)
            requeued(letter)

        engine.journal.requeued = recorded_requeue  # type: ignore[method-assign]

        def recorded(work: Work, ticket: Ticket | None) -> None:
            told = ticket or executor.nobodys()
            if work.call is not None:
                self.entries.append(Entry(work.first, work.time, told, call=work.call))
            for sequence, batch in enumerate(work.batches, work.first):
                self.entries.append(Entry(sequence, work.time, told, batch=batch))
            place(work, ticket)

        def recorded_resume(halts: Any, next_sequence: Any, skip: bool = False) -> list[Execution]:
            for halt in halts if skip else ():
                front = scheduler.halted[halt]
                self.skipped[front.unit.name, front.key, front.batch_id] = front.context.failure
            before = {e: e.position for e in scheduler.moving(halts)}
            executions = resume(halts, next_sequence, skip)
            for e in executions:
                self.moves[before[e]] = e.position
                self.moved[e.unit.name, e.key, e.batch_id] = e.position
                self.answered[e.unit.name, e.key, e.batch_id] = e.context.shown
            return executions

        executor.place = recorded  # type: ignore[method-assign]
        scheduler.resume = recorded_resume  # type: ignore[method-assign]
        self.listen(engine.app, engine.runtime)

    def moved_from(self, at: Position) -> Position:
        """Where an execution that was placed at ``at`` is in the end."""
        while at in self.moves:
            at = self.moves[at]
        return at

    def listen(self, app: App, runtime: Runtime) -> None:
        """Record the batches committed to every interior stream."""
        for stream in app.streams.values():
            if not stream.border:
                runtime.listen(stream.name, self._receive)

    def _receive(self, position: Position, batch: Batch) -> None:
        emitted = self.emitted.setdefault((batch.stream, batch.key), [])
        emitted.append((batch.id, [tuple(row) for row in batch]))


@dataclass
class Outcome:
    """Everything the contract covers: two runs of the same history must agree in all of it."""

    tables: dict[str, dict[Any, Any]] = field(default_factory=dict)
    windows: dict[tuple[str, str, Any], Any] = field(default_factory=dict)
    marks: dict[tuple[str, Any], dict[str, int]] = field(default_factory=dict)  # watermarks heard and passed on
    streams: dict[Lane, list[tuple[int, list[Any]]]] = field(default_factory=dict)
    timers: dict[str, Any] = field(default_factory=dict)  # pending
    aborts: list[Any] = field(default_factory=list)
    dead_letters: list[Any] = field(default_factory=list)
    calls: dict[int, Any] = field(default_factory=dict)


def outcome_of(runtime: Runtime, journal: Journal, history: History) -> Outcome:
    """The state a run ended in."""
    outcome = Outcome(streams=comparable(runtime.graph, history.emitted))
    for table in runtime.database.tables.values():
        rows = ((key, table.newest(key)) for key in runtime.database.all_keys(table))
        outcome.tables[table.name] = {key: row for key, row in rows if row is not None}
    for program in runtime.programs.values():
        outcome.marks |= {(program.name, key): marks for key, marks in program.marks.items()}
        for name, states in program.windows.items():
            for key, state in states.items():
                if state.fired or state.late or state.held():
                    told = state.fired, state.late, state.watermark, state.contents()
                    outcome.windows[program.name, name, key] = told
    outcome.timers = {
        timer.id: (timer.due_us, timer.stream, timer.procedure, tuple(timer.row))
        for timer in runtime.timers.in_order()
        if timer.id not in history.entered
    }
    outcome.aborts = sorted((a.position, a.procedure, a.batch_id, a.key, a.reason, a.at) for a in journal.aborts)
    outcome.dead_letters = sorted(
        (d.position, d.procedure, str(d.stream), d.batch_id, d.key, d.rows, d.error) for d in journal.dead_letters
    )
    return outcome


def comparable(graph: Graph, emitted: dict[Lane, list[Any]]) -> dict[Lane, list[Any]]:
    """What was emitted, with the batches that have no order in that of their ids."""
    unordered = graph.unordered()
    return {lane: sorted(batches) if lane[0] in unordered else batches for lane, batches in emitted.items()}


def call_result(value: Any, error: TidegateError | None) -> Any:
    """What a caller got, in comparable form."""
    if error is None:
        return ("returned", value)
    return (type(error).__name__, error.reason if isinstance(error, Aborted) else str(error))


def differences(expected: Outcome, found: Outcome, limit: int = 12) -> list[str]:
    """Where two outcomes differ, most telling first; empty when they agree."""
    told: list[str] = []
    for what in ("aborts", "dead_letters"):
        wanted, got = getattr(expected, what), getattr(found, what)
        told += [f"{what}: {item} is missing" for item in wanted if item not in got]
        told += [f"{what}: {item} should not be there" for item in got if item not in wanted]
        if not told and wanted != got:
            told.append(f"{what}: some are there twice: {got}")
    for what in ("calls", "streams", "windows", "marks", "timers"):
        told += _unequal(what, getattr(expected, what), getattr(found, what))
    for table in expected.tables:
        told += _unequal(f"table {table}", expected.tables[table], found.tables[table])
    more = len(told) - limit
    return told[:limit] + ([f"… and {more} more differences"] if more > 0 else [])


def _unequal(what: str, expected: dict[Any, Any], found: dict[Any, Any]) -> Iterator[str]:
    for key in [*expected, *(key for key in found if key not in expected)]:
        if repr(expected.get(key)) != repr(found.get(key)):
            yield f"{what}[{key!r}]: serially {expected.get(key)!r}, here {found.get(key)!r}"
