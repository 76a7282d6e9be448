"""Where time comes from. The engine asks its clock once per batch; procedures see that instant as ``txn.now``."""

from __future__ import annotations

import datetime as dt
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> dt.datetime:
        """The time of day, naive UTC: recorded with a batch when it is accepted."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward: for deadlines and durations."""
        ...


EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = EPOCH.replace(tzinfo=dt.UTC)


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """Called for every push: subtracting and adding takes a quarter of the time of ``replace(tzinfo=None)``."""
        return EPOCH + (dt.datetime.now(dt.UTC) - _EPOCH_UTC)

    monotonic = staticmethod(time.monotonic)
