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
from tidegate.journal import Journal
from tidegate.result import Result
from tidegate.state import restore, saved_state
from tidegate.storage.database import Database
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.subscription import Subscription
from tidegate.txn.executors import Executor, SerialExecutor, ThreadExecutor
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.ticket import Ticket
from tidegate.views import Merge, query

MERGE_CHECK = 250  # batches between two looks at how much is unmerged
FEED_AHEAD = 1_000  # rows read ahead by feed(), whose keys are fetched together


def open(
    app: App,
    path: str | Path | None = None,
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Engine:
    """Run ``app``: in memory, or in the directory ``path``. Settings are the fields of :class:`Config`.

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
    return Engine(app, path, config if config is not None else Config(**settings), clock or SystemClock())


class Engine:
    """One app at work. Use :func:`tidegate.open`; close it, or use it in a ``with`` block."""

    def __init__(self, app: App, path: str | Path | None, config: Config, clock: Clock) -> None:
        self.app = app
        self.config = config
        self.clock = clock
        self.graph = app.graph()
        directory = None if path is None else Path(path)
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self.database = self._open_database(directory / "base.duckdb" if directory else None)
        self.database.concurrent = config.executor == "threads"
        self.runtime = Runtime(app, self.graph, self.database)
        locks = LowWaterMarks() if config.locking == "low_water_mark" else TwoPhaseLocks()
        self.scheduler = Scheduler(self.graph, locks)
        self.journal: Journal = Journal()
        self.borders = {s.name: Border(s.relation, s.key) for s in app.streams.values() if s.border}
        self.merges: list[Merge] = []
        self.sequence = 0
        self._checked = 0  # sequence number at the last look at how much is unmerged
        self._closed = False
        self._merging = threading.Lock()
        self._ahead = self._prefetch_plan()
        self.executor = self._make_executor()
        self.lock = self.executor.lock
        try:
            restore(self, self.database.base.read_meta())
        except BaseException:
            self.executor.close()
            self.database.close()
            raise

    def _open_database(self, path: Path | None) -> Database:
        return Database(self.app.tables.values(), path, self.config.cached_rows)

    def _make_executor(self) -> Executor:
        parts = (self.runtime, self.scheduler, self.journal, self.clock)
        if self.config.executor == "threads":
            return ThreadExecutor(*parts, workers=self.config.workers, tick=self.tick)
        return SerialExecutor(*parts) if self.config.executor == "serial" else Executor(*parts)

    # ---- work in

    def push(
        self, stream: str, rows: Iterable[Any], batch_id: int | None = None, *, timeout_s: float | None = None
    ) -> Ticket:
        """Push rows to a border stream as one atomic batch (one per key value on a keyed stream).

        ``batch_id``: ids ascend per stream (per key); without one the engine numbers. Pushing the same id with the same
        rows again changes nothing and says so (``ticket.duplicate``).
        With the serial executor the work is done when push returns, unless it waits for something. With threads, push
        waits up to ``timeout_s`` seconds for room in the queues (None: as long as it takes), then raises Overloaded.
        """
        border = self.borders.get(stream) or self._no_border(stream)
        parts = border.split(border.check_rows(rows))
        with self.lock:
            self._work_begins()
            if not self.app.streams[stream].awaited:  # an answer frees what waits for it
                self._make_room(stream, timeout_s)  # lets go of the lock while it waits: look at the ids after it
            ticket = Ticket(self.executor.wait)
            if batch_id is not None:
                fresh = border.check_ids(parts, batch_id)
                ticket.duplicate = bool(parts) and not fresh
                parts = fresh
                self._check_awaited(border, parts, batch_id)
            ticket.pending = 1  # not done before the last key is in
            for key, part in parts.items():
                batch = border.accept(key, part, batch_id)
                ticket.batch_ids.append(batch.id)
                self.enter(batch, ticket)
            ticket.pending -= 1
            if not ticket.pending:
                ticket.finish()
        return ticket

    def enter(self, batch: Batch, ticket: Ticket) -> None:
        """An accepted border batch takes its place in the order. The caller holds the lock."""
        self.sequence += 1
        self.executor.submit(self.sequence, batch, self.clock.now(), ticket)
        self._merge_if_due()

    def feed(self, stream: str, rows: Iterable[Any], *, size: int = 1) -> int:
        """Push many rows, ``size`` to a batch, without a ticket for each; returns the number of batches.

        The fast way in: same checks, same order, same transactions as :meth:`push`. Keys that procedures declared in
        ``prefetch`` are fetched for many batches at a time. A row that is refused raises after the rows before it are in;
        the error's ``fed`` says how many those are.
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
        return batches

    def _feed_chunk(self, border: Border, rows: list[Any], size: int) -> int:
        for table, place in self._ahead.get(border.name, ()):
            self.database.prefetch(table, {row[place] for row in rows})
        count = 0
        with self.lock:
            self._work_begins()
            inline = self.executor.inline_plan(border.name)
            now = self.clock.now()
            for start in range(0, len(rows), size):
                for key, part in border.split(rows[start : start + size]).items():
                    count += 1
                    if inline is not None and self.scheduler.idle:
                        self.sequence += 1
                        self.executor.run_inline(inline, self.sequence, border.accept(key, part), now, None)
                    else:
                        self._make_room(border.name, None)
                        self.enter(border.accept(key, part), Ticket(self.executor.wait))
            self._merge_if_due()
        return count

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
        bound, partitions = program.members[0].bind_call(arguments, named)
        with self.lock:
            self._work_begins()
            self._make_room(name, None)
            ticket = Ticket(self.executor.wait)
            self.sequence += 1
            self.executor.submit_call(self.sequence, program, bound, partitions, self.clock.now(), ticket)
            self._merge_if_due()
        return ticket

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
            self._merge_if_due()
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
            self.enter(border.accept(execution.key, rows, execution.batch_id), Ticket(self.executor.wait))

    def resume(self, dataflow: str | None = None) -> None:
        """Let a halted dataflow (or all) go on, starting with the batch it stopped in front of."""
        with self.lock:
            self._check_open()
            names = list(self.scheduler.halted) if dataflow is None else [dataflow]
            for name in names:
                if name not in self.scheduler.halted:
                    raise unknown("resume", "halted dataflow", name, self.scheduler.halted)
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
        """Follow the batches committed to a stream from now on."""
        if stream not in self.app.streams or self.app.streams[stream].border:
            emitted = [s.name for s in self.app.streams.values() if not s.border]
            raise unknown("subscribe", "interior stream", stream, emitted)
        subscription = Subscription(self, stream, capacity)
        with self.lock:
            self.runtime.listeners.setdefault(stream, []).append(subscription.receive)
        return subscription

    # ---- merging and closing

    def checkpoint(self) -> None:
        """Fold everything committed into the base now."""
        self._check_open()
        self._checkpoint()

    def _checkpoint(self) -> None:
        with self._merging:
            started = self.clock.monotonic()
            rows = self.database.merge(
                lambda: saved_state(self), self.scheduler.open_positions, list(self.executor.snapshots), self.lock
            )
            self.merges.append(Merge(len(self.merges) + 1, rows, self.clock.monotonic() - started, self.clock.now()))

    def _merge_if_due(self) -> None:
        if self.sequence - self._checked < MERGE_CHECK:
            return
        self._checked = self.sequence
        if self.database.unmerged >= self.config.merge_rows and not self._merging.locked():
            self._checkpoint()

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
            self._checkpoint()
        finally:
            for execution in self.scheduler.waiting():
                for ticket in execution.context.tickets:
                    ticket.stop(EngineClosed(f"the engine was closed before {execution} could finish: it {execution.reason}"))
            self.database.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Engine {self.app.name} {'closed' if self._closed else 'open'} at sequence {self.sequence}>"

