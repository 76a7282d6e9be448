"""The engine: a running app. Everything with an effect outside a transaction starts here."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import UNSET

from tidegate import tuning
from tidegate.clock import Clock, SystemClock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.directory.backup import backup_engine
from tidegate.directory.layout import Directory
from tidegate.directory.log import DurableLog
from tidegate.directory.upgrading.changes import Change
from tidegate.engine import closing
from tidegate.engine.acceptance import Acceptance
from tidegate.engine.advancing import advance, check_finish, finish
from tidegate.engine.batcher import Batcher
from tidegate.engine.checkpoint import restore
from tidegate.engine.connections import Started, keep_for_deliveries, start_declared
from tidegate.engine.fed import Fed
from tidegate.engine.feeding import Feeding
from tidegate.engine.halts import Halted, continue_halted, halted, requeue
from tidegate.engine.merging import Merger
from tidegate.engine.opening import (
    begin_log,
    checked_config,
    find_base,
    keep_upgrade,
    make_executor,
    recover,
    tell_recovery,
)
from tidegate.engine.progress import Progress, unseen
from tidegate.engine.queries import Queries
from tidegate.engine.questions import Question, answer_rows, questions, reask
from tidegate.engine.result import Result
from tidegate.engine.system_views import Merge
from tidegate.engine.ticking import Ticker
from tidegate.engine.views import fill_views
from tidegate.engine.watching import Watching, metrics
from tidegate.errors import AccessError, EngineClosed, LogFailed, MergeFailed, unknown
from tidegate.forking import own
from tidegate.mutex import Rank, reentrant
from tidegate.outside.delivery import Delivery, Sink, start_delivery
from tidegate.outside.durable import DurableSubscription, Start
from tidegate.outside.ingestion import Ingestion, ingest
from tidegate.outside.outbox import Outbox
from tidegate.outside.sources import Source, check_place
from tidegate.outside.subscription import Subscription
from tidegate.storage.database import Database
from tidegate.streams.border import Border
from tidegate.streams.windows.declare.durations import Duration
from tidegate.streams.windows.evaluate.backends import Evaluation, start
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.txn.executors.base import Executor
from tidegate.txn.journal import Journal
from tidegate.txn.repeating import Report
from tidegate.txn.runaways import Lookout
from tidegate.txn.runtime import Runtime
from tidegate.txn.scheduler import Scheduler
from tidegate.txn.teller import Teller
from tidegate.txn.ticket import Ticket

log = logging.getLogger("tidegate")


def open(
    app: App,
    path: str | Path | None = None,
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    drop: Iterable[str] = (),
    progress: Progress | None = None,
    **settings: Any,
) -> Engine:
    """Run ``app``: in memory, or durably in the directory ``path``. Settings are the fields of :class:`Config`.

    A directory that was not closed cleanly is recovered first; ``engine.recovery`` says what was done, and
    ``progress(done, total, doing)`` is called meanwhile, from another thread, too. What another version of the app left
    behind is never run by this one.
    If the app has changed since, ``engine.upgraded`` says what became of what is stored. What it no longer declares is
    refused, unless ``drop`` names it: tables, ``table.column``, ``procedure.window``, border streams, subscriptions.

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
    chosen = checked_config(app, path, config, settings)
    engine = Engine(app, path, chosen, clock or SystemClock(), progress or unseen, drop)
    tell_recovery(engine)
    return engine


class Engine:
    """A running app. Use :func:`tidegate.open`; close it, or use it in a ``with`` block."""

    def __init__(
        self,
        app: App,
        path: str | Path | None,
        config: Config,
        clock: Clock,
        progress: Progress = unseen,
        drop: Iterable[str] = (),
    ) -> None:
        own(self)
        self.app = app
        self.config = config
        self.clock = clock
        self.graph = app.graph()
        self.offsets: dict[str, Any] = {}  # source -> the offset accepted with its last batch
        self.journal: Journal = Journal()
        self.borders = {s.name: Border(s.relation, s.key) for s in app.streams.values() if s.border}
        self.batchers: set[Batcher] = set()
        self.ingestions: dict[str, Ingestion] = {}
        self.recovery = Report()
        self.upgraded: list[Change] = []  # what has changed since the directory was last opened
        self.durable: DurableLog | None = None
        self.lock = reentrant(Rank.ENGINE)
        self.ending = threading.Lock()  # held while closing
        self.teller = Teller(self.wait)
        self.closed = False
        self.untune: Callable[[], None] = lambda: None
        self.ticker: Ticker | None = None
        self.watching = Watching(self)
        self.directory = None if path is None else Directory(Path(path).expanduser())
        try:
            self._open(progress, [drop] if isinstance(drop, str) else list(drop))
            if self.directory is not None:
                fill_views(self)
                keep_for_deliveries(self)
        except BaseException:
            closing.let_go(self)
            raise
        closing.close_at_exit(self)

    def _open(self, progress: Progress, drop: list[str]) -> None:
        """Restore what is on disk, replay the log since, and start working."""
        meta: Mapping[str, Any] = {}
        notes: list[str] = []
        survey = None
        if self.directory is not None:
            survey, meta, notes = find_base(self, self.directory, drop)
        self.database = self._open_database(None if self.directory is None else self.directory.base)
        self.halfway = self.database.halfway
        config = self.config
        evaluation = Evaluation(config.backend, config.spark, config.look_ahead, config.executor != "manual")
        self.runtime = Runtime(self.app, self.graph, self.database, evaluation)
        start([plan for program in self.runtime.programs.values() for plan in program.plans.values()])
        self.lookout = Lookout(self.runtime, self.config.procedure_deadline_s)
        self.scheduler = Scheduler(self.graph)
        self.parts = self.runtime, self.scheduler, self.journal, self.clock, self.lock  # what every executor needs
        self.outbox = Outbox(self)
        self.acceptance = Acceptance(self)
        self.feeding = Feeding(self)
        self.queries = Queries(self)
        self.lookout.start()
        if survey is not None:
            restore(self, meta)
        self.outbox.topics.begin_declared()
        if survey is not None:
            self.recovery = recover(self, survey, meta, notes, progress)
            self.durable = self.journal.log = begin_log(self, survey, max(survey.merges, int(meta.get("merge", 0))))
        self.database.concurrent = self.config.executor == "threads" or self.directory is not None
        self.executor: Executor = make_executor(self)
        self.turn = self.executor.turn  # held while work is brought in, see Executor
        self.merger: Merger = Merger(self)
        if self.config.tune_process:
            self.untune = tuning.tune()
        if survey is not None:
            keep_upgrade(self, survey, meta)
        self.acceptance.begun = True
        self.executor.wake()

    def _open_database(self, path: Path | None) -> Database:
        return Database(self.app.tables.values(), path, self.config.cached_rows, memory=self.config.memory)

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
        after: Any = UNSET,
        digest: str | None = None,
    ) -> Ticket:
        """Push rows to a border stream as one atomic batch (one per key value on a keyed stream).

        ``batch_id``: ids ascend per stream (per key); without one the engine assigns it. Pushing the same id with the
        same rows again changes nothing; ``ticket.duplicate`` says so, and ``ticket.original`` what became of the first
        push. With the serial executor the work is done when push returns, unless it waits for something. With threads,
        push waits up to ``timeout_s`` seconds for room in the queues (None: as long as it takes), then raises
        Overloaded. With a directory the ticket is done only once the batch is on disk.
        ``source`` and ``offset``: stored atomically with the batch; see :meth:`position`. A push without rows advances
        the source, too. ``after``: where the source must be before the push (None: it has no position yet). If it is
        already at ``offset``, the push is a repeat that changes nothing; anywhere else, it is refused: someone else
        feeds as this source. ``digest``: it answers the question that shows this, and no other; see :meth:`answer`.
        """
        return self.acceptance.push(stream, rows, batch_id, timeout_s, source, offset, after, digest)

    def answer(self, question: Question, rows: Any = None, /, **values: Any) -> Ticket:
        """Answer a question: with a row by keyword, or a list of rows of its stream; the key is filled in by name.

        It counts only for what the question showed: if it was asked anew since, QuestionChanged says what is asked now.
        NotAsked when it is not open, and BatchError when it already has a different answer. The same answer again
        changes nothing.
        """
        given = answer_rows(self, question, rows, values)
        return self.push(question.stream, given, question.batch_id, digest=question.digest)

    def reask(self, question: Question | str, key: Any = None, batch_id: int | None = None) -> None:
        """Withdraw an open question, given as it was listed or by its stream, key and batch-id. The members in front of it
        run again, with the code in force now; what they do is asked under the same batch-id, with a new deadline.

        An answer to what was withdrawn is refused with QuestionChanged.
        """
        reask(self, question, key, batch_id)

    def position(self, source: str) -> Any:
        """The offset that was pushed last for ``source``; None when there is none. A source continues from there."""
        return self.offsets.get(source)

    def feed(self, stream: str, rows: Iterable[Any], *, size: int = 1, **place: Any) -> Fed:
        """Push many rows, ``size`` to a batch, without a ticket for each; returns how many were accepted and undone.

        The fast way in: same checks, same order, same transactions as :meth:`push`. Keys that procedures declare in
        ``prefetch`` are fetched for many batches at a time. A row that is refused raises after the rows before it were
        fed; the error's ``fed`` says how many. ``rows`` may also be columns, as in :meth:`push`: a table, a data frame, or
        a stream of record batches (of a DuckDB relation, of Parquet files), which is read as it is fed. With a directory
        it returns when everything is on disk. Raises FeedHalted when rows that it accepted wait behind a halt; it stops
        early if all would.
        ``source``, ``offset``, ``after``: as in :meth:`push`; all rows are then accepted, with the offset, or none.
        """
        check_place(**place)
        fed, halted = self.feeding.feed(stream, rows, size, **place)
        if halted is not None:
            raise halted
        return fed

    def batcher(
        self,
        stream: str,
        *,
        count: int | None = None,
        interval: Duration | None = None,
        on: str | None = None,
        delay: str | dt.timedelta | None = None,
        source: str | None = None,
        timeout_s: float | None = None,
        on_batch: Callable[[Ticket], None] | None = None,
    ) -> Batcher:
        """Turn single rows into atomic batches; use it in a ``with`` block, and ``add`` rows.

        A batch is pushed when it has ``count`` rows, when a row of a later ``interval`` of the time in column ``on``
        arrives, or when its oldest row has waited for ``delay``, whichever is first. ``source``: each row is added with
        its offset, and that of the last row is stored with the batch, see :meth:`position`. ``timeout_s``: as in
        :meth:`push`. ``on_batch``: called with the ticket of every batch.
        """
        self.check_open()
        batcher = Batcher(
            self, stream, count=count, interval=interval, on=on, delay=delay, source=source, timeout_s=timeout_s,
            on_batch=on_batch,
        )  # fmt: skip
        self.batchers.add(batcher)
        return batcher

    def ingest(self, stream: str, source: Source, name: str | None = None, **options: Any) -> Ingestion:
        """Read the rows of a source into a border stream, each exactly once, across restarts of either side.

        ``options``: ``size``, ``limit``, ``finish``, ``background`` of :func:`tidegate.outside.ingestion.ingest`.
        """
        if options.get("finish"):
            check_finish(self, [stream])
        return ingest(self, stream, source, name, **options)

    def advance(
        self, stream: str, to: Any, *, key: Any = None, batch_id: int | None = None, timeout_s: float | None = None
    ) -> Ticket:
        """Say that no row earlier than ``to`` will follow on a border stream, so that windows and joins up to there fire:
        its own, and those behind the procedures that it passes through.

        It enters as a batch without rows. ``key``: on a keyed stream, for this key (default: every key so far).
        ``batch_id``: as in :meth:`push`; needed where the sender of the rows chooses their ids. ``timeout_s``: as there.
        """
        return advance(self, stream, to, key, batch_id, timeout_s)

    def finish(self, stream: str | None = None, *, timeout_s: float | None = None) -> Ticket:
        """Say that nothing will follow on a border stream, or on any: all that waits for time fires. Later rows are refused."""
        return finish(self, stream, timeout_s)

    def call(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call an OLTP procedure and return what it returns; raises what undid it."""
        return self.submit(procedure, *arguments, **named).result()

    def submit(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Ticket:
        """Call an OLTP procedure without waiting for it."""
        return self.acceptance.call(self.acceptance.prepare_call(procedure, arguments, named))

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> None:
        """Return when the ticket is done (and on disk), or raise StillWaiting with what it waits for."""
        try:
            if self.config.executor == "manual":
                self.executor.run_until_idle()
            if self.durable is not None:
                self.durable.sync()
            if not ticket.done:
                self.executor.wait(ticket, timeout_s)
        except BaseException:
            closing.stop_if_torn(self)
            raise

    def check_open(self) -> None:
        """Raise when the engine is closed, or when a procedure tries to use it instead of its transaction."""
        if self.closed:
            raise EngineClosed("the engine is closed; to continue, open the app again")
        if self.halfway.through is not None and (self.durable is None or self.durable.writer.failed is None):
            with self.lock:  # another thread may be in the middle of a step
                self.halfway.check()
        inside = self.runtime.running.get(threading.get_ident()) if self.runtime.running else None
        if inside is not None:
            raise AccessError(
                f"procedure {inside.procedure} uses the engine itself; inside a procedure everything goes through txn "
                f"(txn.execute, txn.emit), so that it commits or aborts as one",
                procedure=inside.procedure,
            )

    # ---- running

    def step(self) -> bool:
        """Run one execution that may run now; False when there is none. For executor="manual"."""
        try:
            with self.turn:
                self.acceptance.check_ready()
            ran = self.executor.step()
        except BaseException:
            closing.stop_if_torn(self)
            raise
        self.merger.look()
        return ran

    def run_until_idle(self) -> int:
        """Run (or, with threads, wait) until nothing may run; returns how many executions ran here."""
        count = self.executor.run_until_idle() if self.config.executor == "threads" else 0
        while self.config.executor != "threads" and self.step():
            count += 1
        return count

    def tick(self) -> None:
        """Let time pass: let in the timers and schedules that are due, the default for every awaited batch whose deadline has
        passed, and what has waited long enough in a batcher.

        New work and waiting threads do this automatically, and so does an engine after :meth:`start`.
        """
        try:
            with self.turn:
                self.check_open()
                self.acceptance.tick()
        except BaseException:
            closing.stop_if_torn(self)
            raise
        for batcher in tuple(self.batchers):
            batcher.tick()
        self.merger.look()

    def resume(self, dataflow: str | None = None, *, key: Any = UNSET) -> None:
        """Continue a halted dataflow (or all), starting with the batch it stopped in front of. ``key``: for this key only."""
        continue_halted(self, dataflow, key, skip=False)

    def skip(self, dataflow: str | None = None, *, key: Any = UNSET) -> None:
        """The same, after moving the batch that it stopped in front of to the dead letters."""
        continue_halted(self, dataflow, key, skip=True)

    def requeue(self, letter: str) -> Ticket:
        """Accept the batch of a dead letter again, once, as new work under a new id. ``letter``: its position."""
        return requeue(self, letter)

    def halted(self) -> list[Halted]:
        """What is halted now: each dataflow, and key if it has keys, with the batch it stopped in front of and why."""
        with self.lock:
            self.check_open()
            return halted(self)

    # ---- reading

    @property
    def sequence(self) -> int:
        """The sequence number of the last batch or call that was accepted."""
        return self.acceptance.sequence

    def query(self, sql: Any, *parameters: Any, **named: Any) -> Result:
        """Run a read-only SQL query over all tables and the ``tidegate.*`` system views, at the newest committed state."""
        self.check_open()
        return self.queries.run(sql, named or parameters)

    def plan(self, window: str) -> Plan:
        """How a window with ``compute=``, given as ``"procedure.window"``, is evaluated: see ``plan(…).explain()``."""
        self.check_open()
        plans = {f"{p.name}.{name}": plan for p in self.runtime.programs.values() for name, plan in p.plans.items()}
        if window not in plans:
            raise unknown("plan", "window with compute=", window, plans)
        return plans[window]

    def questions(self) -> list[Question]:
        """What open nested transactions wait for: the questions put to people, oldest first."""
        with self.lock:
            self.check_open()
            return questions(self)

    def subscribe(self, stream: str, *, capacity: int = 100_000) -> Subscription:
        """Follow the batches committed to a stream from now on, as long as this engine is open."""
        self.check_open()
        self.check_emitted(stream)
        subscription = Subscription(self.outbox, stream, capacity)
        self.outbox.listen(stream, subscription.receive)
        return subscription

    def subscribe_durably(
        self, stream: str, name: str, *, snapshot: bool = True, start: Start = "now", on_lag: Any = None
    ) -> DurableSubscription:
        """Follow the batches of a stream under a name: after a restart, those not acknowledged come again.

        ``start``: where a new name begins: ``"now"`` (with what is caused by work accepted from now on) or, on a stream declared
        with ``keep=``, ``"earliest"``, a time, or an offset. ``on_lag``: what waits is kept on disk (``"keep"``, the default with
        a directory), or work that leads to it is refused when there is too much (``"block"``, see ``Config.backlog``), or the
        oldest are dropped when more than so many wait (``("drop", 100_000)``; CursorGone tells).
        ``snapshot``: the subscription of a changelog begins with the rows that its table holds.
        """
        self.check_open()
        self.check_followed(stream)
        return self.outbox.subscribe(name, stream, snapshot, start, on_lag)

    def deliver(self, stream: str, sink: Sink, name: str | None = None, **options: Any) -> Delivery:
        """Send a stream's batches to a sink, across restarts, in order for every key: exactly once when ``sink.transactional``,
        else at least once. Keep the ``name``. ``options``: those of :func:`tidegate.outside.delivery.start_delivery`.
        """
        self.check_open()
        self.check_followed(stream)
        return start_delivery(self, stream, sink, name, **options)

    def start(self) -> Started:
        """Start the sources and deliveries that the app declares, in the background; returns them. From then on time passes
        by itself, as with :meth:`tick` called again and again.

        ``tidegate serve`` does this. What is running already is left alone.
        """
        self.check_open()
        self.watching.start()
        if self.ticker is None and self.config.executor == "serial" and self.acceptance.needs_time:
            self.ticker = Ticker(self)
        return start_declared(self)

    def check_emitted(self, stream: str) -> None:
        """Raise unless a procedure emits to this stream: only such streams can be followed."""
        if stream not in self.app.streams or self.app.streams[stream].border:
            emitted = [s.name for s in self.app.streams.values() if not s.border]
            raise unknown("subscribe", "interior stream", stream, emitted)

    def check_followed(self, stream: str) -> None:
        """Raise unless there is such a stream: any can be followed durably."""
        if stream not in self.app.streams:
            raise unknown("subscribe", "stream", stream, self.app.streams)

    def metrics(self) -> dict[str, Any]:
        """Counts of what was done, and where the time goes: how busy each procedure is, hot keys, what waits for what, and the
        ``bottleneck`` in a sentence (None: there is none). From the first call on, or :meth:`start`, a thread looks at that.
        """
        self.check_open()
        return metrics(self)

    # ---- merging and closing

    def checkpoint(self, *, generation: bool = False) -> None:
        """Merge everything committed into the base now; ``generation``: also keep a copy of the merged base."""
        self.check_open()
        if self.durable is not None and self.durable.writer.failed is not None:
            self.durable.writer.check()  # raises the error that stopped the log
        try:
            self.merger.merge(generation)
        except OSError as error:
            raise MergeFailed(
                f"the checkpoint was not finished: {error}. What was acknowledged is safe in the log. Fix the cause (too many "
                f"open files: raise the limit, ulimit -n), then call it again",
                path=None if self.directory is None else self.directory.path,
            ) from error

    def backup(self, target: str | Path) -> None:
        """Copy this engine's directory to ``target`` while work continues; the copy can be opened, and verifies."""
        self.check_open()
        backup_engine(self, Path(target))

    @property
    def merges(self) -> list[Merge]:
        """The newest 10,000 merges since the engine was opened."""
        return list(self.merger.done)

    def close(self) -> None:
        """Finish what is running, merge, and release the files. What waits (for a person) waits again after reopening.

        In the middle of the engine's work (a procedure, a callback, a sink, a signal handler that interrupts it) it
        returns at once, and the engine closes when that work has ended. Elsewhere it returns when the engine is closed.
        An engine that has stopped, or is interrupted here, still releases its files; the error says so.
        """
        closing.close_engine(self)

    def abandon(self) -> None:
        """Release everything as a crash would: no merge, nothing finished. What was acknowledged is recovered on
        opening.
        """
        closing.abandon(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (EngineClosed, LogFailed) as stopped:
            if error is None:
                raise
            log.error("%s", stopped)  # logged, so that it does not replace the original error

    def __repr__(self) -> str:
        return f"<Engine {self.app.name} {'closed' if self.closed else 'open'} at sequence {self.sequence}>"
