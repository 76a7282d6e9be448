"""Streams declared in SQL at work: the same rows as DuckDB gives over all of them, however they come."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tidegate
from tidegate import App

START = dt.datetime(2024, 1, 1)
MESSAGE = """CREATE STREAM message (ts TIMESTAMP NOT NULL, device INTEGER NOT NULL, type VARCHAR, n INTEGER, x DOUBLE,
  WATERMARK FOR ts AS ts - INTERVAL '30' SECOND) WITH (border);
CREATE TABLE kinds (type VARCHAR PRIMARY KEY, weight INTEGER NOT NULL);
"""
WINDOWS = {  # in SQL over the stream, and the relation of windows over all rows in DuckDB
    "TUMBLE(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MINUTE)": (60, 60),
    "HOP(TABLE message, DESCRIPTOR(ts), INTERVAL '20' SECOND, INTERVAL '1' MINUTE)": (20, 60),
    "HOP(TABLE message, DESCRIPTOR(ts), SLIDE => INTERVAL '45' SECOND, SIZE => INTERVAL '30' SECOND)": (45, 30),
    "CUMULATE(TABLE message, DESCRIPTOR(ts), INTERVAL '20' SECOND, INTERVAL '1' MINUTE)": (20, 0),
}
SELECTED = [
    "device, count(*) AS a, sum(n) AS b, avg(n) AS c",
    "device, min(n) AS a, max(x) AS b, count(DISTINCT n) AS c",
    "device, count(n) FILTER (n > 5) AS a, sum(n * 2) AS b, bool_or(type = 'E') AS c",
    "device, median(n) AS a, max(ts) AS b, window_close() AS c",
    "device, list(n ORDER BY ts, n) AS a, count(*) AS b, string_agg(DISTINCT type ORDER BY type) AS c",
]


def windows_over_all(slide: int, size: int) -> str:
    """Every row with each window that holds it, by the definition."""
    epoch = "epoch(ts)::BIGINT"
    if not size:  # CUMULATE of 60 by 20
        ends = f"unnest([e for e in range(({epoch} // 60) * 60 + 20, ({epoch} // 60) * 60 + 61, 20) if e > {epoch}])"
        return f"""SELECT message.*, make_timestamp(((e - 1) // 60) * 60 * 1000000) AS window_start,
                   make_timestamp(e * 1000000) AS window_end FROM message, (SELECT {ends} AS e)"""
    low = f"(({epoch} - {size}) // {slide} + 1)"
    return f"""SELECT message.*, make_timestamp(w * {slide} * 1000000) AS window_start,
               make_timestamp((w * {slide} + {size}) * 1000000) AS window_end
               FROM message, (SELECT unnest(range({low}, {epoch} // {slide} + 1)) AS w)"""


def statement(rng: random.Random) -> tuple[str, str]:
    """A windowed query: over the stream, and over all rows."""
    window = rng.choice(list(WINDOWS))
    select = rng.choice(SELECTED)
    where = rng.choice(["", "WHERE type = 'E'", "WHERE n > 2 AND device < 3"])
    having = rng.choice(["", "HAVING count(*) > 1"])
    top = rng.choice(["", "ORDER BY a DESC NULLS LAST LIMIT 2"])
    stream = f"SELECT {select}, window_start AS low FROM {window} {where} GROUP BY device, window_start {having} {top}"
    inner = f"""SELECT {select.replace("window_close()", "any_value(window_end)")}, any_value(window_start) AS low
                FROM ({windows_over_all(*WINDOWS[window])}) {where} GROUP BY device, window_start, window_end {having}"""
    if top:
        inner = f"""SELECT * EXCLUDE e FROM ({inner.replace("AS low", "AS low, any_value(window_end) AS e", 1)}) QUALIFY
                    row_number() OVER (PARTITION BY low, e ORDER BY a DESC NULLS LAST, device, a, b, c, low) <= 2"""
    return stream, inner


def rows_of(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Messages at most 30 seconds out of order, two of a time sometimes."""
    at, found = 0, []
    for _ in range(count):
        at += rng.choice([0, 1, 1, 4, 25])
        n = rng.choice([None, *range(10)])
        found.append(
            (at - rng.randint(0, 29), rng.randint(0, 3), rng.choice(["E", "W", None]), n, rng.choice([None, 0.5 * at]))
        )
    return [(START + dt.timedelta(seconds=max(0, s)), *rest) for s, *rest in found]


def batches(rng: random.Random, rows: list[Any]) -> Iterator[list[Any]]:
    at = 0
    while at < len(rows):
        size = rng.choice([1, 3, 20, len(rows)])
        yield rows[at : at + size]
        at += size


def rounded(rows: Any) -> list[str]:
    return sorted(
        repr([round(v, 9) if isinstance(v, float) else list(v) if isinstance(v, tuple) else v for v in row])
        for row in rows
    )


def check_case(seed: int, **options: Any) -> None:
    """One random statement over random rows, compared with DuckDB over all of them."""
    rng = random.Random(seed)
    stream, whole = statement(rng)
    rows = rows_of(rng, rng.choice([5, 60]))
    app = App("random")
    app.declare(f"{MESSAGE} CREATE STREAM found AS {stream}")
    with tidegate.open(app, **options) as engine, engine.subscribe("found") as found:
        for batch in batches(rng, rows):
            engine.push("message", batch)
        engine.finish("message").result()
        given = [tuple(row) for batch in found for row in batch]
    database = duckdb.connect()
    database.execute("CREATE TABLE message (ts TIMESTAMP, device INTEGER, type VARCHAR, n INTEGER, x DOUBLE)")
    database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?)", rows)
    wanted = database.execute(whole).fetchall()
    assert rounded(given) == rounded(wanted), f"seed {seed}: {stream}"


@pytest.mark.parametrize("block", range(4))
def test_windows_give_what_duckdb_gives_over_all_rows(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        check_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(30))
def test_windows_give_what_duckdb_gives_over_all_rows_many(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        check_case(seed, **({"executor": "threads"} if seed % 4 == 0 else {}))


# ---- figures of the article on CSA


@cache
def csa() -> App:
    app = App("csa")
    app.declare("""
        CREATE STREAM message (ts TIMESTAMP NOT NULL, device_id INTEGER NOT NULL, type VARCHAR,
        WATERMARK FOR ts AS ts) WITH (border);
        CREATE STREAM top_errors AS                                       -- figure 2
        SELECT device_id, count(*) as err_count FROM message <SLICES '1 minute'>
        WHERE type = 'ERROR' GROUP BY device_id ORDER BY err_count DESC LIMIT 10;
        CREATE STREAM the_same AS
        SELECT device_id, count(*) AS err_count FROM TUMBLE(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MINUTE)
        WHERE type = 'ERROR' GROUP BY window_start, window_end, device_id ORDER BY err_count DESC LIMIT 10;
        CREATE STREAM sliding AS SELECT cq_close(*) AS at, count(*) AS n FROM message <VISIBLE '2 minutes' ADVANCE '1 minute'>;
        CREATE STREAM landmark AS SELECT cq_close(*) AS at, count(*) AS n FROM message m <ADVANCE '1 minute' RESET '3 minutes'>;
        CREATE STREAM by_rows AS SELECT count(*) AS n, max(m.device_id) AS most FROM message m <VISIBLE 10 rows ADVANCE 5 rows>;
        CREATE STREAM of_windows AS SELECT sum(n) AS n FROM sliding <SLICES 2 rows>;
        CREATE STREAM sessions AS SELECT device_id, count(*) AS n FROM message <SESSION device_id TIMEOUT '20 seconds'>
        GROUP BY device_id;
    """)  # fmt: skip
    return app


def test_the_figures_of_the_article() -> None:
    app = csa()
    rows = [(START + dt.timedelta(seconds=s), s % 11, "ERROR" if s % 3 else "OK") for s in range(0, 240, 2)]
    with tidegate.open(app) as engine:
        made = {name: engine.subscribe(name) for name in app.plans}
        for at in range(0, len(rows), 7):
            engine.push("message", rows[at : at + 7])
        engine.finish("message")
        found = {name: [tuple(row) for batch in subscription for row in batch] for name, subscription in made.items()}
    errors: dict[Any, dict[int, int]] = {}
    for ts, device, kind in rows:
        if kind == "ERROR":
            counts = errors.setdefault(ts.replace(second=0), {})
            counts[device] = counts.get(device, 0) + 1
    top = [one for w in errors.values() for one in sorted(w.items(), key=lambda o: (-o[1], o[0]))[:10]]
    assert sorted(found["top_errors"]) == sorted(top) == sorted(found["the_same"])
    minutes = [START + dt.timedelta(minutes=m) for m in range(1, 7)]
    assert found["sliding"] == list(zip(minutes, [30, 60, 60, 60, 30], strict=False))
    assert found["landmark"] == list(zip(minutes, [30, 60, 90, 30, 30, 30], strict=True))
    assert found["by_rows"] == [(10, max(d for _, d, _ in rows[i : i + 10])) for i in range(0, 111, 5)]
    assert found["of_windows"] == [(90,), (120,)]
    assert sum(n for _, n in found["sessions"]) == len(rows)


def test_the_best_effort_join_of_the_article() -> None:
    """Figure 3: each error with what came last from the sensor of its device."""
    app = App("figure3")
    app.declare("""
        CREATE STREAM sensor (device_id INTEGER NOT NULL, torque INTEGER NOT NULL) WITH (border);
        CREATE STREAM message (device_id INTEGER NOT NULL, type VARCHAR) WITH (border);
        CREATE STREAM torques AS
        SELECT s.device_id, s.torque FROM sensor s <VISIBLE 3 rows ADVANCE 1 row>, message m <SLICES 1 row>
        WHERE s.device_id = m.device_id AND s.torque > 100 AND m.type='ERROR';
        CREATE STREAM the_same AS
        SELECT s.device_id, s.torque FROM message m JOIN HOP_ROWS(TABLE sensor, 1, 3) s ON s.device_id = m.device_id
        WHERE s.torque > 100 AND m.type = 'ERROR'
    """)
    for size in (1, 4):
        with tidegate.open(app) as engine, engine.subscribe("torques") as found, engine.subscribe("the_same") as same:
            rows = [(1, 150), (2, 200), (1, 90), (1, 170)]
            for low in range(0, 4, size):
                engine.push("sensor", rows[low : low + size])
            engine.push("message", [(1, "ERROR"), (2, "OK")])
            engine.push("sensor", [(3, 300)])
            engine.push("message", [(2, "ERROR"), (1, "ERROR"), (3, "ERROR")])
            made = [sorted(tuple(row) for row in batch) for batch in found]
            assert made == [[(1, 170)], [(1, 170), (3, 300)]]
            assert [sorted(tuple(row) for row in batch) for batch in same] == made


def test_early_results_say_that_they_are_not_final() -> None:
    app = App("early")
    app.declare("""
        CREATE STREAM message (ts TIMESTAMP NOT NULL, n INTEGER NOT NULL, WATERMARK FOR ts AS ts) WITH (border);
        CREATE STREAM sums AS SELECT window_start, sum(n) AS n FROM message <SLICES '1 minute'> EMIT EVERY INTERVAL '20' SECOND
    """)
    assert "Emit every 20s, and when a window closes (final)" in app.explain("sums")
    with tidegate.open(app) as engine, engine.subscribe("sums") as sums:
        for second in (5, 25, 45, 65):
            engine.push("message", [(START + dt.timedelta(seconds=second), second)])
        engine.finish("message")
        found = [tuple(row)[1:] for batch in sums for row in batch]
    assert found == [(5, False), (30, False), (75, True), (65, False), (65, True)]


# ---- filters, lookups, joins


@cache
def shop() -> App:
    app = App("shop")
    app.declare("""
        CREATE STREAM orders (number INTEGER NOT NULL, item VARCHAR, pieces INTEGER, ts TIMESTAMP NOT NULL,
        WATERMARK FOR ts AS ts) WITH (border);
        CREATE STREAM paid (number INTEGER NOT NULL, amount INTEGER, ts TIMESTAMP NOT NULL, WATERMARK FOR ts AS ts) WITH (border);
        CREATE TABLE products (item VARCHAR PRIMARY KEY, price INTEGER NOT NULL);
        CREATE STREAM many AS SELECT *, pieces * 2 AS twice FROM orders WHERE pieces >= 5;
        CREATE STREAM bills AS SELECT o.number, o.pieces * p.price AS amount
        FROM orders o JOIN products FOR SYSTEM_TIME AS OF o.proctime AS p ON p.item = o.item;
        CREATE STREAM settled AS SELECT o.number, p.amount, p.ts - o.ts AS took
        FROM orders o JOIN paid p ON o.number = p.number AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '10 seconds'
        WHERE p.amount > 0;
        CREATE STREAM all_orders AS SELECT o.number, p.amount, p.number AS other
        FROM orders o LEFT JOIN paid p ON o.number = p.number AND p.ts >= o.ts AND p.ts < o.ts + INTERVAL '10 seconds';
        CREATE STREAM unpaid AS SELECT o.number
        FROM orders o ANTI JOIN paid p ON o.number = p.number AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '10 seconds';
        CREATE STREAM soon AS SELECT o.number FROM orders o, paid p
        WHERE o.number = p.number AND p.ts >= o.ts + INTERVAL '2 seconds' AND p.ts <= o.ts + INTERVAL '4 seconds';
    """)  # fmt: skip

    @app.procedure(writes=["products"])
    def set_price(txn: Any, item: str, price: int) -> None:
        txn.upsert("products", (item, price))

    return app


def test_filters_lookups_and_joins() -> None:
    at = [START + dt.timedelta(seconds=s) for s in range(100)]
    with tidegate.open(shop()) as engine:
        made = {name: engine.subscribe(name) for name in shop().plans}
        engine.call("set_price", "tea", 3)
        engine.push("orders", [(1, "tea", 2, at[0]), (2, "cup", 7, at[1])])
        engine.call("set_price", "tea", 4)
        engine.push("orders", [(3, "tea", 5, at[3]), (4, "tea", 1, at[4])])
        engine.push("paid", [(1, 6, at[3]), (3, 0, at[4]), (4, 4, at[14])])
        engine.finish("orders")
        engine.finish("paid")
        found = {
            name: sorted(tuple(row) for batch in subscription for row in batch) for name, subscription in made.items()
        }
    assert found["many"] == [(2, "cup", 7, at[1], 14), (3, "tea", 5, at[3], 10)]
    assert found["bills"] == [(1, 6), (3, 20), (4, 4)]
    assert found["settled"] == [(1, 6, dt.timedelta(seconds=3)), (4, 4, dt.timedelta(seconds=10))]
    assert found["all_orders"] == [(1, 6, 1), (2, None, None), (3, 0, 3), (4, None, None)]
    assert found["unpaid"] == [(2,)]
    assert found["soon"] == [(1,)]


def test_many_rows_go_through_duckdb_and_give_the_same() -> None:
    rows = [(i, "tea", i % 9, START + dt.timedelta(seconds=i)) for i in range(5_000)]
    found = []
    for size in (500, 5_000):
        with tidegate.open(shop()) as engine, engine.subscribe("many") as many:
            for low in range(0, len(rows), size):
                engine.push("orders", rows[low : low + size])
            found.append(sorted(tuple(row) for batch in many for row in batch))
    assert found[0] == found[1]
    assert len(found[0]) == 2_220


def test_a_declared_stream_is_a_member_of_a_nested_transaction() -> None:
    app = App("together")
    app.declare("""CREATE STREAM orders (item VARCHAR NOT NULL, pieces INTEGER NOT NULL) WITH (border);
                   CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces INTEGER NOT NULL);
                   CREATE STREAM wanted AS SELECT item, pieces FROM orders WHERE pieces > 0""")

    @app.procedure(inputs="wanted", writes=["stock"])
    def take(txn: Any, wanted: Any) -> None:
        for order in wanted:
            if order.item == "gone":
                txn.abort("there is none")
            txn.upsert("stock", (order.item, order.pieces))

    app.nested("wanted", take, name="sell")
    with tidegate.open(app) as engine, engine.subscribe("wanted") as wanted:
        engine.push("orders", [("tea", 3), ("tea", 0)])
        engine.push("orders", [("gone", 1)])
        assert [tuple(row) for batch in wanted for row in batch] == [("tea", 3)]
        assert engine.query("SELECT * FROM stock").rows == [("tea", 3)]


def test_a_file_of_sql_is_an_app_and_survives_being_closed(tmp_path: Path) -> None:
    from tidegate.loading import load_app

    flows = tmp_path / "flows.sql"
    flows.write_text(
        MESSAGE + "CREATE STREAM n AS SELECT count(*) AS n FROM message <SLICES '1 minute'>;", encoding="utf-8"
    )
    rows = [(START + dt.timedelta(seconds=40 * i), 1, "E", 1, 0.5) for i in range(6)]
    found = []
    for row in rows:
        with tidegate.open(load_app(str(flows)), tmp_path / "data") as engine, engine.subscribe("n") as n:
            engine.push("message", [row])
            found += [one.n for batch in n for one in batch]
    with tidegate.open(load_app(str(flows)), tmp_path / "data") as engine, engine.subscribe("n") as n:
        engine.finish("message")
        found += [one.n for batch in n for one in batch]
    assert sorted(found) == [1, 1, 2, 2]  # those of one batch in any order
    assert load_app(str(flows)).name == "flows"
    flows.write_text("CREATE STREAM n AS SELECT nme FROM nothing", encoding="utf-8")
    with pytest.raises(tidegate.DeclarationError, match=r"flows.sql, line 1, column "):
        load_app(str(flows))
