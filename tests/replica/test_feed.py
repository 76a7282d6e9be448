"""What the replica shows: always one merged state, at a known position; older ones AS OF; the same as the engine."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from shops import Shop, make_app, opened

import tidegate
from tidegate import App
from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.replica import Limits, ReplicaProcess
from tidegate.replica.freshness import Freshness
from tidegate.replica.mirror import Mirror, tables_of
from tidegate.replica.statements import Statements

ITEMS = [f"item {i}" for i in range(40)]


def position_of(schema: pa.Schema) -> int:
    return int(schema.metadata[b"tidegate.position"])


def test_an_answer_says_its_position(shop: Shop) -> None:
    shop.engine.push("orders", [("tea", 10)])
    shop.caught_up()
    schema, batches = shop.replica.query_sync("SELECT * FROM stock")
    assert position_of(schema) == shop.engine.sequence
    assert {row["item"] for batch in batches for row in batch.to_pylist()} == {"tea", "jam"}


def test_changes_arrive_by_themselves(shop: Shop) -> None:
    shop.engine.push("orders", [("tea", 11)])
    assert shop.replica.wait_for(shop.engine.sequence)  # nobody asked for a merge
    assert shop.rows("SELECT pieces FROM stock WHERE item = 'tea'") == [(11,)]


def test_parameters(shop: Shop) -> None:
    assert shop.rows("SELECT item FROM stock WHERE item = ? AND pieces > ?", ["tea", 1]) == [("tea",)]
    assert shop.rows("SELECT item FROM stock WHERE item = $who", {"who": "jam"}) == [("jam",)]


def test_system_views_are_as_of_now(shop: Shop) -> None:
    assert shop.rows("SELECT stream, border FROM tidegate.streams") == [("orders", True)]
    before = shop.rows("SELECT count(*) FROM tidegate.merges")[0][0]
    shop.engine.push("orders", [("tea", 12)])
    shop.caught_up()
    deadline = 200
    while shop.rows("SELECT count(*) FROM tidegate.merges")[0][0] <= before and deadline:
        deadline -= 1
    assert deadline
    joined = "SELECT s.item FROM stock s, tidegate.tables t WHERE t.table_name = 'stock' ORDER BY 1"
    assert shop.rows(joined) == [("jam",), ("tea",)]


def test_async(shop: Shop) -> None:
    async def ask() -> int:
        schema, batches = await shop.replica.query("SELECT * FROM range(25000)")
        assert schema.names == ["range"]
        return sum([batch.num_rows async for batch in batches])

    async def ask_many() -> list[int]:
        return await asyncio.gather(*(ask() for _ in range(20)))

    assert asyncio.run(ask_many()) == [25_000] * 20


def test_closing_the_iterator_cancels(shop: Shop) -> None:
    async def ask() -> None:
        _, batches = await shop.replica.query("SELECT * FROM range(100000000000)")
        async for _ in batches:
            break
        await batches.aclose()  # type: ignore[attr-defined]
        while shop.replica.status["running"]:
            await asyncio.sleep(0.02)

    asyncio.run(ask())


def test_the_same_as_the_engine_after_random_work() -> None:
    """Many small merges with inserts, updates and deletes; then every retained state, AS OF, against a history of our own."""
    chance = random.Random(7)
    with tidegate.open(make_app()) as engine:
        limits = Limits(refresh_s=3600, history_merges=15)
        with ReplicaProcess(engine, limits) as replica:
            shop = Shop(engine, replica)
            states: dict[int, list[tuple[Any, ...]]] = {}
            for _ in range(25):
                for item in chance.sample(ITEMS, 5):
                    if chance.random() < 0.3:
                        engine.call("remove", item)
                    else:
                        engine.push("orders", [(item, chance.randrange(1000))])
                shop.caught_up()
                states[engine.sequence] = sorted(tuple(r) for r in engine.query("SELECT * FROM stock"))
                assert sorted(shop.rows("SELECT * FROM stock")) == states[engine.sequence]
            kept = list(states)[-15:]
            for position in kept:
                assert sorted(shop.rows("SELECT * FROM stock", as_of=position)) == states[position]
                assert sorted(shop.rows(f"SELECT * FROM stock AS OF {position}")) == states[position]
                between = position if position == kept[-1] else position + 2  # the newest state not after it
                assert sorted(shop.rows(f"SELECT s.* FROM public.stock s AS OF POSITION {between}")) == states[position]
            oldest = list(states)[-16]
            with pytest.raises(QueryFailed, match=f"not retained any more.* {oldest} to {kept[-1]}"):
                shop.rows("SELECT * FROM stock", as_of=list(states)[-17])
            with pytest.raises(QueryFailed, match="ahead of the replica"):
                shop.rows("SELECT * FROM stock", as_of=kept[-1] + 1)
            joined = f"SELECT count(*) FROM stock a JOIN stock b USING (item) AS OF {kept[0]}"
            assert shop.rows(joined) == [(len(states[kept[0]]),)]
            with pytest.raises(QueryRefused, match="name of a table"):
                shop.rows(f"WITH stock AS (SELECT 1) SELECT * FROM stock AS OF {kept[0]}")


def test_as_of_for_a_whole_session(shop: Shop) -> None:
    shop.engine.push("orders", [("tea", 100)])
    shop.caught_up()
    then = shop.engine.sequence
    shop.engine.push("orders", [("tea", 200)])
    shop.caught_up()
    with shop.connect() as connection:
        assert connection.execute("SELECT pieces FROM stock WHERE item = 'tea'").fetchone() == (200,)
        connection.execute(f"SET tidegate.as_of = {then}".encode())
        assert connection.execute("SELECT pieces FROM stock WHERE item = %s", ("tea",)).fetchone() == (100,)
        connection.execute("RESET tidegate.as_of")
        assert connection.execute("SELECT pieces FROM stock WHERE item = 'tea'").fetchone() == (200,)


def test_a_merge_is_seen_whole() -> None:
    """Two rows that always change together are never seen apart."""
    app = App("pairs")
    app.table("CREATE TABLE pairs (side VARCHAR PRIMARY KEY, n INTEGER)")

    @app.procedure(writes=["pairs"])
    def step(txn: Any, n: int) -> None:
        txn.upsert("pairs", ("left", n))
        txn.upsert("pairs", ("right", n))

    with tidegate.open(app, executor="threads", workers=2) as engine:
        engine.call("step", 0)
        engine.checkpoint()
        with ReplicaProcess(engine, Limits(refresh_s=0.01)) as replica:
            shop, stop = Shop(engine, replica), threading.Event()

            def work() -> None:
                n = 0
                while not stop.is_set():
                    n += 1
                    engine.call("step", n)

            worker = threading.Thread(target=work)
            worker.start()
            seen = set()
            for _ in range(60):
                (left,), (right,) = shop.rows("SELECT n FROM pairs ORDER BY side")
                assert left == right
                seen.add(left)
            stop.set()
            worker.join()
            assert len(seen) > 1


def test_an_engine_with_a_directory(tmp_path: Path) -> None:
    with tidegate.open(make_app(), tmp_path / "data") as engine:
        engine.push("orders", [("tea", 1)])
    with (
        tidegate.open(make_app(), tmp_path / "data") as engine,
        ReplicaProcess(engine, Limits(refresh_s=0.05)) as replica,
    ):
        shop = Shop(engine, replica)
        assert shop.rows("SELECT * FROM stock") == [("tea", 1)]  # it was there before
        engine.push("orders", [("jam", 2)])
        assert replica.wait_for(engine.sequence)
        assert sorted(shop.rows("SELECT * FROM stock")) == [("jam", 2), ("tea", 1)]


def test_falling_behind_means_a_whole_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.replica import feed

    monkeypatch.setattr(feed, "PENDING_ROWS", 10)
    for shop in opened(Limits(refresh_s=3600)):
        for n in range(30):
            shop.engine.push("orders", [(item, n) for item in ITEMS])
            shop.engine.checkpoint()
        shop.caught_up()
        assert shop.rows("SELECT DISTINCT pieces FROM stock WHERE item LIKE 'item%'") == [(29,)]


def test_the_engine_may_close_first() -> None:
    engine = tidegate.open(make_app())
    replica = ReplicaProcess(engine).start()
    engine.push("orders", [("tea", 1)])
    engine.close()
    assert replica.wait_for(engine.sequence)  # the last merge is in it
    replica.stop()
    with pytest.raises(TidegateError, match="not running"):
        replica.query_sync("SELECT 1")


def test_nothing_is_left_behind() -> None:
    with tidegate.open(make_app()) as engine:
        replica = ReplicaProcess(engine, pg_port=0).start()
        process = replica.status["process"]
        replica.stop()
        replica.stop()
        assert not Path(f"/proc/{process}").exists()
        assert engine.database.merge_listeners == []
        replica.start()
        replica.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pg_host": "0.0.0.0", "pg_port": 0}, "give passwords"),
        ({"tls": ("/nowhere.pem", "/nowhere.key")}, "there is no file /nowhere.pem"),
    ],
)
def test_unsafe_or_impossible_options(options: dict[str, Any], told: str) -> None:
    with tidegate.open(make_app()) as engine, pytest.raises(TidegateError, match=told):
        ReplicaProcess(engine, **options)


def test_limits_are_checked() -> None:
    with pytest.raises(TidegateError, match="timeout_s"):
        Limits(timeout_s=0)


@pytest.fixture
def mirror() -> Callable[..., Mirror]:
    def make(keep: int = 5, rows: int = 1000) -> Mirror:
        described = [{"name": "t", "columns": [["k", "INTEGER"], ["v", "VARCHAR"]], "primary_key": ["k"]}]
        return Mirror(tables_of(described), {}, 256, 1, keep, rows)

    return make


def test_rows_that_are_due_are_not_shown() -> None:
    described = [
        {"name": "t", "columns": [["k", "INTEGER"], ["t", "TIMESTAMP"], ["d", "DATE"]], "primary_key": ["k"]}
        | {"expire": [column, 3_600_000_000]}
        for column in ("t", "d")
    ]
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    times = [now - dt.timedelta(hours=1, seconds=1), now - dt.timedelta(minutes=50), None]
    days = [now.date() - dt.timedelta(days=1), now.date() + dt.timedelta(days=1), None]
    for table in described:
        made = Mirror(tables_of([table]), {}, 256, 1, 5, 1000, [{"name": "v", "columns": [], "sql": "SELECT k FROM t"}])
        for number in (1, 2):
            made.begin(number, number, number == 1)
            if number == 2:
                made.delete("t", pa.table({"k": pa.array(range(3), pa.int32())}))
            made.insert("t", pa.table({"k": pa.array(range(3), pa.int32()), "t": times, "d": days}))
            made.publish()
        for name in ("t", "public.t", "v"):
            assert made.system.execute(f"SELECT k FROM {name} ORDER BY k").fetchall() == [(1,), (2,)]
        before = Statements(made, 1000)
        sql = before.at(before.prepare("SELECT k FROM t ORDER BY k"), made.state_at(1)).sql
        assert made.system.execute(sql).fetchall() == [(0,), (1,), (2,)]  # what was stored then


def test_history_is_bounded_by_rows(mirror: Callable[..., Mirror]) -> None:
    made = mirror(keep=100, rows=30)
    statements = Statements(made, 1000)
    for number in range(1, 20):
        made.begin(number, number * 10, number == 1)
        if number > 1:
            made.delete("t", pa.table({"k": pa.array(range(10), pa.int32())}))
        made.insert("t", pa.table({"k": pa.array(range(10), pa.int32()), "v": [f"{number}"] * 10}))
        made.publish()
    kept = made.system.execute("SELECT count(*) FROM tg_history.t").fetchall()[0][0]
    assert kept <= 30
    for number in (19, 18, 17, 16):
        prepared = statements.at(statements.prepare("SELECT DISTINCT v FROM t"), made.state_at(number * 10))
        assert made.system.execute(prepared.sql).fetchall() == [(str(number),)]
    with pytest.raises(QueryFailed, match="not retained"):
        made.state_at(150)


def test_an_idle_replica_hastens_no_merge_and_the_next_question_gets_the_newest() -> None:
    for shop in opened(Limits(refresh_s=0.01)):
        merges = shop.engine.merger.count
        for number in range(20):
            shop.engine.push("orders", [("cake", number)])
            time.sleep(0.02)
        assert shop.engine.merger.count == merges  # it has not been asked
        assert shop.rows("SELECT pieces FROM stock WHERE item = 'cake'") == [(19,)]
        shop.engine.push("orders", [("cake", 20)])
        deadline = time.monotonic() + 30
        while shop.engine.database.unmerged and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not shop.engine.database.unmerged  # now it has


def test_a_replica_wakes_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.replica.freshness.PATIENCE_S", 0.01)
    said: list[Any] = []
    position = 5
    freshness = Freshness(said.append, lambda: said.append("rest"), lambda: position)

    async def live() -> None:
        nonlocal position
        await freshness.ensure()  # nobody answers: it goes on with what it has
        monkeypatch.setattr("tidegate.replica.freshness.PATIENCE_S", 600.0)
        asking = asyncio.ensure_future(freshness.ensure())
        await asyncio.sleep(0)
        freshness.told(1, 7)  # an answer to the question of before
        assert not asking.done()
        freshness.told(2, 7)
        await asyncio.sleep(0)
        assert not asking.done()
        position = 7
        freshness.arrived()
        await asking
        await freshness.ensure()
        freshness.look(busy=True)
        monkeypatch.setattr("tidegate.replica.freshness.IDLE_S", -1.0)
        freshness.look(busy=True)
        assert said == [1, 2]
        freshness.look(busy=False)
        assert said == [1, 2, "rest"]

    asyncio.run(live())


def test_a_replica_may_take_its_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long something may take to be sent says nothing about how long there may be silence."""
    monkeypatch.setattr("tidegate.replica.supervisor.SEND_S", 0.05)
    with tidegate.open(make_app()) as engine, ReplicaProcess(engine) as replica:
        assert [batch.num_rows for batch in replica.query_sync("SELECT 1")[1]] == [1]
