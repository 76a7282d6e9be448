"""What an application consists of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate import App

Rows = list[tuple[Any, ...]]
START = dt.datetime(2026, 1, 1)
EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Case:
    """An application written the documented way, what feeds it, and the same in plain Python.

    ``rows(count, seed)``: what is pushed to ``stream``. ``app()``: with new tables each time. ``plain(rows)``: what ``found``,
    a query, must return in the end, in any order. ``setup``: rows of other streams that are pushed before, and not measured.
    """

    name: str
    stream: str
    rows: Callable[[int, int], Rows]
    app: Callable[[], App]
    plain: Callable[[Rows], Rows]
    found: str
    setup: Sequence[tuple[str, Rows]] = ()


def at(seconds: float) -> dt.datetime:
    """A time of the stream."""
    return START + dt.timedelta(seconds=seconds)


def seconds_of(time: dt.datetime) -> int:
    """Whole seconds since 1970, to which windows of time are aligned."""
    return int((time - EPOCH).total_seconds())


def same(found: Rows, expected: Rows) -> bool:
    """Equal, in any order; floating-point numbers to nine digits."""
    return _rounded(found) == _rounded(expected)


def _rounded(rows: Rows) -> Rows:
    return sorted(tuple(float(f"{v:.9g}") if isinstance(v, float) else v for v in row) for row in rows)
