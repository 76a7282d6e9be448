"""A window that is declared differently begins anew in the middle of its stream: what fires is whole, from the first on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.storage.ddl import Scratch
from tidegate.streams.windows import open_state, window
from tidegate.windows import count, sum, whole

RELATION = Scratch().define_relation("s", "t BIGINT NOT NULL, g INTEGER, n INTEGER NOT NULL")
COUNTS: Any = {"n": count()}
SPECS = {
    "tumbling": {"time": 7},
    "sliding": {"time": 9, "slide": 3},
    "coprime": {"time": 7, "slide": 4},
    "hopping": {"time": 3, "slide": 8},
    "many panes": {"time": 200, "slide": 1},
    "landmark": {"landmark": 12, "slide": 4},
    "session": {"session": 4},
    "by tuple": {"time": 6, "slide_rows": 2},
}
WAYS: dict[str, Any] = {"aggregate": COUNTS, "whole": whole(lambda rows: [(len(rows),)], "n BIGINT"), "rows": None}

batches = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([None, 1, 2]), st.integers(0, 9)), max_size=4), max_size=12
)


def fired(slide: Any, grouped: bool) -> list[tuple[Any, int, int, int]]:
    """Group, start, end and number of rows of each window."""
    if slide.results is None:
        return [(x.key, x.start, x.end, len(x.rows)) for x in slide.windows]
    return [((row[0],) if grouped else (), row.window_start, row.window_end, row.n) for row in slide.results]


def inside(kind: str, start: int, end: int, time: int) -> bool:
    return start < time <= end if kind == "by tuple" else start <= time < end


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPECS)
def test_what_fires_is_whole(kind: str, way: str) -> None:
    compute = WAYS[way]

    @given(batches, batches, st.integers(0, 3), st.booleans())
    @settings(max_examples=20, deadline=None, database=None)
    def check(before: Any, after: Any, delay: int, grouped: bool) -> None:
        by: Any = "g" if grouped else ()
        old = open_state(window("s", time=5, on="t", by=by, delay=delay, compute={"n": sum("n")}), RELATION)
        for batch in before:
            old.slide(RELATION.conform_all(batch)).commit()
        new = open_state(window("s", on="t", by=by, delay=delay, compute=compute, **SPECS[kind]), RELATION)  # type: ignore[arg-type]
        stands = old.stands()
        new.begin_after(stands)
        kept = [row for batch in before for row in batch]
        found = []
        for batch in [*after, [(1_000, g, 0) for g in (None, 1, 2)]]:
            again = open_state(new.spec, RELATION)  # type: ignore[arg-type]
            again.restore(new.save())
            slide = again.slide(RELATION.conform_all(batch))
            slide.commit()
            new = again
            dropped = [tuple(row) for row in slide.late]
            for row in batch:
                if row in dropped:
                    dropped.remove(row)
                else:
                    kept.append(row)
            found += fired(slide, grouped)
        for key, start, end, number in found:
            rows = [t for t, g, _ in kept if (not grouped or (g,) == key) and inside(kind, start, end, t)]
            last = rows.count(end) if kind == "by tuple" else 0  # of equal times it holds those up to its trigger
            assert len(rows) - last <= number <= len(rows), (key, start, end, rows)
            if kind == "session":
                assert not [t for t, g, _ in kept if (not grouped or (g,) == key) and start - 4 < t < start]
        if kind == "tumbling":
            first = stands["reached"] // 7 * 7 + 7 if before and any(before) else 0
            whole = {(() if not grouped else (g,), t // 7 * 7) for t, g, _ in kept if first <= t < 1_000}
            assert {(key, start) for key, start, *_ in found} == whole

    check()
