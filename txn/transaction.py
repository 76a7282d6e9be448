"""The transaction a procedure works in: its view of the tables, plus streams, windows, time and randomness."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.dataflows.partitions import NO_PARTITIONS
from tidegate.errors import Aborted, AccessError, DeadlineExceeded, MistakeError, near, shown, text_of
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.columnar import Given, conform_columns, is_columnar
from tidegate.storage.schema import Relation, Row
from tidegate.storage.view import NOTHING, View
from tidegate.streams.batch import Batch, batch_of
from tidegate.streams.windows.state.results import ResultRows, Slide
from tidegate.txn.positions import Position, describe
from tidegate.txn.program import Ended, Program, UnitProgram, over
from tidegate.txn.shown import Point, Shown, random_at, random_state
from tidegate.txn.timers import cancel_timer, set_timer

if TYPE_CHECKING:
    from tidegate.storage.sql.statements import Rows, Statement
    from tidegate.txn.runtime import Runtime


FEW = 64  # results that are rows sooner than columns
NO_ARGUMENTS: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


class Transaction(View):
    """Handed to a procedure as its first argument.

    Reads see the tables as of this transaction's position, its own writes included; writes, emitted batches and window
    slides become visible together when it commits, or not at all. The members of a nested transaction share one.
    Time and randomness come from here, so that running it again gives the same result.
    """

    __slots__ = (
        "_random",
        "arguments",
        "attempts",
        "batch_id",
        "cursor",
        "emitted",
        "entry",
        "key",
        "more",
        "program",
        "result",
        "runtime",
        "shown",
        "slides",
        "streams",
        "time",
        "unit",
        "view_changes",
    )

    _random: random.Random  # made when it is first asked for
    program: Program  # the member that runs; while the unit waits and after it, the last member's ``ended``
    entry: int  # the number of what it emits to streams with a key of their own; others do not have it
    shown: tuple[Shown, ...]  # the questions it has asked; most transactions ask none, and do not have it

    view_changes: Mapping[
        str, list[tuple[Row, int]]
    ]  # rows of materialized views with weights, for those who follow them

    def __init__(
        self,
        runtime: Runtime,
        unit: UnitProgram,
        position: Position,
        batch_id: int | None,
        key: Any,
        time: dt.datetime,
        inputs: dict[str, Batch],
    ) -> None:
        self.runtime = runtime
        self.database = runtime.database
        self.unit = unit
        self.program = unit.members[0]
        self.position = position
        self.batch_id = batch_id
        self.key = key
        self.time = time
        self.streams = inputs  # ours from now on; emitted batches are added to it
        self.partitions = dict.fromkeys(unit.by_key, (key,)) if unit.by_key else NO_PARTITIONS
        self.commit = runtime.database.commits if unit.committed else 0
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = NO_ARGUMENTS
        self.attempts = 0
        self.writes = {}
        self._indexed = NOTHING
        self.relations = NOTHING  # rows of streams and windows that the running EE trigger sees
        self.emitted: dict[str, Batch] = {}
        self.more: Mapping[str, list[Row]] = NOTHING  # emitted after the first rows of a batch, see seal
        self.slides: dict[tuple[str, str], Slide] = {}
        self.cursor = 0
        self.result: Any = None

    def restart(self) -> None:
        """Forget everything done since its last question, or since it began: nothing of it was visible to anyone."""
        questions = getattr(self, "shown", ())
        point = questions[-1].point if questions else None
        self._indexed = self.relations = self.more = NOTHING
        self.streams, self.result = self.inputs, None
        if point is None:
            self.writes, self.emitted, self.slides = {}, {}, {}
            self.cursor, generator = 0, None
        else:
            self.writes = {table: dict(rows) for table, rows in point.writes.items()}
            self.emitted, self.slides = dict(point.emitted), dict(point.slides)
            self.streams.update(point.emitted)
            self.cursor, generator = point.cursor, random_at(point.random)
        if generator is not None:
            self._random = generator
        elif hasattr(self, "_random"):
            del self._random

    def point(self) -> Point:
        """What it has done so far, for :meth:`restart` to come back to."""
        writes = {table: dict(rows) for table, rows in self.writes.items()}
        return Point(
            self.cursor,
            self.attempts,
            writes,
            dict(self.emitted),
            dict(self.slides),
            random_state(getattr(self, "_random", None)),
        )

    @property
    def procedure(self) -> str:
        """The name of the running procedure."""
        return self.program.name

    @property
    def inputs(self) -> dict[str, Batch]:
        """The batches from outside that have arrived so far."""
        made = self.unit.made  # also watermarks that it has passed on without rows
        return {s: batch for s, batch in self.streams.items() if s not in self.emitted and s not in made}

    # ---- time and randomness, the same on every replay

    @property
    def now(self) -> dt.datetime:
        """When the batch (or call) entered the engine, naive UTC."""
        return self.time

    @property
    def random(self) -> random.Random:
        """A generator seeded by this transaction's position."""
        try:
            return self._random
        except AttributeError:  # few transactions ask for it
            self._random = random.Random(self.position)
            return self._random

    def uuid(self) -> uuid.UUID:
        """A random UUID drawn from :attr:`random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    # ---- streams and windows

    def emit(self, stream: str, rows: Iterable[Any] | Mapping[str, Any] | None = None, /, **values: Any) -> None:
        """Add rows to this transaction's batch on an output stream: a list of rows, or one row by keyword; or columns: an
        Arrow table or data frame, a batch, the results of a window.

        The batch has the id of the input batch; consumers see it when the transaction commits. A batch without rows
        triggers nothing.
        """
        relation = self.program.outputs.get(stream)
        if relation is None:
            raise self._no_output(stream)
        new: Given
        if type(rows) is list:
            new = checked = relation.conform_all(rows)
            if new and stream not in self.emitted and not self.program.stream_triggers:  # most often
                self.emitted[stream] = self.streams[stream] = Batch(relation, self.batch_id, checked, self.key)  # type: ignore[arg-type]
                return
        elif rows is None:
            new = (relation.conform(values),)
        elif isinstance(rows, Mapping):
            new = (relation.conform(rows),)
        elif is_columnar(rows):
            new = conform_columns(relation, rows)
        elif isinstance(rows, str) or not isinstance(rows, Iterable):
            raise MistakeError(f"emit({stream!r}, …) takes a list of rows, got {shown(rows)}", relation=stream)
        else:
            new = _passed_on(relation, rows)
        self.put_out(stream, relation, new)
        triggers = self.program.stream_triggers
        if triggers and new and stream in triggers:
            self.fire(triggers[stream], stream, relation, new)

    def after(self, delay: str | dt.timedelta, stream: str, row: Any = None, /, **values: Any) -> str:
        """Set a timer: this row enters a border stream when so much time has passed since :attr:`now`. Returns the timer's id,
        for :meth:`cancel`.

        A row by keyword, a tuple or a mapping. It is checked now, and enters as a batch of its own, once, whatever happens in
        between. The timer is part of this transaction: an abort undoes it. The procedure declares the stream in ``timers=``.
        """
        return set_timer(self, delay, stream, row, values)

    def cancel(self, timer: str | None) -> None:
        """Cancel a timer by its id. Nothing happens if its row has entered already, or if it is None."""
        cancel_timer(self, timer)

    def put_out(self, stream: str, relation: Relation, rows: Given) -> None:
        """Add rows to the batch on an output stream. The first rows create the batch, for its consumers to take."""
        if stream in self.more:
            self.more[stream].extend(rows)
        elif stream in self.emitted:
            self.more = {**self.more, stream: list(rows)}
        elif rows:
            assert self.batch_id is not None
            self.emitted[stream] = self.streams[stream] = batch_of(relation, self.batch_id, rows, self.key)

    def seal(self) -> None:
        """Add the rows emitted since to their batches, which are tuples: all at once, so that emitting one by one stays
        linear.
        """
        for stream, rows in self.more.items():
            batch = self.emitted[stream]
            self.emitted[stream] = self.streams[stream] = Batch(
                batch.relation, batch.id, (*batch.rows, *rows), batch.key
            )
        self.more = NOTHING

    def _no_output(self, stream: str) -> AccessError:
        outputs = self.program.outputs
        hint = near(stream, outputs, "they are")
        if stream in self.runtime.app.streams:
            hint = f"add outputs=[{stream!r}] to its declaration"
        return AccessError(
            f"procedure {self.procedure} emits to {stream!r}, which is not one of its outputs; {hint}",
            procedure=self.procedure,
            relation=stream,
        )

    def window(self, name: str) -> Any:
        """The procedure's window ``name`` with this batch slid in: a :class:`~tidegate.streams.windows.state.results.Slide`, or
        for a plain window of tuples or batches a :class:`~tidegate.streams.windows.state.tuples.TupleSlide`.
        """
        slide = self.slides.get((self.program.name, name))
        if slide is None:
            raise AccessError(
                f"procedure {self.procedure} has no window {name!r}; {near(name, self.program.windows, 'it has')} (windows= of "
                f"its declaration)",
                procedure=self.procedure,
                relation=name,
            )
        return slide

    # ---- SQL

    def execute(self, statement: Any, *parameters: Any, **named: Any) -> Rows:
        """Run SQL in this transaction: a statement from ``app.sql``, text, or SQLAlchemy Core.

        Returns the rows (of SELECT or RETURNING) as named tuples; ``.count`` is the number returned or affected. Text is
        prepared on first use and cached.
        """
        prepared = self.runtime.app.statement(statement, self.program.windows_of)
        if self.unit.maintained:
            self._see_views(prepared)
        return prepared.run(self, named or parameters)

    def _see_views(self, statement: Statement) -> None:
        """A statement that reads a materialized view sees what this transaction has written."""
        if not self.unit.states.isdisjoint(statement.reads):
            self.unit.maintain(self)

    def fire(self, statements: Iterable[Any], name: str, relation: Any, rows: Sequence[Row]) -> None:
        """Run EE triggers with ``rows`` as the relation ``name``."""
        before = self.relations
        self.relations = {**before, name: (relation, rows)}
        for statement in statements:
            if self.unit.maintained:
                self._see_views(statement)
            statement.run(self)
        self.relations = before

    def rows_of(self, name: str) -> tuple[Relation, Sequence[Row]]:
        if name not in self.relations:
            if name in self.program.inputs:
                return self.program.inputs[name], self.streams[name].given if name in self.streams else ()
            slide = self.slides.get((self.procedure, name))
            if slide is not None:
                relation = self.program.relations[name]
                return relation, slide.shown(relation)
            if name in self.program.outputs:
                if name in self.more:
                    self.seal()
                return self.program.outputs[name], self.emitted[name].given if name in self.emitted else ()
        return super().rows_of(name)

    # ---- ending

    def expired_error(self, deadline_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self.procedure} ran past its deadline of {deadline_s:g} s at position {describe(self.position)} and was undone",
            procedure=self.procedure,
            reason=f"deadline of {deadline_s:g} s exceeded",
            position=self.position,
        )

    def abort(self, reason: str) -> NoReturn:
        """Undo everything this transaction (and its nested transaction) did. The batch counts as processed."""
        if isinstance(self.program, Ended):
            raise over(self.procedure)
        raise Aborted(
            f"{self.procedure} aborted at position {describe(self.position)}: {text_of(reason)}",
            procedure=self.procedure,
            reason=reason,
            position=self.position,
        )


def _passed_on(relation: Relation, rows: Iterable[Any]) -> Given:
    """Rows that are emitted, checked; what is held as columns stays so."""
    if isinstance(rows, Batch):
        given = rows.given
        if type(given) is ColumnRows and given.relation.row in relation.trusted:
            return given.renamed(relation)
    elif isinstance(rows, ResultRows) and len(rows) >= FEW and not rows.are_rows:
        table = rows.to_arrow()
        if table.num_columns == len(relation.columns):  # by position, as of any tuples
            return conform_columns(relation, table.rename_columns(relation.column_names))
    return relation.conform_all(rows)
