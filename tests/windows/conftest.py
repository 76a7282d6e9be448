"""The tests of what windows compute run on this machine and on Spark: nothing but the time they take may differ.

On Spark every evaluation is a job, so by default hypothesis tries two examples there; ``-m slow`` has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tidegate.streams.windows import plan

COMPUTING = {"test_window_functions", "test_window_aggregates"}
MANY_JOBS = {"test_a_bounded_quantile_is_a_value_whose_rank_is_within_the_bound"}
EXAMPLES = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in COMPUTING:
        on_spark = pytest.mark.xdist_group("spark")
        places = [
            "local",
            pytest.param("spark", marks=on_spark),
            pytest.param("spark with all examples", marks=[on_spark, pytest.mark.slow]),
        ]
        if metafunc.function.__name__ in MANY_JOBS:
            del places[1]
        metafunc.parametrize("evaluated_on", places, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def evaluated_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where plans are evaluated that were given no backend."""
    if getattr(request, "param", "local") == "local":
        yield
        return
    from tidegate.streams.spark.backend import SparkBackend
    from tidegate.streams.spark.session import shared_spark
    from tidegate.streams.windows.local import LocalBackend

    backend = SparkBackend(shared_spark(request.getfixturevalue("spark")), LocalBackend(), only=True)
    backend.warm()
    before = list(plan._shared)
    plan._shared[:] = [backend]  # type: ignore[list-item]
    yield
    plan._shared[:] = before
    assert backend.jobs > 10
    assert not backend.takeovers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Fewer examples where each of them is many jobs."""
    test = getattr(item, "obj", None)
    declared = getattr(test, "_hypothesis_internal_use_settings", None)
    if declared is None or ("[spark-" not in item.name and not item.name.endswith("[spark]")):
        return (yield)
    test._hypothesis_internal_use_settings = settings(declared, max_examples=EXAMPLES)
    try:
        return (yield)
    finally:
        test._hypothesis_internal_use_settings = declared
