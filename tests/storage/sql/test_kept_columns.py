"""A table's rows as columns are what row access reads, at every position, whatever was written, committed, merged or evicted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from stores import Store

from tidegate.errors import StatementError
from tidegate.storage import versions
from tidegate.storage.readers import CommittedReader
from tidegate.storage.sql import columns
from tidegate.storage.view import View

DDL = "CREATE TABLE t (p INTEGER, k INTEGER, v INTEGER, s VARCHAR, PRIMARY KEY (p, k))"
QUERY = "SELECT p, k, v, s FROM t"
SOME = "SELECT k, v FROM t WHERE v > $1 OR s = $2 OR v IN (SELECT max(v) FROM t GROUP BY p)"


class Prepared(Store):
    """A store that prepares a statement once."""

    def __init__(self, *ddl: str, **options: Any) -> None:
        super().__init__(*ddl, **options)
        self.known: dict[Any, Any] = {}

    def prepare(self, sql: Any, compiled: bool = True) -> Any:
        if (sql, compiled) not in self.known:
            self.known[sql, compiled] = super().prepare(sql, compiled)
        return self.known[sql, compiled]


@pytest.fixture(params=["whole", "changes", "evicting"])
def store(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(columns, "RECENT", 3)
    if request.param == "changes":
        monkeypatch.setattr(columns, "WHOLE_ROWS", 0)
    made = Prepared(DDL, partition_by=("p",), cached_rows=12 if request.param == "evicting" else 10_000)
    yield made
    made.close()


def write(view: View, dice: random.Random, parts: int = 3) -> None:
    for _ in range(dice.choice((1, 2, 12))):
        key = dice.randrange(parts), dice.randrange(15)
        if dice.random() < 0.25:
            view.delete("t", key)
        else:
            view.upsert("t", (*key, dice.choice((None, *range(50))), dice.choice(("a", "b", None))))


def check(store: Store, view: View) -> None:
    rows = [tuple(row) for row in view.scan("t")]
    assert sorted(map(tuple, store.run(QUERY, view=view, compiled=False)), key=lambda row: row[:2]) == rows
    best: dict[Any, Any] = {}
    for p, _, v, _ in rows:
        best[p] = max((n for n in (best.get(p), v) if n is not None), default=None)
    for least, letter in ((40, "a"), (45, "b")):  # the values change, the plan does not
        wanted = [(k, v) for p, k, v, s in rows if (v is not None and (v > least or v in best.values())) or s == letter]
        assert sorted(map(tuple, store.run(SOME, (least, letter), view, False)), key=repr) == sorted(wanted, key=repr)


def interleave(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    table = store.database.tables["t"]
    olds: list[Any] = []
    committed: list[tuple[int, View]] = []
    readers: tuple[View, ...] = ()
    for _ in range(50):
        step = dice.random()
        if step < 0.45:
            view = store.view()
            write(view, dice)
            check(store, view)
            store.commit(view, keep_older=bool(olds or committed))
        elif step < 0.55:
            olds.append(store.view())
        elif step < 0.6:
            number = store.database.commits
            committed.append((number, View(store.database, -1, {"t": CommittedReader(table)}, commit=number)))
        elif step < 0.7 and (olds or committed):
            dice.choice([kept for kept in (olds, committed) if kept]).pop(0)
        elif step < 0.8:
            positions = [view.position for view in olds]
            store.database.merge(dict, lambda _, at=positions: at, lambda: [number for number, _ in committed])
        else:
            part = dice.randrange(3)
            check(store, store.view(by_key=(part,)))
            check(store, store.view(by_key=(part, (part + 1) % 3)))
            check(store, store.view(by_key=()))
        readers = (*olds, *(view for _, view in committed), store.view())
        check(store, dice.choice(readers))
    for view in readers:
        check(store, view)


def test_every_reader_sees_its_own_state(store: Store) -> None:
    interleave(store, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_every_reader_sees_its_own_state_many_times(store: Store, seed: int) -> None:
    interleave(store, seed)


def test_columns_are_built_once_and_then_follow(store: Store) -> None:
    built = []
    table = store.database.tables["t"]
    for k in range(30):
        store.run("INSERT INTO t VALUES ($1, $2, 1, 'a')", (k % 3, k))
        assert store.run("SELECT sum(v) FROM t").scalar() == k + 1
        built.append(table.columns)
    assert len({id(each) for each in built}) == 1
    for k in range(30):
        for v in range(40):
            view = store.view()
            view.update("t", (k % 3, k), v=v)
            store.commit(view)
        assert store.run("SELECT max(v) FROM t WHERE k = $1", (k,)).scalar() == 39
    assert table.columns is built[0]
    assert built[0].arrow({}).num_rows < 3_000  # replaced rows do not pile up
    store.run("DELETE FROM t WHERE k < 29")
    assert store.run(QUERY) == [(2, 29, 39, "a")]


def test_more_news_than_can_be_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "NEWS", 8)
    store.run("INSERT INTO t SELECT 1, i, i, 'a' FROM range(5) r(i)")
    assert store.run("SELECT count(*) FROM t").scalar() == 5
    table = store.database.tables["t"]
    before = table.columns
    store.run("INSERT INTO t SELECT 2, i, i, 'a' FROM range(20) r(i)")
    assert store.run("SELECT count(*) FROM t").scalar() == 25
    assert table.columns is not before
    store.run("DELETE FROM t")
    store.merge()
    assert table.columns is None
    assert table.news is None  # nobody has asked for long: nothing is remembered
    store.run("INSERT INTO t VALUES (1, 1, 1, 'a')")
    assert store.run("SELECT count(*) FROM t").scalar() == 1


def test_a_row_that_arrow_refuses_spoils_the_answer_only_while_it_is_there(store: Store) -> None:
    store.run("INSERT INTO t VALUES (1, 1, 1, 'a')")
    view = store.view()
    assert store.run("SELECT count(s) FROM t", view=view).scalar() == 1
    for k in range(2, 8):
        view.put("t", (1, k), (1, k, k, "\ud800"))  # as a row that came past the checks
    store.commit(view)
    for _ in range(2):
        with pytest.raises(Exception, match="surrogates"):
            store.run("SELECT count(s) FROM t")
    view = store.view()
    for k in range(2, 8):
        view.delete("t", (1, k))
    store.commit(view)
    assert store.run("SELECT count(s) FROM t").scalar() == 1


def test_a_value_means_the_same_with_and_without_a_plan(store: Store) -> None:
    """Text adapts to what it meets, numbers do not; a LIMIT wants a constant. The first and the third time."""
    store.run("INSERT INTO t VALUES (1, 1, 5, 'a'), (1, 2, 7, '5')")
    asked: list[tuple[str, tuple[Any, ...], Any]] = [
        ("SELECT k FROM t WHERE v = $1", ("5",), [(1,)]),
        ("SELECT k FROM t WHERE s = $1", ("5",), [(2,)]),
        ("SELECT typeof(coalesce(v, $1)) FROM t WHERE k = 1 AND p + v > 0", ("5",), [("INTEGER",)]),
        ("SELECT typeof(coalesce(v, $1)) FROM t WHERE p + v > 7", (5.0,), [("DOUBLE",)]),
        ("SELECT typeof($1), $1 + v FROM t WHERE p + v > 7", (2**40,), [("BIGINT", 2**40 + 7)]),
        ("SELECT k FROM t ORDER BY v DESC LIMIT $1", (1,), [(2,)]),
        ("SELECT quantile_disc(v, $1) FROM t", (0.0,), [(5,)]),
        ("SELECT v + $1 FROM t", (None,), [(None,), (None,)]),
    ]
    for sql, given, wanted in asked:
        for _ in range(3):
            assert store.run(sql, given, compiled=False) == wanted, sql
    for value in (2**40, 2**41, 2**63 - 1, 2**40):
        sql = "SELECT v + $1 AS q FROM t WHERE k = 1 AND p + v > 0"
        if value == 2**63 - 1:
            with pytest.raises(StatementError, match="Overflow"):
                store.run(sql, (value,))
        else:
            assert store.run(sql, (value,)).scalar() == 5 + value


def test_readers_on_other_threads_while_rows_are_committed_and_merged(store: Store) -> None:
    """Every commit moves one from a row to another: whoever reads them in columns finds the same sum."""
    database = store.database
    database.concurrent = True
    lock = threading.RLock()
    store.run("INSERT INTO t SELECT 1, i, 10, 'a' FROM range(20) r(i)")
    query = store.prepare("SELECT count(*), sum(v) FROM t")
    query.run(store.view())
    stop = threading.Event()
    seen: list[Any] = []
    failed: list[BaseException] = []
    held: dict[int, int] = {}

    def read(number: int) -> None:
        try:
            while not stop.is_set():
                with lock:
                    held[number] = commit = database.commits
                    view = View(database, -1, {"t": CommittedReader(database.tables["t"])}, commit=commit)
                seen.append(tuple(query.run(view).one()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    dice = random.Random(5)
    for turn in range(300):
        view = store.view()
        one, other = dice.sample(range(20), 2)
        for k, step in ((one, -1), (other, 1)):
            row = view.get("t", (1, k)) or (1, k, 10, "a")
            view.upsert("t", (1, k, row[2] + step, "a"))
        with lock:
            store.commit(view, keep_older=True)
        if turn % 30 == 29:
            database.merge(dict, lambda _: (), lambda: sorted(held.values()), lock)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert set(seen) == {(20, 200)}
    assert len(seen) > 10
