"""Batches that come as columns: the same tables, windows, streams and log as of the same rows."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate
from tidegate import App, Batch, BatchError, DataError, Engine, Transaction, either, join, window
from tidegate import windows as w
from tidegate.errors import ProcedureFailed
from tidegate.offline.log_entries import entries
from tidegate.offline.verify import verify
from tidegate.storage.column_rows import ColumnRows

START = dt.datetime(2026, 1, 1)
READING = '"at" TIMESTAMP NOT NULL, sensor VARCHAR NOT NULL, value DOUBLE, n INTEGER'


def words(rows: w.Extent) -> str:
    return "".join(row.sensor for row in rows)


def make_app(key: str | None = None, recovery: Any = "weak") -> App:
    """Windows of every family of states, a join, SQL over the batch, and streams on."""
    app = App("columns", recovery=recovery)
    app.table("CREATE TABLE found (id BIGINT PRIMARY KEY, what VARCHAR, told VARCHAR)")
    app.stream("readings", READING, border=True, key=key)
    app.stream("others", READING, border=True, key=key)
    app.stream("passed", READING)
    app.stream("means", '"window" BIGINT, starts TIMESTAMP, ends TIMESTAMP, mean DOUBLE, spread DOUBLE')
    by = {} if key else {"by": "sensor"}
    windows = {
        "count": window("readings", count=4, slide=2, compute={"total": w.sum("value"), "rows": w.count()}, **by),
        "by_time": window("readings", time="4s", slide="1s", on="at", delay="1s", compute={"last": w.last("n")}, **by),
        "session": window("readings", session="2s", on="at", compute={"middle": w.median("value")}, **by),
        "whole": window("readings", count=3, slide=3, compute=w.whole(words, "words VARCHAR")),
        "plain": window("readings", count=3, slide=1),
        "mean": window("readings", time="2s", on="at", compute={"mean": w.mean("value"), "spread": w.stddev("value")}),
    }  # fmt: skip

    @app.procedure(inputs="readings", outputs=["passed", "means"], writes=["found"], windows=windows)
    def watch(txn: Transaction, readings: Batch) -> None:
        told = {name: [tuple(row) for row in txn.window(name).rows] for name in windows}
        told["late rows"] = [tuple(row) for row in txn.window("by_time").late]
        told["added"] = [tuple(row) for row in txn.window("plain").added + txn.window("count").added]
        told["rows"] = [tuple(row) for row in readings.rows] + readings.column("value")
        told["sql"] = [
            tuple(r) for r in txn.execute("SELECT sensor, sum(n) AS n FROM readings GROUP BY sensor ORDER BY 1")
        ]
        for what, rows in told.items():
            note(txn, what, rows)
        if any(row.n == 13 for row in readings):
            txn.abort("unlucky")
        txn.emit("passed", readings)
        txn.emit("means", txn.window("mean").results)

    pairs = join("readings", "others", on="sensor", left_time="at", right_time="at", within="1s", how="left")

    @app.procedure(inputs=either("readings", "others"), writes=["found"], windows={"pairs": pairs})
    def match(txn: Transaction, readings: Batch, others: Batch) -> None:
        note(txn, "pairs", [[tuple(row) for row in txn.window("pairs").results], len(readings), len(others)])

    @app.procedure(inputs="passed", writes=["found"])
    def take(txn: Transaction, passed: Batch) -> None:
        note(txn, "passed", [tuple(row) for row in passed])

    def note(txn: Transaction, what: str, rows: Any) -> None:
        place = txn.count("found") + 1
        txn.insert("found", (place, what, repr(rows)))

    return app


def reading(rng: random.Random, i: int) -> tuple[Any, ...]:
    at = START + dt.timedelta(seconds=i / 4 - rng.choice([0, 0, 0, 1, 3]))
    value = rng.choice([None, 0.0, -0.0, round(rng.gauss(0, 9), 2), float(i)])
    return at, rng.choice(["a", "b", "å"]), value, rng.choice([None, i, i, 13 if i % 9 == 0 else i])


def in_form(engine: Engine, stream: str, rows: list[Any], form: str) -> Any:
    if form == "rows":
        return rows
    relation = engine.app.streams[stream].relation
    table = ColumnRows.of_rows(relation, relation.conform_all(rows)).arrow
    return table if form == "columns" else table.to_reader()


def all_of(engine: Engine) -> Any:
    found = [tuple(row) for row in engine.query("SELECT id, what, told FROM found ORDER BY id")]
    states = [tuple(row) for row in engine.query("SELECT * EXCLUDE (bytes) FROM tidegate.windows ORDER BY ALL")]
    late = [tuple(row) for row in engine.query("SELECT * FROM tidegate.late_rows ORDER BY ALL")]
    aborts = [tuple(row) for row in engine.query("SELECT batch_id, reason, rows FROM tidegate.aborts ORDER BY ALL")]
    return found, states, late, aborts


def pushed(app: App, batches: list[tuple[str, list[Any]]], forms: list[str], path: Path | None = None) -> Any:
    emitted: list[Any] = []
    with tidegate.open(app, path, tune_process=False) as engine:
        heard = [engine.subscribe(name) for name in ("passed", "means")]
        for (stream, rows), form in zip(batches, forms, strict=True):
            engine.push(stream, in_form(engine, stream, rows, form))
        for subscription in heard:
            emitted += [(b.stream, b.id, b.key, repr(b.rows)) for b in subscription]
        return *all_of(engine), sorted(emitted, key=str)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([None, "sensor"]))
def test_results_do_not_depend_on_the_form(seed: int, key: str | None) -> None:
    rng = random.Random(seed)
    rows = [reading(rng, i) for i in range(rng.randrange(5, 60))]
    batches: list[tuple[str, list[Any]]] = []
    while rows:
        size = rng.choice([1, 2, 7, 40])
        batches.append((rng.choice(["readings", "readings", "others"]), rows[:size]))
        rows = rows[size:]
    mixed = [rng.choice(["rows", "columns", "reader"]) for _ in batches]
    plain = pushed(make_app(key), batches, ["rows"] * len(batches))
    assert pushed(make_app(key), batches, mixed) == plain
    assert pushed(make_app(key), batches, ["columns"] * len(batches)) == plain


@pytest.mark.parametrize(
    ("recovery", "key"), [("weak", None), ("weak", "sensor"), ("strong", None), ("effects", "sensor")]
)
def test_columns_survive_a_crash(tmp_path: Path, key: str | None, recovery: Any) -> None:
    rng = random.Random(3)
    rows = [reading(rng, i) for i in range(90)]
    with tidegate.open(make_app(key, recovery), tune_process=False) as plain:
        for low in range(0, 90, 30):
            plain.push("readings", rows[low : low + 30])
        wanted = all_of(plain)[:2]
    engine = tidegate.open(make_app(key, recovery), tmp_path / "db", tune_process=False)
    for low in range(0, 90, 30):
        engine.push("readings", in_form(engine, "readings", rows[low : low + 30], "columns"))
        if not low:
            engine.checkpoint()
    engine.durable.sync()  # type: ignore[union-attr]
    engine.abandon()
    with tidegate.open(make_app(key, recovery), tmp_path / "db", tune_process=False) as engine:
        assert all_of(engine)[:2] == wanted
    assert verify(make_app(key, recovery), tmp_path / "db").same
    logged = [entry for entry in entries(tmp_path / "db") if "rows" in entry]
    assert [row[2] for entry in logged for row in entry["rows"]] == [row[2] for row in rows]


@pytest.mark.parametrize("first", ["rows", "columns"])
@pytest.mark.parametrize("key", [None, "sensor"])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_batch_id_names_one_payload_in_either_form(
    tmp_path: Path, first: str, key: str | None, reopened: bool
) -> None:
    rng = random.Random(5)
    rows = [reading(rng, 4 * i + 1) for i in range(12)]
    other = [*rows[:-1], (*rows[-1][:3], 99)]
    again = "columns" if first == "rows" else "rows"
    engine = tidegate.open(make_app(key), tmp_path / "db", tune_process=False)
    assert not engine.push("readings", in_form(engine, "readings", rows, first), 7).duplicate
    engine.push("readings", in_form(engine, "readings", rows, "columns"), 8)
    if reopened:
        engine.durable.sync()  # type: ignore[union-attr]
        engine.abandon()
        engine = tidegate.open(make_app(key), tmp_path / "db", tune_process=False)
    with engine:
        for form in (first, again):
            assert engine.push("readings", in_form(engine, "readings", rows, form), 7).duplicate
            with pytest.raises(BatchError, match="accepted before with other rows"):
                engine.push("readings", in_form(engine, "readings", other, form), 7)


def test_a_refused_table_changes_nothing_and_names_the_value() -> None:
    with tidegate.open(make_app("sensor")) as engine:
        good = pa.table({"at": [START], "sensor": ["a"], "n": [1]})
        for bad, told in (
            (pa.table({"at": [START, START], "sensor": ["a", "b"], "n": [1, 2**40]}), "can't take 1099511627776"),
            (pa.table({"at": [START, None], "sensor": ["a", "b"]}), "readings.at is NOT NULL"),
            (pa.table({"at": [START, START], "sensor": ["a", None]}), "readings.sensor is NOT NULL"),
            (good.append_column("more", [[1]]), "no column 'more'"),
        ):
            with pytest.raises(DataError, match=told):
                engine.push("readings", bad)
        assert engine.sequence == 0
        assert engine.push("readings", good.slice(0, 0)).ids == ()


def test_a_nullable_key_is_refused_in_columns() -> None:
    app = App()
    app.stream("given", "k INTEGER, n INTEGER", border=True, key="k")

    @app.procedure(inputs="given")
    def ignore(txn: Transaction, given: Batch) -> None: ...

    with tidegate.open(app) as engine, pytest.raises(DataError, match="the stream's key and can't be NULL"):
        engine.push("given", pa.table({"k": [1, None], "n": [1, 2]}))


def test_a_procedure_sees_the_usual_rows_and_may_emit_columns() -> None:
    app = App()
    app.stream("given", "n INTEGER NOT NULL, word VARCHAR", border=True)
    app.stream("passed", "n INTEGER NOT NULL, word VARCHAR")
    seen: list[Any] = []

    @app.procedure(inputs="given", outputs="passed")
    def pass_on(txn: Transaction, given: Batch) -> None:
        seen.append((given.rows, list(given), given[0].word, len(given), repr(given), type(given.rows)))
        txn.emit("passed", given.to_arrow())
        txn.emit("passed", pd.DataFrame({"n": [7], "word": ["z"]}))

    with tidegate.open(app) as engine:
        passed = engine.subscribe("passed")
        engine.push("given", pa.table({"n": [1, 2], "word": ["a", None]})).result()
        engine.push("given", [(1, "a"), (2, None)]).result()
        one, other = passed
        assert one.rows == other.rows == ((1, "a"), (2, None), (7, "z"))
    assert seen[0][:4] == seen[1][:4]
    assert seen[0][5] is seen[1][5] is tuple
    assert seen[0][4] == "<Batch given id=1 2 rows>"


def test_columns_that_do_not_fit_are_refused_by_emit() -> None:
    app = App()
    app.stream("given", "n INTEGER", border=True)
    app.stream("passed", "n INTEGER")

    @app.procedure(inputs="given", outputs="passed", on_failure="dead_letter")
    def pass_on(txn: Transaction, given: Batch) -> None:
        txn.emit("passed", pa.table({"n": ["x"]}))

    with tidegate.open(app) as engine, pytest.raises(ProcedureFailed, match="can't take 'x'"):
        engine.push("given", pa.table({"n": [1]})).result()


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("kind", [{"time": 10, "on": "t"}, {"count": 10}, {"session": 5, "on": "t"}], ids=str)
def test_windows_that_compute_leave_a_batch_of_columns_as_it_is(kind: dict[str, Any], key: str | None) -> None:
    app = App()
    app.stream("given", "t BIGINT NOT NULL, v DOUBLE NOT NULL, k BIGINT NOT NULL", border=True, key=key)
    made: list[Any] = []

    @app.procedure(inputs="given", windows={"win": window("given", compute={"sum": w.sum("v")}, **kind)})
    def look(txn: Transaction, given: Batch) -> None:
        txn.window("win").results["sum"].sum()
        rows: Any = given.given
        made.append(type(rows) is ColumnRows and rows._rows is None)

    with tidegate.open(app) as engine:
        engine.push("given", pa.table({"t": range(100), "v": [0.5] * 100, "k": [0, 1] * 50})).result()
    assert made == ([True] if key is None else [True, True])
