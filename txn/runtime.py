"""Running transactions: the one place where user code is called and its effects become visible.

Every executor uses the same three steps, ``begin``, ``advance`` and ``commit``; they differ only in when they take
them.
"""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.errors import Aborted, CorruptionError, DataError, ProcedureFailed, text_of
from tidegate.mutex import Rank, outside_locks
from tidegate.storage.base import let_signal_through
from tidegate.storage.database import Database, Readers
from tidegate.storage.schema import Key, Row
from tidegate.storage.view import NOTHING, WriteSet
from tidegate.streams.batch import Batch
from tidegate.streams.emitted import Emitted
from tidegate.streams.windows.evaluate.ahead import Ahead
from tidegate.streams.windows.evaluate.backends import REFERENCE, Evaluation
from tidegate.txn.log.record import to_us
from tidegate.txn.outcome import COMMITTED, PAUSED, Advanced, Outcome, Waits
from tidegate.txn.positions import Position, describe
from tidegate.txn.program import Program, UnitProgram
from tidegate.txn.transaction import Transaction
from tidegate.txn.watched import WatchedTransaction

if TYPE_CHECKING:
    from tidegate.dataflows.graph import Unit


class Changes(Protocol):
    """The changelog of a table."""

    stream: str

    def batches(self, writes: Mapping[Key, Row | None], position: Position) -> list[Batch]: ...


class Runtime:
    """The app's procedures bound to one database."""

    def __init__(self, app: App, graph: Graph, database: Database, evaluation: Evaluation = REFERENCE) -> None:
        self.app = app
        self.graph = graph
        self.database = database
        self.halfway = database.halfway
        self.programs = {p.name: Program(app, graph, p, database, evaluation) for p in app.procedures.values()}
        units: Iterable[Unit] = [*graph.units, *graph.oltp.values()]
        self.units = {unit.name: UnitProgram(unit, self.programs) for unit in units}
        self.running: dict[int, Transaction] = {}  # thread -> the transaction whose procedure it runs
        windows = [ahead for program in self.programs.values() for ahead in program.ahead.values()]
        self.ahead = Ahead(windows) if windows else None
        self.listeners: dict[str, list[Callable[[Position, Batch], None]]] = {}
        self.changelogs: Mapping[str, Changes] = {}  # by table
        durable = database.base.path is not None  # in memory there is nothing to compare with later
        self.emitted = Emitted({name: graph.keyed[name] is not None for name in graph.producer_of} if durable else {})
        self._recorded = self.emitted.streams
        self.snapshots: Mapping[str, Callable[[Transaction], None]] = {}  # by the procedure that asks for one
        self.attempt = outside_locks(self._attempt, Rank.TURN)

    def listen(self, stream: str, receive: Callable[[Position, Batch], None]) -> None:
        """From now on ``receive`` gets the batches committed to a stream, inside the commit. The caller holds the lock."""
        self.listeners.setdefault(stream, []).append(receive)

    def unlisten(self, stream: str, receive: Callable[[Position, Batch], None]) -> None:
        self.listeners[stream].remove(receive)
        if not self.listeners[stream]:
            del self.listeners[stream]

    def begin(
        self,
        unit: UnitProgram,
        position: Position,
        batch_id: int | None,
        key: Any,
        time: dt.datetime,
        inputs: dict[str, Batch],
    ) -> Transaction:
        kind = Transaction if unit.deadline_s is None else WatchedTransaction
        return kind(self, unit, position, batch_id, key, time, inputs)

    def advance(self, txn: Transaction, one_member: bool = False) -> Advanced:
        """Run the unit's members in rank order.

        A member whose input has no rows is skipped.
        """
        if one_member or txn.cursor or not txn.unit.plain:
            return self._advance_slowly(txn, one_member)
        streams = txn.streams
        for program in txn.unit.members:
            name = program.plain_input
            if name in streams:
                txn.program, txn.access, batch = program, program.access, streams[name]
                if program.own_windows:
                    self._slide_own(txn, program, batch.rows)
                function = program.function
                function(txn, batch)
                if txn.more is not NOTHING:
                    txn.seal()
        return COMMITTED

    def _advance_slowly(self, txn: Transaction, one_member: bool) -> Advanced:
        """``advance`` where a member may wait, has several inputs or none, or fires EE triggers; or one at a time."""
        members = txn.unit.members
        while txn.cursor < len(members):
            program = members[txn.cursor]
            batches = self._inputs_of(txn, program)
            if isinstance(batches, Waits):
                return batches
            txn.cursor += 1
            if batches is None:
                continue
            txn.program, txn.access = program, program.access
            if program.prepares:
                self._prepare(txn, program, batches)
            elif program.windows:
                self._slide(txn, program, batches)
            if batches:
                program.function(txn, *batches)
            else:
                arguments, named = txn.arguments
                txn.result = program.function(txn, *arguments, **named)
            if txn.more is not NOTHING:
                txn.seal()
            if one_member and txn.cursor < len(members):
                return PAUSED
        return COMMITTED

    def _inputs_of(self, txn: Transaction, program: Program) -> list[Batch] | Waits | None:
        """The member's batches; None when one has no rows.

        An either-procedure gets an empty batch for an input that has none.
        """
        batches = []
        awaited = None
        for name, relation in program.inputs.items():
            batch = txn.streams.get(name)
            if batch is not None:
                batches.append(batch)
            elif program.either:
                assert txn.batch_id is not None
                batches.append(Batch(relation, txn.batch_id, (), txn.key))
            elif name in program.awaited and len(txn.unit.members) > 1:
                awaited = name
            else:
                return None
        return batches if awaited is None else Waits(awaited)

    def _prepare(self, txn: Transaction, program: Program, batches: Sequence[Batch]) -> None:
        """Slide the windows and run the EE triggers that the arrival of the batches fires."""
        if program.stream_triggers:
            for batch in batches:
                name = batch.relation.name
                if name in program.stream_triggers and name in txn.streams:
                    txn.fire(program.stream_triggers[name], name, batch.relation, batch.rows)
        self._slide(txn, program, batches)
        for window_name, statements in program.window_triggers.items():
            slide = txn.slides[program.name, window_name]
            if slide.slid:
                relation = program.relations[window_name]
                for rows in slide.shown_each(relation):
                    txn.fire(statements, window_name, relation, rows)

    def _slide(self, txn: Transaction, program: Program, batches: Sequence[Batch]) -> None:
        """Slide every window by what arrived on its stream. A join slides by both; a window without new rows stays as
        it is.
        """
        if program.own_windows:
            self._slide_own(txn, program, batches[0].rows)
            return
        now_us = to_us(txn.time) if program.timed else 0
        arrived = {batch.relation.name: batch.rows for batch in batches}
        for window_name, streams in program.window_streams:
            state = program.window(window_name, txn.key)
            if len(streams) > 1:
                slide = state.slide(tuple(arrived[s] if s in txn.streams else () for s in streams), now_us)
            elif streams[0] in txn.streams:
                slide = state.slide(arrived[streams[0]], now_us)
            else:
                slide = state.still()
            txn.slides[program.name, window_name] = slide

    def _slide_own(self, txn: Transaction, program: Program, rows: Sequence[Row]) -> None:
        """``_slide`` where all windows are over the procedure's only input."""
        now_us = to_us(txn.time) if program.timed else 0
        for place, window_name, states in program.own_windows:
            state = states.get(txn.key)
            if state is None:
                state = program.window(window_name, txn.key)
            txn.slides[place] = state.slide(rows, now_us)

    def put_effects(self, txn: Transaction, writes: WriteSet, emitted: dict[str, tuple[Row, ...]]) -> None:
        """Put the transaction in the state after its procedures had these effects: windows slide, no user code is
        called.
        """
        txn.writes = writes
        for program in txn.unit.members:
            batches = self._inputs_of(txn, program)
            if isinstance(batches, list):
                txn.program, txn.access = program, program.access
                self._slide(txn, program, batches)
                for stream in program.outputs:
                    if stream in emitted:
                        txn.put_out(stream, program.outputs[stream], emitted[stream])

    def _attempt(self, txn: Transaction) -> Outcome:
        """``advance``, with retries: returns what it returns, or the error that ended the transaction.

        A row that violates a constraint or type is an abort: running the same procedure on the same data again would
        end the same way. Other exceptions are retried as often as the procedure declares.
        """
        thread = get_ident()
        self.running[thread] = txn
        try:
            while True:
                try:
                    return self.advance(txn)
                except Aborted as error:
                    return error
                except DataError as error:
                    return _refused(txn, error)
                except CorruptionError as error:  # never retried, never a dead letter
                    return _failed(txn, error, "halt")
                except Exception as error:
                    let_signal_through(error)
                    if not hasattr(txn, "program"):  # raised before the first procedure ran
                        txn.program = txn.unit.members[0]
                    txn.attempts += 1
                    if txn.attempts > txn.program.procedure.retries:
                        return _failed(txn, error, txn.program.procedure.on_failure)
                    txn.restart()
        finally:
            self.running.pop(thread, None)
            txn.program = ended = txn.program.ended
            txn.access = ended.access

    def commit(self, txn: Transaction, keep_older: bool, readers: Readers | None = None) -> dict[str, Batch]:
        """Make everything the transaction did visible; returns the batches it emitted."""
        if txn.writes:
            if self.changelogs and self.listeners:
                changes = self._changes(txn)
                self.database.commit(txn.writes, txn.position, keep_older, readers)
                for batch in changes:
                    for listener in self.listeners[batch.stream]:
                        listener(txn.position, batch)
            else:
                self.database.commit(txn.writes, txn.position, keep_older, readers)
        elif txn.unit.name in self.snapshots:
            self.snapshots[txn.unit.name](txn)
        if txn.slides:
            for slide in txn.slides.values():
                slide.commit()
        if self._recorded:
            for name, batch in txn.emitted.items():
                self._recorded[name].add(txn.position, batch)
        if self.listeners:
            for name, batch in txn.emitted.items():
                for listener in self.listeners.get(name, ()):
                    listener(txn.position, batch)
        return txn.emitted

    def _changes(self, txn: Transaction) -> list[Batch]:
        """What the transaction is about to change in tables whose changelog someone follows."""
        followed = [(name, log) for name, log in self.changelogs.items() if self.listeners.get(log.stream)]
        return [
            batch
            for name, log in followed
            if name in txn.writes
            for batch in log.batches(txn.writes[name], txn.position)
        ]


def interrupted(txn: Transaction, error: BaseException) -> ProcedureFailed:
    """The outcome of an execution that was stopped from outside (Ctrl-C): its dataflow halts, ready to be resumed."""
    return ProcedureFailed(
        f"procedure {txn.procedure} was interrupted by {type(error).__name__} at position {describe(txn.position)}; "
        f"engine.resume() runs it again",
        procedure=txn.procedure,
        attempts=txn.attempts,
        position=txn.position,
        on_failure="halt",
    )


def _refused(txn: Transaction, error: DataError) -> Aborted:
    return Aborted(
        f"{txn.procedure} aborted at position {describe(txn.position)}: {error}",
        procedure=txn.procedure,
        reason=str(error),
        position=txn.position,
        cause=error,
    )


def _failed(txn: Transaction, error: Exception, on_failure: str) -> ProcedureFailed:
    frames = traceback.extract_tb(error.__traceback__)
    home = str(Path(__file__).resolve().parent.parent)
    theirs = [f for f in frames if not str(Path(f.filename).resolve()).startswith(home) or "/examples/" in f.filename]
    where = (theirs or frames)[-1]
    failed = ProcedureFailed(
        f"procedure {txn.procedure} raised {type(error).__name__}: {text_of(error)} (line {where.lineno} of "
        f"{where.filename}) at position {describe(txn.position)}, attempt {txn.attempts}",
        procedure=txn.procedure,
        attempts=txn.attempts,
        position=txn.position,
        on_failure=on_failure,
    )
    failed.__cause__ = error
    return failed
