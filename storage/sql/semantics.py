"""DuckDB's arithmetic, comparison and three-valued logic on Python values, for compiled expressions.

Each function either gives exactly DuckDB's answer or raises :class:`Fallback`, and then DuckDB itself runs the
statement: an overflow, a division by zero or a parameter of an unexpected type is answered (or refused) there.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection
from decimal import Context, Decimal
from math import isfinite
from typing import Any

import numpy as np

from tidegate.storage.types import ColumnType

_EXACT = Context(prec=200)
_SAFE = 10**18  # decimals of up to 18 digits never overflow in DuckDB, whatever their declared width


class Fallback(Exception):
    """This execution of the statement must run in DuckDB."""


# ---- parameters of the type that the place in the statement calls for


def integer(value: Any) -> Any:
    if type(value) is int or value is None:
        return value
    if isinstance(value, np.integer):
        return int(value)
    raise Fallback


def double(value: Any) -> Any:
    if type(value) is float or value is None:
        return value
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    raise Fallback


def decimal(value: Any) -> Any:
    if value is None:
        return value
    if type(value) is int and abs(value) < _SAFE:
        return Decimal(value)
    if type(value) is Decimal:
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and -18 <= exponent <= 0:
            return value
    raise Fallback


def exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is kind or value is None:
            return value
        raise Fallback

    return check


def timestamp(value: Any) -> Any:
    if value is None or (type(value) is dt.datetime and value.tzinfo is None):
        return value
    raise Fallback


PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "integer": integer,
    "float": double,
    "decimal": decimal,
    "text": exactly(str),
    "boolean": exactly(bool),
    "timestamp": timestamp,
    "date": exactly(dt.date),
    "time": exactly(dt.time),
    "uuid": exactly(uuid.UUID),
    "blob": exactly(bytes),
}


def guarded(coerce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """CAST of a parameter: ``coerce`` where it agrees, DuckDB where it does not."""

    def cast(value: Any) -> Any:
        if value is None:
            return None
        try:
            return coerce(value)
        except (ValueError, TypeError, OverflowError):
            raise Fallback from None

    return cast


def exact_part(kind: ColumnType) -> Callable[[Any], Any]:
    """The stored value that equals a given one: the value itself, or none that we can look up."""
    coerce, low, high = kind.coerce, kind.low, kind.high

    def integer_part(value: Any) -> Any:
        if value is None or low <= value <= high:
            return value
        raise Fallback

    def other_part(value: Any) -> Any:
        if value is None:
            return None
        try:
            stored = coerce(value)
        except (ValueError, TypeError, OverflowError):
            raise Fallback from None
        if stored != value:
            raise Fallback
        return stored

    if kind.family == "integer":
        return integer_part
    return other_part if kind.family in {"decimal", "timestamp"} else lambda value: value


# ---- logic


def and_(a: Any, b: Any) -> Any:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def or_(a: Any, b: Any) -> Any:
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def not_(a: Any) -> Any:
    return None if a is None else not a


def in_(a: Any, values: tuple[Any, ...]) -> Any:
    if a is None:
        return None
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif a == value or (a != a and value != value):
            return True
    return None if unknown else False


def in_found(value: Any, found: Collection[Any]) -> bool | None:
    """``value IN (found)``."""
    if not found:
        return False
    if value is None:
        return None
    return True if value in found else None if None in found else False


def coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


# ---- comparison (NaN equals itself and is above every number)


def eq(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a == b


def ne(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a != b


def lt(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a < b


def le(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a <= b


def float_eq(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a == b or (a != a and b != b)


def float_lt(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a < b or (b != b and a == a)


def float_ne(a: Any, b: Any) -> Any:
    return not_(float_eq(a, b))


def float_le(a: Any, b: Any) -> Any:
    return not_(float_lt(b, a))


# ---- arithmetic


def in_range(value: int, low: int, high: int) -> int:
    if low <= value <= high:
        return value
    raise Fallback


def int_add(a: Any, b: Any, low: int, high: int) -> Any:
    if a is None or b is None:
        return None
    value = a + b
    if low <= value <= high:
        return value
    raise Fallback


def int_sub(a: Any, b: Any, low: int, high: int) -> Any:
    return None if a is None or b is None else in_range(a - b, low, high)


def int_mul(a: Any, b: Any, low: int, high: int) -> Any:
    return None if a is None or b is None else in_range(a * b, low, high)


def as_float(a: Any) -> Any:
    return None if a is None else float(a)


def _finite(value: float) -> float:
    if isfinite(value):
        return value
    raise Fallback


def float_add(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _finite(a + b)


def float_sub(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _finite(a - b)


def float_mul(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _finite(a * b)


def float_div(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return None
    if b == 0:
        raise Fallback
    return _finite(a / b)


def _narrow(value: Decimal) -> Decimal:
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and -18 <= exponent <= 0 and abs(value.scaleb(-exponent, _EXACT)) < _SAFE:
        return value
    raise Fallback


def decimal_add(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _narrow(_EXACT.add(a, b))


def decimal_sub(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _narrow(_EXACT.subtract(a, b))


def decimal_mul(a: Any, b: Any) -> Any:
    return None if a is None or b is None else _narrow(_EXACT.multiply(a, b))


def moved(a: Any, by: dt.timedelta) -> Any:
    try:
        return None if a is None else a + by
    except OverflowError:
        raise Fallback from None


def concat(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b
