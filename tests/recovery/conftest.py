"""What tests of recovery share: engines that die without closing, and logs on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition, window
from tidegate.testing import SimulatedFiles

MODES = ("weak", "strong", "effects")


def let_go(engine: Engine) -> None:
    """What the death of its process does to an engine: nothing more is written, files and locks are let go."""
    if engine.closed:
        return
    engine.executor.close()
    engine.merger.close()
    writer = engine.durable.writer if engine.durable is not None else None
    if writer is not None:
        with writer._changed:
            writer._closed = True
            writer._changed.notify_all()
        if writer._thread is not None:
            writer._thread.join()
    engine.database.close()
    if engine.directory is not None:
        engine.directory.close()
    engine._closed = True


@pytest.fixture
def killed() -> Callable[[Engine], None]:
    """``killed(engine)``: everything appended is on disk, nothing is merged, nothing is closed."""

    def kill(engine: Engine) -> None:
        engine.run_until_idle()
        assert engine.durable is not None
        engine.durable.sync()
        let_go(engine)

    return kill


@pytest.fixture(params=[(mode, executor) for mode in MODES for executor in ("serial", "threads")], ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """Every recovery mode with every executor."""
    mode, executor = request.param
    return mode, executor


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[SimulatedFiles], None]]:
    """``use(files)``: engines opened from now on have their log on these."""

    def on(files: SimulatedFiles) -> None:
        monkeypatch.setattr("tidegate.directory.OsFiles", lambda path: files)

    return on


def make_numbers(recovery: Any = "weak", extra: str = "") -> App:
    """numbers → add → sums: every number once, with the sum of all before it."""
    app = App("numbers", recovery=recovery)
    app.table(f"CREATE TABLE seen (n BIGINT PRIMARY KEY, total BIGINT NOT NULL{extra})")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)
    app.stream("sums", "total BIGINT")

    @app.procedure(
        inputs="numbers",
        outputs="sums",
        writes=["seen"],
        windows={"recent": window("numbers", count=3, slide=1)},
    )
    def add(txn: Transaction, numbers: Batch) -> None:
        before = txn.get("seen", numbers[0].n - 1)
        total = numbers[0].n + (0 if before is None else before.total)
        txn.insert("seen", {"n": numbers[0].n, "total": total})
        txn.emit("sums", total=total)

    @app.procedure(reads=["seen"])
    def total(txn: Transaction, n: int) -> int | None:
        row = txn.get("seen", n)
        return None if row is None else row.total

    return app


def seen(engine: Engine) -> list[int]:
    """The numbers in the table, having checked that each was added once, in order."""
    rows = [tuple(row) for row in engine.query("SELECT n, total FROM seen ORDER BY n")]
    assert rows == [(n, n * (n + 1) // 2) for n in range(1, len(rows) + 1)]
    return [n for n, _ in rows]


def push(engine: Engine, first: int, last: int) -> None:
    for number in range(first, last + 1):
        engine.push("numbers", [(number,)], number).result()


def make_ward(recovery: Any) -> App:
    """A doctor decides about risky orders, per patient; vitals halt when the world is down, dead-letter when bad."""
    from tidegate.testing.workloads import ward

    return ward(recovery, deadline_s=600.0)


