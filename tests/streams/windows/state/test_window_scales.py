"""Windows over time that begin elsewhere than at multiples of their slide: offsets, months, days of time zones."""

from __future__ import annotations

import builtins
import datetime as dt
from typing import Any

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import EVENTS, VALUES, Batches, batched, by_definition, plain, run_fresh

import tidegate
from tidegate.errors import DeclarationError
from tidegate.streams.watermarks import END
from tidegate.streams.windows import open_state, window
from tidegate.windows import PaneFarm, WindowFarm, count, decomposed, median, sum, whole

Spec = dict[str, Any]
SPECS: dict[str, Spec] = {
    "days that begin at six": {"time": "1d", "offset": "6h"},
    "weeks from Monday on": {"time": "7d", "offset": "4d"},
    "sliding, with an offset": {"time": "9h", "slide": "2h", "offset": "30m"},
    "hopping, with an offset": {"time": "1h", "slide": "5h", "offset": "2h"},
    "months": {"time": "1 month"},
    "quarters by month": {"time": "1 quarter", "slide": "1 month"},
    "years": {"time": "1 year"},
    "months from the fifth on": {"time": "1 month", "offset": "4d"},
    "days": {"time": "1d", "timezone": "Europe/Berlin"},
    "days that begin in a gap": {"time": "1d", "timezone": "Europe/Berlin", "offset": "2h 30m"},
    "days, sliding": {"time": "3d", "slide": "1d", "timezone": "America/New_York"},
    "days, hopping": {"time": "1d", "slide": "3d", "timezone": "Asia/Kathmandu"},
    "many days": {"time": "40d", "slide": "1d", "timezone": "Europe/Berlin"},
    "clocks set at midnight": {"time": "1d", "timezone": "America/Sao_Paulo"},
    "half an hour": {"time": "1d", "timezone": "Australia/Lord_Howe"},
    "a day left out": {"time": "1d", "timezone": "Pacific/Apia"},
    "months of a zone": {"time": "1 month", "timezone": "Europe/Berlin"},
    "since six": {"landmark": "1d", "slide": "1h", "offset": "6h"},
    "year to date": {"landmark": "1 year", "slide": "1 month", "timezone": "Europe/Berlin"},
    "week to date": {"landmark": "7d", "slide": "1d", "offset": "4d", "timezone": "Europe/Berlin"},
}
# clocks are set forward in March, October (south) and back in October, February, April; Apia had no 30 December 2011
MOMENTS = [
    dt.datetime(2024, 3, 30, 20), dt.datetime(2024, 10, 26, 20), dt.datetime(2017, 10, 14, 20), dt.datetime(2018, 2, 17, 20),
    dt.datetime(2024, 4, 6, 10), dt.datetime(2011, 12, 29, 20), dt.datetime(1969, 12, 28), dt.datetime(2024, 2, 27),
]  # fmt: skip
LESS = settings(max_examples=12, deadline=None, database=None)


def rows_from(begin: dt.datetime, steps: list[tuple[int, int]]) -> list[Any]:
    """Rows so many quarters of an hour apart."""
    found, at = [], begin
    for number, (quarters, key) in enumerate(steps):
        at += dt.timedelta(minutes=15 * quarters)
        head = (number, at, number, at.date(), 0.0, ("a", "b", None)[key], None, False, False)
        found.append(EVENTS.conform((*head, *VALUES[number % 2 * 3])))
    return found


def steps(low: int) -> Any:
    step = st.one_of(st.integers(low, 8), st.integers(low, 8), st.integers(0, 200), st.just(24 * 4 * 20))
    return st.lists(st.tuples(step, st.integers(0, 2)), max_size=25)


@pytest.mark.parametrize("name", SPECS)
def test_windows_are_those_of_the_definition_however_rows_are_split(name: str) -> None:
    @LESS
    @given(st.data(), st.sampled_from(MOMENTS), st.sampled_from([(), ("k",)]), st.sampled_from([None, "6h"]))
    def check(data: Any, begin: dt.datetime, by: Any, delay: Any) -> None:
        spec = window("s", on="at", by=by, delay=delay, **SPECS[name])
        rows = rows_from(begin, data.draw(steps(-12 if delay else 0)))
        batches: Any = [*data.draw(batched(rows)), ([], 0, END)]
        assert run_fresh(spec, batches) == by_definition(spec, batches)

    check()


COMPUTE: dict[str, Any] = {
    "numbers per pane": {"n": count(), "total": sum("x")},
    "values": {"n": count(), "total": sum("x"), "middle": median("x")},
    "whole": whole(lambda rows: [(len(rows), float(rows["x"].sum()))], "n BIGINT, total DOUBLE"),
    "panes": decomposed(
        lambda rows: (len(rows), float(rows["x"].sum())),
        lambda parts: (sum_of(parts, 0), sum_of(parts, 1)),
        "n BIGINT, total DOUBLE",
    ),
}


def sum_of(parts: list[Any], place: int) -> Any:
    total = parts[0][place]
    for part in parts[1:]:
        total += part[place]
    return total


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("how", COMPUTE)
def test_what_is_computed_of_them_over_aborts_and_restores(how: str, name: str) -> None:
    @settings(max_examples=4, deadline=None, database=None)
    @given(st.data(), st.sampled_from(MOMENTS), st.sampled_from([(), ("k",)]))
    def check(data: Any, begin: dt.datetime, by: Any) -> None:
        spec = window("s", on="at", by=by, compute=COMPUTE[how], **SPECS[name])
        batches: Any = [*data.draw(batched(rows_from(begin, data.draw(steps(0))))), ([], 0, END)]
        wanted = [
            (*w.key, w.number, naive.EPOCH + dt.timedelta(microseconds=w.start), naive.EPOCH + dt.timedelta(microseconds=w.end),
             len(w.rows), pytest.approx(float(builtins.sum(r.x for r in w.rows))))
            for w in naive.expected(spec, batches).fired
        ]  # fmt: skip
        state, found = open_state(spec, EVENTS), []
        for rows, *rest in batches:
            state.slide(rows, *rest)  # an abort
            again = open_state(spec, EVENTS)
            again.restore(state.save())
            assert again.contents() == state.contents()
            state = again
            slide = state.slide(rows, *rest)
            slide.commit()
            found += [tuple(row)[: len(by) + 5] for row in slide.results]
        assert found == wanted

    check()


@pytest.mark.parametrize("name", SPECS)
def test_nothing_that_is_still_to_fire_begins_before_what_is_held_back(name: str) -> None:
    @LESS
    @given(st.data(), st.sampled_from(MOMENTS))
    def check(data: Any, begin: dt.datetime) -> None:
        spec = window("s", on="at", **SPECS[name])
        batches: Batches = data.draw(batched(rows_from(begin, data.draw(steps(0)))))
        state, held_back = open_state(spec, EVENTS), -(2**62)
        for batch in [*batches, ([], 0, END)]:
            slide = state.slide(*batch)
            assert all(one.start >= held_back for one in slide.windows)
            slide.commit()
            assert slide.held_back() >= held_back
            held_back = slide.held_back()

    check()


@pytest.mark.parametrize("pattern", [PaneFarm(2), WindowFarm(2)])
def test_panes_have_times_too(pattern: Any) -> None:
    seen: list[tuple[Any, ...]] = []

    def pane(rows: Any) -> int:
        seen.append((rows.start, rows.end))
        return len(rows)

    function = decomposed(pane, lambda parts: (sum_of([(part,) for part in parts], 0),), "n BIGINT")
    spec = window("s", time="2 months", slide="1 month", on="at", compute=function, pattern=pattern)
    state = open_state(spec, EVENTS)
    state.slide(rows_from(dt.datetime(2024, 1, 31, 23), [(0, 0), (8, 0)]), 0, END).commit()
    bounds = [naive.time_of(dt.datetime(2024, month, 1)) for month in (1, 2, 3)]
    assert {*seen} == {(bounds[0], bounds[1]), (bounds[1], bounds[2])}


def test_days_of_23_and_25_hours() -> None:
    app = tidegate.App("power")
    app.table("CREATE TABLE days (begins TIMESTAMP PRIMARY KEY, hours BIGINT)")
    app.stream("hours", "began TIMESTAMP NOT NULL", border=True)
    daily = window("hours", time="1d", timezone="Europe/Berlin", on="began", compute={"n": count()})

    @app.procedure(inputs="hours", writes=["days"], windows={"daily": daily})
    def keep(txn: Any, hours: Any) -> None:
        txn.execute("INSERT INTO days SELECT window_start, n FROM daily")

    with tidegate.open(app) as engine:
        for begin in (dt.datetime(2024, 3, 29, 23), dt.datetime(2024, 10, 25, 22)):
            engine.push("hours", [(begin + dt.timedelta(hours=n),) for n in range(72)])
        engine.finish()
        days = [(row[0].isoformat(), row[1]) for row in engine.query("SELECT * FROM days ORDER BY 1").rows]
    assert days == [
        ("2024-03-29T23:00:00", 24), ("2024-03-30T23:00:00", 23), ("2024-03-31T22:00:00", 24), ("2024-04-01T22:00:00", 1),
        ("2024-10-25T22:00:00", 24), ("2024-10-26T22:00:00", 25), ("2024-10-27T23:00:00", 23),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"time": "1 month", "slide": "1d"}, ["slide='1d'", "months"]),
        ({"time": "1d", "slide": "1h", "timezone": "Europe/Berlin"}, ["slide='1h'", "whole days"]),
        ({"time": "0 months"}, ["positive"]),
        ({"time": "1d", "timezone": "Europe/Bern"}, ["no time zone 'Europe/Bern'", "tzdata"]),
        ({"time": "1d", "timezone": 3}, ["no time zone 3"]),
        ({"time": "1d", "offset": -1}, ["offset"]),
        ({"time": "1 month", "offset": 3}, ["offset"]),
        ({"count": 3, "offset": 1}, ["offset=", "time="]),
        ({"count": 3, "timezone": "Europe/Berlin"}, ["timezone=", "time="]),
        ({"session": "1 month"}, ["in months", "time="]),
        ({"time": "1 month", "slide_rows": 3}, ["in months", "time="]),
        ({"landmark": "1 year", "slide": "5 months", "timezone": "UTC"}, ["not a multiple"]),
        ({"landmark": 6, "slide": 2, "offset": 2, "on": None}, ["of tuples"]),
        ({"time": "1d", "partial": True}, ["partial=", "count="]),
    ],
)
def test_what_makes_no_sense_is_refused(given_: Spec, words: list[str]) -> None:
    with pytest.raises(DeclarationError) as caught:
        window("s", **{"on": "at", **given_})
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_a_date_is_in_no_time_zone() -> None:
    with pytest.raises(DeclarationError, match="which is a DATE"):
        open_state(window("s", time="1d", timezone="Europe/Berlin", on="day"), EVENTS)
    monthly = window("s", time="1 month", on="day")
    rows = rows_from(dt.datetime(2024, 1, 31, 23), [(0, 0), (8, 0)])
    slide = open_state(monthly, EVENTS).slide(rows, 0, END)
    assert [plain(one).start for one in slide.windows] == [naive.time_of(dt.date(2024, m, 1)) for m in (1, 2)]


def test_a_window_says_where_it_begins() -> None:
    assert str(window("s", time="1 quarter", slide="1 month", on="at")) == "time 3 months slide 1 month in UTC on at"
    assert str(window("s", time="1d", timezone="Europe/Berlin", on="at")) == "time 1 day in Europe/Berlin on at"
    assert str(window("s", time="7d", offset="4d", on="at")) == "time 7d offset 4d on at"
    assert str(window("s", time=60, offset=5, on="tick")) == "time 60 offset 5 on tick"
    assert str(window("s", count=4, slide=1, partial=True)) == "count 4 slide 1 partial"
