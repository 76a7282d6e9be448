"""Parameters by place stand for values in the order of the text."""

from __future__ import annotations

import pytest

import tidegate
from tidegate import App, StatementError, Transaction
from tidegate.storage.sql.parameters import in_text_order

SQL = "SELECT a FROM t WHERE a > ? AND b IN (?, ?) ORDER BY a LIMIT ?"


def test_question_marks_are_numbered_as_they_are_read() -> None:
    assert in_text_order(SQL) == "SELECT a FROM t WHERE a > $1 AND b IN ($2, $3) ORDER BY a LIMIT $4"
    assert in_text_order("SELECT '?' , \"?\", ? -- ?") == "SELECT '?' , \"?\", $1 -- ?"
    assert in_text_order("SELECT $1") == "SELECT $1"


@pytest.mark.parametrize("sql", ["SELECT ?, ''", "SELECT $1, ''", "SELECT $name, ''''"])
def test_a_text_may_end_in_an_empty_string_after_a_parameter(sql: str) -> None:
    with tidegate.open(App("ends")) as engine:
        found = engine.query(sql, name=1) if "$name" in sql else engine.query(sql, 1)
        assert found.rows[0][0] == 1


def test_in_a_procedure_and_in_a_query() -> None:
    app = App("places")
    app.table("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER)")

    @app.procedure(writes=["t"])
    def fill(txn: Transaction) -> list[int]:
        for i in range(10):
            txn.insert("t", (i, i % 3))
        return [row.a for row in txn.execute(SQL, 2, 0, 1, 3)]

    with tidegate.open(app) as engine:
        assert engine.call("fill") == [3, 4, 6]
        assert [row.a for row in engine.query(SQL, 2, 0, 1, 3)] == [3, 4, 6]
        with pytest.raises(StatementError, match="not a mixture"):
            engine.query("SELECT a FROM t WHERE a = ? AND b = $1", 1, 1)
