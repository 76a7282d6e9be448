"""Text that is no Unicode (half of a surrogate pair) is refused at every door: nothing could store it later.

Where it comes from inside (what a procedure or a sink raises, a reason) it is escaped: an outcome can't be refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App
from tidegate.connectors.callback import CallbackSink
from tidegate.errors import (
    Aborted,
    DataError,
    LogFailed,
    ProcedureFailed,
    SinkError,
    SinkRefused,
    TidegateError,
    text_of,
)
from tidegate.outside.rejects import declare_rejected
from tidegate.outside.sources import Malformed, Polled
from tidegate.txn.log.record import Executed

HALF = "te\ud800"
ESCAPED = "te\\ud800"


def notes() -> App:
    app = App("notes")
    app.table("CREATE TABLE notes (title VARCHAR PRIMARY KEY, facts JSON)")
    app.stream("written", "title VARCHAR NOT NULL, facts JSON", border=True)

    @app.procedure(writes=["notes"])
    def write(txn, title):
        txn.execute("INSERT INTO notes (title) VALUES (?)", title)

    @app.procedure(writes=["notes"])
    def spoil(txn):
        txn.insert("notes", (HALF, None))

    @app.procedure(inputs="written", writes=["notes"])
    def keep(txn, written):
        for note in written:
            txn.upsert("notes", note)

    return app


@pytest.mark.parametrize("row", [(HALF, None), ("fine", f'"{HALF}"')])
def test_a_batch_with_it_is_refused_and_its_id_is_free(
    engine_of: Callable[..., tidegate.Engine], tmp_path: Path, row: tuple[str, str | None]
) -> None:
    engine = engine_of(notes(), tmp_path / "data")
    with pytest.raises(DataError, match="not valid Unicode"):
        engine.push("written", [row], 5)
    with pytest.raises(DataError, match="not valid Unicode"):
        engine.feed("written", [row])
    assert engine.push("written", [("tea, 茶, 🍵", None)], 5).result(60) is None
    assert engine.query("SELECT title FROM notes").rows == [("tea, 茶, 🍵",)]


def test_a_call_with_it_is_refused_before_it_is_logged(tmp_path: Path) -> None:
    app = notes()
    with tidegate.open(app, tmp_path / "data") as engine:
        with pytest.raises(DataError, match="can't be written to the log"):
            engine.call("write", HALF)
        with pytest.raises(DataError, match="can't be written to the log"):
            engine.call("write", 2**70)
        with pytest.raises(Aborted, match="not valid Unicode"):
            engine.call("spoil")
        engine.call("write", "tea")
    with tidegate.open(app, tmp_path / "data") as engine:
        assert engine.query("SELECT title FROM notes").rows == [("tea",)]


class Unspeakable(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def failing(mode: str, policy: str) -> App:
    """Numbers below 10 are kept; others end their execution in ways that leave a text behind."""
    app = App("failing", recovery=mode)
    app.table("CREATE TABLE kept (n INTEGER PRIMARY KEY)")
    app.stream("numbers", "n INTEGER NOT NULL", border=True)
    settings: dict[str, Any] = {"retry": {"retries": 2, "on_failure": "dead_letter"}}
    mended: list[bool] = []

    @app.procedure(inputs="numbers", writes=["kept"], **settings.get(policy, {"on_failure": policy}))
    def keep(txn, numbers):
        for number in numbers:
            end(txn, number.n)
            txn.upsert("kept", number)

    @app.procedure(writes=["kept"])
    def called(txn, n):
        end(txn, n)

    def end(txn, n):
        if n == 11 and not mended:
            raise ValueError(HALF)
        if n == 12 and not mended:
            raise Unspeakable
        if n == 13:
            txn.abort(HALF)
        if n == 14:
            raise Aborted(HALF)
        if n == 15:
            txn.abort(Unspeakable())

    app.mend = lambda: mended.append(True)  # type: ignore[attr-defined]
    return app


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("mode", ["weak", "strong", "effects"])
@pytest.mark.parametrize("policy", ["halt", "dead_letter", "retry"])
def test_what_a_procedure_raises_is_told_logged_and_found_again(
    tmp_path: Path, policy: str, mode: str, executor: str
) -> None:
    app = failing(mode, policy)
    engine = tidegate.open(app, tmp_path / "data", executor=executor)
    engine.push("numbers", [(1,)]).result(60)
    for n, told in ((13, ESCAPED), (14, ESCAPED), (15, "Unspeakable without a text")):
        with pytest.raises(Aborted) as aborted:
            engine.push("numbers", [(n,)]).result(60)
        assert told in aborted.value.reason
        assert told in str(aborted.value)
    for n, told in ((11, f"ValueError: {ESCAPED}"), (12, "Unspeakable: (Unspeakable without a text")):
        with pytest.raises(ProcedureFailed) as failed:
            engine.call("called", n)
        assert told in str(failed.value)
        with pytest.raises(ProcedureFailed) as failed:
            engine.push("numbers", [(n,)]).result(60)
        assert told in str(failed.value)
        if policy == "halt":
            app.mend()  # type: ignore[attr-defined]
            engine.resume()
            engine.run_until_idle()
            break
    engine.push("numbers", [(2,)]).result(60)
    before = _everything(engine)
    engine.abandon()
    with tidegate.open(app, tmp_path / "data", executor=executor) as engine:
        assert _everything(engine) == before
    with tidegate.open(app, tmp_path / "data", executor=executor) as engine:
        assert engine.recovery.records == 0
        assert _everything(engine) == before
    letters = [] if policy == "halt" else [11, 12]
    assert [n for (n,) in before[0]] == [1, 2, *([11] if policy == "halt" else [])]
    assert [rows for _, rows, _ in before[2]] == [f'[{{"n":{n}}}]' for n in letters]
    assert len(before[1]) == 3


def _everything(engine: tidegate.Engine) -> list[list[Any]]:
    queries = (
        "SELECT n FROM kept ORDER BY n",
        "SELECT procedure, reason FROM tidegate.aborts ORDER BY ALL",
        "SELECT procedure, rows, error FROM tidegate.dead_letters ORDER BY ALL",
    )
    return [engine.query(sql).rows for sql in queries]


def echo() -> App:
    app = App("echo")
    app.stream("heard", "n INTEGER NOT NULL", border=True)
    app.stream("said", "n INTEGER NOT NULL")
    declare_rejected(app)

    @app.procedure(inputs="heard", outputs="said")
    def say(txn, heard):
        txn.emit("said", heard)

    return app


@pytest.mark.parametrize("raised", [SinkRefused(HALF), ValueError(HALF), Unspeakable()], ids=lambda e: type(e).__name__)
def test_what_a_sink_raises_is_kept(tmp_path: Path, raised: Exception) -> None:
    def send(batch: Any) -> None:
        raise raised

    app = echo()
    engine = tidegate.open(app, tmp_path / "data")
    delivery = engine.deliver("said", CallbackSink(send), "out", tries=1)
    engine.push("heard", [(1,)])
    if isinstance(raised, SinkRefused):
        assert delivery.pump() == 1
        letters = [(ESCAPED,)]
    else:
        with pytest.raises(SinkError, match=re.escape(text_of(raised))):
            delivery.pump()
        (error,) = engine.query("SELECT error FROM tidegate.deliveries").rows[0]
        assert text_of(raised) in error
        letters = []
    engine.abandon()
    with tidegate.open(app, tmp_path / "data") as engine:
        assert engine.query("SELECT error FROM tidegate.dead_letters").rows == letters


def test_records_of_a_source_that_are_no_unicode_are_put_aside(tmp_path: Path) -> None:
    class Spoilt:
        lag = None
        finished = False

        def open(self, name: str, relation: Any, offset: Any) -> None: ...

        def poll(self, limit: int, timeout_s: float) -> Polled | None:
            chunk = None if self.finished else Polled([(1,)], 2, [Malformed(HALF, HALF, HALF)])
            self.finished = True
            return chunk

        def committed(self, offset: Any) -> None: ...

        def close(self) -> None: ...

    with tidegate.open(echo(), tmp_path / "data") as engine:
        assert engine.ingest("heard", Spoilt()).pump() == 1
        assert engine.query("SELECT place, record, reason FROM rejected").rows == [(ESCAPED, ESCAPED, ESCAPED)]


@pytest.mark.parametrize("way", ["push", "feed"])
@pytest.mark.parametrize(
    ("source", "offset"),
    [(HALF, 1), ("", 1), ("s", HALF), ("s", 2**70), ("s", object()), ("s", {"a": [HALF]})],
    ids=["source", "no source", "text", "large", "object", "nested"],
)
def test_a_source_or_offset_that_can_t_be_written_is_refused_with_nothing_accepted(
    tmp_path: Path, way: str, source: str, offset: Any
) -> None:
    app = notes()
    with tidegate.open(app, tmp_path / "data") as engine:
        with pytest.raises(DataError, match="source"):
            getattr(engine, way)("written", [("tea", None)], source=source, offset=offset)
        ticket = engine.push("written", [("tea", None)], 1, source="s", offset={"a": ["b"]})
        assert not ticket.duplicate
        ticket.result(60)
    with tidegate.open(app, tmp_path / "data") as engine:
        assert engine.position("s") == {"a": ("b",)}


@pytest.mark.parametrize("name", [HALF, "", 7])
def test_a_name_that_can_t_be_written_is_refused(tmp_path: Path, name: Any) -> None:
    with tidegate.open(echo(), tmp_path / "data") as engine:
        with pytest.raises(DataError, match="name of a subscription"):
            engine.subscribe_durably("said", name)
        assert engine.subscribe_durably("said", "fine").get() is None


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_record_that_can_t_be_encoded_stops_the_engine_and_nobody_waits_for_ever(
    tmp_path: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is known; should there be one, the engine must not go on as if it had been written."""
    app = failing("strong", "halt")
    engine = tidegate.open(app, tmp_path / "data", executor=executor)
    engine.push("numbers", [(1,)]).result(60)
    monkeypatch.setattr(
        "tidegate.directory.log.Executed", lambda position, outcome, procedure: Executed(position, outcome, HALF)
    )
    with pytest.raises(LogFailed, match=r"can't be written to the log \(UnicodeEncodeError.*the engine stops"):
        engine.push("numbers", [(2,)]).result(60)
    monkeypatch.undo()
    with pytest.raises(LogFailed, match="the engine stops"):
        engine.push("numbers", [(3,)])
    assert engine.query("SELECT n FROM kept").rows == [(1,)]
    with pytest.raises(TidegateError, match="the engine stops"):
        engine.close()
    with tidegate.open(app, tmp_path / "data", executor=executor) as engine:
        engine.push("numbers", [(4,)]).result(60)
        rows = engine.query("SELECT n FROM kept ORDER BY n").rows
        assert rows in ([(1,), (4,)], [(1,), (2,), (4,)])  # 2 was never acknowledged
