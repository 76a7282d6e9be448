"""Where the windows of a window over time begin: on a scale on which they all have one length.

Windows are assigned, kept and fired on a scale of whole numbers, where window w covers [wS, wS + W). For most windows this is
time itself. With ``offset=`` it is time that begins elsewhere; months, and days of a time zone, are units that differ in length:
there a *place* is the number of its unit, times :data:`UNIT`, plus the time since the unit began::

    time      Mar 1           Apr 1          May 1                     local days of Berlin, one of 25 hours
    place     602 UNIT        603 UNIT       604 UNIT

A scale ascends with time, so that it keeps every order. Rows wait, are late, and move the watermark by time, not by place.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from tidegate.clock import EPOCH
from tidegate.errors import DeclarationError
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.durations import UNITS, described

DAY = UNITS["d"]
UNIT = {"day": 1 << 38, "month": 1 << 42}  # longer than any such unit ever was: 3 and 50 days
MONTHS = {"month": 1, "quarter": 3, "year": 12}
_CALENDAR = re.compile(r"\s*(\d+)\s*(month|quarter|year)s?\s*")

Array = Any  # of numpy


class Scale(Protocol):
    """Time to places, and back where a place is that of a time. What is before or after any time stays so."""

    def places(self, times: Array) -> Array: ...
    def place(self, time: int) -> int: ...
    def times(self, places: Array) -> Array: ...
    def time(self, place: int) -> int: ...

    def length(self, length: int) -> str:
        """A length on the scale, in words."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Shifted:
    """Time that begins ``offset`` after 1970-01-01 (or 0)."""

    offset: int
    timed: bool

    def places(self, times: Array) -> Array:
        return times - self.offset

    def place(self, time: int) -> int:
        return time if time in (NEVER, END) else time - self.offset

    def times(self, places: Array) -> Array:
        return places + self.offset

    def time(self, place: int) -> int:
        return place + self.offset

    def length(self, length: int) -> str:
        return described(length) if self.timed else f"{length:,}"

    def __str__(self) -> str:
        return f"offset {self.length(self.offset)}"


@dataclass(frozen=True)
class Calendar:
    """Days or months of a time zone, each beginning ``offset`` of local time after its first midnight. Number 0 is the one of
    1970-01-01. It begins when clocks there first show that time or, where they skip it, a later one.
    """

    unit: Literal["day", "month"]
    zone: str | None
    offset: int = 0

    def places(self, times: Array) -> Array:
        if not len(times):
            return times
        about = np.unique(self._about(times))
        numbers = np.unique(np.concatenate([about + near for near in range(-2, 3)]))
        starts = np.maximum.accumulate([self.start(number) for number in numbers.tolist()])
        at = np.searchsorted(starts, times, side="right") - 1
        found: Array = numbers[at] * UNIT[self.unit] + (times - starts[at])
        return found

    def _about(self, times: Array) -> Array:
        """The number of the unit that a time is in, or of one next to it."""
        if self.unit == "day":
            return (times - self.offset) // DAY
        return (times - self.offset).view("M8[us]").astype("M8[M]").view("i8")

    def place(self, time: int) -> int:
        return time if time in (NEVER, END) else int(self.places(np.array([time], "i8"))[0])

    def times(self, places: Array) -> Array:
        numbers, which = np.unique(places // UNIT[self.unit], return_inverse=True)
        starts = np.array([self.start(number) for number in numbers.tolist()], "i8")
        return starts[which] + places % UNIT[self.unit]

    def time(self, place: int) -> int:
        number, rest = divmod(place, UNIT[self.unit])
        return self.start(number) + rest

    def start(self, number: int) -> int:
        """When a unit begins."""
        return _start(self.unit, self.zone, self.offset, number)

    def length(self, length: int) -> str:
        count = length // UNIT[self.unit]
        return f"{count} {self.unit}{'' if count == 1 else 's'}"

    def __str__(self) -> str:
        offset = f" offset {described(self.offset)}" if self.offset else ""
        return f"in {self.zone or 'UTC'}{offset}"


@lru_cache(maxsize=1 << 16)
def _start(unit: str, zone: str | None, offset: int, number: int) -> int:
    if unit == "day":
        days = number
    else:
        year, month = divmod(number, 12)
        if not dt.MINYEAR <= 1970 + year <= dt.MAXYEAR:
            return number * 31 * DAY
        days = dt.date(1970 + year, month + 1, 1).toordinal() - EPOCH.toordinal()
    plainly = days * DAY + offset
    if zone is None:
        return plainly
    try:
        return _shown_first(ZoneInfo(zone), EPOCH + dt.timedelta(microseconds=plainly))
    except OverflowError:  # beyond the years that there are
        return plainly


def _shown_first(zone: ZoneInfo, local: dt.datetime) -> int:
    """The first instant at which clocks there show this time, or a later one because they skipped it."""
    before, after = (_micros(local - EPOCH - _offset(local.replace(tzinfo=zone, fold=fold))) for fold in (0, 1))
    if before <= after:  # the clocks show it, perhaps twice
        return before
    low, high = after, before  # they are set forward in between
    while high - low > 1:
        middle = (low + high) // 2
        shown = (EPOCH + dt.timedelta(microseconds=middle)).replace(tzinfo=dt.UTC).astimezone(zone)
        low, high = (low, middle) if shown.replace(tzinfo=None) >= local else (middle, high)
    return high


def _offset(moment: dt.datetime) -> dt.timedelta:
    found = moment.utcoffset()
    assert found is not None
    return found


def _micros(length: dt.timedelta) -> int:
    return length // dt.timedelta(microseconds=1)


def months(given: Any) -> int | None:
    """How many months ``"1 month"``, ``"2 quarters"`` or ``"1 year"`` are; None: it is no such text.

    >>> months("1 month"), months("2 quarters"), months("1 year"), months("30d")
    (1, 6, 12, None)
    """
    match = _CALENDAR.fullmatch(given) if isinstance(given, str) else None
    return None if match is None else int(match[1]) * MONTHS[match[2]]


def check_zone(what: str, zone: Any) -> None:
    """Is there such a time zone?"""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise DeclarationError(
            f"{what}: there is no time zone {zone!r} here. It is a name like 'Europe/Berlin'; where the system has no "
            f"time zones, pip install tzdata brings them"
        ) from None


def scaled(what: str, size: Any, slide: Any, offset: int, zone: str | None) -> tuple[Calendar, int, int] | None:
    """The scale, range and slide of a window of months, or of days of a time zone; None: it is neither. ``size``, ``slide``: as
    given, the latter None if it was not.
    """
    given = [("time", size), *([("slide", slide)] if slide is not None else [])]
    in_months = [months(length) for _, length in given]
    unit: Literal["day", "month"] = "month"
    counts = in_months
    if all(count is None for count in in_months):
        if zone is None:
            return None
        unit, counts = "day", [_days(length) for _, length in given]
    if None in counts:
        (name, length), count = given[counts.index(None)], "days" if unit == "day" else "months"
        hint = (
            "Hours and minutes are the same in most time zones; where they are not, say offset= without timezone="
            if unit == "day"
            else "Their lengths differ, so neither divides the other"
        )
        raise DeclarationError(
            f"{what}: {name}={length!r} is no number of whole {count}. The lengths of a window of the calendar are all in days, "
            f"with timezone=, or all in months, quarters and years. {hint}"
        )
    if 0 in counts:
        raise DeclarationError(f"{what}: time and slide must be positive, got {size!r} and {slide!r}")
    lengths = [int(count or 0) * UNIT[unit] for count in counts]
    return Calendar(unit, zone, offset), lengths[0], lengths[-1]


def _days(length: Any) -> int | None:
    from tidegate.streams.windows.declare.durations import microseconds

    us = microseconds(length) if isinstance(length, (str, dt.timedelta)) else 1
    return None if us % DAY else us // DAY
