"""Delivery itself: what is sent when, what happens when a sink fails, and how it stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidegate import App, Batch, Engine, TidegateError
from tidegate.connectors.callback import CallbackSink
from tidegate.errors import EngineClosed, SinkError
from tidegate.storage.schema import Relation

Open = Callable[..., Engine]


class Recorder:
    """A sink that keeps what it gets, and fails while ``broken``. Transactional, or so it says."""

    def __init__(self, at_once: int = 1, transactional: bool = False) -> None:
        self.at_once = at_once
        self.transactional = transactional
        self.sends: list[list[str]] = []
        self.broken: Exception | None = None
        self.closed = False

    def open(self, name: str, relation: Relation) -> None:
        self.name = name

    def send(self, batches: Sequence[Batch]) -> None:
        if self.broken is not None:
            raise self.broken
        self.sends.append([batch[0].word for batch in batches])

    def close(self) -> None:
        self.closed = True

    @property
    def words(self) -> list[str]:
        return [word for send in self.sends for word in send]


def push(engine: Engine, *given: str) -> None:
    for word in given:
        engine.push("incoming", [(word,)])
    engine.run_until_idle()


def test_pump_delivers_what_is_waiting_in_order(words: App, engine_of: Open) -> None:
    engine, sink = engine_of(words), Recorder()
    delivery = engine.deliver("words", sink)
    push(engine, "a", "b", "c")
    assert len(delivery) == 3
    assert delivery.pump() == 3
    assert (sink.words, len(delivery), delivery.delivered, delivery.error) == (["a", "b", "c"], 0, 3, None)
    assert delivery.pump() == 0


def test_pump_stops_at_its_limit_and_a_sink_gets_so_many_at_once(words: App, open_engine: Open) -> None:
    engine, sink = open_engine(words), Recorder(at_once=2)
    delivery = engine.deliver("words", sink)
    push(engine, *"abcde")
    assert delivery.pump(3) == 3
    assert sink.sends == [["a", "b"], ["c"]]
    assert delivery.pump() == 2


def test_a_failing_sink_keeps_the_batch_and_its_place(
    words: App, open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    engine, sink = open_engine(words), Recorder(at_once=2)
    delivery = engine.deliver("words", sink, "out")
    push(engine, "a", "b", "c")
    sink.broken = ValueError("no room")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(SinkError, match=r"ValueError: no room .* words id=1"),
    ):
        delivery.pump()
    assert isinstance(delivery.error, SinkError)
    assert isinstance(delivery.error.__cause__, ValueError)
    assert "delivery out" in caplog.text
    assert len(delivery) == 3
    sink.broken = None
    push(engine, "d")
    assert delivery.pump() == 4
    assert (sink.words, delivery.error) == (["a", "b", "c", "d"], None)


def test_what_was_not_delivered_is_delivered_after_reopening(words: App, open_engine: Open, tmp_path: Path) -> None:
    for number, word in enumerate(("a", "b", "c"), 1):
        engine, sink = open_engine(words, tmp_path / "db"), Recorder()
        delivery = engine.deliver("words", sink, "out")
        push(engine, word)
        if number == 2:
            assert delivery.pump() == 2
            assert sink.words == ["a", "b"]
        elif number == 3:
            assert delivery.pump() == 1
            assert sink.words == ["c"]
        engine.close()
        assert sink.closed


def test_background_delivers_and_goes_on_after_a_failure(words: App, engine_of: Open, tmp_path: Path) -> None:
    engine, sink = engine_of(words, tmp_path / "db"), Recorder(at_once=10)
    sink.broken = SinkError("down")
    delivery = engine.deliver("words", sink, background=True)
    push(engine, "a", "b")
    until = time.monotonic() + 60
    while delivery.error is None:
        assert time.monotonic() < until, delivery
        assert not delivery.drain(0.05)
    assert delivery.error is sink.broken
    sink.broken = None
    assert delivery.drain(60)
    push(engine, "c")
    assert delivery.drain(60)
    assert (sink.words, delivery.error) == (["a", "b", "c"], None)


def test_closing_waits_for_the_send_under_way_and_interrupts_a_pause(
    words: App, open_engine: Open, tmp_path: Path
) -> None:
    engine = open_engine(words, tmp_path / "db")
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow(batch: Batch) -> None:
        begun.set()
        go_on.wait(60)
        done.append(batch.stable_id)

    def broken(batch: Batch) -> None:
        raise ValueError("always")

    engine.deliver("words", CallbackSink(slow), "slow", background=True)
    paused = engine.deliver("words", CallbackSink(broken), "broken", background=True)
    push(engine, "a", "b")
    assert begun.wait(60)
    threading.Timer(0.1, go_on.set).start()
    engine.close()
    assert done == [("words", None, 1)]
    assert "closed" in repr(paused)
    with pytest.raises(EngineClosed):
        paused.pump()
    again = open_engine(words, tmp_path / "db")
    assert len(again.subscribe_durably("words", "slow")) == 1  # the first was acknowledged before the log closed


def test_nothing_is_sent_before_its_cause_is_on_disk(words: App, open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(words, tmp_path / "db", max_delay_s=30)
    assert engine.durable is not None
    writer = engine.durable.writer
    sent: list[bool] = []
    delivery = engine.deliver("words", CallbackSink(lambda batch: sent.append(writer.synced >= caused)))
    push(engine, "a")
    caused = writer.appended
    assert writer.synced < caused
    delivery.pump()
    assert sent == [True]


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_effects_of_a_commit_are_on_disk_before_its_batch_is_sent(
    executor: str, open_engine: Open, tmp_path: Path
) -> None:
    """Or a procedure that calls the outside world could emit other rows under an id that was delivered."""
    app = App("effects", recovery="effects")
    app.stream("incoming", "word VARCHAR", border=True)
    app.stream("words", "word VARCHAR")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("words", incoming)

    engine = open_engine(app, tmp_path / "db", max_delay_s=30, executor=executor)
    assert engine.durable is not None
    writer = engine.durable.writer
    unsynced: list[int] = []
    delivery = engine.deliver("words", CallbackSink(lambda batch: unsynced.append(writer.appended - writer.synced)))
    push(engine, "a", "b")
    delivery.pump()
    assert unsynced[0] <= 0


def test_a_name_is_used_once_and_belongs_to_one_stream(words: App, open_engine: Open) -> None:
    engine = open_engine(words)
    engine.deliver("words", Recorder())
    with pytest.raises(TidegateError, match="words/words/Recorder' is already running"):
        engine.deliver("words", Recorder())
    with pytest.raises(TidegateError, match="there is no stream"):
        engine.deliver("nowhere", Recorder())
    with pytest.raises(TidegateError, match="at least one batch at a time"):
        engine.deliver("words", Recorder(at_once=0), "none")


def test_exactly_once_needs_a_directory(words: App, open_engine: Open) -> None:
    with pytest.raises(TidegateError, match=r"forgets its batch-ids.*tidegate.open\(app, path\)"):
        open_engine(words).deliver("words", Recorder(transactional=True))


def test_acknowledging_and_a_checkpoint_do_not_mix(words: App, open_engine: Open, tmp_path: Path) -> None:
    """A background delivery acknowledges while merges save what is waiting."""
    engine, sink = open_engine(words, tmp_path / "db", executor="threads"), Recorder(at_once=3)
    delivery = engine.deliver("words", sink, background=True)
    for number in range(300):
        engine.push("incoming", [(str(number),)])
        if number % 30 == 0:
            engine.checkpoint()
    engine.run_until_idle()
    assert delivery.drain(60)
    assert sink.words == [str(number) for number in range(300)]
