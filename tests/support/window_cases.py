"""Streams, specs and batch splits to try windows on, and how to run them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import naive
from hypothesis import strategies as st

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import WindowSpec, open_state, window

Batches = list[tuple[list[Any], int]]

EVENTS = Relation(
    "s",
    (
        Column("id", column_type("BIGINT"), nullable=False),
        Column("at", column_type("TIMESTAMP"), nullable=False),
        Column("tick", column_type("BIGINT"), nullable=False),
        Column("day", column_type("DATE"), nullable=False),
        Column("level", column_type("DOUBLE"), nullable=False),
        Column("k", column_type("VARCHAR")),
        Column("g", column_type("INTEGER")),
        Column("mark", column_type("BOOLEAN")),
        Column("quiet", column_type("BOOLEAN")),
        Column("v", column_type("DOUBLE")),
        Column("i", column_type("BIGINT")),
        Column("price", column_type("DECIMAL(10,2)")),
        Column("name", column_type("VARCHAR")),
        Column("seen", column_type("TIMESTAMP")),
        Column("born", column_type("DATE")),
        Column("ok", column_type("BOOLEAN")),
        Column("x", column_type("DOUBLE"), nullable=False),
        Column("small", column_type("SMALLINT"), nullable=False),
        Column("big", column_type("UBIGINT")),
    ),
)
SECOND = 1_000_000
NAN = float("nan")

# what the value columns of a row can be; rows differ in which of these they get
VALUES: list[tuple[Any, ...]] = [
    # v, i, price, name, seen, born, ok, x, small, big
    (1.5, 1, Decimal("1.10"), "tea", dt.datetime(2024, 1, 1), dt.date(2024, 2, 29), True, 0.1, 1, 2**64 - 1),
    (None, None, None, None, None, None, None, -0.0, -32768, None),
    (
        NAN,
        -7,
        Decimal("-3.35"),
        "",
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.date(1901, 1, 1),
        False,
        0.0,
        7,
        0,
    ),
    (0.1, 10**12, Decimal("0.00"), "Zürich", dt.datetime(2024, 1, 1, 0, 0, 0, 1), dt.date(1970, 1, 1), True, 1e6, 0, 5),
    (-2.25, 3, Decimal("1.10"), "tea", None, None, None, 0.3, 3, 5),
    (-0.0, 0, None, "a", dt.datetime(1970, 1, 1), dt.date(2262, 1, 1), False, -17.7, 32767, 1),
    (0.0, None, Decimal("99999999.99"), "b", dt.datetime(2200, 1, 1), dt.date(2024, 2, 29), None, 0.7, -1, 2**63),
    (12345.678, 3, Decimal("-0.01"), None, dt.datetime(2024, 1, 1), None, True, 0.2, 3, None),
]


class Drawn(NamedTuple):
    """What hypothesis chooses of one row; the rest follows from it."""

    step: int  # seconds (ticks, days, quarters of a level) since the row before
    key: int
    mark: bool | None
    value: int


def rows_of(drawn: Sequence[Drawn], base: int) -> list[Any]:
    """Rows whose time starts at ``base`` seconds and goes on as drawn."""
    rows, time = [], base
    for number, one in enumerate(drawn):
        time += one.step
        at = naive.EPOCH + dt.timedelta(seconds=time)
        day = dt.date(1970, 1, 1) + dt.timedelta(days=time)
        key = (("a", 1), ("b", None), (None, 2), ("a", 2))[one.key]
        head = (number, at, time, day, time / 4, *key, one.mark, False)
        rows.append(EVENTS.conform((*head, *VALUES[one.value])))
    return rows


def drawn_rows(steps: st.SearchStrategy[int], max_size: int = 40) -> st.SearchStrategy[list[Any]]:
    one = st.builds(
        Drawn, steps, st.integers(0, 3), st.sampled_from([False, True, None, False]), st.integers(0, len(VALUES) - 1)
    )
    bases = st.sampled_from([0, -11, 1_704_067_200 // 86_400])
    return st.builds(rows_of, st.lists(one, max_size=max_size), bases)


IN_ORDER = st.sampled_from([0, 1, 1, 2, 5])
ANY_ORDER = st.integers(-4, 6)


@st.composite
def batched(draw: st.DrawFn, rows: list[Any], now_us: int = 0) -> Batches:
    """``rows`` in batches, some of them empty, that come in at rising times."""
    batches: Batches = []
    place = 0
    while place < len(rows):
        size = draw(st.sampled_from([1, 2, 3, 0, 7, 50]))
        batches.append((rows[place : place + size], now_us))
        place += size
        now_us += draw(st.sampled_from([0, 1, 3])) * SECOND
    return batches


@st.composite
def split_again(draw: st.DrawFn, batches: Batches) -> Batches:
    """The same rows at the same times of arrival, in other batches."""
    found: Batches = []
    for rows, now_us in batches:
        cut = draw(st.integers(0, len(rows)))  # at either end, one of the two is empty
        found.extend([(rows[:cut], now_us), (rows[cut:], now_us)])
    return found


def lengths(draw: st.DrawFn, on: str | None, *names: str) -> dict[str, Any]:
    """A length for each name, in the unit of the time column."""
    unit = {"tick": None, "day": "d"}.get(str(on), "s")
    found = {}
    for name in names:
        number = draw(st.integers(1, 6))
        found[name] = number if unit is None else f"{number}{unit}"
    return found


@st.composite
def specs(draw: st.DrawFn, kind: str, by: tuple[str, ...], on: str | None = "at", **more: Any) -> WindowSpec:
    """A window of this kind."""
    small = st.integers(1, 6)
    options: dict[str, Any] = {"on": on, "by": by, **more}
    match kind:
        case "count":
            options |= {"count": draw(small), "slide": draw(small)}
        case "batches":
            options |= {"batches": draw(small), "slide": draw(small), "on": None}
        case "time":
            options |= lengths(draw, on, "time", "slide")
        case "slide_by_tuple":
            options |= {**lengths(draw, on, "time"), "slide_rows": draw(small)}
        case "slide_by_time":
            options |= {"count": draw(small), **lengths(draw, on, "slide_time")}
        case "delta":
            options |= {"delta": draw(small) / 2, "slide": draw(small) / 2, "on": "level"}
        case "session":
            options |= lengths(draw, on, "session")
            options["close"] = draw(st.sampled_from([None, "mark", _marked]))
        case "landmark":
            slide, times = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            unit = "" if on is None or on == "tick" else "d" if on == "day" else "s"
            options |= {"landmark": f"{slide * times}{unit}", "slide": f"{slide}{unit}"}
            if not unit:
                options |= {"landmark": slide * times, "slide": slide}
        case "punctuated":
            options["until"] = draw(st.sampled_from(["mark", _marked]))
    return window("s", **options)


def _marked(row: Any) -> bool:
    return row.mark is True


KINDS = (
    "count", "batches", "time", "slide_by_tuple", "slide_by_time", "delta", "session", "landmark", "punctuated",
)  # fmt: skip
BY = ((), ("k",), ("k", "g"))
TIMED = ("time", "slide_by_tuple", "slide_by_time", "session", "landmark")


class Ran(NamedTuple):
    """What a state did with some batches."""

    fired: list[naive.Fired]
    late: list[str]


def plain(window: Any) -> naive.Fired:
    """A fired window, to compare: rows as text, which tells NaN, -0.0 and types apart."""
    return naive.Fired(window.number, window.key, window.start, window.end, tuple(map(repr, window.rows)))


def by_definition(spec: WindowSpec, batches: Batches) -> Ran:
    """What the definitions say."""
    outcome = naive.expected(spec, batches)
    return Ran([plain(window) for window in outcome.fired], list(map(repr, outcome.late)))


def in_forms(relation: Relation, batches: Sequence[Sequence[Any]]) -> list[Any]:
    """Every other batch as columns, so that each test runs over both forms and their mixtures."""
    return [rows if place % 2 else ColumnRows.of_rows(relation, rows) for place, rows in enumerate(batches)]


def run(state: Any, batches: Batches) -> Ran:
    """Push batches into a state, committing each."""
    ran = Ran([], [])
    forms = in_forms(state.relation, [batch[0] for batch in batches])
    for rows, batch in zip(forms, batches, strict=True):
        slide = state.slide(rows, *batch[1:])
        ran.fired.extend(plain(w) for w in slide.windows)
        ran.late.extend(map(repr, slide.late))
        slide.commit()
    return ran


def run_fresh(spec: WindowSpec, batches: Batches) -> Ran:
    return run(open_state(spec, EVENTS), batches)


def results(spec: WindowSpec, batches: Batches, relation: Relation = EVENTS) -> list[Any]:
    """The results of a window with compute=."""
    state = open_state(spec, relation)
    found: list[Any] = []
    forms = in_forms(relation, [rows for rows, _ in batches])
    for rows, (_, now_us) in zip(forms, batches, strict=True):
        slide = state.slide(rows, now_us)
        found.extend(slide.results)
        slide.commit()
    return found
