"""Column types: how a SQL type looks in Python, and what may be stored in it.

Values are checked at the door. A stored value always has the one Python type of its column, so that rows compare
and hash the same whichever way they came in:

=============================  =====================  =====================================
SQL                            stored as              also accepted
=============================  =====================  =====================================
TINYINT … BIGINT, U…           int                    numpy integers, integral Decimal
FLOAT, DOUBLE                  float                  int, Decimal, numpy floats
DECIMAL(p, s)                  decimal.Decimal        int (rounded half away from zero)
VARCHAR                        str
BOOLEAN                        bool                   numpy bool
TIMESTAMP                      datetime (naive, UTC)  aware datetime (converted to UTC)
DATE, TIME                     date, time
INTERVAL                       timedelta
BLOB                           bytes                  bytearray, memoryview
UUID                           uuid.UUID
JSON                           str                    dict, list (written as JSON text)
T[]                            tuple                  list, numpy array
=============================  =====================  =====================================
"""

from __future__ import annotations

import datetime as dt
import json
import operator
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import DeclarationError


@dataclass(frozen=True)
class ColumnType:
    """One SQL type. ``coerce`` returns the stored form of a value, or raises ValueError saying what it wants."""

    sql: str
    family: str
    python: type
    arrow: pa.DataType
    coerce: Callable[[Any], Any]
    low: int = 0
    high: int = 0
    element: ColumnType | None = None  # of a list

    def __str__(self) -> str:
        return self.sql

    @property
    def hashable_key(self) -> bool:
        """May stand in a primary key, a unique constraint or an index: equality in Python is equality in SQL."""
        return self.family in {"integer", "decimal", "text", "boolean", "timestamp", "date", "time", "uuid", "blob"}


INTEGER_WIDTHS: dict[str, tuple[int, int, pa.DataType]] = {
    "TINYINT": (-(2**7), 2**7 - 1, pa.int8()),
    "SMALLINT": (-(2**15), 2**15 - 1, pa.int16()),
    "INTEGER": (-(2**31), 2**31 - 1, pa.int32()),
    "BIGINT": (-(2**63), 2**63 - 1, pa.int64()),
    "UTINYINT": (0, 2**8 - 1, pa.uint8()),
    "USMALLINT": (0, 2**16 - 1, pa.uint16()),
    "UINTEGER": (0, 2**32 - 1, pa.uint32()),
    "UBIGINT": (0, 2**64 - 1, pa.uint64()),
}


def _integer(name: str) -> ColumnType:
    low, high, arrow = INTEGER_WIDTHS[name]

    def coerce(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
                if isinstance(value, Decimal) and value == value.to_integral_value():
                    value = int(value)
                else:
                    raise ValueError(f"expected an integer, got {type(value).__name__}")
            else:
                value = operator.index(value)
        if not low <= value <= high:
            raise ValueError(f"out of range for {name} ({low} to {high})")
        return value  # type: ignore[no-any-return]

    return ColumnType(name, "integer", int, arrow, coerce, low, high)


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, Decimal, np.integer, np.floating)):
        raise ValueError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _single(value: Any) -> float:
    number = _double(value)
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError as error:
        raise ValueError("out of range for FLOAT") from error


DIGITS = Context(prec=78)  # 38 before and after the point, and some


def _decimal(precision: int, scale: int) -> ColumnType:
    name = f"DECIMAL({precision},{scale})"
    quantum = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (precision - scale)

    def coerce(value: Any) -> Decimal:
        if isinstance(value, (bool, float, np.floating, np.bool_)) or not isinstance(value, (int, Decimal, np.integer)):
            hint = "; write Decimal(str(value)) to choose the digits yourself" if isinstance(value, float) else ""
            raise ValueError(f"expected a Decimal or an integer, got {type(value).__name__}{hint}")
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        try:
            rounded = number.quantize(quantum, ROUND_HALF_UP, DIGITS)
        except InvalidOperation as error:
            raise ValueError(f"out of range for {name}") from error
        if not -limit < rounded < limit:
            raise ValueError(f"out of range for {name}")
        return rounded

    return ColumnType(name, "decimal", Decimal, pa.decimal128(precision, scale), coerce)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    if not is_unicode(value):
        raise ValueError("is no Unicode text: it has half of a surrogate pair, which can't be stored")
    return str(value)


def is_unicode(value: str) -> bool:
    """Can it be stored? Some JSON brings in half of a surrogate pair."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise ValueError(f"expected true or false, got {type(value).__name__}")


def _timestamp(value: Any) -> dt.datetime:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if not isinstance(value, dt.datetime):
        raise ValueError(f"expected a datetime, got {type(value).__name__}")
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    if type(value) is not dt.datetime:  # a subclass such as pandas.Timestamp
        return dt.datetime.combine(value.date(), value.time())
    return value


def _exactly(kind: type, word: str) -> Callable[[Any], Any]:
    def coerce(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"expected {word}, got {type(value).__name__}")
        return value

    return coerce


def _interval(value: Any) -> dt.timedelta:
    if isinstance(value, np.timedelta64):
        value = value.astype("timedelta64[us]").item()
    if not isinstance(value, dt.timedelta):
        raise ValueError(f"expected a timedelta, got {type(value).__name__}")
    return value


def _blob(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


def _json(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    if not isinstance(value, str):
        raise ValueError(f"expected JSON text, a dict or a list, got {type(value).__name__}")
    try:
        json.loads(value)
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from error
    return _text(value)


def _list(element: ColumnType) -> ColumnType:
    inner = element.coerce

    def coerce(value: Any) -> tuple[Any, ...]:
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"expected a list, got {type(value).__name__}")
        return tuple(None if item is None else inner(item) for item in value)

    return ColumnType(f"{element.sql}[]", "list", tuple, pa.list_(element.arrow), coerce, element=element)


_SIMPLE: dict[str, ColumnType] = {
    **{name: _integer(name) for name in INTEGER_WIDTHS},
    "FLOAT": ColumnType("FLOAT", "float", float, pa.float32(), _single),
    "DOUBLE": ColumnType("DOUBLE", "float", float, pa.float64(), _double),
    "VARCHAR": ColumnType("VARCHAR", "text", str, pa.string(), _text),
    "BOOLEAN": ColumnType("BOOLEAN", "boolean", bool, pa.bool_(), _boolean),
    "TIMESTAMP": ColumnType("TIMESTAMP", "timestamp", dt.datetime, pa.timestamp("us"), _timestamp),
    "DATE": ColumnType("DATE", "date", dt.date, pa.date32(), _exactly(dt.date, "a date")),
    "TIME": ColumnType("TIME", "time", dt.time, pa.time64("us"), _exactly(dt.time, "a time")),
    "INTERVAL": ColumnType("INTERVAL", "interval", dt.timedelta, pa.duration("us"), _interval),
    "BLOB": ColumnType("BLOB", "blob", bytes, pa.binary(), _blob),
    "UUID": ColumnType("UUID", "uuid", uuid.UUID, pa.string(), _exactly(uuid.UUID, "a uuid.UUID")),
    "JSON": ColumnType("JSON", "json", str, pa.string(), _json),
}

_INSTEAD = {
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP (aware datetimes are converted to UTC at the door)",
    "HUGEINT": "BIGINT or DECIMAL(38,0)",
    "UHUGEINT": "UBIGINT or DECIMAL(38,0)",
}


def column_type(sql: str) -> ColumnType:
    """The type called ``sql`` by DuckDB (canonical spelling, as its catalog prints it).

    >>> column_type("DECIMAL(9,2)").coerce(Decimal("1.005"))
    Decimal('1.01')
    """
    if sql in _SIMPLE:
        return _SIMPLE[sql]
    if sql.endswith("[]"):
        return _list(column_type(sql[:-2]))
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", sql):
        return _decimal(int(match[1]), int(match[2]))
    instead = _INSTEAD.get(sql, f"one of {', '.join([*_SIMPLE, 'DECIMAL(p,s)', 'T[]'])}")
    raise DeclarationError(f"type {sql} is not supported; use {instead}", type=sql)
