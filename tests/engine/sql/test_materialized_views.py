"""Materialized views: at every position what their query gives over the tables there, byte for byte under every executor."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shops import Shop

import tidegate
from tidegate import App, Engine
from tidegate.errors import DeclarationError
from tidegate.offline.verify import verify
from tidegate.replica import Limits, ReplicaProcess

TABLES = """
CREATE TABLE stock (id INTEGER PRIMARY KEY, shop VARCHAR, pieces INTEGER, price DOUBLE, tax DECIMAL(9, 2), big BIGINT,
  sold BOOLEAN);
CREATE INDEX by_shop ON stock (shop);
CREATE TABLE shops (shop VARCHAR PRIMARY KEY, city VARCHAR NOT NULL, grade INTEGER);
"""  # fmt: skip
QUERIES = [
    "SELECT shop, count(*) AS n, sum(pieces) AS pieces, avg(price) AS mean FROM stock GROUP BY shop",
    "SELECT shop, min(pieces) AS a, max(price) AS b, min(tax) AS c, max(big) AS d, bool_or(sold) AS e FROM stock GROUP BY shop",
    "SELECT count(*) AS n, sum(price) AS s, sum(tax) AS t, sum(big) AS b, min(price) AS lo, avg(tax) AS a FROM stock "
    "WHERE pieces > 2",
    "SELECT count(DISTINCT pieces) AS d, count(DISTINCT price) AS e, count(sold) AS f FROM stock",
    "SELECT pieces % 3 AS r, shop, count(*) FILTER (sold) AS s, sum(price) FILTER (pieces > 1) AS p FROM stock GROUP BY ALL",
    "SELECT shop, sum(pieces) * 2 + count(*) AS x FROM stock WHERE sold GROUP BY 1 HAVING count(*) > 1 AND max(pieces) > 2",
    "SELECT shop, count(*) AS n FROM stock GROUP BY shop ORDER BY n DESC, shop LIMIT 2",
    "SELECT id, upper(shop) AS shop, pieces + 1 AS more FROM stock WHERE price > 0 OR price IS NULL",
    "SELECT shop, pieces FROM stock",
    "SELECT DISTINCT shop, sold FROM stock WHERE pieces IS NOT NULL",
    "SELECT shop, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS place FROM stock GROUP BY shop",
    "SELECT c.city, count(*) AS n, sum(s.pieces) AS p, min(s.price) AS lo FROM stock s JOIN shops c ON c.shop = s.shop "
    "GROUP BY c.city",
    "SELECT s.id, c.city, s.pieces * c.grade AS x FROM stock s, shops c WHERE s.shop = c.shop AND c.grade > 1",
    "SELECT c.city, q.n FROM shops c LEFT JOIN (SELECT shop, count(*) AS n FROM stock GROUP BY shop) q ON q.shop = c.shop",
    "SELECT shop FROM stock GROUP BY shop EXCEPT SELECT shop FROM shops",
    "SELECT shop, count(*) AS n FROM stock GROUP BY shop UNION ALL SELECT city, sum(grade) FROM shops GROUP BY city",
    "WITH q AS (SELECT shop, sum(pieces) AS p FROM stock GROUP BY shop) SELECT max(p) AS most, count(*) AS n FROM q",
    "SELECT shop, n FROM (SELECT shop, count(*) AS n FROM stock GROUP BY shop) WHERE n = (SELECT max(grade) FROM shops)",
    "SELECT c.grade, count(*) AS n FROM shops c JOIN stock s USING (shop) WHERE s.pieces > c.grade GROUP BY c.grade",
]  # fmt: skip


@cache
def stock(chosen: tuple[int, ...], recovery: Any = "weak") -> App:
    app = App("stock", recovery=recovery)
    app.declare(TABLES + "".join(f"CREATE MATERIALIZED VIEW v{i} AS {QUERIES[i]};\n" for i in chosen))
    app.stream("moves", "shop VARCHAR, city VARCHAR, fail BOOLEAN", border=True)
    app.stream("moved", "shop VARCHAR, fail BOOLEAN")

    @app.procedure(writes=["stock"])
    def put(txn: Any, rows: list[Any], gone: list[int]) -> None:
        for row in rows:
            txn.upsert("stock", row)
        for key in gone:
            txn.delete("stock", key)

    @app.procedure(inputs="moves", outputs="moved", writes=["shops"])
    def move(txn: Any, moves: Any) -> None:
        for one in moves:
            if one.city is None:
                txn.delete("shops", one.shop)
            else:
                txn.upsert("shops", (one.shop, one.city, len(one.city)))
            txn.emit("moved", shop=one.shop, fail=one.fail)

    @app.procedure(inputs="moved", writes=["stock"])
    def bump(txn: Any, moved: Any) -> None:
        for one in moved:
            txn.execute("UPDATE stock SET pieces = pieces + 1, shop = 'c' WHERE shop = ?", one.shop)
            if one.fail:
                txn.abort("asked to")

    app.nested(move, bump)
    return app


def row(rng: random.Random) -> tuple[Any, ...]:
    price = rng.choice([None, 0.1, 0.2, -1.5, 1e-3, float("nan"), float("inf"), 2.5])
    return (
        rng.randrange(12), rng.choice(["a", "b", "c", None]), rng.choice([None, 1, 2, 3, 4]), price,
        rng.choice([None, Decimal("1.25"), Decimal("-3.50")]), rng.choice([None, 2**62, -(2**62), 7]),
        rng.choice([None, True, False]),
    )  # fmt: skip


def act(engine: Engine, rng: random.Random) -> None:
    if rng.random() < 0.35:
        city = rng.choice([None, "x", "yy", "zzz"])
        engine.push("moves", [(rng.choice("abc"), city, rng.random() < 0.3)])
    else:
        engine.call("put", [row(rng) for _ in range(rng.randrange(5))], [rng.randrange(12)])


def shown(engine: Engine, sql: str) -> list[str]:
    return sorted(
        repr([None if v is None else repr(v) if not isinstance(v, float) else f"{v:.12g}" for v in one])
        for one in engine.query(sql).rows
    )


def check(engine: Engine, app: App, context: object) -> None:
    for name in app.views:
        sql = QUERIES[int(name[1:])] if name[1:].isdigit() and context != "replaced" else app.maintained[name].sql
        assert shown(engine, f"SELECT * FROM {name}") == shown(engine, sql), f"{context}: {sql}"


@pytest.mark.parametrize("first", range(0, len(QUERIES), 5))
def test_at_every_position_a_view_is_its_query(first: int) -> None:
    app = stock(tuple(range(first, min(first + 5, len(QUERIES)))))
    with tidegate.open(app) as engine:
        rng = random.Random(first)
        for step in range(25):
            act(engine, rng)
            check(engine, app, (first, step))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_at_every_position_a_view_is_its_query_many(seed: int) -> None:
    rng = random.Random(seed)
    app = stock(tuple(range(len(QUERIES))))
    with tidegate.open(app) as engine:
        for step in range(75):
            act(engine, rng)
            check(engine, app, (seed, step))


ALL = tuple(range(len(QUERIES)))


def states(engine: Engine) -> dict[str, list[Any]]:
    """Everything that is kept, as stored."""
    names = [schema.name for view in engine.app.maintained.values() for schema in view.states]
    return {name: [tuple(row) for row in engine.query(f'SELECT * FROM "{name}" ORDER BY 1, 2').rows] for name in names}


def told(found: dict[str, list[Any]]) -> str:
    return repr(found)


def test_threads_replays_and_kills_leave_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for executor, recovery in (("serial", "weak"), ("threads", "weak"), ("serial", "strong"), ("serial", "effects")):
        app = stock(ALL, recovery)
        rng = random.Random(7)
        path = tmp_path / f"{executor}-{recovery}"
        for _ in range(3):
            engine = tidegate.open(app, path, executor=executor)
            for _ in range(8):
                act(engine, rng)
            engine.abandon()
        with tidegate.open(app, path, executor=executor) as engine:
            assert engine.recovery.records
            check(engine, app, executor)
            found.append(told(states(engine)))
            engine.checkpoint()
            assert told(states(engine)) == found[-1]
    assert len(set(found)) == 1
    assert not verify(stock(ALL, "weak"), tmp_path / "serial-weak").differences


def test_a_view_begins_with_what_its_tables_hold(tmp_path: Path) -> None:
    """A new view, another query under its name, one that is gone: each at a position, and nothing else is lost."""
    rng = random.Random(3)
    for chosen in ((), (0, 12), (0, 1, 12), (1,), (1, 2)):
        app = stock(chosen)
        with tidegate.open(app, tmp_path / "db") as engine:
            check(engine, app, chosen)
            for _ in range(6):
                act(engine, rng)
            check(engine, app, chosen)
    app = App("stock")
    app.declare(TABLES + "CREATE OR REPLACE MATERIALIZED VIEW v1 AS SELECT count(*) AS n FROM stock")
    with tidegate.open(app, tmp_path / "db", drop=["moves"]) as engine:
        check(engine, app, "replaced")
        assert engine.query("SELECT n FROM v1").scalar() == engine.query("SELECT count(*) FROM stock").scalar() > 0


def test_a_procedure_reads_a_view_as_its_tables_are_for_it() -> None:
    app = App("reading")
    app.declare("""CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER NOT NULL);
                   CREATE STREAM s (id INTEGER NOT NULL, x INTEGER NOT NULL) WITH (border);
                   CREATE MATERIALIZED VIEW v AS SELECT x, count(*) AS n FROM t GROUP BY x""")

    @app.procedure(inputs="s", writes=["t"], reads=["v"])
    def put(txn: Any, s: Any) -> None:
        for row in s:
            txn.upsert("t", row)
            seen.append([tuple(one) for one in txn.execute("SELECT * FROM v")])

    @app.procedure(reads=["v"])
    def look(txn: Any) -> Any:
        return [tuple(one) for one in txn.execute("SELECT * FROM v WHERE n > 1")]

    seen: list[Any] = []
    with tidegate.open(app) as engine:
        engine.push("s", [(1, 5), (2, 5), (1, 6)])
        assert seen == [[(5, 1)], [(5, 2)], [(5, 1), (6, 1)]]
        assert engine.call("look") == []
        engine.push("s", [(3, 6)])
        assert engine.call("look") == [(6, 2)]
    with pytest.raises(DeclarationError, match="no table"):

        @app.procedure(writes=["v"])
        def change(txn: Any) -> None:
            pass


def test_the_changes_of_a_view_have_weights(tmp_path: Path) -> None:
    app = App("followed")
    app.declare("""CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER);
                   CREATE MATERIALIZED VIEW by_x WITH (changelog) AS
                   SELECT x, count(*) AS n FROM t GROUP BY x HAVING count(*) > 1;
                   CREATE MATERIALIZED VIEW xs WITH (changelog) AS SELECT x FROM t;
                   CREATE MATERIALIZED VIEW total WITH (changelog) AS SELECT sum(x) AS x FROM t""")

    @app.procedure(writes=["t"])
    def put(txn: Any, id: int, x: int | None) -> None:
        txn.upsert("t", (id, x))

    with tidegate.open(app, tmp_path / "db") as engine:
        engine.call("put", 1, 5)
        follow = [engine.subscribe(f"{view}_changes") for view in app.maintained]
        durable = engine.subscribe_durably("xs_changes", "mine")
        for id, x in ((2, 5), (2, 6), (3, 5), (1, None)):
            engine.call("put", id, x)
        by_x, xs, total = ([tuple(row[:-1]) for batch in one for row in batch] for one in follow)
        assert by_x == [(5, 2, 1), (5, 2, -1), (5, 2, 1), (5, 2, -1)]
        assert xs == [(5, 1), (5, -1), (6, 1), (5, 1), (5, -1), (None, 1)]
        assert total == [(5, -1), (10, 1), (10, -1), (11, 1), (11, -1), (16, 1), (16, -1), (11, 1)]
        begun = [tuple(row[:-1]) for batch in durable for row in batch]
        assert begun == [(5, 1), *xs]
    with pytest.raises(DeclarationError, match="because of ORDER BY"):
        app.declare(
            "CREATE MATERIALIZED VIEW top WITH (changelog) AS SELECT x, count(*) AS n FROM t GROUP BY x ORDER BY n LIMIT 1"
        )


def test_what_is_told_of_a_view() -> None:
    told = stock((0, 11, 14)).explain("v11").splitlines()
    assert told[0] == "materialized view v11"
    assert told[1].startswith("  State tidegate_view_v11_")
    assert [line.partition(" (")[0] for line in told if line.startswith("  Changes")] == [
        "  Changes of stock: select: row by row over the batch; DuckDB from 2,000 rows on",
        "  Changes of shops: select: DuckDB over the base and the changes above it",
    ]
    assert told[-1].startswith("  Shown SELECT")
    with pytest.raises(DeclarationError, match="v14"):
        stock((0, 11, 14)).explain("v1")


REFUSED = [
    ("SELECT a FROM t LEFT JOIN u ON t.id = u.id", "LEFT JOIN is not maintained"),
    ("SELECT a FROM t WHERE a IN (SELECT id FROM u)", "it has a subquery"),
    ("SELECT a FROM t UNION SELECT id FROM u", "rows of a subquery are not kept"),
    ("WITH q AS (SELECT 1) SELECT a FROM t", "it has a subquery or WITH"),
    ("SELECT stddev(a) AS x FROM t", r"stddev\(\) is not maintained"),
    ("SELECT sum(DISTINCT a) AS x FROM t", r"sum\(DISTINCT …\) is not maintained"),
    ("SELECT rank() OVER (ORDER BY a) AS x FROM t", "window functions over rows"),
    ("SELECT t.a FROM t JOIN t AS o ON o.id = t.a", "joins a table with itself"),
    ("SELECT a, now() AS x FROM t", "time or chance"),
    ("SELECT a, count(*) AS n FROM t GROUP BY ROLLUP (a)", "ROLLUP"),
    ("SELECT a FROM old", "rows of old expire"),
    ("SELECT n FROM w", "reads another materialized view"),
    ("SELECT a, id FROM t GROUP BY a", "id"),
    ("SELECT nothing FROM t", "nothing"),
]


@pytest.mark.parametrize(("sql", "why"), REFUSED)
def test_what_is_not_maintained_is_refused(sql: str, why: str) -> None:
    app = App("refusing")
    app.declare("""CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER); CREATE TABLE u (id INTEGER PRIMARY KEY);
                   CREATE TABLE old (a TIMESTAMP PRIMARY KEY) WITH (expire = 'a 1h');
                   CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM t""")
    before = set(app.tables), set(app.views), set(app.procedures)
    with pytest.raises(DeclarationError, match=rf"(?s)line 1, column \d+: .*{why}"):
        app.declare(f"CREATE MATERIALIZED VIEW v AS {sql}")
    assert (set(app.tables), set(app.views), set(app.procedures)) == before


def test_the_endpoint_shows_materialized_views() -> None:
    with tidegate.open(stock((0, 8))) as engine:
        engine.call("put", [(1, "a", 2, 0.5, None, None, True), (2, "a", 3, None, None, None, True)], [])
        replica = ReplicaProcess(engine, Limits(refresh_s=0.05), pg_port=0, passwords={"all": "x"})
        with replica:
            shop = Shop(engine, replica)
            shop.caught_up()
            with psycopg.connect(f"{shop.dsn.replace('anyone', 'all')} password=x", autocommit=True) as connection:
                assert connection.execute("SELECT * FROM v0").fetchall() == [("a", 2, 5, 0.5)]
                assert sorted(connection.execute("SELECT * FROM v8").fetchall()) == [("a", 2), ("a", 3)]
