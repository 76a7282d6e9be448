"""Does an existing table fit a stream? Names, types, and columns that need a value; checked before anything is sent.

A column fits when it keeps every value of the stream's type as it is. So INTEGER goes into BIGINT or NUMERIC, VARCHAR into
TEXT, but BIGINT not into SMALLINT (too small), DOUBLE not into NUMERIC (digits get lost), and nothing but text into text:
numbers would be sorted as words. SQLite keeps what its affinities keep: every integer has 64 bits there, times are text,
and a decimal of more than 15 digits is safe only as text.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tidegate.connectors.sql.types import INTERVALS, target_type
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import INTEGER_WIDTHS, ColumnType

Type = sa.types.TypeEngine[Any]

CHECKED = ("postgresql", "sqlite")  # what other databases keep is unknown; a misfit shows when a batch is sent
DIGITS = {24: 6, 53: 15}  # decimal digits that a float of so many bits preserves
UUID_LENGTH = 36
MICROSECONDS = 6


def misfits(relation: Relation, target: sa.Table, dialect: sa.Dialect) -> list[str]:
    """What keeps the table from taking the stream's rows, in words; nothing when it fits."""
    missing = [column for column in relation.column_names if column not in target.columns]
    unfilled = [c.name for c in target.columns if c.name not in relation.index_of and _needs_a_value(c, dialect.name)]
    told = [f"it has no column {', '.join(missing)}, which the stream has"] if missing else []
    told += [f"its {', '.join(unfilled)} is NOT NULL without a default"] if unfilled else []
    present = [column for column in relation.columns if column.name in target.columns]
    return told + [
        _told(column, target.columns[column.name], dialect)
        for column in present
        if not keeps(column.type, target.columns[column.name].type, dialect.name)
    ]


def _told(column: Column, target: sa.Column[Any], dialect: sa.Dialect) -> str:
    wanted = target_type(column.type, dialect.name).compile(dialect)
    there = "without a type" if _is_untyped(target.type) else target.type.compile(dialect)
    return (
        f"its {target.name} is {there}, which does not keep every value of the stream's {column.name} {column.type} "
        f"({wanted} does)"
    )


def _needs_a_value(column: sa.Column[Any], dialect: str) -> bool:
    """Must every inserted row give it a value? SQLite fills in a key that is a single integer."""
    numbered = dialect == "sqlite" and column.primary_key and isinstance(column.type, sa.Integer)
    given = column.nullable or numbered or column.server_default is not None
    return not (given or column.identity is not None or column.computed is not None)


def keeps(kind: ColumnType, target: Type, dialect: str) -> bool:
    """Does a column of type ``target`` keep every value of ``kind``? True as well when that is unknown."""
    while isinstance(target, postgresql.DOMAIN):
        target = target.data_type
    if dialect not in CHECKED:
        return True
    if _is_untyped(target):
        return dialect != "sqlite" or (kind.family in _UNTYPED and kind.sql != "UBIGINT")
    if not isinstance(target, _KNOWN):
        return True
    if dialect == "sqlite" and kind.family in ("timestamp", "date", "time") and isinstance(target, sa.String):
        return True
    if kind.family in ("integer", "float", "decimal"):
        return _keeps_number(kind, target, dialect)
    return _keeps_other(kind, target, dialect)


def _is_untyped(target: Type) -> bool:
    return isinstance(target, sa.types.NullType)


_UNTYPED = {"integer", "float", "text", "boolean", "blob", "json", "list", "uuid", "interval"}
_KNOWN = (
    sa.Integer, sa.Numeric, sa.Float, sa.String, sa.Boolean, sa.DateTime, sa.Date, sa.Time, sa.LargeBinary, sa.Uuid, sa.JSON,
    sa.ARRAY, *INTERVALS,
)  # fmt: skip


def _keeps_other(kind: ColumnType, target: Type, dialect: str) -> bool:
    match kind.family:
        case "text":
            return isinstance(target, sa.String)
        case "boolean":
            return isinstance(target, sa.Boolean) or (dialect == "sqlite" and isinstance(target, sa.Integer))
        case "timestamp":
            return isinstance(target, sa.DateTime) and _is_fine(target)
        case "date":
            return isinstance(target, (sa.Date, sa.DateTime)) and not getattr(target, "timezone", False)
        case "time":
            return isinstance(target, sa.Time) and not target.timezone and _is_fine(target)
        case "interval":
            whole = isinstance(target, INTERVALS) and getattr(target, "fields", None) is None and _is_fine(target)
            return whole or (
                isinstance(target, sa.Integer) and _largest(target, dialect) >= INTEGER_WIDTHS["BIGINT"][1]
            )
        case "blob":
            return isinstance(target, sa.LargeBinary)
        case "uuid":
            short = isinstance(target, sa.String) and (target.length or UUID_LENGTH) < UUID_LENGTH
            return isinstance(target, (sa.Uuid, sa.String)) and not short
        case "list" if isinstance(target, sa.ARRAY):
            assert kind.element is not None
            return keeps(kind.element, target.item_type, dialect)
    return isinstance(target, (sa.JSON, sa.String))


def _is_fine(target: Type) -> bool:
    """Down to the microsecond."""
    precision = getattr(target, "precision", None)
    return precision is None or precision >= MICROSECONDS


def _keeps_number(kind: ColumnType, target: Type, dialect: str) -> bool:
    lite = dialect == "sqlite"
    if isinstance(target, sa.String):  # the only place where SQLite keeps all digits of these
        return lite and (kind.family == "decimal" or kind.sql == "UBIGINT")
    if kind.family == "float":
        exact = isinstance(target, sa.Float) and (kind.sql == "FLOAT" or _bits(target, dialect) == 53)
        return exact or (lite and isinstance(target, sa.Numeric))
    whole, after = _digits(kind)
    if isinstance(target, sa.Integer):
        return after == 0 and _range(kind) <= _largest(target, dialect)
    if isinstance(target, sa.Float) or (lite and isinstance(target, sa.Numeric)):
        bits = _bits(target, dialect)
        return _range(kind) <= 2**bits if kind.family == "integer" else whole + after <= DIGITS[bits]
    if not isinstance(target, sa.Numeric):
        return False
    scale = target.scale or 0
    return target.precision is None or (target.precision - scale >= whole and scale >= after)


def _digits(kind: ColumnType) -> tuple[int, int]:
    """Of a decimal or an integer: before and after the point."""
    if kind.family == "integer":
        return len(str(kind.high)), 0
    precision, scale = map(int, re.findall(r"\d+", kind.sql))
    return precision - scale, scale


def _range(kind: ColumnType) -> int:
    """The largest number that it may hold."""
    return kind.high if kind.family == "integer" else int(10 ** _digits(kind)[0]) - 1


def _largest(target: Type, dialect: str) -> int:
    if dialect == "sqlite" or isinstance(target, sa.BigInteger):
        return INTEGER_WIDTHS["BIGINT"][1]
    return INTEGER_WIDTHS["SMALLINT" if isinstance(target, sa.SmallInteger) else "INTEGER"][1]


def _bits(target: Type, dialect: str) -> int:
    """Of the numbers that a column of floats keeps exactly; SQLite knows only doubles."""
    single = isinstance(target, sa.REAL) or 0 < (getattr(target, "precision", None) or 53) <= 24
    return 24 if single and dialect != "sqlite" else 53
