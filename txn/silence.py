"""How far event time has come on a border stream whose source is silent.

While rows come, their times say how far time is. After a silence of ``idle`` it runs on with the engine's clock: what was the
newest time of a row when it came, plus the time since, less ``idle``. So a row is not late if it comes no more than
``idle`` after its own time would have let it. Pure: the times of rows, and the logged times at which they came.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.columnar import Given
from tidegate.streams.watermarks import NEVER
from tidegate.txn.log.record import to_us

STEPS = 10  # watermarks in a time as long as ``idle``


class Silence:
    """One border stream. ``newest``: the largest time of a row, ``heard``: when the last rows came, ``told``: the last
    watermark; all in microseconds. ``resting``: nothing waits for time until rows come.
    """

    __slots__ = ("heard", "idle_us", "newest", "place", "resting", "told")

    def __init__(self, place: int, idle_us: int) -> None:
        self.place = place
        self.idle_us = idle_us
        self.newest = self.heard = self.told = NEVER
        self.resting = True

    def hear(self, parts: list[tuple[Any, Given]], now_us: int) -> None:
        """Rows have come."""
        for _, rows in parts:
            newest = _newest(rows, self.place)
            if newest is not None:
                self.newest = max(self.newest, newest)
                self.heard = now_us
                self.resting = False

    def due_us(self) -> float:
        """When the next watermark is due, if no rows come."""
        if self.resting:
            return math.inf
        following = max(self.newest, self.told + max(self.idle_us // STEPS, 1))
        return self.heard + self.idle_us + following - self.newest

    def mark(self, now_us: int) -> int:
        """How far time is."""
        return self.newest + now_us - self.heard - self.idle_us


def _newest(rows: Given, place: int) -> int | None:
    if type(rows) is ColumnRows:
        rows = tuple(rows)
    times = [row[place] for row in rows if row[place] is not None]
    return to_us(max(times)) if times else None
