"""Power lost at any operation of a simulated disk: nothing acknowledged is lost, nothing is read wrong."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovering import let_go, make_numbers, seen

import tidegate
from tidegate import App, Engine
from tidegate.directory.survey import Survey, repair
from tidegate.testing import PowerLoss, SimulatedFiles
from tidegate.testing.disk import SimulatedFile
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import FORMAT, Called, Segment
from tidegate.txn.log.writer import LogWriter

# power may be lost on the log's own thread
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

HEADER = Segment(FORMAT, "app", "weak", {"p": "0" * 16}, {})


def opened(files: SimulatedFiles) -> Survey:
    survey = Survey(files)
    repair(files, survey)
    return survey


def going_on(files: SimulatedFiles) -> Segment:
    """The header of the next segment."""
    return opened(files).header(App("app"))


def write_until_power_is_lost(
    files: SimulatedFiles, header: Segment, chance: random.Random, log: list[Called], sync: Any
) -> int:
    """Append records to ``log`` and the files; returns how many of them were acknowledged."""
    acknowledged = len(log)
    writer: LogWriter | None = None
    try:
        writer = LogWriter(files, header.begin, header, sync, 60.0, segment_bytes=chance.choice((200, 1_000)))
        while True:
            record = Called(len(log), 0, "p", ["x" * chance.randrange(120)], {})
            log.append(record)
            lsn = writer.append(record)
            if sync == "always" or chance.random() < 0.3:
                writer.wait(lsn)
                acknowledged = len(log)
    except PowerLoss:
        return acknowledged
    finally:
        if writer is not None:
            stop(writer)


def end_without_power_loss(files: SimulatedFiles, header: Segment, log: list[Called], clean: bool) -> None:
    """A process that closes its log, or is killed: what it wrote is there, but not all of it is on disk."""
    writer = LogWriter(files, header.begin, header, "group", 60.0)
    record = Called(len(log), 0, "p", [], {})
    log.append(record)
    writer.wait(writer.append(record))
    if clean:
        writer.close()
    else:
        log.append(Called(len(log), 0, "p", ["not synced"], {}))
        writer.append(log[-1])
        with writer._syncing:
            writer._write(sync=False)
            writer._tail = writer._tail._replace(file=Gone())
        stop(writer)


class Gone:
    """The file of a process that is gone: its thread may still be here, but reaches nothing."""

    def write(self, data: object, at: int) -> int:
        raise PowerLoss

    write_synced = write

    def sync(self) -> None:
        raise PowerLoss

    close = sync


def stop(writer: LogWriter) -> None:
    """The process is gone: its thread goes too, without writing anything."""
    with writer._changed:
        writer._closed = True
        writer._changed.notify_all()


def check_log(seed: int) -> int:
    chance = random.Random(seed)
    files = SimulatedFiles(seed)
    log: list[Called] = []
    sync = chance.choice(("group", "always"))
    for _ in range(3):
        if chance.random() < 0.5:
            end_without_power_loss(files, going_on(files), log, clean=chance.random() < 0.5)
        header = going_on(files)
        files.lose_power_at = files.operations + chance.randrange(1, 60)
        acknowledged = write_until_power_is_lost(files, header, chance, log, sync)
        files = files.after_power_loss()
        found = [entry.record for entry in LogReader(files)]
        assert found == log[: len(found)], "what is read was written, in that order"
        assert len(found) >= acknowledged, f"{acknowledged} were acknowledged, {len(found)} are left"
        del log[len(found) :]
        files.lose_power_at = chance.choice((None, 0, 1, 2))
        try:
            opened(files)  # recovery may lose power too
        except PowerLoss:
            files = files.after_power_loss()
        files.lose_power_at = None
    return len(log)


@pytest.mark.parametrize("block", range(4))
def test_the_log(block: int) -> None:
    assert sum(check_log(seed) for seed in range(block * 50, block * 50 + 50)) > 500


@pytest.mark.parametrize("sync", ["group", "always", "off"])
def test_what_was_forced_to_disk_is_there_marks_included(sync: Any) -> None:
    """A merge stands for the log up to its very end: a base that is ahead of the log could not be opened."""
    for seed in range(40):
        files = SimulatedFiles(seed)
        writer = LogWriter(files, 0, HEADER, sync, 60.0)
        writer.wait(writer.append(Called(1, 0, "p", [], {})))
        end = writer.end
        writer.force(end)
        stop(writer)
        assert opened(files.after_power_loss()).end >= end


def test_a_record_that_comes_while_a_mark_finds_no_room_is_written_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles(1)
    writer = LogWriter(files, 0, HEADER, "group", 0.001)
    write = SimulatedFile.write
    came: list[int] = []

    def full(file: SimulatedFile, data: Any, at: int) -> int:
        if came:
            return write(file, data, at)
        came.append(writer.append(Called(2, 0, "p", [], {})))
        raise OSError(errno.ENOSPC, "no space left")

    writer.wait(writer.append(Called(1, 0, "p", [], {})))  # its mark is written without trouble, or later
    monkeypatch.setattr(SimulatedFile, "write_synced", lambda file, data, at: (write(file, data, at), file.sync())[0])
    monkeypatch.setattr(SimulatedFile, "write", full)
    writer.append(Called(3, 0, "p", [], {}))
    for _ in range(500):
        if came and writer.synced >= came[0]:
            break
        time.sleep(0.01)
    assert came
    assert writer.synced >= came[0]
    writer.close()
    assert [entry.record.sequence for entry in LogReader(files)] == [1, 3, 2]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_the_log_1000(block: int) -> None:
    for seed in range(1_000 + block * 50, 1_050 + block * 50):
        check_log(seed)


# ---- an engine on such a disk


def push_until_power_is_lost(engine: Engine, first: int, chance: random.Random) -> int:
    """Returns the last number that was acknowledged."""
    acknowledged = first - 1
    number = first
    try:
        while True:
            ticket = engine.push("numbers", [(number,)], number)
            if chance.random() < 0.4:
                ticket.result()
                acknowledged = number
            if chance.random() < 0.08:
                engine.checkpoint(generation=chance.random() < 0.3)
            number += 1
    except PowerLoss:
        return acknowledged


def check_engine(seed: int, path: Path, use: Callable[[SimulatedFiles], None]) -> int:
    chance = random.Random(seed)
    files = SimulatedFiles(seed)
    app = make_numbers(chance.choice(("weak", "strong", "effects")))
    settings: Any = {"sync": chance.choice(("group", "always")), "max_delay_s": 60.0, "merge_every_s": 3600.0}
    acknowledged = 0
    for _ in range(3):
        use(files)
        engine = tidegate.open(app, path, **settings)
        numbers = seen(engine)
        assert len(numbers) >= acknowledged, "something acknowledged is lost"
        files.lose_power_at = files.operations + chance.randrange(1, 80)
        try:
            acknowledged = push_until_power_is_lost(engine, len(numbers) + 1, chance)
        finally:
            let_go(engine)
        files = files.after_power_loss()
    return acknowledged


@pytest.mark.parametrize("block", range(4))
def test_an_engine(block: int, tmp_path: Path, use: Callable[[SimulatedFiles], None]) -> None:
    for seed in range(block * 5, block * 5 + 5):
        check_engine(seed, tmp_path / str(seed), use)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_an_engine_200(block: int, tmp_path: Path, use: Callable[[SimulatedFiles], None]) -> None:
    for seed in range(1_000 + block * 20, 1_020 + block * 20):
        check_engine(seed, tmp_path / str(seed), use)
