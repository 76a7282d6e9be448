"""Schedules: the times at which a procedure is started by the clock, from its declaration alone.

Times are microseconds since 1970, UTC. An interval counts from there, so ``every="1h"`` means the full hours and needs no
memory of when it began.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.clock import EPOCH
from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.durations import UNITS, described, microseconds

Missed = Literal["catch_up", "skip"]

SHORTEST_US = 1_000
MINUTE_US, DAY_US = UNITS["m"], UNITS["d"]
FAR_DAYS = 366 * 28 + 7  # a 29th of February on a given weekday comes after at most so many days


@dataclass(frozen=True)
class Every:
    """At every multiple of an interval."""

    us: int

    def after(self, us: int) -> int:
        """The first time after this one."""
        return us // self.us * self.us + self.us

    def until(self, us: int) -> int:
        """The last time up to this one."""
        return us // self.us * self.us

    def __str__(self) -> str:
        return f"every {described(self.us)}"


@dataclass(frozen=True)
class Cron:
    """At the minutes that a line of five fields names: minute, hour, day of the month, month, day of the week.

    As in crontab(5): if both days are restricted, one of them is enough.
    """

    text: str
    minutes: tuple[int, ...]  # of a day, ascending
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    either_day: bool

    def after(self, us: int) -> int:
        """The first time after this one."""
        day, within = divmod(us, DAY_US)
        for ahead in range(FAR_DAYS):
            if self._on(day + ahead):
                place = 0 if ahead else bisect_right(self.minutes, within // MINUTE_US)
                if place < len(self.minutes):
                    return (day + ahead) * DAY_US + self.minutes[place] * MINUTE_US
        raise AssertionError(f"{self.text} never comes")  # refused when it was declared

    def until(self, us: int) -> int:
        """The last time up to this one."""
        day, within = divmod(us, DAY_US)
        for back in range(FAR_DAYS):
            if self._on(day - back):
                place = len(self.minutes) if back else bisect_left(self.minutes, within // MINUTE_US + 1)
                if place:
                    return (day - back) * DAY_US + self.minutes[place - 1] * MINUTE_US
        raise AssertionError(f"{self.text} never came")

    def _on(self, day: int) -> bool:
        date = (EPOCH + dt.timedelta(days=day)).date()
        if date.month not in self.months:
            return False
        in_month, in_week = date.day in self.days, date.isoweekday() % 7 in self.weekdays
        return (in_month or in_week) if self.either_day else (in_month and in_week)

    def __str__(self) -> str:
        return f"cron {self.text}"


@dataclass(frozen=True)
class Idle:
    """``column``: the event time of the stream's rows. ``us``: how long it may be silent."""

    column: str
    us: int


@dataclass(frozen=True)
class Schedule:
    """When a procedure is started by the clock, and what becomes of times at which nothing could run.

    ``missed``: ``catch_up`` starts it for each of them, ``skip`` for the last one only.
    """

    times: Every | Cron
    missed: Missed = "skip"

    def due(self, reached_us: int, now_us: int) -> Iterator[int]:
        """The times after ``reached_us`` up to now for which it is to be started."""
        following = self.times.after(reached_us)
        if following > now_us:
            return
        if self.missed == "skip":
            yield self.times.until(now_us)
            return
        while following <= now_us:
            yield following
            following = self.times.after(following)

    def __str__(self) -> str:
        return f"{self.times}, {self.missed}"


def declared_schedule(procedure: str, every: Any, cron: Any, missed: Any) -> Schedule | None:
    """The schedule that a procedure declares, if any."""
    if every is None and cron is None:
        if missed is not None:
            raise DeclarationError(
                f"procedure {procedure}: missed={missed!r} belongs to a schedule; add every='1m' or cron='0 3 * * *'",
                procedure=procedure,
            )
        return None
    if every is not None and cron is not None:
        raise DeclarationError(
            f"procedure {procedure} has both every={every!r} and cron={cron!r}; a schedule is one of them",
            procedure=procedure,
        )
    if missed not in (None, "catch_up", "skip"):
        raise DeclarationError(
            f"procedure {procedure}: missed is 'skip' (start it once for all times that were missed) or 'catch_up' (once for "
            f"each), got {missed!r}",
            procedure=procedure,
        )
    times = _every(procedure, every) if every is not None else _cron(procedure, cron)
    return Schedule(times, missed or "skip")


def _every(procedure: str, every: Any) -> Every:
    if not isinstance(every, (str, dt.timedelta)):
        raise DeclarationError(
            f"procedure {procedure}: every is a length of time such as '1m' or a timedelta, got {every!r}",
            procedure=procedure,
        )
    us = microseconds(every)
    if us < SHORTEST_US:
        raise DeclarationError(
            f"procedure {procedure}: every={every!r} is too short; the shortest interval is 1ms", procedure=procedure
        )
    return Every(us)


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def _cron(procedure: str, text: Any) -> Cron:
    try:
        found = read_cron(text)
        found.after(0)
    except (ValueError, AssertionError) as error:
        raise DeclarationError(
            f"procedure {procedure}: cron={text!r}: {error}. It has five fields, minute, hour, day of the month, month and "
            f"day of the week, in UTC: '0 3 * * *' is every night at three, '*/15 8-17 * * mon-fri' every quarter of an hour of "
            f"office hours",
            procedure=procedure,
        ) from None
    return found


def read_cron(text: Any) -> Cron:
    """Read a cron line; ValueError says what is wrong with it."""
    if not isinstance(text, str):
        raise ValueError("it is not text")
    fields = SHORT.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields")
    minutes = _field("minute", fields[0], 0, 59)
    hours = _field("hour", fields[1], 0, 23)
    days = _field("day of the month", fields[2], 1, 31)
    months = _field("month", fields[3], 1, 12, MONTHS, 1)
    weekdays = {day % 7 for day in _field("day of the week", fields[4], 0, 7, WEEKDAYS)}
    restricted = not fields[2].startswith("*") and not fields[4].startswith("*")
    of_a_day = tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes))
    return Cron(text, of_a_day, frozenset(days), frozenset(months), frozenset(weekdays), restricted)


def _field(what: str, text: str, low: int, high: int, names: tuple[str, ...] = (), first: int = 0) -> set[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, slash, step_text = part.partition("/")
        begin, dash, end = span.partition("-")
        last = 6 if names is WEEKDAYS else high  # Sunday is 0 and 7
        step = _number(what, step_text, 1, high, (), 0) if slash else 1
        if span == "*":
            start, stop = low, last
        else:
            start = _number(what, begin, low, high, names, first)
            stop = _number(what, end, low, high, names, first) if dash else last if slash else start
        if stop < start:
            raise ValueError(f"{part!r} as {what} ends before it begins")
        found.update(range(start, stop + 1, step))
    return found


def _number(what: str, text: str, low: int, high: int, names: tuple[str, ...], first: int) -> int:
    if text in names:
        return names.index(text) + first
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{text!r} as {what} is not a number from {low} to {high}")
    return int(text)
