"""Windows of tuples that their rows do not fill: the first ones and, at the end of the stream, the last ones."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import ANY_ORDER, BY, EVENTS, Drawn, batched, by_definition, drawn_rows, rows_of, run_fresh

import tidegate
from tidegate import App, window
from tidegate.offline.verify import verify
from tidegate.streams.watermarks import END
from tidegate.streams.windows import open_state
from tidegate.windows import count, decomposed, first, last, median, stddev, sum, whole

LESS = settings(max_examples=25, deadline=None, database=None)
LENGTHS = st.sampled_from([(4, 1), (4, 2), (3, 3), (5, 2), (6, 4), (2, 5), (40, 1), (40, 2), (34, 4)])


@LESS
@given(st.data(), LENGTHS, st.sampled_from(BY), st.sampled_from([{}, {"on": "at", "delay": "3s"}]), st.booleans())
def test_they_are_those_of_the_definition_however_rows_are_split(
    data: Any, lengths: Any, by: Any, more: Any, finish: bool
) -> None:
    spec = window("s", count=lengths[0], slide=lengths[1], by=by, partial=True, **more)
    batches: Any = data.draw(batched(data.draw(drawn_rows(ANY_ORDER))))
    if finish:
        batches += [([], 0, END)]
        if len(batches) > 1 and data.draw(st.booleans()):  # the last rows and the end together, as behind a procedure
            batches[-2:] = [(batches[-2][0], 0, END)]
    assert run_fresh(spec, batches) == by_definition(spec, batches)


NUMBERS = {"n": count(), "values": count("i"), "v": sum("small"), "a": first("small"), "z": last("small")}
COMPUTE: dict[str, Any] = {
    "numbers per pane": NUMBERS,
    "spread": {**NUMBERS, "s": stddev("small")},
    "values": {**NUMBERS, "m": median("x")},
    "whole": whole(
        lambda rows: [(len(rows), builtins.sum(r.i is not None for r in rows), int(rows["small"].sum()),
                       rows.rows[0].small, rows.rows[-1].small)],
        "n BIGINT, values BIGINT, v BIGINT, a SMALLINT, z SMALLINT",
    ),
    "panes": decomposed(
        lambda rows: (len(rows), builtins.sum(r.i is not None for r in rows), int(rows["small"].sum()),
                      rows.rows[0].small, rows.rows[-1].small),
        lambda parts: (*(builtins.sum(part[i] for part in parts) for i in range(3)), parts[0][3], parts[-1][4]),
        "n BIGINT, values BIGINT, v BIGINT, a SMALLINT, z SMALLINT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", COMPUTE)
def test_what_is_computed_of_them_over_aborts_and_restores(how: str) -> None:
    @LESS
    @given(st.data(), LENGTHS, st.sampled_from(BY), st.booleans())
    def check(data: Any, lengths: Any, by: Any, together: bool) -> None:
        spec = window("s", count=lengths[0], slide=lengths[1], by=by, partial=True, compute=COMPUTE[how])
        batches: Any = [*data.draw(batched(data.draw(drawn_rows(ANY_ORDER)))), ([], 0, END)]
        if together and len(batches) > 1:
            batches[-2:] = [(batches[-2][0], 0, END)]
        state, found = open_state(spec, EVENTS), []
        for rows, *rest in batches:
            state.slide(rows, *rest)  # an abort
            again = open_state(spec, EVENTS)
            again.restore(state.save())
            state = again
            slide = state.slide(rows, *rest)
            slide.commit()
            found += [tuple(row)[: len(by) + 8] for row in slide.results]
        assert found == [computed(one) for one in naive.expected(spec, batches).fired]

    check()


def computed(one: naive.Fired) -> tuple[Any, ...]:
    rows, small = one.rows, [row.small for row in one.rows]
    values = builtins.sum(row.i is not None for row in rows)
    return *one.key, one.number, one.start, one.end, len(rows), values, builtins.sum(small), small[0], small[-1]


def test_which_they_are() -> None:
    spec = window("s", count=4, slide=2, partial=True)
    ran = run_fresh(spec, [(rows_of([Drawn(0, 0, False, 0)] * 5, 0), 0), ([], 0, END)])  # type: ignore[list-item]
    told = [(one.number, one.start, one.end, len(one.rows)) for one in ran.fired]
    assert told == [(-1, -2, 2, 2), (0, 0, 4, 4), (1, 2, 6, 3), (2, 4, 8, 1)]


def moving() -> App:
    app = App("moving")
    app.table("CREATE TABLE means (k VARCHAR, number BIGINT, n BIGINT, mean DOUBLE, PRIMARY KEY (k, number))")
    app.stream("values", "k VARCHAR NOT NULL, v DOUBLE NOT NULL", border=True, key="k")
    last_three = window("values", count=3, slide=1, partial=True, by="k", compute={"n": count(), "total": sum("v")})

    @app.procedure(inputs="values", writes=["means"], windows={"last_three": last_three})
    def keep(txn: Any, values: Any) -> None:
        txn.execute("INSERT INTO means SELECT k, window_number, n, total / n FROM last_three")

    return app


def test_finishing_a_stream_with_a_key_fires_the_last_ones_of_each_key(tmp_path: Path) -> None:
    rows = [("a", 1.0), ("a", 3.0), ("b", 10.0), ("a", 5.0), ("a", 7.0)]
    found = []
    for size in (1, 2, 5):
        path = tmp_path / f"{size}"
        with tidegate.open(moving(), path) as engine:
            for low in range(0, 5, size):
                engine.push("values", rows[low : low + size])
        with tidegate.open(moving(), path) as engine:  # from its checkpoint
            engine.finish()
            found.append(engine.query("SELECT * FROM means ORDER BY k, number").rows)
        assert verify(moving(), path).same
    assert found[0] == found[1] == found[2]
    assert [row[1:] for row in found[0] if row[0] == "a"] == [
        (-2, 1, 1.0), (-1, 2, 2.0), (0, 3, 3.0), (1, 3, 5.0), (2, 2, 6.0), (3, 1, 7.0)
    ]  # fmt: skip
    assert [row[1:] for row in found[0] if row[0] == "b"] == [(n, 1, 10.0) for n in (-2, -1, 0)]
