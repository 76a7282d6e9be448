"""Batches: rows of one stream under one id."""

from __future__ import annotations

import pytest

from tidegate import App, Batch, DataError


def batch(*rows: tuple[int, str], batch_id: int = 3, key: object = None) -> Batch:
    app = App()
    app.stream("s", "n INTEGER, word VARCHAR", border=True)
    relation = app.streams["s"].relation
    return Batch(relation, batch_id, relation.conform_all(rows), key)


def test_rows_are_named_tuples() -> None:
    found = batch((1, "a"), (2, "b"))
    assert [row.word for row in found] == ["a", "b"]
    assert (found[1].n, len(found), found.id, found.stream) == (2, 2, 3, "s")
    assert found.column("n") == [1, 2]


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(DataError, match="s has no column 'm'; it has n, word"):
        batch((1, "a")).column("m")


def test_equality_is_by_stream_id_key_and_rows() -> None:
    assert batch((1, "a")) == batch((1, "a"))
    assert hash(batch((1, "a"))) == hash(batch((1, "a")))
    assert batch((1, "a")) != batch((1, "b"))
    assert batch((1, "a"), key=1) != batch((1, "a"), key=2)
    assert batch((1, "a"), batch_id=4) != batch((1, "a"))
    assert batch((1, "a")) != [(1, "a")]


def test_to_arrow() -> None:
    assert batch((1, "a"), (2, "b")).to_arrow().to_pydict() == {"n": [1, 2], "word": ["a", "b"]}


def test_repr_is_short() -> None:
    assert repr(batch((1, "a"), key=7)) == "<Batch s id=3 key=7 1 rows>"
