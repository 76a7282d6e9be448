"""Values as JSON and back, without loss: how rows and keys are written down outside the tables."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from tidegate.errors import CorruptionError


def to_json(value: Any) -> Any:
    """A stored value (or a tuple of them) as JSON.

    >>> from_json(to_json((1, Decimal("2.50"), None, (dt.date(2026, 1, 2),))))
    (1, Decimal('2.50'), None, (datetime.date(2026, 1, 2),))
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return {"decimal": str(value)}
        case dt.datetime():
            return {"timestamp": value.isoformat()}
        case dt.date():
            return {"date": value.isoformat()}
        case dt.time():
            return {"time": value.isoformat()}
        case dt.timedelta():
            return {"interval": [value.days, value.seconds, value.microseconds]}
        case bytes():
            return {"blob": base64.b64encode(value).decode()}
        case uuid.UUID():
            return {"uuid": str(value)}
        case tuple() | list():
            return [to_json(item) for item in value]
    raise CorruptionError(f"no way to write down {value!r} ({type(value).__name__})")


def from_json(value: Any) -> Any:
    """The value that :func:`to_json` wrote."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    match kind:
        case "decimal":
            return Decimal(text)
        case "timestamp":
            return dt.datetime.fromisoformat(text)
        case "date":
            return dt.date.fromisoformat(text)
        case "time":
            return dt.time.fromisoformat(text)
        case "interval":
            return dt.timedelta(*text)
        case "blob":
            return base64.b64decode(text)
        case "uuid":
            return uuid.UUID(text)
    raise CorruptionError(f"unknown kind of value {kind!r} in stored state")
