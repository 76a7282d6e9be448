"""Tables in pages: what was written is read, the rest is empty, and only what was written takes room."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import window
from tidegate import windows as w
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.state.fields import Greatest, Summed
from tidegate.streams.windows.state.sparse import SparseTable

READINGS = Relation(
    "s",
    (
        Column("at", column_type("TIMESTAMP"), nullable=False),
        Column("k", column_type("BIGINT"), nullable=False),
        Column("v", column_type("DOUBLE"), nullable=False),
    ),
)
FIELDS = [Summed("v", "f8"), Greatest("v", "f8")]
EMPTY = {field.name: field.identity() for field in FIELDS}
COLUMNS, KEYS = 9_000, 5  # pages of 128 places
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "row", "clear", "keep", "save"]),
        st.integers(0, KEYS - 1),
        st.integers(0, COLUMNS - 1),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(steps=steps)
def test_a_table_in_pages_is_a_table(steps: list[tuple[str, int, int]]) -> None:
    pages = SparseTable(FIELDS, COLUMNS, KEYS)
    plain = {name: np.full((KEYS, COLUMNS), empty) for name, empty in EMPTY.items()}
    for number, (step, key, column) in enumerate(steps, 1):
        columns = np.arange(column, min(column + 300, COLUMNS))
        if step == "put":
            places = pages.opened(np.full(len(columns), key), columns)
            for name, table in plain.items():
                pages.put(name, places, np.full(len(columns), float(number)))
                table[key, columns] = number
        elif step == "row":
            rows = {name: np.full((2, pages.width), empty) for name, empty in EMPTY.items()}
            for name, table in rows.items():
                table[0, :COLUMNS], table[1, :COLUMNS] = -1.0, number
                plain[name][key] = number  # of two the last one stays
            pages.put_rows(np.array([key, key]), rows)
        elif step == "clear":
            pages.clear(np.array([key]))
            for name, table in plain.items():
                table[key] = EMPTY[name]
        elif step == "keep":  # all but one key, which comes back empty as the last one
            which = np.delete(np.arange(KEYS), key)
            pages.keep(which, KEYS)
            for name, table in plain.items():
                plain[name] = np.concatenate([table[which], np.full((1, COLUMNS), EMPTY[name])])
        else:
            saved, pages = pages.saved(KEYS), SparseTable(FIELDS, COLUMNS, KEYS)
            pages.restore(saved)
        for name, table in plain.items():
            assert np.array_equal(pages.rows(name, np.arange(KEYS))[:, :COLUMNS], table)
            assert np.array_equal(
                pages.take(name, pages.places(np.full(len(columns), key), columns)), table[key, columns]
            )
        in_use = pages.index[pages.index > 0]
        assert len(np.unique(in_use)) == len(in_use)
        assert sorted([0, *in_use, *pages.free]) == list(range(len(pages.pools[FIELDS[0].name])))


@pytest.mark.parametrize(
    "options",
    [
        {"time": "1h", "slide": "1s", "on": "at"},
        {"count": 3_600, "slide": 1},
        {"landmark": "1h", "slide": "1s", "on": "at"},
    ],
    ids=["time", "count", "landmark"],
)
def test_keys_with_a_row_each_take_little_room_in_a_window_of_thousands_of_panes(options: dict[str, Any]) -> None:
    """3,600 panes for each of 2,000 keys, two fields, two tables, would be 230 MB and more."""
    start = dt.datetime(2024, 5, 1)
    rows = [(start + dt.timedelta(milliseconds=n), n, 1.0) for n in range(2_000)]
    spec = window("s", by="k", compute={"mean": w.mean("v"), "peak": w.max("v")}, **options)
    tracemalloc.start()
    try:
        state = open_state(spec, READINGS)
        state.slide(rows).commit()
        state.slide([(start + dt.timedelta(seconds=2), 0, 1.0)]).commit()
        assert 1_999 <= state.held() <= 2_001
        saved = state.save()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 40_000_000
    assert len(saved) < 8_000_000
