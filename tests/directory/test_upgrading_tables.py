"""Tables declared differently than they are stored: which changes keep every row, and which are refused."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.cli.upgrading import _print
from tidegate.connectors.files.sink import FileSink
from tidegate.crashpoints import CRASH_POINTS
from tidegate.errors import DeclarationError, RecoveryRefused
from tidegate.offline.upgrade import check
from tidegate.offline.verify import verify
from tidegate.outside.changelog import changes_in_files, rebuild
from tidegate.replica import ReplicaProcess
from tidegate.storage.migration import is_wider

STORED = "k INTEGER PRIMARY KEY, n INTEGER NOT NULL, word VARCHAR"
ROWS = [(1, 10, "one"), (2, 20, None), (3, 30, "three")]


def shop(columns: str = STORED, *, table: str = "t", rest: str = "", **options: Any) -> App:
    """One table, filled by a call; ``rest``: further DDL."""
    app = App("shop")
    app.table(f"CREATE TABLE {table} ({columns}); {rest}", **options)

    @app.procedure(writes=[table])
    def put(txn: Transaction, row: dict[str, Any]) -> None:
        txn.upsert(table, row)

    return app


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with tidegate.open(shop(), tmp_path) as engine:
        for k, n, word in ROWS:
            engine.call("put", {"k": k, "n": n, "word": word})
    return tmp_path


def rows(engine: tidegate.Engine, table: str = "t") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(f"SELECT * FROM {table} ORDER BY k")]


@pytest.mark.parametrize(
    ("columns", "wanted", "verdicts"),
    [
        (f"{STORED}, x INTEGER", [(*row, None) for row in ROWS], {"added"}),
        (f"{STORED}, x INTEGER DEFAULT 7", [(*row, 7) for row in ROWS], {"refilled"}),
        (f"{STORED}, x INTEGER NOT NULL DEFAULT 3 + 4", [(*row, 7) for row in ROWS], {"refilled", "carried over"}),
        (f"{STORED}, x DECIMAL(9,2) DEFAULT 1.5", [(*row, Decimal("1.50")) for row in ROWS], {"refilled"}),
        ("x VARCHAR DEFAULT 'new', " + STORED, [("new", *row) for row in ROWS], {"refilled"}),
        ("word VARCHAR, k INTEGER PRIMARY KEY, n INTEGER NOT NULL", [(w, k, n) for k, n, w in ROWS], {"carried over"}),
        ("k BIGINT PRIMARY KEY, n BIGINT NOT NULL, word VARCHAR", ROWS, {"carried over"}),
        ("k INTEGER PRIMARY KEY, n INTEGER, word VARCHAR", ROWS, {"carried over"}),
        (f"{STORED}, CHECK (n > 5)", ROWS, {"carried over"}),
        (f"{STORED}, UNIQUE (n)", ROWS, {"carried over"}),
        (f"{STORED}, UNIQUE (word)", ROWS, {"carried over"}),
    ],
)
def test_changes_that_keep_every_row(columns: str, wanted: list[Any], verdicts: set[str], stored: Path) -> None:
    app = shop(columns)
    planned = check(app, stored)
    assert {change.verdict for change in planned.changes} == verdicts
    with tidegate.open(app, stored) as engine:
        assert engine.upgraded == planned.changes
        assert rows(engine) == wanted
        engine.call("put", {"k": 1, "n": 11})
        assert len(rows(engine)) == 3
    with tidegate.open(app, stored) as engine:
        assert engine.upgraded == [], "once is enough"
        assert [row for row in rows(engine) if 1 not in row] == [row for row in wanted if 1 not in row]
    assert check(app, stored).changes == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (f"{STORED}, x INTEGER NOT NULL", r"column t\.x: it is new and NOT NULL without a DEFAULT.*the 3 rows stored"),
        (f"{STORED}, x TIMESTAMP DEFAULT now()", r"t\.x.*another value each time.*fill it in a procedure"),
        ("k INTEGER PRIMARY KEY, n VARCHAR NOT NULL, word VARCHAR", r"t\.n: it is stored as INTEGER.*VARCHAR"),
        ("k INTEGER PRIMARY KEY, n SMALLINT NOT NULL, word VARCHAR", "does not hold every such value"),
        ("k INTEGER PRIMARY KEY, n INTEGER NOT NULL", r"column t\.word.*drop=\['t.word'\] \(--drop t.word\)"),
        ("k INTEGER, n INTEGER NOT NULL, word VARCHAR, PRIMARY KEY (k, n)", r"PRIMARY KEY \(k\).*copy the rows"),
        ("k INTEGER PRIMARY KEY, n INTEGER NOT NULL, word VARCHAR NOT NULL", r"NOT NULL of word.*1 stored row.*2, 20"),
        (f"{STORED}, CHECK (n > 15)", r"CHECK.*n > 15.*1 stored row breaks it: \(1, 10, 'one'\)"),
        (f"{STORED}, CHECK (n < 15)", r"2 stored rows break it: \(2, 20, None\), \(3, 30, 'three'\)"),
    ],
)
def test_changes_that_are_refused(columns: str, told: str, stored: Path) -> None:
    app = shop(columns)
    assert check(app, stored).refused
    with pytest.raises(RecoveryRefused, match=told):
        tidegate.open(app, stored)
    with tidegate.open(shop(), stored) as engine:
        assert rows(engine) == ROWS, "nothing was harmed"


ADD = "INSERT INTO t VALUES (?, ?)"


def test_sql_that_no_longer_fits_a_table_is_told_before_it_fails(tmp_path: Path, capsys: Any) -> None:
    inside = "UPDATE t SET gone = 1 WHERE k = ?"

    def app(columns: str) -> App:
        app = App("texts")
        app.table(f"CREATE TABLE t ({columns})")
        app.table("CREATE TABLE other (k INTEGER PRIMARY KEY)")

        def add(txn: Transaction, k: int) -> None:
            txn.execute(ADD, k, k)

        @app.procedure(writes=["t"])
        def put(txn: Transaction, k: int) -> None:
            add(txn, k)
            txn.execute("INSERT INTO t (k, n) VALUES (?, ?)", k + 1, k)

        @app.procedure(writes=["t", "other"])
        def change(txn: Transaction, k: int) -> None:
            txn.execute(inside, k)
            txn.execute("INSERT INTO other VALUES (?, ?)", k, k)  # wrong, but not because of the upgrade

        return app

    before, after = "k INTEGER PRIMARY KEY, n INTEGER", "k INTEGER PRIMARY KEY, n INTEGER, x INTEGER DEFAULT 3"
    with tidegate.open(app(before), tmp_path) as engine:
        engine.call("put", 1)
    assert check(app(before), tmp_path).misfits == []
    checked = check(app(after), tmp_path)
    assert checked.fits
    put, change = checked.misfits
    assert "procedure put: " in put
    assert 'table "t" has 3 columns but 2 values were supplied' in put
    assert ADD in put
    assert "procedure change: " in change
    assert inside in change
    _print({**vars(checked), "fits": True}, False)
    assert "will fail when it is run" in capsys.readouterr().out


def test_a_unique_index_is_tried_on_stored_rows(stored: Path) -> None:
    with tidegate.open(shop(), stored) as engine:
        engine.call("put", {"k": 4, "n": 10, "word": "four"})
    with pytest.raises(RecoveryRefused, match=r"UNIQUE \(n\) is new, but 2 stored rows break it: \(1, 10.*\(4, 10"):
        tidegate.open(shop(rest="CREATE UNIQUE INDEX by_n ON t (n)"), stored)


def test_constraints_that_are_gone_are_not_enforced(tmp_path: Path) -> None:
    with tidegate.open(shop(f"{STORED}, CHECK (n > 5), UNIQUE (n)"), tmp_path) as engine:
        engine.call("put", {"k": 1, "n": 10, "word": ""})
    with tidegate.open(shop(), tmp_path) as engine:
        assert sorted(str(change) for change in engine.upgraded)[1] == "table t: UNIQUE (n) is no longer required"
        engine.call("put", {"k": 2, "n": 10, "word": ""})
        engine.call("put", {"k": 3, "n": -1, "word": ""})


def test_what_is_dropped_has_to_be_named(stored: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop")
    app.table("CREATE TABLE other (k INTEGER PRIMARY KEY)")
    with pytest.raises(RecoveryRefused, match=r"table t: it is stored with 3 rows.*drop=\['t'\] \(--drop t\)"):
        tidegate.open(app, stored)
    with caplog.at_level(logging.WARNING, "tidegate"):
        tidegate.open(app, stored, drop=["t"]).close()
    assert "dropped: table t: it is stored with 3 rows" in caplog.text
    with caplog.at_level(logging.WARNING, "tidegate"):
        tidegate.open(app, stored, drop=["t"]).close()
    assert "there is nothing of that name to drop" in caplog.text
    with tidegate.open(shop(), stored, drop=["other"]) as engine:
        assert rows(engine) == [], "a new table of the old name is empty"


def test_a_column_is_dropped_with_its_values(stored: Path) -> None:
    with tidegate.open(shop("k INTEGER PRIMARY KEY, n INTEGER NOT NULL"), stored, drop="t.word") as engine:
        assert rows(engine) == [(1, 10), (2, 20), (3, 30)]
    with tidegate.open(shop(), stored) as engine:
        assert rows(engine) == [(1, 10, None), (2, 20, None), (3, 30, None)]


def test_a_renamed_table_keeps_its_rows(stored: Path) -> None:
    app = shop(f"{STORED}, x INTEGER DEFAULT 1", table="goods", renamed_from="t")
    for _ in range(2):  # renamed_from= may stay
        with tidegate.open(app, stored) as engine:
            assert rows(engine, "goods") == [(*row, 1) for row in ROWS]


def test_a_name_is_continued_once() -> None:
    app = App("twice")
    app.table("CREATE TABLE a (k INTEGER PRIMARY KEY)", renamed_from="old")
    app.table("CREATE TABLE b (k INTEGER PRIMARY KEY)", renamed_from="old")
    with pytest.raises(DeclarationError, match=r"tables a and b are both renamed_from='old'"):
        tidegate.open(app)


def test_a_name_that_is_still_declared_was_not_renamed() -> None:
    app = shop(table="goods", renamed_from="t")
    app.table("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    with pytest.raises(DeclarationError, match=r"table goods: renamed_from='t', but the app still has a table t"):
        tidegate.open(app)


def test_rows_of_an_app_that_was_killed_are_not_given_another_shape(stored: Path, killed: Any) -> None:
    """The log has to be replayed first, by the code that wrote it."""
    engine = tidegate.open(shop(), stored, merge_every_s=3600.0)
    engine.call("put", {"k": 4, "n": 40, "word": "four"})
    killed(engine)
    changed = shop(f"{STORED}, x INTEGER DEFAULT 7")
    with pytest.raises(RecoveryRefused, match=r"has changed since it was written: table t.*close it cleanly"):
        tidegate.open(changed, stored)
    assert "has changed since it was written: table t" in str(check(changed, stored).refused[-1])
    tidegate.open(shop(), stored).close()
    with tidegate.open(changed, stored) as engine:
        assert rows(engine)[-1] == (4, 40, "four", 7)


def test_a_base_that_is_damaged_after_an_upgrade_is_rebuilt_in_its_new_shape(stored: Path, killed: Any) -> None:
    changed = shop(f"x INTEGER DEFAULT 7, {STORED}")
    engine = tidegate.open(changed, stored, merge_every_s=3600.0)
    engine.call("put", {"k": 4, "n": 40, "word": "four"})
    killed(engine)
    (stored / "base.duckdb").write_bytes(b"no database")
    with tidegate.open(changed, stored) as engine:
        assert "rebuilt from generation" in str(engine.recovery)
        assert rows(engine) == [(7, *row) for row in [*ROWS, (4, 40, "four")]]
    assert verify(changed, stored).same


def test_old_versions_get_the_default_too(tmp_path: Path) -> None:
    """A waiting doctor keeps old versions of rows alive; they are widened when the table is."""

    def app(columns: str) -> App:
        app = App("wide")
        app.table(f"CREATE TABLE t ({columns})")
        app.stream("asks", "k INTEGER", border=True)
        app.stream("asked", "k INTEGER")
        app.stream("answers", "n INTEGER", border=True, deadline_s=600.0, default={"n": 0})

        @app.procedure(inputs="asks", outputs="asked", reads=["t"])
        def ask(txn: Transaction, asks: Batch) -> None:
            txn.emit("asked", asks)

        @app.procedure(inputs=["asked", "answers"], reads=["t"])
        def answer(txn: Transaction, asked: Batch, answers: Batch) -> None:
            row = txn.get("t", 1)
            if row.n != 1 or getattr(row, "x", 7) != 7:
                txn.abort(f"it saw {row}")

        @app.procedure(writes=["t"])
        def put(txn: Transaction, n: int) -> None:
            txn.upsert("t", {"k": 1, "n": n})

        app.nested("ask", "answer", name="asking")
        return app

    with tidegate.open(app("k INTEGER PRIMARY KEY, n INTEGER"), tmp_path) as engine:
        engine.call("put", 1)
        engine.push("asks", [(1,)], 1)
        engine.call("put", 2)
    with tidegate.open(app("k BIGINT PRIMARY KEY, x INTEGER DEFAULT 7, n BIGINT"), tmp_path) as engine:
        engine.push("answers", [(1,)], 1).result()
        assert [tuple(row) for row in engine.query("SELECT * FROM tidegate.aborts")] == []
        assert [tuple(row) for row in engine.query("SELECT * FROM t")] == [(1, 7, 2)]


def test_an_engine_that_never_merged_leaves_no_shape_behind(tmp_path: Path, killed: Any) -> None:
    killed(tidegate.open(shop(), tmp_path))
    with tidegate.open(shop("k VARCHAR PRIMARY KEY"), tmp_path) as engine:
        engine.call("put", {"k": "one"})
        assert rows(engine) == [("one",)]


def test_followers_of_a_changelog_get_the_new_shape(tmp_path: Path) -> None:
    first, second = shop(changelog=True), shop(f"{STORED}, x DECIMAL(9,2) DEFAULT 7", changelog=True)
    with tidegate.open(first, tmp_path / "db") as engine:
        for k, n, word in ROWS:
            engine.call("put", {"k": k, "n": n, "word": word})
        engine.deliver("t_changes", FileSink(tmp_path / "changes"), "log").pump()
    with tidegate.open(second, tmp_path / "db") as engine:
        engine.call("put", {"k": 1, "n": 11, "word": "one"})
        engine.deliver("t_changes", FileSink(tmp_path / "changes"), "log").pump()
        wanted = rows(engine)
    last = max((tmp_path / "changes").glob("*")).read_text()
    assert '\\"x\\":\\"7.00\\"' in last
    rebuild(second, tmp_path / "new", {"t": changes_in_files(tmp_path / "changes")})
    with tidegate.open(second, tmp_path / "new") as engine:
        assert rows(engine) == wanted


def test_the_replica_gets_the_new_shape(stored: Path) -> None:
    with tidegate.open(shop(f"x INTEGER DEFAULT 7, {STORED}"), stored) as engine, ReplicaProcess(engine) as replica:
        assert replica.wait_for(engine.sequence)
        _, batches = replica.query_sync("SELECT * FROM t ORDER BY k")
        assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [(7, *row) for row in ROWS]


POINTS = [name for name in CRASH_POINTS if name.startswith("migration-")]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_the_old_base_or_the_new_one(point: str, tmp_path: Path) -> None:
    """A real kill, at every step of the migration."""
    run = [sys.executable, str(Path(__file__).parent.parent / "support" / "upgrade_process.py"), str(tmp_path), point]
    done = subprocess.run(run, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    from upgrade_process import NEW, OLD, app_of

    committed = point == "migration-after-commit"
    assert bool(check(app_of(NEW), tmp_path).changes) is not committed
    if not committed:
        with tidegate.open(app_of(OLD), tmp_path) as engine:
            assert rows(engine, "a") == rows(engine, "b") == [(1, 1), (2, 2)]
    with tidegate.open(app_of(NEW), tmp_path) as engine:
        assert rows(engine, "a") == rows(engine, "b") == [(1, 1, 7), (2, 2, 7)]


@pytest.mark.parametrize(
    ("stored", "declared", "wider"),
    [
        ("INTEGER", "BIGINT", True),
        ("BIGINT", "INTEGER", False),
        ("UINTEGER", "BIGINT", True),
        ("UINTEGER", "INTEGER", False),
        ("FLOAT", "DOUBLE", True),
        ("DOUBLE", "FLOAT", False),
        ("INTEGER", "DOUBLE", False),
        ("DECIMAL(10,2)", "DECIMAL(18,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(12,4)", True),
        ("DECIMAL(10,2)", "DECIMAL(10,4)", False),
        ("INTEGER[]", "BIGINT[]", True),
        ("DATE", "TIMESTAMP", False),
        ("INTEGER", "VARCHAR", False),
    ],
)
def test_wider_types_hold_equal_values(stored: str, declared: str, wider: bool) -> None:
    assert is_wider(stored, declared) is wider


KINDS = ["INTEGER", "BIGINT", "SMALLINT", "DOUBLE", "VARCHAR"]
columns = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(KINDS),
        st.booleans(),
        st.sampled_from([None, "1", "2", "random()", "NULL"]),
    ),
    max_size=4,
    unique_by=lambda column: column[0],
)
checks = st.sampled_from(["", "a > 0", "b > 100", "c IS NOT NULL"])
uniques = st.sampled_from(["", "a", "b"])


def ddl(shape: Any) -> str:
    given_columns, check, unique = shape
    names = [name for name, *_ in given_columns]
    parts = ["k INTEGER PRIMARY KEY"]
    for name, kind, required, default in given_columns:
        parts.append(f"{name} {kind}{' NOT NULL' * required}" + (f" DEFAULT {default}" if default else ""))
    texts = [name for name, kind, *_ in given_columns if kind == "VARCHAR"]
    if check and check[0] in names and (check[0] not in texts or "NULL" in check):
        parts.append(f"CHECK ({check})")
    if unique in [name for name, kind, *_ in given_columns if kind != "DOUBLE"]:  # which can't be compared exactly
        parts.append(f"UNIQUE ({unique})")
    return ", ".join(parts)


SHAPES = st.tuples(columns, checks, uniques)


@pytest.mark.parametrize("examples", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_what_the_check_says_is_what_opening_does(examples: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(before=SHAPES, after=SHAPES, count=st.integers(0, 2), dropping=st.booleans())
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    def compare(before: Any, after: Any, count: int, dropping: bool) -> None:
        agree(before, after, count, dropping, tmp_path_factory.mktemp("pair"))

    compare()


def agree(before: Any, after: Any, count: int, dropping: bool, path: Path) -> None:
    with tidegate.open(shop(ddl(before)), path) as engine:
        for k in range(1, count + 1):
            row = {name: "1" if kind == "VARCHAR" else k for name, kind, *_ in before[0]}
            try:
                engine.call("put", {"k": k, **row})
            except tidegate.Aborted:
                pass
        was = [row._asdict() for row in engine.query("SELECT * FROM t ORDER BY k")]
    app = shop(ddl(after))
    drop = [f"t.{name}" for name in "abcd"] if dropping else []
    planned = check(app, path, drop)
    if planned.refused:
        with pytest.raises(RecoveryRefused) as refused:
            tidegate.open(app, path, drop=drop)
        assert refused.value.changes == planned.refused  # type: ignore[attr-defined]
        with tidegate.open(shop(ddl(before)), path) as engine:
            assert [row._asdict() for row in engine.query("SELECT * FROM t ORDER BY k")] == was
        return
    with tidegate.open(app, path, drop=drop) as engine:
        assert engine.upgraded == planned.changes
        now = [row._asdict() for row in engine.query("SELECT * FROM t ORDER BY k")]
    assert len(now) == len(was)
    for old, new in zip(was, now, strict=True):
        both = old.keys() & new.keys()
        assert {name: old[name] for name in both} == {name: new[name] for name in both}
