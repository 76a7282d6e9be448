"""Opening an engine on a directory: find a sound base, restore its state, replay the log since."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.directory.compatibility import check_segment
from tidegate.directory.log import DurableLog
from tidegate.directory.survey import Survey
from tidegate.errors import CorruptionError, LogFailed
from tidegate.storage.codec import RowCodec
from tidegate.tuning import Turns
from tidegate.txn.entries import Entries, Rows, Work
from tidegate.txn.executors.replay import ReplayExecutor
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Any_, Called, Delivered, Executed, Fed, Pushed, Resumed, Subscribed, from_us
from tidegate.txn.repeating import Report

if TYPE_CHECKING:
    from tidegate.engine.acceptance import Acceptance
    from tidegate.engine.engine import Engine
    from tidegate.engine.feeding import Feeding
    from tidegate.outside.outbox import Outbox

log = logging.getLogger("tidegate")

Progress = Callable[[int, int], None]  # bytes of the log replayed, bytes in all


def recover(
    engine: Engine, survey: Survey, meta: Mapping[str, Any], notes: list[str], accept_changed: bool, progress: Progress
) -> Report:
    """Replay the log from the LSN of the base, which is described by ``meta``, to its end."""
    assert engine.directory is not None
    start = int(meta.get("lsn", 0))
    began = engine.clock.monotonic()
    if survey.cut is not None:
        notes.append(f"cut a torn tail of {survey.cut.size} bytes off {survey.cut.file} (never acknowledged)")
    for segment, last in survey.segments:
        if last >= start:
            check_segment(engine.app, segment, accept_changed)
    relations = [*engine.app.tables.values(), *(s.relation for s in engine.app.streams.values())]
    codecs = {relation.name: RowCodec(relation) for relation in relations}
    engine.executor = executor = ReplayExecutor(*engine.parts, engine.app.recovery, codecs)
    for entry in survey.outcomes:
        if entry.lsn >= start:
            executor.look_ahead(entry.record)
    engine.journal.log = executor.outcomes
    reader = LogReader(engine.directory.files, start)
    records = reader.records(meta.get("chain", 0), lambda lsn: progress(max(lsn - start, 0), survey.end - start))
    with _few_collections():
        entries = Entries(engine.borders, engine.runtime.units, codecs)
        report = Replay(engine.acceptance, engine.feeding, engine.outbox, executor, entries).run(records)
    if report.records:
        progress(survey.end - start, survey.end - start)
    engine.journal.log = None
    report.unlogged = list(executor.unlogged.to_log(engine.scheduler))
    report.notes = notes
    report.seconds = engine.clock.monotonic() - began
    if report.records or notes:
        log.info("%s: %s", engine.directory.path, report)
    return report


class Replay:
    """The log, accepted again: the same entries, with the same numbers and times, on the same path as the first time.

    So replaying twice is safe: starting from the same base and the same LSN it ends in the same state, and nothing it
    does is visible outside before it is done.
    """

    def __init__(
        self, acceptance: Acceptance, feeding: Feeding, outbox: Outbox, executor: ReplayExecutor, entries: Entries
    ) -> None:
        self._acceptance = acceptance
        self._feeding = feeding
        self._outbox = outbox
        self._executor = executor
        self._entries = entries
        self._early: dict[int, Work] = {}  # of records that were read ahead
        self._replayed = Report()

    def run(self, records: Iterable[Any_]) -> Report:
        """Apply ``records``."""
        executor, tape = self._executor, self._executor.tape
        executor.placed = self._acceptance.sequence
        tape.insert(records if self._executor.runtime.ahead is None else self._read_ahead(records))
        if tape.next is not None:
            executor.run_ready()  # the base may hold work that had not run when it was saved
        while tape.next is not None:
            self._apply(tape.take())
            executor.admit_due()
        self._acceptance.sequence = executor.placed
        self._count("batches", executor.batches)
        self._count("executions", executor.executions)
        return self._replayed

    def _count(self, what: str, number: int = 1) -> None:
        if number:
            self._replayed.replayed[what] = self._replayed.replayed.get(what, 0) + number

    def _apply(self, record: Any) -> None:
        acceptance, executor = self._acceptance, self._executor
        match record:
            case Executed():
                executor.ended_as(record)
            case Pushed() | Fed() | Called():
                self._count("calls", isinstance(record, Called))
                work = self._early.pop(id(record)) if id(record) in self._early else self._accepted(record)
                executor.place(work, None)
            case Resumed():
                with executor.lock:
                    acceptance.sequence = executor.placed
                    acceptance.resume(record.dataflow, record)
                    executor.placed = acceptance.sequence
                executor.run_ready()
            case Delivered():
                self._outbox.apply_delivered(record)
            case Subscribed():
                self._outbox.apply_subscribed(record)

    def _accepted(self, record: Pushed | Fed | Called) -> Work:
        """The entry of a record, accepted again."""
        entry = self._entries.read(record)
        if isinstance(record, Fed) and isinstance(entry, Rows):
            self._feeding.prefetch(record.stream, entry.rows or ())
        together = isinstance(record, Fed) and record.together
        work = self._acceptance.enter(entry, record.sequence, from_us(record.time_us), together)
        if isinstance(record, Pushed) and work.batches[0].id != record.batch_id:
            raise CorruptionError(
                f"the replay gives a batch of {record.stream} the id {work.batches[0].id}, but the log says {record.batch_id}; "
                f"the base does not belong to this log"
            )
        return work

    def _read_ahead(self, records: Iterable[Any_]) -> Iterator[Any_]:
        """The records, read so far ahead that windows can be evaluated for the batches of many of them at once.

        Batches are accepted as they are read: the order on each stream is still that of the log.
        """
        ahead = self._executor.runtime.ahead
        assert ahead is not None
        waiting: deque[Any_] = deque()
        wanted = 1
        for record in records:
            waiting.append(record)
            if isinstance(record, (Pushed, Fed)) and ahead.wanted(record.stream):
                wanted = ahead.wanted(record.stream)
                work = self._early[id(record)] = self._accepted(record)
                self._acceptance.announce(work)
            while len(waiting) > wanted:
                yield waiting.popleft()
        yield from waiting


@contextmanager
def _few_collections() -> Iterator[None]:
    """Nearly everything a replay creates stays alive: collecting as often as usual would take a tenth of its time.

    Collections are rare, but not off: the cycles that procedures leave behind are found.
    """
    before = gc.get_threshold()
    gc.set_threshold(100 * before[0], *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def begin_log(engine: Engine, survey: Survey, merges: int) -> DurableLog:
    """From now on everything accepted is logged."""
    assert engine.directory is not None

    def stop(error: LogFailed) -> None:
        engine.executor.stop_waiting(lambda execution: error)
        engine.executor.ended.notify_all()

    durable = DurableLog(
        engine.app,
        engine.config,
        engine.directory,
        survey,
        merges,
        engine.lock,
        stop,
        engine.clock,
        engine.database.halfway,
        Turns(engine.teller) if engine.config.tune_process else None,
    )
    for record in engine.recovery.unlogged:
        durable.append(record)
    return durable


def keep_a_generation(engine: Engine, survey: Survey) -> None:
    """If the mode has changed since the log was written, keep a copy of the base now, so that a damaged base can be
    rebuilt from it. The log before it can't be replayed together with the log after it.
    """
    assert engine.directory is not None
    newest = max((generation.lsn for generation in engine.directory.generations()), default=0)
    if any(segment.mode != engine.app.recovery and last >= newest for segment, last in survey.segments):
        engine.merger.merge(generation=True)
