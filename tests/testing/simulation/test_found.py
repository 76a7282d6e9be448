"""What the simulation has found so far, each as the smallest app that shows it."""

from __future__ import annotations

import pytest

import tidegate
from tidegate import App, committed, window
from tidegate.storage.ddl import Scratch
from tidegate.storage.versions import VersionedTable
from tidegate.testing import ManualClock
from tidegate.testing.simulation import simulate_seed


@pytest.mark.parametrize("seed", [6, 234, 12227, 12569])
def test_seeds_that_once_failed(seed):
    failures = simulate_seed(seed, tries=0).failures
    assert not failures, failures[0].text


def test_a_commit_that_drops_old_versions_drops_their_index_entries():
    scratch = Scratch()
    schema = scratch.define_table("CREATE TABLE t (id INTEGER PRIMARY KEY, tag INTEGER); CREATE INDEX i ON t (tag)")
    table = VersionedTable(schema)
    for position, keep_older in ((1, True), (2, True), (3, False)):
        table.commit({1: schema.row._make((1, position * 10))}, position, position, keep_older)
    assert [table.indexes[0].candidates(tag) for tag in (10, 20, 30)] == [(), (), (1,)]


def test_one_member_reads_committed_what_another_member_locks():
    app = App("mixed")
    app.table("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    app.stream("a", "n INTEGER", border=True)
    app.stream("b", "n INTEGER")
    seen = []

    @app.procedure(inputs="a", outputs="b", reads=[committed("t")])
    def look(txn, a):
        seen.append([tuple(row) for row in txn.scan("t")])
        txn.emit("b", list(a))

    @app.procedure(inputs="b", writes=["t"])
    def write(txn, b):
        txn.upsert("t", (1, b[0].n))

    app.nested(look, write)
    with tidegate.open(app) as engine:
        for n in (5, 6, 7):
            engine.push("a", [(n,)])
    assert seen == [[], [(1, 5)], [(1, 6)]]


def test_a_trigger_reads_the_window_and_its_stream():
    app = App("windows")
    app.table("CREATE TABLE t (id INTEGER PRIMARY KEY, inside BIGINT, arrived BIGINT)")
    app.stream("a", "n INTEGER", border=True)

    @app.procedure(inputs="a", windows={"recent": window("a", count=3, slide=1)})
    def follow(txn, a):
        pass

    app.trigger(
        "follow.recent",
        "INSERT INTO t SELECT 1, (SELECT sum(n) FROM recent), (SELECT sum(n) FROM a) "
        "ON CONFLICT (id) DO UPDATE SET inside = excluded.inside, arrived = excluded.arrived",
    )
    with tidegate.open(app) as engine:
        for n in (1, 2, 3, 4):
            engine.push("a", [(n,)])
        assert engine.query("SELECT inside, arrived FROM t").rows == [(9, 4)]


def test_a_dead_letter_does_not_depend_on_when_the_decision_came():
    def dead_letters(early: bool) -> list[str]:
        app = App("deciding")
        app.stream("a", "n INTEGER", border=True)
        app.stream("b", "n INTEGER")
        app.stream("decisions", "n INTEGER", border=True, deadline_s=60, default={"n": 0})

        @app.procedure(inputs="a", outputs="b", on_failure="dead_letter")
        def ask(txn, a):
            raise ValueError("never asks")

        @app.procedure(inputs=["b", "decisions"])
        def decide(txn, b, decisions):
            pass

        app.nested(ask, decide)
        with tidegate.open(app, clock=ManualClock()) as engine:
            if early:
                engine.push("decisions", [(1,)], 1)
            engine.push("a", [(1,)], 1)
            return [row.stream for row in engine.query("SELECT stream FROM tidegate.dead_letters")]

    assert dead_letters(early=True) == dead_letters(early=False) == ["a"]


def test_every_push_to_a_durable_engine_is_acknowledged(tmp_path):
    app = App("durable")
    app.stream("a", "n INTEGER", border=True)

    @app.procedure(inputs="a")
    def take(txn, a):
        pass

    with tidegate.open(app, tmp_path / "db") as engine:
        for n in range(300):
            ticket = engine.push("a", [(n,)], n)
        assert ticket.event().wait(60), "the last record was written together with a mark and never synced"
        again = engine.push("a", [(n,)], n)
        assert again.duplicate
        assert again.event().wait(60), "a repeat waited for a mark, which nobody syncs"
