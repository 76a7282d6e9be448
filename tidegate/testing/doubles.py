"""Time, input and output under a test's control. They implement the real interfaces; nothing is mocked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch
from tidegate.txn.ticket import Ticket

START = dt.datetime(2020, 1, 1)


def past_the_door(relation: Relation, values: Iterable[Any]) -> Any:
    """A row as if it had been checked, whatever its values are: for tests of bad rows that got in anyway.

    From then on the relation accepts such rows; ``app.tables["orders"]`` and ``app.streams["orders"].relation`` are
    relations.
    """
    relation.trusted.add(relation.row)
    return relation.named(values)


class ManualClock:
    """A clock that stands still until told otherwise.

    >>> clock = ManualClock()
    >>> clock.advance(90)
    >>> clock.now(), clock.monotonic()
    (datetime.datetime(2020, 1, 1, 0, 1, 30), 90.0)
    """

    def __init__(self, start: dt.datetime = START) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> dt.datetime:
        return self._start + dt.timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Let time pass. An engine reacts at its next push, step or ``tick``."""
        if seconds < 0:
            raise ValueError(f"a clock can't go back, got {seconds!r} seconds")
        self._elapsed_s += seconds


class ListSource:
    """Feeds ``(stream, rows)`` or ``(stream, rows, batch_id)`` from a list.

    >>> source = ListSource([("votes", [("Ada",)], 1), ("votes", [("Alan",)], 2)])
    >>> len(source)
    2
    """

    def __init__(self, batches: Iterable[Sequence[Any]]) -> None:
        self.batches = [tuple(batch) for batch in batches]

    def feed(self, engine: Engine) -> list[Ticket]:
        """Push everything, in order; repeats are recognised by their batch-id, so feeding twice is safe."""
        return [engine.push(*batch) for batch in self.batches]

    def __len__(self) -> int:
        return len(self.batches)


class ListSink:
    """Collects what is committed to some streams (default: all that procedures emit to), in commit order."""

    def __init__(self, engine: Engine, *streams: str) -> None:
        names = streams or tuple(s.name for s in engine.app.streams.values() if not s.border)
        self._subscriptions = {name: engine.subscribe(name) for name in names}
        self._batches: dict[str, list[Batch]] = {name: [] for name in names}

    def batches(self, stream: str) -> list[Batch]:
        """All batches committed to ``stream`` so far."""
        self._batches[stream].extend(self._subscriptions[stream])
        return self._batches[stream]

    def rows(self, stream: str) -> list[Any]:
        """The rows of all those batches."""
        return [row for batch in self.batches(stream) for row in batch]

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()
