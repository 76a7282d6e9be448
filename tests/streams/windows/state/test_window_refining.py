"""Windows that fire early, and again when late rows have changed them."""

from __future__ import annotations

import builtins
import datetime as dt
import random
from pathlib import Path
from typing import Any

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import ANY_ORDER, BY, EVENTS, SECOND, Batches, batched, drawn_rows, split_again

import tidegate
from tidegate import App, window
from tidegate.errors import DeclarationError
from tidegate.offline.verify import verify
from tidegate.streams.watermarks import END
from tidegate.streams.windows import WindowSpec, open_state
from tidegate.testing import ManualClock
from tidegate.windows import count, median, sum, whole

SPECS: dict[str, dict[str, Any]] = {
    "early": {"time": "6s", "emit_every": "2s"},
    "early, sliding": {"time": "6s", "slide": "4s", "emit_every": "1s"},
    "early, hopping, offset": {"time": "2s", "slide": "6s", "emit_every": "1s", "offset": "1s"},
    "again": {"time": "4s", "late": "refire", "refire_for": "8s"},
    "again, sliding": {"time": "4s", "slide": "2s", "late": "refire", "refire_for": "4s"},
    "both": {"time": "6s", "slide": "3s", "emit_every": "1s", "late": "refire", "refire_for": "5s", "delay": "2s"},
    "both, by the slowest source": {
        "time": "4s",
        "emit_every": "2s",
        "late": "refire",
        "refire_for": "4s",
        "source": "k",
    },
    "early, adjusted": {"time": "4s", "emit_every": "2s", "late": "adjust", "delay": "1s"},
}
COMPUTE: dict[str, Any] = {
    "aggregates": {"n": count(), "total": sum("small")},
    "values": {"n": count(), "total": sum("small"), "m": median("x")},
    "whole": whole(lambda rows: [(len(rows), int(rows["small"].sum()))], "n BIGINT, total BIGINT"),
}
NAIVE = [name for name in SPECS if "source" not in name and "adjusted" not in name]


def ran(state: Any, batches: Any, by: int, broken: bool = False) -> tuple[list[Any], list[str], int, Any]:
    found, late = [], []
    for rows, *rest in batches:
        if broken:
            state.slide(rows, *rest)  # an abort
            again = open_state(state.spec, EVENTS)
            again.restore(state.save())
            assert repr(again.contents()) == repr(state.contents())
            state = again
        slide = state.slide(rows, *rest)
        slide.commit()
        found += [tuple(row)[: by + 6] for row in slide.results]
        assert [row for one in slide.shown_each(state.results.relation) for row in one] == [*slide.results]
        late += map(repr, slide.late)
    return found, late, state.fired, repr(state.contents())


@pytest.mark.parametrize("how", COMPUTE)
@pytest.mark.parametrize("name", NAIVE)
def test_what_fires_when_is_as_defined(name: str, how: str) -> None:
    @settings(max_examples=12, deadline=None, database=None)
    @given(st.data(), st.sampled_from(BY), st.booleans())
    def check(data: Any, by: Any, broken: bool) -> None:
        spec = window("s", on="at", by=by, compute=COMPUTE[how], **SPECS[name])
        batches: Any = data.draw(batched(data.draw(drawn_rows(ANY_ORDER, 20))))
        if batches and data.draw(st.booleans()):
            at = naive.time_of(batches[0][0][0].at) if batches[0][0] else 0
            batches.insert(data.draw(st.integers(0, len(batches))), ([], 0, at + 7 * SECOND))
        batches += [([], 0, END)] * data.draw(st.integers(0, 1))
        wanted, late = naive.refined(spec, batches)
        found = ran(open_state(spec, EVENTS), batches, len(by), broken)
        assert found[0] == [result(one) for one in wanted]
        assert found[1] == [*map(repr, late)]
        if batches and batches[-1][-1] == END:
            assert found[3] == "{}"

    check()


def result(one: naive.Refined) -> tuple[Any, ...]:
    fired = one.fired
    bounds = [naive.EPOCH + dt.timedelta(microseconds=bound) for bound in (fired.start, fired.end)]
    return *fired.key, fired.number, *bounds, one.final, len(fired.rows), builtins.sum(row.small for row in fired.rows)


@pytest.mark.parametrize("name", SPECS)
def test_how_rows_are_split_makes_no_difference(name: str) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(st.data(), st.sampled_from(BY))
    def check(data: Any, by: Any) -> None:
        spec = window("s", on="at", by=by, compute=COMPUTE["aggregates"], **SPECS[name])
        batches: Batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER))))
        again = data.draw(split_again(batches))
        assert ran(open_state(spec, EVENTS), batches, len(by)) == ran(open_state(spec, EVENTS), again, len(by), True)

    check()


@settings(max_examples=15, deadline=None, database=None)
@given(st.data())
def test_by_arrival_it_fires_early_too(data: Any) -> None:
    spec = window("s", time="6s", emit_every="2s", compute=COMPUTE["aggregates"])
    batches: Any = [*data.draw(batched(data.draw(drawn_rows(ANY_ORDER, 20)))), ([], 0, END)]
    wanted, _ = naive.refined(spec, batches)
    assert ran(open_state(spec, EVENTS), batches, 0)[0] == [result(one) for one in wanted]


@settings(max_examples=15, deadline=None, database=None)
@given(st.data(), st.sampled_from([*NAIVE]))
def test_nothing_that_is_still_to_fire_begins_before_what_is_held_back(data: Any, name: str) -> None:
    spec: WindowSpec = window("s", on="at", compute=COMPUTE["aggregates"], **SPECS[name])
    state, held_back = open_state(spec, EVENTS), -(2**62)
    for batch in [*data.draw(batched(data.draw(drawn_rows(ANY_ORDER)))), ([], 0, END)]:
        slide = state.slide(*batch)
        assert all(naive.time_of(row.window_start) >= held_back for row in slide.results)
        slide.commit()
        assert slide.held_back() >= held_back
        held_back = slide.held_back()


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2026, 3, 1, 8, 0, seconds)


def sales() -> App:
    app = App("sales")
    app.table("CREATE TABLE told (place BIGINT PRIMARY KEY, starts TIMESTAMP, n BIGINT, final BOOLEAN)")
    app.table("CREATE TABLE runs (place BIGINT PRIMARY KEY, n BIGINT)")
    app.stream("sold", "id BIGINT NOT NULL, moment TIMESTAMP NOT NULL", border=True)
    each = window(
        "sold", time="10s", on="moment", emit_every="5s", late="refire", refire_for="10s", compute={"n": count()}
    )

    @app.procedure(inputs="sold", writes=["told", "runs"], windows={"each": each})
    def keep(txn: Any, sold: Any) -> None:
        for row in txn.window("each").results:
            txn.insert("told", (txn.count("told") + 1, row.window_start, row.n, row.final))

    app.trigger("keep.each", "INSERT INTO runs SELECT (SELECT coalesce(max(place), 0) + 1 FROM runs), max(n) FROM each")
    return app


ROWS = [(1, at(1)), (2, at(6)), (3, at(11)), (4, at(3)), (5, at(16)), (6, at(7)), (7, at(20)), (8, at(4)), (9, at(21))]
TOLD = [
    (at(0), 1, False), (at(0), 2, False), (at(0), 3, False), (at(10), 1, False), (at(0), 4, True), (at(10), 2, False),
    (at(20), 2, False), (at(10), 2, True), (at(20), 2, False), (at(20), 2, True),
]  # fmt: skip


def test_in_an_app_over_restarts_triggers_and_verify(tmp_path: Path) -> None:
    for size in (1, 2, 3, 9):
        path = tmp_path / f"{size}"
        clock = ManualClock(dt.datetime(2026, 3, 1))
        for low in range(0, len(ROWS), size):
            with tidegate.open(sales(), path, clock=clock) as engine:
                engine.push("sold", ROWS[low : low + size])
        with tidegate.open(sales(), path, clock=clock) as engine:
            assert engine.query("SELECT late FROM tidegate.windows").scalar() == 1
            engine.finish()
            told = [tuple(row) for row in engine.query("SELECT starts, n, final FROM told ORDER BY place").rows]
            runs = [row[0] for row in engine.query("SELECT n FROM runs ORDER BY place").rows]
        assert told == TOLD
        assert runs == [n for _, n, _ in TOLD]
        assert verify(sales(), path).same


def looked_ahead() -> App:
    app = App("ahead")
    columns = "place BIGINT PRIMARY KEY, k INTEGER, starts BIGINT, n BIGINT, total BIGINT"
    app.table(f"CREATE TABLE refined ({columns}, final BOOLEAN)")
    app.table(f"CREATE TABLE unfilled ({columns})")
    app.stream("s", "x BIGINT NOT NULL, k INTEGER NOT NULL", border=True)
    summed = whole(lambda rows: [(len(rows), int(rows["x"].sum()))], "n BIGINT, total BIGINT")
    early_and_late: dict[str, Any] = {"emit_every": 5, "late": "refire", "refire_for": 15}
    each = window("s", time=20, slide=10, on="x", by="k", compute=summed, **early_and_late)
    last = window("s", count=4, slide=2, partial=True, by="k", compute=summed)

    @app.procedure(inputs="s", writes=["refined", "unfilled"], windows={"each": each, "last": last})
    def keep(txn: Any, s: Any) -> None:
        if any(row.x % 17 == 0 for row in s):
            txn.abort("no")
        for r in txn.window("each").results:
            txn.insert("refined", (txn.count("refined") + 1, r.k, r.window_start, r.n, r.total, r.final))
        for r in txn.window("last").results:
            txn.insert("unfilled", (txn.count("unfilled") + 1, r.k, r.window_start, r.n, r.total))

    return app


@pytest.mark.parametrize("settings", [{"look_ahead": 3}, {"look_ahead": 8, "executor": "threads"}])
def test_looking_ahead_changes_nothing(settings: dict[str, Any]) -> None:
    chance = random.Random(7)
    rows = [(max(0, 2 * i + chance.randint(-14, 2)), chance.randint(0, 2)) for i in range(150)]

    def told(**settings: Any) -> list[Any]:
        with tidegate.open(looked_ahead(), **settings) as engine:
            engine.feed("s", rows, size=3)
            engine.finish()
            engine.run_until_idle()
            return [engine.query(f"SELECT * FROM {name} ORDER BY place").rows for name in ("refined", "unfilled")]

    plain = told()
    assert all(plain)
    assert told(backend="auto", **settings) == plain


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"time": "4s", "late": "refire"}, ["refire_for="]),
        ({"time": "4s", "refire_for": "4s"}, ["late='refire'"]),
        ({"time": "4s", "emit_every": "3s"}, ["divide"]),
        ({"time": "4s", "late": "refire", "refire_for": "3s"}, ["multiples"]),
        ({"time": "4s", "emit_every": "2s", "compute": None}, ["compute="]),
        ({"session": "4s", "emit_every": "2s"}, ["windows of time"]),
        ({"time": "1 month", "emit_every": "1d"}, ["landmark="]),
        ({"time": "4s", "emit_every": 2}, ["emit_every"]),
        ({"time": "4s", "on": None, "late": "refire", "refire_for": "4s"}, ["event time"]),
    ],
)
def test_what_makes_no_sense_is_refused(given_: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DeclarationError) as caught:
        window("s", **{"on": "at", "compute": {"n": count()}, **given_})
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_it_says_so() -> None:
    spec = window("s", on="at", compute={"n": count()}, **SPECS["both"])
    assert str(spec) == "time 6s slide 3s emitting every 1s refiring for 5s on at"
