"""A feed can't be mistaken for success: what was undone is counted, and a halt is raised. Aborts keep their rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate import App, Batch, Engine, Transaction
from tidegate.errors import FeedHalted
from tidegate.outside.sources import Polled
from tidegate.txn import kept
from tidegate.txn.journal import KEPT_ABORTS

Make = Callable[..., Engine]


class World:
    broken = True


@pytest.fixture(scope="module")
def app() -> App:
    app = App("fed")
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY CHECK (n < 900), note VARCHAR)")
    app.stream("events", "n BIGINT NOT NULL, note VARCHAR", border=True)
    app.stream("keyed", "n BIGINT NOT NULL, note VARCHAR", border=True, key="n")
    app.stream("letters", "n BIGINT NOT NULL, note VARCHAR", border=True)

    def work(txn: Transaction, rows: Batch) -> None:
        for row in rows:
            if row.n == 13 and World.broken:
                txn.insert("t", n=row.n, nota="x")
            if row.n % 10 == 7:
                txn.abort("unlucky")
            txn.insert("t", row)

    for stream in ("events", "keyed"):
        named = lambda txn, rows: work(txn, rows)  # noqa: E731
        named.__name__ = f"take_{stream}"
        app.procedure(inputs=stream, writes=["t"])(named)

    @app.procedure(inputs="letters", writes=["t"], on_failure="dead_letter")
    def take_letters(txn: Transaction, rows: Batch) -> None:
        work(txn, rows)

    return app


@pytest.fixture(autouse=True)
def broken() -> None:
    World.broken = True


def rows(*numbers: int) -> list[tuple[int, str]]:
    return [(n, "x") for n in numbers]


def test_a_feed_counts_what_was_undone_and_says_why_once(
    engine_of: Make, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(app)
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        fed = engine.feed("events", rows(*range(13), 999))
    assert (fed.rows, fed.batches) == (14, 14)
    if engine.config.executor == "serial":
        assert (fed.committed, fed.aborted, fed.dead_letters, fed.waiting) == (12, 2, 0, 0)
        assert next(iter(fed.reasons)) == "take_events: unlucky"
        assert "14 rows in 14 batches: 12 committed, 2 aborted (take_events: unlucky; " in str(fed)
        (line,) = [r.getMessage() for r in caplog.records if "feed to events" in r.getMessage()]
        assert "2 aborted" in line
    else:
        assert fed.committed + fed.aborted + fed.waiting == 14
    engine.run_until_idle()


def test_a_feed_that_is_halted_raises_and_nothing_is_lost(engine_of: Make, app: App) -> None:
    engine = engine_of(app)
    engine.feed("events", rows(1, 2))
    engine.run_until_idle()
    source = iter(rows(*range(13, 900)))
    if engine.config.executor == "serial":
        with pytest.raises(
            FeedHalted, match=r"halted in front of .*nota.*did you mean 'note'.*engine.resume"
        ) as caught:
            engine.feed("events", source)
        fed = caught.value.fed
        assert (caught.value.dataflow, caught.value.result.waiting) == ("take_events", fed)
        assert fed < 887, "it stopped early"
        assert next(source)[0] == 13 + fed, "and what it did not accept is left to the caller"
        World.broken = False
        engine.resume()
        assert engine.query("SELECT count(*) FROM t WHERE n >= 13").scalar() == fed - sum(
            n % 10 == 7 for n in range(13, 13 + fed)
        )
    else:
        engine.feed("events", rows(13))
        engine.run_until_idle()
        with pytest.raises(FeedHalted):
            engine.feed("events", rows(14))
        assert len(engine.scheduler.parked) == 2


def test_dead_letters_are_counted_and_a_repeat_of_a_source_is_nothing(open_engine: Make, app: App) -> None:
    engine = open_engine(app)
    fed = engine.feed("letters", rows(1, 13, 2), source="s", offset=3, after=None)
    assert (fed.committed, fed.dead_letters) == (2, 1)
    assert "MistakeError" in next(iter(fed.reasons))
    again = engine.feed("letters", rows(1, 13, 2), source="s", offset=3, after=None)
    assert (again.rows, again.batches, again.undone) == (0, 0, 0)


def test_aborts_keep_their_rows_across_a_merge_and_a_crash(
    open_engine: Make, app: App, tmp_path: Path, killed: Callable[[Engine], None]
) -> None:
    engine = open_engine(app, tmp_path)
    engine.push("events", [(17, "a"), (5, None)])
    engine.checkpoint()
    engine.push("events", [(27, "b")])
    killed(engine)
    again = open_engine(app, tmp_path)
    found = [
        (json.loads(r), n, cut) for r, n, cut in again.query("SELECT rows, row_count, truncated FROM tidegate.aborts")
    ]
    assert found == [([{"n": 17, "note": "a"}, {"n": 5, "note": None}], 2, False), ([{"n": 27, "note": "b"}], 1, False)]


def test_the_rows_of_aborts_are_bounded(open_engine: Make, app: App) -> None:
    engine = open_engine(app)
    engine.push("events", [(7, "x" * kept.ONE_BYTES), (8, "y")])
    engine.push("events", [(n, "x" * 100) for n in range(7, 2_000)])
    large = "x" * (kept.ONE_BYTES // 2)
    for _ in range(200):
        engine.push("events", [(7, large)])
    aborts = list(engine.journal.aborts)
    assert [(a.rows.count, a.rows.truncated) for a in aborts[:2]] == [(2, True), (1993, True)]
    held = [a for a in aborts if a.rows.text is not None]
    assert held == aborts[-len(held) :], "the oldest lost theirs"
    assert 100 < len(held) < 200
    assert sum(len(str(a.rows.text)) for a in held) <= kept.ALL_BYTES
    assert all(a.rows.truncated != (a.rows.text is not None) for a in aborts[2:])
    assert len(aborts) <= KEPT_ABORTS


class Numbers:
    """A source of rows from a list, the offset being how many were taken."""

    finished = False
    lag = None

    def __init__(self, *numbers: int) -> None:
        self._rows = rows(*numbers)

    def open(self, name: str, relation: Any, offset: Any) -> None:
        self._at = offset or 0

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        if self._at:
            return None
        self._at = len(self._rows)
        return Polled(self._rows, self._at)

    def committed(self, offset: Any) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_ingestion_shows_what_was_undone_and_that_its_dataflow_is_halted(open_engine: Make, app: App) -> None:
    engine = open_engine(app)
    engine.ingest("events", Numbers(1, 17, 2), name="small", size=1).pump()
    engine.ingest("events", Numbers(27), name="whole").pump()
    engine.ingest("letters", Numbers(3, 13), name="letters", size=1).pump()
    found = {row[0]: row[1:] for row in engine.query("SELECT name, rows, undone, halted FROM tidegate.sources").rows}
    assert found == {"small": (3, 1, None), "whole": (1, 1, None), "letters": (2, 1, None)}
    ingestion = engine.ingest("events", Numbers(13, 14), name="halted", size=1)
    assert ingestion.pump() == 2, "accepted, and waiting"
    assert "dataflow take_events is halted in front of take_events on batch" in str(ingestion.halted)
    assert (ingestion.undone, ingestion.state) == (0, "open")
