"""Safe, whatever runs it and however often it dies; and not safe without the guarantees."""

from __future__ import annotations

from typing import Any

import pytest
from shared_data import PAP, needs_pap

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts.backends import Where, choose_backend
from tidegate.examples.mimic_alerts.demo import Options, events_of, open_shift, source_of
from tidegate.examples.mimic_alerts.kills import Plan, busy_ward, run_with_kills
from tidegate.examples.mimic_alerts.loose import ALL, VARIANTS, Mistakes, compare
from tidegate.examples.mimic_alerts.safety import ALERTS, judge


def played(where: Where, source: Any = None, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    options = Options(minutes=6, patients=8)
    shift = open_shift(options, source or source_of(options, where), where, **settings)
    with shift.engine:
        seen = shift.play()
        events = events_of(shift.engine)
        assert judge(events, seen.rows).safe
        assert shift.engine.query("SELECT count(*) FROM tidegate.aborts").scalar() == 0
        return events, {stream: sorted(seen.rows[stream], key=repr) for stream in (*ALERTS, "visit_outcomes", "vitals")}


LOCAL = choose_backend("local")


def test_threads_decide_as_one_does() -> None:
    assert played(LOCAL, busy_ward(5, 4)) == played(LOCAL, busy_ward(5, 4), executor="threads", workers=4)


@pytest.mark.xdist_group("spark")
def test_spark_decides_as_local_does() -> None:
    try:
        where = choose_backend("spark")
    except TidegateError as error:
        pytest.skip(str(error))
    assert played(where, busy_ward(5, 3)) == played(LOCAL, busy_ward(5, 3))


def visits_of(plan: Plan) -> int:
    """How many come in."""
    return sum(len(step.visits) for step in plan.source().steps())


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_few_kills(executor: str) -> None:
    found = run_with_kills(2, Plan(seed=11, minutes=3, executor=executor))
    assert found.safe, found
    assert (found.kills, found.alerts > 5, found.decisions > 1) == (2, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_fifty_kills(executor: str, seed: int) -> None:
    plan = Plan(seed, 5, executor)
    found = run_with_kills(5, plan)
    assert found.safe, found
    assert (found.kills, found.visits) == (5, visits_of(plan))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("recovery", ["strong", "effects"])
def test_kills_with_other_logs(executor: str, recovery: Any) -> None:
    plan = Plan(6, 4, executor, recovery)
    found = run_with_kills(5, plan)
    assert found.safe, found
    assert (found.kills, found.visits) == (5, visits_of(plan))


@pytest.mark.slow
@needs_pap
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_kills_over_records(executor: str) -> None:
    plan = Plan(7, executor=executor, data=PAP, only=(10013, 10061, 23922))
    found = run_with_kills(8, plan)
    assert found.safe, found
    assert (found.kills, found.visits) == (8, visits_of(plan))


@pytest.mark.slow
def test_kills_on_spark() -> None:
    try:
        choose_backend("spark")
    except TidegateError as error:
        pytest.skip(str(error))
    plan = Plan(8, 3, backend="spark")
    found = run_with_kills(3, plan)
    assert found.safe, found
    assert (found.kills, found.visits) == (3, visits_of(plan))


@pytest.fixture(scope="module")
def mistakes() -> dict[str, Mistakes]:
    return {variant.name: found for variant, found in compare(shifts=3, seed=2)}


def test_the_model_makes_no_mistake_with_every_guarantee(mistakes: dict[str, Mistakes]) -> None:
    assert mistakes[ALL.name].total == 0


@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ("no isolation", ("double_doses", "interactions")),
        ("no order", ("alerts_lost", "given_otherwise")),
        ("at least once", ("double_doses", "alerts_repeated", "decisions_misapplied")),
        ("at most once", ("alerts_lost", "decisions_misapplied")),
        ("none of them", ("double_doses", "interactions", "alerts_repeated")),
    ],
)
def test_without_a_guarantee_patients_are_harmed(
    mistakes: dict[str, Mistakes], variant: str, kinds: tuple[str, ...]
) -> None:
    assert variant in {one.name for one in VARIANTS}
    for kind in kinds:
        assert getattr(mistakes[variant], kind) > 0, (variant, kind, mistakes[variant])
