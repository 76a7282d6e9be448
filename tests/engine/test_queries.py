"""Queries of the engine: a lookup by key or index is row access, and gives what DuckDB gives."""

from __future__ import annotations

from typing import Any

import pytest
from every_type import COLUMNS, NULLS, ROW

from tidegate import App, Batch, Transaction


def things() -> App:
    app = App("things")
    app.table(f"CREATE TABLE things ({COLUMNS}, PRIMARY KEY (n)); CREATE INDEX by_big ON things (big)")
    app.stream("arriving", COLUMNS, border=True)

    @app.procedure(inputs="arriving", writes=["things"])
    def store(txn: Transaction, arriving: Batch) -> None:
        for thing in arriving:
            txn.upsert("things", thing)

    return app


SCALARS = "small, n, big, huge, single, x, price, word, yes, moment, day, hour, raw, id, doc, n AS again, word AS word"


@pytest.mark.parametrize("columns", ["*", SCALARS, "lasting, many", "n + 1", "count(*)", "things.*, n"])
@pytest.mark.parametrize("merged", [True, False])
def test_a_lookup_gives_the_rows_and_types_that_duckdb_gives(open_engine: Any, columns: str, merged: bool) -> None:
    engine = open_engine(things())
    engine.push("arriving", [ROW, NULLS, (*ROW[:1], 6, *ROW[2:])])
    if merged:
        engine.checkpoint()
    wanted: list[tuple[str, tuple[Any, ...], str]] = [
        ("n = ?", (4,), "n + 0 = 4"),
        ("n = ?", (5,), "n + 0 = 5"),
        ("n = ?", (7,), "n + 0 = 7"),
        ("big = ?", (2**62,), "big + 0 = 4611686018427387904"),
        ("big = ? AND n > 4", (2**62,), "big + 0 = 4611686018427387904 AND n > 4"),
        ("n = ?", (None,), "n + 0 = NULL"),
    ]
    for lookup, given, scan in wanted:
        found = engine.query(f"SELECT {columns} FROM things WHERE {lookup}", *given)
        same = engine.query(f"SELECT {columns} FROM things WHERE {scan}")
        assert found.arrow.schema.equals(same.arrow.schema, check_metadata=True)
        assert found.rows == same.rows


def test_a_lookup_sees_the_newest_commit_whether_its_table_is_in_memory_or_not(tmp_path: Any, open_engine: Any) -> None:
    with open_engine(things(), tmp_path / "d") as engine:
        engine.feed("arriving", [(*ROW[:1], n, *ROW[2:]) for n in range(50)])
    with open_engine(things(), tmp_path / "d", cached_rows=10) as engine:
        for word in ("first", "second"):
            assert engine.query("SELECT word FROM things WHERE n = ?", 7).scalar() != word
            engine.push("arriving", [(*ROW[:1], 7, *ROW[2:7], word, *ROW[8:])])
            assert engine.query("SELECT word FROM things WHERE n = ?", 7).scalar() == word
            engine.checkpoint()
        assert not engine.database.tables["things"].complete


def test_the_rows_of_a_lookup_do_not_change_under_its_result(open_engine: Any) -> None:
    engine = open_engine(things())
    engine.push("arriving", [ROW])
    found = engine.query("SELECT word FROM things WHERE n = 4")
    engine.push("arriving", [(*ROW[:7], "another", *ROW[8:])])
    assert found.scalar() == ROW[7]
    assert engine.query("SELECT word FROM things WHERE n = 4").scalar() == "another"
