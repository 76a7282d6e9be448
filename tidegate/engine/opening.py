"""Opening an engine on a directory: find a sound base, restore its state, replay the log since."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.clock import EPOCH
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.dataflows.fingerprint import difference, fingerprint, told_difference
from tidegate.directory.compatibility import check_recorded, check_segments, is_foreign
from tidegate.directory.layout import Directory
from tidegate.directory.log import DurableLog
from tidegate.directory.survey import Survey, repair
from tidegate.directory.upgrading.opening import bring_over
from tidegate.engine.checkpoint import check_format
from tidegate.engine.progress import Progress, Showing, describe, refused
from tidegate.errors import (
    CorruptionError,
    DeclarationError,
    LogError,
    LogFailed,
    Runaway,
    TidegateError,
    shown,
    unknown,
)
from tidegate.storage.codec import RowCodec
from tidegate.tuning import Turns
from tidegate.txn.entries import Entries, Rows, Work, record_of
from tidegate.txn.executors.base import Executor
from tidegate.txn.executors.replay import ReplayExecutor
from tidegate.txn.executors.serial import SerialExecutor
from tidegate.txn.executors.threads import ThreadExecutor
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import (
    Advanced,
    Any_,
    Asked,
    Called,
    Delivered,
    Executed,
    Fed,
    Moved,
    Pushed,
    Reasked,
    Requeued,
    Resumed,
    Skipped,
    Subscribed,
    Upgraded,
    from_us,
    to_us,
)
from tidegate.txn.positions import sequence_of
from tidegate.txn.repeating import Report

if TYPE_CHECKING:
    from tidegate.engine.acceptance import Acceptance
    from tidegate.engine.engine import Engine
    from tidegate.engine.feeding import Feeding
    from tidegate.outside.outbox import Outbox

log = logging.getLogger("tidegate")


def find_base(
    engine: Engine, directory: Directory, drop: Collection[str]
) -> tuple[Survey, Mapping[str, Any], list[str]]:
    """The log as it is on disk, the facts of a sound base in the shape that the app declares, and what had to be done.

    Refused is refused before the base gets another shape.
    """
    survey = Survey(directory.files)
    repair(directory.files, survey)
    meta: Mapping[str, Any]
    since = survey.replayable_since(engine.app)
    meta, notes = directory.sound_base(survey.identity, survey.merges, survey.oldest, survey.end, since)
    check_format(meta)
    survey.check(meta)
    check_segments(engine.app, survey.since(int(meta.get("lsn", 0))), notes)
    meta, engine.upgraded = bring_over(engine.graph, directory.base, meta, drop, survey.pending(meta))
    return survey, meta, notes


def checked_config(app: Any, path: Any, config: Config | None, settings: Mapping[str, Any]) -> Config:
    """The configuration that ``open`` was given; raises for arguments that can't be meant."""
    if not isinstance(app, App):
        raise DeclarationError(
            f"open() takes an App, got {shown(app)}; "
            + ('import the app from its module, or on the command line: "tidegate serve pay.py:app"'
               if isinstance(app, (str, Path)) else "declare one with tidegate.App(name)")
        )  # fmt: skip
    if path is not None and (not isinstance(path, (str, Path)) or not str(path)):
        raise TidegateError(f"open(app, path) takes a directory, or None to run in memory; got {path!r}")
    if config is not None and settings:
        raise TidegateError(f"open() got both config= and {', '.join(settings)}; put all of them into the Config")
    for name in settings:
        if name not in Config.__dataclass_fields__:
            raise unknown("open", "setting", name, Config.__dataclass_fields__)
    return config if config is not None else Config(**settings)


def recover(engine: Engine, survey: Survey, meta: Mapping[str, Any], notes: list[str], progress: Progress) -> Report:
    """Replay the log from the LSN of the base, which is described by ``meta``, to its end."""
    assert engine.directory is not None
    start = int(meta.get("lsn", 0))
    began = engine.clock.monotonic()
    if survey.cut is not None:
        notes.append(f"cut a torn tail of {survey.cut.size} bytes off {survey.cut.file} (never acknowledged)")
    relations = [*engine.app.tables.values(), *(s.relation for s in engine.app.streams.values())]
    codecs = {relation.name: RowCodec(relation) for relation in relations}
    engine.executor = executor = ReplayExecutor(*engine.parts, engine.app.recovery, codecs)
    for entry in survey.outcomes:
        if entry.lsn >= start:
            executor.look_ahead(entry.record)
    engine.journal.log = executor.outcomes
    reader = LogReader(engine.directory.files, start)
    showing = Showing(engine.lookout, reader, start, survey.end, progress, engine.directory.path)
    records = reader.records(meta.get("chain", 0), showing.reached)
    with _few_collections(), showing:
        entries = Entries(engine.borders, engine.runtime.units, codecs)
        replay = Replay(engine.acceptance, engine.feeding, engine.outbox, executor, entries)
        replay.skipped = {skipped.sequence: skipped for skipped in survey.skipped}
        try:
            report = replay.run(records)
        except Runaway as error:
            raise refused(error, engine.directory.files, start) from error
    check_recorded(engine.app, survey.since(start), [str(execution) for execution in engine.scheduler.ready()])
    if report.records:
        progress(survey.end - start, survey.end - start, "done")
    notes += engine.outbox.replayed()
    notes += [f"did not end in the replay either, and was stopped: {error}" for error in executor.ran_away]
    engine.journal.log = None
    report.unlogged = list(executor.unlogged.to_log(engine.scheduler))
    report.notes = [*notes, *report.skipped]
    report.seconds = engine.clock.monotonic() - began
    return report


def tell_recovery(engine: Engine) -> None:
    """Log what was done; a repair is a warning. Who opens a copy to look into it does not: copies are meant to be incomplete."""
    report = engine.recovery
    if engine.directory is not None and (report.records or report.notes):
        log.log(logging.WARNING if report.notes else logging.INFO, "%s: %s", engine.directory.path, report)


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
        self.skipped: Mapping[int, Skipped] = {}  # by the sequence number of what is not to run
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
        executor = self._executor
        match record:
            case Executed():
                executor.ended_as(record)
            case Pushed() | Fed() | Called() | Requeued() | Advanced():
                self._count("calls", isinstance(record, Called))
                work = self._early.pop(id(record)) if id(record) in self._early else self._accepted(record)
                self._outbox.topics.accepted(work)
                if record.sequence in self.skipped:
                    self._skip(record, work)
                else:
                    executor.place(work, None)
            case Resumed():
                executor.place(self._resumed(record), None)
            case Asked() | Reasked() if sequence_of(record.position) in self.skipped:
                pass
            case Asked():
                executor.asked_as(record)
                self._count("questions")
            case Reasked():
                executor.reasked(record)
            case Delivered():
                self._outbox.apply_delivered(record)
            case Subscribed():
                self._outbox.apply_subscribed(record)
            case Moved():
                self._outbox.apply_moved(record)

    def _skip(self, record: Pushed | Fed | Called | Requeued | Advanced, work: Work) -> None:
        """Someone decided that this record is not to run. Its number, batch-ids and offset are taken all the same."""
        skipped = self.skipped[record.sequence]
        told = f"record {skipped.record} ({describe(record)})"
        if isinstance(record, (Pushed, Fed)) and record.stream in self._acceptance.awaited:
            self._replayed.skipped.append(
                f"{told} was not skipped: it answers a question, which would stay open forever"
            )
            self._executor.place(work, None)
            return
        self._executor.skip(work, f"skipped by repair: {skipped.reason}")
        self._replayed.skipped.append(f"{told} was skipped: {skipped.reason}")

    def _resumed(self, record: Resumed) -> Work:
        """A dataflow continues as it did: what was parked moves to the same positions."""
        entry = self._entries.read(record)
        with self._executor.lock:
            work = self._acceptance.enter(entry, self._executor.placed + 1, EPOCH, together=True)
        again = record_of(entry, work)
        if again != record:
            raise CorruptionError(
                f"the log says that a dataflow was resumed as {record}, but the replay resumed it as {again}; the base does not "
                f"belong to this log"
            )
        return work

    def _accepted(self, record: Pushed | Fed | Called | Requeued | Advanced) -> Work:
        """The entry of a record, accepted again."""
        entry = self._entries.read(record)
        if isinstance(record, Fed) and isinstance(entry, Rows):
            self._feeding.foreknown.fetch(record.stream, entry.rows or ())
        together = isinstance(record, (Fed, Advanced)) and record.together
        work = self._acceptance.enter(entry, record.sequence, from_us(record.time_us), together)
        if isinstance(record, (Pushed, Requeued)) and work.batches[0].id != record.batch_id:
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
            if isinstance(record, (Pushed, Fed, Advanced)) and ahead.wanted(record.stream):
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


def make_executor(engine: Engine) -> Executor:
    """The executor that the settings ask for."""
    accept = engine.acceptance
    engine.scheduler.by_priority = engine.graph.precedence.any and engine.config.executor != "serial"
    if engine.config.executor == "threads":
        return ThreadExecutor(*engine.parts, workers=engine.config.workers, tick=accept.tick, pause_s=accept.idle_s)
    return SerialExecutor(*engine.parts) if engine.config.executor == "serial" else Executor(*engine.parts)


def keep_upgrade(engine: Engine, survey: Survey, meta: Mapping[str, Any]) -> None:
    """If another version of the app (or the same in another mode) was here before, merge, and keep a copy of the base,
    before there is new work: the log before it can't be replayed together with the log after it. The log says so, too.
    """
    assert engine.directory is not None
    assert engine.durable is not None
    newest = max((generation.lsn for generation in engine.directory.generations()), default=0)
    others = [s for s, last in survey.segments if is_foreign(engine.app, s) and last >= newest]
    replayed = survey.since(int(meta.get("lsn", 0)))
    last = [*others, *replayed][-1:]
    before = last[0].fingerprint if last else meta.get("fingerprint")
    after = fingerprint(engine.app)
    if before is None or (not others and before["digest"] == after["digest"]):
        return
    engine.merger.merge(generation=True)
    kept = engine.directory.generations()
    if not kept or kept[0].number != engine.durable.merges:
        raise LogError(
            f"{engine.directory.path}: the app has changed, and no copy of the base could be kept to start from (the log "
            f"says why). Free some space, then open again: nothing is lost"
        )
    changed, now = difference(before, after), engine.clock.now()
    versions = before["version"], after["version"]
    engine.durable.append(
        Upgraded(kept[0].number, kept[0].lsn, to_us(now), before["digest"], after["digest"], changed, *versions)
    )
    engine.durable.sync()
    told = " to ".join(
        f"version {version}" for version in versions if version is not None and versions[0] != versions[1]
    )
    note = f"the app was upgraded{f' ({told})' if told else ''}: {told_difference(changed)}; kept as generation {kept[0].number}"
    engine.recovery.notes.append(note)
    log.info("%s: %s", engine.directory.path, note)
