"""A few rows are taken in one by one, many as arrays: the same results and the same state, to the last bit."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from test_joins import LEFT, ON, RIGHT, left, right
from test_window_aggregates import CHECKS, FIELDS
from window_cases import BY, EVENTS, KINDS, Drawn, _marked, rows_of

from tidegate.storage.column_rows import ColumnRows
from tidegate.streams.windows import WindowSpec, open_state, window
from tidegate.streams.windows.declare.declared import opener
from tidegate.streams.windows.declare.joins import join
from tidegate.streams.windows.state.join_state import JoinState

MANY = 10_000


def bits(value: Any) -> Any:
    """Such that equal means the same type and bits; of zeros and of NaN there is one each."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value + 0.0)
    if isinstance(value, (list, tuple)):
        return [bits(one) for one in value]
    if isinstance(value, dict):
        return [(bits(key), bits(one)) for key, one in value.items()]
    return repr(value)


def a_spec(rng: random.Random, kind: str) -> WindowSpec:
    names = rng.sample(FIELDS if rng.random() < 0.7 else sorted(CHECKS), rng.randint(1, 6))
    compute: Any = {name: CHECKS[name][0] for name in names}
    if rng.random() < 0.15 and kind not in ("count", "batches"):
        compute = None
    size, slide = rng.choice([(1, 1), (5, 1), (4, 4), (6, 4), (2, 5), (40, 1), (30, 5), (60, 20)])
    on = rng.choice(["at", "tick", None]) if kind != "delta" else "level"
    unit = (lambda n: f"{n}s") if on != "tick" else (lambda n: n)
    options: dict[str, Any] = {"on": on, "by": rng.choice(BY), "compute": compute}
    match kind:
        case "count":
            options |= {"count": size, "slide": slide}
        case "batches":
            options |= {"batches": size, "slide": slide, "on": None}
        case "time":
            options |= {"time": unit(size), "slide": unit(slide)}
        case "slide_by_tuple":
            options |= {"time": unit(size), "slide_rows": slide}
        case "slide_by_time":
            options |= {"count": size, "slide_time": unit(slide)}
        case "delta":
            options |= {"delta": size / 2, "slide": slide / 2}
        case "session":
            options |= {"session": unit(rng.randint(1, 6)), "close": rng.choice([None, "mark", _marked])}
        case "landmark":
            options |= {"landmark": unit(slide * rng.randint(1, 30)), "slide": unit(slide)}
        case "punctuated":
            options["until"] = rng.choice(["mark", _marked])
    if options["on"] is not None and kind != "delta":
        options["late"] = rng.choice(["drop", "adjust"])
        if rng.random() < 0.2:
            options["delay"] = unit(3)
    return window("s", **options)


def some_rows(rng: random.Random, count: int) -> list[Any]:
    steps = rng.choice([[0, 1, 1, 2], [0, 0, 0, 1], [0, 1, 1, 2, -1, -4], [0, 1, 90]])
    drawn = [
        Drawn(rng.choice(steps), rng.randrange(4), rng.choice([True, False, False, None]), rng.randrange(8))
        for _ in range(count)
    ]
    return rows_of(drawn, rng.choice([0, -11, 19_000]))


def told(slide: Any) -> Any:
    windows = [(w.number, w.key, w.start, w.end, list(map(repr, w.rows))) for w in slide.windows]
    results = None if slide.results is None else bits([tuple(row) for row in slide.results])
    columns = None
    if slide.results is not None and len(slide.results):
        arrays = slide.results.columns
        columns = [(name, arrays[name].dtype, bits(arrays.python(name))) for name in arrays.values]
    return windows, results, columns, list(map(repr, slide.late)), slide.slid, slide.held_back()


def stood(state: Any) -> Any:
    return bits(state.contents()), state.fired, state.late, state.batches, state.watermark, state.held()


def compare_paths(seed: int, kind: str) -> int:
    """The same batches as arrays, row by row, and now so, now so; returns how many were taken in row by row."""
    rng = random.Random(f"{kind} {seed}")
    spec = a_spec(rng, kind)
    states: list[Any] = [open_state(spec, EVENTS) for _ in range(3)]
    opened = opener(spec, {"s": EVENTS}, None, None)  # as on a keyed stream
    keyed = [opened(key) for key in range(3)]
    rows, at, now_us, in_rows = some_rows(rng, rng.choice([20, 120])), 0, 0, 0
    while at < len(rows):
        batch = tuple(rows[at : at + rng.choice([1, 1, 1, 2, 5, 31])])
        at, now_us = at + len(batch), now_us + rng.choice([0, 1, 3]) * 1_000_000
        for state, few in zip(states, (0, MANY, rng.choice([0, MANY])), strict=True):
            state.few = few
        given = ColumnRows.of_rows(EVENTS, batch) if rng.random() < 0.2 else batch
        table = getattr(keyed[0], "table", None)
        if table is not None:
            table.few = rng.choice([0, MANY])
        slides = [state.slide(given, now_us) for state in [*states, *keyed]]
        in_rows += states[1]._few(batch, now_us) is not None
        told_of = [told(slide) for slide in slides]
        assert all(one == told_of[0] for one in told_of[1:]), spec
        if rng.random() < 0.1:  # aborted: the same once more
            continue
        for slide in slides:
            slide.commit()
        assert all(stood(state) == stood(states[0]) for state in [*states[1:], *keyed]), spec
        if rng.random() < 0.05:
            saved = [state.save() for state in [*states, keyed[0]]]
            states = [open_state(spec, EVENTS) for _ in range(3)]
            keyed[0] = opened(3)
            for state, held in zip([*states, keyed[0]], saved, strict=True):
                state.restore(held)
    return in_rows


@pytest.mark.parametrize("kind", KINDS)
def test_row_by_row_is_the_same_as_in_arrays(kind: str) -> None:
    for seed in range(8):
        compare_paths(seed, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_row_by_row_is_the_same_as_in_arrays_in_many_cases(kind: str) -> None:
    for seed in range(8, 400):
        compare_paths(seed, kind)


def compare_joins(seed: int) -> None:
    """As above, for inner joins within an interval."""
    rng = random.Random(seed)
    within = rng.choice([rng.randint(0, 6), (rng.randint(0, 6), rng.randint(0, 6))])
    spec = join(
        "a", "b", left_time="t", right_time="t", on=rng.choice(ON), within=within, delay=rng.choice([None, 1, 4]),
        mode=rng.choice(["coordinated", "best_effort"]), late=rng.choice(["drop", "adjust"]),
    )  # fmt: skip
    if spec.mode == "coordinated":
        spec = replace(spec, idle_us=rng.choice([None, 5]))
    states = [JoinState(spec, LEFT, RIGHT) for _ in range(3)]
    number, now, times = 0, 0, [0, 0]
    steps = rng.choice([[0, 1, 1, 2], [0, 1, -1, 3, -3]])
    for _ in range(40):
        sides: list[list[Any]] = [[], []]
        for _ in range(rng.choice([1, 1, 1, 2, 7])):
            side = rng.randrange(2)
            number, times[side] = number + 1, times[side] + rng.choice(steps)
            sides[side].append((left, right)[side](number, times[side], rng.randrange(5)))
        now += rng.choice([0, 1, 3])
        for state, few in zip(states, (0, MANY, rng.choice([0, MANY])), strict=True):
            state.few = few
        slides = [state.slide(tuple(map(tuple, sides)), now) for state in states]
        told_of = [([tuple(r) for r in s.results], s.late, s.held_back(), s.added) for s in slides]
        assert all(one == told_of[0] for one in told_of), spec
        if rng.random() < 0.1:
            continue
        for slide in slides:
            slide.commit()
        stand = [(s.contents(), s.held(), s.fired, s.late, list(s.late_rows), s.watermark) for s in states]
        assert all(one == stand[0] for one in stand), spec
        if rng.random() < 0.05:
            saved = [state.save() for state in states]
            states = [JoinState(spec, LEFT, RIGHT) for _ in range(3)]
            for state, held in zip(states, saved, strict=True):
                state.restore(held)


def test_joins_row_by_row_are_the_same_as_in_arrays() -> None:
    for seed in range(40):
        compare_joins(seed)


def test_keys_that_come_meanwhile_do_not_disturb_what_is_not_committed_yet() -> None:
    spec = window("s", count=4, slide=1, compute={"sum": CHECKS["sum_x"][0], "n": CHECKS["n"][0]})
    opened = opener(spec, {"s": EVENTS}, None, None)
    rows = tuple(rows_of([Drawn(1, 0, False, i % 8) for i in range(60)], 0))
    alone, keyed = open_state(spec, EVENTS), opened(0)
    others = []
    for row in rows:
        one, other = alone.slide((row,)), keyed.slide((row,))
        for key in range(1, 4):
            others.append(opened(key))
            others[-1].slide((row,)).commit()
        assert told(one) == told(other)
        one.commit()
        other.commit()
        assert keyed.contents() == alone.contents()
    assert all(state.held() == 1 for state in others)


def test_who_looks_at_kept_rows_changes_nothing() -> None:
    """A checkpoint looks at a state while another thread works out what the next batch does: both made columns of the rows."""
    state: Any = open_state(window("s", time="1h", on="at"), EVENTS)
    state.few = MANY
    rows = rows_of([Drawn(1, 0, False, 0) for _ in range(50)], 0)
    for row in rows[:3]:
        state.slide((row,)).commit()
    (held,) = state.by_key.values()
    before = held.parts, list(held.recent)
    assert held.recent
    state.few = 0
    state.slide(tuple(rows[3:]))  # not committed
    state.save()
    state.contents()
    assert (held.parts, held.recent) == before


def test_who_looks_at_a_join_gives_no_key_a_number() -> None:
    state = JoinState(join("a", "b", on="k", within=50, left_time="t", right_time="t"), LEFT, RIGHT)
    for i in range(4):
        state.slide(((left(i, i, i),), ())).commit()
    before = dict(state._codes.codes)
    assert state._few is not None
    assert state.held() > 1
    state.save()
    state.contents()
    state.bytes_held()
    assert state._codes.codes == before
