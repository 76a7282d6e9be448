"""A row that DuckDB does not take, although the door let it in, is in nobody's way, and is not lost."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.errors import StatementError
from tidegate.offline.verify import verify
from tidegate.storage.base import Base
from tidegate.storage.merges import Changes
from tidegate.storage.schema import Column, TableSchema
from tidegate.storage.types import column_type
from tidegate.testing import past_the_door

Kill = Callable[[Engine], None]
SETTINGS: dict[str, Any] = {"merge_every_s": 3600}
HALF = '{"a": "\\ud800"}'
POISON = {"INTERVAL": dt.timedelta.max, "JSON": HALF}  # the first is refused by Arrow, the second by DuckDB
GOOD = {"INTERVAL": dt.timedelta(1), "JSON": "[1]"}


def make_app(kind: str, recovery: Any = "weak") -> App:
    app = App("poisoned", recovery=recovery)
    app.table(f"CREATE TABLE kept (k BIGINT PRIMARY KEY, name VARCHAR, v {kind})")
    app.stream("given", f"k BIGINT NOT NULL, name VARCHAR, v {kind}", border=True)

    @app.procedure(inputs="given", writes=["kept"])
    def keep(txn: Transaction, given: Batch) -> None:
        for row in given:
            txn.upsert("kept", row)

    @app.procedure(writes=["kept"])
    def poison(txn: Transaction, k: int) -> None:
        txn.upsert("kept", past_the_door(app.tables["kept"], (k, "bad", POISON[kind])))

    @app.procedure(writes=["kept"])
    def remove(txn: Transaction, k: int) -> None:
        txn.delete("kept", k)

    @app.procedure(reads=["kept"])
    def read(txn: Transaction, k: int) -> Any:
        row = txn.get("kept", k)
        return None if row is None else tuple(row)

    return app


def set_aside(engine: Engine) -> list[tuple[Any, ...]]:
    found = engine.query("SELECT table_name, key, column_name FROM tidegate.set_aside ORDER BY key").arrow
    return [tuple(row.values()) for row in found.to_pylist()]


def in_the_base(engine: Engine) -> set[int]:
    return {row[0] for row in engine.database.base.scan(engine.app.tables["kept"])}


@pytest.mark.parametrize("kind", list(POISON))
@pytest.mark.parametrize("recovery", ["weak", "effects"])
def test_the_others_are_merged(tmp_path: Path, kind: str, recovery: str, killed: Kill, caplog: Any) -> None:
    app = make_app(kind, recovery)
    engine = tidegate.open(app, tmp_path, **SETTINGS)
    engine.push("given", [(k, "good", GOOD[kind]) for k in range(100)]).result()
    engine.checkpoint()
    for k in (7, 1_000):  # one that the base has in an older form, and a new one
        engine.call("poison", k)
    engine.push("given", [(2_000, "good", None)]).result()
    with caplog.at_level(logging.WARNING, "tidegate"):
        engine.checkpoint()
    assert [f"kept.v of the row with key {k}" in caplog.text for k in (7, 1_000)] == [True, True]
    assert set_aside(engine) == [("kept", "1000", "v"), ("kept", "7", "v")]
    assert in_the_base(engine) == {*range(100), 2_000} - {7}
    assert engine.database.unmerged == 0  # nothing that a merge now would change
    assert engine.call("read", 7) == (7, "bad", POISON[kind])
    with pytest.raises(StatementError, match=r"kept\.v of the row with key (7|1000).*tidegate\.set_aside"):
        engine.query("SELECT max(v) FROM kept")
    killed(engine)
    for _ in range(2):  # as the merge left it, then as closing left it
        with tidegate.open(make_app(kind, recovery), tmp_path, **SETTINGS) as engine:
            assert set_aside(engine) == [("kept", "1000", "v"), ("kept", "7", "v")]
            assert [engine.call("read", k)[2] for k in (7, 1_000)] == [POISON[kind]] * 2
    assert verify(make_app(kind, recovery), tmp_path).same
    with tidegate.open(make_app(kind, recovery), tmp_path, **SETTINGS) as engine:
        engine.call("remove", 7)
        engine.push("given", [(1_000, "good", GOOD[kind])]).result()
        engine.checkpoint()
        assert set_aside(engine) == []
        assert in_the_base(engine) == {*range(100), 1_000, 2_000} - {7}
        assert engine.query("SELECT count(v) FROM kept").scalar() == 100
    assert verify(make_app(kind, recovery), tmp_path).same


def test_a_background_merge_goes_on(tmp_path: Path) -> None:
    with tidegate.open(make_app("JSON"), tmp_path, merge_every_s=0.01) as engine:
        engine.call("poison", 1)
        engine.push("given", [(2, "good", "1")]).result()
        while in_the_base(engine) != {2}:
            pass
        assert engine.merger.failed is None
        engine.push("given", [(3, "good", "1")]).result()
        while in_the_base(engine) != {2, 3}:
            pass
        facts = engine.query("FROM tidegate.merge_state").arrow.to_pylist()[0]
        assert (facts["tries"], facts["rows_set_aside"], facts["last_failure"]) == (0, 1, None)


def test_every_merge_tries_again() -> None:
    """What a later DuckDB takes is merged then. Here the table becomes one that takes it."""
    kept = TableSchema(
        "kept", (Column("k", column_type("BIGINT"), False), Column("v", column_type("JSON"))), primary_key=("k",)
    )
    base = Base()
    base.ensure_table(kept)

    def merged(rows: Sequence[tuple[Any, ...]], deleted: Sequence[int] = ()) -> set[int]:
        base.merge({kept: [Changes(list(deleted), list(rows))]}, {"at": "2026-01-01T00:00:00"})
        base.publish()
        return {row[0] for row in base.scan(kept)}

    bad = [(k, HALF) for k in range(0, 1_000, 100)]
    good = [(k, "1") for k in range(1_000) if k % 100]
    assert merged(sorted(bad + good)) == {row[0] for row in good}
    assert base.aside.keys("kept") == [row[0] for row in bad]
    base.connection.execute("ALTER TABLE tidegate_base.kept ALTER v TYPE VARCHAR")
    lenient = TableSchema("kept", (kept.columns[0], Column("v", column_type("VARCHAR"))), primary_key=("k",))
    base.merge({lenient: [Changes([], bad)]}, {})
    base.publish()
    assert base.aside.keys("kept") == []
    assert base.count(kept) == 1_000
    base.close()


def test_a_refusal_that_no_row_causes_fails_the_merge() -> None:
    """Nothing is set aside for a reason that is not its own."""
    kept = TableSchema("kept", (Column("k", column_type("BIGINT"), False),), primary_key=("k",))
    base = Base()
    base.ensure_table(kept)
    base.connection.execute("CREATE UNIQUE INDEX one ON tidegate_base.kept ((k // 10))")
    with pytest.raises(Exception, match="onstraint"):
        base.merge({kept: [Changes([], [(1,), (2,)])]}, {})
    assert not len(base.aside)
    base.close()
