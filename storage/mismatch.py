"""A value of a type that its column never takes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

_CONVERTIBLE = (str, bytes, int, float, Decimal, dt.date)


class WrongType(ValueError):
    """No value of this type fits the column. (Any other ValueError: another value of the type would.)"""


def wrong_type(expected: str, value: Any, conversion: str) -> WrongType:
    """The error for a value that the procedure or the sender has to convert first."""
    hint = f"; convert it first: {conversion}" if isinstance(value, _CONVERTIBLE) else ""
    return WrongType(f"expected {expected}, got {type(value).__name__}{hint}")
