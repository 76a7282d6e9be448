"""Functions of the user over every kind of window: whole, decomposed and incremental give what the rows say."""

from __future__ import annotations

from typing import Any

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import BY, EVENTS, IN_ORDER, KINDS, batched, drawn_rows, results, specs

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
