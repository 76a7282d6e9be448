"""What operators and functions of a pattern's conditions do to values: SQL's meaning, with NULL as None.

NaN equals itself and is above every number. A division by zero is NULL.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tidegate.storage.sql.semantics import (
    and_,
    coalesce,
    eq,
    float_eq,
    float_le,
    float_lt,
    float_ne,
    in_,
    le,
    lt,
    ne,
    not_,
    or_,
)
from tidegate.storage.types import ColumnType

__all__ = [
    "and_", "coalesce", "eq", "float_eq", "float_le", "float_lt", "float_ne", "in_", "le", "lt", "ne", "not_", "or_",
]  # fmt: skip

MOVED = {  # what is given by sums and differences of times
    ("-", "timestamp", "timestamp"): "interval", ("-", "timestamp", "interval"): "timestamp",
    ("+", "timestamp", "interval"): "timestamp", ("+", "interval", "interval"): "interval",
    ("-", "interval", "interval"): "interval", ("-", "date", "date"): "interval",
}  # fmt: skip
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "millisecond": 0.001}


def gt(a: Any, b: Any) -> Any:
    return lt(b, a)


def ge(a: Any, b: Any) -> Any:
    return le(b, a)


def float_gt(a: Any, b: Any) -> Any:
    return float_lt(b, a)


def float_ge(a: Any, b: Any) -> Any:
    return float_le(b, a)


def _calculated(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """NULL with NULL; a decimal meets a float as a float; what is out of range, or undefined, is NULL."""

    def calculate(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        if isinstance(a, Decimal) and isinstance(b, float):
            a = float(a)
        elif isinstance(a, float) and isinstance(b, Decimal):
            b = float(b)
        try:
            return work(a, b)
        except (ArithmeticError, OverflowError):
            return None

    return calculate


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return math.fmod(a, b) if b else None
    found = abs(a) % abs(b)
    return -found if a < 0 else found


def _whole(a: Any, b: Any) -> Any:
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


add = _calculated(lambda a, b: a + b)
sub = _calculated(lambda a, b: a - b)
mul = _calculated(lambda a, b: a * b)
div = _calculated(lambda a, b: float(a) / float(b))
mod = _calculated(_remainder)
intdiv = _calculated(_whole)


def added(total: Any, value: Any) -> Any:
    """A sum so far, and another value."""
    if value is None:
        return total
    return value if total is None else total + value


def mean(total: Any, number: int) -> Any:
    return None if not number else float(total) / number


def smaller(known: Any, value: Any) -> Any:
    if value is None:
        return known
    return value if known is None or float_lt(value, known) else known


def larger(known: Any, value: Any) -> Any:
    if value is None:
        return known
    return value if known is None or float_lt(known, value) else known


def only(kept: tuple[Any] | None) -> Any:
    """The first value of a variable, if there is one."""
    return None if kept is None else kept[0]


def abs_(a: Any) -> Any:
    return None if a is None else abs(a)


def lower_(a: Any) -> Any:
    return None if a is None else a.lower()


def upper_(a: Any) -> Any:
    return None if a is None else a.upper()


def length_(a: Any) -> Any:
    return None if a is None else len(a)


def like_form(form: str) -> re.Pattern[str]:
    """A form of LIKE as a regular expression."""
    signs = {"%": ".*", "_": "."}
    return re.compile("".join(signs.get(sign, re.escape(sign)) for sign in form), re.DOTALL)


def like(a: Any, form: re.Pattern[str]) -> Any:
    return None if a is None else form.fullmatch(a) is not None


def interval(told: str) -> dt.timedelta | None:
    """``5 SECOND`` or ``5 minutes``."""
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)\s*", told.lower())
    unit = None if found is None else _UNITS.get(found[2].removesuffix("s"))
    return None if found is None or unit is None else dt.timedelta(seconds=float(found[1]) * unit)


def literal(kind: ColumnType, text: str) -> Any:
    """A value written as text, as one of this type."""
    match kind.family:
        case "timestamp":
            return dt.datetime.fromisoformat(text)
        case "date":
            return dt.date.fromisoformat(text)
        case "time":
            return dt.time.fromisoformat(text)
    return kind.coerce(text)
