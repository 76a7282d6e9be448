"""A chunk that was fed runs at one go in a replay, by the steps it was fed by, and must come to what the log says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.errors import CorruptionError, RecoveryRefused
from tidegate.txn.entries import Work
from tidegate.txn.executors.serial import SerialExecutor

Kill = Callable[[Engine], None]
SETTINGS: Any = {"merge_every_s": 3600.0}


def moody(mode: Any, moods: list[str]) -> App:
    """Two units a batch; what they do depends on the last of ``moods``, as it never should."""
    app = App("moody", recovery=mode)
    app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    app.table("CREATE TABLE u (n INTEGER PRIMARY KEY)")
    app.stream("numbers", "n INTEGER", border=True)
    app.stream("kept", "n INTEGER")

    @app.procedure(inputs="numbers", outputs="kept", writes=["t"])
    def put(txn: Transaction, numbers: Batch) -> None:
        for row in numbers:
            if row.n == 13 or (moods[-1] == "aborting" and row.n == 5):
                txn.abort("unlucky")
            if moods[-1] == "raising" and row.n == 5:
                raise RuntimeError("unlucky")
            txn.insert("t", row)
            if not (moods[-1] == "silent" and row.n == 5) and (row.n % 2 or moods[-1] == "loud"):
                txn.emit("kept", [row])

    @app.procedure(inputs="kept", writes=["u"])
    def note(txn: Transaction, kept: Batch) -> None:
        for row in kept:
            txn.insert("u", row)

    return app


def fed(app: App, path: Path, kill: Kill) -> None:
    engine = tidegate.open(app, path, **SETTINGS)
    engine.feed("numbers", [(n,) for n in range(1, 21)])
    engine.feed("numbers", [(n,) for n in range(21, 31)], size=3)
    kill(engine)


@pytest.fixture
def rerun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each chunk had that ran at one go."""
    found: list[int] = []
    real = SerialExecutor.place

    def counting(self: SerialExecutor, work: Work, ticket: Any) -> None:
        found.append(len(work.batches))
        real(self, work, ticket)

    monkeypatch.setattr(SerialExecutor, "place", counting)
    return found


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_chunk_runs_as_it_was_fed(mode: str, tmp_path: Path, killed: Kill, rerun: list[int]) -> None:
    moods = ["good"]
    app = moody(mode, moods)
    fed(app, tmp_path, killed)
    assert rerun == [20, 4]
    rerun.clear()
    with tidegate.open(app, tmp_path) as engine:
        assert rerun == (
            [20, 4] if mode == "weak" else [20]
        )  # how the last one ended is known only at the end of the log
        assert engine.query("SELECT count(*) FROM t").scalar() == 29
        assert engine.query("SELECT count(*) FROM u").scalar() == 14
        assert engine.recovery.replayed["batches"] == 24
        assert engine.recovery.replayed.get("executions", 0) == (0 if mode == "weak" else 20 + 9 + 4 + 3)
        assert engine.sequence == 24
        assert [abort.reason for abort in engine.journal.aborts] == ["unlucky"]
        engine.feed("numbers", [(99,)])
        assert engine.borders["numbers"].sequences[None].last == 25


@pytest.mark.parametrize(
    ("mood", "error", "told"),
    [
        (
            "aborting",
            RecoveryRefused,
            r"put on batch 5 at position 5\.0 committed when it first ran, but now it aborted",
        ),
        ("raising", RecoveryRefused, r"put on batch 5 .* committed when it first ran, but now it halted"),
        ("silent", RecoveryRefused, r"put on batch 6 .* did not run before"),
        ("loud", RecoveryRefused, r"note on batch 2 .* did not run before"),
    ],
)
def test_a_chunk_that_ends_differently_is_found_out(
    mood: str, error: Any, told: str, tmp_path: Path, killed: Kill
) -> None:
    moods = ["good"]
    app = moody("strong", moods)
    fed(app, tmp_path, killed)
    moods.append(mood)
    with pytest.raises(error, match=told):
        tidegate.open(app, tmp_path)
    moods.append("good")
    with tidegate.open(app, tmp_path) as engine:
        assert engine.query("SELECT count(*) FROM t").scalar() == 29


def test_an_execution_that_does_not_come_about_is_found_out(tmp_path: Path, killed: Kill) -> None:
    """The last execution of the chunk is in the log, and nothing runs there this time."""
    moods = ["good"]
    app = moody("strong", moods)
    engine = tidegate.open(app, tmp_path, **SETTINGS)
    engine.feed("numbers", [(1,), (5,)])
    engine.feed("numbers", [(7,)])
    killed(engine)
    moods.append("silent")
    with pytest.raises(CorruptionError, match=r"position 2\.1 ended \(committed\), but nothing is there"):
        tidegate.open(app, tmp_path)
