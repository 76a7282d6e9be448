"""Opening an engine on a directory: find a sound base, restore its state, replay the log since."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidegate.durability import Durability, Opened, check_segment
from tidegate.errors import CorruptionError, LogFailed
from tidegate.storage.codec import RowCodec, from_json
from tidegate.streams.batch import Batch
from tidegate.txn.log.reader import Entry, LogReader
from tidegate.txn.log.record import Checkpoint, Delivered, Fed, Pushed, Subscribed, from_us
from tidegate.txn.recovery import Replay, Report

if TYPE_CHECKING:
    from tidegate.engine import Engine

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

    def reaccept(self, record: Pushed | Fed) -> Iterator[tuple[int, Batch, dt.datetime]]:
        """Accept what was accepted before, under the same numbers, batch by batch."""
        border = self.borders[record.stream]
        rows = self.codecs[record.stream].unpack(record.rows)
        time = from_us(record.time_us)
        if isinstance(record, Fed):
            sequence = record.sequence
            for start in range(0, len(rows), record.size):
                for key, part in border.split(rows[start : start + record.size]).items():
                    yield sequence, border.accept(key, part), time
                    sequence += 1
            return
        ((key, part),) = border.split(rows).items()
        batch: Batch = border.accept(key, part, record.batch_id if record.explicit else None)
        if batch.id != record.batch_id:
            raise CorruptionError(
                f"replay numbers a batch of {record.stream} {batch.id}, the log says {record.batch_id}; the base does not "
                f"belong to this log"
            )
        if record.source is not None:
            self.offsets[record.source] = from_json(record.offset)
        yield record.sequence, batch, time

    def apply_delivered(self, record: Delivered) -> None:
        self._engine.outbox.apply_delivered(record)

    def apply_subscribed(self, record: Subscribed) -> None:
        self._engine.outbox.apply_subscribed(record)


def recover(
    engine: Engine, opened: Opened, start: int, notes: list[str], accept_changed: bool, progress: Progress
) -> Report:
    """Replay the log from ``start`` (the LSN of the base) to its end."""
    assert engine.directory is not None
    files = engine.directory.files
    began = engine.clock.monotonic()
    if opened.cut is not None:
        notes.append(f"cut a torn tail of {opened.cut.size} bytes off {opened.cut.file} (never acknowledged)")

    def entries() -> Iterator[Entry]:
        for entry in LogReader(files, start):
            if not isinstance(entry.record, Checkpoint):
                yield entry

    replay = Replay(Target(engine), engine.executor, engine.app.recovery)
    segment = None
    reader = LogReader(files, start)
    for entry in reader:
        if reader.segment is not segment and not isinstance(entry.record, Checkpoint):
            segment = reader.segment
            check_segment(engine.app, segment, accept_changed)
        replay.look_ahead(entry.record)
    engine.journal.log = replay.unlogged
    report = replay.run(_watched(entries(), start, opened.end, progress))
    engine.journal.log = None
    report.unlogged = list(replay.unlogged.to_log(engine.scheduler))
    report.notes = notes
    report.seconds = engine.clock.monotonic() - began
    if report.records or notes:
        log.info("%s: %s", engine.directory.path, report)
    return report


def _watched(entries: Iterator[Entry], start: int, end: int, progress: Progress) -> Iterator[Entry]:
    shown = start
    for entry in entries:
        yield entry
        if entry.end - shown > 1 << 18:
            shown = entry.end
            progress(shown - start, end - start)
    if shown > start:
        progress(end - start, end - start)


def begin_log(engine: Engine, opened: Opened, merges: int) -> Durability:
    """From now on everything accepted is logged."""
    assert engine.directory is not None

    def stop(error: LogFailed) -> None:
        for execution in engine.scheduler.waiting():
            for ticket in execution.context.tickets:
                ticket.stop(error)
        engine.executor.ended.notify_all()

    durable = Durability(engine.app, engine.config, engine.directory, opened, merges, engine.lock, stop)
    for record in engine.recovery.unlogged:
        durable.append(record)
    return durable
