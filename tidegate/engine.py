"""The engine: an app at work. Everything with an effect outside a transaction starts here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.clock import Clock, SystemClock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.dataflows.validation import unknown
from tidegate.errors import (
    BatchError,
    DataError,
    EngineClosed,
    Overloaded,
    TidegateError,
)
from tidegate.directory import Directory
from tidegate.durability import Durability, Opened, as_logged
from tidegate.journal import Journal
from tidegate.merger import Merger
from tidegate.opening import Progress, begin_log, recover
from tidegate.outbox import DurableSubscription, Outbox
from tidegate.result import Result
from tidegate.state import check_schemas, restore
from tidegate.storage.database import Database
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.subscription import Subscription
from tidegate.txn.executors import Executor, SerialExecutor, ThreadExecutor
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks
from tidegate.txn.log.record import Resumed
from tidegate.txn.recovery import Report
from tidegate.txn.program import UnitProgram
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.ticket import Ticket
from tidegate.views import Merge, query

FEED_AHEAD = 1_000  # rows read ahead by feed(), whose keys are fetched together


def open(
    app: App,
    path: str | Path | None = None,
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    accept_changed: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Engine:
    """Run ``app``: in memory, or durably in the directory ``path``. Settings are the fields of :class:`Config`.

    A directory that was not closed cleanly is recovered first; ``engine.recovery`` says what that took, and
    ``progress(done, total)`` is called meanwhile. ``accept_changed``: replay with procedures that have changed since.

    >>> app = App("hello")
    >>> _ = app.table("CREATE TABLE greeted (name VARCHAR PRIMARY KEY)")
    >>> _ = app.stream("people", "name VARCHAR", border=True)
    >>> @app.procedure(inputs="people", writes=["greeted"])
    ... def greet(txn, people):
    ...     for person in people:
    ...         txn.upsert("greeted", person)
    >>> with open(app) as engine:
    ...     _ = engine.push("people", [("Ada",), ("Alan",)])
    ...     engine.query("SELECT count(*) FROM greeted").scalar()
    2
    """
    if config is not None and settings:
        raise TidegateError(f"open() got both config= and {', '.join(settings)}; put them into the Config")
    for name in settings:
        if name not in Config.__dataclass_fields__:
            raise unknown("open", "setting", name, Config.__dataclass_fields__)
    chosen = config if config is not None else Config(**settings)
    return Engine(app, path, chosen, clock or SystemClock(), accept_changed, progress or (lambda done, total: None))


class Engine:
    """One app at work. Use :func:`tidegate.open`; close it, or use it in a ``with`` block."""

    def __init__(
        self,
        app: App,
        path: str | Path | None,
        config: Config,
        clock: Clock,
        accept_changed: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.app = app
        self.config = config
        self.clock = clock
        self.graph = app.graph()
        self.sequence = 0
        self.offsets: dict[str, Any] = {}  # source -> the offset that went in with its last batch
        self.journal: Journal = Journal()
        self.borders = {s.name: Border(s.relation, s.key) for s in app.streams.values() if s.border}
        self.recovery = Report()
        self.durable: Durability | None = None
        self.lock = threading.RLock()
        self._closed = False
        self._ahead = self._prefetch_plan()
        self.directory = None if path is None else Directory(Path(path))
        try:
            self._open(accept_changed, progress)
        except BaseException:
            self._let_go()
            raise

    def _open(self, accept_changed: bool, progress: Progress) -> None:
        """Restore what is on disk, replay the log since, and begin to work."""
        meta: Mapping[str, Any] = {}
        notes: list[str] = []
        opened = None if self.directory is None else Opened(self.directory)
        if self.directory is not None and opened is not None:
            meta, notes = self.directory.sound_base(opened.merges, opened.oldest)
            check_schemas(self.app, meta)
        self.database = self._open_database(None if self.directory is None else self.directory.base)
        self.runtime = Runtime(self.app, self.graph, self.database)
        locks = LowWaterMarks() if self.config.locking == "low_water_mark" else TwoPhaseLocks()
        self.scheduler = Scheduler(self.graph, locks)
        self.outbox = Outbox(self)
        self.executor: Executor = SerialExecutor(self.runtime, self.scheduler, self.journal, self.clock, self.lock)
        if opened is not None:
            restore(self, meta)
            self.recovery = recover(self, opened, int(meta.get("lsn", 0)), notes, accept_changed, progress)
            self.durable = self.journal.log = begin_log(self, opened, max(opened.merges, int(meta.get("merge", 0))))
        self.database.concurrent = self.config.executor == "threads" or self.directory is not None
        self.merger: Merger = Merger(self)
        self.executor = self._make_executor()
        self.executor.wake()

    def _open_database(self, path: Path | None) -> Database:
        return Database(self.app.tables.values(), path, self.config.cached_rows)

    def _make_executor(self) -> Executor:
        parts = (self.runtime, self.scheduler, self.journal, self.clock, self.lock)
        if self.config.executor == "threads":
            return ThreadExecutor(*parts, workers=self.config.workers, tick=self.tick)
        return SerialExecutor(*parts) if self.config.executor == "serial" else Executor(*parts)

    # ---- work in

    def push(
        self,
        stream: str,
        rows: Iterable[Any],
        batch_id: int | None = None,
        *,
        timeout_s: float | None = None,
        source: str | None = None,
        offset: Any = None,
    ) -> Ticket:
        """Push rows to a border stream as one atomic batch (one per key value on a keyed stream).

        ``batch_id``: ids ascend per stream (per key); without one the engine numbers. Pushing the same id with the same
        rows again changes nothing and says so (``ticket.duplicate``).
        With the serial executor the work is done when push returns, unless it waits for something. With threads, push
        waits up to ``timeout_s`` seconds for room in the queues (None: as long as it takes), then raises Overloaded.
        With a directory the ticket is done when the batch is on disk too.
        ``source`` and ``offset``: remembered with the batch, whole or not at all; see :meth:`position`.
        """
        border = self.borders.get(stream) or self._no_border(stream)
        parts = border.split(border.check_rows(rows))
        with self.lock:
            self._work_begins()
            if not self.app.streams[stream].awaited:  # an answer frees what waits for it
                self._make_room(stream, timeout_s)  # lets go of the lock while it waits: look at the ids after it
            ticket = Ticket(self._wait)
            if batch_id is not None:
                fresh = border.check_ids(parts, batch_id)
                ticket.duplicate = bool(parts) and not fresh
                parts = fresh
                self._check_awaited(border, parts, batch_id)
            ticket.pending = 1  # not done before the last key is in
            for key, part in parts.items():
                batch = border.accept(key, part, batch_id)
                ticket.batch_ids.append(batch.id)
                self.enter(batch, ticket, batch_id is not None, source, offset)
            if ticket.duplicate and self.durable is not None:
                self.durable.acknowledge(ticket, self.durable.writer.end)
            ticket.pending -= 1
            if not ticket.pending:
                ticket.finish()
        return ticket

    def enter(
        self, batch: Batch, ticket: Ticket, explicit: bool = False, source: str | None = None, offset: Any = None
    ) -> None:
        """An accepted border batch takes its place in the order. The caller holds the lock."""
        self.sequence += 1
        now = self.clock.now()
        if source is not None:
            self.offsets[source] = offset
        if self.durable is not None:
            self.durable.acknowledge(ticket, self.durable.pushed(self.sequence, now, batch, explicit, source, offset))
        self.executor.submit(self.sequence, batch, now, ticket)
        self.merger.look()

    def position(self, source: str) -> Any:
        """The offset that was pushed last for ``source``; None when there is none. A source goes on from there."""
        return self.offsets.get(source)

    def feed(self, stream: str, rows: Iterable[Any], *, size: int = 1) -> int:
        """Push many rows, ``size`` to a batch, without a ticket for each; returns the number of batches.

        The fast way in: same checks, same order, same transactions as :meth:`push`. Keys that procedures declared in
        ``prefetch`` are fetched for many batches at a time. A row that is refused raises after the rows before it are in;
        the error's ``fed`` says how many those are. With a directory it returns when all of it is on disk.
        """
        border = self.borders.get(stream) or self._no_border(stream)
        if type(size) is not int or size < 1:
            raise TidegateError(f"feed({stream!r}, …): size is a positive whole number of rows, got {size!r}", stream=stream)
        if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
            raise DataError(f"feed({stream!r}, rows) takes rows to iterate over, got {type(rows).__name__}", relation=stream)
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
        if self.durable is not None:
            self.durable.sync()
        return batches

    def _feed_chunk(self, border: Border, rows: list[Any], size: int) -> int:
        for table, place in self._ahead.get(border.name, ()):
            self.database.prefetch(table, {row[place] for row in rows})
        with self.lock:
            self._work_begins()
            inline = self.executor.inline_plan(border.name)
            parts = [p for i in range(0, len(rows), size) for p in border.split(rows[i : i + size]).items()]
            if inline is not None and self.scheduler.idle:
                self._run_chunk(inline, border, parts, rows, size)
            else:
                for key, part in parts:
                    self._make_room(border.name, None)
                    self.enter(border.accept(key, part), Ticket(self._wait))
            self.merger.look()
        return len(parts)

    def _run_chunk(
        self, inline: list[UnitProgram], border: Border, parts: list[tuple[Any, list[Any]]], rows: list[Any], size: int
    ) -> None:
        """Run a chunk batch by batch; it is one record in the log. All of it takes its place, whatever happens to a part."""
        now = self.clock.now()
        if self.durable is not None:
            self.durable.fed(self.sequence + 1, now, border.name, size, rows)
        waiting = iter(parts)
        try:
            for key, part in waiting:
                self.sequence += 1
                if self.scheduler.idle:
                    self.executor.run_inline(inline, self.sequence, border.accept(key, part), now, None)
                else:
                    self.executor.submit(self.sequence, border.accept(key, part), now, Ticket(self._wait))
        except BaseException:
            for key, part in waiting:
                self.sequence += 1
                Executor.submit(self.executor, self.sequence, border.accept(key, part), now, Ticket(self._wait))
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

    def call(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call an OLTP procedure and return what it returns; raises what undid it."""
        return self.submit(procedure, *arguments, **named).result()

    def submit(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Ticket:
        """Call an OLTP procedure without waiting for it."""
        name = procedure if isinstance(procedure, str) else procedure.__name__
        unit = self.graph.oltp.get(name)
        if unit is None:
            if name in self.app.procedures:
                raise TidegateError(
                    f"{name} is a streaming procedure: it is started by batches on "
                    f"{', '.join(self.app.procedures[name].inputs)}; push there instead",
                    procedure=name,
                )
            raise unknown("call", "procedure", name, self.graph.oltp)
        program = self.runtime.units[name]
        if self.durable is not None:
            arguments, named = as_logged(name, arguments, named)
        bound, partitions = program.members[0].bind_call(arguments, named)
        with self.lock:
            self._work_begins()
            self._make_room(name, None)
            ticket = Ticket(self._wait)
            self.sequence += 1
            now = self.clock.now()
            if self.durable is not None:
                self.durable.acknowledge(ticket, self.durable.called(self.sequence, now, name, *bound))
            self.executor.submit_call(self.sequence, program, bound, partitions, now, ticket)
            self.merger.look()
        return ticket

    def _wait(self, ticket: Ticket, timeout_s: float | None) -> None:
        if self.durable is not None:
            self.durable.sync()
        if not ticket.done:
            self.executor.wait(ticket, timeout_s)

    def _no_border(self, stream: str) -> Border:
        if stream in self.app.streams:
            raise TidegateError(
                f"{stream} is an interior stream, fed by its procedure; push to a border stream: "
                f"{', '.join(sorted(self.borders)) or 'there is none'}",
                stream=stream,
            )
        raise unknown("push", "border stream", stream, self.borders)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed; open the app again to go on")

    def _work_begins(self) -> None:
        self._check_open()
        if self.durable is not None:
            self.durable.writer.check()
        if self.scheduler.live:
            self.tick()

    def _check_awaited(self, border: Border, keys: Iterable[Any], batch_id: int) -> None:
        if not self.app.streams[border.name].awaited:
            return
        for key in keys:
            execution = self.scheduler.awaiting(border.name, key)
            if execution is not None and execution.batch_id is not None and batch_id > execution.batch_id:
                raise BatchError(
                    f"batch {batch_id} on {border.name} would overtake batch {execution.batch_id}, which {execution} is "
                    f"waiting for; answer that one first",
                    stream=border.name, batch_id=batch_id, last_id=execution.batch_id,
                )

    def _has_room(self) -> bool:
        return len(self.scheduler.live) + len(self.scheduler.parked) < self.config.capacity

    def _make_room(self, name: str, timeout_s: float | None) -> None:
        """Back-pressure: wait for the queues to drain (threads), or refuse."""
        if self._has_room():
            return
        if self.config.executor == "threads" and timeout_s != 0:
            self.executor.ended.wait_for(lambda: self._has_room() or self._closed, timeout_s)
            self._check_open()
        if not self._has_room():
            raise Overloaded(
                f"{self.config.capacity} executions are unfinished, so {name} takes no more for now; see tidegate.executions "
                f"for what they wait for, then push again (the setting is Config.capacity)",
                stream=name,
                capacity=self.config.capacity,
            )

    # ---- running

    def step(self) -> bool:
        """Run one execution that may run now; False when there is none. For executor="manual"."""
        with self.lock:
            self._work_begins()
        ran = self.executor.step()
        with self.lock:
            self.merger.look()
        return ran

    def run_until_idle(self) -> int:
        """Run (or, with threads, wait) until nothing may run; returns how many executions ran here."""
        count = self.executor.run_until_idle() if self.config.executor == "threads" else 0
        while self.config.executor != "threads" and self.step():
            count += 1
        return count

    def tick(self) -> None:
        """Push the default for every awaited batch whose deadline has passed."""
        for execution in self.scheduler.suspended():
            stream = self.app.streams[str(execution.reason.stream)]
            asked_at = execution.context.asked_at
            if stream.deadline_s is None or self.clock.monotonic() - asked_at < stream.deadline_s:
                continue
            fill = {stream.key: execution.key} if stream.key else {}
            border = self.borders[stream.name]
            rows = border.check_rows([{**row, **fill} for row in stream.default])
            self.enter(border.accept(execution.key, rows, execution.batch_id), Ticket(self._wait), explicit=True)

    def resume(self, dataflow: str | None = None) -> None:
        """Let a halted dataflow (or all) go on, starting with the batch it stopped in front of."""
        with self.lock:
            self._check_open()
            names = list(self.scheduler.halted) if dataflow is None else [dataflow]
            for name in names:
                if name not in self.scheduler.halted:
                    raise unknown("resume", "halted dataflow", name, self.scheduler.halted)
                if self.durable is not None:
                    self.durable.append(Resumed(name, self.sequence + 1))
                for execution in self.scheduler.resume(name, self._next_sequence):
                    for ticket in execution.context.tickets:
                        if ticket.stopped:
                            ticket.resume()
        self.executor.wake()

    def _next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    # ---- looking

    def query(self, sql: Any, *parameters: Any, **named: Any) -> Result:
        """Run a read-only SQL query over all tables and the ``tidegate.*`` system views, at the newest committed state."""
        self._check_open()
        return query(self, sql, named or parameters)

    def subscribe(self, stream: str, *, capacity: int = 100_000) -> Subscription:
        """Follow the batches committed to a stream from now on, as long as this engine is open."""
        self._check_emitted(stream)
        subscription = Subscription(self, stream, capacity)
        with self.lock:
            self.runtime.listeners.setdefault(stream, []).append(subscription.receive)
        return subscription

    def subscribe_durably(self, stream: str, name: str) -> DurableSubscription:
        """Follow the batches of a stream under a name: what was not acknowledged is there again after a restart."""
        self._check_emitted(stream)
        return self.outbox.subscribe(name, stream)

    def _check_emitted(self, stream: str) -> None:
        if stream not in self.app.streams or self.app.streams[stream].border:
            emitted = [s.name for s in self.app.streams.values() if not s.border]
            raise unknown("subscribe", "interior stream", stream, emitted)

    # ---- merging and closing

    def checkpoint(self, *, generation: bool = False) -> None:
        """Fold everything committed into the base now; ``generation``: and keep a copy of the base as it then is."""
        self._check_open()
        self.merger.merge(generation)

    def _prefetch_plan(self) -> dict[str, list[tuple[str, int]]]:
        plan: dict[str, list[tuple[str, int]]] = {}
        for procedure in self.app.procedures.values():
            for table, column in procedure.prefetch.items():
                for stream in procedure.inputs:
                    relation = self.app.streams[stream].relation
                    if column in relation.index_of and self.app.streams[stream].border:
                        plan.setdefault(stream, []).append((table, relation.index_of[column]))
        return plan

    @property
    def merges(self) -> list[Merge]:
        """The merges of this opening."""
        return self.merger.done

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Finish what is running, merge, and let go of the files. What waits (for a person) waits again after reopening."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.executor.ended.notify_all()  # pushes that wait for room
        try:
            self.executor.close()
            self.merger.close()
            self.merger.merge()
        finally:
            for execution in self.scheduler.waiting():
                for ticket in execution.context.tickets:
                    ticket.stop(EngineClosed(f"the engine was closed before {execution} could finish: it {execution.reason}"))
            self._let_go()

    def _let_go(self) -> None:
        """Close whatever is open, in the right order."""
        if self.durable is not None:
            self.durable.close()
        if hasattr(self, "database"):
            self.database.close()
        if self.directory is not None:
            self.directory.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Engine {self.app.name} {'closed' if self._closed else 'open'} at sequence {self.sequence}>"

