"""Close and reopen: everything that was accepted is still there, whatever it waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import Aborted, App, Batch, BatchError, Engine, TidegateError, Transaction

Make = Callable[..., Engine]
Flow = Callable[..., App]


def everything(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(sql)]


def reopened(engine_of: Make, engine: Engine, path: Path) -> Engine:
    engine.close()
    return engine_of(engine.app, path)


def test_tables_windows_and_ids(engine_of: Make, counter: App, tmp_path: Path) -> None:
    engine = engine_of(counter, tmp_path)
    engine.push("events", [("a", 1)], 10).result()
    engine.push("events", [("b", 2)], 20).result()
    engine = reopened(engine_of, engine, tmp_path)
    assert everything(engine, "SELECT * FROM totals ORDER BY name") == [("a", 1), ("b", 2)]
    assert engine.push("events", [("b", 2)], 20).duplicate
    with pytest.raises(BatchError):
        engine.push("events", [("b", 3)], 15)
    assert engine.push("events", [("c", 3)]).batch_ids == [21]
    engine.run_until_idle()
    windows = everything(engine, "SELECT procedure, name, held, fired FROM tidegate.windows")
    assert windows == [("count", "recent", 3, 1)]
    assert engine.sequence == 3


def test_running_on_after_reopening_is_as_if_never_closed(engine_of: Make, counter: App, tmp_path: Path) -> None:
    source = [[(name, n)] for n, name in enumerate("abcabbcabad", start=1)]
    once, often = engine_of(counter, tmp_path / "once"), engine_of(counter, tmp_path / "often")
    for number, batch in enumerate(source):
        once.push("events", batch).result()
        often.push("events", batch).result()
        if number % 3 == 2:
            often = reopened(engine_of, often, tmp_path / "often")
    for sql in ("SELECT * FROM totals ORDER BY name", "SELECT * FROM notes ORDER BY id"):
        assert everything(once, sql) == everything(often, sql)
    assert once.sequence == often.sequence


def test_aborts_and_dead_letters(engine_of: Make, flow: Flow, tmp_path: Path) -> None:
    def body(txn: Transaction, events: Batch) -> None:
        if events[0].n == 1:
            txn.abort("no ones")
        raise ValueError("broken")

    engine = engine_of(flow(body, on_failure="dead_letter"), tmp_path)
    engine.push("events", [(1,)])
    engine.push("events", [(2,)])
    engine.run_until_idle()
    before = [everything(engine, f"SELECT * FROM tidegate.{view}") for view in ("aborts", "dead_letters")]
    assert [len(rows) for rows in before] == [1, 1]
    engine = reopened(engine_of, engine, tmp_path)
    after = [everything(engine, f"SELECT * FROM tidegate.{view}") for view in ("aborts", "dead_letters")]
    assert before == after
    assert engine.push("events", [(1,)]).batch_ids == [3], "an aborted batch counts as processed"


@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "replay"])
def test_answers_are_kept(
    engine_of: Make, ward: App, tmp_path: Path, killed: Callable[[Engine], None], saved: bool
) -> None:
    engine = engine_of(ward, tmp_path)
    engine.push("decisions", [(2, False)], 1)  # before it is asked
    for patient in (1, 2):
        engine.push("orders", [(patient, "risky A")], 1)
    engine.run_until_idle()
    (question,) = engine.questions()
    engine.push("decisions", [(1, True)], 1)
    engine.run_until_idle()
    asked = "SELECT key, rows, digest, outcome FROM tidegate.answers ORDER BY key"
    first, second = everything(engine, asked)
    assert first[0::2] == ("1", question.digest)
    assert '"patient":1' in first[1]
    assert first[3] == "committed"
    assert second[0::2] == ("2", None), "answered before it was asked"
    before = everything(engine, "SELECT * FROM tidegate.answers")
    if saved:
        engine.close()
    else:
        killed(engine)
    assert everything(engine_of(ward, tmp_path), "SELECT * FROM tidegate.answers") == before


def test_a_waiting_person_is_asked_again(engine_of: Make, ward: App, tmp_path: Path) -> None:
    engine = engine_of(ward, tmp_path)
    engine.push("orders", [(1, "aspirin"), (1, "risky A")], 1)
    engine.push("orders", [(1, "ibuprofen")], 2)
    engine.push("orders", [(2, "aspirin")], 1)
    engine.push("decisions", [(3, True)], 7)  # early
    engine.run_until_idle()
    engine = reopened(engine_of, engine, tmp_path)
    engine.run_until_idle()
    waiting = everything(engine, "SELECT unit, batch_id, key, reason FROM tidegate.executions ORDER BY position")
    assert waiting == [
        ("prescribing", 1, "1", "waits for its batch on stream decisions"),
        ("prescribing", 2, "1", "waits for its turn behind position 1.0"),
    ]
    assert everything(engine, "SELECT * FROM meds") == [(2, "aspirin")]
    engine.push("decisions", [(1, True)], 1)
    engine.push("orders", [(3, "risky B")], 7)
    engine.run_until_idle()
    assert everything(engine, "SELECT * FROM meds ORDER BY ALL") == [
        (1, "aspirin"),
        (1, "ibuprofen"),
        (1, "risky A"),
        (2, "aspirin"),
        (3, "risky B"),
    ]
    assert engine.scheduler.idle


def test_the_deadline_of_a_waiting_person_holds_after_reopening(
    engine_of: Make, ward: App, tmp_path: Path, clock: Any
) -> None:
    engine = engine_of(ward, tmp_path)
    engine.push("orders", [(1, "risky A")], 1)
    engine.run_until_idle()
    engine = reopened(engine_of, engine, tmp_path)
    engine.run_until_idle()
    clock.advance(600)
    engine.push("orders", [(2, "aspirin")], 1).result()
    engine.run_until_idle()
    assert everything(engine, "SELECT reason FROM tidegate.aborts") == [("the doctor said no",)]


def test_a_halted_dataflow_stays_halted(engine_of: Make, flow: Flow, tmp_path: Path) -> None:
    broken = True

    def body(txn: Transaction, events: Batch) -> None:
        if broken:
            raise RuntimeError("down")
        txn.insert("t", (events[0].n, "x"))

    engine = engine_of(flow(body), tmp_path)
    for n in (1, 2):
        engine.push("events", [(n,)])
    engine.run_until_idle()
    engine = reopened(engine_of, engine, tmp_path)
    engine.push("events", [(3,)])
    engine.push("others", [(9,)]).result()
    engine.run_until_idle()
    reasons = {row[0] for row in everything(engine, "SELECT reason FROM tidegate.executions")}
    assert reasons == {"is parked: its dataflow is halted in front of position 1.0"}
    broken = False
    engine.resume("work")
    engine.run_until_idle()
    assert everything(engine, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]


def test_what_was_queued_runs_after_reopening(open_engine: Make, counter: App, tmp_path: Path) -> None:
    engine = open_engine(counter, tmp_path, executor="manual")
    for n in (1, 2, 3):
        engine.push("events", [("a", n)])
    engine.step()
    engine.close()
    engine = open_engine(counter, tmp_path, executor="manual")
    engine.run_until_idle()
    assert everything(engine, "SELECT * FROM totals") == [("a", 6)]
    assert everything(engine, "SELECT * FROM notes ORDER BY id") == [(1, "a", 1), (2, "a", 3), (3, "a", 6)]


def test_half_of_a_join_is_kept(engine_of: Make, tmp_path: Path) -> None:
    app = App("join")
    app.table("CREATE TABLE t (id BIGINT PRIMARY KEY, a INTEGER, b INTEGER)")
    app.stream("left_in", "n INTEGER", border=True)
    app.stream("right_in", "n INTEGER", border=True)

    @app.procedure(inputs=["left_in", "right_in"], writes=["t"])
    def join(txn: Transaction, left_in: Batch, right_in: Batch) -> None:
        txn.insert("t", (left_in.id, left_in[0].n, right_in[0].n))

    engine = engine_of(app, tmp_path)
    engine.push("left_in", [(1,)], 5)
    engine = reopened(engine_of, engine, tmp_path)
    engine.push("right_in", [(2,)], 5).result()
    assert everything(engine, "SELECT * FROM t") == [(5, 1, 2)]


def test_another_apps_directory_is_refused(open_engine: Make, counter: App, ward: App, tmp_path: Path) -> None:
    open_engine(counter, tmp_path).close()
    with pytest.raises(TidegateError, match=r"app ward: the directory belongs to app 'counter'.*the right app"):
        tidegate.open(ward, tmp_path, executor="threads")
    open_engine(counter, tmp_path).push("events", [("a", 1)]).result()


def test_a_table_that_changed_is_refused(open_engine: Make, tmp_path: Path) -> None:
    def app(columns: str) -> App:
        app = App("changing")
        app.table(f"CREATE TABLE t (n BIGINT PRIMARY KEY{columns})")
        return app

    open_engine(app(", word INTEGER"), tmp_path).close()
    with pytest.raises(TidegateError, match=r"column t.word: it is stored as INTEGER, but declared as VARCHAR"):
        tidegate.open(app(", word VARCHAR"), tmp_path)
    open_engine(app(", word BIGINT"), tmp_path)


def test_a_procedure_that_is_gone_while_work_waits_for_it_is_named(
    open_engine: Make, ward: App, tmp_path: Path
) -> None:
    engine = open_engine(ward, tmp_path)
    engine.push("orders", [(1, "risky A")], 1)
    engine.close()
    changed = App("ward")
    for schema in ward.tables.values():
        columns = ", ".join(f"{c.name} {c.type.sql}{'' if c.nullable else ' NOT NULL'}" for c in schema.columns)
        ddl = f"CREATE TABLE {schema.name} ({columns}, PRIMARY KEY ({', '.join(schema.primary_key)}))"
        changed.table(ddl, partition_by=schema.partition_by)
    with pytest.raises(TidegateError, match=r"unit prescribing: it still waits with batch 1.*let it finish"):
        tidegate.open(changed, tmp_path)
    engine = open_engine(ward, tmp_path)
    engine.push("decisions", [(1, True)], 1)
    assert everything(engine, "SELECT * FROM meds") == [(1, "risky A")]


def test_a_path_that_is_a_file_is_refused(counter: App, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    with pytest.raises(TidegateError, match=r"file.*directory"):
        tidegate.open(counter, file)


def test_a_directory_is_open_once(open_engine: Make, counter: App, tmp_path: Path) -> None:
    engine = open_engine(counter, tmp_path)
    with pytest.raises(TidegateError, match=r"is open in"):
        tidegate.open(counter, tmp_path)
    engine.push("events", [("a", 1)]).result()


def test_memory_is_forgotten(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter)
    engine.push("events", [("a", 1)])
    engine.close()
    assert open_engine(counter).call("total", "a") == 0


def test_an_abort_after_reopening_undoes_all_of_the_nested_transaction(
    engine_of: Make, ward: App, tmp_path: Path
) -> None:
    engine = engine_of(ward, tmp_path)
    engine.push("orders", [(1, "aspirin"), (1, "risky A")], 1)
    engine.run_until_idle()
    engine = reopened(engine_of, engine, tmp_path)
    with pytest.raises(Aborted):
        engine.push("decisions", [(1, False)], 1).result()
    assert everything(engine, "SELECT * FROM meds") == everything(engine, "SELECT * FROM asked") == []
