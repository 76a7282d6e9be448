"""Interior streams with a key of their own: what is emitted is split by it, and consumers run per key."""

from __future__ import annotations

import pytest

import tidegate
from tidegate import App, DeclarationError, either, partition, window
from tidegate.dataflows import rekeying
from tidegate.errors import Aborted, ProcedureFailed
from tidegate.offline.verify import verify
from tidegate.txn.positions import describe

LINES = "page INTEGER NOT NULL, line VARCHAR NOT NULL"


class Broken:
    """Words that can't be counted now."""

    words: frozenset[str] = frozenset()


def words_app(recovery: str = "weak", key: str | None = None) -> App:
    app = App("words", recovery=recovery)
    app.table("CREATE TABLE counts (word VARCHAR PRIMARY KEY, n INTEGER NOT NULL)", partition_by="word")
    app.table("CREATE TABLE seen (id INTEGER PRIMARY KEY, words VARCHAR NOT NULL)")
    app.stream("lines", LINES, border=True, key=key)
    app.stream("words", "word VARCHAR", key="word")
    app.stream("counted", "word VARCHAR, n INTEGER, latest INTEGER")

    @app.procedure(inputs="lines", outputs="words")
    def split(txn, lines):
        if lines[0].line in Broken.words:
            raise ConnectionError(lines[0].line)
        txn.emit("words", [(None if word == "NULL" else word,) for row in lines for word in row.line.split()])

    @app.procedure(
        inputs="words",
        outputs="counted",
        writes=[partition("counts")],
        windows={"last": window("words", batches=2, slide=1)},
    )
    def count(txn, words):
        if txn.key in Broken.words:
            raise ConnectionError(txn.key)
        row = txn.get("counts", txn.key)
        n = len(words) + (row.n if row else 0)
        txn.upsert("counts", (txn.key, n))
        latest = sum(len(extent.rows) for extent in txn.window("last").windows)
        txn.emit("counted", [(txn.key, n, latest)])

    @app.procedure(inputs="counted", writes=["seen"])
    def note(txn, counted):
        row = txn.get("seen", 1)
        told = f"{'' if row is None else row.words + ' '}{txn.key}{counted[0].n}"
        txn.upsert("seen", (1, told))

    @app.procedure(reads=[partition("counts", by="word")])
    def ask(txn, word):
        row = txn.get("counts", word)
        return 0 if row is None else row.n

    return app


@pytest.fixture(autouse=True)
def mended():
    Broken.words = frozenset()


def counts(engine):
    return {row.word: row.n for row in engine.query("SELECT * FROM counts ORDER BY word").rows}


def seen(engine):
    return engine.query("SELECT words FROM seen").rows[0].words


@pytest.mark.parametrize("executor", ["serial", "threads", "manual"])
def test_consumers_run_per_key_in_ascending_order(executor):
    with tidegate.open(words_app(), executor=executor) as engine:
        following = engine.subscribe("words")
        engine.push("lines", [(1, "the cat the dog")])
        ticket = engine.push("lines", [(1, "the ant")])
        engine.run_until_idle()
        ticket.result()
        assert counts(engine) == {"ant": 1, "cat": 1, "dog": 1, "the": 3}
        assert seen(engine) == "cat1 dog1 the2 ant1 the3"
        got = [(batch.key, batch.id, len(batch)) for batch in following]
        assert got == [("cat", 1, 1), ("dog", 1, 1), ("the", 1, 2), ("ant", 2, 1), ("the", 2, 1)]


def test_windows_are_per_key():
    with tidegate.open(words_app()) as engine:
        following = engine.subscribe("counted")
        for line in ("a b", "a", "b a"):
            engine.push("lines", [(1, line)])
        assert [tuple(row) for batch in following for row in batch if row.word == "a"][-1] == ("a", 3, 2)


def test_a_lock_narrows_when_the_producer_has_committed():
    with tidegate.open(words_app(), executor="manual") as engine:
        engine.push("lines", [(1, "b a")])
        of_other, of_same = engine.submit("ask", "x"), engine.submit("ask", "a")
        assert [str(e) for e in engine.scheduler.waiting()][1] == "count on batch 1 for all its keys at position 1.1"
        reasons = [str(e.reason) for e in engine.scheduler.waiting()]
        assert reasons[-2] == "waits for the lock on counts['x'] behind position 1.1"
        engine.step()  # split
        ready = [str(e) for e in engine.scheduler.ready()]
        assert ready == [
            "count on batch 1 key 'a' at position 1.2",
            "count on batch 1 key 'b' at position 1.3",
            "ask at position 2.0",
        ]
        assert of_same.done is False
        engine.run_until_idle()
        assert (of_other.result(), of_same.result()) == (0, 1)


def test_keys_of_different_producers_that_have_the_same_ids_do_not_mix():
    with tidegate.open(words_app(key="page"), executor="manual") as engine:
        engine.push("lines", [(1, "a")])
        engine.push("lines", [(2, "a b")])
        first, second = engine.scheduler.ready()
        engine.executor.run(engine.scheduler.take(second))  # the later one commits first
        assert [e.unit.name for e in engine.scheduler.ready()] == ["split"]  # its words stand behind those of the first
        engine.executor.run(engine.scheduler.take(first))
        engine.run_until_idle()
        assert seen(engine) == "a1 a2 b1"


def test_null_is_no_key():
    with tidegate.open(words_app()) as engine:
        ticket = engine.push("lines", [(1, "a NULL")])
        with pytest.raises(Aborted, match=r"words\.word is the stream's key and can't be NULL"):
            ticket.result()
        assert counts(engine) == {}
        engine.push("lines", [(1, "a")]).result()


def test_more_keys_than_positions_abort_the_batch(monkeypatch):
    monkeypatch.setattr(rekeying, "RANKS", rekeying.UNDIVIDED + 8)
    with tidegate.open(words_app()) as engine:
        engine.push("lines", [(1, "a b c")]).result()  # two divided units: room for a whole and three keys each
        with pytest.raises(Aborted, match=r"4 values of its key word, and a batch can be divided into 3 at most"):
            engine.push("lines", [(1, "a b c d")]).result()
        assert counts(engine) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_one_key_fails_and_waits_and_the_others_go_on(executor, caplog):
    Broken.words = frozenset({"b"})
    with tidegate.open(words_app(), executor=executor) as engine:
        ticket = engine.push("lines", [(1, "a b c")])
        with pytest.raises(ProcedureFailed):
            ticket.result()
        assert "dataflow split is halted in front of batch 1 of key 'b'; other keys go on" in caplog.text
        engine.push("lines", [(1, "a d")]).result()
        behind = engine.push("lines", [(1, "b a")])
        engine.push("lines", [(1, "d")]).result()
        assert counts(engine) == {"a": 3, "c": 1, "d": 2}
        (halted,) = engine.halted()
        assert (halted.dataflow, halted.key, halted.unit, halted.waiting) == ("split", "b", "count", 4)
        assert [tuple(row) for batch in halted.batches.values() for row in batch] == [("b",)]
        with pytest.raises(DeclarationError, match="count is a part of dataflow split, which is halted: give 'split'"):
            engine.resume("count")
        Broken.words = frozenset()
        engine.resume("split", key="b")
        behind.result()
        assert ticket.done
        assert counts(engine) == {"a": 3, "b": 2, "c": 1, "d": 2}
        assert seen(engine) == "a1 c1 a2 d1 a3 d2 b1 b2"


def test_in_front_of_the_keys_all_halt():
    """Work of any border key may lead to any word."""
    with tidegate.open(words_app(key="page"), executor="serial") as engine:
        Broken.words = frozenset({"b", "x y"})
        engine.push("lines", [(1, "a b")])
        engine.push("lines", [(1, "x y")])
        engine.push("lines", [(2, "c")])
        assert [(h.dataflow, h.key) for h in engine.halted()] == [("split", "b"), ("split", None)]
        engine.resume("split", key="b")  # it fails again, and what waits in front of the keys goes on waiting
        assert counts(engine) == {"a": 1}
        Broken.words = frozenset({"b"})
        engine.resume("split", key=None)
        assert counts(engine) == {"a": 1, "c": 1, "x": 1, "y": 1}
        Broken.words = frozenset()
        engine.resume()
        assert seen(engine) == "a1 x1 y1 c1 b1"


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
def test_what_is_divided_after_a_resumption_keeps_the_order_of_its_keys(tmp_path, recovery):
    """It was placed before what is resumed gets its new positions, and has the same key."""
    app = words_app(recovery, "page")
    Broken.words = frozenset({"b"})
    with tidegate.open(app, tmp_path, executor="manual") as engine:
        engine.push("lines", [(1, "a b")])
        engine.push("lines", [(2, "b")])
        first, _ = engine.scheduler.ready()
        engine.executor.run(engine.scheduler.take(first))
        for execution in [e for e in engine.scheduler.ready() if e.key in ("a", "b")]:
            engine.executor.run(engine.scheduler.take(execution))
        engine.push("lines", [(3, "b d")])
        waits = engine.submit("ask", "b")
        Broken.words = frozenset()
        engine.resume("split", key="b")
        engine.durable.sync()
        if recovery != "weak":  # else the log has only what came in, and a replay runs all of it
            engine.run_until_idle()
            assert seen(engine) == "a1 b1 b2 b3 d1"
            assert waits.result() == 0, "its place in the order is in front of them now"
        engine.abandon()
    with tidegate.open(app, tmp_path, executor="manual") as engine:
        engine.run_until_idle()
        assert seen(engine) == "a1 b1 b2 b3 d1"
        assert counts(engine) == {"a": 1, "b": 3, "d": 1}
    assert verify(app, tmp_path).differences == []


def test_the_key_that_a_dataflow_halts_in_front_of_can_be_skipped():
    Broken.words = frozenset({"b"})
    with tidegate.open(words_app()) as engine:
        engine.push("lines", [(1, "a b c")])
        engine.skip()
        assert counts(engine) == {"a": 1, "c": 1}
        letter = engine.query("SELECT stream, key, rows FROM tidegate.dead_letters").rows[0]
        assert (letter.stream, letter.key) == ("words", "b")
        Broken.words = frozenset({"a", "c"})
        engine.push("lines", [(1, "a b c")])
        engine.push("lines", [(1, "b")])
        Broken.words = frozenset()
        engine.skip("split", key="a")
        engine.resume("split", key="c")
        assert counts(engine) == {"a": 1, "b": 2, "c": 2}


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("merged", [True, False])
def test_unfinished_work_continues_after_a_restart(tmp_path, recovery, merged):
    """Divided and not, parked and waiting, from the checkpoint and from the log."""
    app = words_app(recovery, "page")
    Broken.words = frozenset({"b"})
    with tidegate.open(app, tmp_path, executor="manual") as engine:
        engine.push("lines", [(1, "a b")])
        engine.run_until_idle()
        engine.push("lines", [(1, "b c"), (2, "c")])  # halted: they wait whole
        if merged:
            engine.checkpoint()
        before = [(describe(e.position), e.state) for e in engine.scheduler.waiting()]
        assert any(e.parts is not None for e in engine.scheduler.waiting())
        if not merged:
            engine.abandon()
    Broken.words = frozenset()
    with tidegate.open(app, tmp_path, executor="manual") as engine:
        goes_on = recovery == "weak" and not merged  # the replay, with the other keys
        if not goes_on:
            assert [(describe(e.position), e.state) for e in engine.scheduler.waiting()] == before
        engine.resume()
        engine.run_until_idle()
        assert counts(engine) == {"a": 1, "b": 2, "c": 2}
        assert seen(engine) == ("a1 c1 c2 b1 b2" if goes_on else "a1 b1 b2 c1 c2")
    assert verify(app, tmp_path).differences == []


def test_wholes_survive_a_restart(tmp_path):
    with tidegate.open(words_app(key="page"), tmp_path, executor="manual") as engine:
        engine.push("lines", [(1, "a")])
        engine.push("lines", [(2, "a b")])
        _, second = engine.scheduler.ready()
        engine.executor.run(engine.scheduler.take(second))  # its words are known, but stand behind those of the first
        engine.checkpoint()
    with tidegate.open(words_app(key="page"), tmp_path, executor="manual") as engine:
        engine.run_until_idle()
        assert seen(engine) == "a1 a2 b1"


def test_two_producers_of_one_consumer():
    app = App("shop")
    app.table("CREATE TABLE stock (item INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="item")
    for name in ("sales", "returns"):
        app.stream(name, "shop INTEGER, item INTEGER NOT NULL", border=True)
        app.stream(f"{name}_by_item", "item INTEGER NOT NULL", key="item")

    @app.procedure(inputs="sales", outputs="sales_by_item")
    def sell(txn, rows):
        txn.emit("sales_by_item", [(row.item,) for row in rows])

    @app.procedure(inputs="returns", outputs="returns_by_item")
    def give_back(txn, rows):
        txn.emit("returns_by_item", [(row.item,) for row in rows])

    @app.procedure(inputs=either("sales_by_item", "returns_by_item"), writes=[partition("stock")])
    def book(txn, sold, returned):
        row = txn.get("stock", txn.key)
        txn.upsert("stock", (txn.key, (row.n if row else 0) - len(sold) + len(returned)))

    with tidegate.open(app) as engine:
        engine.push("returns", [(1, 7), (1, 8), (1, 7)])
        engine.push("sales", [(1, 7), (1, 9)])
        assert engine.query("SELECT * FROM stock ORDER BY item").rows == [(7, 1), (8, 1), (9, -1)]


# ---- what can't be declared


def refused(declare, match):
    app = App("refused")
    app.stream("a", "k INTEGER NOT NULL, v INTEGER NOT NULL", border=True)
    app.stream("b", "k INTEGER NOT NULL, v INTEGER NOT NULL", key="k")
    app.stream("c", "k INTEGER NOT NULL, v INTEGER NOT NULL", key="v")

    @app.procedure(inputs="a", outputs="b")
    def first(txn, a): ...

    with pytest.raises(DeclarationError, match=match):
        declare(app)


def test_not_inside_one_nested_transaction():
    def declare(app):
        app.streams.pop("c")

        @app.procedure(inputs="b")
        def second(txn, b): ...

        app.nested("first", "second")

    refused(declare, r"second runs once for each, in a transaction of its own.*take second out")


def test_not_twice_on_the_way():
    def declare(app):
        @app.procedure(inputs="b", outputs="c")
        def second(txn, b): ...

    refused(
        declare, r"stream c has its own key \(v\), but second, which emits to it, is behind b, which has one already"
    )


def test_other_inputs_need_either():
    def declare(app):
        app.streams.pop("c")
        app.stream("d", "k INTEGER NOT NULL", border=True, key="k")

        @app.procedure(inputs=["b", "d"])
        def second(txn, b, d): ...

    refused(declare, r"numbers its batches anew.*Give second inputs=either\('b', 'd'\)")


def test_a_key_must_be_a_column_that_can_be_one():
    app = App("refused")
    with pytest.raises(DeclarationError, match="no column 'y'"):
        app.stream("x", "k INTEGER", key="y")
    with pytest.raises(DeclarationError, match="which can't be a key"):
        app.stream("x", "k DOUBLE", key="k")


def test_batches_without_an_order_are_not_delivered_to_a_border_stream(tmp_path):
    from tidegate.connectors.engine_sink import EngineSink

    app = words_app(key="page")
    app.stream("again", "word VARCHAR", border=True, key="word")

    @app.procedure(inputs="again")
    def take(txn, again): ...

    with tidegate.open(app, tmp_path) as engine, pytest.raises(DeclarationError, match="batch-ids ascend on again"):
        engine.deliver("words", EngineSink(engine, "again"))


def test_time_that_would_not_pass_is_refused():
    app = App("words")
    app.stream("lines", "line VARCHAR, said TIMESTAMP NOT NULL", border=True)
    app.stream("others", "line VARCHAR, said TIMESTAMP NOT NULL", border=True)
    app.stream("words", "word VARCHAR, said TIMESTAMP NOT NULL", key="word")

    @app.procedure(inputs="lines", outputs="words")
    def split(txn, lines):
        txn.emit("words", [(word, row.said) for row in lines for word in row.line.split()])

    @app.procedure(inputs="words", windows={"minute": window("words", time="1m", on="said")})
    def count(txn, words): ...

    @app.procedure(inputs="others", windows={"minute": window("others", time="1m", on="said")})
    def other(txn, others): ...

    with tidegate.open(app) as engine:
        for refused in (lambda: engine.advance("lines", "2026-01-01"), lambda: engine.finish("lines"), engine.finish):
            with pytest.raises(
                tidegate.TidegateError, match=r"windows of count would not get this time.*key of its own"
            ):
                refused()
        engine.advance("others", "2026-01-01")
        engine.finish("others")
