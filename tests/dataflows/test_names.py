"""Every name that DuckDB knows is free for tables, streams, windows and columns: what DuckDB calls so is something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tidegate import App, Batch, DeclarationError, Engine, Transaction, window

Open = Callable[..., Engine]

CATALOG = {
    "views": "SELECT view_name FROM duckdb_views()",
    "places": "SELECT schema_name FROM duckdb_schemas() UNION SELECT database_name FROM duckdb_databases()",
    "reserved": "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'",
    "table functions": "SELECT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro', 'pragma')",
    "types": "SELECT type_name FROM duckdb_types()",
    "keywords": "SELECT keyword_name FROM duckdb_keywords()",
    "functions": "SELECT function_name FROM duckdb_functions()",
    "columns": "SELECT column_name FROM duckdb_columns()",
}
AT_ONCE = 40
MINE = ["wanted", "merge_rows", "merge_keys", "affected", "given", "tg", "t", "r", "o", "b", "k", "w"]


def names_of(*kinds: str) -> list[str]:
    """Names of these kinds in DuckDB's catalog, as far as they are identifiers (operators are not)."""
    connection = duckdb.connect()
    found = {str(name) for kind in kinds for (name,) in connection.execute(CATALOG[kind]).fetchall()}
    return sorted(name for name in found if name.isidentifier())


def parts(names: list[str]) -> list[list[str]]:
    return [names[i : i + AT_ONCE] for i in range(0, len(names), AT_ONCE)]


USUAL = [*parts(names_of("views")), *parts([*names_of("places"), *MINE])]
REST = sorted(set(names_of(*CATALOG)) - {name for part in USUAL for name in part})
ALL = [*USUAL, *(pytest.param(part, marks=pytest.mark.slow) for part in parts(REST))]


def label(names: list[str]) -> str:
    return f"{names[0]} to {names[-1]}"


def streams(names: list[str]) -> App:
    """Each name a stream, whose rows end in ``kept_here``."""
    app = App("streams")
    app.table("CREATE TABLE kept_here (stream VARCHAR, a BIGINT, total BIGINT, PRIMARY KEY (stream, a))")
    for number, name in enumerate(names):
        app.stream(name, "a BIGINT NOT NULL, b VARCHAR", border=True)

        def take(txn: Transaction, batch: Batch, name: str = name) -> None:
            total = f'(SELECT sum(a) FROM "{name}")'
            txn.execute(f"INSERT INTO kept_here SELECT '{name}', \"{name}\".a, {total} FROM \"{name}\" WHERE b = 'x'")

        take.__name__ = f"take_{number}"
        app.procedure(inputs=name, writes=["kept_here"])(take)
    return app


def tables(names: list[str]) -> App:
    """Each name a table, and a procedure that uses it by row and by SQL."""
    app = App("tables")
    app.stream("tg_given", "a BIGINT NOT NULL, b VARCHAR", border=True)
    for name in names:
        app.table(f'CREATE TABLE "{name}" (a BIGINT PRIMARY KEY, b VARCHAR NOT NULL)')

    @app.procedure(inputs="tg_given", writes=names)
    def put(txn: Transaction, batch: Batch) -> None:
        for name in names:
            for row in batch:
                txn.insert(name, row)
            txn.execute(f'UPDATE "{name}" SET b = "{name}".b || \'!\' WHERE a IN (SELECT a FROM tg_given)')

    return app


@pytest.mark.parametrize("names", ALL, ids=label)
def test_streams(open_engine: Open, tmp_path: Path, names: list[str]) -> None:
    expected = []
    for opening in range(2):
        app = streams(names)
        assert {tuple(stream.relation.column_names) for stream in app.streams.values()} == {("a", "b")}
        engine = open_engine(app, tmp_path / "db")
        for name in names:
            engine.push(name, [(opening, "x"), (opening + 10, "y")]).result()
            expected.append((name, opening, 2 * opening + 10))
        assert engine.query("SELECT * FROM kept_here ORDER BY ALL").rows == sorted(expected)
        engine.close()


@pytest.mark.parametrize("names", ALL, ids=label)
def test_tables(open_engine: Open, tmp_path: Path, names: list[str]) -> None:
    for opening in range(2):
        app = tables(names)
        assert {tuple(table.column_names) for table in app.tables.values()} == {("a", "b")}
        engine = open_engine(app, tmp_path / "db")
        engine.push("tg_given", [(opening, "x")]).result()
        for name in names:
            found = engine.query(f'SELECT "{name}".* FROM "{name}" ORDER BY "{name}".a').rows
            assert found == [(a, "x!") for a in range(opening + 1)], name
        engine.close()


@pytest.mark.parametrize("names", ALL, ids=label)
def test_windows(open_engine: Open, names: list[str]) -> None:
    app = App("windows")
    app.stream("tg_given", "a BIGINT NOT NULL", border=True)
    found: dict[str, int] = {}

    @app.procedure(inputs="tg_given", windows={name: window("tg_given", count=2) for name in names})
    def look(txn: Transaction, batch: Batch) -> None:
        for name in names:
            found[name] = txn.execute(f'SELECT sum("{name}".a) AS total FROM "{name}"')[0].total

    open_engine(app).push("tg_given", [(1,), (2,)]).result()
    assert found == dict.fromkeys(names, 3)


@pytest.mark.parametrize("names", ALL, ids=label)
def test_columns(open_engine: Open, tmp_path: Path, names: list[str]) -> None:
    columns = ", ".join(f'"{name}" BIGINT' for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    changed = ", ".join(f'"{name}" = "{name}" + 1' for name in names)
    row = tuple(range(len(names)))
    for opening in range(2):
        app = App("columns")
        app.stream("tg_given", f"tg_id BIGINT NOT NULL, {columns}", border=True)
        app.table(f"CREATE TABLE tg_kept (tg_id BIGINT PRIMARY KEY, {columns})")

        @app.procedure(inputs="tg_given", writes=["tg_kept"])
        def put(txn: Transaction, batch: Batch) -> None:
            txn.execute(f"INSERT INTO tg_kept (tg_id, {listed}) SELECT tg_id, {listed} FROM tg_given")
            txn.execute(f"UPDATE tg_kept SET {changed} WHERE tg_id = ?", batch[0].tg_id)
            assert batch[0]._asdict()["tg_id"] == batch[0][0]

        engine = open_engine(app, tmp_path / "db")
        engine.push("tg_given", [{"tg_id": opening, **dict(zip(names, row, strict=True))}]).result()
        found = engine.query(f"SELECT tg_id, {listed} FROM tg_kept ORDER BY tg_id").rows
        assert found == [(i, *(value + 1 for value in row)) for i in range(opening + 1)]
        engine.close()


def test_a_bare_reserved_word_is_refused_with_a_remedy() -> None:
    for word in names_of("reserved")[::4]:
        app = App("words")
        for declare in (
            lambda app, word: app.stream("s", f"{word} BIGINT"),
            lambda app, word: app.table(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {word} BIGINT)"),
            lambda app, word: app.table(f"CREATE TABLE {word} (id BIGINT PRIMARY KEY)"),
        ):
            with pytest.raises(DeclarationError, match="DuckDB refuses"):
                declare(app, word)
        assert not app.tables
        assert not app.streams


def windowed() -> App:
    app = App("windowed")
    app.stream("events", "n BIGINT", border=True)

    @app.procedure(inputs="events", windows={"recent": window("events", count=2)})
    def look(txn: Transaction, batch: Batch) -> None: ...

    return app


@pytest.mark.parametrize("name", ["recent", "Recent"])
def test_a_window_has_its_name_to_itself(name: str) -> None:
    app = windowed()
    with pytest.raises(
        DeclarationError, match=f"stream {name}: the name is taken by the window recent of procedure look"
    ):
        app.stream(name, "n BIGINT")
    with pytest.raises(
        DeclarationError, match=f"table {name}: the name is taken by the window recent of procedure look"
    ):
        app.table(f"CREATE TABLE {name} (n BIGINT PRIMARY KEY)")


@pytest.mark.parametrize(
    ("windows", "match"),
    [(["Events"], "taken by the stream events"), (["other", "Other"], "taken by the window")],
)
def test_upper_and_lower_case_are_the_same_name(windows: list[str], match: str) -> None:
    app = windowed()
    with pytest.raises(DeclarationError, match=match):

        @app.procedure(inputs="events", windows={name: window("events", count=2) for name in windows})
        def other(txn: Transaction, batch: Batch) -> None: ...
