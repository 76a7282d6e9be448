"""A client's parameters: bytes in, Python values out, and their types when the client does not give any."""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from tidegate.errors import QueryFailed
from tidegate.replica import text
from tidegate.replica.catalog.rewrite import plain_types
from tidegate.replica.mirror import Mirror
from tidegate.replica.wire.encode import EPOCH_US
from tidegate.replica.wire.types import ARRAYS, BY_OID, NAMED, parameter_cast, wire_type

TEXT = NAMED["text"][0]
_CAST = re.compile(r"\$(\d+)\s*::\s*(?:pg_catalog\s*\.\s*)?(\w+)\s*(\[\s*\])?")
_STRUCTS = {"int2": ">h", "int4": ">i", "int8": ">q", "oid": ">I", "float4": ">f", "float8": ">d", "bool": ">?"}
GUESSED = 20_000  # characters; in longer texts sqlglot would take too long to infer types
_OPERATORS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Add, exp.Sub, exp.Mul, exp.Div)


def decoded(data: bytes | None, oid: int, binary: bool) -> Any:
    """The value of one parameter."""
    if data is None:
        return None
    try:
        return _binary(data, oid) if binary else _text(data.decode(), oid)
    except (ValueError, struct.error, InvalidOperation, OverflowError, IndexError):
        kind = BY_OID.get(oid) or f"type {oid}"
        raise QueryFailed(f"a parameter is not a valid {kind}: {data[:50]!r}", sqlstate="22P02") from None


def _text(value: str, oid: int) -> Any:
    if oid in ARRAYS:
        return _array_text(value, NAMED[ARRAYS[oid]][0])
    name = BY_OID.get(oid)
    if name == "numeric":
        return Decimal(value)
    if name == "bytea":
        return bytes.fromhex(value[2:]) if value.startswith("\\x") else value.encode()
    return value  # cast by DuckDB, see typed()


def _array_text(value: str, oid: int) -> list[Any]:
    """``{1,NULL,"a b"}``: one dimension."""
    if not (value.startswith("{") and value.endswith("}")):
        raise ValueError
    found: list[Any] = []
    item, quoted, inside, place = "", False, False, 1
    while place < len(value):
        sign = value[place]
        if inside and sign == "\\":
            place += 1
            item += value[place]
        elif sign == '"':
            inside, quoted = not inside, True
        elif not inside and (sign == "," or place == len(value) - 1):
            if item or quoted:
                found.append(None if item.upper() == "NULL" and not quoted else _text(item, oid))
            item, quoted = "", False
        elif not inside and sign == "{":
            raise QueryFailed("arrays of arrays can't be parameters", sqlstate="0A000")
        else:
            item += sign
        place += 1
    return found


def _binary(data: bytes, oid: int) -> Any:
    name = BY_OID.get(oid)
    if oid in ARRAYS:
        return _array_binary(data)
    if name in _STRUCTS:
        return struct.unpack(_STRUCTS[name], data)[0]
    if name == "bytea":
        return data
    if name == "uuid":
        return str(uuid.UUID(bytes=data))
    if name == "date":
        return dt.date(2000, 1, 1) + dt.timedelta(days=struct.unpack(">i", data)[0])
    if name in ("timestamp", "timestamptz"):
        at = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=struct.unpack(">q", data)[0] + EPOCH_US)
        return at.replace(tzinfo=dt.UTC) if name == "timestamptz" else at
    if name == "time":
        return (dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=struct.unpack(">q", data)[0])).time()
    if name == "interval":
        us, days, months = struct.unpack(">qii", data)
        return f"{months} months {days} days {us} microseconds"
    if name == "numeric":
        return _numeric(data)
    if name == "jsonb":
        return data[1:].decode()
    if name is None:
        raise QueryFailed(f"parameters of type {oid} are not supported here; send them as text", sqlstate="0A000")
    return data.decode()


def _array_binary(data: bytes) -> list[Any]:
    dimensions, _, oid = struct.unpack_from(">iiI", data)
    if dimensions == 0:
        return []
    if dimensions > 1:
        raise QueryFailed("arrays of arrays can't be parameters", sqlstate="0A000")
    found: list[Any] = []
    count, place = struct.unpack_from(">i", data, 12)[0], 20
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, place)
        place += 4
        if size < 0:
            found.append(None)
        else:
            found.append(_binary(data[place : place + size], oid))
            place += size
    return found


def _numeric(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">hhHh", data)
    if sign == 0xC000:
        raise ValueError
    groups = struct.unpack_from(f">{count}h", data, 8)
    value = sum((Decimal(g).scaleb(4 * (weight - i)) for i, g in enumerate(groups)), Decimal(0))
    value = value.quantize(Decimal(1).scaleb(-scale)) if scale >= 0 else value
    return -value if sign == 0x4000 else value


def typed(sql: str, oids: list[int]) -> str:
    """The statement with every parameter cast to its type, so that DuckDB need not guess."""

    def written(number: int) -> str:
        cast = parameter_cast(oids[number - 1]) if 0 < number <= len(oids) else None
        return f"CAST(${number} AS {cast})" if cast else f"${number}"

    return text.with_parameters(sql, written)


def inferred(sql: str, given: list[int], mirror: Mirror) -> list[int]:
    """Types for the parameters a client gave none for: that of the column they are compared with, otherwise text."""
    count = max(text.parameters(sql), len(given))
    if count > 65_535:
        raise QueryFailed(f"${count} is too high for the number of a parameter", sqlstate="54000")
    oids = [*given, *[0] * (count - len(given))]
    if 0 in oids:
        guessed = _guessed(sql, mirror)
        oids = [oid or guessed.get(i + 1, TEXT) for i, oid in enumerate(oids)]
    return oids


def _guessed(sql: str, mirror: Mirror) -> dict[int, int]:
    if len(sql) > GUESSED:
        return _cast_types(sql)
    tables = [*mirror.tables.values(), *mirror.plain.values()]
    schema: dict[str, object] = {table.name: {column[0]: column[1] for column in table.columns} for table in tables}
    try:
        tree = sqlglot.parse_one(text.hide_parameters(plain_types(sql)), dialect="postgres")
        tree = annotate_types(
            qualify(tree, schema=schema, dialect="duckdb", validate_qualify_columns=False, quote_identifiers=False),
            schema=schema,
            dialect="duckdb",
        )
    except Exception:  # sqlglot's optimizer may raise anything; this is only a guess
        return _cast_types(sql)
    found = _cast_types(sql)
    for called in tree.find_all(exp.Anonymous):
        if str(called.this).lower() == text.STAND_IN:
            number = int(called.expressions[0].name)
            if number not in found and (oid := _oid_beside(called)):
                found[number] = oid
    return found


def _cast_types(sql: str) -> dict[int, int]:
    """``$1::int4`` and ``$1::oid[]``: types written in the text, under PostgreSQL's own names."""
    found: dict[int, int] = {}
    for number, name, array in _CAST.findall(sql):
        if name.lower() in NAMED:
            found[int(number)] = NAMED[name.lower()][2 if array else 0]
    return found


def _oid_beside(parameter: exp.Expr) -> int:
    """The type of a cast around the parameter, of what it is compared with, or of LIMIT and OFFSET."""
    node, array = parameter, False
    while isinstance(node.parent, (exp.Paren, exp.Any)):
        node = node.parent
        array = array or isinstance(node, exp.Any)
    parent = node.parent
    if isinstance(parent, exp.Cast):
        return _oid(parent.to)
    if isinstance(parent, (exp.Limit, exp.Offset)):
        return NAMED["int8"][0]
    others = [parent.this] if isinstance(parent, (exp.In, exp.Between)) else []
    if isinstance(parent, _OPERATORS):
        others = [parent.left, parent.right]
    for other in others:
        if other is not node and other.type is not None and (oid := _oid(other.type)):
            return NAMED[BY_OID[oid]][2] if array and oid in BY_OID else oid
    return 0


def _oid(kind: exp.DataType | None) -> int:
    if kind is None or kind.is_type("unknown"):
        return 0
    called = kind.sql(dialect="postgres").lower().removeprefix("pg_catalog.")
    if called in NAMED:
        return NAMED[called][0]
    told = kind.sql(dialect="duckdb").upper().replace("TEXT", "VARCHAR").replace("INT[]", "INTEGER[]")
    return wire_type({"INT": "INTEGER", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE"}.get(told, told)).oid
