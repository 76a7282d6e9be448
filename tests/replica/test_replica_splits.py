"""A replica shows the same windows, and the same of their system view, however rows were split into batches."""

from __future__ import annotations

import random
from typing import Any

import pytest
from shops import Shop

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.replica import Limits, ReplicaProcess

KINDS: dict[str, dict[str, Any]] = {
    "counted": {"count": 4, "slide": 3, "by": "k"},
    "timed": {"time": 10, "slide": 5, "on": "tick"},
    "sessions": {"session": 3, "on": "tick", "by": "k"},
    "landmarks": {"landmark": 6, "slide": 2},
}
LABELS = "window_number, CAST(window_start AS VARCHAR), CAST(window_end AS VARCHAR)"
ROWS = [(i, chance.choice("ab"), i + chance.choice((0, 1, 2))) for chance in [random.Random(5)] for i in range(40)]


def watching() -> App:
    """For each kind a procedure that keeps what its SQL, its trigger and ``results`` see of each window."""
    app = App("watching")
    app.stream("s", "id BIGINT NOT NULL, k VARCHAR NOT NULL, tick BIGINT NOT NULL", border=True)
    for kind, options in KINDS.items():
        for seen in ("sql", "trigger"):
            app.table(
                f"CREATE TABLE {kind}_{seen} (k VARCHAR, number BIGINT, starts VARCHAR, ends VARCHAR, ids BIGINT, "
                "PRIMARY KEY (k, number))"
            )
        app.table(f"CREATE TABLE {kind}_results (k VARCHAR, number BIGINT, n BIGINT, PRIMARY KEY (k, number))")
        watch(app, kind, options)
    return app


def watch(app: App, kind: str, options: dict[str, Any]) -> None:
    key = "k" if "by" in options else "'all'"

    def look(txn: Transaction, s: Batch) -> None:
        txn.execute(f"INSERT INTO {kind}_sql SELECT {key}, {LABELS}, sum(id) FROM recent GROUP BY ALL")
        for row in txn.window("sums").results:
            txn.insert(f"{kind}_results", (row[0] if "by" in options else "all", row.window_number, row.n))

    look.__name__ = kind
    app.procedure(
        inputs="s",
        writes=[f"{kind}_{seen}" for seen in ("sql", "trigger", "results")],
        windows={"recent": window("s", **options), "sums": window("s", **options, compute={"n": w.count()})},
    )(look)
    app.trigger(
        f"{kind}.recent", f"INSERT INTO {kind}_trigger SELECT {key}, {LABELS}, sum(id) FROM recent GROUP BY ALL"
    )


def pushed(engine: Engine, sizes: list[int]) -> None:
    at = 0
    for size in sizes:
        engine.push("s", ROWS[at : at + size])
        at += size
    assert at == len(ROWS)


@pytest.fixture(scope="module")
def shown() -> dict[str, list[Any]]:
    """What an engine that got single rows answers."""
    with tidegate.open(watching()) as engine:
        pushed(engine, [1] * len(ROWS))
        return {sql: [tuple(row) for row in engine.query(sql)] for sql in questions()}


def questions() -> list[str]:
    tables = [f"{kind}_{seen}" for kind in KINDS for seen in ("sql", "trigger", "results")]
    views = ["SELECT name, kind, held, fired, watermark, late FROM tidegate.windows ORDER BY ALL"]
    return [f"SELECT * FROM {table} ORDER BY ALL" for table in tables] + views


@pytest.mark.parametrize("sizes", [[40], [7, 1, 20, 3, 9], [13, 27]], ids=str)
def test_a_replica_shows_the_same_however_rows_were_split(shown: dict[str, list[Any]], sizes: list[int]) -> None:
    with (
        tidegate.open(watching(), executor="threads", workers=2) as engine,
        ReplicaProcess(engine, Limits(timeout_s=60, refresh_s=0.05)) as replica,
    ):
        shop = Shop(engine, replica)
        pushed(engine, sizes)
        engine.run_until_idle()
        shop.caught_up()
        assert {sql: shop.rows(sql) for sql in questions()} == shown
    assert all(len(rows) > 2 for rows in shown.values())
