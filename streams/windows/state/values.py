"""Times and keys of rows that are looked at one by one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.clock import EPOCH
from tidegate.storage.schema import Relation

DAY = 86_400_000_000  # microseconds

Row = tuple[Any, ...]


def micros(value: dt.datetime) -> int:
    """A TIMESTAMP as microseconds since 1970."""
    since = value - EPOCH
    return since.days * DAY + since.seconds * 1_000_000 + since.microseconds


def at_micros(value: int) -> dt.datetime:
    """What :func:`micros` was given."""
    return EPOCH + dt.timedelta(microseconds=value)


def time_of(relation: Relation, name: str) -> Callable[[Row], int]:
    """A row's time, as :func:`~.columns.times_of` has it."""
    place, family = relation.index_of[name], relation.column(name).type.family
    if family == "timestamp":
        return lambda row: micros(row[place])
    if family == "date":
        first = EPOCH.toordinal()
        return lambda row: (row[place].toordinal() - first) * DAY
    return lambda row: row[place]


def key_of(relation: Relation, by: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    """A row's key."""
    places = [relation.index_of[name] for name in by]
    if not places:
        return lambda row: ()
    if len(places) == 1:
        (place,) = places
        return lambda row: (row[place],)
    return lambda row: tuple([row[place] for place in places])
