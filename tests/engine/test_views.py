"""System views: the engine's state as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import App, Engine
from tidegate.engine import queries
from tidegate.engine.system_views import VIEWS
from tidegate.errors import StatementError

Make = Callable[..., Engine]


def rows(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(sql)]


@pytest.mark.parametrize("name", [name.removeprefix("tidegate_") for name in VIEWS])
def test_every_view_can_be_read_on_an_idle_engine(open_engine: Make, ward: App, name: str) -> None:
    engine = open_engine(ward)
    found = engine.query(f"SELECT * FROM tidegate.{name}")
    assert found.columns == list(VIEWS[f"tidegate_{name}"].relation.index_of)
    assert len(engine.query(f"SELECT x.* FROM tidegate.{name.upper()} AS x")) == len(found)


def test_executions_and_locks_of_a_waiting_person(engine_of: Make, ward: App, clock: Any) -> None:
    engine = engine_of(ward)
    engine.push("orders", [(7, "risky A")], 3)
    engine.run_until_idle()
    clock.advance(60)
    engine.submit("drugs", 7)
    (asking, looking) = rows(
        engine,
        "SELECT position, unit, dataflow, batch_id, key, state, reason, running_s "
        "FROM tidegate.executions ORDER BY position",
    )
    assert asking == (
        "1.0",
        "prescribing",
        "prescribing",
        3,
        "7",
        "suspended",
        "waits for its batch on stream decisions",
        60.0,
    )
    assert looking[1:3] + looking[5:7] == (
        "drugs",
        "drugs",
        "waiting",
        "waits for the lock on meds[7] behind position 1.0",
    )
    locks = rows(
        engine,
        "SELECT table_name, partition, mode, unit, held, waits_behind, held_by, age_s FROM tidegate.locks ORDER BY ALL",
    )
    assert locks == [
        ("asked", "7", "write", "prescribing", True, None, None, 60.0),
        ("meds", "7", "read", "drugs", False, "1.0", "prescribing", 0.0),
        ("meds", "7", "write", "prescribing", True, None, None, 60.0),
    ]


def test_streams_and_windows(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter, executor="manual")
    engine.push("events", [("a", 1), ("b", 2)], 40)
    streams = rows(engine, "SELECT stream, border, last_batch_id, queued FROM tidegate.streams ORDER BY stream")
    assert streams == [("counted", False, None, 1), ("events", True, 40, 1)]
    assert rows(engine, "SELECT * FROM tidegate.windows") == []
    engine.run_until_idle()
    shown = rows(engine, "SELECT * EXCLUDE (bytes) FROM tidegate.windows")
    assert shown == [("count", "recent", "events", None, "count 3 slide 1", None, 2, 0, None, 0)]
    assert rows(engine, "SELECT bytes > 0 FROM tidegate.windows") == [(True,)]


def test_a_border_stream_that_got_nothing_yet_is_listed(open_engine: Make, counter: App) -> None:
    assert ("events", True) in rows(open_engine(counter), "SELECT stream, border FROM tidegate.streams")


def test_merges_and_tables(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter)
    engine.push("events", [("a", 1), ("b", 2)])
    assert rows(engine, "SELECT table_name, unmerged FROM tidegate.tables ORDER BY 1") == [
        ("notes", 1),
        ("totals", 2),
    ]
    engine.checkpoint()
    assert rows(engine, "SELECT number, rows FROM tidegate.merges") == [(1, 3)]
    assert rows(engine, "SELECT sum(unmerged) FROM tidegate.tables") == [(0,)]


def test_views_join_tables(open_engine: Make, ward: App) -> None:
    engine = open_engine(ward)
    engine.push("orders", [(1, "aspirin"), (2, "risky")], 1)
    found = rows(engine, "SELECT m.drug, e.key FROM meds m, tidegate.executions e")
    assert found == [("aspirin", "2")]


def test_queries_remember_statements_within_a_bound(open_engine: Any) -> None:
    """Parsing and binding cost ten times what running does; the answer is that of the moment all the same."""
    app = App("remembering")
    app.table("CREATE TABLE t (id INTEGER PRIMARY KEY)")

    @app.procedure(writes=["t"])
    def add(txn: Any, number: int) -> None:
        txn.insert("t", (number,))

    engine = open_engine(app)
    for number in range(300):
        assert engine.query("SELECT count(*) FROM t WHERE id >= ?", 0).scalar() == number
        engine.call("add", number)
        assert engine.query(f"SELECT max(id) + {number} FROM t").scalar() == 2 * number
    prepared = engine.queries._prepared
    assert len(prepared) == queries.REMEMBERED
    assert "SELECT count(*) FROM t WHERE id >= ?" in prepared
    assert engine.query("SELECT count(*) FROM tidegate.tables").scalar() == 1
    with pytest.raises(StatementError, match="only reads"):
        engine.query("DELETE FROM t")
