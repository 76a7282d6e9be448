"""What a window can compute, and in which parallel pattern. The usual import: ``from tidegate import windows as w``.

>>> from tidegate import window, windows as w
>>> compute = {"mean": w.mean("value"), "peak": w.max("value")}
>>> recent = window("pap", time="10s", slide="1s", on="ts", by="patient", compute=compute)
>>> print(recent)
time 10s slide 1s on ts by patient
"""

from tidegate.streams.windows.declare.aggregates import Aggregate
from tidegate.streams.windows.declare.aggregates import Count as count
from tidegate.streams.windows.declare.aggregates import Distinct as distinct
from tidegate.streams.windows.declare.aggregates import First as first
from tidegate.streams.windows.declare.aggregates import Last as last
from tidegate.streams.windows.declare.aggregates import Max as max
from tidegate.streams.windows.declare.aggregates import Mean as mean
from tidegate.streams.windows.declare.aggregates import Min as min
from tidegate.streams.windows.declare.aggregates import MostCommon as most_common
from tidegate.streams.windows.declare.aggregates import Quantile as quantile
from tidegate.streams.windows.declare.aggregates import Stddev as stddev
from tidegate.streams.windows.declare.aggregates import Sum as sum
from tidegate.streams.windows.declare.aggregates import TopK as top_k
from tidegate.streams.windows.declare.aggregates import Variance as variance
from tidegate.streams.windows.declare.functions import Decomposed as decomposed
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.functions import Incremental as incremental
from tidegate.streams.windows.declare.functions import Whole as whole
from tidegate.streams.windows.declare.patterns import KeyFarm, PaneFarm, Sequential, WindowFarm, WindowMapReduce
from tidegate.streams.windows.declare.together import WholeBatch as whole_batch
from tidegate.streams.windows.declare.together import WindowBatch
from tidegate.streams.windows.evaluate.plan import Plan

__all__ = [
    "Aggregate",
    "Extent",
    "KeyFarm",
    "PaneFarm",
    "Plan",
    "Sequential",
    "WindowBatch",
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
    "whole_batch",
]


def median(column: str, error: float | None = None) -> quantile:
    """The 0.5-quantile."""
    return quantile(column, 0.5, error)
