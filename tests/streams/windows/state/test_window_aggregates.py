"""Aggregates over every kind of window, against naive_aggregates.py; and to the last bit the same however rows are split."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from typing import Any

import duckdb
import naive
import naive_aggregates as by_hand
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import ANY_ORDER, BY, EVENTS, IN_ORDER, KINDS, Drawn, batched, drawn_rows, results, rows_of, specs

import tidegate
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare.aggregates import (
    Aggregate,
    Count,
    Distinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    MostCommon,
    Quantile,
    Stddev,
    Sum,
    TopK,
    Variance,
)  # fmt: skip
from tidegate.windows import median

FEW = settings(max_examples=15, deadline=None)
NUMBERS = ("v", "i", "x", "small")
ALL = ("v", "i", "price", "name", "seen", "born", "ok", "x", "small", "big")

Check = tuple[Aggregate, str | None, Callable[[list[Any]], Any]]
CHECKS: dict[str, Check] = {"n": (Count(), None, len)}
for _c in ALL:
    CHECKS[f"n_{_c}"] = (Count(_c), _c, lambda values: len(by_hand.present(values)))
    CHECKS[f"min_{_c}"] = (Min(_c), _c, by_hand.least)
    CHECKS[f"max_{_c}"] = (Max(_c), _c, by_hand.greatest)
    CHECKS[f"first_{_c}"] = (First(_c), _c, lambda values: values[0])
    CHECKS[f"last_{_c}"] = (Last(_c), _c, lambda values: values[-1])
    CHECKS[f"distinct_{_c}"] = (Distinct(_c), _c, by_hand.distinct)
    CHECKS[f"top_{_c}"] = (TopK(_c, 3), _c, by_hand.top(3))
    CHECKS[f"common_{_c}"] = (MostCommon(_c, 2), _c, by_hand.most_common(2))
for _c in (*NUMBERS, "price"):
    CHECKS[f"sum_{_c}"] = (Sum(_c), _c, by_hand.total)
for _c in NUMBERS:
    CHECKS[f"mean_{_c}"] = (Mean(_c), _c, by_hand.mean)
    CHECKS[f"variance_{_c}"] = (Variance(_c), _c, by_hand.variance)
    CHECKS[f"stddev_{_c}"] = (Stddev(_c), _c, by_hand.stddev)
    CHECKS[f"median_{_c}"] = (median(_c), _c, by_hand.quantile(0.5))
    CHECKS[f"tenth_{_c}"] = (Quantile(_c, 0.1), _c, by_hand.quantile(0.1))

# what can be kept as a few numbers per pane, and what needs a summary, are worked out in different ways: try both
FIELDS = ("n", "n_v", "n_i", "min_v", "max_v", "min_x", "max_x", "sum_v", "sum_i", "sum_x", "mean_i", "mean_x", "variance_v",
          "variance_x", "stddev_x", "first_x", "last_x", "first_small", "last_small", "min_seen", "max_seen", "min_ok",
          "max_ok", "sum_small", "min_small", "n_seen")  # fmt: skip


def scale(name: str, values: list[Any]) -> float:
    """How large a rounding error may be, relative to: what the aggregate adds up."""
    values = [float(v) for v in values if isinstance(v, (int, float)) and v == v]
    spread = max(values) - min(values) if values else 0.0
    return {
        "sum": math.fsum(map(abs, values)), "mean": max(map(abs, values), default=0.0), "variance": spread**2,
        "stddev": 1e3 * spread,
    }.get(name.split("_")[0], 0.0)  # fmt: skip


def bound(spec: Any, value: Any) -> Any:
    """A bound as results show it."""
    if spec.by_time and spec.on not in ("tick",):
        return naive.EPOCH + dt.timedelta(microseconds=value)
    return value


def compare(spec: Any, checks: dict[str, Check], found: list[Any], batches: Any) -> None:
    wanted = naive.expected(spec, batches).fired
    assert [tuple(row[: len(spec.by) + 3]) for row in found] == [
        (*w.key, w.number, bound(spec, w.start), bound(spec, w.end)) for w in wanted
    ]
    for row, w in zip(found, wanted, strict=True):
        for name, (_, column, function) in checks.items():
            values = [r if column is None else getattr(r, column) for r in w.rows]
            right = function(values)
            assert by_hand.same(getattr(row, name), right, scale(name, values)), (
                f"{name} of window {w.number} {w.key}: {getattr(row, name)!r}, by definition {right!r}, of {values}"
            )


@pytest.mark.parametrize("fields", [True, False], ids=["fields", "summaries"])
@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_results_are_those_of_the_definition_and_the_same_bits_in_any_split(kind: str, fields: bool, data: Any) -> None:
    names = st.sampled_from(FIELDS if fields else sorted(CHECKS))
    chosen = data.draw(st.lists(names, min_size=1, max_size=8, unique=True), "aggregates")
    checks = {name: CHECKS[name] for name in chosen}
    on = data.draw(st.sampled_from(["at", "tick", "day"]), "on")
    delay = {"tick": 3, "day": "3d"}.get(on, "3s") if kind not in ("batches", "delta") else None
    compute = {name: check[0] for name, check in checks.items()}
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY), "by"), on, delay=delay, compute=compute), "spec")
    rows = data.draw(drawn_rows(data.draw(st.sampled_from([IN_ORDER, ANY_ORDER])), 60), "rows")
    batches = data.draw(batched(rows), "batches")
    found = results(spec, batches)
    compare(spec, checks, found, batches)
    if kind != "batches":
        for other in ([(rows, 0)], [([row], 0) for row in rows], data.draw(batched(rows), "other batches")):
            assert list(map(repr, results(spec, other))) == list(map(repr, found))


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_computed_windows_survive_abort_and_restore(kind: str, data: Any) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(CHECKS)), min_size=1, max_size=6, unique=True), "aggregates")
    delay = "2s" if kind not in ("batches", "delta") else None
    compute = {name: CHECKS[name][0] for name in chosen}
    spec = data.draw(specs(kind, data.draw(st.sampled_from(BY), "by"), delay=delay, compute=compute), "spec")
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER), "rows")), "batches")
    state, found = open_state(spec, EVENTS), []
    for rows, now_us in batches:
        before = state.save()
        state.slide(rows[::-1], now_us)  # never committed
        assert state.save() == before
        if data.draw(st.booleans()):
            state = open_state(spec, EVENTS)
            state.restore(before)
        slide = state.slide(rows, now_us)
        found.extend(slide.results)
        slide.commit()
    assert list(map(repr, found)) == list(map(repr, results(spec, batches)))


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("kind", ["count", "batches", "time", "landmark"])
@FEW
@given(data=st.data())
def test_panes_take_no_more_room_than_rows(kind: str, by: tuple[str, ...], data: Any) -> None:
    delay = "2s" if kind != "batches" else None
    chosen = data.draw(st.sampled_from([("sum_x",), ("median_x",), ("first_v", "max_name")]))
    spec = data.draw(specs(kind, by, delay=delay, compute={name: CHECKS[name][0] for name in chosen}), "spec")
    batches = data.draw(batched(data.draw(drawn_rows(ANY_ORDER, 60), "rows")), "batches")
    state = open_state(spec, EVENTS)
    for pushed, (rows, now_us) in enumerate(batches):
        state.slide(rows, now_us).commit()
        needed = len(naive.expected(spec, batches[: pushed + 1]).open)
        assert state.held() <= needed, f"after {pushed + 1} batches"


@pytest.mark.parametrize("compute", [{"n": Count()}, {"n": Distinct("id")}], ids=["fields", "summaries"])
@pytest.mark.parametrize("options", [{"time": 1}, {"time": 3, "slide": 2}, {"landmark": 4, "slide": 2}, {"session": 2}])
def test_times_may_lie_far_apart(options: dict[str, Any], compute: dict[str, Any]) -> None:
    """Nothing is kept, and no number overflows, for the empty windows in between."""
    spec = window("s", on="tick", by="name", compute=compute, **options)
    pushed = rows_of([Drawn(0, 0, False, n % 8) for n in range(12)], 0)
    ticks = [-(2**60), -(2**60) + 1, 0, 1, 2, 2**40, 2**40 + 1, 2**59, 2**60, 2**60, 2**60 + 3, 2**60 + 9]
    pushed = [row._replace(tick=tick) for row, tick in zip(pushed, ticks, strict=True)]
    checks: dict[str, Check] = {"n": (compute["n"], None, len)}
    for batches in ([(pushed, 0)], [([row], 0) for row in pushed], [(pushed[:5], 0), (pushed[5:], 0)]):
        compare(spec, checks, results(spec, batches), batches)


# ---- quantiles with a bounded error


@pytest.mark.parametrize("error", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_a_bounded_quantile_is_a_value_whose_rank_is_within_the_bound(q: float, error: float) -> None:
    dice = random.Random(f"{q} {error}")
    values = [dice.choice([dice.gauss(0, 1), dice.expovariate(1), 7.0]) for _ in range(3_000)]
    sizes = [(1000, 100), (700, 300), (50, 7), (3, 1), (1, 1), (2500, 2500)]
    for size, slide in sizes:
        spec = window("s", count=size, slide=slide, compute={"q": Quantile("x", q, error=error)})
        rows = [NUMBER.conform((n, value, None, None)) for n, value in enumerate(values)]
        cuts = sorted(dice.sample(range(len(rows)), 9))
        batches = [(rows[a:b], 0) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        found = results(spec, batches, NUMBER)
        assert len(found) == (len(values) - size) // slide + 1
        for row in found[:: max(1, len(found) // 25)]:
            inside = values[row.window_number * slide : row.window_number * slide + size]
            assert by_hand.rank_error(row.q, inside, q) <= max(1, error * size), (size, slide, row)


NUMBER = Relation(
    "s",
    (
        Column("n", column_type("BIGINT"), nullable=False),
        Column("x", column_type("DOUBLE")),
        Column("big", column_type("BIGINT")),
        Column("tiny", column_type("DECIMAL(2,2)")),
    ),
)


# ---- the ends of the ranges


def over(compute: Aggregate, xs: list[Any], column: str = "x", splits: int = 1) -> Any:
    """The aggregate of one window over these values."""
    rows = [NUMBER.conform({"n": n, column: x}) for n, x in enumerate(xs)]
    step = -(-len(rows) // splits)
    batches = [(rows[i : i + step], 0) for i in range(0, len(rows), step)]
    (found,) = results(window("s", count=len(xs), compute={"result": compute}), batches, NUMBER)
    return found.result


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "xs",
    [[1.0, 2.0, 3.0, NAN], [NAN, NAN], [1.0, INF, INF, INF], [-INF, 1.0, 2.0, INF], [None, 5.0, None], [None, None]],
)
def test_values_that_are_no_numbers_are_treated_as_duckdb_does(xs: list[Any], splits: int) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (n INTEGER, x DOUBLE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(xs)))
        wanted = connection.execute(
            "SELECT count(*), count(x), sum(x), avg(x), min(x), max(x), median(x), quantile_cont(x, 0.25), count(DISTINCT x), "
            "first(x ORDER BY n), last(x ORDER BY n) FROM t"
        ).fetchone()
    found = tuple(
        over(aggregate, xs, splits=splits)
        for aggregate in (
            Count(), Count("x"), Sum("x"), Mean("x"), Min("x"), Max("x"), Quantile("x", 0.5), Quantile("x", 0.25), Distinct("x"),
            First("x"), Last("x"),
        )
    )  # fmt: skip
    assert by_hand.same(found, wanted), f"{found} and in DuckDB {wanted}"


def test_variance_of_infinities_is_no_number_and_no_warning() -> None:
    assert math.isnan(over(Variance("x"), [1.0, INF]))
    assert math.isnan(over(Stddev("x"), [INF, INF, 2.0], splits=2))


def test_equal_nans_are_one_value() -> None:
    assert over(Distinct("x"), [NAN, NAN, 1.0]) == 2
    assert by_hand.same(over(MostCommon("x", 2), [NAN, 1.0, NAN, 2.0, NAN], splits=3), (NAN, 1.0))
    assert by_hand.same(over(TopK("x", 2), [NAN, 1.0, NAN, 2.0]), (NAN, NAN))


def test_variance_keeps_its_digits_far_from_zero() -> None:
    xs = [1e9 + 0.1 * n for n in range(10)]
    assert over(Variance("x"), xs, splits=3) == pytest.approx(by_hand.variance(xs), rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(xs=st.lists(st.sampled_from([0.0, -0.0]), min_size=1, max_size=40), splits=st.integers(1, 9))
def test_the_sign_of_zero_does_not_depend_on_the_split(xs: list[float], splits: int) -> None:
    for aggregate in (Min("x"), Max("x"), Sum("x")):
        assert repr(over(aggregate, xs, splits=splits)) == repr(over(aggregate, xs))


def test_a_sum_of_integers_is_exact_or_refused() -> None:
    top = 2**63 - 1
    assert over(Sum("big"), [top - 2, 1, 1], "big") == top
    assert over(Sum("big"), [top, top, -top, -top], "big") == 0
    assert over(Sum("big"), [-(2**63)], "big") == -(2**63)
    with pytest.raises(tidegate.DataError, match=r"sum\(big\).*BIGINT"):
        over(Sum("big"), [top, 1], "big")


def test_a_mean_of_large_integers_is_no_overflow() -> None:
    assert over(Mean("big"), [2**62] * 4, "big") == 2.0**62


def test_a_sum_of_decimals_has_room() -> None:
    from decimal import Decimal

    assert over(Sum("tiny"), [Decimal("0.99")] * 3, "tiny") == Decimal("2.97")


# ---- what can't be computed is refused by name


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (Sum("name"), ["sum(name)", "VARCHAR"]),
        (Mean("seen"), ["mean(seen)", "TIMESTAMP"]),
        (Variance("price"), ["variance(price)", "DECIMAL"]),
        (Quantile("ok", 0.5), ["quantile(ok", "BOOLEAN"]),
        (Max("nothing"), ["nothing"]),
    ],
)
def test_an_aggregate_that_does_not_fit_its_column_is_refused(compute: Aggregate, words: list[str]) -> None:
    with pytest.raises(tidegate.TidegateError) as refused:
        open_state(window("s", count=3, compute={"result": compute}), EVENTS)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quantile("x", 1.5), ["1.5", "between 0 and 1"]),
        (lambda: Quantile("x", 0.5, error=0.5), ["error", "between 0 and 0.5"]),
        (lambda: TopK("x", 0), ["k must be", "positive whole number"]),
        (lambda: window("s", count=3, compute={"mean": "mean(x)"}), ["'mean(x)'", "not an aggregate"]),
    ],
)
def test_an_aggregate_with_wrong_arguments_is_refused(make: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(tidegate.DeclarationError) as refused:
        make()
    for word in words:
        assert word in str(refused.value)


def test_a_result_column_must_have_a_name_of_its_own() -> None:
    with pytest.raises(tidegate.DeclarationError, match="window_start"):
        open_state(window("s", count=3, compute={"window_start": Count()}), EVENTS)
