"""How far time has come in a source of several parts, each of which is in order: as far as in the slowest."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.clock import EPOCH
from tidegate.errors import DeclarationError, SourceError
from tidegate.storage.schema import Relation, Row
from tidegate.streams.windows.declare.durations import Duration, microseconds
from tidegate.streams.windows.state.values import time_of

FAMILIES = ("timestamp", "date", "integer")


class Slowest:
    """The newest time of each part, in microseconds or in the unit of an integer column.

    Saved with the offset that has the same records, so it is known again after a crash. How long a part has been silent is not:
    that begins anew.
    """

    def __init__(self, column: str, delay: Duration | None, idle: str | dt.timedelta | None) -> None:
        self._column = column
        self._given = delay
        self._idle_s = None if idle is None else _length("idle", idle) / 1_000_000
        self._newest: dict[str, int] = {}
        self._heard: dict[str, float] = {}

    def begin(self, source: str, relation: Relation, newest: dict[str, int]) -> None:
        """Go on where the records of an offset ended."""
        column = next((one for one in relation.columns if one.name == self._column), None)
        if column is None or column.type.family not in FAMILIES or column.nullable:
            told = "is not there" if column is None else "may be NULL" if column.nullable else f"is {column.type}"
            raise SourceError(
                f"time={self._column!r}: in stream {relation.name} it {told}; it must be a TIMESTAMP, DATE or integer "
                f"column that is NOT NULL",
                source=source,
                fatal=True,
            )
        self._timed = column.type.family != "integer"
        if self._given is not None and isinstance(self._given, int) == self._timed:
            raise SourceError(
                f"delay={self._given!r} does not go with time={self._column!r}, which is {column.type}",
                source=source,
                fatal=True,
            )
        self._delay = 0 if self._given is None else _length("delay", self._given)
        self._of = time_of(relation, self._column)
        self._newest = dict(newest)
        self._heard = {}
        self._began = time.monotonic()

    def hear(self, part: str, row: Row) -> None:
        """A record of this part."""
        at = self._of(row)
        self._newest[part] = max(at, self._newest.get(part, at))
        self._heard[part] = time.monotonic()

    def saved(self) -> dict[str, int]:
        return dict(self._newest)

    def reached(self, parts: Iterable[str], is_read: Callable[[str], bool]) -> Any:
        """How far time has come in all parts but those that are idle, or where all are idle, in the one that came farthest. None:
        that is not known.
        """
        awake = [part for part in parts if not self._is_idle(part, is_read)]
        if any(part not in self._newest for part in awake) or not self._newest:
            return None
        at = min(self._newest[part] for part in awake) if awake else max(self._newest.values())
        at -= self._delay
        return EPOCH + dt.timedelta(microseconds=at) if self._timed else at

    def _is_idle(self, part: str, is_read: Callable[[str], bool]) -> bool:
        if self._idle_s is None:
            return False
        return time.monotonic() - self._heard.get(part, self._began) > self._idle_s and is_read(part)


def _length(name: str, given: Duration) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        found = given
    elif isinstance(given, (str, dt.timedelta)):
        found = microseconds(given)
    else:
        raise DeclarationError(f"{name} is a length of time, or of an integer column a whole number; got {given!r}")
    if found < 0:
        raise DeclarationError(f"{name} is not negative; got {given!r}")
    return found
