"""Undeclared access and bad input: a clear error, nothing half-written, and the engine goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tidegate import (
    Aborted,
    AccessError,
    App,
    Batch,
    DataError,
    Engine,
    ProcedureFailed,
    TidegateError,
    Transaction,
    committed,
    partition,
    window,
)
from tidegate.errors import MistakeError

Make = Callable[..., Engine]


class Now:
    """What ``work`` does in this test."""

    body: Callable[[Transaction, Batch], Any]


def app_running(body: Callable[[Transaction, Batch], Any]) -> App:
    Now.body = staticmethod(body)
    return declared()


@cache
def declared() -> App:
    """``work`` reads r and a partition of p, writes w; table hidden is not declared."""
    app = App("access")
    for name in ("r", "hidden"):
        app.table(f"CREATE TABLE {name} (k INTEGER PRIMARY KEY, word VARCHAR)")
    app.table(
        "CREATE TABLE w (k INTEGER PRIMARY KEY, word VARCHAR NOT NULL CHECK (length(word) < 5), "
        "n TINYINT DEFAULT 7, code VARCHAR UNIQUE)"
    )
    app.table("CREATE TABLE p (k INTEGER PRIMARY KEY, word VARCHAR)", partition_by="k")
    app.table("CREATE TABLE c (k INTEGER PRIMARY KEY, word VARCHAR)")
    app.table("CREATE TABLE log (id INTEGER PRIMARY KEY)")
    app.stream("events", "k INTEGER, word VARCHAR", border=True, key="k")
    app.stream("out", "k INTEGER NOT NULL, word VARCHAR")
    app.stream("elsewhere", "k INTEGER")
    app.stream("pings", "k INTEGER", border=True)

    @app.procedure(
        inputs="events",
        outputs="out",
        reads=["r", partition("p"), committed("c")],
        writes=["w"],
        windows={"recent": window("events", count=2)},
    )
    def work(txn: Transaction, events: Batch) -> None:
        txn.upsert("w", (0, "half", 1, None))
        Now.body(txn, events)

    @app.procedure(inputs="pings", outputs="elsewhere", writes=["log"])
    def ping(txn: Transaction, pings: Batch) -> None:
        txn.insert("log", (pings.id,))

    return app


UNDECLARED: dict[str, tuple[Callable[[Transaction, Batch], Any], tuple[str, ...]]] = {
    "read": (lambda txn, _: txn.get("hidden", 1), ("table hidden", "reads=['hidden']")),
    "scan": (lambda txn, _: txn.scan("hidden"), ("table hidden", "reads=['hidden']")),
    "SQL read": (lambda txn, _: txn.execute("SELECT * FROM hidden"), ("table hidden", "reads=['hidden']")),
    "SQL read by key": (
        lambda txn, _: txn.execute("SELECT * FROM hidden WHERE k = 1"),
        ("table hidden", "reads="),
    ),
    "SQL join": (lambda txn, _: txn.execute("SELECT * FROM r, hidden"), ("table hidden", "reads=['hidden']")),
    "write": (lambda txn, _: txn.insert("r", (1, "a")), ("table r", "only to read", "writes=['r']")),
    "update": (lambda txn, _: txn.update("r", 1, word="a"), ("table r", "writes=['r']")),
    "delete": (lambda txn, _: txn.delete("r", 1), ("table r", "writes=['r']")),
    "SQL write": (lambda txn, _: txn.execute("DELETE FROM r"), ("table r", "writes=['r']")),
    "SQL write by key": (
        lambda txn, _: txn.execute("UPDATE r SET word = 'x' WHERE k = 1"),
        ("table r", "writes="),
    ),
    "write to what is read as committed": (
        lambda txn, _: txn.insert("c", (1, "a")),
        ("table c", "writes=['c']"),
    ),
    "another partition": (
        lambda txn, _: txn.get("p", 2),
        ("partition (1,) of p", "(k)", "key 2", "reads=['p']"),
    ),
    "unknown table": (lambda txn, _: txn.get("nope", 1), ("'nope'", "does not exist", "hidden")),
    "emit": (lambda txn, _: txn.emit("elsewhere", k=1), ("'elsewhere'", "add outputs=['elsewhere']")),
    "window": (lambda txn, _: txn.window("last"), ("no window 'last'", "recent", "windows=")),
}


@pytest.mark.parametrize("what", UNDECLARED)
def test_undeclared_access_is_refused_with_the_remedy(what: str, open_engine: Make) -> None:
    body, fragments = UNDECLARED[what]
    engine = open_engine(app_running(body))
    ticket = engine.push("events", [(1, "a")])
    with pytest.raises(ProcedureFailed) as caught:
        ticket.result(60)
    cause = caught.value.__cause__
    assert isinstance(cause, AccessError)
    for fragment in ("procedure work", *fragments):
        assert fragment in str(cause)
        assert fragment in str(caught.value)
    goes_on(engine)


def test_undeclared_access_halts_in_every_executor(engine_of: Make) -> None:
    engine = engine_of(app_running(lambda txn, events: txn.get("hidden", 1)))
    with pytest.raises(ProcedureFailed, match=r"AccessError: procedure work uses table hidden"):
        engine.push("events", [(1, "a")]).result(60)
    goes_on(engine)


def goes_on(engine: Engine) -> None:
    """Nothing half-written, and another dataflow works."""
    assert engine.query("SELECT count(*) FROM w").scalar() == 0
    engine.push("pings", [(1,)]).result(60)
    assert engine.query("SELECT count(*) FROM log").scalar() == 1


def test_a_swallowed_access_error_still_touches_nothing(open_engine: Make) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        with pytest.raises(AccessError):
            txn.insert("r", (1, "a"))

    engine = open_engine(app_running(body))
    engine.push("events", [(1, "a")]).result()
    assert engine.query("SELECT count(*) FROM r").scalar() == 0


# data that a table or stream refuses; every error names table or stream, column and value
BAD_ROWS: dict[str, tuple[Callable[[Transaction, Batch], Any], tuple[str, ...]]] = {
    "out of range": (lambda txn, _: txn.insert("w", (1, "a", 1000, None)), ("w.n (TINYINT)", "1000")),
    "out of range in SQL": (
        lambda txn, _: txn.execute("UPDATE w SET n = n + ? WHERE k = 0", 1000),
        ("table w", "1001", "UPDATE w"),
    ),
    "NULL": (
        lambda txn, _: txn.insert("w", (1, None, 1, None)),
        ("w.word is NOT NULL", "(1, None, 1, None)"),
    ),
    "NULL by update": (lambda txn, _: txn.update("w", 0, word=None), ("w.word is NOT NULL",)),
    "NULL by SQL": (
        lambda txn, _: txn.execute("UPDATE w SET word = NULL WHERE k = 0"),
        ("w.word is NOT NULL",),
    ),
    "NULL key": (lambda txn, _: txn.get("w", None), ("w.k", "NULL")),
    "CHECK": (lambda txn, _: txn.insert("w", (1, "too long", 1, None)), ("w", "CHECK", "too long")),
    "CHECK by SQL": (
        lambda txn, _: txn.execute("UPDATE w SET word = word || '!!!' WHERE k >= 0"),
        ("w", "CHECK", "half!!!"),
    ),
    "duplicate key": (
        lambda txn, _: txn.insert("w", (0, "a", 1, None)),
        ("w already has a row with k = 0", "upsert"),
    ),
    "duplicate key by SQL": (
        lambda txn, _: txn.execute("INSERT INTO w (k, word) VALUES (0, 'a')"),
        ("w already has a row with k = 0",),
    ),
    "UNIQUE": (
        lambda txn, _: [txn.insert("w", (k, "a", 1, "same")) for k in (1, 2)],
        ("w is UNIQUE on (code)", "'same'"),
    ),
    "emit of NULL": (lambda txn, _: txn.emit("out", [(None, "a")]), ("out.k is NOT NULL",)),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_data_that_does_not_fit_aborts_and_is_named(what: str, open_engine: Make) -> None:
    body, fragments = BAD_ROWS[what]
    engine = open_engine(app_running(body))
    with pytest.raises(Aborted, match=r"work aborted at position 1\.0") as caught:
        engine.push("events", [(1, "a")]).result()
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert isinstance(caught.value.cause, DataError)
    (abort,) = engine.query("SELECT procedure, reason, rows, truncated FROM tidegate.aborts")
    assert abort.procedure == "work"
    assert fragments[0] in abort.reason
    assert (json.loads(abort.rows), abort.truncated) == ([{"k": 1, "word": "a"}], False)
    goes_on(engine)


# what no data explains
MISTAKES: dict[str, tuple[Callable[[Transaction, Batch], Any], tuple[str, ...]]] = {
    "wrong type": (lambda txn, _: txn.insert("w", ("x", "a", 1, None)), ("w.k (INTEGER)", "'x'")),
    "wrong type by SQL": (
        lambda txn, _: txn.execute("INSERT INTO w (k, word) VALUES (?, 'a')", "x"),
        ("w.k (INTEGER)", "'x'"),
    ),
    "missing column": (lambda txn, _: txn.insert("w", k=1), ("w.word is missing", "{'k': 1}")),
    "extra column": (
        lambda txn, _: txn.insert("w", k=1, word="a", wrd="b"),
        ("w has no column 'wrd'", "word"),
    ),
    "too few values": (lambda txn, _: txn.insert("w", (1,)), ("w has 4 columns", "(1,)")),
    "key of a wrong type": (lambda txn, _: txn.get("w", "x"), ("w.k (INTEGER)", "'x'")),
    "key changed by update": (lambda txn, _: txn.update("w", 0, k=5), ("w.k is part of the primary key",)),
    "unknown column in update": (
        lambda txn, _: txn.update("w", 0, wrd="x"),
        ("w has no column 'wrd'", "word"),
    ),
    "unknown column in scan": (lambda txn, _: txn.scan("r", wrd="x"), ("r has no column 'wrd'", "word")),
    "emit of a wrong type": (lambda txn, _: txn.emit("out", k="x"), ("out.k (INTEGER)", "'x'")),
    "emit of an unknown column": (
        lambda txn, _: txn.emit("out", {"k": 1, "m": 2}),
        ("out has no column 'm'",),
    ),
    "emit of text": (lambda txn, _: txn.emit("out", "abc"), ("emit('out'", "'abc'")),
    "emit of a bare row": (lambda txn, _: txn.emit("out", (1, "a")), ("out", "tuple, list or dict", "1")),
    "emit of no rows at all": (lambda txn, _: txn.emit("out", 5), ("emit('out'", "list of rows", "5")),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_halts_and_is_named_with_its_line(what: str, open_engine: Make) -> None:
    body, fragments = MISTAKES[what]
    engine = open_engine(app_running(body))
    ticket = engine.push("events", [(1, "a")])
    with pytest.raises(ProcedureFailed) as caught:
        ticket.result()
    for fragment in ("procedure work", *fragments, Path(__file__).name):
        assert fragment in str(caught.value)
    assert isinstance(caught.value.__cause__, MistakeError)
    assert ticket.stopped
    assert not engine.query("SELECT * FROM tidegate.aborts")
    (waiting,) = engine.query("SELECT state, batch_id FROM tidegate.executions")
    assert tuple(waiting) == ("parked", 1)
    goes_on(engine)


BAD_SQL: dict[str, tuple[Callable[[Transaction, Batch], Any], tuple[str, ...]]] = {
    "does not parse": (lambda txn, _: txn.execute("SELEC 1"), ("SELEC 1",)),
    "unknown table": (lambda txn, _: txn.execute("SELECT * FROM nope"), ("nope",)),
    "unknown column": (lambda txn, _: txn.execute("SELECT nope FROM r"), ("nope",)),
    "too few parameters": (lambda txn, _: txn.execute("SELECT ? + ?", 1), ("2", "1")),
    "unknown parameter": (lambda txn, _: txn.execute("SELECT $a", b=1), ("a", "b")),
    "DDL": (lambda txn, _: txn.execute("CREATE TABLE x (a INTEGER)"), ("CREATE",)),
    "a stream that is not here": (lambda txn, _: txn.execute("SELECT * FROM pings"), ("pings",)),
    "bad cast of data": (lambda txn, _: txn.execute("SELECT CAST(word AS INTEGER) FROM w"), ("half",)),
}


@pytest.mark.parametrize("what", BAD_SQL)
def test_sql_that_is_wrong_fails_the_procedure(what: str, open_engine: Make) -> None:
    body, fragments = BAD_SQL[what]
    engine = open_engine(app_running(body))
    ticket = engine.push("events", [(1, "a")])
    with pytest.raises(ProcedureFailed, match="procedure work raised") as caught:
        ticket.result()
    assert isinstance(caught.value.__cause__, TidegateError), repr(caught.value.__cause__)
    for fragment in fragments:
        assert fragment in str(caught.value)
    goes_on(engine)


@pytest.mark.parametrize(
    "rows",
    [[(1, "a"), ("x", "b")], [(1,)], [(1, "a", 2)], [{"k": 1, "wrd": "a"}], [(None, "a")], "text", [7], None],
)
def test_a_push_that_is_refused_accepts_nothing(rows: Any, engine_of: Make) -> None:
    engine = engine_of(app_running(lambda txn, events: None))
    with pytest.raises(DataError, match="events"):
        engine.push("events", rows, 1)
    assert engine.sequence == 0
    engine.push("events", [(1, "a")], 1).result()
    assert engine.query("SELECT count(*) FROM w").scalar() == 1


def test_a_batch_and_its_rows_can_not_be_changed(open_engine: Make) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        with pytest.raises(AttributeError):
            events[0].word = "changed"

    open_engine(app_running(body)).push("events", [(1, "a")]).result()


def test_the_partition_of_a_call_is_its_argument(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(1, "a"), (2, "b")]).result()
    assert (engine.call("drugs", 1), engine.call("drugs", patient=2)) == (["a"], ["b"])
    for wrong, fragment in (("x", "'x'"), (None, "NULL")):
        with pytest.raises(DataError, match=r"meds.patient") as caught:
            engine.call("drugs", wrong)
        assert fragment in str(caught.value)
