"""Column types of streams in SQL databases: for new target columns, and for values into existing ones."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tidegate.connectors.shared.plain import plain
from tidegate.storage.types import ColumnType

_INTEGERS: dict[str, type[sa.types.TypeEngine[Any]]] = {
    "TINYINT": sa.SmallInteger,
    "UTINYINT": sa.SmallInteger,
    "SMALLINT": sa.SmallInteger,
    "USMALLINT": sa.Integer,
    "INTEGER": sa.Integer,
    "UINTEGER": sa.BigInteger,
    "BIGINT": sa.BigInteger,
}

_TYPES: dict[str, type[sa.types.TypeEngine[Any]]] = {
    "text": sa.Text,
    "boolean": sa.Boolean,
    "timestamp": sa.DateTime,
    "date": sa.Date,
    "time": sa.Time,
    "interval": sa.Interval,
    "blob": sa.LargeBinary,
    "uuid": sa.Uuid,
}

INTERVALS = (sa.Interval, postgresql.INTERVAL)  # the second is how an existing column is reported

_AS_TEXT = ("decimal", "uuid")  # in SQLite, which has no type that keeps their digits or form


def target_type(kind: ColumnType, dialect: str) -> sa.types.TypeEngine[Any]:
    """The type of a new target column: one that keeps every value of ``kind`` as it is."""
    if dialect == "sqlite" and (kind.family in _AS_TEXT or kind.sql == "UBIGINT"):
        return sa.Text()
    if dialect == "sqlite" and kind.family == "interval":
        return sa.BigInteger()
    if kind.sql == "UBIGINT":
        return sa.Numeric(20, 0)
    if kind.family == "integer":
        return _INTEGERS[kind.sql]()
    if kind.family == "float":
        return sa.REAL() if kind.sql == "FLOAT" else sa.Double()
    if kind.family == "decimal":
        precision, scale = re.findall(r"\d+", kind.sql)
        return sa.Numeric(int(precision), int(scale))
    if kind.family in ("json", "list"):
        return sa.JSON(none_as_null=True)  # no value is NULL, not JSON's null
    return _TYPES[kind.family]()


def converter(kind: ColumnType, target: sa.types.TypeEngine[Any]) -> Callable[[Any], Any] | None:
    """What turns a stored value into one for a column of type ``target``; None: it is used as it is."""
    is_json = isinstance(target, sa.JSON)
    match kind.family:
        case "json" if is_json:
            return json.loads
        case "list":
            if isinstance(target, sa.ARRAY):
                return list
            return plain if is_json else lambda value: json.dumps(plain(value))
        case "uuid" if not isinstance(target, sa.Uuid):
            return str
        case "decimal" | "integer" | "date" | "time" | "timestamp" if isinstance(target, sa.String):
            return str
        case "decimal" if isinstance(target, sa.Integer):
            return int
        case "interval" if not isinstance(target, INTERVALS):
            return plain
        case "timestamp" if getattr(target, "timezone", False):
            return lambda value: value.replace(tzinfo=dt.UTC)  # ours are UTC; without it the session's zone would apply
    return None
