"""Values that a careless or hostile client may send, for every type of column."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tidegate.storage.types import INTEGER_WIDTHS

SIMPLE = [
    *INTEGER_WIDTHS,
    "FLOAT",
    "DOUBLE",
    "VARCHAR",
    "BOOLEAN",
    "TIMESTAMP",
    "DATE",
    "TIME",
    "INTERVAL",
    "BLOB",
    "UUID",
]
SIMPLE += ["JSON", "DECIMAL(38,10)", "DECIMAL(38,38)", "DECIMAL(4,1)"]
LISTS = [f"{kind}[]" for kind in SIMPLE]
KINDS = [*SIMPLE, *LISTS, "UUID[][]", "INTEGER[][]", "JSON[][]"]


class Text(str):
    def __str__(self) -> str:
        return "another text"


class Number(int): ...


class Real(float): ...


class Bytes(bytes): ...


class Day(dt.date): ...


class Moment(dt.datetime): ...


class Span(dt.timedelta): ...


class Identity(uuid.UUID): ...


class Exact(Decimal): ...


class Pair(tuple[Any, ...]): ...


class Colour(str, enum.Enum):  # noqa: UP042  # its str() is not the text that it is
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


DEEP = ["[" * depth + "]" * depth for depth in (128, 129, 5_000, 100_000)]

# one line for each way in which something was, or could have been, accepted and not given back as it was
POOL: list[Any] = [
    *(
        '"\\ud800"',
        '"\\ude00\\ud83d"',
        '"\\ud83d\\ude00"',
        '{"\\uD800":1}',
        '"\\\\ud800"',
        '"\\\\\\ud800"',
        '"\\u0000"',
    ),
    *(
        '{"a":"\\ud800","a":1}',
        "NaN",
        "[-Infinity]",
        "1e999",
        "1" * 400,
        "1" * 5_000,
        '{"a":1,"a":2}',
        *DEEP,
        " 1 ",
        "{",
    ),
    *(
        {"a": "\ud800"},
        {"a": math.nan},
        {"a": np.float64(1)},
        {1: (2, 3)},
        [1, [2]],
        {"a": Text("x")},
        '"\x7f"',
        '"\x00"',
    ),
    *(dt.timedelta.max, dt.timedelta.min, dt.timedelta(days=106_751_990), dt.timedelta(days=-106_751_990)),
    *(dt.timedelta(days=106_751_991), dt.timedelta(microseconds=2**63 - 1), dt.timedelta(microseconds=-(2**63))),
    *(Span(1), pd.Timedelta("1us"), pd.NaT, np.timedelta64(2**62, "s"), np.timedelta64("NaT"), np.timedelta64(5, "ms")),
    *("", "\x00", "a\x00b", "\ud800", "\U0010ffff", Text("x"), np.str_("x"), Colour.RED, "x" * 100_000),
    *(b"", b"\x00\xff", Bytes(b"x"), bytearray(b"x"), memoryview(b"xy"), np.bytes_(b"x")),
    *(0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**38 - 1, 10**38, 10**5_000, Number(7), Level.HIGH),
    *(True, np.bool_(False), np.int8(-3), np.int64(2**40), np.uint64(2**64 - 1)),
    *(0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e39, 3.4028235677973366e38, 1.7e308, Real(2.5)),
    *(np.float64(1.5), np.float32(1.1), np.float16(0.1), np.longdouble(1) / 3, np.float64("nan")),
    *(
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("-0"),
        Decimal("-0.04"),
        Exact("1.5"),
        Decimal("1E+400"),
    ),
    *(Decimal("1E+999999999"), Decimal("1E-999999999"), Decimal("9" * 28 + "." + "9" * 10), Decimal("0." + "9" * 39)),
    *(
        dt.datetime.max,
        dt.datetime.min,
        dt.datetime(2026, 10, 25, 2, 30, fold=1),
        Moment(2026, 1, 2),
        pd.Timestamp("2026"),
    ),
    *(dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    *(
        np.datetime64("2026-01-01T00:00:00.000000001"),
        np.datetime64("NaT"),
        np.datetime64("20000"),
        np.datetime64("-9000"),
    ),
    *(dt.date.max, dt.date.min, Day(2026, 1, 2)),
    *(dt.time.max, dt.time.min, dt.time(1, tzinfo=dt.UTC), dt.time(1, fold=1)),
    *(uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), Identity(int=5), str(uuid.UUID(int=9))),
    *(
        [],
        [None],
        [[]],
        [[None], None],
        np.array([1, 2]),
        np.array([[1]]),
        np.array(["a"]),
        np.array(["2026"], "M8[ns]"),
    ),
    *(Pair((1, 2)), object(), ..., set(), {"a": 1}.keys()),
]

_PROPER: dict[str, st.SearchStrategy[Any]] = {
    "FLOAT": st.floats(width=32),
    "DOUBLE": st.floats(),
    "VARCHAR": st.text(st.characters(), max_size=20),
    "BOOLEAN": st.booleans(),
    "TIMESTAMP": st.datetimes(timezones=st.none() | st.just(dt.UTC)),
    "DATE": st.dates(),
    "TIME": st.times(),
    "INTERVAL": st.timedeltas(),
    "BLOB": st.binary(max_size=20),
    "UUID": st.uuids(),
    "JSON": st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: value if isinstance(value, (dict, list)) else json.dumps(value)),
}


def values(kind: str) -> st.SearchStrategy[Any]:
    """Values for a column of this type, most of them not meant for it."""
    return st.sampled_from(POOL) | proper(kind)


def proper(kind: str) -> st.SearchStrategy[Any]:
    if kind.endswith("[]"):
        return st.lists(st.none() | values(kind[:-2]), max_size=3)
    if kind.startswith("DECIMAL"):
        return st.decimals(allow_nan=False, allow_infinity=False) | st.integers(-(10**5), 10**5)
    return _PROPER.get(kind, st.integers(-(2**65), 2**65))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, and looking the same: what two runs must not tell apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)
