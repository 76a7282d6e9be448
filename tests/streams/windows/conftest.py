"""The tests of what windows compute run on this machine and on Spark: nothing but the time they take may differ.

On Spark every evaluation is a job, and each of its results is compared with the one of this process, bit by bit. By default
some of the modules run there, with two examples of hypothesis; ``-m slow`` has all modules and all examples.

Modules that are not named here evaluate nothing that goes to a backend (rows of windows, joins, declarations).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from tidegate.streams.spark.backend import SparkBackend
from tidegate.streams.windows.evaluate import plan
from tidegate.streams.windows.evaluate.local import LocalBackend
from tidegate.streams.windows.evaluate.tasks import Outcome, Task, carry_out

QUICK = {"test_window_functions", "test_window_aggregates", "test_window_result_columns"}
LONG = {"test_window_sizes", "test_window_real_data"}
MANY_JOBS = {"test_a_bounded_quantile_is_a_value_whose_rank_is_within_the_bound"}
EXAMPLES = 2


class ComparedBackend(SparkBackend):
    """Spark, and this process as well: the results must be the same to the last bit."""

    def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        outcomes = super().run(way, tasks, workers)
        for task, found in zip(tasks, outcomes, strict=True):
            here = carry_out(task)
            assert bits(found.results) == bits(here.results), task.work.function
            assert repr(found.error) == repr(here.error)
        return outcomes


def bits(value: Any) -> Any:
    """A value such that equal means the same type and bits."""
    if isinstance(value, float):
        return type(value), struct.pack("<d", value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, bits(value.tolist()) if value.dtype == object else value.tobytes()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [bits(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if hasattr(value, "__dict__") and type(value).__module__.startswith("tidegate"):
        return type(value), bits(vars(value))
    return type(value), value


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__
    if name in QUICK | LONG:
        on_spark = pytest.mark.xdist_group("spark")
        places = ["local"]
        if name in QUICK and metafunc.function.__name__ not in MANY_JOBS:
            places.append(pytest.param("spark", marks=on_spark))  # type: ignore[arg-type]
        places.append(pytest.param("spark with all examples", marks=[on_spark, pytest.mark.slow]))  # type: ignore[arg-type]
        metafunc.parametrize("evaluated_on", places, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def evaluated_on(request: pytest.FixtureRequest) -> Iterator[ComparedBackend | None]:
    """Where plans are evaluated that were given no backend."""
    if getattr(request, "param", "local") == "local":
        yield None
        return
    from tidegate.streams.spark.session import shared_spark

    backend = ComparedBackend(shared_spark(request.getfixturevalue("spark")), LocalBackend(), only=True)
    backend.warm()
    before = list(plan._shared)
    plan._shared[:] = [backend]  # type: ignore[list-item]
    yield backend
    plan._shared[:] = before
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
