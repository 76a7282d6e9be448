"""SqlSink on SQLite and PostgreSQL: rows and marks together, repeats recognised, strangers refused."""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from every_type import NULLS, ROW

from tidegate import App, Batch, Engine
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import SinkError

Open = Callable[..., Engine]


def rows(database: sa.Engine, sql: str) -> list[tuple[Any, ...]]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(sa.text(sql))]


def batch_of(app: App, stream: str, batch_id: int, *given: Any, key: Any = None) -> Batch:
    relation = app.streams[stream].relation
    return Batch(relation, batch_id, relation.conform_all(given), key)


def opened(app: App, database: sa.Engine, **options: Any) -> SqlSink:
    sink = SqlSink(database, "target", **options)
    sink.open("out", app.streams["words"].relation)
    return sink


def test_every_type_arrives(types: App, open_engine: Open, database: sa.Engine, tmp_path: Path) -> None:
    engine = open_engine(types, tmp_path / "db")
    delivery = engine.deliver("everything", SqlSink(database, "target"))
    engine.push("incoming", [ROW, NULLS])
    assert delivery.pump() == 2
    target = sa.Table("target", sa.MetaData(), autoload_with=database)
    with database.begin() as connection:
        found, nulls = connection.execute(target.select().order_by(target.c.n)).all()
    assert found[:3] == (-3, 4, 2**62)
    assert (found.single, found.x, found.word, bool(found.yes)) == (0.5, 0.1, 'says "hej", å', True)
    assert (Decimal(found.huge), Decimal(found.price)) == (2**64 - 1, Decimal("12345.60"))
    assert (found.moment, found.day, found.hour) == (
        dt.datetime(2026, 1, 2, 3, 4, 5, 678), dt.date(2026, 1, 2), dt.time(3, 4, 5)
    )  # fmt: skip
    lasting = dt.timedelta(days=1, microseconds=7)
    assert found.lasting in (lasting, lasting // dt.timedelta(microseconds=1))
    assert (bytes(found.raw), uuid.UUID(str(found.id))) == (b"\x00\xff", uuid.UUID(int=7))
    doc = json.loads(found.doc) if isinstance(found.doc, str) else found.doc
    many = json.loads(found.many) if isinstance(found.many, str) else found.many
    assert (doc, many) == ({"a": [1, 2]}, [1, None, 3])
    assert [value for value in nulls if value is not None] == [5]
    assert rows(database, "SELECT n FROM target WHERE doc IS NULL AND many IS NULL") == [(5,)]


def test_a_batch_sent_twice_is_there_once(words: App, database: sa.Engine) -> None:
    sink = opened(words, database)
    first, second, third = (batch_of(words, "words", i, (f"w{i}",), ("x",)) for i in (1, 2, 5))
    sink.send([first, second])
    sink.send([first, second, third])
    sink.send([second, third])
    found = rows(database, "SELECT word FROM target WHERE word <> 'x' ORDER BY word")
    assert found == [("w1",), ("w2",), ("w5",)]


def test_marks_that_can_not_be_needed_go(words: App, database: sa.Engine) -> None:
    sink = opened(words, database)
    for i in range(1, 6):
        sink.send([batch_of(words, "words", i * 2, ("a",)), batch_of(words, "words", i * 2 + 1, ("b",))])
    marks = rows(database, "SELECT sink, stream, key, batch_id FROM tidegate_delivered ORDER BY batch_id")
    assert marks == [("out", "words", "null", 10), ("out", "words", "null", 11)]


def test_with_history_every_mark_stays(words: App, database: sa.Engine) -> None:
    sink = opened(words, database, history=True)
    for i in range(1, 6):
        sink.send([batch_of(words, "words", i, ("a",))])
    sink.send([batch_of(words, "words", 2, ("a",))])
    assert rows(database, "SELECT count(*) FROM tidegate_delivered") == [(5,)]
    assert rows(database, "SELECT count(*) FROM target") == [(5,)]


@pytest.mark.parametrize(
    ("batch_id", "word", "told"), [(3, "other", "has other rows"), (1, "w1", "is sent after batch 3")]
)
def test_what_is_neither_new_nor_a_repeat_is_refused(
    words: App, database: sa.Engine, batch_id: int, word: str, told: str
) -> None:
    """A second engine, or one that started over, must not lose its batches silently."""
    sink = opened(words, database)
    for i in (2, 3):
        sink.send([batch_of(words, "words", i, (f"w{i}",))])
    with pytest.raises(SinkError, match=f"{told}.*started over"):
        sink.send([batch_of(words, "words", batch_id, (word,))])
    assert rows(database, "SELECT word FROM target ORDER BY word") == [("w2",), ("w3",)]


def test_keys_do_not_hinder_each_other(words: App, database: sa.Engine) -> None:
    sink = opened(words, database)
    sink.send([batch_of(words, "words", 7, ("a",), key="7"), batch_of(words, "words", 3, ("b",), key=7)])
    sink.send([batch_of(words, "words", 1, ("c",), key="k" * 5000), batch_of(words, "words", 4, ("d",), key=7)])
    assert rows(database, "SELECT word FROM target ORDER BY word") == [("a",), ("b",), ("c",), ("d",)]


def test_a_row_that_is_refused_leaves_nothing_of_its_send(words: App, database: sa.Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE target (word VARCHAR(99) CHECK (word <> 'bad'))"))
    sink = opened(words, database)
    good, bad = batch_of(words, "words", 1, ("good",)), batch_of(words, "words", 2, ("good",), ("bad",))
    with pytest.raises(SinkError, match=r"did not accept a batch of words .*(?i:check).*sent again"):
        sink.send([good, bad])
    assert rows(database, "SELECT * FROM target") == rows(database, "SELECT * FROM tidegate_delivered") == []
    sink.send([good])
    assert rows(database, "SELECT * FROM target") == [("good",)]


def test_a_process_thought_dead_is_waited_for_and_then_seen(words: App, database: sa.Engine) -> None:
    """Its COMMIT is on its way when its successor sends the same batch, waits, and finds the mark."""
    batch = batch_of(words, "words", 1, ("a",))
    slow = sa.create_engine(database.url)
    zombie, later = opened(words, slow), opened(words, database)
    committing, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(slow, "commit")
    def hold(connection: sa.Connection) -> None:
        committing.set()
        go_on.wait(60)

    old = threading.Thread(target=zombie.send, args=([batch],))
    old.start()
    assert committing.wait(60)
    new = threading.Thread(target=later.send, args=([batch],))
    new.start()
    new.join(0.3)
    assert new.is_alive()
    go_on.set()
    old.join(60)
    new.join(60)
    slow.dispose()
    assert rows(database, "SELECT word FROM target") == [("a",)]


def test_a_table_that_lacks_columns_is_refused_by_name(
    words: App, open_engine: Open, database: sa.Engine, tmp_path: Path
) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE target (phrase VARCHAR(99))"))
    engine = open_engine(words, tmp_path / "db")
    with pytest.raises(SinkError, match=r"table target \(phrase\) .*has no column word.*ALTER TABLE") as caught:
        engine.deliver("words", SqlSink(database, "target"))
    assert caught.value.misfits == ["it has no column word, which the stream has"]  # type: ignore[attr-defined]


def test_times_into_a_column_with_zone_are_utc(postgres: Any, open_engine: Open, tmp_path: Path) -> None:
    app = App("clocked")
    app.stream("incoming", "moment TIMESTAMP", border=True)
    app.stream("words", "moment TIMESTAMP")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("words", incoming)

    url = postgres.url.replace("postgresql:", "postgresql+psycopg:") + "&options=-ctimezone%3DAsia/Tokyo"
    database = sa.create_engine(url)
    with database.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS zoned"))
        connection.execute(sa.text("CREATE TABLE zoned (moment TIMESTAMPTZ)"))
    engine = open_engine(app, tmp_path / "db")
    delivery = engine.deliver("words", SqlSink(url, "zoned"))
    engine.push("incoming", [(dt.datetime(2026, 1, 2, 3),)])
    delivery.pump()
    assert rows(database, "SELECT moment AT TIME ZONE 'UTC' FROM zoned") == [(dt.datetime(2026, 1, 2, 3),)]
    database.dispose()


def test_a_database_that_is_not_there(words: App, open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(words, tmp_path / "db")
    sink = SqlSink(f"postgresql://x:secret@/x?host={tmp_path}", "target")
    with pytest.raises(SinkError, match=r"server is up") as caught:
        engine.deliver("words", sink)
    assert "secret" not in str(caught.value)
