"""What a source or a schema says its fields hold, and which columns can take that: checked at the start.

Types of all systems are compared as families, those of :mod:`tidegate.storage.types` (``integer``, ``text``, …) and
``object``, a JSON object. A field is described by its type in words and the families its values may be of; None:
unknown. Only what can *never* fit is refused: a single value that does not fit is a rejected record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate.storage.schema import Relation

Families = frozenset[str] | None
Told = tuple[str, Families]  # a type's name, and the families of its values
Taken = Mapping[str, frozenset[str]]  # family of a value -> families of columns that take such values


def _sets(**told: str) -> dict[str, frozenset[str]]:
    return {family: frozenset(columns.split()) for family, columns in told.items()}


TAKEN = _sets(
    integer="integer float decimal interval",
    float="float decimal interval",
    decimal="integer float decimal",
    text="text decimal timestamp date time interval blob uuid json",
    boolean="boolean",
    timestamp="timestamp",
    date="date",
    time="time",
    interval="interval",
    blob="blob",
    uuid="uuid",
    list="list json",
    object="json",
)  # by the border, and by tidegate.wire for text
CAST = {
    **TAKEN,
    **_sets(
        float="integer float decimal interval",
        text="integer float text decimal timestamp date time interval blob uuid json",
        timestamp="timestamp date",
        date="timestamp date",
    ),
}  # of Arrow's columns, which are cast
PRINTED = _sets(
    integer="integer float decimal boolean text json",
    float="integer float decimal text json",
    decimal="integer float decimal text json",
    text="integer float decimal boolean timestamp date time interval blob uuid list text json",
    boolean="boolean text",
    timestamp="timestamp text",
    date="date timestamp text",
    time="time text",
    interval="interval text",
    blob="blob text",
    uuid="uuid text",
    list="text",
)  # what PostgreSQL prints of its values, in changes
AS_AVRO = _sets(
    integer="integer",
    float="float",
    decimal="decimal",
    text="text",
    boolean="boolean",
    timestamp="timestamp",
    date="date",
    time="time",
    interval="",
    blob="blob",
    uuid="uuid",
    json="text",
    list="list",
)  # what a column's values are in a record, for a sink
AS_JSON = {
    **AS_AVRO,
    **_sets(decimal="text", timestamp="text", date="text", time="text", interval="text", blob="text", uuid="text"),
}
INT, LONG = 2**31 - 1, 2**63 - 1


def unfit(
    relation: Relation, field_of: Mapping[str, str], found: Mapping[str, Told], taken: Taken = TAKEN
) -> list[str]:
    """The fields that their columns can never take, in words."""
    told = []
    for column in relation.columns:
        shown, families = found.get(field_of[column.name], ("", None))
        if families is not None and not any(column.type.family in taken.get(family, ()) for family in families):
            told.append(f"{field_of[column.name]!r} is {shown}, which {column.name} {column.type} can't take")
    return told


def unwritable(relation: Relation, found: Mapping[str, Told], written: Taken) -> list[str]:
    """The columns whose values can't be what the schema says their fields hold, in words."""
    told = []
    for column in relation.columns:
        shown, families = found.get(column.name, ("", None))
        wide = column.type.family == "integer" and column.type.high > {"int": INT, "long": LONG}.get(
            shown, column.type.high
        )
        if wide or (families is not None and not families & written[column.type.family]):
            told.append(
                f"its field {column.name!r} is {shown}, which can't hold the stream's {column.name} {column.type}"
            )
    return told


def known(shown: str, *families: str) -> Told:
    return shown, frozenset(families) or None


# ---- types of other systems


def arrow_told(kind: Any) -> Told:
    """Of a column of a Parquet file."""
    shown = str(kind)
    if pa.types.is_dictionary(kind):
        return shown, arrow_told(kind.value_type)[1]
    return next((known(shown, family) for family, is_it in _ARROW.items() if is_it(kind)), known(shown))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


_ARROW: dict[str, Any] = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "text": _is_text,
    "boolean": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "interval": pa.types.is_duration,
    "blob": _is_bytes,
    "list": lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind),
    "object": lambda kind: pa.types.is_struct(kind) or pa.types.is_map(kind),
}

_POSTGRES = {
    "integer": "int2 int4 int8 oid",
    "float": "float4 float8",
    "decimal": "numeric",
    "text": "text varchar bpchar name",
    "boolean": "bool",
    "timestamp": "timestamp timestamptz",
    "date": "date",
    "time": "time",
    "interval": "interval",
    "blob": "bytea",
    "uuid": "uuid",
}
_POSTGRES_FAMILY = {name: family for family, names in _POSTGRES.items() for name in names.split()}


def postgres_told(name: str) -> Told:
    """By its name in pg_type; arrays begin with an underscore there, and end with brackets elsewhere."""
    bare = name.partition("(")[0]
    if bare.startswith("_") or name.endswith("[]"):
        return known(name, "list")
    family = _POSTGRES_FAMILY.get(bare)
    return known(name, *([family] if family else ()))


_AVRO = {
    "int": "integer", "long": "integer", "float": "float", "double": "float", "string": "text", "enum": "text",
    "boolean": "boolean", "bytes": "blob", "fixed": "blob", "array": "list", "map": "object", "record": "object",
}  # fmt: skip
_AVRO_LOGICAL = {
    "date": "date", "time-millis": "time", "time-micros": "time", "decimal": "decimal", "uuid": "uuid",
    **{f"{local}timestamp-{unit}": "timestamp" for local in ("", "local-") for unit in ("millis", "micros")},
}  # fmt: skip


def avro_told(kind: Any) -> Told:
    """Of a field of an Avro record; a union is of any of its types."""
    if isinstance(kind, list):
        parts = [avro_told(part) for part in kind if part != "null"]
        families = [part[1] for part in parts]
        joined = None if None in families else frozenset().union(*(f for f in families if f is not None))
        return " or ".join(part[0] for part in parts), joined
    if not isinstance(kind, dict):
        return known(str(kind), *([_AVRO[kind]] if kind in _AVRO else ()))
    logical = kind.get("logicalType")
    if logical in _AVRO_LOGICAL:
        return known(str(logical), _AVRO_LOGICAL[logical])
    return avro_told(kind.get("type"))


_JSON = {
    "integer": ("integer",), "number": ("integer", "float"), "string": ("text",), "boolean": ("boolean",),
    "array": ("list",), "object": ("object",), "null": (),
}  # fmt: skip


def json_told(schema: Any) -> Told:
    """Of a property in a JSON Schema."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(kind in _JSON for kind in kinds):
        return known("anything")
    return known(" or ".join(kinds), *(family for kind in kinds for family in _JSON[kind]))
