"""Rows as PostgreSQL's DataRow messages, a whole Arrow batch at a time.

Every column becomes an array of byte strings; lengths and bytes are then joined element by element, and Arrow's
resulting buffer is sent as it is. Common types never pass through Python values.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.replica.postgres.macros import SCALE
from tidegate.replica.wire.types import WireType, named

EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01, where PostgreSQL's calendar starts
EPOCH_US = EPOCH_DAYS * 86_400_000_000
_NUMBERS = {"int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8", "oid": ">u4"}
_EXPONENT_FROM = {"float4": 1e6, "float8": 1e15}  # PostgreSQL writes larger ones with an exponent
_BARE = re.compile(r'[^\s,{}"\\]+')  # an element of an array that needs no quotes
_VECTORS = {"int2vector": "int2", "oidvector": "oid"}


def data_rows(batch: pa.RecordBatch, types: Sequence[WireType], binary: Sequence[bool]) -> memoryview | bytes:
    """The batch as DataRow messages."""
    rows = batch.num_rows
    if not rows:
        return b""
    parts: list[Any] = []
    sizes = np.full(rows, 6, dtype=np.int64)  # the length itself and the number of columns
    for column, kind, as_binary in zip(batch.columns, types, binary, strict=True):
        values = column_bytes(column, kind, as_binary)
        lengths = np.diff(np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset : values.offset + rows + 1])
        sizes += 4 + lengths
        if column.null_count:
            lengths = np.where(np.asarray(column.is_null()), -1, lengths)
        parts += [_fixed(lengths.astype(">i4").tobytes(), 4), values]
    head = np.zeros(rows, dtype=[("tag", "S1"), ("size", ">i4"), ("columns", ">i2")])
    head["tag"], head["size"], head["columns"] = b"D", sizes, len(types)
    joined = pc.binary_join_element_wise(_fixed(head.tobytes(), 7), *parts, pa.scalar(b"", pa.large_binary()))
    return memoryview(joined.buffers()[2])[: int(sizes.sum()) + rows]


def column_bytes(column: pa.Array, kind: WireType, binary: bool) -> pa.Array:
    """The column's values as byte strings in the client's format; NULL as the empty string."""
    found = _binary(column, kind) if binary else _text(column, kind)
    if found is None:
        encode = binary_value if binary else text_value
        values = column.to_pylist()
        found = pa.array([b"" if v is None else encode(v, kind) for v in values], pa.large_binary())
    elif column.null_count:
        found = pc.fill_null(found, pa.scalar(b"", pa.large_binary()))
    return found


def _fixed(data: bytes, width: int) -> pa.Array:
    """Byte strings of one width, as Arrow's join needs them."""
    rows = len(data) // width
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(column: pa.Array, kind: WireType) -> pa.Array | None:
    """Columns whose text Arrow can write itself; None: value by value."""
    given = column.type
    if pa.types.is_string(given) or pa.types.is_large_string(given):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if kind.name == "bool":
        return pc.if_else(column, pa.scalar(b"t", pa.large_binary()), pa.scalar(b"f", pa.large_binary()))
    if pa.types.is_integer(given):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_floating(given):
        return column.cast(pa.large_string()).cast(pa.large_binary()) if _all_plain(column, kind) else None
    if pa.types.is_decimal(given) and not (given.scale == SCALE and kind.modifier < 0):
        told = column.cast(pa.large_string())
        plain = pc.any(pc.match_substring(told, "E"), min_count=0).as_py() is not True  # Arrow writes 0.0000001 as 1E-7
        return told.cast(pa.large_binary()) if plain else None
    if kind.name == "timestamp" and pa.types.is_timestamp(given):
        return _without_zeros(column.cast(pa.timestamp("us")))
    if kind.name == "time" and pa.types.is_time64(given):
        return _without_zeros(column.cast(pa.time64("us")))
    if kind.name == "date" and pa.types.is_date(given):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    return None


def _all_plain(column: pa.Array, kind: WireType) -> bool:
    """Whether neither PostgreSQL nor Arrow writes any of these floats with an exponent."""
    size = pc.abs(column)
    beyond = pc.or_(pc.less(size, 1e-4), pc.greater_equal(size, min(_EXPONENT_FROM[kind.name], 1e9)))
    odd = pc.or_(pc.and_(beyond, pc.not_equal(size, 0.0)), pc.invert(pc.is_finite(size)))
    return pc.any(odd, min_count=0).as_py() is not True


def _without_zeros(times: pa.Array) -> pa.Array:
    """Times as text: the fraction of a second without the zeros at its end."""
    return pc.utf8_rtrim(pc.utf8_rtrim(times.cast(pa.large_string()), "0"), ".").cast(pa.large_binary())


def _binary(column: pa.Array, kind: WireType) -> pa.Array | None:
    given = column.type
    if pa.types.is_string(given) or pa.types.is_large_string(given):
        if kind.name == "uuid":
            return None
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if kind.name == "bool":
        return pc.if_else(column, pa.scalar(b"\x01", pa.large_binary()), pa.scalar(b"\x00", pa.large_binary()))
    if kind.name in _NUMBERS and (pa.types.is_integer(given) or pa.types.is_floating(given)):
        return _numbers(column, _NUMBERS[kind.name])
    if kind.name in ("timestamp", "timestamptz") and pa.types.is_timestamp(given):
        return _numbers(column.cast(pa.timestamp("us", given.tz)).cast(pa.int64()), ">i8", EPOCH_US)
    if kind.name == "date" and pa.types.is_date32(given):
        return _numbers(column.cast(pa.int32()), ">i4", EPOCH_DAYS)
    if kind.name == "time" and pa.types.is_time64(given):
        return _numbers(column.cast(pa.time64("us")).cast(pa.int64()), ">i8")
    return None


def _numbers(column: pa.Array, form: str, less: int = 0) -> pa.Array:
    filled = pc.fill_null(column, 0) if column.null_count else column
    values = filled.to_numpy(zero_copy_only=False)
    if less:
        values = values - less
    made = _fixed(values.astype(form).tobytes(), np.dtype(form).itemsize)
    return pc.if_else(column.is_valid(), made, pa.scalar(None, pa.large_binary())) if column.null_count else made


# ---- value by value


def text_value(value: Any, kind: WireType) -> bytes:
    """One value in PostgreSQL's text format."""
    return written(value, kind).encode()


def written(value: Any, kind: WireType) -> str:
    """The text of one value."""
    if kind.element is not None:
        return "{" + ",".join(_element(v, kind.element) for v in value) + "}"
    if kind.name.endswith("vector"):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, float):
        return _float(value, kind.name)
    if isinstance(value, Decimal):
        return format(_quotient(value) if kind.modifier < 0 else value, "f")
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, dt.datetime):
        return _trimmed(value, " ") if value.tzinfo is None else _zoned(value)
    if isinstance(value, dt.time):
        return _trimmed(value)
    if kind.name == "interval":
        return _interval(*_interval_parts(value))
    if kind.name == "json" and not isinstance(value, str):
        return json.dumps(_jsonable(value))
    return str(value)


def _quotient(value: Decimal) -> Decimal:
    """A numeric quotient without the zeros that it has here and not in PostgreSQL."""
    sign, digits, exponent = value.as_tuple()
    if exponent != -SCALE:
        return value
    end = len(digits)
    while exponent < -16 and end > 1 and digits[end - 1] == 0:
        end, exponent = end - 1, exponent + 1
    return Decimal((sign, digits[:end], exponent))


def _zoned(value: dt.datetime) -> str:
    return _trimmed(value.astimezone(dt.UTC).replace(tzinfo=None), " ") + "+00"


def _trimmed(value: dt.datetime | dt.time, *between: str) -> str:
    text = value.isoformat(*between)
    return text.rstrip("0") if value.microsecond else text


def _float(value: float, name: str) -> str:
    """The shortest digits that are this number, as PostgreSQL lays them out."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    exact = np.float32(value) if name == "float4" else np.float64(value)
    if value == 0 or 1e-4 <= abs(float(exact)) < _EXPONENT_FROM.get(name, 1e15):
        return np.format_float_positional(exact, trim="-")
    return np.format_float_scientific(exact, trim="-", exp_digits=2)


def _element(value: Any, kind: WireType) -> str:
    if value is None:
        return "NULL"
    text = written(value, kind)
    if _BARE.fullmatch(text) and text.upper() != "NULL":
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _interval_parts(value: Any) -> tuple[int, int, int]:
    """Months, days, microseconds."""
    if isinstance(value, dt.timedelta):
        return 0, value.days, value.seconds * 1_000_000 + value.microseconds
    return value.months, value.days, value.nanoseconds // 1_000


def _interval(months: int, days: int, us: int) -> str:
    """As in the style ``postgres``: after a negative part, a positive one has its sign."""
    years = int(months / 12)
    parts: list[str] = []
    negative = False
    for count, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if count:
            parts.append(f"{'+' if negative and count > 0 else ''}{count} {unit}{'' if count == 1 else 's'}")
            negative = count < 0
    if us or not parts:
        seconds, micro = divmod(abs(us), 1_000_000)
        sign = "-" if us < 0 else "+" if negative else ""
        fraction = f".{micro:06d}".rstrip("0") if micro else ""
        parts.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
    return " ".join(parts)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def binary_value(value: Any, kind: WireType) -> bytes:
    """One value in PostgreSQL's binary format."""
    if kind.element is not None:
        return _binary_array(value, kind.element)
    name = kind.name
    if name in _VECTORS:
        return _binary_array(value, named(_VECTORS[name]), lowest=0)
    if name == "bool":
        return b"\x01" if value else b"\x00"
    if name in _NUMBERS:
        return np.array(value, dtype=_NUMBERS[name]).tobytes()
    if name == "numeric":
        return _binary_numeric(_quotient(Decimal(value)) if kind.modifier < 0 else Decimal(value))
    if name == "bytea":
        return bytes(value)
    if name == "uuid":
        return uuid.UUID(str(value)).bytes
    if name == "date":
        return struct.pack(">i", (value - dt.date(2000, 1, 1)).days)
    if name in ("timestamp", "timestamptz"):
        zone = value.tzinfo
        return struct.pack(
            ">q", (value - dt.datetime(2000, 1, 1, tzinfo=zone and dt.UTC)) // dt.timedelta(microseconds=1)
        )
    if name == "time":
        return struct.pack(">q", ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond)
    if name == "interval":
        months, days, us = _interval_parts(value)
        return struct.pack(">qii", us, days, months)
    return text_value(value, kind)


def _binary_array(values: Sequence[Any], element: WireType, lowest: int = 1) -> bytes:
    if not values:
        return struct.pack(">iiI", 0, 0, element.oid)
    parts = [struct.pack(">iiIii", 1, int(None in values), element.oid, len(values), lowest)]
    for value in values:
        if value is None:
            parts.append(struct.pack(">i", -1))
        else:
            data = binary_value(value, element)
            parts += [struct.pack(">i", len(data)), data]
    return b"".join(parts)


def _binary_numeric(value: Decimal) -> bytes:
    """Digits in base 10,000, the weight of the first, sign and scale."""
    if value.is_nan():
        return struct.pack(">hhHh", 0, 0, 0xC000, 0)
    sign, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    number = int("".join(map(str, digits))) * 10 ** max(int(exponent), 0)
    whole, fraction = divmod(number, 10**scale)
    places = -(-scale // 4)
    fraction *= 10 ** (places * 4 - scale)
    groups: list[int] = []
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.insert(0, group)
    weight = len(groups) - 1
    groups += [fraction // 10_000 ** (places - 1 - i) % 10_000 for i in range(places)]
    while groups and not groups[-1]:
        groups.pop()
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    return struct.pack(
        f">hhHh{len(groups)}h", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale, *groups
    )
