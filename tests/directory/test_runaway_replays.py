"""A replay that meets a procedure which does not end: it says where it is, halts or refuses, and the record can be skipped."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, either
from tidegate.engine import progress as showing
from tidegate.errors import RecoveryRefused, TidegateError
from tidegate.offline.log_entries import entries
from tidegate.offline.repair import Repair
from tidegate.offline.verify import verify

Kill = Callable[[Engine], None]

SWITCH = "TIDEGATE_TEST_RUNS_AWAY"  # the number that does not end; not a part of the app, so the app stays the same


def make(recovery: Any = "weak", on_failure: Any = "halt") -> App:
    app = App("runaways", recovery=recovery)
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    app.table("CREATE TABLE pairs (n BIGINT, m BIGINT, PRIMARY KEY (n, m))")
    app.stream("jobs", "n BIGINT", border=True)
    app.stream("others", "n BIGINT", border=True)
    app.stream("more", "n BIGINT", border=True)
    app.stream("left", "n BIGINT", border=True)
    app.stream("right", "m BIGINT", border=True)
    app.stream("done", "n BIGINT")

    @app.procedure(inputs="jobs", outputs=["done"], writes=["t"], on_failure=on_failure)
    def work(txn: Transaction, jobs: Batch) -> None:
        for job in jobs:
            while str(job.n) == os.environ.get(SWITCH):
                pass
            txn.insert("t", job)
            txn.emit("done", n=job.n)

    @app.procedure(inputs=either("done", "more"), writes=["t"])
    def after(txn: Transaction, done: Batch, more: Batch) -> None:
        for row in more:
            txn.insert("t", row)

    @app.procedure(inputs="others", writes=["t"])
    def other(txn: Transaction, others: Batch) -> None:
        for row in others:
            txn.insert("t", row)

    @app.procedure(inputs=["left", "right"], writes=["pairs"])
    def pair(txn: Transaction, left: Batch, right: Batch) -> None:
        txn.insert("pairs", (left[0].n, right[0].m))

    @app.procedure(writes=["t"])
    def called(txn: Transaction, n: int) -> None:
        while str(n) == os.environ.get(SWITCH):
            pass
        txn.insert("t", (n,))

    return app


def numbers(engine: Engine) -> list[int]:
    return [row.n for row in engine.query("SELECT n FROM t ORDER BY n")]


def lsn_of(path: Path, kind: str, place: int) -> int:
    found = [entry for entry in entries(path) if entry["kind"] == kind]
    return int(found[place]["lsn"])


def filled(path: Path, killed: Kill, recovery: str = "weak", on_failure: str = "halt", **settings: Any) -> None:
    engine = tidegate.open(make(recovery, on_failure), path, **settings)
    for n in (1, 2):
        engine.push("jobs", [(n,)], source="meter", offset=n)
    killed(engine)


@pytest.mark.parametrize("on_failure", ["halt", "dead_letter"])
def test_the_last_record_ends_as_it_would_have(
    tmp_path: Path, killed: Kill, monkeypatch: pytest.MonkeyPatch, on_failure: str
) -> None:
    """Killed in the middle of a runaway: the engine opens, and the outcome is logged."""
    filled(tmp_path / "db", killed, on_failure=on_failure)
    monkeypatch.setenv(SWITCH, "2")
    with tidegate.open(make(on_failure=on_failure), tmp_path / "db", procedure_deadline_s=0.05) as engine:
        assert numbers(engine) == [1]
        assert bool(engine.scheduler.halted) is (on_failure == "halt")
        assert len(engine.journal.dead_letters) == (on_failure == "dead_letter")
        assert "did not end in the replay either" in str(engine.recovery)
        engine.push("others", [(3,)]).result()
        killed(engine)
    with tidegate.open(make(on_failure=on_failure), tmp_path / "db", procedure_deadline_s=None) as engine:
        assert numbers(engine) == [1, 3]
        monkeypatch.delenv(SWITCH)
        if on_failure == "halt":
            engine.resume()
            assert numbers(engine) == [1, 2, 3]


@pytest.mark.parametrize("recovery", ["weak", "strong"])
def test_what_may_have_ended_before_is_refused(
    tmp_path: Path, killed: Kill, monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    filled(tmp_path / "db", killed, recovery)
    monkeypatch.setenv(SWITCH, "1")
    with pytest.raises(
        RecoveryRefused, match=r"work on batch 1.*record \d+, batch 1 of jobs, 1 rows.*repair"
    ) as raised:
        tidegate.open(make(recovery), tmp_path / "db", procedure_deadline_s=0.05)
    assert raised.value.lsn == lsn_of(tmp_path / "db", "pushed", 0)
    monkeypatch.delenv(SWITCH)
    with tidegate.open(make(recovery), tmp_path / "db") as engine:
        assert numbers(engine) == [1, 2]


def test_a_replay_shows_what_is_at_hand(
    tmp_path: Path, killed: Kill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "db", killed)
    monkeypatch.setenv(SWITCH, "2")
    monkeypatch.setattr(showing, "TOLD_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "tidegate")
    told: list[tuple[int, int, str]] = []
    tidegate.open(make(), tmp_path / "db", procedure_deadline_s=0.2, progress=lambda *at: told.append(at)).close()
    lsn = lsn_of(tmp_path / "db", "pushed", 1)
    assert any(doing.startswith(f"at record {lsn} (batch 2 of jobs, procedure work") for _, _, doing in told)
    assert f"at record {lsn} (batch 2 of jobs, procedure work" in caplog.text
    assert " %, at record" in caplog.text


@pytest.mark.parametrize("recovery", ["strong", "effects"])
def test_what_has_ended_is_not_skipped(tmp_path: Path, killed: Kill, recovery: str) -> None:
    filled(tmp_path / "db", killed, recovery)
    with Repair(tmp_path / "db") as repair, pytest.raises(TidegateError, match="the log says how batch 1 of jobs"):
        repair.find(lsn_of(tmp_path / "db", "pushed", 0))


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_a_record_is_skipped(tmp_path: Path, killed: Kill, monkeypatch: pytest.MonkeyPatch, recovery: str) -> None:
    path = tmp_path / "db"
    engine = tidegate.open(make(recovery), path, executor="manual")
    engine.push("jobs", [(1,)], source="meter", offset=1)
    assert engine.durable is not None
    engine.durable.sync()
    engine.abandon()  # before it ran
    lsn = lsn_of(path, "pushed", 0)
    with Repair(path) as repair:
        found = repair.find(lsn)
        assert (found.what, found.facts()["source"]) == ("batch 1 of jobs, 1 rows", "meter")
        repair.skip(found, "never converges")
        with pytest.raises(TidegateError, match="skipped already"):
            repair.find(lsn)
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(2):  # the second replay finds the same
        engine = tidegate.open(make(recovery), path)
        (letter,) = engine.query("SELECT stream, batch_id, rows, error FROM tidegate.dead_letters")
        assert (letter.stream, letter.batch_id, letter.error) == ("jobs", 1, "skipped by repair: never converges")
        assert '"n":1' in letter.rows
        assert f"record {lsn} (batch 1 of jobs, 1 rows) was skipped: never converges" in engine.recovery.notes
        assert engine.position("meter") == 1
        assert engine.scheduler.idle
        killed(engine)
    with tidegate.open(make(recovery), path) as engine:
        assert engine.push("jobs", [(2,)]).ids == (2,)
        assert numbers(engine) == [2]
    assert "skipped" in [entry["kind"] for entry in entries(path)]
    found = verify(make(recovery), path)
    assert found.same, found.differences
    assert found.skipped == [f"record {lsn} (batch 1 of jobs, 1 rows) was skipped: never converges"]
    with Repair(path) as repair, pytest.raises(TidegateError, match=r"below the merge frontier"):
        repair.find(lsn)


def test_feeds_calls_and_one_of_two_inputs_are_skipped(tmp_path: Path, killed: Kill) -> None:
    path = tmp_path / "db"
    engine = tidegate.open(make(), path)
    engine.feed("jobs", [(n,) for n in range(10)], size=2)
    engine.call("called", 100)
    engine.push("left", [(7,)], batch_id=1)
    engine.push("right", [(8,)], batch_id=1)
    engine.push("left", [(9,)], batch_id=2)
    engine.push("right", [(9,)], batch_id=2)
    killed(engine)
    with Repair(path) as repair:
        for kind, place in (("fed", 0), ("called", 0), ("pushed", 0)):
            repair.skip(repair.find(lsn_of(path, kind, place)), kind)
        with pytest.raises(TidegateError, match="no batch or call was accepted there"):
            repair.find(lsn_of(path, "skipped", 0))
    with tidegate.open(make(), path) as engine:
        assert numbers(engine) == []
        assert engine.query("SELECT * FROM pairs").rows == [(9, 9)]
        assert engine.scheduler.idle
        assert not engine.scheduler.partial
        letters = engine.query(
            "SELECT procedure, stream, count(*) c FROM tidegate.dead_letters GROUP BY ALL ORDER BY ALL"
        ).rows
        assert letters == [("called", None, 1), ("repair", "jobs", 5), ("repair", "left", 1)]
        assert engine.push("jobs", [(1,)]).ids == (6,)
    assert verify(make(), path).same


def test_the_command_asks_first(tmp_path: Path, killed: Kill) -> None:
    path = tmp_path / "db"
    filled(path, killed)
    lsn = lsn_of(path, "pushed", 1)
    command = [sys.executable, "-m", "tidegate", "repair", str(path), "--skip", str(lsn), "--because", "a test"]
    refused = subprocess.run(command, input="n\n", text=True, capture_output=True, check=False)
    assert (refused.returncode, "batch 2 of jobs" in refused.stdout) == (1, True)
    assert "skipped" not in [entry["kind"] for entry in entries(path)]
    subprocess.run([*command, "--yes"], check=True, capture_output=True)
    with tidegate.open(make(), path) as engine:
        assert numbers(engine) == [1]
