"""Column types: how a SQL type looks in Python, and what may be stored in it.

Values are checked on input. A stored value always has the one Python type of its column, so that rows compare and hash
the same however they were given. What the log, Arrow or DuckDB would not preserve is converted here (subclasses,
numpy's scalars, a negative zero) or refused (half of a surrogate pair, an INTERVAL beyond DuckDB's):

=============================  =====================  =====================================
SQL                            stored as              also accepted
=============================  =====================  =====================================
TINYINT … BIGINT, U…           int                    numpy integers, integral Decimal
FLOAT, DOUBLE                  float                  int, Decimal, numpy floats
DECIMAL(p, s)                  decimal.Decimal        int (rounded half away from zero); not NaN, not Infinity
VARCHAR                        str
BOOLEAN                        bool                   numpy bool
TIMESTAMP                      datetime (naive, UTC)  aware datetime (converted to UTC)
DATE, TIME                     date, time (naive)
INTERVAL                       timedelta              up to 106,751,990 days either way
BLOB                           bytes                  bytearray, memoryview
UUID                           uuid.UUID
JSON                           str                    dict, list (written as JSON text); at most 128 levels deep
T[]                            tuple                  list, numpy array
=============================  =====================  =====================================
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import DeclarationError
from tidegate.storage.jsontext import checked_json
from tidegate.storage.mismatch import WrongType, wrong_type
from tidegate.storage.unicode import HALF, is_unicode


@dataclass(frozen=True)
class ColumnType:
    """One SQL type. ``coerce`` returns the stored form of a value, or raises ValueError saying what is expected:
    WrongType where no value of its type fits.

    Two are equal if they are the same SQL type: everything else follows from that.
    """

    sql: str
    family: str = field(compare=False)
    python: type = field(compare=False)
    arrow: pa.DataType = field(compare=False)
    coerce: Callable[[Any], Any] = field(compare=False)
    low: int = field(default=0, compare=False)
    high: int = field(default=0, compare=False)
    element: ColumnType | None = field(default=None, compare=False)  # of a list

    def __str__(self) -> str:
        return self.sql

    @property
    def hashable_key(self) -> bool:
        """May be part of a primary key, a unique constraint or an index: equality in Python is equality in SQL."""
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
                if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 20 and value % 1 == 0:
                    value = int(value)
                else:
                    raise wrong_type("an integer", value, "int(value)")
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
        raise wrong_type("a number", value, "float(value)")
    number = float(value)
    if isinstance(value, Decimal) and value.is_finite() and math.isinf(number):
        raise ValueError("out of range for DOUBLE")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError as error:
        raise ValueError("out of range for FLOAT") from error


DIGITS = Context(prec=78)  # 38 digits before and after the point, and some spare


def _decimal(precision: int, scale: int) -> ColumnType:
    name = f"DECIMAL({precision},{scale})"
    quantum = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (precision - scale)
    zero = Decimal(0).scaleb(-scale)

    def coerce(value: Any) -> Decimal:
        if isinstance(value, (bool, float, np.floating, np.bool_)) or not isinstance(value, (int, Decimal, np.integer)):
            raise wrong_type("a Decimal or an integer", value, "Decimal(str(value)) lets you choose the digits")
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        if not number.is_finite():
            raise ValueError(f"{name} holds numbers only; use DOUBLE for NaN and Infinity, or NULL")
        try:
            rounded = number.quantize(quantum, ROUND_HALF_UP, DIGITS)
        except InvalidOperation as error:
            raise ValueError(f"out of range for {name}") from error
        if not -limit < rounded < limit:
            raise ValueError(f"out of range for {name}")
        return rounded if rounded else zero  # there is no negative zero in SQL

    return ColumnType(name, "decimal", Decimal, pa.decimal128(precision, scale), coerce)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("text", value, "str(value)")
    value = str.__str__(value)  # for a subclass, the text itself and not its str()
    if not is_unicode(value):
        raise ValueError(HALF)
    return value  # type: ignore[no-any-return]


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise wrong_type("true or false", value, "bool(value)")


def _timestamp(value: Any) -> dt.datetime:
    if isinstance(value, np.datetime64):
        value = _in_microseconds(value)
    if not isinstance(value, dt.datetime):
        raise wrong_type("a datetime", value, "datetime.fromisoformat(value)")
    if value != value:  # NaT of pandas
        raise ValueError("is not a time (NaT); use None for NULL")
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    clock = (value.hour, value.minute, value.second, value.microsecond)  # plain, also from a pandas.Timestamp
    return dt.datetime(value.year, value.month, value.day, *clock)


def _in_microseconds(value: np.datetime64 | np.timedelta64) -> Any:
    """As a Python datetime. numpy itself wraps around when the microseconds do not fit."""
    if np.isnat(value):
        raise ValueError("is not a time (NaT); use None for NULL")
    kind = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
    converted = value.astype(kind)
    unit = np.datetime_data(value.dtype)[0]
    finer = unit in {"us", "ns", "ps", "fs", "as", "generic"}
    if not finer and converted.astype(value.dtype) != value:
        raise ValueError("is out of range for microseconds in 64 bits")
    return converted.item()


def _date(value: Any) -> dt.date:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise wrong_type("a date", value, "value.date(), or date.fromisoformat(value)")
    return dt.date(value.year, value.month, value.day)


def _time(value: Any) -> dt.time:
    if not isinstance(value, dt.time):
        raise wrong_type("a time", value, "time.fromisoformat(value)")
    if value.tzinfo is not None:
        raise WrongType(
            "expected a time without a time zone; use TIMESTAMP for a moment, or value.replace(tzinfo=None)"
        )
    return dt.time(value.hour, value.minute, value.second, value.microsecond)


INTERVAL_DAYS = 106_751_990  # as many whole days of microseconds as fit into 64 bits, less one


def _interval(value: Any) -> dt.timedelta:
    if isinstance(value, np.timedelta64):
        value = _in_microseconds(value)
    if not isinstance(value, dt.timedelta):
        raise wrong_type("a timedelta", value, "timedelta(seconds=value)")
    if value != value:  # NaT of pandas
        raise ValueError("is not a time (NaT); use None for NULL")
    if not -INTERVAL_DAYS <= value.days < INTERVAL_DAYS:
        raise ValueError(f"out of range for INTERVAL ({INTERVAL_DAYS:,} days either way)")
    return dt.timedelta(value.days, value.seconds, value.microseconds)


def _uuid(value: Any) -> uuid.UUID:
    if not isinstance(value, uuid.UUID):
        raise wrong_type("a uuid.UUID", value, "uuid.UUID(value)")
    return value if type(value) is uuid.UUID else uuid.UUID(int=value.int)


def _blob(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise wrong_type("bytes", value, "value.encode()")
    return bytes(value)


def _list(element: ColumnType) -> ColumnType:
    inner = element.coerce

    def coerce(value: Any) -> tuple[Any, ...]:
        if isinstance(value, np.ndarray):
            value = list(value) if value.dtype.kind in "mM" else value.tolist()  # it makes numbers of dates
        if not isinstance(value, (list, tuple)):
            raise wrong_type("a list", value, "[value]")
        return tuple(None if item is None else inner(item) for item in value)

    return ColumnType(f"{element.sql}[]", "list", tuple, pa.list_(element.arrow), coerce, element=element)


_SIMPLE: dict[str, ColumnType] = {
    **{name: _integer(name) for name in INTEGER_WIDTHS},
    "FLOAT": ColumnType("FLOAT", "float", float, pa.float32(), _single),
    "DOUBLE": ColumnType("DOUBLE", "float", float, pa.float64(), _double),
    "VARCHAR": ColumnType("VARCHAR", "text", str, pa.string(), _text),
    "BOOLEAN": ColumnType("BOOLEAN", "boolean", bool, pa.bool_(), _boolean),
    "TIMESTAMP": ColumnType("TIMESTAMP", "timestamp", dt.datetime, pa.timestamp("us"), _timestamp),
    "DATE": ColumnType("DATE", "date", dt.date, pa.date32(), _date),
    "TIME": ColumnType("TIME", "time", dt.time, pa.time64("us"), _time),
    "INTERVAL": ColumnType("INTERVAL", "interval", dt.timedelta, pa.duration("us"), _interval),
    "BLOB": ColumnType("BLOB", "blob", bytes, pa.binary(), _blob),
    "UUID": ColumnType("UUID", "uuid", uuid.UUID, pa.string(), _uuid),
    "JSON": ColumnType("JSON", "json", str, pa.string(), checked_json),
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
