"""Two hundred mistakes: each is an error that names the place and the remedy, and nothing is lost.

In a procedure: its batch stays in front of the halted dataflow, with its rows, until it is resumed or skipped. At the
door: nothing is accepted. In a declaration: the app can't be opened, and says why.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

import tidegate
from tidegate import App, Engine, either, join, partition, window
from tidegate.errors import (
    AccessError,
    BatchError,
    DataError,
    DeclarationError,
    MistakeError,
    ProcedureFailed,
    StatementError,
    TidegateError,
)

Body = Callable[[Any, Any], Any]
Made = Callable[[App], Any]
NOW = dt.datetime(2026, 1, 1)
todo: list[Body] = []


def base() -> App:
    """What the mistakes are made with."""
    app = App("mistakes")
    app.table(
        "CREATE TABLE patients (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, age SMALLINT, weight DECIMAL(5,2), "
        "admitted TIMESTAMP, born DATE, awake BOOLEAN DEFAULT true, notes JSON, tags VARCHAR[], badge UUID, photo BLOB, "
        "rest TIME, stay INTERVAL, heat DOUBLE)"
    )
    app.table("CREATE TABLE beds (ward VARCHAR, number INTEGER, patient_id BIGINT, PRIMARY KEY (ward, number))")
    app.table("CREATE TABLE hidden (id BIGINT PRIMARY KEY)")
    app.table("CREATE TABLE drugs (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL)")
    app.stream("vitals", "patient_id BIGINT NOT NULL, pulse INTEGER", border=True)
    app.stream("alarms", "patient_id BIGINT NOT NULL, reason VARCHAR NOT NULL, level SMALLINT")
    app.stream("unused", "n BIGINT", border=True)
    return app


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    app = base()

    @app.procedure(
        inputs="vitals",
        outputs=["alarms"],
        writes=["patients", "beds"],
        reads=["drugs"],
        windows={"recent": window("vitals", count=3, slide=1)},
    )
    def watch(txn: Any, vitals: Any) -> None:
        todo[-1](txn, vitals)

    @app.procedure(inputs="unused")
    def ignore(txn: Any, unused: Any) -> None:
        pass

    @app.procedure(writes=["patients"])
    def admit(txn: Any, id: int, name: str = "?") -> None:
        txn.insert("patients", id=id, nam=name)

    engine = tidegate.open(app)
    todo.append(lambda txn, _: txn.insert("patients", id=0, name="first"))
    engine.push("vitals", [(0, 0)])
    yield engine
    engine.close()


ROW = {"id": 1, "name": "Ada"}


def given(**values: Any) -> Body:
    return lambda txn, _: txn.insert("patients", **{**ROW, **values})


def sql(text: str, *parameters: Any, **named: Any) -> Body:
    return lambda txn, _: txn.execute(text, *parameters, **named)


# what a procedure does, the error it raises, and words of its text
IN_PROCEDURES: dict[str, tuple[Body, type[Exception], tuple[str, ...]]] = {
    # insert, upsert
    "insert: a misspelt column": (
        given(nmae="x"),
        MistakeError,
        ("patients has no column 'nmae'", "did you mean 'name'"),
    ),
    "insert: another case": (given(Age=3), MistakeError, ("no column 'Age'", "did you mean 'age'")),
    "insert: a column of another table": (given(ward="A"), MistakeError, ("no column 'ward'", "it has id, name, age")),
    "insert: a required column left out": (
        lambda txn, _: txn.insert("patients", id=1),
        MistakeError,
        ("patients.name is missing", "NOT NULL", "give it a value"),
    ),
    "insert: the key left out": (
        lambda txn, _: txn.insert("patients", name="x"),
        MistakeError,
        ("patients.id is missing",),
    ),
    "insert: too few values": (
        lambda txn, _: txn.insert("beds", ("A", 1)),
        MistakeError,
        ("3 columns", "got 2", "ward"),
    ),
    "insert: too many values": (
        lambda txn, _: txn.insert("beds", ("A", 1, 2, 3)),
        MistakeError,
        ("3 columns", "got 4"),
    ),
    "insert: nothing": (lambda txn, _: txn.insert("beds"), MistakeError, ("beds.ward is missing",)),
    "insert: a number": (
        lambda txn, _: txn.insert("beds", 7),
        MistakeError,
        ("must be a tuple, list or dict", "int: 7"),
    ),
    "insert: text": (lambda txn, _: txn.insert("beds", "A1"), MistakeError, ("must be a tuple, list or dict", "'A1'")),
    "insert: a set": (lambda txn, _: txn.insert("beds", {1, 2, 3}), MistakeError, ("must be a tuple", "set")),
    "insert: a generator": (lambda txn, _: txn.insert("beds", (i for i in range(3))), MistakeError, ("generator",)),
    "insert: the batch instead of a row": (lambda txn, batch: txn.insert("beds", batch), MistakeError, ("beds", "got")),
    "insert: rows instead of a row": (
        lambda txn, _: txn.insert("beds", [("A", 1, 2), ("A", 2, 3)]),
        MistakeError,
        ("3 columns", "got 2"),
    ),
    "insert: a row of a stream": (
        lambda txn, batch: txn.insert("beds", batch[0]),
        MistakeError,
        ("3 columns", "got 2"),
    ),
    "insert: values in another order": (
        lambda txn, _: txn.insert("beds", (1, "A", 2)),
        MistakeError,
        ("beds.ward (VARCHAR)", "expected text, got int", "str(value)"),
    ),
    "upsert: a misspelt column": (
        lambda txn, _: txn.upsert("beds", ward="A", numbr=1),
        MistakeError,
        ("no column 'numbr'", "did you mean 'number'"),
    ),
    "upsert: too few values": (lambda txn, _: txn.upsert("beds", ("A",)), MistakeError, ("3 columns", "got 1")),
    "upsert: a wrong type": (
        lambda txn, _: txn.upsert("beds", ("A", "1", 2)),
        MistakeError,
        ("beds.number (INTEGER)", "int(value)"),
    ),
    # types
    "text for BIGINT": (given(id="1"), MistakeError, ("patients.id (BIGINT)", "'1'", "int(value)")),
    "float for BIGINT": (given(id=1.0), MistakeError, ("patients.id (BIGINT)", "1.0", "int(value)")),
    "bool for BIGINT": (given(id=True), MistakeError, ("patients.id (BIGINT)", "got bool")),
    "Decimal with digits for BIGINT": (
        given(id=Decimal("1.5")),
        MistakeError,
        ("patients.id (BIGINT)", "Decimal('1.5')"),
    ),
    "a list for BIGINT": (given(id=[1]), MistakeError, ("patients.id (BIGINT)", "got list")),
    "number for VARCHAR": (given(name=5), MistakeError, ("patients.name (VARCHAR)", "str(value)")),
    "bytes for VARCHAR": (given(name=b"Ada"), MistakeError, ("patients.name (VARCHAR)", "got bytes")),
    "a function for VARCHAR": (given(name=str), MistakeError, ("patients.name (VARCHAR)", "got type")),
    "text for SMALLINT": (given(age="old"), MistakeError, ("patients.age (SMALLINT)", "'old'")),
    "float for DECIMAL": (given(weight=70.5), MistakeError, ("patients.weight (DECIMAL(5,2))", "Decimal(str(value))")),
    "text for DECIMAL": (given(weight="70.5"), MistakeError, ("patients.weight", "expected a Decimal")),
    "text for TIMESTAMP": (given(admitted="2026-01-01"), MistakeError, ("patients.admitted", "fromisoformat")),
    "number for TIMESTAMP": (given(admitted=1_700_000_000), MistakeError, ("patients.admitted", "expected a datetime")),
    "date for TIMESTAMP": (given(admitted=NOW.date()), MistakeError, ("patients.admitted", "got date")),
    "datetime for DATE": (given(born=NOW), MistakeError, ("patients.born (DATE)", "value.date()")),
    "text for DATE": (given(born="1815-12-10"), MistakeError, ("patients.born", "date.fromisoformat")),
    "number for BOOLEAN": (given(awake=1), MistakeError, ("patients.awake (BOOLEAN)", "bool(value)")),
    "text for BOOLEAN": (given(awake="yes"), MistakeError, ("patients.awake", "expected true or false")),
    "number for JSON": (given(notes=5), MistakeError, ("patients.notes (JSON)", "expected JSON text")),
    "an object inside JSON": (given(notes={"a": object()}), MistakeError, ("patients.notes", "not JSON serializable")),
    "text for a list": (given(tags="a,b"), MistakeError, ("patients.tags (VARCHAR[])", "expected a list")),
    "a list of numbers for VARCHAR[]": (given(tags=[1]), MistakeError, ("patients.tags", "expected text, got int")),
    "text for UUID": (given(badge="not a uuid"), MistakeError, ("patients.badge (UUID)", "uuid.UUID(value)")),
    "text for BLOB": (given(photo="x"), MistakeError, ("patients.photo (BLOB)", "value.encode()")),
    "text for TIME": (given(rest="12:00"), MistakeError, ("patients.rest (TIME)", "time.fromisoformat")),
    "a time with a zone": (
        given(rest=dt.time(12, tzinfo=dt.UTC)),
        MistakeError,
        ("patients.rest", "without a time zone"),
    ),
    "number for INTERVAL": (given(stay=60), MistakeError, ("patients.stay (INTERVAL)", "timedelta(seconds=value)")),
    "text for DOUBLE": (given(heat="38.5"), MistakeError, ("patients.heat (DOUBLE)", "float(value)")),
    "complex for DOUBLE": (given(heat=1j), MistakeError, ("patients.heat", "expected a number, got complex")),
    # reading by key
    "get: text as a key": (
        lambda txn, _: txn.get("patients", "1"),
        MistakeError,
        ("patients.id (BIGINT)", "int(value)"),
    ),
    "get: float as a key": (lambda txn, _: txn.get("patients", 1.5), MistakeError, ("patients.id", "got float")),
    "get: a row as a key": (
        lambda txn, batch: txn.get("patients", batch[0]),
        MistakeError,
        ("patients.id", "can't take"),
    ),
    "get: a tuple as a key": (lambda txn, _: txn.get("patients", (1,)), MistakeError, ("patients.id", "got tuple")),
    "get: a list as a key": (lambda txn, _: txn.get("patients", [1]), MistakeError, ("patients.id", "got list")),
    "get: half a key": (lambda txn, _: txn.get("beds", "A"), MistakeError, ("the tuple (ward, number)", "'A'")),
    "get: too long a key": (lambda txn, _: txn.get("beds", ("A", 1, 2)), MistakeError, ("the tuple (ward, number)",)),
    "get: a list for a long key": (
        lambda txn, _: txn.get("beds", ["A", 1]),
        MistakeError,
        ("the tuple (ward, number)",),
    ),
    "get: a key in another order": (lambda txn, _: txn.get("beds", (1, "A")), MistakeError, ("beds.ward (VARCHAR)",)),
    "get: a dict as a key": (lambda txn, _: txn.get("beds", {"ward": "A", "number": 1}), MistakeError, ("the tuple",)),
    "get: no key": (lambda txn, _: txn.get("patients"), TypeError, ("missing 1 required positional argument: 'key'",)),
    "get: a keyword": (lambda txn, _: txn.get("patients", id=1), TypeError, ("unexpected keyword argument 'id'",)),
    # update
    "update: a misspelt column": (
        lambda txn, _: txn.update("patients", 0, nam="x"),
        MistakeError,
        ("no column 'nam'", "did you mean 'name'"),
    ),
    "update: a misspelt column of no row": (
        lambda txn, _: txn.update("patients", 99, nam="x"),
        MistakeError,
        ("did you mean 'name'",),
    ),
    "update: the key": (
        lambda txn, _: txn.update("patients", 0, id=2),
        MistakeError,
        ("patients.id is part of the primary key", "delete the row and insert"),
    ),
    "update: a wrong type": (
        lambda txn, _: txn.update("patients", 0, age="x"),
        MistakeError,
        ("patients.age (SMALLINT)",),
    ),
    "update: a wrong key": (lambda txn, _: txn.update("patients", "0", age=1), MistakeError, ("patients.id (BIGINT)",)),
    "update: a function": (
        lambda txn, _: txn.update("patients", 0, age=lambda row: 1),
        MistakeError,
        ("patients.age", "got function"),
    ),
    "update_each: a misspelt column": (
        lambda txn, _: txn.update_each("patients", [0], aeg=lambda row: 1),
        MistakeError,
        ("no column 'aeg'", "did you mean 'age'"),
    ),
    "update_each: a wrong key": (
        lambda txn, _: txn.update_each("patients", ["0"], age=1),
        MistakeError,
        ("patients.id (BIGINT)", "'0'"),
    ),
    "update_each: one key instead of keys": (
        lambda txn, _: txn.update_each("patients", 0, age=1),
        TypeError,
        ("'int' object is not iterable",),
    ),
    # delete, scan, count
    "delete: a wrong key": (lambda txn, _: txn.delete("patients", "0"), MistakeError, ("patients.id (BIGINT)", "'0'")),
    "delete: half a key": (lambda txn, _: txn.delete("beds", "A"), MistakeError, ("the tuple (ward, number)",)),
    "delete_where: a misspelt column": (
        lambda txn, _: txn.delete_where("beds", wrd="A"),
        MistakeError,
        ("no column 'wrd'", "did you mean 'ward'"),
    ),
    "scan: a misspelt column": (
        lambda txn, _: txn.scan("beds", patient=1),
        MistakeError,
        ("no column 'patient'", "did you mean 'patient_id'"),
    ),
    "scan: a wrong type": (lambda txn, _: txn.scan("beds", number="1"), MistakeError, ("beds.number (INTEGER)", "'1'")),
    "count: a misspelt column": (lambda txn, _: txn.count("beds", numbers=1), MistakeError, ("did you mean 'number'",)),
    "count: a wrong type": (lambda txn, _: txn.count("beds", number="1"), MistakeError, ("beds.number (INTEGER)",)),
    # tables that were not declared
    "a misspelt table": (lambda txn, _: txn.get("patient", 1), AccessError, ("'patient'", "did you mean 'patients'")),
    "a table that does not exist": (
        lambda txn, _: txn.scan("xyzzy"),
        AccessError,
        ("'xyzzy', which does not exist", "beds"),
    ),
    "reading an undeclared table": (
        lambda txn, _: txn.get("hidden", 1),
        AccessError,
        ("procedure watch uses table hidden", "reads=['hidden']"),
    ),
    "writing an undeclared table": (lambda txn, _: txn.insert("hidden", (1,)), AccessError, ("writes=['hidden']",)),
    "writing a table declared for reading": (
        lambda txn, _: txn.insert("drugs", (1, "x")),
        AccessError,
        ("declared only to read it", "writes=['drugs']"),
    ),
    "deleting from a table declared for reading": (
        lambda txn, _: txn.delete("drugs", 1),
        AccessError,
        ("writes=['drugs']",),
    ),
    "a stream as a table": (lambda txn, _: txn.get("vitals", 1), AccessError, ("'vitals'", "does not exist")),
    "no name at all": (lambda txn, _: txn.get(None, 1), AccessError, ("None", "does not exist")),
    # emit
    "emit: a misspelt column": (
        lambda txn, _: txn.emit("alarms", patient_id=1, reasn="x"),
        MistakeError,
        ("alarms has no column 'reasn'", "did you mean 'reason'"),
    ),
    "emit: a required column left out": (
        lambda txn, _: txn.emit("alarms", patient_id=1),
        MistakeError,
        ("alarms.reason is missing", "give it a value"),
    ),
    "emit: too few values": (lambda txn, _: txn.emit("alarms", [(1, "x")]), MistakeError, ("3 columns", "got 2")),
    "emit: too many values": (
        lambda txn, _: txn.emit("alarms", [(1, "x", 2, 3)]),
        MistakeError,
        ("3 columns", "got 4"),
    ),
    "emit: a bare row": (
        lambda txn, _: txn.emit("alarms", (1, "x", 2)),
        MistakeError,
        ("wrap a single row in a list",),
    ),
    "emit: text": (lambda txn, _: txn.emit("alarms", "help"), MistakeError, ("takes a list of rows", "'help'")),
    "emit: a number": (lambda txn, _: txn.emit("alarms", 1), MistakeError, ("takes a list of rows, got 1",)),
    "emit: rows of another stream": (
        lambda txn, batch: txn.emit("alarms", batch),
        MistakeError,
        ("3 columns", "got 2"),
    ),
    "emit: a wrong type": (
        lambda txn, _: txn.emit("alarms", [(1, "x", "high")]),
        MistakeError,
        ("alarms.level (SMALLINT)", "int(value)"),
    ),
    "emit: a wrong type in the second row": (
        lambda txn, _: txn.emit("alarms", [(1, "x", 1), ("2", "y", 1)]),
        MistakeError,
        ("alarms.patient_id (BIGINT)", "'2'"),
    ),
    "emit: a misspelt stream": (
        lambda txn, _: txn.emit("alarm", patient_id=1, reason="x"),
        AccessError,
        ("emits to 'alarm'", "did you mean 'alarms'"),
    ),
    "emit: to an input": (lambda txn, _: txn.emit("vitals", [(1, 2)]), AccessError, ("outputs=['vitals']",)),
    "emit: to a stream of others": (lambda txn, _: txn.emit("unused", [(1,)]), AccessError, ("outputs=['unused']",)),
    "emit: to a table": (lambda txn, _: txn.emit("beds", [("A", 1, 2)]), AccessError, ("not one of its outputs",)),
    # windows
    "window: a misspelt name": (
        lambda txn, _: txn.window("recnt"),
        AccessError,
        ("no window 'recnt'", "did you mean 'recent'"),
    ),
    "window: a stream's name": (
        lambda txn, _: txn.window("vitals"),
        AccessError,
        ("no window 'vitals'", "it has recent"),
    ),
    # rows and the transaction itself
    "a misspelt column of a row": (
        lambda txn, batch: batch[0].pluse,
        AttributeError,
        ("no attribute 'pluse'", "did you mean 'pulse'"),
    ),
    "a column that a row does not have": (
        lambda txn, batch: batch[0].name,
        AttributeError,
        ("its columns are patient_id",),
    ),
    "a misspelt method": (lambda txn, _: txn.isnert("beds", ("A", 1, 2)), AttributeError, ("did you mean 'insert'",)),
    "a method of the engine": (lambda txn, _: txn.query("SELECT 1"), AttributeError, ("no attribute 'query'",)),
    "a row that is not there": (lambda txn, _: txn.get("patients", 99).name, AttributeError, ("NoneType", "name")),
    "a place that a row does not have": (lambda txn, batch: batch[0][7], IndexError, ("index out of range",)),
    "changing a row": (lambda txn, batch: setattr(batch[0], "pulse", 1), AttributeError, ("can't set attribute",)),
    "changing the batch": (lambda txn, batch: batch.append((1, 2)), AttributeError, ("append",)),
    "a plain bug": (lambda txn, _: 1 / 0, ZeroDivisionError, ("division",)),
    "a name that does not exist": (lambda txn, _: nonsense, NameError, ("nonsense",)),  # type: ignore[name-defined]  # noqa: F821
    # SQL
    "SQL: it does not parse": (sql("SELEC * FROM patients"), StatementError, ("SELEC",)),
    "SQL: a misspelt table": (sql("SELECT * FROM patiens"), StatementError, ("patiens", "patients")),
    "SQL: a misspelt column": (sql("SELECT nam FROM patients"), StatementError, ("nam", "name")),
    "SQL: a misspelt column in WHERE": (
        sql("SELECT id FROM patients WHERE nam = 'x'"),
        StatementError,
        ("nam", "name"),
    ),
    "SQL: a misspelt function": (sql("SELECT lenght(name) FROM patients"), StatementError, ("lenght", "length")),
    "SQL: an unknown column in INSERT": (
        sql("INSERT INTO beds (ward, nmber) VALUES ('A', 1)"),
        StatementError,
        ("nmber", "number"),
    ),
    "SQL: too few values": (sql("INSERT INTO beds VALUES ('A', 1)"), StatementError, ("3 columns", "2 values")),
    "SQL: too many values": (sql("INSERT INTO beds VALUES ('A', 1, 2, 3)"), StatementError, ("3 columns", "4 values")),
    "SQL: a required column left out": (
        sql("INSERT INTO patients (id) VALUES (?)", 1),
        StatementError,
        ("no value for name of patients", "add it to the columns"),
    ),
    "SQL: a required column left out of a SELECT": (
        sql("INSERT INTO patients (id) SELECT patient_id FROM vitals"),
        StatementError,
        ("no value for name of patients",),
    ),
    "SQL: text for a number": (
        sql("INSERT INTO beds VALUES ('A', 'one', 1)"),
        StatementError,
        ("convert string 'one' to INT32",),
    ),
    "SQL: text for a number in SET": (sql("UPDATE beds SET number = 'one'"), StatementError, ("beds.number", "'one'")),
    "SQL: text for a number from a SELECT": (
        sql("INSERT INTO beds SELECT 'A', 'one', patient_id FROM vitals"),
        StatementError,
        ("beds.number", "'one'"),
    ),
    "SQL: a parameter of a wrong type": (
        sql("INSERT INTO beds VALUES (?, ?, ?)", "A", "1", 2),
        MistakeError,
        ("beds.number (INTEGER)", "int(value)"),
    ),
    "SQL: a parameter of a wrong type in SET": (
        sql("UPDATE beds SET patient_id = ? WHERE ward = 'A'", "x"),
        MistakeError,
        ("beds.patient_id (BIGINT)",),
    ),
    "SQL: a parameter of a wrong type in a SELECT": (
        sql("INSERT INTO beds SELECT 'A', ?, patient_id FROM vitals", "one"),
        MistakeError,
        ("beds.number (INTEGER)", "'one'"),
    ),
    "SQL: too few parameters": (sql("SELECT * FROM beds WHERE ward = ?"), StatementError, ("takes 1 values", "got 0")),
    "SQL: too many parameters": (sql("SELECT 1", 2), StatementError, ("takes 0 values", "got 1")),
    "SQL: parameters by name": (sql("SELECT $ward", wrd="A"), StatementError, ("'ward'", "'wrd'")),
    "SQL: a mixture of parameters": (sql("SELECT ?, $1", 1), StatementError, ("not a mixture",)),
    "SQL: a parameter that is no value": (sql("SELECT ?", object()), StatementError, ("object",)),
    "SQL: an undeclared table": (sql("SELECT * FROM hidden"), AccessError, ("hidden", "reads=['hidden']")),
    "SQL: writing a table declared for reading": (sql("DELETE FROM drugs"), AccessError, ("writes=['drugs']",)),
    "SQL: a stream of others": (sql("SELECT * FROM unused"), AccessError, ("unused", "not one of its inputs")),
    "SQL: DDL": (sql("DROP TABLE beds"), StatementError, ("DROP",)),
    "SQL: two statements": (sql("SELECT 1; SELECT 2"), StatementError, ("one statement",)),
    "SQL: COMMIT": (sql("COMMIT"), StatementError, ("COMMIT",)),
    "SQL: a file": (sql("SELECT * FROM 'x.csv'"), StatementError, ("x.csv",)),
    "SQL: nothing": (sql(""), StatementError, ("expected one statement, got 0",)),
    "SQL: not text": (lambda txn, _: txn.execute(5), StatementError, ("SQL text or SQLAlchemy Core, got int",)),
    "SQL: a sum over text": (sql("SELECT sum(name) FROM patients"), StatementError, ("sum",)),
}


@pytest.mark.parametrize("mistake", IN_PROCEDURES)
def test_in_a_procedure_it_halts_with_the_place_and_the_rows(mistake: str, engine: Engine) -> None:
    body, kind, words = IN_PROCEDURES[mistake]
    todo.append(body)
    number = len(todo)
    ticket = engine.push("vitals", [(number, 60), (number, 61)])
    halts = engine.query("SELECT dataflow, error, rows FROM tidegate.halted").rows
    if halts:
        engine.skip("watch")
    assert isinstance(ticket.error, ProcedureFailed), ticket.error
    assert isinstance(ticket.error.__cause__, kind), repr(ticket.error.__cause__)
    for word in ("procedure watch raised", "test_mistakes.py", *words):
        assert word in str(ticket.error)
    assert "test_mistakes.py" in ticket.error.trace
    (halted,) = halts
    assert halted.error == str(ticket.error)
    assert json.loads(halted.rows) == [{"patient_id": number, "pulse": 60}, {"patient_id": number, "pulse": 61}]
    assert engine.journal.dead_letters[-1].rows == halted.rows
    assert not engine.journal.aborts
    assert engine.query("SELECT count(*) FROM patients").scalar() == 1, "and nothing of it is stored"


DOOR: dict[str, tuple[Callable[[Engine], Any], type[Exception], tuple[str, ...]]] = {
    "push: a misspelt column": (
        lambda e: e.push("vitals", [{"patient_id": 1, "puls": 60}]),
        DataError,
        ("vitals has no column 'puls'", "did you mean 'pulse'"),
    ),
    "push: a required column left out": (lambda e: e.push("vitals", [{"pulse": 1}]), DataError, ("vitals.patient_id",)),
    "push: too few values": (lambda e: e.push("vitals", [(1,)]), DataError, ("2 columns (patient_id, pulse)", "got 1")),
    "push: too many values": (lambda e: e.push("vitals", [(1, 2, 3)]), DataError, ("2 columns", "got 3")),
    "push: text for a number": (lambda e: e.push("vitals", [("1", 2)]), DataError, ("vitals.patient_id", "int(value)")),
    "push: out of range": (
        lambda e: e.push("vitals", [(1, 2**40)]),
        DataError,
        ("vitals.pulse", "out of range for INTEGER"),
    ),
    "push: NULL": (lambda e: e.push("vitals", [(None, 2)]), DataError, ("vitals.patient_id is NOT NULL",)),
    "push: a bare row": (lambda e: e.push("vitals", (1, 2)), DataError, ("wrap a single row in a list",)),
    "push: a dict": (lambda e: e.push("vitals", {"patient_id": 1}), DataError, ("wrap a single row in a list",)),
    "push: text": (lambda e: e.push("vitals", "1,2"), DataError, ("takes a list of rows, got str",)),
    "push: a number": (lambda e: e.push("vitals", 5), DataError, ("takes a list of rows, got int",)),
    "push: a misspelt stream": (
        lambda e: e.push("vital", [(1, 2)]),
        DeclarationError,
        ("'vital'", "did you mean 'vitals'"),
    ),
    "push: an interior stream": (
        lambda e: e.push("alarms", [(1, "x", 2)]),
        TidegateError,
        ("alarms is an interior stream", "vitals"),
    ),
    "push: a table": (lambda e: e.push("beds", [("A", 1, 2)]), DeclarationError, ("no border stream 'beds'",)),
    "push: a batch-id that is text": (lambda e: e.push("vitals", [(1, 2)], "7"), BatchError, ("whole number", "'7'")),
    "push: an offset without a source": (
        lambda e: e.push("vitals", [(1, 2)], offset=3, after=2),
        BatchError,
        ("pass source=",),
    ),
    "push: a source that is a number": (
        lambda e: e.push("vitals", [(1, 2)], source=5, offset=1),
        DataError,
        ("text", "5"),
    ),
    "feed: rows that are text": (lambda e: e.feed("vitals", "abc"), DataError, ("iterable of rows, got str",)),
    "feed: size 0": (
        lambda e: e.feed("vitals", [(1, 2)], size=0),
        TidegateError,
        ("size is a positive whole number", "0"),
    ),
    "feed: a wrong row": (lambda e: e.feed("vitals", [("x", 2)]), DataError, ("vitals.patient_id", "'x'")),
    "call: a misspelt procedure": (
        lambda e: e.call("admitt", 1),
        DeclarationError,
        ("'admitt'", "did you mean 'admit'"),
    ),
    "call: a streaming procedure": (lambda e: e.call("watch"), TidegateError, ("streaming procedure", "push there")),
    "call: no arguments": (lambda e: e.call("admit"), DataError, ("admit(id, name) got the wrong arguments", "'id'")),
    "call: too many arguments": (lambda e: e.call("admit", 1, 2, 3), DataError, ("admit(id, name)", "too many")),
    "call: a misspelt argument": (lambda e: e.call("admit", 1, nam="x"), DataError, ("admit(id, name)", "'nam'")),
    "call: a mistake in its code": (
        lambda e: e.call("admit", 1),
        ProcedureFailed,
        ("procedure admit raised MistakeError", "did you mean 'name'", "test_mistakes.py"),
    ),
    "query: a misspelt table": (lambda e: e.query("SELECT * FROM bed"), StatementError, ("bed", "beds")),
    "query: a misspelt system view": (
        lambda e: e.query("SELECT * FROM tidegate.abort"),
        DeclarationError,
        ("did you mean 'tidegate.aborts'",),
    ),
    "query: a change": (lambda e: e.query("DELETE FROM beds"), StatementError, ("only reads", "engine.call")),
    "resume: what is not halted": (lambda e: e.resume("watch"), DeclarationError, ("no halted dataflow 'watch'",)),
    "skip: what is not halted": (lambda e: e.skip("watch"), DeclarationError, ("skip: there is no halted dataflow",)),
    "subscribe: a misspelt stream": (lambda e: e.subscribe("alarm"), DeclarationError, ("did you mean 'alarms'",)),
    "subscribe: a border stream": (lambda e: e.subscribe("vitals"), DeclarationError, ("no interior stream 'vitals'",)),
    "advance: no window": (lambda e: e.advance("unused", NOW), TidegateError, ("no window over event time", "on=")),
    "plan: a misspelt window": (lambda e: e.plan("watch.recnt"), DeclarationError, ("'watch.recnt'",)),
}


@pytest.mark.parametrize("mistake", DOOR)
def test_at_the_door_nothing_is_accepted(mistake: str, engine: Engine) -> None:
    act, kind, words = DOOR[mistake]
    before = engine.sequence
    with pytest.raises(kind) as caught:
        act(engine)
    assert isinstance(caught.value, TidegateError)
    for word in words:
        assert word in str(caught.value)
    assert engine.sequence == before + (kind is ProcedureFailed), "a call is accepted, and its caller gets the error"
    assert not engine.halted()


def body(txn: Any, *batches: Any) -> None:
    """A procedure that does nothing."""


def procedure(**declared: Any) -> Made:
    return lambda app: app.procedure(**declared)(body)


def table(ddl: str, **declared: Any) -> Made:
    return lambda app: app.table(ddl, **declared)


def both(*made: Made) -> Made:
    return lambda app: [one(app) for one in made]


DECLARED: dict[str, tuple[Made, tuple[str, ...]]] = {
    "table: it does not parse": (
        table("CREATE TABEL x (id BIGINT PRIMARY KEY)"),
        ("DuckDB refuses this DDL", "TABEL", "LINE 1"),
    ),
    "table: no primary key": (
        table("CREATE TABLE x (id BIGINT)"),
        ("table x has no PRIMARY KEY", "every table needs one"),
    ),
    "table: twice": (table("CREATE TABLE beds (id BIGINT PRIMARY KEY)"), ('"beds" already exists', "choose another")),
    "table: an unknown type": (table("CREATE TABLE x (id BIGNUMBER PRIMARY KEY)"), ("BIGNUMBER",)),
    "table: a type that is not supported": (
        table("CREATE TABLE x (id HUGEINT PRIMARY KEY)"),
        ("HUGEINT", "BIGINT or DECIMAL"),
    ),
    "table: a time with a zone": (table("CREATE TABLE x (id BIGINT PRIMARY KEY, t TIMESTAMPTZ)"), ("TIMESTAMP",)),
    "table: a float as key": (
        table("CREATE TABLE x (id DOUBLE PRIMARY KEY)"),
        ("x.id is DOUBLE", "can't be part of a key"),
    ),
    "table: an unknown partition column": (
        table("CREATE TABLE x (id BIGINT PRIMARY KEY)", partition_by="ward"),
        ("ward",),
    ),
    "table: a partition outside the key": (
        table("CREATE TABLE x (id BIGINT PRIMARY KEY, ward VARCHAR)", partition_by="ward"),
        ("partitioned by ward", "Add the partition columns to the key"),
    ),
    "table: a CHECK over a column that does not exist": (
        table("CREATE TABLE x (id BIGINT PRIMARY KEY, CHECK (pulse > 0))"),
        ("pulse",),
    ),
    "table: not a table": (table("SELECT 1"), ("CREATE TABLE",)),
    "table: two statements": (
        table("CREATE TABLE x (id BIGINT PRIMARY KEY); CREATE TABLE y (id BIGINT PRIMARY KEY)"),
        ("one",),
    ),
    "stream: twice": (lambda app: app.stream("vitals", "n BIGINT"), ("vitals",)),
    "stream: the name of a table": (lambda app: app.stream("beds", "n BIGINT"), ("beds", "table")),
    "stream: no columns": (lambda app: app.stream("x", ""), ("x",)),
    "stream: an unknown type": (lambda app: app.stream("x", "n BIGNUMBER"), ("BIGNUMBER",)),
    "stream: a misspelt key": (
        lambda app: app.stream("x", "patient_id BIGINT", border=True, key="patient"),
        ("patient", "patient_id"),
    ),
    "stream: a name with a space": (lambda app: app.stream("my stream", "n BIGINT"), ("my stream",)),
    "stream: a deadline without a default": (
        lambda app: app.stream("x", "n BIGINT", border=True, deadline_s=5),
        ("deadline_s and default go together",),
    ),
    "stream: a default that does not fit": (
        lambda app: app.stream("x", "n BIGINT", border=True, deadline_s=5, default=[{"m": 1}]),
        ("its default does not fit", "no column 'm'"),
    ),
    "stream: a deadline inside": (
        lambda app: app.stream("x", "n BIGINT", deadline_s=5, default=[{"n": 1}]),
        ("only a border stream can have a deadline",),
    ),
    "procedure: a misspelt input": (procedure(inputs="vital"), ("'vital'", "did you mean 'vitals'")),
    "procedure: a misspelt output": (procedure(inputs="vitals", outputs=["alarm"]), ("did you mean 'alarms'",)),
    "procedure: a misspelt table": (procedure(inputs="vitals", writes=["bed"]), ("'bed'", "did you mean 'beds'")),
    "procedure: a table as input": (procedure(inputs="beds"), ("beds",)),
    "procedure: a border stream as output": (procedure(inputs="vitals", outputs=["unused"]), ("unused",)),
    "procedure: the same name twice": (both(procedure(), procedure()), ("body",)),
    "procedure: outputs without inputs": (procedure(outputs=["alarms"]), ("alarms",)),
    "procedure: its own input as output": (
        lambda app: (app.stream("loop", "n BIGINT"), procedure(inputs="loop", outputs=["loop"])(app)),
        ("loop",),
    ),
    "procedure: an unknown policy": (
        procedure(inputs="vitals", on_failure="ignore"),
        ("on_failure", "'ignore'", "halt"),
    ),
    "procedure: negative retries": (procedure(inputs="vitals", retries=-1), ("retries", "-1")),
    "procedure: a deadline that is text": (procedure(inputs="vitals", deadline_s="5"), ("deadline_s", "'5'")),
    "procedure: prefetch of an undeclared table": (
        procedure(inputs="vitals", prefetch={"beds": "patient_id"}),
        ("beds",),
    ),
    "procedure: prefetch of a misspelt column": (
        procedure(inputs="vitals", reads=["hidden"], prefetch={"hidden": "patient"}),
        ("patient",),
    ),
    "procedure: a partition of a table without any": (
        procedure(inputs="vitals", writes=[partition("beds")]),
        ("beds",),
    ),
    "procedure: read and written": (
        procedure(inputs="vitals", reads=[partition("patients")], writes=["patients"]),
        ("procedure body", "patients twice", "declare the wider access once"),
    ),
    "procedure: either of one": (procedure(inputs=either("vitals")), ("either", "vitals")),
    "procedure: no function": (lambda app: app.procedure(inputs="vitals")(5), ("5",)),
    "procedure: a lambda": (lambda app: app.procedure(inputs="vitals")(lambda txn, _: None), ("has no name", "def")),
    "window: over a stream it does not read": (
        procedure(inputs="vitals", windows={"w": window("unused", count=3)}),
        ("unused",),
    ),
    "window: neither count nor time": (lambda app: window("vitals"), ("window",)),
    "window: of size 0": (lambda app: window("vitals", count=0), ("0",)),
    "window: a slide of 0": (lambda app: window("vitals", count=3, slide=0), ("slide", "0")),
    "window: by a misspelt column": (
        procedure(inputs="vitals", windows={"w": window("vitals", time="5s", on="at")}),
        ("at",),
    ),
    "window: a duration that is none": (lambda app: window("vitals", time="five seconds"), ("five seconds",)),
    "join: of a stream with itself": (
        lambda app: join("vitals", "vitals", left_time="at", right_time="at", within="5s"),
        ("vitals",),
    ),
    "trigger: on a misspelt stream": (
        lambda app: app.trigger("vital", "INSERT INTO hidden SELECT patient_id FROM vitals"),
        ("vital", "did you mean 'vitals'"),
    ),
    "trigger: SQL that does not bind": (
        lambda app: app.trigger("vitals", "INSERT INTO hidden SELECT patient FROM vitals"),
        ("patient", "patient_id"),
    ),
    "trigger: a SELECT": (lambda app: app.trigger("vitals", "SELECT 1"), ("a trigger changes tables", "SELECT")),
    "nested: a misspelt member": (
        both(procedure(inputs="vitals"), lambda app: app.nested("body", "bdy", name="n")),
        ("nested transaction n", "'bdy'", "did you mean 'body'"),
    ),
    "nested: one member": (
        both(procedure(inputs="vitals"), lambda app: app.nested("body", name="n")),
        ("nested transaction n",),
    ),
    "sql: it does not bind": (lambda app: app.sql("SELECT nam FROM patients"), ("nam", "name")),
    "app: a border stream that nobody reads": (lambda app: tidegate.open(app), ("read by no procedure", "lost")),
    "open: a misspelt setting": (
        lambda app: tidegate.open(app, exeutor="serial"),
        ("'exeutor'", "did you mean 'executor'"),
    ),
    "open: an unknown executor": (
        lambda app: tidegate.open(app, executor="parallel"),
        ("executor", "'parallel'", "threads"),
    ),
    "open: no workers": (lambda app: tidegate.open(app, executor="threads", workers=0), ("workers", "0")),
    "app: an unknown mode": (lambda app: App("x", recovery="strange"), ("recovery", "'strange'", "strong")),
}


def opened(app: App, made: Made) -> None:
    made(app)
    app.graph()


@pytest.mark.parametrize("mistake", DECLARED)
def test_in_a_declaration_it_is_refused(mistake: str) -> None:
    made, words = DECLARED[mistake]
    app = base()
    with pytest.raises(TidegateError) as caught:
        opened(app, made)
    for word in words:
        assert word in str(caught.value)


def test_there_are_two_hundred() -> None:
    assert len(IN_PROCEDURES) + len(DOOR) + len(DECLARED) >= 200
