"""A border stream as a sink: it takes a stream with the same columns, of every type, and no other."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from every_type import COLUMNS, NULLS, ROW

import tidegate
from tidegate import App, Batch, Engine, partition
from tidegate.connectors.engine_sink import EngineSink
from tidegate.errors import SinkError

LISTS = "prices DECIMAL(9,2)[], deep DECIMAL(9,2)[][], words VARCHAR[], ids UUID[], moments TIMESTAMP[], raws BLOB[], docs JSON[]"
LISTED = (
    (Decimal("1.20"), None), ((Decimal("1.20"),), None, ()), ("a", None), (uuid.UUID(int=7),),
    (dt.datetime(2026, 1, 2),), (b"\x00",), ('{"a":1}',),
)  # fmt: skip


def looping(outgoing: str, followed: str) -> App:
    """incoming → pass_on → outgoing, and a border stream ``followed``, whose rows ``keep`` counts."""
    app = App("looping")
    app.table("CREATE TABLE kept (id BIGINT PRIMARY KEY, told VARCHAR)")
    app.stream("incoming", outgoing, border=True)
    app.stream("outgoing", outgoing)
    app.stream("followed", followed, border=True)

    @app.procedure(inputs="incoming", outputs="outgoing")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("outgoing", incoming)

    @app.procedure(inputs="followed", writes=["kept"])
    def keep(txn: Any, followed: Batch) -> None:
        for number, row in enumerate(followed):
            txn.insert("kept", (10 * followed.id + number, repr(tuple(row))))

    return app


def test_every_type_goes_into_a_stream_with_the_same_columns(
    open_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    columns = f"{COLUMNS}, {LISTS}"
    engine = open_engine(looping(columns, columns), tmp_path / "db")
    delivery = engine.deliver("outgoing", EngineSink(engine, "followed"))
    rows = [(*ROW, *LISTED), (*NULLS, *[None] * len(LISTED))]
    engine.push("incoming", rows)
    engine.run_until_idle()
    assert delivery.pump() == 1
    engine.run_until_idle()
    assert engine.query("SELECT told FROM kept ORDER BY id").rows == [(repr(row),) for row in rows]


@pytest.mark.parametrize(
    ("outgoing", "followed"),
    [("n DECIMAL(9,2)", "n DECIMAL(9,3)"), ("n INTEGER[]", "n BIGINT[]"), ("n INTEGER[]", "n INTEGER")],
)
def test_another_type_is_refused(
    open_engine: Callable[..., Engine], tmp_path: Path, outgoing: str, followed: str
) -> None:
    engine = open_engine(looping(outgoing, followed), tmp_path / "db")
    with pytest.raises(SinkError, match="declare it with the same columns"):
        engine.deliver("outgoing", EngineSink(engine, "followed"))


def by_initial() -> App:
    """lines → words by word → counted; a border stream by another key takes these."""
    app = App("words")
    app.table("CREATE TABLE initials (initial VARCHAR PRIMARY KEY, n INTEGER NOT NULL)", partition_by="initial")
    app.stream("lines", "line VARCHAR NOT NULL", border=True)
    app.stream("words", "word VARCHAR NOT NULL", key="word")
    app.stream("counted", "initial VARCHAR NOT NULL, n INTEGER")
    app.stream("by_initial", "initial VARCHAR NOT NULL, n INTEGER", border=True, key="initial")

    @app.procedure(inputs="lines", outputs="words")
    def split(txn: Any, lines: Batch) -> None:
        txn.emit("words", [(word,) for row in lines for word in row.line.split()])

    @app.procedure(inputs="words", outputs="counted")
    def count(txn: Any, words: Batch) -> None:
        txn.emit("counted", [(txn.key[0], len(words))])

    @app.procedure(inputs="by_initial", writes=[partition("initials")])
    def add(txn: Any, rows: Batch) -> None:
        known = txn.get("initials", txn.key)
        txn.upsert("initials", (txn.key, sum(row.n for row in rows) + (known.n if known else 0)))

    return app


def initials(engine: Engine) -> dict[str, int]:
    return dict(map(tuple, engine.query("SELECT * FROM initials ORDER BY 1").rows))


def test_into_a_stream_with_another_key(tmp_path: Path) -> None:
    app = by_initial()
    with tidegate.open(app, tmp_path) as engine:
        delivery = engine.deliver("counted", EngineSink(engine, "by_initial"), name="on")
        engine.push("lines", [("cat cow dog",)])
        with pytest.raises(SinkError, match=r"ids of different keys would meet there\. .*EngineSink.*keep_ids=False"):
            delivery.pump()
        assert initials(engine) == {}
    sent: list[Any] = []
    with tidegate.open(app, tmp_path) as engine:
        sink = EngineSink(engine, "by_initial", keep_ids=False)
        send = sink.send

        def twice(batches: Any) -> None:
            send(batches)
            sent.extend(batches)
            raise ConnectionError("the answer was lost")

        sink.send = twice  # type: ignore[method-assign]
        delivery = engine.deliver("counted", sink, name="again")
        engine.push("lines", [("cat cow dog",)])
        engine.push("lines", [("cow cat",)])
        with pytest.raises(SinkError, match="the answer was lost"):
            delivery.pump()
        assert initials(engine) == {"c": 4, "d": 1}
    assert len({(batch.key, batch.id) for batch in sent}) == 5
    with tidegate.open(app, tmp_path) as engine:
        delivery = engine.deliver("counted", EngineSink(engine, "by_initial", keep_ids=False), name="again")
        assert delivery.pump() == 5
        assert initials(engine) == {"c": 4, "d": 1}
