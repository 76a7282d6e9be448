"""Versions of an app with a stream that has its own key, while a person is asked in front of it: nothing is known of its keys.

An order waits for its approval; what it orders is booked per item, by executions that are not divided yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.errors import RecoveryRefused
from tidegate.offline.upgrade import check
from tidegate.offline.verify import verify

LINES = "item VARCHAR NOT NULL, pieces INTEGER NOT NULL"
MODES = ("weak", "strong", "effects")
Kill = Callable[[Engine], None]


def shop(
    recovery: Any = "weak",
    *,
    key: str | None = "item",
    columns: str = LINES,
    factor: int = 1,
    book: str = "book",
    lines: str = "lines",
    audit: bool = False,
    was: dict[str, str] | None = None,
) -> App:
    """orders → (ask, decide) → lines by item → book → stock; ``factor``: how many pieces a line counts for."""
    was = was or {}
    app = App("shop", recovery=recovery)
    app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, n INTEGER NOT NULL)", partition_by="item")
    app.table("CREATE TABLE audited (number INTEGER PRIMARY KEY, lines INTEGER NOT NULL)")
    app.stream("orders", "number INTEGER NOT NULL, items VARCHAR NOT NULL", border=True, key="number")
    app.stream("asked", "number INTEGER NOT NULL, items VARCHAR NOT NULL")
    app.stream(
        "answers",
        "number INTEGER NOT NULL, yes BOOLEAN NOT NULL",
        border=True,
        key="number",
        deadline_s=3600,
        default={"yes": False},
    )
    app.stream(lines, columns, key=key, renamed_from=was.get(lines))

    @app.procedure(inputs="orders", outputs="asked")
    def ask(txn: Transaction, orders: Batch) -> None:
        txn.emit("asked", orders)

    @app.procedure(inputs=["asked", "answers"], outputs=lines)
    def decide(txn: Transaction, asked: Batch, answers: Batch) -> None:
        if answers[0].yes:
            txn.emit(lines, [{"item": item, "pieces": 1} for row in asked for item in row.items.split()])

    app.nested(ask, decide)

    if audit:  # comes in front of what books

        @app.procedure(inputs="orders", writes=["audited"])
        def note(txn: Transaction, orders: Batch) -> None:
            for row in orders:
                txn.upsert("audited", (row.number, len(row.items.split())))

    def run(txn: Transaction, batch: Batch) -> None:
        for row in batch:
            known = txn.get("stock", row.item)
            txn.upsert("stock", (row.item, row.pieces * factor + (known.n if known else 0)))

    run.__name__ = book
    app.procedure(inputs=lines, writes=["stock" if key is None else partition("stock")], renamed_from=was.get(book))(
        run
    )

    @app.procedure(reads=[partition("stock", by="item")])
    def pieces(txn: Transaction, item: str) -> int:
        row = txn.get("stock", item)
        return 0 if row is None else int(row.n)

    return app


def stock(engine: Engine) -> dict[str, int]:
    return {row.item: row.n for row in engine.query("SELECT * FROM stock ORDER BY item")}


def answer(engine: Engine, number: int, yes: bool = True) -> None:
    (question,) = [q for q in engine.questions() if q.key == number]
    engine.answer(question, yes=yes).result()


def with_a_question(path: Path, recovery: Any = "weak") -> Engine:
    """One order is booked, the next waits for its approval, and a reader waits behind it."""
    engine = tidegate.open(shop(recovery), path, merge_every_s=3600.0)
    engine.push("orders", [(1, "tea jam")], 1)
    answer(engine, 1)
    engine.push("orders", [(2, "tea cup tea")], 2)
    engine.submit("pieces", "tea")
    return engine


@pytest.mark.parametrize("recovery", MODES)
@pytest.mark.parametrize("ending", ["close", "merge and kill"])
def test_what_is_not_divided_yet_goes_on_in_the_next_version(
    recovery: Any, ending: str, tmp_path: Path, killed: Kill
) -> None:
    engine = with_a_question(tmp_path, recovery)
    digest = engine.questions()[0].digest
    if ending == "close":
        engine.close()
    else:
        engine.checkpoint()
        killed(engine)
    wider = f"{LINES}, colour VARCHAR DEFAULT 'white'"
    app = shop(recovery, factor=10, columns=wider, audit=True)
    assert check(app, tmp_path).fits
    with tidegate.open(app, tmp_path) as engine:
        assert [(q.key, q.digest) for q in engine.questions()] == [(2, digest)]
        locks = "SELECT partition, narrowed_by FROM tidegate.locks WHERE unit = 'book'"
        assert engine.query(locks).rows == [(None, "lines")]
        engine.push("orders", [(3, "cup")], 3)
        answer(engine, 3)  # its pieces are booked behind those of the second order
        assert stock(engine) == {"jam": 1, "tea": 1}
        answer(engine, 2)
        assert engine.scheduler.idle
        assert stock(engine) == {"cup": 20, "jam": 1, "tea": 21}
    with tidegate.open(app, tmp_path) as engine:
        assert stock(engine) == {"cup": 20, "jam": 1, "tea": 21}
    assert verify(app, tmp_path).differences == []


@pytest.mark.parametrize("recovery", ["weak", "strong"])
def test_after_a_kill_the_version_that_was_there_replays_it(recovery: Any, tmp_path: Path, killed: Kill) -> None:
    killed(with_a_question(tmp_path, recovery))
    app = shop(recovery, factor=10)
    assert not check(app, tmp_path).fits
    with pytest.raises(RecoveryRefused):
        tidegate.open(app, tmp_path)
    tidegate.open(shop(recovery), tmp_path).close()
    with tidegate.open(app, tmp_path) as engine:
        answer(engine, 2)
        assert stock(engine) == {"cup": 10, "jam": 1, "tea": 21}
    assert verify(app, tmp_path).differences == []


def test_it_goes_on_under_new_names(tmp_path: Path) -> None:
    with_a_question(tmp_path).close()
    app = shop(book="enter", lines="entries", was={"enter": "book", "entries": "lines"})
    with tidegate.open(app, tmp_path) as engine:
        answer(engine, 2)
        assert stock(engine) == {"cup": 1, "jam": 1, "tea": 3}
    assert verify(app, tmp_path).differences == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda: shop(key=None), r"unit book: it still waits with batch \d+, but its dataflow no longer has the same"),
        (lambda: shop(book="enter"), r"unit book: it still waits with batch \d+, but the app no longer has it on"),
        (
            lambda: shop(lines="entries"),
            r"unit book: .* waits for batch \d+ on stream lines, but in the app no .* leads there",
        ),
    ],
    ids=["no key", "another procedure", "another stream"],
)
def test_a_version_in_which_it_can_not_go_on_is_refused(changed: Any, told: str, tmp_path: Path) -> None:
    with_a_question(tmp_path).close()
    checked = check(changed(), tmp_path)
    assert checked.refused
    with pytest.raises(RecoveryRefused, match=told):
        tidegate.open(changed(), tmp_path)
    with tidegate.open(shop(), tmp_path) as engine:
        answer(engine, 2)
        assert stock(engine) == {"cup": 1, "jam": 1, "tea": 3}


def test_keys_that_are_known_but_wait_keep_their_place(tmp_path: Path) -> None:
    """The third order was answered first: its lines stand behind those of the second, whose items nobody knows."""
    engine = with_a_question(tmp_path)
    engine.push("orders", [(3, "cup ant")], 3)
    answer(engine, 3)
    engine.close()
    app = shop(factor=10, audit=True)
    with tidegate.open(app, tmp_path) as engine:
        assert stock(engine) == {"jam": 1, "tea": 1}
        answer(engine, 2, yes=False)
        assert stock(engine) == {"ant": 10, "cup": 10, "jam": 1, "tea": 1}
    assert verify(app, tmp_path).differences == []
