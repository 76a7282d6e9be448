"""Columns of every type: as rows in a window, as keys, through a checkpoint."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import EVENTS, IN_ORDER, batched, by_definition, drawn_rows, plain, run, run_fresh, specs

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare.aggregates import Count

FEW = settings(max_examples=8, deadline=None)


@pytest.mark.parametrize(
    "by", ["i", "price", "name", "seen", "born", "ok", "small", "big", ("name", "i"), ("ok", "small")]
)
@pytest.mark.parametrize("kind", ["count", "time", "session", "batches"])
@FEW
@given(data=st.data())
def test_a_key_can_be_of_any_type_whose_values_compare(kind: str, by: Any, data: Any) -> None:
    spec = data.draw(specs(kind, (by,) if isinstance(by, str) else by), "spec")
    rows = data.draw(drawn_rows(IN_ORDER), "rows")
    batches = data.draw(batched(rows), "batches")
    ran = run_fresh(spec, batches)
    assert _told(ran) == _told(by_definition(spec, batches))
    if kind != "batches":
        assert _told(run_fresh(spec, [(rows, 0)])) == _told(ran)


def _told(ran: Any) -> list[Any]:
    return [(w.number, w.key, w.start, w.end, w.rows) for w in ran.fired]


def test_a_float_is_no_key() -> None:
    with pytest.raises(DeclarationError, match=r"by names x, which is DOUBLE"):
        open_state(window("s", count=2, by="x"), EVENTS)


TYPES = (
    "BIGINT NOT NULL", "TINYINT", "UBIGINT", "DOUBLE", "FLOAT", "DECIMAL(38,10)", "VARCHAR", "BOOLEAN", "TIMESTAMP", "DATE",
    "TIME", "INTERVAL", "BLOB", "UUID", "JSON", "INTEGER[]",
)  # fmt: skip


def _column(declared: str) -> Column:
    """A column with the name of its type: ``decimal`` DECIMAL(38,10)."""
    kind = declared.removesuffix(" NOT NULL")
    return Column(kind.split("(")[0].strip("[]").lower(), column_type(kind), nullable=kind == declared)


EVERY = Relation("s", tuple(map(_column, TYPES)))
FULL = (
    1, -128, 2**64 - 1, 0.1, 0.5, Decimal("1234567890123456.0123456789"), "Zürich \0 \U0001f30a", True,
    dt.datetime(1, 1, 1), dt.date(9999, 12, 31), dt.time(23, 59, 59, 999999), dt.timedelta(days=-3, microseconds=1),
    b"\x00\xff", uuid.UUID(int=2**128 - 1), '{"a": [1, null]}', (1, None, 3),
)  # fmt: skip
ROWS = [EVERY.conform(row) for row in (FULL, (2, *[None] * 15), FULL, (3, *[None] * 15), FULL, FULL)]


@pytest.mark.parametrize("by", [(), ("tinyint",), ("uuid", "decimal")])
def test_rows_of_every_type_come_out_as_they_went_in(by: tuple[str, ...]) -> None:
    spec = window("s", count=2, slide=1, by=by, on="bigint", delay=1)
    batches = [(ROWS[:1], 0), (ROWS[1:4], 0), (ROWS[4:], 0)]
    wanted = by_definition(spec, batches)
    assert wanted.fired
    state, fired = open_state(spec, EVERY), []
    for rows, now_us in batches:
        slide = state.slide(rows, now_us)
        fired.extend(plain(w) for w in slide.windows)
        for extent in slide.windows:
            assert extent.to_arrow().num_rows == len(extent)
        slide.commit()
        saved = state.save()
        state = open_state(spec, EVERY)
        state.restore(saved)
    assert fired == wanted.fired


@pytest.mark.parametrize("kind", ["count", "batches"])
def test_plain_windows_of_every_type_are_the_same_after_a_checkpoint(kind: str) -> None:
    spec: Any = window("s", slide=1, **{kind: 4})
    state = open_state(spec, EVERY)
    for batch in (ROWS[:1], [], ROWS[1:4], ROWS[4:]):
        state.slide(batch).commit()
    again = open_state(spec, EVERY)
    again.restore(state.save())
    assert again.contents() == state.contents()
    assert repr(again.slide(ROWS[:2]).rows) == repr(state.slide(ROWS[:2]).rows)
    wider = Relation("s", (*EVERY.columns, Column("new", column_type("INTEGER"))))
    widened = open_state(spec, wider)
    widened.restore(state.save())
    assert widened.slide([]).rows == tuple((*row, None) for row in state.slide([]).rows)


def test_a_window_as_arrow_has_the_rows_and_the_nulls() -> None:
    state = open_state(window("s", count=2, by="boolean"), EVERY)
    first, second = state.slide(ROWS, 0).windows[:2]
    for extent in (first, second):
        table = extent.to_arrow()
        assert table.column_names == EVERY.column_names
        for name in (
            "bigint",
            "tinyint",
            "ubigint",
            "double",
            "decimal",
            "varchar",
            "boolean",
            "timestamp",
            "date",
            "blob",
        ):
            assert table.column(name).to_pylist() == [getattr(row, name) for row in extent.rows]
        assert table.column("integer").to_pylist() == [r.integer and list(r.integer) for r in extent.rows]


def test_results_keep_the_type_of_their_keys() -> None:
    spec = window("s", batches=1, by=("uuid", "date", "ubigint", "blob", "time"), compute={"n": Count()})
    (null, full) = open_state(spec, EVERY).slide(ROWS, 0).results
    assert tuple(null[:5]) == (None,) * 5
    assert tuple(full[:5]) == (FULL[13], FULL[9], FULL[2], FULL[12], FULL[10])
    assert (null.n, full.n) == (2, 4)


def test_a_state_does_not_change_what_it_was_given() -> None:
    rows = list(ROWS)
    before = list(map(repr, rows))
    run(open_state(window("s", count=3, slide=2, on="bigint"), EVERY), [(rows, 0)])
    assert list(map(repr, rows)) == before
