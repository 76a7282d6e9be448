"""Whether the Python workers of a Spark session can run what is registered there, before a query fails for want of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidegate.errors import SparkUnavailable
from tidegate.streams.spark.reasons import reason_of
from tidegate.streams.spark.session import SESSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 64  # workers that are asked: enough to meet every machine of an ordinary cluster
OURS = "spark.python.daemon.module"  # sessions that were started here have workers that import tidegate as they begin
_checked: WeakSet[Any] = WeakSet()


def check_workers(spark: SparkSession) -> None:
    """SparkUnavailable, saying what to set, unless its Python workers have the tidegate in use here. Once a session."""
    if spark in _checked or spark.conf.get(OURS, "") == SESSION[OURS]:
        return
    ask_workers(spark)
    _checked.add(spark)


def ask_workers(spark: SparkSession) -> None:
    """The check itself: a small job, with a task for each slot."""
    context = spark.sparkContext
    tasks = min(max(context.defaultParallelism, 1), MOST)
    try:
        told = context.parallelize(range(tasks), tasks).mapPartitions(_by_value(_look)).collect()
    except Exception as error:  # workers that do not even start
        raise SparkUnavailable(_advice(f"do not run: {reason_of(error)}")) from error
    here = metadata.version("tidegate")
    for python, version, reason in told:
        if reason:
            raise SparkUnavailable(_advice(f"({python}) can't import tidegate: {reason}"))
        if version != here:
            raise SparkUnavailable(_advice(f"({python}) have tidegate {version}, and here it is {here}"))


def _advice(what: str) -> str:
    return (
        f"the Python workers of this Spark session {what}. Before the session starts, set PYSPARK_PYTHON to a Python that has "
        f"tidegate[spark]; on this machine PYSPARK_PYTHON={sys.executable}. On a cluster, install it on every machine. "
        "tidegate.streams.spark.session.spark_session() does this for sessions on one machine"
    )


def _look(_rows: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    """Runs in a worker, which may not have tidegate: everything it needs is imported here."""
    import sys
    from importlib import metadata

    try:
        import tidegate.connectors.spark.source  # noqa: F401

        yield sys.executable, metadata.version("tidegate"), ""
    except Exception as error:
        yield sys.executable, "", f"{type(error).__name__}: {error}"


def _by_value(function: Any) -> Any:
    """cloudpickle sends functions of importable modules by their names, and others as code."""
    function.__module__ = "__main__"
    return function
