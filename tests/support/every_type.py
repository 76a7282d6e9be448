"""A row with a value of every column type."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

COLUMNS = (
    "small SMALLINT, n INTEGER NOT NULL, big BIGINT, huge UBIGINT, single FLOAT, x DOUBLE, price "
    "DECIMAL(9,2), word VARCHAR, yes BOOLEAN, moment TIMESTAMP, day DATE, hour TIME, lasting INTERVAL, raw "
    "BLOB, id UUID, doc JSON, many INTEGER[]"
)
ROW = (
    -3, 4, 2**62, 2**64 - 1, 0.5, 0.1, Decimal("12345.60"),
    'says "hej", å', True, dt.datetime(2026, 1, 2, 3, 4, 5, 678), dt.date(2026, 1, 2), dt.time(3, 4, 5),
    dt.timedelta(days=1, microseconds=7), b"\x00\xff", uuid.UUID(int=7), '{"a": [1, 2]}',
    (1, None, 3),
)  # fmt: skip
NULLS = (None, 5, *[None] * 15)
