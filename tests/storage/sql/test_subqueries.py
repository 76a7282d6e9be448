"""Subqueries give the same as row access and in DuckDB: the same rows, the same writes, the same failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from stores import Store
from test_batches import normal, normal_writes

from tidegate.errors import TidegateError
from tidegate.storage.sql import subqueries

TABLES = (
    "CREATE TABLE phones (phone BIGINT PRIMARY KEY, used INTEGER, name VARCHAR, area INTEGER);"
    "CREATE INDEX by_area ON phones (area)",
    "CREATE TABLE votes (id BIGINT PRIMARY KEY, phone BIGINT, contestant INTEGER, weight TINYINT, note VARCHAR, x DOUBLE);"
    "CREATE INDEX by_contestant ON votes (contestant); CREATE INDEX by_note ON votes (note)",
)
INNER = (  # what a subquery reads
    "votes WHERE contestant = $1", "votes WHERE contestant = $1 AND weight > 1", "votes v WHERE note = 'b'",
    "votes WHERE id = $1", "votes WHERE contestant BETWEEN 1 AND $1", "votes WHERE contestant = $1 AND note IS NULL",
    "votes", "b", "b WHERE weight > 0", "b WHERE note = 'a' OR weight = $1", "votes WHERE note = '€'",
)  # fmt: skip
AMONG = (
    "phone IN (SELECT phone FROM {})", "(phone IN (SELECT phone FROM {}) AND area > 0)", "area IN (SELECT weight FROM {})",
    "area IN (SELECT weight FROM {}) AND phones.used IS NOT NULL", "phone = 2 AND name IN (SELECT note FROM {})",
    "phone = 3 AND name NOT IN (SELECT note FROM {})", "area = 1 AND used IN (SELECT weight FROM {})",
    "phone IN (SELECT x FROM {})", "used IN (SELECT weight FROM {})", "phone IN (SELECT weight + 1 FROM {})",
    "name IN (SELECT note FROM {})", "phone IN (SELECT phone FROM {}) AND phone IN (SELECT phone FROM b)",
)  # fmt: skip
SCALARS = (
    "(SELECT count(*) FROM votes WHERE votes.phone = phones.phone AND contestant = $1)",
    "(SELECT count(note) FROM votes v WHERE phones.phone = v.phone AND v.contestant = $1)",
    "(SELECT sum(weight) FROM votes v WHERE phones.phone = v.phone AND v.contestant = $1)",
    "(SELECT min(weight) FROM votes v WHERE v.weight = phones.area AND v.contestant = $1)",
    "(SELECT max(contestant) FROM b WHERE b.phone = phones.phone)",
    "(SELECT count(*) FROM b WHERE b.phone = phones.phone AND b.weight = phones.area)",
    "(SELECT count(*) FROM votes WHERE contestant = $1)", "(SELECT sum(weight + 1) FROM b)",
    "(SELECT sum(x) FROM b)", "(SELECT count(DISTINCT weight) FROM b)", "(SELECT weight FROM votes WHERE id = $1)",
    "(SELECT count(*) FROM phones p WHERE p.area = phones.area AND p.phone = $1)",
    "(SELECT count(*) FROM votes WHERE votes.phone = phones.phone AND contestant = phones.area)",
)  # fmt: skip
STATEMENTS = (
    "UPDATE phones SET used = used - {scalar} WHERE {among}",
    "UPDATE phones SET used = {scalar}, name = 'left' WHERE {among} RETURNING *",
    "UPDATE phones SET area = coalesce({scalar}, -1) WHERE {among}",
    "UPDATE phones SET used = used + 2147483647 WHERE {among}",
    "UPDATE phones SET used = 0 WHERE {among} RETURNING phone, (SELECT count(*) FROM phones p WHERE p.phone = $1)",
    "DELETE FROM phones WHERE {among}", "DELETE FROM phones WHERE {among} RETURNING phone, name",
    "SELECT * FROM phones WHERE {among}", "SELECT phone, used + 1 FROM phones WHERE {among} ORDER BY used LIMIT 2",
    "SELECT phone, {scalar} AS found FROM phones WHERE {among}",
    "SELECT phone, {scalar} AS found FROM phones WHERE area = $1 ORDER BY phone DESC",
    "SELECT count(*) FROM phones WHERE {among}", "DELETE FROM phones WHERE {scalar} > 0 AND {among}",
)  # fmt: skip


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store(*TABLES)
    made.relation("b", "phone BIGINT, contestant INTEGER, weight TINYINT, note VARCHAR, x DOUBLE")
    fill(made, random.Random(7))
    yield made
    made.close()


def fill(store: Store, dice: random.Random) -> None:
    """Rows in the base, in versions above it, and gone again."""
    view = store.view()
    for key in range(8):
        view.insert(
            "phones", (key, dice.choice((None, 0, 3, 7)), dice.choice((None, "a", "b")), dice.choice((None, 1, 2)))
        )
    for key in range(30):
        view.insert("votes", (key, *some_row(dice)))
    store.commit(view)
    store.merge()
    view = store.view()
    for key in range(0, 30, 4):
        view.upsert("votes", (key, *some_row(dice)))
    view.delete("votes", 5)
    view.delete("phones", 6)
    store.commit(view)


def some_row(dice: random.Random) -> tuple[Any, ...]:
    return (
        dice.choice((None, *range(9))), dice.choice((None, 1, 1, 2, 3)), dice.choice((None, 0, 1, 2, 127)),
        dice.choice((None, "a", "b", "€")), dice.choice((None, 0.5, 2.0)),
    )  # fmt: skip


def outcome(store: Store, statement: Any, position: int, batch: Any, number: int, own: int) -> Any:
    view = store.view(position)
    view.relations = {"b": (store.relations["b"], batch)}
    dice = random.Random(own)
    if dice.random() < 0.5:  # its own writes count, too
        view.upsert("votes", (dice.randrange(35), *some_row(dice)))
        view.delete("phones", dice.randrange(8))
    try:
        found = statement.run(view, (number,) if "$1" in statement.sql else ())
    except TidegateError as error:
        return type(error).__name__, str(error)
    return [tuple(map(normal, row)) for row in found], found.count, normal_writes(view.writes)


def compare(store: Store, seed: int, statements: int) -> set[str]:
    dice = random.Random(seed)
    relation, paths = store.relations["b"], set()
    for _ in range(statements):
        among = dice.choice(AMONG).format(dice.choice(INNER))
        sql = dice.choice(STATEMENTS).format(scalar=dice.choice(SCALARS), among=among)
        try:
            compiled, plain = store.prepare(sql), store.prepare(sql, compiled=False)
        except TidegateError:
            continue
        paths.add(compiled.path)
        for _ in range(3):
            batch = relation.conform_all([some_row(dice) for _ in range(dice.choice((0, 1, 3)))])
            store.position = position = store.position + 1
            number, own = dice.randrange(4), dice.random()
            told = [outcome(store, one, position, batch, number, own) for one in (plain, compiled)]
            assert told[0] == told[1], (sql, number, batch)
    return paths


def test_as_row_access_and_in_duckdb(store: Store) -> None:
    assert compare(store, 1, 120) == {"subquery", "duckdb", "primary key", "index"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 32))
def test_as_row_access_and_in_duckdb_many_times(store: Store, seed: int) -> None:
    compare(store, seed, 200)


def test_only_the_partitions_of_the_execution_are_found() -> None:
    ddl = "CREATE TABLE t (room INTEGER, id BIGINT, v INTEGER, PRIMARY KEY (room, id)); CREATE INDEX by_v ON t (v)"
    store = Store(ddl, partition_by=("room",))
    store.relation("b", "v INTEGER")
    view = store.view(by_key=(1, 2, 3))
    for room in (1, 2, 3):
        view.insert("t", (room, 0, 7 if room > 1 else 0))
    store.commit(view)
    for compiled in (True, False):
        view = store.view(by_key=(1, 2))
        view.relations = {"b": (store.relations["b"], ((7,), (9,)))}
        statement = store.prepare("UPDATE t SET id = 5 WHERE v IN (SELECT v FROM b) RETURNING room", compiled)
        found = store.prepare("SELECT room FROM t WHERE v IN (SELECT v FROM b)", compiled)
        assert found.path == ("subquery" if compiled else "duckdb")
        assert [tuple(row) for row in found.run(view)] == [(2,)]
        assert [tuple(row) for row in statement.run(view)] == [(2,)]
    store.close()


def test_what_finds_many_rows_goes_to_duckdb(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = store.prepare("DELETE FROM phones WHERE phone IN (SELECT phone FROM votes WHERE contestant = $1)")
    assert statement.explain() == "delete: row access by what a subquery finds (reads phones, votes; writes phones)"
    asked: list[int] = []
    change = statement._change
    assert change is not None
    monkeypatch.setattr(statement, "_change", lambda view, values: asked.append(1) or change(view, values))
    statement.run(store.view(), (1,))
    assert not asked
    monkeypatch.setattr(subqueries, "MOST", 2)
    statement.run(store.view(), (1,))
    assert asked == [1]
