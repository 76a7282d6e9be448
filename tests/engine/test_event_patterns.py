"""Event patterns at work: in transactions, in silence, over several streams, across restarts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Transaction, either, pattern
from tidegate.errors import Aborted, DeclarationError
from tidegate.offline.verify import verify
from tidegate.testing import ManualClock

DAY = dt.datetime(2026, 3, 1)


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


FRAUD = {
    "match": "SEQ(login l, !reset, fail f+, withdraw w)",
    "define": {
        "login": "kind = 'login'",
        "reset": "kind = 'reset'",
        "fail": "kind = 'fail' AND ip <> l.ip",
        "withdraw": "kind = 'withdraw' AND amount > 3 * avg(f.amount)",
    },
    "within": "5m",
    "after": "past_last",
    "measures": {"n": "count(f)", "amount": "w.amount", "took": "w.t - l.t"},
}


def bank(*, key: str | None = None, **options: Any) -> App:
    app = App("bank")
    columns = "card BIGINT NOT NULL, t TIMESTAMP NOT NULL, kind VARCHAR NOT NULL, ip VARCHAR, amount DOUBLE"
    app.stream("ev", columns, border=True, key=key, idle=("t", "30s"))
    app.table(
        "CREATE TABLE alerts (card BIGINT, id BIGINT, n BIGINT, amount DOUBLE, took INTERVAL, PRIMARY KEY (card, id))"
    )
    app.table("CREATE TABLE left_open (card BIGINT, since TIMESTAMP, PRIMARY KEY (card, since))")
    by: Any = () if key else "card"
    fraud = pattern("ev", **{**FRAUD, "on": "t", "by": by, "timeout": True, **options})  # type: ignore[arg-type]

    @app.procedure(inputs="ev", writes=["alerts", "left_open"], windows={"fraud": fraud})
    def watch(txn: Transaction, ev: Batch) -> None:
        for row in txn.window("fraud").results:
            card = txn.key if key else row.card
            txn.insert("alerts", (card, row.match_id, row.n, row.amount, row.took))
        for over in txn.window("fraud").timed_out:
            txn.upsert("left_open", (over.rows[0].card, over.start))
        if any(row.kind == "stop" for row in ev):
            txn.abort("stopped")

    return app


def rows(card: int, start: float = 0) -> list[Any]:
    return [
        (card, at(start), "login", "1.1.1.1", None),
        (card, at(start + 1), "fail", "2.2.2.2", 10.0),
        (card, at(start + 2), "fail", "1.1.1.1", 90.0),  # the same address: it does not count
        (card, at(start + 3), "fail", "3.3.3.3", 30.0),
        (card, at(start + 4), "withdraw", "3.3.3.3", 61.0),
    ]


def test_a_pattern_is_found_and_measured() -> None:
    with tidegate.open(bank()) as engine:
        engine.push("ev", rows(1))
        found = engine.query("SELECT * FROM alerts").rows
        assert [tuple(row) for row in found] == [(1, 1, 2, 61.0, dt.timedelta(seconds=4))]
        (told,) = engine.query("SELECT * FROM tidegate.windows").rows
        assert told.name == "fraud"
        assert told.fired == 1


def test_an_abort_undoes_what_the_rows_began() -> None:
    with tidegate.open(bank()) as engine:
        engine.push("ev", rows(1)[:4])
        with pytest.raises(Aborted):
            engine.push(
                "ev",
                [
                    (1, at(3.5), "reset", None, None),
                    (1, at(3.6), "withdraw", None, 500.0),
                    (1, at(3.7), "stop", None, None),
                ],
            ).result()
        engine.push("ev", [rows(1)[4]])
        assert engine.query("SELECT n, amount FROM alerts").rows == [(2, 61.0)]


def test_in_silence_partial_matches_time_out() -> None:
    clock = ManualClock(at(0))
    with tidegate.open(bank(), clock=clock) as engine:
        engine.push("ev", rows(7)[:2])
        assert engine.query("SELECT count(*) FROM left_open").rows == [(0,)]
        clock.advance(5 * 60 + 40)
        engine.tick()
        assert engine.query("SELECT card, since FROM left_open").rows == [(7, at(0))]
        (told,) = engine.query("SELECT * FROM tidegate.windows").rows
        assert told.held == 0


@pytest.mark.parametrize("key", [None, "card"])
@pytest.mark.parametrize("threads", [None, 4])
def test_restarts_change_nothing(tmp_path: Path, key: str | None, threads: int | None) -> None:
    wanted = []
    events = [row for card in range(3) for row in rows(card, card)]
    events.sort(key=lambda row: row[1])
    for directory, restarts in ((tmp_path / "one", False), (tmp_path / "two", True)):
        options: dict[str, Any] = {} if threads is None else {"executor": "threads", "workers": threads}
        engine = tidegate.open(bank(key=key), directory, **options)
        for number, row in enumerate(events):
            engine.push("ev", [row])
            if restarts and number % 4 == 1:
                if number % 8 == 1:
                    engine.checkpoint()
                engine.close()
                engine = tidegate.open(bank(key=key), directory, **options)
        engine.run_until_idle()
        wanted.append(engine.query("SELECT * FROM alerts ORDER BY card, id").rows)
        engine.close()
        assert verify(bank(key=key), directory).same
    assert wanted[0] == wanted[1]
    assert len(wanted[0]) == 3


def test_in_sql_it_is_a_relation_and_sets_off_triggers() -> None:
    app = bank()
    app.table("CREATE TABLE seen (id BIGINT PRIMARY KEY, n BIGINT)")
    app.trigger("watch.fraud", "INSERT INTO seen SELECT match_id, n FROM fraud")
    with tidegate.open(app) as engine:
        engine.push("ev", rows(1) + [(1, at(400 + i), *row[2:]) for i, row in enumerate(rows(1))])
        assert engine.query("SELECT * FROM seen ORDER BY id").rows == [(1, 2), (2, 2)]


def hygiene(**options: Any) -> App:
    app = App("hygiene")
    app.stream("doors", "person BIGINT NOT NULL, seen TIMESTAMP NOT NULL, room VARCHAR NOT NULL", border=True)
    app.stream("dispensers", "person BIGINT NOT NULL, seen TIMESTAMP NOT NULL", border=True)
    app.stream("beds", "person BIGINT NOT NULL, seen TIMESTAMP NOT NULL, bed INTEGER", border=True)
    app.table("CREATE TABLE lapses (id BIGINT PRIMARY KEY, person BIGINT, room VARCHAR, bed INTEGER)")
    streams = ("doors", "dispensers", "beds")
    lapse = pattern(
        streams, match="SEQ(doors d, !dispensers, beds b)", on="seen", by="person", within="10m",
        measures={"room": "d.room", "bed": "b.bed"}, **options,
    )  # fmt: skip

    @app.procedure(inputs=either(*streams), writes=["lapses"], windows={"lapse": lapse})
    def watch(txn: Transaction, doors: Batch, dispensers: Batch, beds: Batch) -> None:
        for row in txn.window("lapse").results:
            txn.insert("lapses", (row.match_id, row.person, row.room, row.bed))
        for match in txn.window("lapse").matches:
            assert match["d"][0]._fields == ("person", "seen", "room")

    return app


def test_several_streams_are_one_sequence(tmp_path: Path) -> None:
    with tidegate.open(hygiene(delay="2s"), tmp_path / "d") as engine:
        engine.push("doors", [(1, at(0), "A"), (2, at(1), "B")])
        engine.push("beds", [(2, at(9), 5)])
        engine.push("dispensers", [(1, at(8))])  # it came later, and is earlier
    with tidegate.open(hygiene(delay="2s"), tmp_path / "d") as engine:
        engine.checkpoint()
    with tidegate.open(hygiene(delay="2s"), tmp_path / "d") as engine:
        engine.push("beds", [(1, at(12), 4)])
        engine.push("dispensers", [(9, at(1))])
        assert engine.query("SELECT * FROM lapses").rows == [(1, 2, "B", 5)]
        assert [row.stream for row in engine.query("SELECT stream FROM tidegate.late_rows").rows] == ["dispensers"]
        engine.finish()
        assert engine.query("SELECT * FROM lapses").rows == [(1, 2, "B", 5)]
    assert verify(hygiene(delay="2s"), tmp_path / "d").same


def decided() -> App:
    """A lapse, and what a person decides on it, in one transaction."""
    app = App("decided")
    streams = ("doors", "dispensers", "beds")
    for name in streams:
        app.stream(name, "person BIGINT NOT NULL, seen TIMESTAMP NOT NULL", border=True)
    app.stream("lapses", "person BIGINT NOT NULL")
    app.stream("answers", "ok BOOLEAN", border=True, deadline_s=60, default={"ok": False})
    app.table("CREATE TABLE told (id BIGINT PRIMARY KEY, person BIGINT, ok BOOLEAN)")
    lapse = pattern(streams, match="SEQ(doors, !dispensers, beds)", on="seen", by="person", within="10m")

    @app.procedure(inputs=either(*streams), outputs="lapses", writes=["told"], windows={"lapse": lapse})
    def watch(txn: Transaction, doors: Batch, dispensers: Batch, beds: Batch) -> None:
        for row in txn.window("lapse").results:
            txn.insert("told", (row.match_id, row.person, None))
            txn.emit("lapses", person=row.person)

    @app.procedure(inputs=["lapses", "answers"], writes=["told"])
    def decide(txn: Transaction, lapses: Batch, answers: Batch) -> None:
        if not answers[0].ok:
            txn.abort("not a lapse")
        for row in txn.scan("told"):
            txn.update("told", row.id, ok=True)

    app.nested(watch, decide)
    return app


@pytest.mark.parametrize("ok", [True, False])
def test_a_match_over_several_streams_and_the_decision_on_it_are_one_transaction(tmp_path: Path, ok: bool) -> None:
    with tidegate.open(decided(), tmp_path) as engine:
        engine.push("doors", [(1, at(0))])
        engine.push("beds", [(1, at(5))])
        assert len(engine.questions()) == 1
        assert not engine.query("SELECT * FROM told").rows  # it is not committed yet
        engine.checkpoint()
    with tidegate.open(decided(), tmp_path) as engine:
        engine.push("doors", [(2, at(6))])
        engine.answer(engine.questions()[0], [(ok,)])
        assert engine.query("SELECT * FROM told").rows == ([(1, 1, True)] if ok else [])
        engine.push("beds", [(1, at(7)), (2, at(8))])  # undone: the door of 1 is still waiting for a bed
        (question,) = engine.questions()
        assert [row.person for row in question.batches["lapses"]] == ([2] if ok else [1, 2])
        engine.answer(question, [(True,)])
    assert verify(decided(), tmp_path).same


def test_several_streams_need_either_inputs() -> None:
    app = App("wrong")
    for name in ("one", "two"):
        app.stream(name, "seen TIMESTAMP NOT NULL", border=True)
    with pytest.raises(DeclarationError, match=r"inputs=either\('one', 'two'\)"):

        @app.procedure(inputs=["one", "two"], windows={"p": pattern(["one", "two"], match="SEQ(one, two)", on="seen")})
        def f(txn: Transaction, one: Batch, two: Batch) -> None:
            pass


def test_a_pattern_that_holds_partial_matches_is_not_replaced_in_silence(tmp_path: Path) -> None:
    with tidegate.open(bank(), tmp_path / "d") as engine:
        engine.push("ev", rows(1)[:4])
    changed = {**FRAUD["define"], "withdraw": "kind = 'withdraw' AND amount > 100"}  # type: ignore[dict-item]
    with pytest.raises(tidegate.errors.RecoveryRefused, match="edition=2"):
        tidegate.open(bank(define=changed), tmp_path / "d")
    with tidegate.open(bank(define=changed, edition=2), tmp_path / "d") as engine:
        engine.push("ev", [rows(1)[4]])
        assert not engine.query("SELECT * FROM alerts").rows  # begun anew
        engine.push("ev", [*rows(1, 10)[:4], (1, at(20), "withdraw", None, 101.0)])
        assert len(engine.query("SELECT * FROM alerts").rows) == 1


def test_a_pattern_keeps_its_partial_matches_under_another_name(tmp_path: Path) -> None:
    def watched(name: str, **options: Any) -> App:
        app = App("bank")
        app.stream("ev", "t TIMESTAMP NOT NULL, kind VARCHAR" + options.pop("more", ""), border=True)
        app.stream("out", "n BIGINT")
        found = pattern("ev", match="SEQ(a, b)", on="t", define={"a": "kind = 'a'", "b": "kind = 'b'"}, **options)

        @app.procedure(inputs="ev", outputs="out", windows={name: found})
        def watch(txn: Transaction, ev: Batch) -> None:
            txn.emit("out", [(row.match_id,) for row in txn.window(name).results])

        return app

    with tidegate.open(watched("one"), tmp_path / "d") as engine:
        engine.push("ev", [(at(0), "a")])
    with tidegate.open(watched("two", renamed_from="one", more=", extra INTEGER"), tmp_path / "d") as engine:
        heard = engine.subscribe("out")
        engine.push("ev", [(at(1), "b", 5)])
        assert [row.n for batch in iter(heard.get, None) for row in batch] == [1]
