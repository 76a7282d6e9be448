"""Topics: what waits for one reader costs the others nothing, and a late reader gets what an early one got."""

from __future__ import annotations

import datetime as dt
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Engine, crashpoints
from tidegate.connectors.callback import CallbackSink
from tidegate.directory.backup import backup_directory
from tidegate.errors import CursorGone, DeclarationError, DiskFull, LogDamaged, LogFailed, Overloaded, RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.outside.topics import segments
from tidegate.testing import ManualClock


@cache
def numbers(
    keep: str | None = "forever", key: str | None = None, columns: str = "n INTEGER", mode: Any = "weak"
) -> App:
    app = App("numbers", recovery=mode)
    app.table("CREATE TABLE seen (n INTEGER PRIMARY KEY)")
    app.stream("numbers", columns, border=True, keep=keep, key=key)
    app.stream("doubled", "n INTEGER", keep=keep)
    app.stream("tripled", "n INTEGER")
    app.stream("others", "n INTEGER", border=True)
    app.stream("seconds", "n INTEGER")

    @app.procedure(inputs="numbers", outputs=["doubled", "tripled"], writes=["seen"])
    def multiply(txn: Any, numbers: Any) -> None:
        txn.emit("doubled", [(2 * row.n,) for row in numbers])
        txn.emit("tripled", [(3 * row.n,) for row in numbers])
        for row in numbers:
            txn.upsert("seen", (row.n,))

    @app.procedure(inputs="others", outputs="seconds")
    def pass_on(txn: Any, others: Any) -> None:
        txn.emit("seconds", list(others.rows))

    return app


def push(engine: Engine, *values: int) -> None:
    for n in values:
        engine.push("numbers", [(n,)])
    engine.run_until_idle()


def values(batches: Any) -> list[int]:
    return [row.n for batch in batches for row in batch]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(segments, "WRITTEN_AT", 100)
    monkeypatch.setattr("tidegate.outside.topics.topic.RECENT", 3)


Reopen = Callable[[App], Engine]


@pytest.fixture(params=["closed", "killed", "killed after a checkpoint"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Open the directory again, after the engine before was closed or killed."""
    opened: list[Engine] = []

    def reopen(app: App) -> Engine:
        if opened:
            before = opened.pop()
            if "checkpoint" in request.param:
                before.checkpoint()
            if request.param == "closed":
                before.close()
            else:
                assert before.durable is not None
                before.durable.sync()
                before.abandon()
        opened.append(tidegate.open(app, tmp_path / "d"))
        return opened[0]

    yield reopen
    for engine in opened:
        engine.close()


def test_a_late_reader_gets_everything_that_is_kept(again: Reopen) -> None:
    engine = again(numbers())
    early = engine.subscribe_durably("doubled", "early")
    push(engine, *range(1, 40))
    seen = values(early.take(30))
    engine = again(numbers())
    push(engine, *range(40, 50))
    late = engine.subscribe_durably("doubled", "late", start="earliest")
    assert values(late) == [2 * n for n in range(1, 50)]
    assert seen == values(late.peek(30))
    engine = again(numbers())
    assert values(engine.subscribe_durably("doubled", "early")) == [2 * n for n in range(1, 50)]  # nothing acknowledged


def test_acknowledged_batches_do_not_come_again(again: Reopen) -> None:
    engine = again(numbers())
    reader = engine.subscribe_durably("tripled", "reader")
    push(engine, *range(1, 11))
    taken = reader.take(6)
    reader.ack([taken[0], taken[1], taken[4]])
    assert (len(reader), reader.lag) == (7, 7)
    engine = again(numbers())
    reader = engine.subscribe_durably("tripled", "reader")
    push(engine, 11)
    assert values(reader) == [9, 12, 18, 21, 24, 27, 30, 33]
    assert reader.done.ranges() == [[4, 5]]


def test_a_border_stream_can_be_followed_from_an_offset_and_a_time(tmp_path: Path) -> None:
    clock = ManualClock(dt.datetime(2026, 1, 1))
    with tidegate.open(numbers(), tmp_path / "d", clock=clock) as engine:
        for n in range(1, 11):
            push(engine, n)
            clock.advance(60)
        assert values(engine.subscribe_durably("numbers", "offset", start=4)) == [5, 6, 7, 8, 9, 10]
        at = dt.datetime(2026, 1, 1, 0, 7)
        reader = engine.subscribe_durably("numbers", "time", start=at)
        assert values(reader) == [8, 9, 10]
        assert reader.lag_s == 180
        assert values(engine.subscribe_durably("doubled", "zone", start=at.replace(tzinfo=dt.UTC))) == [16, 18, 20]
        with pytest.raises(CursorGone, match="has no offset 11: it keeps 0 to 10"):
            engine.subscribe_durably("numbers", "beyond", start=11)


def test_seeking(again: Reopen) -> None:
    engine = again(numbers())
    reader = engine.subscribe_durably("doubled", "reader")
    push(engine, *range(1, 11))
    reader.ack(reader.take(9))
    reader.seek(2)
    assert values(reader.take(2)) == [6, 8]
    engine = again(numbers())
    reader = engine.subscribe_durably("doubled", "reader")
    assert values(reader) == [2 * n for n in range(3, 11)]
    reader.seek("now")
    push(engine, 11)
    assert values(reader) == [22]
    reader.seek("earliest")
    assert len(reader) == 11


def test_without_keep_there_is_no_earlier(tmp_path: Path) -> None:
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        with pytest.raises(DeclarationError, match=r"nothing of tripled is kept from before.*keep='7d'"):
            engine.subscribe_durably("tripled", "x", start="earliest")
        with pytest.raises(DeclarationError, match="give 'earliest', 'now', a datetime, or an offset"):
            engine.subscribe_durably("doubled", "x", start="yesterday")  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match="give 'keep'"):
            engine.subscribe_durably("doubled", "x", on_lag="drop")
        assert engine.outbox.subscriptions == {}


@pytest.mark.parametrize("keep", ["no", "0s", "7 parsecs", 7])
def test_a_retention_that_makes_no_sense(keep: Any) -> None:
    with pytest.raises(DeclarationError, match="stream s: keep="):
        App("a").stream("s", "n INTEGER", keep=keep)


def test_unrelated_work_is_never_refused(tmp_path: Path) -> None:
    with tidegate.open(numbers(), tmp_path / "d", backlog=3) as engine:
        absent = engine.subscribe_durably("tripled", "absent", on_lag="block")
        push(engine, 1, 2, 3)
        with pytest.raises(Overloaded, match="3 batches wait for subscriber 'absent', so numbers"):
            push(engine, 4)
        engine.push("others", [(1,)]).result()
        absent = engine.subscribe_durably("tripled", "absent", on_lag="keep")
        push(engine, 4, 5, 6)
        assert len(absent) == 6


def test_what_is_dropped_is_told_once_and_stays_dropped(again: Reopen) -> None:
    engine = again(numbers())
    reader = engine.subscribe_durably("tripled", "slow", on_lag=("drop", 10))
    push(engine, *range(1, 31))
    engine = again(numbers())
    reader = engine.subscribe_durably("tripled", "slow")
    waiting = len(reader)
    assert waiting <= 10
    with pytest.raises(CursorGone, match="'slow' lagged more than 10 batches behind") as told:
        reader.take(5)
    assert (told.value.first, told.value.last) == (0, 30 - waiting - 1)
    assert values(reader) == [3 * n for n in range(31 - waiting, 31)]
    assert reader.on_lag == ("drop", 10)


@pytest.mark.parametrize("keep", ["1h", "2kB"])
def test_retention(keep: str, tmp_path: Path) -> None:
    """What is no longer kept goes with a checkpoint, unless somebody has not acknowledged it."""
    clock = ManualClock(dt.datetime(2026, 1, 1))
    with tidegate.open(numbers(keep), tmp_path / "d", clock=clock) as engine:
        reader = engine.subscribe_durably("doubled", "reader")
        for n in range(1, 151):
            push(engine, n)
            clock.advance(60)
        for _ in range(3):
            engine.checkpoint(generation=True)
        topic = engine.outbox.topics.shared["doubled"]
        assert topic.begin == 0
        reader.ack(reader.take(140))
        for _ in range(3):
            engine.checkpoint(generation=True)
        assert 20 < topic.begin < 130
        begin = topic.begin
        assert values(engine.subscribe_durably("doubled", "late", start="earliest")) == [
            2 * n for n in range(begin + 1, 151)
        ]
        with pytest.raises(CursorGone):
            reader.seek(begin - 1)
    with tidegate.open(numbers(keep), tmp_path / "d", clock=clock) as engine:
        assert engine.outbox.topics.shared["doubled"].begin == begin
        assert values(engine.subscribe_durably("doubled", "late")) == [2 * n for n in range(begin + 1, 151)]
        assert values(engine.subscribe_durably("doubled", "reader")) == [2 * n for n in range(141, 151)]
    assert verify(numbers(keep), tmp_path / "d").differences == []


def test_what_everybody_has_acknowledged_goes(tmp_path: Path) -> None:
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        reader = engine.subscribe_durably("tripled", "reader")
        push(engine, *range(1, 101))
        reader.ack(reader.take(90))
        for _ in range(3):
            engine.checkpoint(generation=True)
        topic = engine.outbox.topics.shared["tripled"]
        assert 70 < topic.begin <= 90
        engine.outbox.unsubscribe("reader")
        engine.checkpoint()
        assert not (tmp_path / "d" / "topics" / topic.id).exists()
        assert "tripled" not in engine.runtime.topics


@pytest.mark.parametrize("mode", ["weak", "strong", "effects"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_lost_base_is_rebuilt_with_its_topics(mode: Any, executor: Any, tmp_path: Path) -> None:
    app = numbers(key="n", mode=mode)
    with tidegate.open(app, tmp_path / "d", executor=executor) as engine:
        reader = engine.subscribe_durably("doubled", "reader")
        for part in range(4):
            push(engine, *range(part * 10, part * 10 + 10))
            reader.ack(reader.take(3))
            engine.checkpoint(generation=part < 3)
        order = values(engine.subscribe_durably("doubled", "all", start="earliest"))
        waiting = reader.waiting.keys()
    (tmp_path / "d" / "base.duckdb").unlink()
    with tidegate.open(app, tmp_path / "d") as engine:
        assert values(engine.subscribe_durably("doubled", "all")) == order
        assert engine.subscribe_durably("doubled", "reader").waiting.keys() == waiting
    assert verify(app, tmp_path / "d").differences == []


def test_a_torn_end_is_written_again(tmp_path: Path) -> None:
    """Power fails: what was not synced is gone, in the middle of an entry."""
    engine = tidegate.open(numbers(), tmp_path / "d")
    push(engine, 1, 2, 3)
    engine.checkpoint()
    push(engine, *range(4, 30))
    topic = engine.outbox.topics.shared["doubled"]
    assert topic.files is not None
    assert engine.durable is not None
    engine.durable.sync()
    topic.files.flush(engine.outbox.topics.ready)
    engine.abandon()
    files = sorted((tmp_path / "d" / "topics" / topic.id).iterdir())
    files[-1].unlink()
    data = files[-2].read_bytes()
    files[-2].write_bytes(data[: len(data) * 2 // 3])
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        assert values(engine.subscribe_durably("doubled", "all", start="earliest")) == [2 * n for n in range(1, 30)]


def test_damage_is_found(tmp_path: Path) -> None:
    app = numbers()
    with tidegate.open(app, tmp_path / "d") as engine:
        push(engine, *range(1, 40))
        topic = engine.outbox.topics.shared["doubled"]
    first = min((tmp_path / "d" / "topics" / topic.id).iterdir())
    data = bytearray(first.read_bytes())
    data[-10] ^= 1
    first.write_bytes(data)
    (told,) = verify(app, tmp_path / "d").differences
    assert "topic doubled: segment" in told
    with tidegate.open(app, tmp_path / "d") as engine:
        with pytest.raises(LogDamaged, match="is damaged at byte"):
            engine.subscribe_durably("doubled", "all", start="earliest").take(100)
        assert values(engine.subscribe_durably("doubled", "new", start=38)) == [78]


def test_files_that_somebody_needs_are_missed(tmp_path: Path) -> None:
    app = numbers()
    with tidegate.open(app, tmp_path / "d") as engine:
        engine.subscribe_durably("tripled", "reader")
        push(engine, *range(1, 40))
        topic = engine.outbox.topics.shared["tripled"]
    first = min((tmp_path / "d" / "topics" / topic.id).iterdir())
    data = first.read_bytes()
    first.unlink()
    with pytest.raises(LogDamaged, match="a subscription has not acknowledged offset 0"):
        tidegate.open(app, tmp_path / "d")
    first.write_bytes(data)
    tidegate.open(app, tmp_path / "d").close()


def test_a_backup_has_the_topics(tmp_path: Path) -> None:
    app = numbers()
    with tidegate.open(app, tmp_path / "d") as engine:
        reader = engine.subscribe_durably("tripled", "reader")
        push(engine, *range(1, 20))
        reader.ack(reader.take(4))
        engine.checkpoint(generation=True)
        push(engine, *range(20, 30))
        engine.backup(tmp_path / "from inside")
        backup_directory(tmp_path / "d", tmp_path / "from outside")
    backup_directory(tmp_path / "d", tmp_path / "closed")
    for copy in ("from inside", "from outside", "closed"):
        with tidegate.open(app, tmp_path / copy) as engine:
            assert values(engine.subscribe_durably("tripled", "reader")) == [3 * n for n in range(5, 30)], copy
            assert values(engine.subscribe_durably("doubled", "x", start="earliest")) == [2 * n for n in range(1, 30)]


def test_columns_that_were_added_are_filled_in(tmp_path: Path) -> None:
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        push(engine, *range(1, 20))
    wider = numbers(columns="n INTEGER, unit VARCHAR DEFAULT 'kg'")
    with tidegate.open(wider, tmp_path / "d") as engine:
        engine.push("numbers", [(20, "g")])
        units = [row.unit for batch in engine.subscribe_durably("numbers", "x", start="earliest") for row in batch]
        assert units == ["kg"] * 19 + ["g"]


def test_a_stream_with_other_columns_keeps_nothing_in_silence(tmp_path: Path) -> None:
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        push(engine, *range(1, 20))
    other = numbers(columns="n BIGINT")
    with pytest.raises(RecoveryRefused, match="topic numbers: the 19 batches that it keeps have other columns"):
        tidegate.open(other, tmp_path / "d")
    with tidegate.open(other, tmp_path / "d", drop=["topic numbers"]) as engine:
        push(engine, 20)
        assert values(engine.subscribe_durably("numbers", "x", start="earliest")) == [20]
        assert values(engine.subscribe_durably("doubled", "x doubled", start="earliest"))[-1] == 40


def test_a_delivery_begins_where_it_is_told(tmp_path: Path) -> None:
    taken: list[int] = []
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        push(engine, 1, 2, 3)
        engine.deliver("doubled", CallbackSink(lambda batch: taken.append(batch[0].n)), "late", start="earliest").pump()
        assert taken == [2, 4, 6]


def test_a_crash_while_files_are_removed(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def crash(name: str) -> None:
        if name == "topic-before-remove":
            raise Crash

    engine = tidegate.open(numbers(), tmp_path / "d")
    reader = engine.subscribe_durably("tripled", "reader")
    push(engine, *range(1, 101))
    reader.ack(reader.take(90))
    engine.checkpoint(generation=True)
    crashpoints.listen(crash)
    try:
        with pytest.raises(Crash):
            engine.checkpoint(generation=True)
    finally:
        crashpoints.listen(None)
    engine.abandon()
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        assert values(engine.subscribe_durably("tripled", "reader")) == [3 * n for n in range(91, 101)]
    assert verify(numbers(), tmp_path / "d").differences == []


@pytest.mark.parametrize(("failing", "error"), [("fdatasync", LogFailed), ("pwrite", DiskFull)])
def test_a_disk_that_fails(failing: str, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync ends it; a full disk is waited for. What was acknowledged stays."""
    working = getattr(os, failing)

    def fail(handle: int, *arguments: Any) -> Any:
        if "/topics/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO if failing == "fdatasync" else errno.ENOSPC, "no")
        return working(handle, *arguments)

    engine = tidegate.open(numbers(), tmp_path / "d")
    push(engine, *range(1, 20))
    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        with pytest.raises(error):
            engine.checkpoint()
        if error is LogFailed:
            with pytest.raises(LogFailed):
                push(engine, 20)
            engine.abandon()
    if error is DiskFull:
        engine.checkpoint()
        engine.close()
    with tidegate.open(numbers(), tmp_path / "d") as engine:
        push(engine, 20)
        assert values(engine.subscribe_durably("doubled", "x", start="earliest")) == [2 * n for n in range(1, 21)]


def test_work_that_a_checkpoint_found_unfinished_emits_once(tmp_path: Path) -> None:
    engine = tidegate.open(numbers(), tmp_path / "d", executor="manual")
    for n in range(1, 7):
        engine.push("numbers", [(n,)])
    engine.checkpoint()
    engine.run_until_idle()
    reader = engine.subscribe_durably("doubled", "reader", start="earliest")
    reader.ack(reader.take(2))
    assert engine.durable is not None
    engine.durable.sync()
    files = engine.outbox.topics.shared["doubled"].files
    assert files is not None
    files.flush(engine.outbox.topics.ready)
    engine.abandon()
    for _ in range(2):  # it is still unfinished when it is closed
        tidegate.open(numbers(), tmp_path / "d", executor="manual").close()
    with tidegate.open(numbers(), tmp_path / "d", executor="manual") as engine:
        engine.run_until_idle()
        assert values(engine.subscribe_durably("doubled", "reader")) == [6, 8, 10, 12]
        assert engine.outbox.topics.shared["doubled"].voids == set()
        assert engine.outbox.topics.shared["doubled"].end == 6


def test_topics_in_memory() -> None:
    with tidegate.open(numbers("1h")) as engine:
        reader = engine.subscribe_durably("tripled", "reader")
        push(engine, *range(1, 11))
        reader.ack(reader.take(4))
        assert engine.outbox.topics.shared["tripled"].begin == 4
        assert values(engine.subscribe_durably("doubled", "late", start="earliest")) == [2 * n for n in range(1, 11)]
        assert values(reader.peek()) == [3 * n for n in range(5, 11)]


def test_acknowledgements_are_of_batches_whatever_the_order_of_their_keys(tmp_path: Path) -> None:
    """Keys commit in any order in threads; a replay without the files writes them in the order of their positions."""
    app, gate = App("keys"), threading.Event()
    app.stream("numbers", "n INTEGER", border=True, key="n")
    app.stream("passed", "n INTEGER")

    @app.procedure(inputs="numbers", outputs="passed")
    def hand_on(txn: Any, numbers: Any) -> None:
        if txn.key == 0:
            gate.wait(60)
        txn.emit("passed", list(numbers.rows))

    with tidegate.open(app, tmp_path / "d", executor="threads", workers=2) as engine:
        reader = engine.subscribe_durably("passed", "reader")
        engine.push("numbers", [(0,)])
        for n in (1, 2):
            engine.push("numbers", [(n,)]).result()
        reader.ack(reader.take(1))
        gate.set()
        engine.run_until_idle()
        assert values(reader.peek()) == [2, 0]
    assert verify(app, tmp_path / "d").differences == []
    (tmp_path / "d" / "base.duckdb").unlink()
    with tidegate.open(app, tmp_path / "d") as engine:
        assert values(engine.subscribe_durably("passed", "reader").peek()) == [2, 0]
        engine.abandon()
    (tmp_path / "d" / "base.duckdb").unlink()
    shutil.rmtree(tmp_path / "d" / "topics")
    with tidegate.open(app, tmp_path / "d") as engine:
        assert sorted(values(engine.subscribe_durably("passed", "reader"))) == [0, 2]
