"""Lengths of time, as people write them."""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction

from tidegate.errors import DeclarationError

UNITS = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")

Duration = str | int | dt.timedelta


def microseconds(given: str | dt.timedelta) -> int:
    """A length of time in microseconds.

    >>> microseconds("1.5s"), microseconds("2m 30s"), microseconds(dt.timedelta(milliseconds=3))
    (1500000, 150000000, 3000)
    """
    if isinstance(given, dt.timedelta):
        return given // dt.timedelta(microseconds=1)
    total, place = Fraction(0), 0
    while match := _TEXT.match(given, place):
        if match[2] not in UNITS:
            break
        total += Fraction(match[1]) * UNITS[match[2]]
        place = match.end()
    if place != len(given) or not given.strip():
        raise DeclarationError(
            f"{given!r} is not a length of time; write for example '10s', '250ms', '1m 30s' or a timedelta"
        )
    return round(total)


def described(us: int) -> str:
    """A length of time in words.

    >>> described(1_500_000), described(60_000_000), described(250)
    ('1.5s', '1m', '250us')
    """
    for unit in ("d", "h", "m", "s", "ms"):
        if (us and us % UNITS[unit] == 0) or (unit == "s" and us >= UNITS["s"]):
            return f"{us / UNITS[unit]:g}{unit}"
    return f"{us}us"
