"""The transaction a procedure works in: its view of the tables, plus streams, windows, time and randomness."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.errors import Aborted, AccessError, DataError, DeadlineExceeded, text_of
from tidegate.storage.schema import Relation, Row
from tidegate.storage.view import NOTHING, View
from tidegate.streams.batch import Batch
from tidegate.streams.windows.state.results import Slide
from tidegate.txn.positions import Position, describe
from tidegate.txn.program import Ended, Program, UnitProgram, over

if TYPE_CHECKING:
    from tidegate.storage.sql.statements import Rows
    from tidegate.txn.runtime import Runtime


NO_PARTITIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
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
        "key",
        "more",
        "program",
        "result",
        "runtime",
        "slides",
        "streams",
        "time",
        "unit",
    )

    program: Program  # the member that runs; while the unit waits and after it, the last member's ``ended``

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
        self._random: random.Random | None = None

    def restart(self) -> None:
        """Forget everything done so far: nothing of it was visible to anyone."""
        self.writes, self.emitted, self.slides, self.streams = {}, {}, {}, self.inputs
        self._indexed = self.relations = self.more = NOTHING
        self.cursor, self.result, self._random = 0, None, None

    @property
    def procedure(self) -> str:
        """The name of the running procedure."""
        return self.program.name

    @property
    def inputs(self) -> dict[str, Batch]:
        """The batches from outside that have arrived so far."""
        return {stream: batch for stream, batch in self.streams.items() if stream not in self.emitted}

    # ---- time and randomness, the same on every replay

    @property
    def now(self) -> dt.datetime:
        """When the batch (or call) entered the engine, naive UTC."""
        return self.time

    @property
    def random(self) -> random.Random:
        """A generator seeded by this transaction's position."""
        if self._random is None:
            self._random = random.Random(self.position)
        return self._random

    def uuid(self) -> uuid.UUID:
        """A random UUID drawn from :attr:`random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    # ---- streams and windows

    def emit(self, stream: str, rows: Iterable[Any] | Mapping[str, Any] | None = None, /, **values: Any) -> None:
        """Add rows to this transaction's batch on an output stream: a list of rows, or one row by keyword.

        The batch has the id of the input batch; consumers see it when the transaction commits. A batch without rows
        triggers nothing.
        """
        relation = self.program.outputs.get(stream)
        if relation is None:
            raise self._no_output(stream)
        if type(rows) is list:
            new = relation.conform_all(rows)
            if new and stream not in self.emitted and not self.program.stream_triggers:  # most often
                self.emitted[stream] = self.streams[stream] = Batch(relation, self.batch_id, new, self.key)  # type: ignore[arg-type]
                return
        elif rows is None:
            new = (relation.conform(values),)
        elif isinstance(rows, Mapping):
            new = (relation.conform(rows),)
        elif isinstance(rows, str) or not isinstance(rows, Iterable):
            raise DataError(f"emit({stream!r}, …) takes a list of rows, got {rows!r}", relation=stream)
        else:
            new = relation.conform_all(rows)
        self.put_out(stream, relation, new)
        triggers = self.program.stream_triggers
        if triggers and new and stream in triggers:
            self.fire(triggers[stream], stream, relation, new)

    def put_out(self, stream: str, relation: Relation, rows: tuple[Row, ...]) -> None:
        """Add rows to the batch on an output stream. The first rows create the batch, for its consumers to take."""
        if stream in self.more:
            self.more[stream].extend(rows)
        elif stream in self.emitted:
            self.more = {**self.more, stream: list(rows)}
        elif rows:
            assert self.batch_id is not None
            self.emitted[stream] = self.streams[stream] = Batch(relation, self.batch_id, rows, self.key)

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
        outputs = ", ".join(self.program.outputs) or "none"
        return AccessError(
            f"procedure {self.procedure} emits to {stream!r}, which is not one of its outputs ({outputs}); "
            f"add outputs=[{stream!r}] to its declaration",
            procedure=self.procedure,
            relation=stream,
        )

    def window(self, name: str) -> Any:
        """The procedure's window ``name`` with this batch slid in: a :class:`~tidegate.streams.windows.state.results.Slide`, or
        for a plain window of tuples or batches a :class:`~tidegate.streams.windows.state.tuples.TupleSlide`.
        """
        slide = self.slides.get((self.program.name, name))
        if slide is None:
            windows = ", ".join(self.program.windows) or "none"
            raise AccessError(
                f"procedure {self.procedure} has no window {name!r} (it has {windows}); declare it with windows=",
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
        return self.runtime.app.statement(statement, self.program.windows_of).run(self, named or parameters)

    def fire(self, statements: Iterable[Any], name: str, relation: Any, rows: Sequence[Row]) -> None:
        """Run EE triggers with ``rows`` as the relation ``name``."""
        before = self.relations
        self.relations = {**before, name: (relation, rows)}
        for statement in statements:
            statement.run(self)
        self.relations = before

    def rows_of(self, name: str) -> tuple[Relation, Sequence[Row]]:
        if name not in self.relations:
            if name in self.program.inputs:
                return self.program.inputs[name], self.streams[name].rows if name in self.streams else ()
            slide = self.slides.get((self.procedure, name))
            if slide is not None:
                relation = self.program.relations[name]
                return relation, slide.shown(relation)
            if name in self.program.outputs:
                if name in self.more:
                    self.seal()
                return self.program.outputs[name], self.emitted[name].rows if name in self.emitted else ()
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
