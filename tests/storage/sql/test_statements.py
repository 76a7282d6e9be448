"""Prepared statements: what is accepted, which path they take, what they return, and that they are all or
nothing.
"""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from stores import NOW, Store

from tidegate.errors import AccessError, ConstraintError, DataError, StatementError
from tidegate.storage.readers import Reader

BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "duckdb"])


@pytest.fixture(autouse=True)
def some_votes(votes: Store) -> None:
    votes.run("INSERT INTO votes (phone, contestant, n, weight) VALUES (1, 1, 5, 0.5), (2, 1, 0, NULL), (3, 2, 9, 1.5)")


# ---- paths


@pytest.mark.parametrize(
    ("sql", "path"),
    [
        ("SELECT * FROM votes WHERE phone = ?", "primary key"),
        ("SELECT n + 1 FROM votes v WHERE v.phone = 5 AND v.n > 2", "primary key"),
        ("SELECT phone FROM votes WHERE contestant = $c", "index"),
        ("SELECT count(*) FROM votes WHERE contestant = $c", "index"),
        ("SELECT phone FROM votes WHERE name = 'x'", "index"),
        ("UPDATE votes SET n = n + 1 WHERE phone = ?", "primary key"),
        ("UPDATE votes SET n = n + 1 WHERE contestant = ? RETURNING phone", "index"),
        ("DELETE FROM votes WHERE phone = $1", "primary key"),
        ("INSERT INTO votes (phone, contestant) VALUES (?, ?), (?, 2)", "values"),
        (
            "INSERT INTO votes (phone, contestant) VALUES (?, ?) ON CONFLICT (phone) DO UPDATE SET n = votes.n + 1",
            "values",
        ),
        ("SELECT * FROM votes WHERE n > 3", "duckdb"),
        ("SELECT sum(n) FROM votes", "duckdb"),
        ("UPDATE votes SET phone = phone + 1 WHERE phone = 1", "duckdb"),
        ("INSERT INTO votes (phone, contestant) SELECT phone, contestant FROM batch", "batch"),
        ("SELECT upper(name) FROM votes WHERE phone = ?", "duckdb"),
    ],
)
def test_path(votes: Store, sql: str, path: str) -> None:
    statement = votes.prepare(sql)
    assert statement.path == path
    assert ("DuckDB" in statement.explain()) == (path in {"duckdb", "batch"})


def test_what_a_statement_touches(votes: Store) -> None:
    joined = votes.prepare("WITH b AS (SELECT * FROM batch) SELECT * FROM b JOIN Votes USING (phone)")
    assert (joined.kind, joined.reads, joined.writes, joined.relations) == (
        "select", {"votes"}, frozenset(), {"batch"},
    )  # fmt: skip
    insert = votes.prepare("INSERT INTO votes (phone, contestant) SELECT * FROM batch")
    assert (insert.kind, insert.reads, insert.writes) == ("insert", frozenset(), {"votes"})
    shadowed = votes.prepare("WITH votes AS (SELECT 1 AS one) SELECT * FROM votes")
    assert shadowed.reads == frozenset()


# ---- refusals


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("CREATE TABLE x (a INTEGER)", "declare tables in the app"),
        ("PRAGMA version", "only SELECT, INSERT, UPDATE, DELETE"),
        ("SET threads = 1", "only SELECT"),
        ("COPY votes TO 'x'", "only SELECT"),
        ("ATTACH ':memory:' AS other", "only SELECT"),
        ("MERGE INTO votes USING batch ON votes.phone = batch.phone WHEN MATCHED THEN DELETE", "ON CONFLICT"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("", "one statement"),
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM votes", "nope"),
        ("SELECT phone + name FROM votes", "Binder Error"),
        ("SELECT * FROM nope", "votes"),
        ("SELECT * FROM read_csv('x.csv')", "through a stream"),
        ("SELECT * FROM 'x.csv'", "not a table or stream"),
        ("SELECT * FROM duckdb_tables()", "through a stream"),
        ("SELECT * FROM information_schema.tables", "plain names"),
        ("SELECT nextval('s')", "replayed"),
        ("SELECT current_setting('threads')", "replayed"),
        ("SELECT age(at_time) FROM votes", "replayed"),
        ("SELECT * FROM votes USING SAMPLE 2", "not deterministic"),
        ("SELECT rowid FROM votes", "rowid"),
        ("INSERT INTO batch VALUES (1, 2)", "txn.emit"),
        ("WITH gone AS (DELETE FROM votes RETURNING *) SELECT * FROM gone", "one table"),
        ("SELECT * FROM votes WHERE phone = ? AND n = $name", "mix"),
    ],
)
def test_refused_when_declared(votes: Store, sql: str, hint: str) -> None:
    with pytest.raises(StatementError) as raised:
        votes.prepare(sql)
    told = str(raised.value).lower()
    older = duckdb.__version__ < "2"  # which words some refusals itself
    assert hint.lower() in told or (older and "parser error" in told) or (older and "pragma" in sql.lower())


# ---- parameters


@BOTH
def test_parameters_by_place_and_by_name(votes: Store, compiled: bool) -> None:
    assert votes.run("SELECT n FROM votes WHERE phone = ?", [1], compiled=compiled).scalar() == 5
    assert votes.run("SELECT n FROM votes WHERE phone = $1 AND $1 > 0", (1,), compiled=compiled).scalar() == 5
    assert votes.run("SELECT n FROM votes WHERE phone = $who", {"who": 3}, compiled=compiled).scalar() == 9
    assert votes.run("SELECT n FROM votes WHERE phone = ?", (np.int64(3),), compiled=compiled).scalar() == 9
    assert votes.run("SELECT n FROM votes WHERE phone = ?", (None,), compiled=compiled) == []


@pytest.mark.parametrize("given", [(), (1, 2), {"a": 1}, "x", 7])
def test_wrong_parameters_say_what_was_expected(votes: Store, given: Any) -> None:
    with pytest.raises(StatementError, match=r"1 values by position|must be a sequence"):
        votes.run("SELECT n FROM votes WHERE phone = ?", given)


def test_wrong_names_say_what_was_expected(votes: Store) -> None:
    with pytest.raises(StatementError, match="takes 'who'; got 'whom'"):
        votes.run("SELECT n FROM votes WHERE phone = $who", {"whom": 1})


@BOTH
def test_a_value_of_another_type_is_left_to_duckdb_in_conditions_and_refused_in_rows(
    votes: Store, compiled: bool
) -> None:
    assert votes.run("SELECT n FROM votes WHERE phone = ?", ("1",), compiled=compiled).scalar() == 5
    assert votes.run("SELECT n FROM votes WHERE phone = ?", (1.5,), compiled=compiled) == []
    assert votes.run("SELECT n FROM votes WHERE phone = ?", (2**70,), compiled=compiled) == []
    with pytest.raises(DataError, match=r"votes\.n"):
        votes.run("UPDATE votes SET n = ? WHERE phone = 1", ("7",), compiled=compiled)


def test_sqlalchemy_core(votes: Store) -> None:
    table = sa.Table(
        "votes", sa.MetaData(), sa.Column("phone", sa.BigInteger, primary_key=True), sa.Column("contestant", sa.Integer),
        sa.Column("n", sa.Integer),
    )  # fmt: skip
    select = sa.select(table.c.n).where(table.c.phone == sa.bindparam("who"))
    assert votes.prepare(select).path == "primary key"
    assert votes.run(select, {"who": 1}).scalar() == 5
    upsert = postgresql.insert(table).values(phone=1, contestant=2, n=0)
    upsert = upsert.on_conflict_do_update(index_elements=["phone"], set_={"n": table.c.n + upsert.excluded.contestant})
    assert votes.prepare(upsert).path == "values"
    votes.run(upsert)
    assert votes.run(select, {"who": 1}).scalar() == 7
    votes.run(upsert, {"contestant": 10})
    assert votes.run(select, (1,)).scalar() == 17
    assert votes.run(sa.delete(table).where(table.c.phone.in_([1, 2]))).count == 2


# ---- results


@BOTH
def test_rows_are_named_and_counted(votes: Store, compiled: bool) -> None:
    rows = votes.run("SELECT phone, n * 2 AS twice FROM votes WHERE contestant = 1", compiled=compiled)
    assert [(row.phone, row.twice) for row in rows] == [(1, 10), (2, 0)]
    assert rows.count == 2
    assert votes.run("UPDATE votes SET n = n + 1 WHERE contestant = 1", compiled=compiled).count == 2
    with pytest.raises(StatementError, match="exactly one row, got 2"):
        rows.one()


@BOTH
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM votes WHERE contestant = 1",
        "UPDATE votes SET n = n WHERE contestant = 1 RETURNING *",
        "DELETE FROM votes WHERE contestant = 1 RETURNING *",
    ],
)
def test_whole_rows_found_by_an_index_are_named(votes: Store, sql: str, compiled: bool) -> None:
    assert [(row.phone, row.n) for row in votes.run(sql, compiled=compiled)] == [(1, 5), (2, 0)]


def test_arrow(votes: Store) -> None:
    table = votes.prepare("SELECT phone, n FROM votes WHERE phone = ?").arrow(votes.view(), (1,))
    assert table.to_pydict() == {"phone": [1], "n": [5]}
    with pytest.raises(StatementError, match="only a SELECT"):
        votes.prepare("DELETE FROM votes").arrow(votes.view())


@BOTH
def test_literals_take_the_type_of_their_column(votes: Store, compiled: bool) -> None:
    votes.run("UPDATE votes SET at_time = '2020-02-03', weight = 1 WHERE phone = 1", compiled=compiled)
    row = votes.view().get("votes", 1)
    assert (row.at_time, row.weight) == (dt.datetime(2020, 2, 3), 1.0)
    found = votes.run("SELECT phone FROM votes WHERE phone = 1 AND at_time < '2021-01-01'", compiled=compiled)
    assert found.scalar() == 1


@BOTH
def test_overflow_is_duckdbs_error_on_both_paths(votes: Store, compiled: bool) -> None:
    votes.run("UPDATE votes SET n = 2147483647 WHERE phone = 1")
    with pytest.raises(DataError, match="Overflow"):
        votes.run("UPDATE votes SET n = n + 1 WHERE phone = 1", compiled=compiled)
    assert votes.run("SELECT 1.0 / n FROM votes WHERE phone = 2").scalar() == float("inf")


# ---- changes


@BOTH
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO votes (phone, contestant) VALUES (7, 1), (8, 1), (1, 1)",
        "INSERT INTO votes (phone, contestant) VALUES (7, 1), (8, 200)",
        "INSERT INTO votes (phone, contestant, name) VALUES (7, 1, 'x'), (8, 2, 'x')",
        "UPDATE votes SET n = n - 5 WHERE contestant = 1",
        "UPDATE votes SET name = 'same' WHERE contestant = 1",
        "UPDATE votes SET phone = 3 WHERE phone = 1",
        "UPDATE votes SET contestant = NULL WHERE contestant = 1",
        "INSERT INTO votes (phone, contestant) SELECT phone + 10, phone * 60 FROM votes",
    ],
)
def test_a_refused_statement_changes_nothing(votes: Store, sql: str, compiled: bool) -> None:
    view = votes.view()
    view.update("votes", 2, n=1)
    before = {table: dict(rows) for table, rows in view.writes.items()}
    with pytest.raises(ConstraintError):
        votes.run(sql, view=view, compiled=compiled)
    assert view.writes == before


@BOTH
def test_upsert(votes: Store, compiled: bool) -> None:
    sql = (
        "INSERT INTO votes (phone, contestant, n) VALUES (1, 7, 100), (9, 7, 100) "
        "ON CONFLICT (phone) DO UPDATE SET n = votes.n + excluded.n WHERE votes.n > 0 RETURNING phone, n, contestant"
    )
    assert [tuple(row) for row in votes.run(sql, compiled=compiled)] == [(1, 105, 1), (9, 100, 7)]
    assert (
        votes.run("INSERT INTO votes (phone, contestant) VALUES (1, 1) ON CONFLICT DO NOTHING", compiled=compiled).count
        == 0
    )
    assert votes.run("INSERT INTO votes (phone, contestant, name) VALUES (50, 1, 'a')", compiled=compiled).count == 1
    clash = "INSERT INTO votes (phone, contestant, name) VALUES (51, 1, 'a') ON CONFLICT (name) DO UPDATE SET n = 77"
    votes.run(clash, compiled=compiled)
    assert votes.view().get("votes", 50).n == 77


@BOTH
def test_of_several_rows_with_one_key_in_an_upsert_the_first_wins(votes: Store, compiled: bool) -> None:
    sql = "INSERT INTO votes (phone, contestant) VALUES (9, 1), (9, 2) ON CONFLICT (phone) DO UPDATE SET contestant = 3"
    assert votes.run(sql, compiled=compiled).count == 1
    assert votes.view().get("votes", 9).contestant == 1


def test_keys_and_unique_values_may_move_within_one_update(votes: Store) -> None:
    votes.run("UPDATE votes SET name = 'n' || phone::VARCHAR")
    votes.run("UPDATE votes SET phone = phone + 1, name = 'n' || (phone + 1)::VARCHAR")
    assert [(row[0], row[4]) for row in votes.rows("votes")] == [(2, "n2"), (3, "n3"), (4, "n4")]


def test_dml_with_other_relations(votes: Store) -> None:
    view = votes.view()
    view.relations = {"batch": (votes.relations["batch"], [(1, 5), (1, 6), (3, 8)])}
    updated = votes.run(
        "UPDATE votes SET contestant = batch.contestant FROM batch WHERE batch.phone = votes.phone RETURNING phone, contestant",
        view=view,
    )
    assert [tuple(row) for row in updated] == [(1, 5), (3, 8)]
    deleted = votes.run("DELETE FROM votes USING batch b WHERE b.phone = votes.phone RETURNING phone", view=view)
    assert [row.phone for row in deleted] == [1, 3]
    with pytest.raises(AccessError, match="not one of its inputs"):
        votes.run("SELECT count(*) FROM batch", view=votes.view())


@BOTH
def test_now_random_and_uuid_are_the_transactions(votes: Store, compiled: bool) -> None:
    sql = "UPDATE votes SET at_time = now(), weight = random() WHERE phone = 1 RETURNING at_time, weight"
    first, again = (votes.run(sql, view=votes.view(position=50), compiled=compiled) for _ in range(2))
    assert first == again
    assert first[0].at_time == NOW
    drawn = votes.run("SELECT uuid() AS a, uuid() AS b, current_date AS c", view=votes.view(), compiled=compiled).one()
    assert isinstance(drawn.a, uuid.UUID)
    assert drawn.a != drawn.b
    assert drawn.c == NOW.date()


def test_defaults_are_evaluated_per_row(votes: Store) -> None:
    store = Store(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, u UUID DEFAULT gen_random_uuid(), d DECIMAL(9,2) DEFAULT 1.5, "
        "day DATE DEFAULT now(), tags VARCHAR[] DEFAULT ['a'], plain INTEGER DEFAULT (1 + 1))"
    )
    store.run("INSERT INTO t (k) VALUES (1), (2)")
    first, second = store.rows("t")
    assert first[1] != second[1]
    assert first[2:] == (Decimal("1.50"), NOW.date(), ("a",), 2)
    store.close()


def test_checks_that_only_duckdb_understands() -> None:
    store = Store("CREATE TABLE t (k INTEGER PRIMARY KEY, name VARCHAR, CHECK (regexp_matches(name, '^a')))")
    store.run("INSERT INTO t VALUES (1, 'abc'), (2, NULL)")
    with pytest.raises(ConstraintError, match="CHECK") as raised:
        store.run("INSERT INTO t VALUES (3, 'ax'), (4, 'xa')")
    assert raised.value.key == 4  # type: ignore[attr-defined]
    store.close()


# ---- access


@BOTH
def test_undeclared_access(votes: Store, compiled: bool) -> None:
    view = votes.view()
    view.access = {}
    with pytest.raises(AccessError, match="without declaring it"):
        votes.run("SELECT * FROM votes WHERE phone = 1", view=view, compiled=compiled)
    view.access = {"votes": Reader(votes.database.tables["votes"], write=False)}
    with pytest.raises(AccessError, match="declared only to read"):
        votes.run("UPDATE votes SET n = 1 WHERE phone = 1", view=view, compiled=compiled)


def test_a_cursor_is_usable_after_an_error(votes: Store) -> None:
    with pytest.raises(StatementError, match="Conversion Error"):
        votes.run("SELECT CAST(? AS INTEGER) FROM votes", ("x",))
    assert votes.run("SELECT count(*) FROM votes", compiled=False).scalar() == 3
