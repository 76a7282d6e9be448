"""Functions of the user over every kind of window: whole, decomposed and incremental give what the rows say."""

from __future__ import annotations

from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import BY, EVENTS, IN_ORDER, KINDS, Drawn, batched, drawn_rows, results, rows_of, specs

import tidegate
from tidegate import windows as w
from tidegate.streams.windows import open_state, window

FEW = settings(max_examples=10, deadline=None)


def ids(rows: Any) -> tuple[int, ...]:
    return tuple(row.id for row in rows)


def joined(panes: Any) -> tuple[int, ...]:
    return tuple(number for pane in panes for number in pane)


def ends(extent: Any) -> tuple[int, int]:
    """From numpy columns alone."""
    return int(extent["id"][0]), int(extent["id"][-1])


FUNCTIONS = {
    "whole": lambda: w.whole(lambda extent: (ids(extent.rows), len(extent)), returns="ids BIGINT[], n INTEGER"),
    "whole_batch": lambda: w.whole_batch(
        lambda batch: {"n": batch.lengths, "ids": [ids(extent) for extent in batch]}, returns="ids BIGINT[], n INTEGER"
    ),
    "decomposed": lambda: w.decomposed(
        lambda extent: ids(extent.rows), lambda panes: (joined(panes), len(joined(panes))), "ids BIGINT[], n INTEGER"
    ),
    "incremental": lambda: w.incremental(
        tuple, lambda state, row: (*state, row.id), lambda state: (state, len(state)), returns="ids BIGINT[], n INTEGER"
    ),
}


@pytest.mark.parametrize("form", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_a_function_gets_the_rows_of_each_window_in_order(kind: str, form: str, data: Any) -> None:
    delay = "3s" if kind not in ("batches", "delta") else None
    by = data.draw(st.sampled_from(BY), "by")
    spec = data.draw(specs(kind, by, delay=delay, compute=FUNCTIONS[form]()), "spec")
    rows = data.draw(drawn_rows(IN_ORDER), "rows")
    batches = data.draw(batched(rows), "batches")
    fired = naive.expected(spec, batches).fired
    wanted = [(*one.key, one.number, ids(one.rows), len(one.rows)) for one in fired]
    found = results(spec, batches)
    assert [(*row[: len(by) + 1], row.ids, row.n) for row in found] == wanted
    if kind != "batches":
        assert results(spec, [(rows, 0)]) == found


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_a_function_sees_only_the_columns_it_asked_for(kind: str, data: Any) -> None:
    compute = w.whole(ends, returns="first BIGINT, last BIGINT", columns=["id"])
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY), "by"), compute=compute), "spec")
    batches = data.draw(batched(data.draw(drawn_rows(IN_ORDER), "rows")), "batches")
    wanted = [(one.rows[0].id, one.rows[-1].id) for one in naive.expected(spec, batches).fired]
    assert [(row.first, row.last) for row in results(spec, batches)] == wanted


def test_the_windows_of_these_tests_go_where_they_should(evaluated_on: Any) -> None:
    """On Spark, or nothing would have been compared."""
    before = 0 if evaluated_on is None else evaluated_on.jobs
    spec = window("events", count=2, compute=FUNCTIONS["whole"]())
    assert [row.n for row in results(spec, [([ROW, ROW], 0), ([ROW, ROW], 0)])] == [2, 2]
    assert evaluated_on is None or evaluated_on.jobs > before


ROW = EVENTS.conform(
    dict.fromkeys(EVENTS.column_names)
    | {"id": 7, "at": naive.EPOCH, "tick": 0, "day": naive.EPOCH.date(), "level": 0.0, "x": 0.5, "small": 1}
)


@pytest.mark.parametrize(
    ("returned", "wanted"),
    [
        (3, [(3, None)]),
        ((3, "three"), [(3, "three")]),
        ({"name": "three", "number": 3}, [(3, "three")]),
        ({"number": 3}, [(3, None)]),
        ([(1, "a"), {"number": 2}, (3, "c")], [(1, "a"), (2, None), (3, "c")]),
        ([], []),
        (None, []),
    ],
)
def test_a_function_returns_a_value_a_tuple_a_dict_several_or_nothing(returned: Any, wanted: list[Any]) -> None:
    returns = "number BIGINT" if returned == 3 else "number BIGINT, name VARCHAR"
    spec = window("s", count=1, compute=w.whole(lambda extent: returned, returns=returns))
    found = open_state(spec, EVENTS).slide([ROW], 0).results
    assert [(row.number, getattr(row, "name", None)) for row in found] == wanted
    assert all((row.window_number, row.window_start, row.window_end) == (0, 0, 1) for row in found)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"nobody": 1}, ["nobody", "returns="]),
        ((1, 2, 3), ["2", "3"]),
        ("text", ["number", "text"]),
    ],
)
def test_a_result_that_does_not_fit_is_refused(returned: Any, words: list[str]) -> None:
    returns = "number BIGINT" if returned == "text" else "number BIGINT, name VARCHAR"
    state = open_state(window("s", count=1, compute=w.whole(lambda extent: returned, returns=returns)), EVENTS)
    before = state.save()
    with pytest.raises(tidegate.DataError) as refused:
        state.slide([ROW], 0)
    for word in words:
        assert word in str(refused.value)
    assert state.save() == before


def test_what_a_function_raises_reaches_the_caller_and_changes_nothing() -> None:
    def fails(extent: Any) -> Any:
        raise ZeroDivisionError("mine")

    state = open_state(window("s", count=2, compute=w.whole(fails, returns="n BIGINT")), EVENTS)
    state.slide([ROW], 0).commit()
    before = state.save()
    with pytest.raises(ZeroDivisionError, match="mine"):
        state.slide([ROW], 0)
    assert state.save() == before


def ranges(batch: w.WindowBatch) -> Any:
    assert repr(batch) == f"<{len(batch)} windows, {len(batch['x'])} rows>"
    assert [len(window) for window in batch] == batch.lengths.tolist() == (batch.ends - batch.starts).tolist()
    assert batch[0].number <= batch[-1].number
    calls.append(len(batch))
    return np.maximum.reduceat(batch["x"], batch.starts), np.minimum.reduceat(batch["x"], batch.starts)


calls: list[int] = []


def test_a_function_of_a_batch_of_windows_is_called_once_for_all_that_fire() -> None:
    calls.clear()
    compute = w.whole_batch(ranges, "most DOUBLE, least DOUBLE", columns=["x"])
    state = open_state(window("s", count=3, slide=1, compute=compute), EVENTS)
    rows = rows_of([Drawn(1, 0, False, i % 8) for i in range(50)], 0)
    found = list(state.slide(tuple(rows)).results)
    xs = [row.x for row in rows]
    assert [(r.most, r.least) for r in found] == [(max(xs[i : i + 3]), min(xs[i : i + 3])) for i in range(48)]
    assert len(calls) <= 3  # one or two windows are tried first, to learn what one costs


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: 1.0, "returned a single value for"),
        (lambda batch: np.zeros(len(batch) + 1), "returned 2 values for 1 windows"),
        (lambda batch: {"other": batch.starts}, "returned the columns other; returns= names a"),
        (lambda batch: (batch.starts, batch.ends), "returned 1 values, 1 values for 1 windows"),
    ],
)
def test_what_a_function_of_a_batch_returns_has_a_value_for_each_window(function: Any, words: str) -> None:
    state = open_state(window("s", count=1, compute=w.whole_batch(function, "a DOUBLE")), EVENTS)
    with pytest.raises(tidegate.errors.MistakeError, match=words):
        state.slide(tuple(rows_of([Drawn(1, 0, False, 0)], 0)))
