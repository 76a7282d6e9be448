"""The way in: accepting batches in order, back-pressure, deadlines, and the bulk path."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tidegate.chunks import Chunk, Chunks
from tidegate.dataflows.app import App
from tidegate.dataflows.validation import unknown
from tidegate.errors import BatchError, DataError, Overloaded, TidegateError
from tidegate.storage.codec import to_json
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.executors import Executor
from tidegate.txn.log.record import to_us
from tidegate.txn.program import UnitProgram
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine import Engine


class Intake:
    """Everything between a client's rows and the executor. Callers of all but ``feed`` hold the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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

    def enter_parts(
        self,
        border: Border,
        parts: dict[Any, list[Any]],
        batch_id: int | None,
        ticket: Ticket,
        source: str | None,
        offset: Any,
    ) -> None:
        """The checked rows of one push, by key, take their places; the offset must not survive a crash without all of them.

        Parts that the engine numbers are one record in the log. Under an id of their own they are one each, and the offset
        goes with the last: when the source pushes again, those that are there are recognised by the id.
        """
        if (len(parts) > 1 and batch_id is None) or (not parts and source is not None):
            rows = [row for part in parts.values() for row in part]
            self._enter_together(border, parts.items(), rows, len(rows), ticket, source, offset)
            return
        left = len(parts)
        for key, part in parts.items():
            left -= 1
            batch = border.accept(key, part, batch_id)
            ticket.ids += (batch.id,)
            self.enter(batch, ticket, batch_id is not None, None if left else source, offset)

    def _enter_together(
        self,
        border: Border,
        parts: Collection[tuple[Any, list[Any]]],
        rows: list[Any],
        size: int,
        ticket: Ticket,
        source: str | None,
        offset: Any,
    ) -> None:
        """Several batches as one record: ``rows``, which ``size`` and the key divide into ``parts``."""
        engine = self._engine
        now = engine.clock.now()
        if engine.durable is not None:
            at_once = engine.config.executor != "serial" or not rows
            lsn = engine.durable.fed(engine.sequence + 1, now, border.name, size, rows, source, offset, at_once)
            engine.durable.acknowledge(ticket, lsn)
        if source is not None:
            engine.offsets[source] = offset
        batches = border.accept_all(parts)
        ticket.ids += tuple(batch.id for batch in batches)
        submit = engine.executor.submit
        if engine.runtime.ahead is not None:
            self._announce(border.name, parts, now)
        for i, batch in enumerate(batches):
            engine.sequence += 1
            try:
                submit(engine.sequence, batch, now, ticket)
            except BaseException:
                for other in batches[i + 1 :]:  # all of it is in the log, so all of it takes its place
                    engine.sequence += 1
                    Executor.submit(engine.executor, engine.sequence, other, now, ticket)
                raise
        engine.merger.look()

    def enter(
        self, batch: Batch, ticket: Ticket, explicit: bool = False, source: str | None = None, offset: Any = None
    ) -> None:
        """An accepted border batch takes its place in the order. The caller holds the lock."""
        engine = self._engine
        engine.sequence += 1
        now = engine.clock.now()
        if engine.durable is not None:
            engine.durable.acknowledge(
                ticket, engine.durable.pushed(engine.sequence, now, batch, explicit, source, offset)
            )
        if source is not None:
            engine.offsets[source] = offset
        engine.executor.submit(engine.sequence, batch, now, ticket)
        engine.merger.look()

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
        if self._too_much(name) is None:
            return
        if engine.config.executor == "threads" and timeout_s != 0:
            engine.executor.ended.wait_for(lambda: self._too_much(name) is None or engine.closed, timeout_s)
            engine.check_open()
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
        if engine.durable is not None and not engine.durable.writer.taking:
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
            self.enter(border.accept(execution.key, rows, execution.batch_id), Ticket(engine.teller), explicit=True)
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
            return self._feed_whole(border, border.check_rows(rows), size, source, offset, after, timeout_s)
        fed = batches = 0
        for chunk in Chunks(engine, border, rows, size):
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
        rows: list[Any],
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
        with engine.lock:
            self.begin(border.name, timeout_s)
            repeated = after is not UNSET and self.repeats(border.name, source, offset, after)
            inline = engine.executor.inline_plan(border.name)
            if repeated:
                parts = []
            elif inline is not None and engine.scheduler.idle and rows:
                self._run_chunk(inline, border, parts, rows, size, source, offset)
                engine.merger.look()
            else:
                self._enter_together(border, parts, rows, size, Ticket(engine.teller), source, offset)
        if engine.durable is not None:
            engine.durable.sync()
        return len(parts)

    def _feed_chunk(self, border: Border, chunk: Chunk, size: int) -> int:
        engine = self._engine
        rows, parts = chunk.rows, chunk.parts
        self.prefetch(border.name, rows)
        with engine.lock:
            self.check_ready()
            inline = engine.executor.inline_plan(border.name)
            if inline is not None and engine.scheduler.idle:
                if engine.outbox.subscriptions:
                    self.make_room(border.name, None)
                self._run_chunk(inline, border, parts, rows, size)
            else:
                for key, part in parts:
                    self.make_room(border.name, None)
                    self.enter(border.accept(key, part), Ticket(engine.teller))
            engine.merger.look()
        return len(parts)

    def prefetch(self, stream: str, rows: list[Any]) -> None:
        """Bring the rows that these rows of a border stream name into memory, one query per table."""
        for table, place in self._ahead.get(stream, ()):
            self._engine.database.prefetch(table, {row[place] for row in rows})

    def _run_chunk(
        self,
        inline: list[UnitProgram],
        border: Border,
        parts: list[tuple[Any, list[Any]]],
        rows: list[Any],
        size: int,
        source: str | None = None,
        offset: Any = None,
    ) -> None:
        """Log a chunk, as one record, and run it."""
        engine = self._engine
        now = engine.clock.now()
        if engine.durable is not None:
            engine.durable.fed(engine.sequence + 1, now, border.name, size, rows, source, offset)
        if source is not None:
            engine.offsets[source] = offset
        if engine.runtime.ahead is not None:
            self._announce(border.name, parts, now)
        self.run_parts(inline, border, parts, now)

    def run_parts(
        self, inline: list[UnitProgram], border: Border, parts: list[tuple[Any, list[Any]]], now: dt.datetime
    ) -> None:
        """Run a chunk, in the log already, batch by batch. All of it takes its place, whatever happens to a part."""
        engine = self._engine
        waiting = iter(border.accept_all(parts))
        run_inline, alone = engine.executor.run_inline, engine.scheduler.idle
        try:
            for batch in waiting:
                engine.sequence += 1
                if alone:
                    alone = run_inline(inline, engine.sequence, batch, now, None)
                else:
                    engine.executor.submit(engine.sequence, batch, now, Ticket(engine.teller))
                    alone = engine.scheduler.idle
        except BaseException:
            for batch in waiting:
                engine.sequence += 1
                Executor.submit(engine.executor, engine.sequence, batch, now, Ticket(engine.teller))
            raise

    def _announce(self, stream: str, parts: Iterable[tuple[Any, list[Any]]], now: dt.datetime) -> None:
        """These batches are about to run inline, one after another: windows may be evaluated for all of them at once."""
        ahead = self._engine.runtime.ahead
        assert ahead is not None
        for key, part in parts:
            ahead.coming(stream, key, part, to_us(now))


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
