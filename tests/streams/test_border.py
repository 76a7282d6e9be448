"""The border: every batch is accepted once, in ascending order of ids, per key."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate import App, Batch, BatchError, DataError
from tidegate.streams.border import REMEMBERED, Border


def border(key: str | None = None, columns: str = "patient INTEGER, drug VARCHAR NOT NULL") -> Border:
    app = App()
    app.stream("orders", columns, border=True, key=key)
    return Border(app.streams["orders"].relation, key)


def push(door: Border, rows: list[Any], batch_id: int | None = None) -> list[Batch]:
    """As the engine does: check everything, then accept everything."""
    parts = door.split(door.check_rows(rows))
    if batch_id is not None:
        parts = door.check_ids(parts, batch_id)
    return [door.accept(key, part, batch_id) for key, part in parts.items()]


def test_batches_without_id_are_numbered() -> None:
    door = border()
    assert [push(door, [(1, "a")])[0].id for _ in range(3)] == [1, 2, 3]


def test_numbering_goes_on_after_the_last_id_given() -> None:
    door = border()
    push(door, [(1, "a")], 41)
    assert push(door, [(1, "b")])[0].id == 42


def test_ids_ascend_with_gaps() -> None:
    door = border()
    assert [push(door, [(1, "a")], batch_id)[0].id for batch_id in (-5, 3, 1_700_000_000_000)]


def test_the_same_batch_again_is_not_new() -> None:
    door = border()
    push(door, [(1, "a")], 5)
    push(door, [(1, "b")], 9)
    assert push(door, [(1, "a")], 5) == []
    assert push(door, [{"drug": "b", "patient": 1}], 9) == []


def test_the_same_id_with_other_rows_is_refused() -> None:
    door = border()
    push(door, [(1, "a")], 5)
    with pytest.raises(BatchError, match=r"batch 5 on orders was accepted before with other rows.*new id") as caught:
        push(door, [(1, "b")], 5)
    assert (caught.value.stream, caught.value.batch_id, caught.value.last_id) == ("orders", 5, 5)


def test_a_lower_id_is_refused() -> None:
    door = border()
    push(door, [(1, "a")], 5)
    with pytest.raises(BatchError, match=r"batch 4 on orders comes too late.*5 was already accepted.*larger one"):
        push(door, [(1, "a")], 4)


@pytest.mark.parametrize("batch_id", ["5", 5.0, True, 2**63])
def test_an_id_is_a_whole_number_of_64_bits(batch_id: Any) -> None:
    with pytest.raises(BatchError, match="whole number"):
        push(border(), [(1, "a")], batch_id)


def test_a_keyed_stream_has_one_sequence_per_key() -> None:
    door = border(key="patient")
    assert [(b.key, b.id, len(b)) for b in push(door, [(1, "a"), (2, "b"), (1, "c")], 5)] == [
        (1, 5, 2),
        (2, 5, 1),
    ]
    assert [(b.key, b.id) for b in push(door, [(3, "x")], 2)] == [(3, 2)]


def test_an_error_in_one_key_accepts_nothing() -> None:
    door = border(key="patient")
    push(door, [(2, "b")], 7)
    with pytest.raises(BatchError, match=r"orders \(key 2\)"):
        push(door, [(1, "a"), (2, "c")], 7)
    assert 1 not in door.sequences
    assert [b.key for b in push(door, [(1, "a"), (2, "b")], 7)] == [1], "the part that is new is accepted"


def test_a_key_is_not_null() -> None:
    with pytest.raises(DataError, match=r"orders.patient is the stream's key and can't be NULL.*'a'"):
        border(key="patient").check_rows([(None, "a")])


def test_an_empty_push_is_no_batch() -> None:
    assert push(border(), []) == []
    assert push(border(key="patient"), [], 5) == []


def test_an_id_given_late_does_not_lower_the_mark() -> None:
    """A deadline's default comes with the id of its question, even when a later answer came early."""
    door = border()
    push(door, [(1, "late")], 7)
    door.accept(None, door.check_rows([(1, "default")]), 5)
    assert door.sequences[None].last == 7
    assert push(door, [(1, "late")], 7) == []


def test_payloads_are_remembered_within_a_bound() -> None:
    door = border(columns="n INTEGER")
    for i in range(REMEMBERED + 5):
        door.accept(None, ((i,),), i)
    assert len(door.sequences[None].digests) == REMEMBERED
    with pytest.raises(BatchError, match="too late"):
        push(door, [(0,)], 0)


@pytest.mark.parametrize(
    ("rows", "fragments"),
    [
        ("text", ("push('orders'", "list of rows", "str")),
        ({"patient": 1}, ("push('orders'", "wrap a single row in a list")),
        (5, ("push('orders'", "int")),
        ([5], ("a row of orders", "int", "5")),
        (["ab"], ("a row of orders", "'ab'")),
        ([(1,)], ("orders", "2 columns (patient, drug)", "(1,)")),
        ([(1, "a", 2)], ("orders", "2 columns", "(1, 'a', 2)")),
        ([("x", "a")], ("orders.patient", "INTEGER", "'x'")),
        ([(2**40, "a")], ("orders.patient", "INTEGER", str(2**40))),
        ([{"drug": "a", "ward": 3}], ("orders has no column 'ward'", "patient, drug")),
        ([{"patient": 1}], ("orders.drug is missing",)),
        ([(1, None)], ("orders.drug is NOT NULL", "(1, None)")),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows: Any, fragments: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        border().check_rows(rows)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_nullable_column_may_be_left_out_of_a_dict() -> None:
    assert border().check_rows([{"drug": "a"}]) == ((None, "a"),)
