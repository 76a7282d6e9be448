"""push, call, feed, subscribe and query, over every executor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, BatchError, DataError, DeclarationError, Engine, TidegateError, Transaction
from tidegate.errors import EngineClosed, Overloaded

Make = Callable[..., Engine]


def rows(engine: Engine, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(sql, *parameters)]


def test_push_runs_the_whole_dataflow(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    ticket = engine.push("events", [("a", 1), ("b", 2), ("a", 3)])
    assert ticket.result() is None
    assert (ticket.done, ticket.batch_ids, ticket.duplicate) == (True, [1], False)
    assert rows(engine, "SELECT * FROM totals ORDER BY name") == [("a", 4), ("b", 2)]
    assert rows(engine, "SELECT * FROM notes") == [(1, "a", 4)]


def test_columns_with_a_default_may_be_left_out(engine_of: Make) -> None:
    app = App("till")
    app.table("CREATE TABLE sold (n INTEGER PRIMARY KEY, price DECIMAL(6, 2), unit VARCHAR, told VARCHAR)")
    app.stream(
        "sales",
        "n INTEGER NOT NULL, price DECIMAL(6, 2) NOT NULL DEFAULT 1 + 0.5, unit VARCHAR DEFAULT 'g'",
        border=True,
    )
    app.stream("notes", "n INTEGER, told VARCHAR DEFAULT 'sold'")

    @app.procedure(inputs="sales", outputs="notes", writes=["sold"])
    def sell(txn: Transaction, sales: Batch) -> None:
        for row in sales:
            txn.insert("sold", {**row._asdict(), "told": None})
            txn.emit("notes", n=row.n)

    @app.procedure(inputs="notes", writes=["sold"])
    def note(txn: Transaction, notes: Batch) -> None:
        for row in notes:
            txn.update("sold", row.n, told=row.told)

    engine = engine_of(app)
    engine.push("sales", [{"n": 1}, {"n": 2, "unit": None}, (3, 2, "kg")]).result()
    engine.run_until_idle()
    wanted = [(1, Decimal("1.50"), "g", "sold"), (2, Decimal("1.50"), None, "sold"), (3, Decimal("2.00"), "kg", "sold")]
    assert rows(engine, "SELECT * FROM sold ORDER BY n") == wanted
    with pytest.raises(DataError, match=r"sales\.n is missing .* has no DEFAULT"):
        engine.push("sales", [{"unit": "g"}])


def test_the_same_batch_again_changes_nothing_and_says_so(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    engine.push("events", [("a", 1)], 7).result()
    again = engine.push("events", [("a", 1)], 7)
    assert (again.result(), again.duplicate, again.batch_ids) == (None, True, [])
    with pytest.raises(BatchError, match="other rows"):
        engine.push("events", [("a", 2)], 7)
    with pytest.raises(BatchError, match="too late"):
        engine.push("events", [("a", 2)], 6)
    assert engine.call("total", "a") == 1


def test_call_returns_what_the_procedure_returns(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    engine.call("put", "a", n=5)
    assert engine.call("total", "a") == 5
    assert engine.submit("total", name="a").result() == 5


def test_a_call_sees_what_was_pushed_before_it(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    for _ in range(20):
        engine.push("events", [("a", 1)])
    assert engine.call("total", "a") == 20


def test_feed_gives_what_pushes_give(engine_of: Make, counter: App) -> None:
    source = [(name, n) for n, name in enumerate("abcabcabca")]
    for size in (1, 3, 1000):
        fed, pushed = engine_of(counter), engine_of(counter)
        assert fed.feed("events", iter(source), size=size).batches == -(-len(source) // size)
        for start in range(0, len(source), size):
            pushed.push("events", source[start : start + size])
        for engine in (fed, pushed):
            engine.run_until_idle()
        for sql in ("SELECT * FROM totals ORDER BY name", "SELECT * FROM notes ORDER BY id"):
            assert rows(fed, sql) == rows(pushed, sql)


def test_feed_stops_at_the_row_it_refuses(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    with pytest.raises(DataError, match=r"events.n \(BIGINT\) can't take 'x'") as caught:
        engine.feed("events", [("a", 1), ("a", 2), ("b", "x"), ("c", 1)])
    engine.run_until_idle()
    assert caught.value.fed == 2
    assert rows(engine, "SELECT * FROM totals") == [("a", 3)]


def test_feed_of_a_keyed_stream_stops_at_a_row_without_key(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    with pytest.raises(DataError, match=r"orders.patient is the stream's key") as caught:
        engine.feed("orders", [(1, "a"), (None, "b"), (2, "c")], size=2)
    engine.run_until_idle()
    assert caught.value.fed == 1
    assert rows(engine, "SELECT * FROM meds") == [(1, "a")]


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": -1}, {"size": 1.5}, {"rows": 5}, {"rows": "abc"}])
def test_feed_called_wrongly(open_engine: Make, counter: App, wrong: dict[str, Any]) -> None:
    with pytest.raises(TidegateError, match="feed\\('events'"):
        open_engine(counter).feed(**{"stream": "events", "rows": [], **wrong})


def test_an_empty_push_is_done_at_once(engine_of: Make, counter: App) -> None:
    ticket = engine_of(counter).push("events", [])
    assert (ticket.done, ticket.batch_ids) == (True, [])


def test_a_push_of_several_keys_is_done_when_the_last_is(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    ticket = engine.push("orders", [(1, "a"), (2, "risky")], 1)
    engine.run_until_idle()
    assert not ticket.done
    engine.push("decisions", [(2, True)], 1)
    engine.run_until_idle()
    assert ticket.done


# ---- subscriptions


def test_a_subscription_gets_committed_batches_in_order(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    engine.push("events", [("before", 1)]).result()
    with engine.subscribe("counted") as counted:
        for name in ("a", "bad", "b"):
            engine.push("events", [(name, 1)])
        engine.run_until_idle()
        assert len(counted) == 2
        assert [(batch.id, batch[0].name) for batch in counted] == [(2, "a"), (4, "b")]
        assert counted.get() is None
    engine.push("events", [("after", 1)]).result()
    assert len(counted) == 0


def test_a_waiting_subscriber_is_woken(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter, executor="threads")
    counted = engine.subscribe("counted")
    engine.push("events", [("a", 1)])
    batch = counted.get(timeout_s=10)
    assert batch is not None
    assert batch[0].name == "a"


def test_a_subscriber_that_falls_behind_is_told_where_the_gap_is(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter)
    counted = engine.subscribe("counted", capacity=2)
    for _ in range(3):
        engine.push("events", [("a", 1)])
    assert counted.get().id == 1  # type: ignore[union-attr]
    engine.push("events", [("a", 1)])  # there is room again, but batch 3 is missing
    assert counted.get().id == 2  # type: ignore[union-attr]
    with pytest.raises(Overloaded, match=r"counted fell behind: 2 batches.*larger capacity"):
        counted.get()


def test_a_border_stream_is_not_subscribed_to(open_engine: Make, counter: App) -> None:
    with pytest.raises(DeclarationError, match=r"no interior stream 'events'.*counted"):
        open_engine(counter).subscribe("events")


# ---- queries


def test_a_query_has_parameters_and_forms(open_engine: Make, counter: App) -> None:
    engine = open_engine(counter)
    engine.push("events", [("a", 1), ("b", 2)])
    assert engine.query("SELECT n FROM totals WHERE name = ?", "b").scalar() == 2
    assert engine.query("SELECT n FROM totals WHERE name = $name", name="a").scalar() == 1
    found = engine.query("SELECT * FROM totals ORDER BY name")
    assert (found.columns, len(found)) == (["name", "n"], 2)
    assert found.rows[0].name == "a"
    assert found.pandas().n.sum() == 3
    assert found.polars()["n"].sum() == 3
    assert found.arrow.num_rows == 2
    with pytest.raises(TidegateError, match="2 rows"):
        found.scalar()


@pytest.mark.parametrize(
    ("sql", "fragments"),
    [
        ("SELEC 1", ("SELEC",)),
        ("SELECT nope FROM totals", ("nope",)),
        ("SELECT * FROM nope", ("nope",)),
        ("SELECT * FROM events", ("events",)),
        ("DELETE FROM totals", ("query() only reads", "DELETE", "engine.call")),
        ("SELECT * FROM tidegate.lock", ("tidegate.lock", "did you mean 'tidegate.locks'")),
        ("SELECT 1; SELECT 2", ("one statement",)),
        ("DROP TABLE totals", ("DROP",)),
    ],
)
def test_a_query_that_is_wrong_says_why(open_engine: Make, counter: App, sql: str, fragments: tuple[str, ...]) -> None:
    engine = open_engine(counter)
    with pytest.raises(TidegateError) as caught:
        engine.query(sql)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert engine.query("SELECT count(*) FROM totals").scalar() == 0


def test_queries_while_threads_prepare_sql(open_engine: Make) -> None:
    """Statements are prepared in one scratch database: threads and queries share it."""
    app = App()
    app.table("CREATE TABLE t (n BIGINT PRIMARY KEY, word VARCHAR)")
    app.stream("events", "n BIGINT", border=True, key="n")

    @app.procedure(inputs="events", writes=["t"])
    def work(txn: tidegate.Transaction, events: tidegate.Batch) -> None:
        n = events[0].n
        found = txn.execute(f"SELECT {n} AS a, ? AS b", n).one()
        assert tuple(found) == (n, n)

    engine = open_engine(app, executor="threads")
    tickets = [engine.push("events", [(n,)]) for n in range(60)]
    for n in range(30):
        assert engine.query(f"SELECT {n}, count(*) FROM t").rows[0][0] == n
    for ticket in tickets:
        ticket.result(30)


# ---- called wrongly


@pytest.mark.parametrize(
    ("use", "fragments"),
    [
        (lambda e: e.push("event", []), ("no border stream 'event'", "did you mean 'events'")),
        (lambda e: e.push("counted", []), ("counted is an interior stream", "events")),
        (lambda e: e.call("count"), ("count is a streaming procedure", "events", "push")),
        (lambda e: e.call("totl", "a"), ("'totl'", "did you mean 'total'")),
        (lambda e: e.call("total"), ("total(name)", "missing a required argument: 'name'")),
        (lambda e: e.call("total", "a", 5), ("total(name)", "too many")),
        (lambda e: e.call("total", nam="a"), ("total(name)", "name")),
        (lambda e: e.resume("counter"), ("no halted dataflow 'counter'", "none")),
    ],
)
def test_called_wrongly(
    open_engine: Make, counter: App, use: Callable[[Engine], Any], fragments: tuple[str, ...]
) -> None:
    engine = open_engine(counter)
    with pytest.raises(TidegateError) as caught:
        use(engine)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert engine.sequence == 0


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({"executor": "thread"}, ("executor='thread'", "serial, threads, manual")),
        ({"worker": 2}, ("no setting 'worker'", "did you mean 'workers'")),
        ({"workers": 0}, ("workers must be a positive whole number, got 0",)),
        ({"config": tidegate.Config(), "workers": 2}, ("config=", "workers")),
    ],
)
def test_settings_that_are_wrong(counter: App, settings: dict[str, Any], fragments: tuple[str, ...]) -> None:
    with pytest.raises(TidegateError) as caught:
        tidegate.open(counter, **settings)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_closed_engine_says_so(engine_of: Make, counter: App) -> None:
    engine = engine_of(counter)
    assert repr(engine) == "<Engine counter open at sequence 0>"
    engine.close()
    engine.close()
    for use in (
        lambda: engine.push("events", [("a", 1)]),
        lambda: engine.feed("events", [("a", 1)]),
        lambda: engine.call("total", "a"),
        lambda: engine.query("SELECT 1"),
        engine.resume,
        engine.checkpoint,
    ):
        with pytest.raises(EngineClosed, match="open the app again"):
            use()
    assert engine.closed


def test_closing_tells_those_who_still_wait(engine_of: Make, ward: App) -> None:
    engine = engine_of(ward)
    ticket = engine.push("orders", [(1, "risky")], 1)
    engine.run_until_idle()
    behind = engine.submit("drugs", 1)
    engine.close()
    with pytest.raises(EngineClosed, match=r"closed before prescribing on batch 1 key 1.*waits for .* decisions"):
        ticket.result()
    with pytest.raises(EngineClosed, match=r"closed before drugs.*lock on meds\[1\]"):
        behind.result()


def test_sql_sees_the_batch_the_window_and_what_was_emitted(engine_of: Make) -> None:
    app = App()
    app.stream("events", "n BIGINT", border=True)
    app.stream("out", "n BIGINT")
    app.stream("more", "n BIGINT")
    seen: list[Any] = []

    @app.procedure(inputs="events", outputs="out", windows={"recent": tidegate.window("events", count=3, slide=1)})
    def work(txn: tidegate.Transaction, events: tidegate.Batch) -> None:
        txn.emit("out", n=1)
        txn.emit("out", n=events[0].n)
        for name in ("events", "recent", "out"):
            found = txn.execute(f"SELECT n FROM {name} ORDER BY n")
            seen.append((name, [row.n for row in found]))

    @app.procedure(inputs="out", outputs="more")
    def after(txn: tidegate.Transaction, out: tidegate.Batch) -> None:
        seen.append(("out again", [row.n for row in txn.execute("SELECT n FROM out ORDER BY n")]))
        for hidden in ("events", "recent"):
            with pytest.raises(tidegate.AccessError, match=rf"procedure after reads {hidden} in SQL"):
                txn.execute(f"SELECT n FROM {hidden}")

    app.nested("work", "after")
    engine = engine_of(app)
    engine.push("events", [(4,), (5,)])
    engine.push("events", [(6,), (7,)]).result()
    assert seen == [
        ("events", [4, 5]),
        ("recent", []),
        ("out", [1, 4]),
        ("out again", [1, 4]),
        ("events", [6, 7]),
        ("recent", [4, 5, 5, 6, 6, 7]),
        ("out", [1, 6]),
        ("out again", [1, 6]),
    ]


def test_a_push_and_an_end_do_not_look_at_everything_that_waits(counter: App) -> None:
    """With thousands of batches waiting, that was most of what a transaction cost."""

    class Unsearched(OrderedDict[Any, Any]):
        def values(self) -> Any:
            pytest.fail("everything that waits was looked at")

        items = values

    with tidegate.open(counter, executor="manual") as engine:
        for _ in range(30):
            engine.push("events", [("a", 1)])
        engine.scheduler.live = Unsearched(engine.scheduler.live)
        ticket = engine.push("events", [("a", 1)])
        engine.run_until_idle()
        assert ticket.done
        engine.scheduler.live = {}
        assert rows(engine, "SELECT n FROM totals") == [(31,)]


@pytest.mark.parametrize("sync", ["group", "always", "off"])
def test_waiting_runs_it_and_has_it_on_disk_whatever_the_executor(counter: App, tmp_path: Path, sync: Any) -> None:
    for executor in ("manual", "serial", "threads"):
        with tidegate.open(counter, tmp_path / executor, executor=executor, sync=sync) as engine:
            engine.push("events", [("a", 1)]).result(60)
            assert engine.query("SELECT count(*) FROM totals").scalar() == 1
