"""What a window can compute, and in which parallel pattern. The usual import: ``from tidegate import windows as w``.

>>> from tidegate import window, windows as w
>>> compute = {"mean": w.mean("value"), "peak": w.max("value")}
>>> recent = window("pap", time="10s", slide="1s", on="ts", by="patient", compute=compute)
>>> print(recent)
time 10s slide 1s on ts by patient
"""

from tidegate.streams.windows.aggregates import Aggregate
from tidegate.streams.windows.aggregates import Count as count
from tidegate.streams.windows.aggregates import Distinct as distinct
from tidegate.streams.windows.aggregates import First as first
from tidegate.streams.windows.aggregates import Last as last
from tidegate.streams.windows.aggregates import Max as max
from tidegate.streams.windows.aggregates import Mean as mean
from tidegate.streams.windows.aggregates import Min as min
from tidegate.streams.windows.aggregates import MostCommon as most_common
from tidegate.streams.windows.aggregates import Quantile as quantile
from tidegate.streams.windows.aggregates import Stddev as stddev
from tidegate.streams.windows.aggregates import Sum as sum
from tidegate.streams.windows.aggregates import TopK as top_k
from tidegate.streams.windows.aggregates import Variance as variance
from tidegate.streams.windows.functions import Decomposed as decomposed
from tidegate.streams.windows.functions import Extent
from tidegate.streams.windows.functions import Incremental as incremental
from tidegate.streams.windows.functions import Whole as whole
from tidegate.streams.windows.patterns import KeyFarm, PaneFarm, Sequential, WindowFarm, WindowMapReduce
from tidegate.streams.windows.plan import Plan

__all__ = [
    "Aggregate",
    "Extent",
    "KeyFarm",
    "PaneFarm",
    "Plan",
    "Sequential",
    "WindowFarm",
    "WindowMapReduce",
    "count",
    "decomposed",
    "distinct",
    "first",
    "incremental",
    "last",
    "max",
    "mean",
    "median",
    "min",
    "most_common",
    "quantile",
    "stddev",
    "sum",
    "top_k",
    "variance",
    "whole",
]


def median(column: str, error: float | None = None) -> quantile:
    """The 0.5-quantile."""
    return quantile(column, 0.5, error)
