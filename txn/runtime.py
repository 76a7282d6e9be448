"""Running transactions: the one place where user code is called and its effects become visible.

Every executor uses the same three steps, ``begin``, ``advance`` and ``commit``; they differ only in when they take
them.
"""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.errors import Aborted, CorruptionError, DataError, MistakeError, ProcedureFailed, Runaway, near, text_of
from tidegate.mutex import Rank, outside_locks
from tidegate.storage.base import let_signal_through
from tidegate.storage.columnar import Given
from tidegate.storage.database import Database, Readers
from tidegate.storage.schema import GENERATED, Key, Row
from tidegate.storage.view import NOTHING, WriteSet
from tidegate.streams.batch import Batch
from tidegate.streams.dividing import Divided, check_divisible, divide
from tidegate.streams.emitted import Emitted
from tidegate.streams.windows.evaluate.ahead import Ahead
from tidegate.streams.windows.evaluate.backends import REFERENCE, Evaluation
from tidegate.streams.windows.state.sharing import share
from tidegate.txn.log.record import to_us
from tidegate.txn.outcome import COMMITTED, PAUSED, Advanced, Outcome, Waits
from tidegate.txn.passing import pass_on, slide_in_time, without_rows
from tidegate.txn.positions import Position, describe
from tidegate.txn.program import Program, UnitProgram, timers_of
from tidegate.txn.shown import check_answers
from tidegate.txn.transaction import Transaction
from tidegate.txn.watchdog import Expired
from tidegate.txn.watched import WatchedTransaction

if TYPE_CHECKING:
    from tidegate.dataflows.graph import Unit
    from tidegate.txn.runaways import Stop


class Changes(Protocol):
    """The changelog of a table."""

    stream: str

    def batches(self, txn: Transaction, writes: Mapping[Key, Row | None]) -> list[Batch]: ...


class Runtime:
    """The app's procedures bound to one database."""

    def __init__(self, app: App, graph: Graph, database: Database, evaluation: Evaluation = REFERENCE) -> None:
        self.app = app
        self.graph = graph
        self.database = database
        self.halfway = database.halfway
        self.programs = {p.name: Program(app, graph, p, database, evaluation) for p in app.procedures.values()}
        share((f"{p.name}.{name}", plan) for p in self.programs.values() for name, plan in p.plans.items())
        self.timers = timers_of(app)
        views = tuple(app.maintained.values())
        units: Iterable[Unit] = [*graph.units, *graph.oltp.values()]
        self.units = {unit.name: UnitProgram(unit, self.programs, self.timers, views) for unit in units}
        self.running: dict[int, Any] = {}  # thread -> the transaction whose procedure it runs, or its Stop
        windows = [ahead for program in self.programs.values() for ahead in program.ahead.values()]
        self.ahead = Ahead(windows) if windows else None
        self.listeners: dict[str, list[Callable[[Position, Batch], None]]] = {}
        self.topics: dict[
            str, list[Callable[[Position, int, Batch], None]]
        ] = {}  # they keep, with the time, what commits
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
        streams = txn.streams
        if one_member or txn.cursor or not (txn.unit.plain or (txn.unit.timely and _without_marks(streams))):
            return self._advance_slowly(txn, one_member)
        for program in txn.unit.members:
            name = program.plain_input
            if name in streams:
                txn.program = program
                txn.access = program.access
                batch = streams[name]
                if program.own_windows:
                    self._slide_own(txn, program, batch.given if program.by_column else batch.rows)
                function = program.function
                function(txn, batch)
                if txn.more is not NOTHING:
                    txn.seal()
        return COMMITTED

    def _advance_slowly(self, txn: Transaction, one_member: bool) -> Advanced:
        """``advance`` where a member may wait, has several inputs or none, or fires EE triggers; or one at a time."""
        members = txn.unit.members
        if txn.cursor:
            self._slide_missing(txn)
        while txn.cursor < len(members):
            program = members[txn.cursor]
            batches = self._inputs_of(txn, program)
            if isinstance(batches, Waits):
                return batches
            txn.cursor += 1
            idle = batches is None
            if idle and program.minds:
                batches = without_rows(txn, program)
            if batches is None:
                continue
            txn.program, txn.access = program, program.access
            if program.awaited:
                check_answers(txn, program)
            fired = False
            if program.prepares:
                fired = self._prepare(txn, program, batches)
            elif program.windows:
                fired = self._slide(txn, program, batches)
            if idle and not fired:
                pass  # time has passed, and nothing of its own was due
            elif batches:
                program.function(txn, *batches)
            else:
                arguments, named = txn.arguments
                txn.result = program.function(txn, *arguments, **named)
            if txn.more is not NOTHING:
                txn.seal()
            if program.minds:
                pass_on(txn, program)
                txn.relations = NOTHING
            if one_member and txn.cursor < len(members):
                return PAUSED
        if txn.unit.expiring:
            txn.unit.remove_due(txn)
        if txn.unit.maintained:
            txn.unit.maintain(txn)
            if self.app.view_changes:
                txn.unit.tell_views(self.app.view_changes, txn)
        for stream, key, most in txn.unit.rekeyed:
            if stream in txn.emitted:
                check_divisible(txn.emitted[stream], key, most)
        return COMMITTED

    def _inputs_of(self, txn: Transaction, program: Program) -> list[Batch] | Waits | None:
        """The member's batches; None when one has no rows.

        An either-procedure gets an empty batch for an input that has none.
        """
        batches = []
        awaited = None
        found = False
        for name, relation in program.inputs.items():
            batch = txn.streams.get(name)
            if batch is not None and len(batch):
                batches.append(batch)
                found = True
            elif program.either:
                assert txn.batch_id is not None
                batches.append(Batch(relation, txn.batch_id, (), txn.key))
            elif name in program.awaited and len(txn.unit.members) > 1:
                awaited = name
            else:
                return None
        if not found and program.either:
            return None
        return batches if awaited is None else Waits(awaited)

    def _prepare(self, txn: Transaction, program: Program, batches: Sequence[Batch]) -> bool:
        """Slide the windows and run the EE triggers that the arrival of the batches fires; does a window fire?"""
        if program.stream_triggers:
            for batch in batches:
                name = batch.relation.name
                if name in program.stream_triggers and len(batch):
                    txn.fire(program.stream_triggers[name], name, batch.relation, batch.rows)
        fired = self._slide(txn, program, batches)
        if program.in_turn:
            self._fire_in_turn(txn, program)
            return fired
        for window_name, statements in program.window_triggers.items():
            slide = txn.slides[program.name, window_name]
            if slide.slid:
                relation = program.relations[window_name]
                for rows in slide.shown_each(relation):
                    txn.fire(statements, window_name, relation, rows)
        return fired

    def _fire_in_turn(self, txn: Transaction, program: Program) -> None:
        """Fire the triggers of several windows in the order of the rows that completed them (of one row: as declared).

        They write to the same tables; window by window, the result would depend on how rows were split into batches.
        """
        fired: list[tuple[int, str, Any]] = []
        for window_name in program.window_triggers:
            slide: Any = txn.slides[program.name, window_name]  # by count: checked when declared
            relation = program.relations[window_name]
            fired += [
                (at, window_name, rows) for at, rows in zip(slide.fired_at(), slide.shown_each(relation), strict=True)
            ]
        for _, window_name, rows in sorted(fired, key=itemgetter(0)):
            txn.fire(program.window_triggers[window_name], window_name, program.relations[window_name], rows)

    def _slide(self, txn: Transaction, program: Program, batches: Sequence[Batch]) -> bool:
        """Slide every window by what arrived on its stream; does one fire that time can move? A window without new rows
        stays as it is.
        """
        if program.minds:
            return slide_in_time(txn, program, batches)
        if program.own_windows:
            self._slide_own(txn, program, batches[0].given)
            return False
        now_us = to_us(txn.time) if program.timed else 0
        arrived = {batch.relation.name: batch.given for batch in batches}
        for window_name, streams in program.window_streams:
            state = program.window(window_name, txn.key)
            if len(streams) > 1:
                slide = state.slide(tuple(arrived[s] for s in streams), now_us)
            else:
                slide = state.slide(arrived[streams[0]], now_us) if len(arrived[streams[0]]) else state.still()
            txn.slides[program.name, window_name] = slide
        return False

    def _slide_own(self, txn: Transaction, program: Program, rows: Sequence[Row]) -> None:
        """``_slide`` where all windows are over the procedure's only input."""
        now_us = to_us(txn.time) if program.timed else 0
        for place, window_name, states in program.own_windows:
            state = states.get(txn.key)
            if state is None:
                state = program.window(window_name, txn.key)
            txn.slides[place] = state.slide(rows, now_us)

    def _slide_missing(self, txn: Transaction) -> None:
        """Slide the windows of members in front of a question that was restored: they do not run again."""
        for program in txn.unit.members[: txn.cursor]:
            missing = program.windows and (program.name, next(iter(program.windows))) not in txn.slides
            if (program.minds or missing) and self._take_in(txn, program):
                pass_on(txn, program)

    def _take_in(self, txn: Transaction, program: Program) -> bool:
        """Slide a member's windows by its batches without running it; False when there is nothing to slide by."""
        batches = self._inputs_of(txn, program)
        if batches is None and program.minds:
            batches = without_rows(txn, program)
        if not isinstance(batches, list):
            return False
        txn.program, txn.access = program, program.access
        self._slide(txn, program, batches)
        return True

    def put_effects(self, txn: Transaction, writes: WriteSet, emitted: Mapping[str, Given]) -> None:
        """Put the transaction in the state after its procedures had these effects: windows slide, no user code is
        called.
        """
        txn.writes = writes
        for program in txn.unit.members:
            if self._take_in(txn, program):
                for stream in program.outputs:
                    if stream in emitted:
                        txn.put_out(stream, program.outputs[stream], emitted[stream])
                pass_on(txn, program)

    def _attempt(self, txn: Transaction) -> Outcome:
        """``advance``, with retries: returns what it returns, or the error that ended the transaction.

        Data that a table refuses (a constraint, a value out of range) is an abort: running the same procedure on the
        same data again would end the same way. A mistake of its code would, too, but it is a failure, as every other
        exception is. The others are retried as often as the procedure declares.

        What runs past the engine's deadline finds a ``Stop`` in its place; whatever it ends with then, it ran away.
        Expired may still be on its way until the stop has ended: in the ``finally`` there is no call before that, and so no
        place where Expired could be raised.
        """
        outcome: Outcome
        thread, running = get_ident(), self.running
        running[thread] = txn
        try:
            while True:
                try:
                    outcome = self.advance(txn)
                except Aborted as error:
                    if running[thread] is txn:
                        return error
                except MistakeError as error:
                    txn.attempts += 1
                    if running[thread] is txn:
                        return _failed(txn, error, txn.program.procedure.on_failure)
                except DataError as error:
                    if running[thread] is txn:
                        return _refused(txn, error)
                except CorruptionError as error:  # never retried, never a dead letter
                    if running[thread] is txn:
                        return _failed(txn, error, "halt")
                except Exception as error:
                    let_signal_through(error)
                    procedure = txn.program.procedure
                    txn.attempts += 1
                    if running[thread] is txn:
                        if txn.attempts > procedure.retries:
                            return _failed(txn, error, procedure.on_failure)
                        txn.restart()
                        continue
                break
        except Expired:
            if running[thread] is txn:  # the procedure's own deadline: whoever set it expects this
                raise
        finally:
            found = running[thread]
            del running[thread]
            if found is not txn:
                found.end()
                outcome = _ran_away(txn, found)
            txn.program = ended = txn.program.ended
            txn.access = ended.access
        return outcome

    def commit(
        self, txn: Transaction, keep_older: bool, readers: Readers | None = None
    ) -> Mapping[str, Batch | Divided]:
        """Make everything the transaction did visible; returns the batches it emitted, divided where the stream has a key
        of its own.
        """
        if txn.writes:
            if self.changelogs and (self.listeners or self.topics):
                changes = self._changes(txn)
                self.database.commit(txn.writes, txn.position, keep_older, readers)
                for batch in changes:
                    self._tell(txn, batch.stream, batch)
            else:
                self.database.commit(txn.writes, txn.position, keep_older, readers)
        elif txn.unit.name in self.snapshots:
            self.snapshots[txn.unit.name](txn)
        if txn.slides:
            for slide in txn.slides.values():
                slide.commit()
        if txn.unit.hands_on:
            return self._hand_on(txn)
        if self._recorded:
            for name, batch in txn.emitted.items():
                self._recorded[name].add(txn.position, batch)
        if self.listeners or self.topics:
            for name, batch in txn.emitted.items():
                self._tell(txn, name, batch)
        return txn.emitted

    def _tell(self, txn: Transaction, stream: str, batch: Batch) -> None:
        """A batch commits: topics keep it, and whoever listens hears of it."""
        for keep in self.topics.get(stream, ()):
            keep(txn.position, to_us(txn.time), batch)
        for listener in self.listeners.get(stream, ()):
            listener(txn.position, batch)

    def _hand_on(self, txn: Transaction) -> dict[str, Batch | Divided]:
        """The end of ``commit`` for a unit whose consumers get more than what it emitted, divided or with watermarks."""
        outputs: dict[str, Batch | Divided] = {**txn.emitted}
        for stream, key, _ in txn.unit.rekeyed:
            if stream in txn.emitted:
                outputs[stream] = divide(txn.emitted[stream], key, txn.entry)
        for name, output in outputs.items():
            for batch in output.values() if isinstance(output, dict) else (output,):
                if self._recorded:
                    self._recorded[name].add(txn.position, batch)
                self._tell(txn, name, batch)
        if txn.unit.rekeyed:
            return outputs
        return {stream: batch for stream, batch in txn.streams.items() if stream in txn.unit.made}

    def _changes(self, txn: Transaction) -> list[Batch]:
        """What the transaction is about to change in tables whose changelog someone follows."""
        followed = [
            (n, log) for n, log in self.changelogs.items() if log.stream in self.listeners or log.stream in self.topics
        ]
        return [batch for name, log in followed if name in txn.writes for batch in log.batches(txn, txn.writes[name])]


def _without_marks(streams: Mapping[str, Batch]) -> bool:
    """Do these batches have rows, and no watermarks?"""
    return not any(batch.watermark is not None or not len(batch) for batch in streams.values())


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


def _ran_away(txn: Transaction, stop: Stop) -> Runaway:
    """The outcome of an execution that ran past the engine's deadline. It is not retried: that would take as long again."""
    batch = "" if txn.batch_id is None else f" on batch {txn.batch_id}"
    return Runaway(
        f"procedure {txn.procedure}{batch} ran for more than {stop.limit_s:g} s{stop.where} at position "
        f"{describe(txn.position)} and was stopped; likely an endless loop or a long query. If it needs that long, declare it "
        f"with deadline_s=math.inf (no limit), or open the engine with a larger procedure_deadline_s",
        procedure=txn.procedure,
        attempts=max(txn.attempts, 1),
        position=txn.position,
        on_failure=txn.program.procedure.on_failure,
        limit_s=stop.limit_s,
    )


TRACED = 10  # frames of a failure that are kept

_HOME = Path(__file__).resolve().parent.parent
_ROOMS = {"storage", "streams", "dataflows", "txn", "engine", "tidegate"}


def _is_ours(filename: str) -> bool:
    """Is this a file of the engine, or a function that it generated?"""
    if filename in (GENERATED, "<string>"):  # for a relation; by dataclasses
        return True
    path = Path(filename).resolve()
    return path.is_relative_to(_HOME) and path.relative_to(_HOME).parts[0] in _ROOMS


def _hint(error: Exception) -> str:
    """What a wrong name of a column or of a method might have been meant to be."""
    if isinstance(error, AttributeError) and error.name is not None:
        fields = getattr(type(error.obj), "_fields", None)
        if isinstance(fields, tuple):
            return f"; {near(error.name, fields, 'its columns are')}"
        if isinstance(error.obj, Transaction):
            return f"; {near(error.name, [n for n in dir(Transaction) if not n.startswith('_')], 'a transaction has')}"
    return ""


def _failed(txn: Transaction, error: Exception, on_failure: str) -> ProcedureFailed:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _is_ours(frame.filename)]
    where = (theirs or frames)[-1]
    failed = ProcedureFailed(
        f"procedure {txn.procedure} raised {type(error).__name__}: {text_of(error)}{_hint(error)} (line {where.lineno} of "
        f"{where.filename}) at position {describe(txn.position)}, attempt {txn.attempts}",
        procedure=txn.procedure,
        attempts=txn.attempts,
        position=txn.position,
        on_failure=on_failure,
        trace=text_of("".join(traceback.format_list((theirs or frames)[-TRACED:]))),
    )
    failed.__cause__ = error
    return failed
