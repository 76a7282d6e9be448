"""How DuckDB's types look to a PostgreSQL client, and what a client's parameter types are in DuckDB."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class WireType:
    """A PostgreSQL type: ``size`` in bytes (-1: varies), ``modifier`` as in atttypmod, ``element`` of an array."""

    name: str
    oid: int
    size: int
    modifier: int = -1
    element: WireType | None = None


# name: (oid, size, oid of the array)
NAMED = {
    "bool": (16, 1, 1000),
    "bytea": (17, -1, 1001),
    "char": (18, 1, 1002),
    "name": (19, 64, 1003),
    "int8": (20, 8, 1016),
    "int2": (21, 2, 1005),
    "int4": (23, 4, 1007),
    "regproc": (24, 4, 1008),
    "text": (25, -1, 1009),
    "oid": (26, 4, 1028),
    "json": (114, -1, 199),
    "float4": (700, 4, 1021),
    "float8": (701, 8, 1022),
    "unknown": (705, -2, 0),
    "bpchar": (1042, -1, 1014),
    "varchar": (1043, -1, 1015),
    "date": (1082, 4, 1182),
    "time": (1083, 8, 1183),
    "timestamp": (1114, 8, 1115),
    "timestamptz": (1184, 8, 1185),
    "interval": (1186, 16, 1187),
    "timetz": (1266, 12, 1270),
    "numeric": (1700, -1, 1231),
    "regclass": (2205, 4, 2210),
    "regtype": (2206, 4, 2211),
    "uuid": (2950, 16, 2951),
    "jsonb": (3802, -1, 3807),
}
BY_OID = {oid: name for name, (oid, _, _) in NAMED.items()}
ARRAYS = {array: name for name, (_, _, array) in NAMED.items() if array}

_OF_DUCKDB = {
    "BOOLEAN": "bool",
    "TINYINT": "int2",
    "SMALLINT": "int2",
    "INTEGER": "int4",
    "BIGINT": "int8",
    "UTINYINT": "int2",
    "USMALLINT": "int4",
    "UINTEGER": "int8",
    "UBIGINT": "numeric",
    "HUGEINT": "numeric",
    "UHUGEINT": "numeric",
    "BIGNUM": "numeric",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "VARCHAR": "varchar",
    "BLOB": "bytea",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "INTERVAL": "interval",
    "UUID": "uuid",
    "JSON": "json",
    "NULL": "text",
    '"NULL"': "text",
}

# parameters: PostgreSQL's name -> DuckDB's type to cast to
OF_PARAMETER = {
    "bool": "BOOLEAN",
    "bytea": "BLOB",
    "char": "VARCHAR",
    "name": "VARCHAR",
    "int8": "BIGINT",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "text": "VARCHAR",
    "oid": "BIGINT",
    "json": "VARCHAR",
    "jsonb": "VARCHAR",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bpchar": "VARCHAR",
    "varchar": "VARCHAR",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "uuid": "UUID",
    "regclass": "VARCHAR",
    "regtype": "VARCHAR",
}


def named(name: str, modifier: int = -1) -> WireType:
    """The type called ``name`` by PostgreSQL.

    >>> named("int4").oid
    23
    """
    oid, size, _ = NAMED[name]
    return WireType(name, oid, size, modifier)


# types that only the catalog has, see tidegate.replica.catalog.columns
_OF_CATALOG = {
    "UINTEGER": named("oid"),
    "UINTEGER[]": WireType("_oid", NAMED["oid"][2], -1, -1, named("oid")),
    "SMALLINT[]": WireType("int2vector", 22, -1),
    "UBIGINT[]": WireType("oidvector", 30, -1),
}


@lru_cache(maxsize=1024)
def wire_type(duckdb: str, catalog: bool = False) -> WireType:
    """How a client sees a column of this DuckDB type; structures that PostgreSQL does not have are JSON text.

    ``catalog``: a column of the catalog.

    >>> wire_type("DECIMAL(9,2)").modifier, wire_type("INTEGER[]").oid
    (589830, 1007)
    """
    if catalog and duckdb in _OF_CATALOG:
        return _OF_CATALOG[duckdb]
    if duckdb in _OF_DUCKDB:
        return named(_OF_DUCKDB[duckdb])
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", duckdb):
        return named("numeric", (int(match[1]) << 16 | int(match[2])) + 4)
    if match := re.fullmatch(r"(.*)\[\d*\]", duckdb):
        element = named("text") if match[1] == "VARCHAR" else wire_type(match[1])
        if element.element is None and element.name != "json":
            return WireType(f"_{element.name}", NAMED[element.name][2], -1, element.modifier, element)
        return named("json")
    return named("json" if duckdb.startswith(("STRUCT", "MAP", "UNION", "VARIANT")) else "varchar")


def computed_type(duckdb: str, catalog: bool = False) -> WireType:
    """How a client sees an expression: text has no length, and numeric no scale.

    >>> computed_type("VARCHAR").name, computed_type("DECIMAL(9,2)").modifier
    ('text', -1)
    """
    found = wire_type(duckdb, catalog)
    return named("text") if found.name == "varchar" else replace(found, modifier=-1)


def parameter_cast(oid: int) -> str | None:
    """The DuckDB type a parameter of this type is cast to; None: it keeps the type its value has."""
    if oid in ARRAYS:
        element = OF_PARAMETER.get(ARRAYS[oid])
        return None if element is None else f"{element}[]"
    return OF_PARAMETER.get(BY_OID.get(oid, ""))
