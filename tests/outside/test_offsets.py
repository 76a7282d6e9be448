"""The offset of a source and the rows that came with it: both or none, wherever the log ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Transaction, partition
from tidegate.offline.verify import verify
from tidegate.txn.log.record import HEADER

MODES = ["weak", "strong", "effects"]


@cache
def make_ward(mode: Any) -> App:
    app = App("ward", recovery=mode)
    app.table("CREATE TABLE seen (patient INTEGER, n INTEGER, PRIMARY KEY (patient, n))", partition_by="patient")
    app.stream("readings", "patient INTEGER NOT NULL, n INTEGER NOT NULL", border=True, key="patient")

    @app.procedure(inputs="readings", writes=[partition("seen")])
    def see(txn: Transaction, readings: Batch) -> None:
        for reading in readings:
            txn.insert("seen", reading)

    return app


def log_of(directory: Path) -> Path:
    return max(directory.rglob("*.log"), key=lambda path: path.name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_push_of_several_keys_and_its_offset_survive_together(mode: str, numbered: bool, tmp_path: Path) -> None:
    """A process may die at any byte of the log; whoever goes on from the offset loses nothing and repeats nothing."""
    rows = [(1, 1), (2, 1), (3, 1), (1, 2)]
    engine = tidegate.open(make_ward(mode), tmp_path / "whole", merge_every_s=3600)
    before = log_of(tmp_path / "whole").stat().st_size
    engine.push("readings", rows, 7 if numbered else None, source="bed", offset=4).result()
    engine.abandon()
    data = log_of(tmp_path / "whole").read_bytes()
    kept = set()
    for end in torn_ends(data, before):
        torn = tmp_path / "torn"
        shutil.copytree(tmp_path / "whole", torn)
        log_of(torn).write_bytes(data[:end])
        engine = tidegate.open(make_ward(mode), torn)
        position = engine.position("bed")
        kept.add(position)
        if position is None:
            ticket = engine.push("readings", rows, 7 if numbered else None, source="bed", offset=4)
            assert ticket.error is None
        assert engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows == sorted(rows)
        assert engine.position("bed") == 4
        engine.abandon()
        shutil.rmtree(torn)
    assert kept == {None, 4}


def torn_ends(data: bytes, begin: int) -> Iterator[int]:
    """Where a log may end: at the end of a record, and in one. A record counts whole or not at all (that it does at every byte
    is for the tests of the reader), so that one place in each will do.
    """
    while begin < len(data):
        size, _ = HEADER.unpack_from(data, begin)
        yield begin
        yield begin + (HEADER.size + size) // 2
        begin += HEADER.size + size
    yield begin


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("executor", ["serial", "threads", "manual"])
def test_a_push_of_several_keys_that_halted_is_halted_again(mode: Any, executor: Any, tmp_path: Path) -> None:
    """One key fails in the middle: those behind it wait, before and after a crash, and go on when resumed."""

    def make(failing: bool) -> App:
        app = App("halting", recovery=mode)
        app.table("CREATE TABLE seen (patient INTEGER, n INTEGER, PRIMARY KEY (patient, n))", partition_by="patient")
        app.stream("readings", "patient INTEGER NOT NULL, n INTEGER NOT NULL", border=True, key="patient")

        @app.procedure(inputs="readings", writes=[partition("seen")])
        def see(txn: Transaction, readings: Batch) -> None:
            if failing and txn.key == 2:
                raise RuntimeError("the second one fails")
            for reading in readings:
                txn.insert("seen", reading)

        return app

    rows = [(n % 4, n) for n in range(8)]
    engine = tidegate.open(make(True), tmp_path / "db", merge_every_s=3600, executor=executor)
    engine.push("readings", rows, source="bed", offset=8)
    engine.push("readings", [(3, 100), (0, 100)], source="bed", offset=10)
    engine.run_until_idle()
    halted = dict(engine.scheduler.halted)
    before = engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows
    assert halted
    assert engine.durable is not None
    engine.durable.sync()
    engine.abandon()
    tidegate.open(make(True), tmp_path / "db").close()
    with tidegate.open(make(False), tmp_path / "db") as engine:
        assert engine.position("bed") == 10
        assert list(engine.scheduler.halted) == list(halted)
        assert engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows == before
        engine.resume()
        engine.run_until_idle()
        assert engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows == sorted([*rows, (3, 100), (0, 100)])


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_a_source_counts_once(mode: str, tmp_path: Path) -> None:
    """``after``: the step that was made is recognised, before and after a crash; one out of turn is refused."""
    rows = [(1, 1), (2, 1)]
    engine = tidegate.open(make_ward(mode), tmp_path / "db", merge_every_s=3600)
    assert not engine.push("readings", rows, source="bed", offset=[7, 1], after=None).duplicate
    assert engine.push("readings", rows, source="bed", offset=(7, 1), after=None).duplicate
    assert engine.push(
        "readings", [(5, 5)], source="bed", offset=[7, 1], after=[7, 0]
    ).duplicate  # nothing is looked at
    with pytest.raises(tidegate.errors.BatchError, match=r"is at \[7, 1\].*from \[7, 2\] to \[7, 3\] is out of turn"):
        engine.push("readings", [(1, 3)], source="bed", offset=[7, 3], after=[7, 2])
    with pytest.raises(tidegate.errors.BatchError, match="pass source="):
        engine.push("readings", [(1, 3)], offset=[7, 3], after=[7, 2])
    assert engine.durable is not None
    engine.durable.sync()
    engine.abandon()
    with tidegate.open(make_ward(mode), tmp_path / "db") as engine:
        assert engine.push("readings", rows, source="bed", offset=[7, 1], after=None).duplicate
        assert not engine.push("readings", [(1, 2)], source="bed", offset=[7, 2], after=[7, 1]).duplicate
        assert engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows == [(1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_source_moves_on_without_rows(mode: str, executor: Any, tmp_path: Path) -> None:
    engine = tidegate.open(make_ward(mode), tmp_path / "db", merge_every_s=3600, executor=executor)
    engine.push("readings", [(1, 1)], source="bed", offset=1, after=None).result()
    engine.push("readings", [], source="bed", offset=2, after=1).result()
    engine.push("readings", [(1, 2)], source="bed", offset=3, after=2).result()
    engine.push("readings", [], source="bed", offset=4, after=3).result()
    assert engine.position("bed") == 4
    engine.abandon()
    for _ in range(2):  # the log, then the base
        with tidegate.open(make_ward(mode), tmp_path / "db") as engine:
            assert engine.position("bed") == 4
            assert engine.query("SELECT patient, n FROM seen ORDER BY ALL").rows == [(1, 1), (1, 2)]
    assert verify(make_ward(mode), tmp_path / "db").differences == []
