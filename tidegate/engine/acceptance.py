"""The way in: accepting batches in order, back-pressure, deadlines, and the bulk path."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from tidegate.dataflows.app import App
from tidegate.dataflows.validation import not_callable, unknown
from tidegate.directory.log import Arrival, LoggedCall, as_logged
from tidegate.engine.feeding import Chunk, Chunks
from tidegate.errors import BatchError, DataError, Overloaded, TidegateError
from tidegate.storage.codec import to_json
from tidegate.storage.halfway import ACCEPTING
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border, Parts
from tidegate.txn.log.record import to_us
from tidegate.txn.program import UnitProgram
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


class PreparedCall(NamedTuple):
    """A call that only has to take its place: the arguments as the procedure gets them, and as they go into the log."""

    name: str
    program: UnitProgram
    bound: tuple[tuple[Any, ...], dict[str, Any]]
    partitions: dict[str, tuple[Any, ...]]
    written: LoggedCall | None


class Intake:
    """Everything between a client's rows and the executor. Callers of all but ``feed`` hold the turn, and no more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._halfway = engine.database.halfway
        self._ahead = _prefetch_plan(engine.app)
        awaited = [stream for stream in engine.app.streams.values() if stream.awaited]
        self.awaited = {stream.name for stream in awaited}
        self._shortest_s = min((s.deadline_s for s in awaited if s.deadline_s is not None), default=math.inf)
        self._due = -math.inf  # no deadline passes before

    def border(self, stream: str) -> Border:
        """The border stream of this name, or an error that says what to do."""
        engine = self._engine
        border = engine.borders.get(stream)
        if border is not None:
            return border
        if stream in engine.app.streams:
            raise TidegateError(
                f"{stream} is an interior stream, fed by its procedure; push to a border stream: "
                f"{', '.join(sorted(engine.borders)) or 'there is none'}",
                stream=stream,
            )
        raise unknown("push", "border stream", stream, engine.borders)

    def check_ready(self) -> None:
        """Raise when no work can be taken; deadlines that have passed are dealt with first."""
        engine = self._engine
        engine.check_open()
        if engine.durable is not None and not engine.durable.writer.taking:
            engine.durable.writer.check()
        if engine.merger.failed is not None:
            engine.merger.check()
        self._halfway.check_entry()
        if engine.scheduler.live:
            self.tick()

    def begin(self, name: str, timeout_s: float | None) -> None:
        """New work arrives: is there room for it? An answer that something waits for is always let in."""
        self.check_ready()
        scheduler = self._engine.scheduler
        if scheduler.idle and not scheduler.incomplete and not self._engine.outbox.subscriptions:
            return
        if name not in self.awaited or self._unasked(name) >= self._engine.config.capacity:
            self.make_room(name, timeout_s)

    def accept_parts(
        self, border: Border, parts: Parts, batch_id: int | None, ticket: Ticket, source: str | None, offset: Any
    ) -> None:
        """The checked rows of one push, by key; the offset must not survive a crash without all of them.

        Parts that the engine numbers are one record in the log. Under an id of their own they are one each, and the offset
        goes with the last: when the source pushes again, those that are there are recognised by the id.
        """
        if batch_id is None or not parts:
            if parts or source is not None:
                size = sum(map(len, parts.values()))
                self.accept(Arrival(border, list(parts.items()), size, None, None, source, offset), ticket)
            return
        left = len(parts)
        for key, part in parts.items():
            left -= 1
            self.accept(Arrival(border, [(key, part)], 1, None, batch_id, None if left else source, offset), ticket)

    def accept(self, arrival: Arrival, ticket: Ticket | None) -> None:
        """The one way in for rows: numbered, logged, and placed in the order. No ticket: nobody waits for them."""
        engine, border, parts = self._engine, arrival.border, arrival.parts
        self._halfway.entering = ACCEPTING
        with engine.lock:
            now, first = engine.clock.now(), engine.sequence + 1
            if arrival.batch_id is None:
                batches = border.accept_all(parts)
            else:
                batches = [border.accept(key, rows, arrival.batch_id) for key, rows in parts]
            engine.sequence += len(batches)
            if engine.durable is not None:
                lsn = engine.durable.arrived(first, now, arrival, batches)
                if ticket is not None:
                    engine.durable.acknowledge(ticket, lsn)
            if arrival.source is not None:
                engine.offsets[arrival.source] = arrival.offset
            if ticket is not None:
                ticket.ids += tuple([batch.id for batch in batches])
        self.place(first, batches, now, ticket)

    def place(self, first: int, batches: list[Batch], now: dt.datetime, ticket: Ticket | None) -> None:
        """Batches that are in the log take their places in the order, and what they cause is run or scheduled."""
        ahead = self._engine.runtime.ahead
        if ahead is not None and (ticket is None or len(batches) > 1):
            # windows may be evaluated for all of them at once
            for batch in batches:
                ahead.coming(batch.relation.name, batch.key, batch.rows, to_us(now))
        self._engine.executor.place(first, batches, now, ticket)
        self._halfway.entering = None

    def prepare_call(
        self, procedure: str | Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> PreparedCall:
        """A call, checked and ready to be logged. Takes no lock: whoever sends a large one keeps nobody else waiting."""
        engine = self._engine
        name = procedure if isinstance(procedure, str) else procedure.__name__
        if name not in engine.graph.oltp:
            raise not_callable(name, engine.app.procedures, engine.graph.oltp)
        program = engine.runtime.units[name]
        written: LoggedCall | None = None
        if engine.durable is not None:
            written, arguments, named = as_logged(name, arguments, named)
        bound, partitions = program.members[0].bind_call(arguments, named)
        return PreparedCall(name, program, bound, partitions, written)

    def enter_call(self, call: PreparedCall, timeout_s: float | None = None) -> Ticket:
        """The call takes its place in the order, having waited ``timeout_s`` seconds at most for room in the queues."""
        engine = self._engine
        with engine.noticing, engine.turn:
            self.begin(call.name, timeout_s)
            ticket = Ticket(engine.teller)
            ticket.pending = 1  # not done before it has run
            self._halfway.entering = ACCEPTING
            with engine.lock:
                engine.sequence += 1
                now = engine.clock.now()
                if engine.durable is not None and call.written is not None:
                    lsn = engine.durable.called(engine.sequence, now, call.name, call.written)
                    engine.durable.acknowledge(ticket, lsn)
            engine.executor.place_call(engine.sequence, call.program, call.bound, call.partitions, now, ticket)
            self._halfway.entering = None
            with engine.lock:
                ticket.pending -= 1
                if not ticket.pending:
                    ticket.finish()
        engine.merger.look()
        return ticket

    def repeats(self, stream: str, source: str | None, offset: Any, after: Any) -> bool:
        """Has the source made this step already? Raises when it stands neither before nor behind it."""
        if source is None:
            raise BatchError(
                f"push({stream!r}, …, after=…) says where a source stands: pass source=, too", stream=stream
            )
        stands = self._engine.offsets.get(source)
        if to_json(stands) == to_json(offset):
            return True
        if to_json(stands) != to_json(after):
            raise BatchError(
                f"source {source!r} stands at {stands!r}, so a push to {stream} that leads from {after!r} to {offset!r} is out "
                f"of turn; another process feeds as this source, or an older one still did. Ask position({source!r}) and go "
                f"on from there, or use another source name",
                stream=stream,
                source=source,
                position=stands,
            )
        return False

    def unnumbered(self, stream: str) -> BatchError:
        """An answer must say which question it answers."""
        return BatchError(
            f"{stream} answers questions: push with batch_id= the id of the batch that asked "
            f"(engine.questions() lists them)",
            stream=stream,
        )

    def check_awaited(self, border: Border, keys: Iterable[Any], batch_id: int) -> None:
        engine = self._engine
        if border.name not in self.awaited:
            return
        for key in keys:
            execution = engine.scheduler.awaiting(border.name, key)
            if execution is not None and execution.batch_id is not None and batch_id > execution.batch_id:
                raise BatchError(
                    f"batch {batch_id} on {border.name} would overtake batch {execution.batch_id}, which {execution} is "
                    f"waiting for; answer that one first",
                    stream=border.name,
                    batch_id=batch_id,
                    last_id=execution.batch_id,
                )

    def _unasked(self, stream: str) -> int:
        """Batches on an awaited stream that came before their question."""
        early = self._engine.scheduler.early
        return sum(len(batches) for (name, _), batches in early.items() if name == stream)

    def _too_much(self, name: str) -> str | None:
        """What there is too much of for ``name`` to take more; None when there is room.

        Batches that wait for another stream's count against their own stream alone: what completes them is let in.
        """
        scheduler, capacity = self._engine.scheduler, self._engine.config.capacity
        if len(scheduler.live) + len(scheduler.parked) >= capacity:
            return f"{capacity} executions are unfinished"
        if scheduler.incomplete[name] >= capacity:
            return f"{capacity} of its batches wait for a batch of another stream with the same id"
        if scheduler.early and self._unasked(name) >= capacity:
            return f"{capacity} of its batches came before anything asked for them"
        full = self._engine.outbox.full()
        if full is not None:
            return f"{len(full)} batches wait for subscriber {full.name!r}"
        return None

    def make_room(self, name: str, timeout_s: float | None) -> None:
        """Back-pressure: wait for the queues to drain (threads), or refuse."""
        engine = self._engine
        with engine.lock:
            if self._too_much(name) is None:
                return
        if engine.config.executor == "threads" and timeout_s != 0:
            engine.executor.ended.wait_for(lambda: self._too_much(name) is None or engine.closed, timeout_s)
            engine.check_open()
        with engine.lock:
            told = self._too_much(name)
        if told is not None:
            raise Overloaded(
                f"{told}, so {name} takes no more for now; see tidegate.executions and tidegate.deliveries for what they wait "
                f"for, then push again (the settings are Config.capacity and Config.backlog)",
                stream=name,
                capacity=engine.config.capacity,
            )

    def tick(self) -> None:
        """Push the default for every awaited batch whose deadline has passed."""
        engine = self._engine
        broken = self._halfway.through is not None or self._halfway.entering is not None
        if broken or (engine.durable is not None and not engine.durable.writer.taking):
            return  # nothing can be accepted now; the deadline is dealt with when it can
        now = engine.clock.monotonic()
        if now < self._due:
            return
        next_due = now + self._shortest_s  # of those that ask from now on
        for execution in engine.scheduler.suspended():
            stream = engine.app.streams[str(execution.reason.stream)]
            if stream.deadline_s is None:
                continue
            due = execution.context.asked_at + stream.deadline_s
            if now < due:
                next_due = min(next_due, due)
                continue
            fill = {stream.key: execution.key} if stream.key else {}
            border = engine.borders[stream.name]
            rows = border.check_rows([{**row, **fill} for row in stream.default])
            self.accept(Arrival(border, [(execution.key, rows)], batch_id=execution.batch_id), None)
        self._due = next_due

    def feed(
        self,
        stream: str,
        rows: Iterable[Any],
        size: int,
        source: str | None = None,
        offset: Any = None,
        after: Any = UNSET,
        timeout_s: float | None = None,
    ) -> int:
        """See :meth:`Engine.feed`. ``timeout_s``: how long rows of a source wait for room."""
        engine = self._engine
        border = self.border(stream)
        if type(size) is not int or size < 1:
            raise TidegateError(
                f"feed({stream!r}, …): size is a positive whole number of rows, got {size!r}", stream=stream
            )
        if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
            raise DataError(
                f"feed({stream!r}, rows) takes rows to iterate over, got {type(rows).__name__}", relation=stream
            )
        if source is not None:
            with engine.noticing:
                return self._feed_whole(border, border.check_rows(rows), size, source, offset, after, timeout_s)
        fed = batches = 0
        for chunk in Chunks(engine, border, rows, size):
            with engine.noticing:
                batches += self._feed_chunk(border, chunk, size)
            fed += len(chunk.rows)
            if chunk.refused is not None:
                chunk.refused.fed = fed  # type: ignore[attr-defined]
                raise chunk.refused
        if engine.durable is not None:
            engine.durable.sync()
        return batches

    def _feed_whole(
        self,
        border: Border,
        rows: tuple[Any, ...],
        size: int,
        source: str,
        offset: Any,
        after: Any,
        timeout_s: float | None,
    ) -> int:
        """Rows of a source: all of them and its offset are one record in the log, so that no crash can part them."""
        engine = self._engine
        self.prefetch(border.name, rows)
        parts = [p for i in range(0, len(rows), size) for p in border.split(rows[i : i + size]).items()]
        with engine.turn:
            self.begin(border.name, timeout_s)
            repeated = after is not UNSET and self.repeats(border.name, source, offset, after)
            if repeated:
                parts = []
            else:
                self.accept(Arrival(border, parts, size, rows, None, source, offset), None)
        engine.merger.look()
        if engine.durable is not None:
            engine.durable.sync()
        return len(parts)

    def _feed_chunk(self, border: Border, chunk: Chunk, size: int) -> int:
        engine = self._engine
        rows, parts = chunk.rows, chunk.parts
        self.prefetch(border.name, rows)
        with engine.turn:
            self.check_ready()
            if engine.scheduler.idle and engine.executor.inline_plan(border.name) is not None:
                if engine.outbox.subscriptions:
                    self.make_room(border.name, None)
                self.accept(Arrival(border, parts, size, rows), None)
            else:
                for key, part in parts:
                    self.make_room(border.name, None)
                    self.accept(Arrival(border, [(key, part)]), None)
        engine.merger.look()
        return len(parts)

    def prefetch(self, stream: str, rows: Iterable[Any]) -> None:
        """Bring the rows that these rows of a border stream name into memory, one query per table."""
        for table, place in self._ahead.get(stream, ()):
            self._engine.database.prefetch(table, {row[place] for row in rows})


def _prefetch_plan(app: App) -> dict[str, list[tuple[str, int]]]:
    """For each border stream: the tables whose rows its batches name, and the column that does."""
    plan: dict[str, list[tuple[str, int]]] = {}
    for procedure in app.procedures.values():
        for table, column in procedure.prefetch.items():
            for stream in procedure.inputs:
                relation = app.streams[stream].relation
                if column in relation.index_of and app.streams[stream].border:
                    plan.setdefault(stream, []).append((table, relation.index_of[column]))
    return plan
