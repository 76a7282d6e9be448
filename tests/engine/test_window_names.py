"""Windows are private: procedures may give theirs the same name, and SQL means the procedure's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tidegate
from tidegate import App, windows
from tidegate.errors import StatementError


def two_windows() -> App:
    """``rows`` sees rows, ``sums`` sees one result a batch, both under the name ``win``."""
    app = App("names")
    app.table("CREATE TABLE seen (id INTEGER PRIMARY KEY, n BIGINT)")
    app.stream("a", "x INTEGER NOT NULL", border=True)
    app.stream("b", "x INTEGER NOT NULL", border=True)

    @app.procedure(inputs="a", writes=["seen"], windows={"win": tidegate.window("a", count=2)})
    def rows(txn, batch):
        txn.upsert("seen", (1, txn.execute("SELECT count(*) AS n FROM win")[0].n))

    @app.procedure(
        inputs="b",
        writes=["seen"],
        windows={"win": tidegate.window("b", count=2, compute={"total": windows.sum("x")})},
    )
    def sums(txn, batch):
        found = txn.execute("SELECT count(*) AS n FROM win")
        txn.upsert("seen", (2, found[0].n))

    return app


def test_each_procedure_reads_its_own(engine_of: Callable[..., tidegate.Engine]) -> None:
    app = two_windows()
    app.trigger("rows.win", "INSERT INTO seen SELECT 3, sum(x) FROM win ON CONFLICT (id) DO UPDATE SET n = excluded.n")
    app.trigger(
        "sums.win", "INSERT INTO seen SELECT 4, sum(total) FROM win ON CONFLICT (id) DO UPDATE SET n = n + excluded.n"
    )
    engine = engine_of(app)
    engine.push("a", [(1,), (2,)])
    engine.push("b", [(10,), (20,), (30,), (40,)])
    engine.run_until_idle()
    assert engine.query("SELECT * FROM seen ORDER BY id").rows == [(1, 2), (2, 2), (3, 3), (4, 100)]


def test_a_trigger_is_checked_against_the_window_it_is_on() -> None:
    app = two_windows()
    app.trigger("rows.win", "DELETE FROM seen WHERE id IN (SELECT x FROM win)")
    with pytest.raises(StatementError, match="x"):
        app.trigger("sums.win", "DELETE FROM seen WHERE id IN (SELECT x FROM win)")


def test_a_statement_of_no_procedure_must_be_clear() -> None:
    app = two_windows()
    with pytest.raises(StatementError, match="several procedures have a window win"):
        app.sql("SELECT count(*) FROM win")


def test_sql_reads_the_rows_of_a_window_that_had_none_before() -> None:
    """A statement that ran while no window fired is kept prepared; it must not go on reading the empty relation."""
    app = App("narrow")
    app.stream("numbers", "n INTEGER NOT NULL", border=True)
    app.stream("sums", "n BIGINT")

    @app.procedure(inputs="numbers", outputs="sums", windows={"twos": tidegate.window("numbers", time=10, on="n")})
    def add(txn, numbers):
        for row in txn.execute("SELECT window_number, sum(n) AS n FROM twos GROUP BY ALL"):
            txn.emit("sums", n=row.n)

    with tidegate.open(app) as engine, engine.subscribe("sums") as sums:
        for n in range(0, 40, 2):
            engine.push("numbers", [(n,)])
        assert [row.n for batch in sums for row in batch] == [20, 70, 120]
