"""The way in: accepting batches in order, back-pressure, deadlines, and the bulk path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.app import App
from tidegate.dataflows.validation import unknown
from tidegate.errors import BatchError, DataError, Overloaded, TidegateError
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.txn.executors import Executor
from tidegate.txn.program import UnitProgram
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine import Engine

FEED_AHEAD = 250  # rows read ahead by feed(), whose keys are fetched together


class Intake:
    """Everything between a client's rows and the executor. Callers of all but ``feed`` hold the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ahead = _prefetch_plan(engine.app)

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
        if engine.durable is not None:
            engine.durable.writer.check()
        engine.merger.check()
        if engine.scheduler.live:
            self.tick()

    def begin(self, name: str, timeout_s: float | None) -> None:
        """New work arrives: is there room for it? An answer that something waits for is always let in."""
        self.check_ready()
        stream = self._engine.app.streams.get(name)
        if stream is None or not stream.awaited:
            self._make_room(name, timeout_s)

    def enter(
        self, batch: Batch, ticket: Ticket, explicit: bool = False, source: str | None = None, offset: Any = None
    ) -> None:
        """An accepted border batch takes its place in the order. The caller holds the lock."""
        engine = self._engine
        engine.sequence += 1
        now = engine.clock.now()
        if source is not None:
            engine.offsets[source] = offset
        if engine.durable is not None:
            engine.durable.acknowledge(
                ticket, engine.durable.pushed(engine.sequence, now, batch, explicit, source, offset)
            )
        engine.executor.submit(engine.sequence, batch, now, ticket)
        engine.merger.look()

    def check_numbered(self, border: Border) -> None:
        """An answer must say which question it answers."""
        if self._engine.app.streams[border.name].awaited:
            raise BatchError(
                f"{border.name} answers questions: push with batch_id= the id of the batch that asked "
                f"(engine.questions() lists them)",
                stream=border.name,
            )

    def check_awaited(self, border: Border, keys: Iterable[Any], batch_id: int) -> None:
        engine = self._engine
        if not engine.app.streams[border.name].awaited:
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

    def _has_room(self) -> bool:
        engine = self._engine
        return len(engine.scheduler.live) + len(engine.scheduler.parked) < engine.config.capacity

    def _make_room(self, name: str, timeout_s: float | None) -> None:
        """Back-pressure: wait for the queues to drain (threads), or refuse."""
        engine = self._engine
        if self._has_room():
            return
        if engine.config.executor == "threads" and timeout_s != 0:
            engine.executor.ended.wait_for(lambda: self._has_room() or engine.closed, timeout_s)
            engine.check_open()
        if not self._has_room():
            raise Overloaded(
                f"{engine.config.capacity} executions are unfinished, so {name} takes no more for now; see tidegate.executions "
                f"for what they wait for, then push again (the setting is Config.capacity)",
                stream=name,
                capacity=engine.config.capacity,
            )

    def tick(self) -> None:
        """Push the default for every awaited batch whose deadline has passed."""
        engine = self._engine
        if engine.durable is not None and not engine.durable.writer.taking:
            return  # nothing can be accepted now; the deadline is dealt with when it can
        for execution in engine.scheduler.suspended():
            stream = engine.app.streams[str(execution.reason.stream)]
            asked_at = execution.context.asked_at
            if stream.deadline_s is None or engine.clock.monotonic() - asked_at < stream.deadline_s:
                continue
            fill = {stream.key: execution.key} if stream.key else {}
            border = engine.borders[stream.name]
            rows = border.check_rows([{**row, **fill} for row in stream.default])
            self.enter(border.accept(execution.key, rows, execution.batch_id), Ticket(engine.wait), explicit=True)

    def feed(self, stream: str, rows: Iterable[Any], size: int) -> int:
        """See :meth:`Engine.feed`."""
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
        source = iter(rows)
        fed = batches = 0
        while chunk := list(islice(source, max(FEED_AHEAD // size, 1) * size)):
            try:
                checked = border.check_rows(chunk)
            except DataError as error:
                good = self._leading_good(border, chunk)
                self._feed_chunk(border, good, size)
                error.fed = fed + len(good)  # type: ignore[attr-defined]
                raise
            batches += self._feed_chunk(border, checked, size)
            fed += len(chunk)
        if engine.durable is not None:
            engine.durable.sync()
        return batches

    def _feed_chunk(self, border: Border, rows: list[Any], size: int) -> int:
        engine = self._engine
        for table, place in self._ahead.get(border.name, ()):
            engine.database.prefetch(table, {row[place] for row in rows})
        with engine.lock:
            self.check_ready()
            inline = engine.executor.inline_plan(border.name)
            parts = [p for i in range(0, len(rows), size) for p in border.split(rows[i : i + size]).items()]
            if inline is not None and engine.scheduler.idle:
                self._run_chunk(inline, border, parts, rows, size)
            else:
                for key, part in parts:
                    self._make_room(border.name, None)
                    self.enter(border.accept(key, part), Ticket(engine.wait))
            engine.merger.look()
        return len(parts)

    def _run_chunk(
        self, inline: list[UnitProgram], border: Border, parts: list[tuple[Any, list[Any]]], rows: list[Any], size: int
    ) -> None:
        """Run a chunk batch by batch; it is one record in the log. All of it takes its place, whatever happens to a part."""
        engine = self._engine
        now = engine.clock.now()
        if engine.durable is not None:
            engine.durable.fed(engine.sequence + 1, now, border.name, size, rows)
        waiting = iter(parts)
        try:
            for key, part in waiting:
                engine.sequence += 1
                if engine.scheduler.idle:
                    engine.executor.run_inline(inline, engine.sequence, border.accept(key, part), now, None)
                else:
                    engine.executor.submit(engine.sequence, border.accept(key, part), now, Ticket(engine.wait))
        except BaseException:
            for key, part in waiting:
                engine.sequence += 1
                Executor.submit(engine.executor, engine.sequence, border.accept(key, part), now, Ticket(engine.wait))
            raise

    @staticmethod
    def _leading_good(border: Border, chunk: list[Any]) -> list[Any]:
        good: list[Any] = []
        for row in chunk:
            try:
                good.extend(border.check_rows([row]))
            except DataError:
                break
        return good


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
