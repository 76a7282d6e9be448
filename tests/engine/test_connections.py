"""Sources and deliveries that an app declares: started together, and nothing emitted before is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import tidegate
from tidegate import App, Batch, DeclarationError, Transaction
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.sql.sink import SqlSink
from tidegate.errors import SinkError, SinkRefused


def words_app() -> App:
    app = App("words")
    app.stream("incoming", "word VARCHAR NOT NULL", border=True)
    app.stream("words", "word VARCHAR")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Transaction, incoming: Batch) -> None:
        txn.emit("words", incoming)

    return app


def test_what_was_emitted_before_the_start_is_delivered(tmp_path: Path) -> None:
    app = words_app()
    app.deliver("words", lambda: SqlSink(f"sqlite:///{tmp_path / 'out.db'}", table="words"), name="out")
    with tidegate.open(app, tmp_path / "data") as engine:
        engine.push("incoming", [("early",)])
        assert len(engine.outbox.subscriptions["out"]) == 1
    with tidegate.open(app, tmp_path / "data") as engine:
        engine.push("incoming", [("later",)])
        (delivery,) = engine.start().deliveries
        assert delivery.drain(30)
        assert engine.start().deliveries == [delivery]
    with sa.create_engine(f"sqlite:///{tmp_path / 'out.db'}").connect() as connection:
        assert connection.execute(sa.text("SELECT word FROM words")).scalars().all() == ["early", "later"]


def test_a_declared_source_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "in.ndjson").write_text("".join(json.dumps({"word": w}) + "\n" for w in "abc"))
    app = words_app()
    app.source("incoming", lambda: FileSource(tmp_path / "in.ndjson"), name="file", size=2)
    app.deliver("words", lambda: FileSink(tmp_path / "out"), name="out")
    for _ in range(2):
        with tidegate.open(app, tmp_path / "data") as engine:
            started = engine.start()
            assert started.ingestions[0].wait(30)
            assert started.deliveries[0].drain(30)
    words = [
        json.loads(line)["word"]
        for path in sorted((tmp_path / "out").rglob("*.ndjson"))
        for line in path.read_text().splitlines()
    ]
    assert sorted(words) == ["a", "b", "c"]


class Away:
    """A target that can't be reached at first, or refuses."""

    transactional, at_once = False, 10

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.opened = 0
        self.got: list[Any] = []

    def open(self, name: str, relation: Any) -> None:
        if self.error is not None:
            raise self.error
        self.opened += 1

    def send(self, batches: Any) -> None:
        assert self.opened == 1
        self.got += [row.word for batch in batches for row in batch]

    def close(self) -> None: ...


def test_a_target_that_is_away_at_the_start_is_tried_again(tmp_path: Path) -> None:
    app, sink = words_app(), Away(SinkError("nobody there"))
    app.deliver("words", sink, name="out")
    with tidegate.open(app, tmp_path / "data") as engine:
        (delivery,) = engine.start().deliveries
        assert (delivery.state, str(delivery.error)) == ("failing", "nobody there")
        sink.error = None
        engine.push("incoming", [("one",)])
        assert delivery.drain(30)
        assert (sink.got, delivery.state) == (["one"], "open")


def test_a_target_that_refuses_is_told_at_once(tmp_path: Path) -> None:
    app = words_app()
    app.deliver("words", Away(SinkRefused("not this stream")), name="out")
    with tidegate.open(app, tmp_path / "data") as engine, pytest.raises(SinkRefused, match="not this stream"):
        engine.start()


def test_mistakes_are_found_when_declared() -> None:
    app = words_app()
    with pytest.raises(DeclarationError, match="deliver: there is no stream 'nowhere'"):
        app.deliver("nowhere", Away(None), name="a")
    with pytest.raises(DeclarationError, match="no border stream 'wrods'"):
        app.source("wrods", Away(None), name="a")
    with pytest.raises(DeclarationError, match=r"no option 'trys'.*'tries'"):
        app.deliver("words", Away(None), name="a", trys=3)
    with pytest.raises(DeclarationError, match="takes a sink, or a function that makes one; got 'x'"):
        app.deliver("words", "x", name="a")
    app.deliver("words", Away(None), name="a")
    with pytest.raises(DeclarationError, match="two connections called 'a'"):
        app.source("incoming", Away(None), name="a")
