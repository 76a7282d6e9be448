"""Aggregates written as SQL."""

from __future__ import annotations

import pytest

from tidegate import StatementError, window
from tidegate import windows as w
from tidegate.streams.windows.declare.functions import Aggregates


def computed(sql: str, **more: object) -> tuple[tuple[str, ...], dict[str, str]]:
    spec = window("s", count=4, compute=sql, **more)  # type: ignore[arg-type]
    assert isinstance(spec.compute, Aggregates)
    return spec.by, {name: repr(aggregate) for name, aggregate in spec.compute.named.items()}


def test_a_select_names_aggregates_and_groups() -> None:
    by, named = computed(
        "SELECT patient, avg(value) AS mean, max(value) AS peak, count(*) AS n, count(value) AS there "
        "FROM window GROUP BY patient"
    )
    assert by == ("patient",)
    assert named == {
        "mean": repr(w.mean("value")),
        "peak": repr(w.max("value")),
        "n": repr(w.count()),
        "there": repr(w.count("value")),
    }


@pytest.mark.parametrize(
    ("sql", "aggregate"),
    [
        ("sum(v)", w.sum("v")),
        ("min(v)", w.min("v")),
        ("variance(v)", w.variance("v")),
        ("var_samp(v)", w.variance("v")),
        ("stddev(v)", w.stddev("v")),
        ("stddev_samp(v)", w.stddev("v")),
        ("first(v)", w.first("v")),
        ("last(v)", w.last("v")),
        ("median(v)", w.median("v")),
        ("quantile_cont(v, 0.9)", w.quantile("v", 0.9)),
        ("approx_quantile(v, 0.9)", w.quantile("v", 0.9, error=0.01)),
        ("count(DISTINCT v)", w.distinct("v")),
        ("max(v, 3)", w.top_k("v", 3)),
    ],
)
def test_functions(sql: str, aggregate: w.Aggregate) -> None:
    assert computed(f"SELECT {sql} AS x FROM window")[1] == {"x": repr(aggregate)}


def test_without_as_a_column_is_named_after_its_function() -> None:
    assert list(computed("SELECT sum(v), count(*) FROM window")[1]) == ["sum_v", "count"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT", "not valid SQL|not a SELECT|FROM window"),
        ("DELETE FROM window", "not a SELECT"),
        ("SELECT sum(v) FROM readings", "FROM window"),
        ("SELECT sum(v) FROM window WHERE v > 1", "WHERE"),
        ("SELECT sum(v) FROM window ORDER BY 1", "ORDER"),
        ("SELECT sum(v) FROM window LIMIT 1", "LIMIT"),
        ("SELECT v, sum(v) FROM window", "neither aggregated nor grouped"),
        ("SELECT sum(v + 1) FROM window", "not a plain column"),
        ("SELECT corr(v, x) FROM window", "not one of the aggregates"),
        ("SELECT min(v, 3) FROM window", "not one of the aggregates"),
        ("SELECT max(v, x) FROM window", "not one of the aggregates"),
        ("SELECT k AS key, sum(v) FROM window GROUP BY k", "keeps its name"),
    ],
)
def test_what_it_can_not_do_is_said(sql: str, why: str) -> None:
    with pytest.raises(StatementError, match=why):
        computed(sql)


def test_by_and_group_by_must_agree() -> None:
    assert computed("SELECT sum(v) AS s FROM window", by="k")[0] == ("k",)
    with pytest.raises(StatementError, match="leave one of the two out"):
        computed("SELECT sum(v) AS s FROM window GROUP BY g", by="k")
