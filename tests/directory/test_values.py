"""Every value that is accepted survives everything; every other one is refused with an error that names it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hostile import KINDS, POOL, same, values
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate.errors import Aborted, DataError, ProcedureFailed, TidegateError
from tidegate.offline.verify import verify
from tidegate.replica.feed import described
from tidegate.replica.frames import from_ipc, to_ipc
from tidegate.replica.mirror import Mirror, tables_of
from tidegate.storage.arrow import stored_rows
from tidegate.storage.schema import Column, TableSchema
from tidegate.storage.writing import Delta

NAMES = [f"c{i}" for i in range(len(KINDS))]
COLUMNS = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, KINDS, strict=True))
SETTINGS: dict[str, Any] = {"merge_every_s": 3600, "tune_process": False, "sync": "off"}


@cache
def make_app(recovery: Any = "weak") -> App:
    """given → keep → passed: a row in the table, one in a window and one in an emitted batch for each that comes."""
    app = App("values", recovery=recovery)
    app.table(f"CREATE TABLE kept (n BIGINT PRIMARY KEY, {COLUMNS})")
    app.stream("given", f"n BIGINT NOT NULL, {COLUMNS}", border=True)
    app.stream("passed", f"n BIGINT NOT NULL, {COLUMNS}")

    @app.procedure(
        inputs="given", outputs="passed", writes=["kept"], windows={"recent": window("given", count=50, slide=1)}
    )
    def keep(txn: Transaction, given: Batch) -> None:
        for row in given:
            txn.upsert("kept", row)
        txn.emit("passed", list(given))

    @app.procedure(writes=["kept"])
    def write(txn: Transaction, n: int, column: str, value: Any) -> None:
        txn.insert("kept", {"n": n, column: value})

    @app.procedure(writes=["kept"])
    def execute(txn: Transaction, n: int, column: str, value: Any) -> None:
        txn.execute(f"INSERT INTO kept (n, {column}) VALUES (?, ?)", n, value)

    return app


class Copy:
    """A replica's mirror, fed with what merges tell."""

    def __init__(self, engine: Engine) -> None:
        self.mirror = Mirror(tables_of(described(engine)["tables"]), {}, 256, 1, 2, 1_000)
        self._merges = 0
        engine.database.merge_listeners.append(self.merged)

    def merged(self, deltas: Mapping[TableSchema, Delta], facts: Mapping[str, Any]) -> None:
        self._merges += 1
        self.mirror.begin(self._merges, facts["sequence"], False)
        for schema, delta in deltas.items():
            for apply, part in ((self.mirror.delete, delta.deleted), (self.mirror.insert, delta.inserted)):
                if part is not None:
                    apply(schema.name, from_ipc(bytes(to_ipc(part))))
        self.mirror.publish()


def take(engine: Engine, door: str, n: int, place: int, value: Any) -> bool:
    """Was it accepted? What is refused names the place."""
    error = failure(lambda: put(engine, door, n, NAMES[place], value))
    if error is None:
        return True
    assert NAMES[place] in str(error) or "argument number 3" in str(error), error
    assert len(str(error)) < 3_000
    return False


def put(engine: Engine, door: str, n: int, column: str, value: Any) -> None:
    if door == "push":
        engine.push("given", [{"n": n, column: value}]).result()
    else:
        engine.call(door, n, column, value)


def failure(act: Callable[[], Any]) -> TidegateError | None:
    try:
        act()
    except (DataError, Aborted, ProcedureFailed) as error:  # the others where a procedure was undone by the first
        return error
    return None


def contents(rows: Sequence[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    return {row[0]: tuple(row) for row in rows}


def stored(engine: Engine) -> dict[int, tuple[Any, ...]]:
    """What a reader by key sees."""
    table = engine.database.tables["kept"]
    return {key: row for key in list(table.rows) if (row := table.newest(key)) is not None}


def check(expected: dict[int, tuple[Any, ...]], found: Mapping[int, tuple[Any, ...]], where: str) -> None:
    assert expected.keys() == found.keys(), where
    for n, row in expected.items():
        for column, a, b in zip(["n", *NAMES], row, found[n], strict=True):
            assert same(a, b), (where, column, a, b)


def check_survival(path: Path, given: Sequence[tuple[str, int, Any]], recovery: str) -> int:
    app = make_app(recovery)
    with tidegate.open(app, path, **SETTINGS) as engine:
        copy = Copy(engine)
        accepted = sum(take(engine, door, n, place, value) for n, (door, place, value) in enumerate(given))
        expected = stored(engine)
        assert len(expected) == accepted
        for row in expected.values():
            for name, kind, value in zip(NAMES, app.tables["kept"].columns[1:], row[1:], strict=True):
                assert value is None or type(value) is kind.type.python, name
        check_sql(engine, expected, "above the base")
        engine.checkpoint()
        schema = app.tables["kept"]
        check(expected, contents(list(engine.database.base.scan(schema))), "in the base")
        check_sql(engine, expected, "over the base")
        mirrored = copy.mirror.cursor().execute("FROM main.kept").fetchall()
        check(expected, contents(list(stored_rows(schema, mirrored))), "in the replica")
        again = sum(take(engine, door, 10**6 + n, place, value) for n, (door, place, value) in enumerate(given))
        assert again == accepted
        expected = stored(engine)
        engine.durable.sync()  # type: ignore[union-attr]
        engine.abandon()
    with tidegate.open(make_app(recovery), path, **SETTINGS) as engine:
        engine.database.load_all(engine.database.tables["kept"])
        check(expected, stored(engine), "after a kill")
    with tidegate.open(make_app(recovery), path, **SETTINGS) as engine:
        engine.database.load_all(engine.database.tables["kept"])
        check(expected, stored(engine), "after a close")
    found = verify(make_app(recovery), path)
    assert found.same, found.differences
    return accepted


def check_sql(engine: Engine, expected: dict[int, tuple[Any, ...]], where: str) -> None:
    """As Arrow: all of them come."""
    table: pa.Table = engine.query("FROM kept").arrow
    assert sorted(table.column("n").to_pylist()) == sorted(expected), where
    for i, name in enumerate(["n", *NAMES]):
        assert table.column(name).null_count == sum(row[i] is None for row in expected.values()), (where, name)


STREAM = make_app().streams["given"].relation


def refused(column: Column, value: Any) -> bool:
    """By the door itself, with an error that names the place and shows the value, at a bearable length."""
    error = failure(lambda: STREAM.check_value(column, value))
    if error is None:
        return False
    assert f"given.{column.name} ({column.type}) can't take" in str(error)
    assert len(str(error)) < 1_000
    return True


@pytest.mark.parametrize("recovery", ["weak", "effects"])
def test_all_that_was_ever_a_problem(tmp_path: Path, recovery: str) -> None:
    """The whole pool for every column: all that is accepted goes on, and some of what is not."""
    columns = make_app().tables["kept"].columns[1:]
    places = [(place, value) for value in POOL for place in range(len(KINDS))]
    good = [(place, value) for place, value in places if not refused(columns[place], value)]
    bad = [(place, value) for place, value in places[::40] if refused(columns[place], value)]
    doors = ("push", "write", "execute")
    given = [(doors[i % 3], place, value) for i, (place, value) in enumerate(good + bad)]
    assert check_survival(tmp_path, given, recovery) > 200


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_accepted_value_survives(data: st.DataObject) -> None:
    one = st.integers(0, len(KINDS) - 1).flatmap(
        lambda place: st.tuples(st.sampled_from(["push", "write", "execute"]), st.just(place), values(KINDS[place]))
    )
    given = data.draw(st.lists(one, min_size=20, max_size=60))
    with tempfile.TemporaryDirectory() as path:
        check_survival(Path(path), given, data.draw(st.sampled_from(["weak", "strong", "effects"])))
