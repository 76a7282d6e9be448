"""Text that is no Unicode (half of a surrogate pair) is refused at every door: nothing could store it later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tidegate
from tidegate import App
from tidegate.errors import Aborted, DataError

HALF = "te\ud800"


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
    with pytest.raises(DataError, match="no Unicode text"):
        engine.push("written", [row], 5)
    with pytest.raises(DataError, match="no Unicode text"):
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
        with pytest.raises(Aborted, match="no Unicode text"):
            engine.call("spoil")
        engine.call("write", "tea")
    with tidegate.open(app, tmp_path / "data") as engine:
        assert engine.query("SELECT title FROM notes").rows == [("tea",)]
