"""How rows were split into batches changes nothing: not what a procedure gets, not what SQL and triggers see of a window."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

from tidegate import App, Batch, DeclarationError, Engine, Transaction, window
from tidegate import windows as w

Open = Callable[..., Engine]
Rows = list[tuple[Any, ...]]

COLUMNS = (
    "id BIGINT NOT NULL, moment TIMESTAMP NOT NULL, tick BIGINT NOT NULL, level DOUBLE NOT NULL, k VARCHAR, mark BOOLEAN, "
    "price DECIMAL(9,2), ids UUID[]"
)
KINDS: dict[str, dict[str, Any]] = {
    "count": {"count": 4},
    "count, sliding": {"count": 4, "slide": 1},
    "count, hopping": {"count": 2, "slide": 5},
    "count, by key": {"count": 3, "slide": 2, "by": "k"},
    "count, in order of time": {"count": 3, "on": "moment", "delay": "2s"},
    "time": {"time": "4s", "slide": "2s", "on": "moment"},
    "time, by key, waiting": {"time": "4s", "on": "moment", "delay": "3s", "by": "k"},
    "time, adjusted": {"time": "4s", "on": "moment", "late": "adjust"},
    "time, whole numbers": {"time": 10, "slide": 5, "on": "tick"},
    "slide by tuple": {"time": "6s", "slide_rows": 3, "on": "moment"},
    "slide by time": {"count": 3, "slide_time": "4s", "on": "moment", "by": "k"},
    "delta": {"delta": 5, "slide": 2, "on": "level"},
    "session": {"session": "3s", "on": "moment"},
    "session, closed, by key": {"session": "4s", "close": "mark", "on": "moment", "by": "k"},
    "landmark": {"landmark": 6, "slide": 2},
    "landmark, by time": {"landmark": "12s", "slide": "4s", "on": "moment"},
    "until": {"until": "mark"},
}
LISTED = (
    "place BIGINT PRIMARY KEY, k VARCHAR, number BIGINT, starts VARCHAR, ends VARCHAR, n BIGINT, total DECIMAL(38,2)"
)
# what is compared; the place of a row is when it was written
TABLES = {
    "sql": "k VARCHAR, number BIGINT, id BIGINT, starts VARCHAR, ends VARCHAR, told VARCHAR, PRIMARY KEY (k, number, id)",
    "sums_sql": "k VARCHAR, number BIGINT, starts VARCHAR, ends VARCHAR, n BIGINT, total DECIMAL(38,2), PRIMARY KEY (k, number)",
    **dict.fromkeys(("runs", "python", "sums_runs", "sums_python"), LISTED),
}
NEXT = "(SELECT coalesce(max(place), 0) + 1 FROM {0})"
BOUNDS = "CAST(window_start AS VARCHAR), CAST(window_end AS VARCHAR)"


def watching(options: dict[str, Any]) -> App:
    """A procedure that writes down everything there is to see of a window, with ``compute`` and without."""
    app = App("watching")
    for name, columns in TABLES.items():
        app.table(f"CREATE TABLE {name}_seen ({columns})")
    app.table("CREATE TABLE places (name VARCHAR PRIMARY KEY, place BIGINT NOT NULL)")
    app.stream("s", COLUMNS, border=True)
    key = "coalesce(k, '-')" if "by" in options else "'-'"

    @app.procedure(
        inputs="s",
        writes=["places", *(f"{name}_seen" for name in TABLES)],
        windows={
            "recent": window("s", **options),
            "sums": window("s", **options, compute={"n": w.count(), "total": w.sum("price")}),
        },
    )
    def watch(txn: Transaction, s: Batch) -> None:
        told = "concat_ws('|', moment, tick, level, k, mark, price, ids)"
        txn.execute(f"INSERT INTO sql_seen SELECT {key}, window_number, id, {BOUNDS}, {told} FROM recent")
        txn.execute(f"INSERT INTO sums_sql_seen SELECT {key}, window_number, {BOUNDS}, n, total FROM sums")
        for extent in txn.window("recent").windows:
            priced = [row.price for row in extent.rows if row.price is not None]
            write(txn, "python_seen", extent.key, extent.number, len(extent), sum(priced) if priced else None)
        for row in txn.window("sums").results:
            write(txn, "sums_python_seen", row[:1] if "by" in options else (), row.window_number, row.n, row.total)

    def write(txn: Transaction, table: str, by: tuple[Any, ...], number: int, n: int, total: Any) -> None:
        before = txn.get("places", table)
        place = 1 if before is None else before.place + 1
        txn.upsert("places", (table, place))
        txn.insert(table, (place, (by[0] or "-") if by else "-", number, None, None, n, total))

    labels = f"max(window_number), {BOUNDS.replace('(window', '(max(window').replace(' AS', ') AS')}"
    for name, found in (("runs", "count(*), sum(price)"), ("sums_runs", "max(n), max(total)")):
        on = "recent" if name == "runs" else "sums"
        group = key.replace("k,", "max(k),")
        app.trigger(
            f"watch.{on}",
            f"INSERT INTO {name}_seen SELECT {NEXT.format(name + '_seen')}, {group}, {labels}, {found} FROM {on}",
        )
    return app


def some_rows(seed: int, n: int = 24) -> Rows:
    chance = random.Random(seed)
    rows: Rows = []
    at, level = 0.0, 0.0
    for i in range(n):
        at += chance.choice((0, 0.5, 1, 1, 2, 5))
        level += chance.choice((-1, 0.5, 1, 3))
        shift = chance.choice((0, 0, 0, 1, 2, 6))  # some come late, or too late
        moment = dt.datetime(2026, 1, 1) + dt.timedelta(seconds=max(0.0, at - shift))
        price = None if chance.random() < 0.2 else Decimal(chance.randrange(1000)) / 100
        k = chance.choice(("a", "b", None))
        ids = chance.choice((None, (), (uuid.UUID(int=i), None)))
        rows.append((i, moment, int(at), level, k, chance.choice((True, False, False, None)), price, ids))
    return rows


def splits(rows: Rows, seed: int) -> list[list[Rows]]:
    """One by one, all at once, some at a time."""
    cuts = sorted(random.Random(seed).sample(range(1, len(rows)), 5))
    some = [rows[low:high] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return [[[row] for row in rows], [rows], some]


def seen(engine: Engine, batches: Sequence[Rows]) -> dict[str, Rows]:
    for batch in batches:
        engine.push("s", batch)
    engine.run_until_idle()
    assert engine.query("SELECT reason FROM tidegate.aborts").rows == []
    told = "SELECT name, kind, held, fired, watermark, late FROM tidegate.windows ORDER BY ALL"
    return {"view": [tuple(row) for row in engine.query(told).rows]} | {
        name: [tuple(row) for row in engine.query(f"SELECT * FROM {name}_seen ORDER BY ALL").rows] for name in TABLES
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_looking_sees_the_same_however_rows_were_split(open_engine: Open, kind: str) -> None:
    seed = list(KINDS).index(kind)
    rows = some_rows(seed)
    expected = None
    for batches, executor in zip(splits(rows, seed), ("serial", "serial", "threads"), strict=True):
        found = seen(open_engine(watching(KINDS[kind]), executor=executor, workers=2), batches)
        expected = expected or found
        assert found == expected, f"in batches of {[len(batch) for batch in batches]}"
    assert expected is not None
    check_consistent(expected)


def check_consistent(found: dict[str, Rows]) -> None:
    """SQL, triggers, Python and what is computed tell the same windows, in the same order."""
    assert len(found["runs"]) > 2
    told = [(k, number, n, total) for _, k, number, _, _, n, total in found["runs"]]
    assert [(k, number, n, total) for _, k, number, _, _, n, total in found["python"]] == told
    assert [(k, number, n, total) for _, k, number, _, _, n, total in found["sums_python"]] == told
    assert found["sums_runs"] == found["runs"]
    windows = {(k, number): (starts, ends, n) for _, k, number, starts, ends, n, _ in found["runs"]}
    held: dict[Any, list[tuple[Any, ...]]] = {}
    for k, number, _, starts, ends, _ in found["sql"]:
        held.setdefault((k, number), []).append((starts, ends))
    assert {which: (*set(rows), len(rows)) for which, rows in held.items()} == {
        which: ((starts, ends), n) for which, (starts, ends, n) in windows.items()
    }
    assert [(k, number, starts, ends) for k, number, starts, ends, _, _ in found["sums_sql"]] == sorted(
        (*which, *told[:2]) for which, told in windows.items()
    )


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_windows_of_batches_hold_whole_batches_in_every_way_of_looking(open_engine: Open, batches: int) -> None:
    rows = some_rows(99)
    given = [rows[low : low + 3] for low in range(0, 21, 3)]
    options = {"batches": batches, "slide": 1}
    found = seen(open_engine(watching(options), executor="serial"), given)
    assert seen(open_engine(watching(options), executor="threads", workers=2), given) == found
    check_consistent(found)
    bounds = [(number, starts, ends, n) for _, _, number, starts, ends, n, _ in found["runs"]]
    assert bounds == [(i, str(i), str(i + batches), 3 * batches) for i in range(8 - batches)]


NOTED = """INSERT INTO noted SELECT coalesce((SELECT max(place) + 1 FROM noted), 1), '{0}', max(window_number), sum(n) FROM {0}"""


def noting(one: dict[str, Any], other: dict[str, Any]) -> App:
    """Triggers on two windows write to one table, each with what it finds there."""
    app = App("noting")
    app.table("CREATE TABLE noted (place BIGINT PRIMARY KEY, name VARCHAR, number BIGINT, total BIGINT)")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)

    @app.procedure(
        inputs="numbers",
        writes=["noted"],
        windows={"one": window("numbers", **one), "other": window("numbers", **other)},
    )
    def look(txn: Transaction, numbers: Batch) -> None: ...

    for name in ("one", "other"):
        app.trigger(f"look.{name}", NOTED.format(name))
    return app


@pytest.mark.parametrize("one", [{"count": 4}, {"count": 5, "slide": 1}, {"count": 5, "slide": 2}], ids=str)
@pytest.mark.parametrize("other", [{"count": 3}, {"count": 1}, {"count": 4, "slide": 3}], ids=str)
def test_triggers_of_two_windows_take_turns_by_the_rows_that_completed_them(
    open_engine: Open, one: dict[str, Any], other: dict[str, Any]
) -> None:
    rows: Rows = [(n,) for n in range(24)]
    found = []
    for batches in [*splits(rows, 1), *splits(rows, 2)[2:]]:
        engine = open_engine(noting(one, other))
        for batch in batches:
            engine.push("numbers", batch)
        found.append(engine.query("SELECT * FROM noted ORDER BY place").rows)
    assert found[1:] == found[:1] * 3
    completed = [
        (start + spec["count"], place, name, number, sum(range(start, start + spec["count"])))
        for place, (name, spec) in enumerate((("one", one), ("other", other)))
        for number, start in enumerate(range(0, 25 - spec["count"], spec.get("slide", spec["count"])))
    ]
    assert [tuple(row)[1:] for row in found[0]] == [told[2:] for told in sorted(completed)]


REFUSED = [{"time": 4, "on": "n"}, {"count": 2, "compute": {"n": w.count()}}, {"count": 2, "slide": 5}]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_triggers_of_windows_that_could_not_take_turns_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        DeclarationError, match="triggers on windows one and other of procedure look use the same table"
    ):
        noting({"count": 2}, options)


def forty_five(sql: str | None = None) -> App:
    app = App("forty_five")
    app.table("CREATE TABLE found (number BIGINT PRIMARY KEY, starts BIGINT, ends BIGINT, n BIGINT, total BIGINT)")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)

    @app.procedure(inputs="numbers", writes=["found"], windows={"tens": window("numbers", count=10)})
    def look(txn: Transaction, numbers: Batch) -> None:
        if sql is not None:
            txn.execute(sql)

    return app


INTO = "INSERT INTO found SELECT window_number, window_start, window_end, count(*), sum(n) FROM tens GROUP BY ALL"
FOUND = [(i, 10 * i, 10 * i + 10, 10, 100 * i + 45) for i in range(4)]


@pytest.mark.parametrize("size", [1, 7, 45])
def test_sql_reads_all_windows_of_the_batch(engine_of: Open, size: int) -> None:
    engine = engine_of(forty_five(INTO))
    for low in range(0, 45, size):
        engine.push("numbers", [(n,) for n in range(low, min(low + size, 45))])
    engine.run_until_idle()
    assert engine.query("SELECT * FROM found ORDER BY 1").rows == FOUND


@pytest.mark.parametrize("size", [1, 7, 45])
def test_a_trigger_runs_once_for_each_window(engine_of: Open, size: int) -> None:
    app = forty_five()
    app.trigger(
        "look.tens",
        "INSERT INTO found SELECT (SELECT count(*) FROM found), min(window_start), max(window_end), count(*), sum(n) FROM tens",
    )
    engine = engine_of(app)
    for low in range(0, 45, size):
        engine.push("numbers", [(n,) for n in range(low, min(low + size, 45))])
    engine.run_until_idle()
    assert engine.query("SELECT * FROM found ORDER BY 1").rows == FOUND


def test_sql_reads_nothing_while_no_window_fires_and_python_what_is_there(open_engine: Open) -> None:
    seen: list[tuple[int, int]] = []
    app = App("partial")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)

    @app.procedure(inputs="numbers", windows={"tens": window("numbers", count=3)})
    def look(txn: Transaction, numbers: Batch) -> None:
        seen.append((txn.execute("SELECT count(*) AS n FROM tens")[0].n, len(txn.window("tens").rows)))

    engine = open_engine(app)
    for n in range(5):
        engine.push("numbers", [(n,)]).result()
    assert seen == [(0, 1), (0, 2), (3, 3), (0, 3), (0, 3)]


@pytest.mark.parametrize("column", ["window_number", "window_start", "Window_End"])
def test_a_column_with_the_name_of_a_label_is_refused_when_declared(column: str) -> None:
    app = App("labels")
    app.stream("s", f"n BIGINT, {column} BIGINT NOT NULL", border=True)
    for options in ({"count": 2}, {"time": 2, "on": column}, {"count": 2, "by": column, "compute": {"n": w.count()}}):
        with pytest.raises(
            DeclarationError, match=rf"window win: stream s has a column {column}.*rename the column.*to of_"
        ):

            @app.procedure(inputs="s", windows={"win": window("s", **options)})
            def look(txn: Transaction, s: Batch) -> None: ...

    @app.procedure(inputs="s", windows={"win": window("s", count=2, compute={"n": w.count()})})
    def count(txn: Transaction, s: Batch) -> None:
        """What is computed has no columns of the stream but those it is grouped by."""
