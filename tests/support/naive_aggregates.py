"""Aggregates by their definitions, over a plain list of Python values (None for NULL)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

ROOM = 1e-9  # relative to the size of what was added up


def sql_order(value: Any) -> tuple[bool, Any]:
    """NaN sorts behind every number."""
    return (True, 0) if value != value else (False, value)


def present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def total(values: list[Any]) -> Any:
    values = present(values)
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


def mean(values: list[Any]) -> float | None:
    values = present(values)
    return float(total(values) / len(values)) if values else None


def least(values: list[Any]) -> Any:
    return min(present(values), key=sql_order, default=None)


def greatest(values: list[Any]) -> Any:
    return max(present(values), key=sql_order, default=None)


def variance(values: list[Any]) -> float | None:
    values = present(values)
    if len(values) < 2:
        return None
    if any(value != value for value in values):
        return math.nan
    away = [float(value - values[0]) for value in values]
    centre = math.fsum(away) / len(away)
    return math.fsum((one - centre) ** 2 for one in away) / (len(away) - 1)


def stddev(values: list[Any]) -> float | None:
    found = variance(values)
    return None if found is None else math.sqrt(found)


def quantile(q: float) -> Callable[[list[Any]], float | None]:
    """Interpolated between the two neighbours of place q(n − 1)."""

    def of(values: list[Any]) -> float | None:
        values = sorted(present(values), key=sql_order)
        if not values:
            return None
        place = q * (len(values) - 1)
        low, high = values[math.floor(place)], values[math.ceil(place)]
        share = place - math.floor(place)
        return float(low) if not share or low == high else float(low + (high - low) * share)

    return of


def distinct(values: list[Any]) -> int:
    values = present(values)
    return len({value for value in values if value == value}) + any(value != value for value in values)


def top(k: int) -> Callable[[list[Any]], tuple[Any, ...] | None]:
    def of(values: list[Any]) -> tuple[Any, ...] | None:
        return tuple(sorted(present(values), key=sql_order, reverse=True)[:k]) or None

    return of


def most_common(k: int) -> Callable[[list[Any]], tuple[Any, ...] | None]:
    def of(values: list[Any]) -> tuple[Any, ...] | None:
        counts = Counter(map(_nan_as_one, present(values)))
        ranked = sorted(counts, key=lambda value: (-counts[value], sql_order(value)))
        return tuple(ranked[:k]) or None

    return of


_NAN = math.nan


def _nan_as_one(value: Any) -> Any:
    return _NAN if value != value else value


def same(found: Any, wanted: Any, scale: float = 0.0) -> bool:
    """Are these the same result? Floats may differ by rounding, in proportion to ``scale`` or to themselves."""
    if isinstance(wanted, tuple):
        return isinstance(found, tuple) and len(found) == len(wanted) and all(map(same, found, wanted))
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, float):
        return (found != found and wanted != wanted) or math.isclose(
            found, wanted, rel_tol=ROOM, abs_tol=ROOM * scale + 1e-300
        )
    return bool(found == wanted)


def rank_error(found: float, values: list[float], q: float) -> float:
    """By how many places ``found``, one of ``values``, misses place q(n − 1). Equal values share their places."""
    assert found in values
    below = sum(value < found for value in values)
    upto = sum(value <= found for value in values) - 1
    wanted = q * (len(values) - 1)
    return max(0.0, below - wanted, wanted - upto)
