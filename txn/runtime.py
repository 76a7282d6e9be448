"""Running transactions: the one place where user code is called and its effects become visible.

Every executor uses the same three steps, ``begin``, ``advance`` and ``commit``; they differ only in when they take
them.
"""

from __future__ import annotations

import datetime as dt
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.errors import Aborted, CorruptionError, DataError, ProcedureFailed
from tidegate.storage.database import Database, Readers
from tidegate.storage.schema import Row
from tidegate.storage.view import WriteSet
from tidegate.streams.batch import Batch
from tidegate.txn.positions import Position, describe
from tidegate.txn.program import Program, UnitProgram
from tidegate.txn.transaction import Transaction

if TYPE_CHECKING:
    from tidegate.dataflows.graph import Unit


class Runtime:
    """The app's procedures bound to one database."""

    def __init__(self, app: App, graph: Graph, database: Database) -> None:
        self.app = app
        self.graph = graph
        self.database = database
        self.programs = {p.name: Program(app, graph, p, database) for p in app.procedures.values()}
        units: Iterable[Unit] = [*graph.units, *graph.oltp.values()]
        self.units = {unit.name: UnitProgram(unit, self.programs) for unit in units}
        self.running: dict[int, Transaction] = {}  # thread -> the transaction whose procedure it is in
        self.listeners: dict[str, list[Callable[[Position, Batch], None]]] = {}

    def begin(
        self,
        unit: UnitProgram,
        position: Position,
        batch_id: int | None,
        key: Any,
        time: dt.datetime,
        inputs: dict[str, Batch],
    ) -> Transaction:
        return Transaction(self, unit, position, batch_id, key, time, inputs)

    def advance(self, txn: Transaction, one_member: bool = False) -> str | None:
        """Run the unit's members in rank order.

        Returns None when all have run, the awaited stream the next member needs a batch from, or ``"…"`` when only one
        member was asked for and more remain. A member whose input has no rows is passed over.
        """
        members = txn.unit.members
        while txn.cursor < len(members):
            program = members[txn.cursor]
            batches: list[Batch] | str | None
            if program.plain_input is not None:
                batch = txn.streams.get(program.plain_input)
                batches = None if batch is None else [batch]
            else:
                batches = self._inputs_of(txn, program)
                if isinstance(batches, str):
                    return batches
            txn.cursor += 1
            if batches is not None:
                self._run(txn, program, batches)
                if one_member and txn.cursor < len(members):
                    return "…"
        return None

    def _inputs_of(self, txn: Transaction, program: Program) -> list[Batch] | str | None:
        """The member's batches; None when one has no rows; the stream's name when one is still awaited."""
        batches = []
        awaited = None
        for name in program.inputs:
            batch = txn.streams.get(name)
            if batch is not None:
                batches.append(batch)
            elif name in program.awaited and len(txn.unit.members) > 1:
                awaited = name
            else:
                return None
        return batches if awaited is None else awaited

    def _run(self, txn: Transaction, program: Program, batches: list[Batch]) -> None:
        txn.enter(program)
        if program.prepares:
            self._prepare(txn, program, batches)
        for batch in batches:
            txn.relations[batch.relation.name] = (batch.relation, batch.rows)
        arguments, named = txn.arguments
        txn.result = program.function(txn, *batches, *arguments, **named)
        if program.outputs:
            self._hand_on(txn, program)

    def _hand_on(self, txn: Transaction, program: Program) -> None:
        """What the procedure emitted is the input of its consumers."""
        for name, relation in program.outputs.items():
            rows = txn.emitted.get(name)
            if rows:
                assert txn.batch_id is not None
                txn.streams[name] = Batch(relation, txn.batch_id, rows, txn.key)

    def _prepare(self, txn: Transaction, program: Program, batches: list[Batch]) -> None:
        """Slide the windows and run the EE triggers that the arrival of the batches sets off."""
        for batch in batches:
            name = batch.relation.name
            txn.relations[name] = (batch.relation, batch.rows)
            if name in program.stream_triggers:
                txn.fire(program.stream_triggers[name], name, batch.relation, list(batch.rows))
        self._slide(txn, program, batches)
        for window_name, statements in program.window_triggers.items():
            slide = txn.slides[program.name, window_name]
            if slide.slid:
                txn.fire(statements, window_name, program.relations[window_name], slide.rows)

    def _slide(self, txn: Transaction, program: Program, batches: list[Batch]) -> None:
        for window_name in program.windows:
            stream = program.window_spec(window_name).stream
            for batch in batches:
                if batch.relation.name == stream:
                    slide = program.buffer(window_name, txn.key).slide(batch.rows)
                    txn.slides[program.name, window_name] = slide

    def put_effects(self, txn: Transaction, writes: WriteSet, emitted: dict[str, list[Row]]) -> None:
        """Make the transaction as if its procedures had run with these effects: windows slide, no user code is called."""
        txn.writes, txn.emitted = writes, emitted
        for program in txn.unit.members:
            txn.enter(program)
            batches = self._inputs_of(txn, program)
            if isinstance(batches, list):
                self._slide(txn, program, batches)
                self._hand_on(txn, program)

    def attempt(self, txn: Transaction) -> str | Aborted | ProcedureFailed | None:
        """``advance``, with retries: returns what it returns, or the error that ended the transaction.

        A row that a constraint or type refused is an abort: running the same procedure on the same data again would end
        the same way. Anything else unexpected is retried as often as the procedure declared.
        """
        thread = threading.get_ident()
        self.running[thread] = txn
        try:
            return self._attempt(txn)
        finally:
            del self.running[thread]

    def _attempt(self, txn: Transaction) -> str | Aborted | ProcedureFailed | None:
        while True:
            try:
                return self.advance(txn)
            except Aborted as error:
                return error
            except DataError as error:
                return Aborted(
                    f"{txn.procedure} aborted at position {describe(txn.position)}: {error}",
                    procedure=txn.procedure,
                    reason=str(error),
                    position=txn.position,
                    cause=error,
                )
            except CorruptionError as error:  # never retried, never put aside
                return _failed(txn, error, "halt")
            except Exception as error:
                txn.attempts += 1
                if txn.attempts > txn.program.procedure.retries:
                    return _failed(txn, error, txn.program.procedure.on_failure)
                txn.restart()

    def commit(self, txn: Transaction, keep_older: bool, readers: Readers | None = None) -> dict[str, Batch]:
        """Make everything the transaction did visible; returns the batches it emitted."""
        if txn.writes:
            self.database.commit(txn.writes, txn.position, keep_older, readers)
        if txn.slides:
            for slide in txn.slides.values():
                slide.commit()
        if not txn.emitted:
            return {}
        outputs = {name: txn.streams[name] for name in txn.emitted if name in txn.streams}
        if self.listeners:
            for name, batch in outputs.items():
                for listener in self.listeners.get(name, ()):
                    listener(txn.position, batch)
        return outputs


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


def _failed(txn: Transaction, error: Exception, on_failure: str) -> ProcedureFailed:
    frames = traceback.extract_tb(error.__traceback__)
    home = str(Path(__file__).resolve().parent.parent)
    theirs = [f for f in frames if not str(Path(f.filename).resolve()).startswith(home) or "/examples/" in f.filename]
    where = (theirs or frames)[-1]
    failed = ProcedureFailed(
        f"procedure {txn.procedure} raised {type(error).__name__}: {error} (line {where.lineno} of {where.filename}) at "
        f"position {describe(txn.position)}, attempt {txn.attempts}",
        procedure=txn.procedure,
        attempts=txn.attempts,
        position=txn.position,
        on_failure=on_failure,
    )
    failed.__cause__ = error
    return failed
