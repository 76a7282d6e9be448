"""Opening an engine on a directory: find a sound base, restore its state, replay the log since."""

from __future__ import annotations

import datetime as dt
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.directory.log import Durability, Opened, check_segment
from tidegate.errors import CorruptionError, LogFailed
from tidegate.storage.codec import RowCodec, from_json
from tidegate.streams.batch import Batch
from tidegate.tuning import Turns
from tidegate.txn.executors.serial import SerialExecutor
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Delivered, Fed, Pushed, RawFed, Subscribed, from_us
from tidegate.txn.recovery import Parts, Replay
from tidegate.txn.repeating import Report

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

Progress = Callable[[int, int], None]  # bytes of the log replayed, bytes in all


class Target:
    """The engine as a replay sees it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.borders = engine.borders
        self.scheduler = engine.scheduler
        self.runtime = engine.runtime
        self.offsets = engine.offsets
        relations = [*engine.app.tables.values(), *(s.relation for s in engine.app.streams.values())]
        self.codecs = {relation.name: RowCodec(relation) for relation in relations}

    @property
    def sequence(self) -> int:
        return self._engine.sequence

    @sequence.setter
    def sequence(self, sequence: int) -> None:
        self._engine.sequence = sequence

    def parts(self, record: Fed) -> Parts:
        if record.source is not None:
            self.offsets[record.source] = from_json(record.offset)
        codec = self.codecs[record.stream]
        rows = codec.read(record.rows) if isinstance(record, RawFed) else codec.unpack(record.rows)
        self._engine.intake.prefetch(record.stream, rows)
        return self.borders[record.stream].split_into(rows, record.size)

    def reaccept_parts(self, record: Fed, parts: Parts) -> Iterator[tuple[int, Batch, dt.datetime]]:
        border, time = self.borders[record.stream], from_us(record.time_us)
        for sequence, (key, rows) in enumerate(parts, start=record.sequence):
            yield sequence, border.accept(key, rows), time

    def rerun_parts(self, record: Fed, parts: Parts) -> None:
        batches = self.borders[record.stream].accept_all(parts)
        self._engine.intake.place(record.sequence, batches, from_us(record.time_us), None)

    def reaccept(self, record: Pushed) -> tuple[int, Batch, dt.datetime]:
        border = self.borders[record.stream]
        rows = self.codecs[record.stream].unpack(record.rows)
        if record.source is not None:
            self.offsets[record.source] = from_json(record.offset)
        ((key, part),) = border.split(rows).items()
        batch: Batch = border.accept(key, part, record.batch_id if record.explicit else None)
        if batch.id != record.batch_id:
            raise CorruptionError(
                f"replay numbers a batch of {record.stream} {batch.id}, the log says {record.batch_id}; the base does not "
                f"belong to this log"
            )
        return record.sequence, batch, from_us(record.time_us)

    def apply_delivered(self, record: Delivered) -> None:
        self._engine.outbox.apply_delivered(record)

    def apply_subscribed(self, record: Subscribed) -> None:
        self._engine.outbox.apply_subscribed(record)


def recover(
    engine: Engine, opened: Opened, meta: Mapping[str, Any], notes: list[str], accept_changed: bool, progress: Progress
) -> Report:
    """Replay the log from the LSN of the base, of which ``meta`` tells, to its end."""
    assert engine.directory is not None
    start = int(meta.get("lsn", 0))
    files = engine.directory.files
    began = engine.clock.monotonic()
    if opened.cut is not None:
        notes.append(f"cut a torn tail of {opened.cut.size} bytes off {opened.cut.file} (never acknowledged)")
    for segment, last in opened.segments:
        if last >= start:
            check_segment(engine.app, segment, accept_changed)
    assert isinstance(engine.executor, SerialExecutor)
    replay = Replay(Target(engine), engine.executor, engine.app.recovery)
    for entry in opened.outcomes:
        if entry.lsn >= start:
            replay.look_ahead(entry.record)
    engine.journal.log = replay.outcomes
    reader = LogReader(files, start)
    records = reader.records(meta.get("chain", 0), lambda lsn: progress(max(lsn - start, 0), opened.end - start))
    with _few_collections():
        report = replay.run(records)
    if report.records:
        progress(opened.end - start, opened.end - start)
    engine.journal.log = None
    report.unlogged = list(replay.unlogged.to_log(engine.scheduler))
    report.notes = notes
    report.seconds = engine.clock.monotonic() - began
    if report.records or notes:
        log.info("%s: %s", engine.directory.path, report)
    return report


@contextmanager
def _few_collections() -> Iterator[None]:
    """Nearly all that a replay makes stays: to look through it for garbage as often as usual is a tenth of its time.

    Rarely, but not never: what procedures leave behind in cycles is found.
    """
    before = gc.get_threshold()
    gc.set_threshold(100 * before[0], *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def begin_log(engine: Engine, opened: Opened, merges: int) -> Durability:
    """From now on everything accepted is logged."""
    assert engine.directory is not None

    def stop(error: LogFailed) -> None:
        engine.executor.stop_waiting(lambda execution: error)
        engine.executor.ended.notify_all()

    durable = Durability(
        engine.app,
        engine.config,
        engine.directory,
        opened,
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


def keep_a_generation(engine: Engine, opened: Opened) -> None:
    """The mode has changed since the log was written: keep a copy of the base now, so that a damaged one can be rebuilt from
    it. The log before it can't be replayed together with what comes.
    """
    assert engine.directory is not None
    newest = max((generation.lsn for generation in engine.directory.generations()), default=0)
    if any(segment.mode != engine.app.recovery and last >= newest for segment, last in opened.segments):
        engine.merger.merge(generation=True)
