"""The catalog's contents: what PostgreSQL clients find when they look for tables, columns, types and keys.

Object numbers are assigned so that the schema of a relation follows from its number: below ``SYSTEM_FROM`` it is in a
schema that is searched without being named (public, pg_catalog), from there on in ``tidegate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.replica.catalog.columns import INFORMATION_SCHEMA, PG_CATALOG, relations
from tidegate.replica.catalog.functions import FORMATTED, declare_functions
from tidegate.replica.mirror import Mirror, Table
from tidegate.replica.wire.settings import CHANGEABLE, FIXED
from tidegate.replica.wire.types import NAMED, WireType, wire_type
from tidegate.storage.ddl import quote

PG, INFORMATION = "tg_pg", "tg_information"
OWNER, DATABASE = 10, 16_384
CATALOG_SPACE, PUBLIC, INFORMATION_SPACE, SYSTEM_SPACE = 11, 2200, 13_000, 16_385
TABLES_FROM, SYSTEM_FROM = 20_000, 1_000_000
HEAP, BTREE = 2, 403
KNOWN_RELATIONS = {
    "pg_type": 1247,
    "pg_attribute": 1249,
    "pg_proc": 1255,
    "pg_class": 1259,
    "pg_authid": 1260,
    "pg_database": 1262,
    "pg_am": 2601,
    "pg_attrdef": 2604,
    "pg_constraint": 2606,
    "pg_description": 2609,
    "pg_index": 2610,
    "pg_namespace": 2615,
    "pg_trigger": 2620,
    "pg_extension": 3079,
}
_CATEGORY = {
    **dict.fromkeys(
        ("int2", "int4", "int8", "float4", "float8", "numeric", "oid", "regclass", "regtype", "regproc"), "N"
    ),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char"), "S"),
    **dict.fromkeys(("date", "time", "timetz", "timestamp", "timestamptz"), "D"),
    "bool": "B",
    "interval": "T",
}

Row = dict[str, Any]


def declare_catalog(mirror: Mirror) -> None:
    """Create the catalog in the replica's database. Tables do not change while it runs, so neither does the catalog."""
    contents = Contents(mirror)
    for schema, spec, given in (
        (PG, PG_CATALOG, contents.pg_catalog()),
        (INFORMATION, INFORMATION_SCHEMA, contents.information_schema()),
    ):
        mirror.connection.execute(f"CREATE SCHEMA {schema}")
        for name, columns in relations(spec).items():
            ddl = ", ".join(f"{quote(column)} {kind}" for column, kind in columns.items())
            mirror.connection.execute(f"CREATE TABLE {schema}.{name} ({ddl})")
            rows = given.get(name, [])
            if rows:
                marks = ", ".join("?" * len(columns))
                values = [[row.get(column) for column in columns] for row in rows]
                mirror.connection.executemany(f"INSERT INTO {schema}.{name} VALUES ({marks})", values)
    mirror.connection.execute(f"CREATE TABLE {PG}.tg_definitions (oid INTEGER, definition VARCHAR)")
    mirror.connection.executemany(f"INSERT INTO {PG}.tg_definitions VALUES (?, ?)", contents.definitions or [[0, ""]])
    declare_functions(mirror.connection, PG, INFORMATION)


class Contents:
    """The rows of the catalog, from the declared tables."""

    def __init__(self, mirror: Mirror) -> None:
        self.definitions: list[list[Any]] = []  # of indexes and constraints, by number
        self._relations: list[tuple[int, int, str, str, Table]] = []  # oid, schema's oid, schema, kind, table
        for i, table in enumerate(mirror.tables.values()):
            self._relations.append((TABLES_FROM + i * 100, PUBLIC, "public", "r", table))
        self._queries = mirror.definitions
        for i, view in enumerate(mirror.plain.values(), len(mirror.tables)):
            self._relations.append((TABLES_FROM + i * 100, PUBLIC, "public", "v", view))
            self.definitions.append([TABLES_FROM + i * 100, mirror.definitions[view.name]])
        for i, view in enumerate(mirror.views.values()):
            self._relations.append((SYSTEM_FROM + i * 100, SYSTEM_SPACE, "tidegate", "v", view))

    # ---- pg_catalog

    def pg_catalog(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {
            "pg_namespace": [
                {"oid": oid, "nspname": name, "nspowner": OWNER}
                for oid, name in (
                    (CATALOG_SPACE, "pg_catalog"),
                    (PUBLIC, "public"),
                    (INFORMATION_SPACE, "information_schema"),
                    (SYSTEM_SPACE, "tidegate"),
                )
            ],
            "pg_database": [_database()],
            "pg_roles": [_role()],
            "pg_user": [{"usename": "tidegate", "usesysid": OWNER, "usecreatedb": False, "usesuper": False}],
            "pg_am": [
                {"oid": HEAP, "amname": "heap", "amhandler": "heap_tableam_handler", "amtype": "t"},
                {"oid": BTREE, "amname": "btree", "amhandler": "bthandler", "amtype": "i"},
            ],
            "pg_tablespace": [{"oid": 1663, "spcname": "pg_default", "spcowner": OWNER}],
            "pg_collation": [{"oid": 100, "collname": "default", "collnamespace": CATALOG_SPACE, "collprovider": "d"}],
            "pg_settings": [
                {"name": name, "setting": value, "context": "user", "vartype": "string", "source": "default"}
                for name, value in sorted({**CHANGEABLE, **FIXED}.items())
            ],
            "pg_type": list(self._types()),
            "pg_class": [_class(oid, name, CATALOG_SPACE, "r", 0) for name, oid in KNOWN_RELATIONS.items()],
            "pg_attribute": [],
            "pg_attrdef": [],
            "pg_index": [],
            "pg_constraint": [],
            "pg_tables": [],
            "pg_views": [],
            "pg_indexes": [],
        }
        for oid, space, schema, kind, table in self._relations:
            self._add_relation(found, oid, space, schema, kind, table)
        return found

    def _add_relation(
        self, found: dict[str, list[Row]], oid: int, space: int, schema: str, kind: str, table: Table
    ) -> None:
        indexes = list(_indexes(table))
        found["pg_class"].append(
            {**_class(oid, table.name, space, kind, len(table.columns)), "relhasindex": bool(indexes)}
        )
        for number, (name, sql, nullable, default) in enumerate(table.columns, 1):
            found["pg_attribute"].append(_attribute(oid, number, name, wire_type(sql), nullable, default is not None))
            if default is not None:
                found["pg_attrdef"].append({"oid": oid + number, "adrelid": oid, "adnum": number, "adbin": default})
        for place, (name, columns, unique, primary) in enumerate(indexes, 1):
            self._add_index(found, oid, oid + 50 + place, space, table, name, columns, unique, primary)
        if kind == "r":
            found["pg_tables"].append(
                {"schemaname": schema, "tablename": table.name, "tableowner": "tidegate", "hasindexes": bool(indexes)}
            )
        else:
            found["pg_views"].append(
                {
                    "schemaname": schema,
                    "viewname": table.name,
                    "viewowner": "tidegate",
                    "definition": self._queries.get(table.name),
                }
            )

    def _add_index(
        self,
        found: dict[str, list[Row]],
        table_oid: int,
        oid: int,
        space: int,
        table: Table,
        name: str,
        columns: tuple[str, ...],
        unique: bool,
        primary: bool,
    ) -> None:
        places = [next(i for i, c in enumerate(table.columns, 1) if c[0] == column) for column in columns]
        found["pg_class"].append({**_class(oid, name, space, "i", len(columns)), "relam": BTREE})
        flags = dict.fromkeys(("indimmediate", "indisvalid", "indisready", "indislive"), True)
        off = dict.fromkeys(
            ("indnullsnotdistinct", "indisexclusion", "indisclustered", "indcheckxmin", "indisreplident"), False
        )
        zeros = [0] * len(columns)
        found["pg_index"].append(
            {
                **{"indexrelid": oid, "indrelid": table_oid, "indnatts": len(columns), "indnkeyatts": len(columns)},
                **{"indisunique": unique, "indisprimary": primary, "indkey": places},
                **{"indcollation": zeros, "indclass": zeros, "indoption": zeros, **flags, **off},
            }
        )
        listed = ", ".join(_identifier(column) for column in columns)
        made = f"CREATE {'UNIQUE ' if unique else ''}INDEX {_identifier(name)} ON public.{_identifier(table.name)}"
        self.definitions.append([oid, f"{made} USING btree ({listed})"])
        found["pg_indexes"].append(
            {"schemaname": "public", "tablename": table.name, "indexname": name, "indexdef": self.definitions[-1][1]}
        )
        if unique:
            constraint = oid + 10
            self.definitions.append([constraint, f"{'PRIMARY KEY' if primary else 'UNIQUE'} ({listed})"])
            found["pg_constraint"].append(
                {
                    **{"oid": constraint, "conname": name, "connamespace": space, "contype": "p" if primary else "u"},
                    **{"condeferrable": False, "condeferred": False, "convalidated": True, "conrelid": table_oid},
                    **{"contypid": 0, "conindid": oid, "conparentid": 0, "confrelid": 0, "confupdtype": " "},
                    **{"confdeltype": " ", "confmatchtype": " ", "conislocal": True, "coninhcount": 0},
                    **{"connoinherit": True, "conkey": places},
                }
            )

    def _types(self) -> Iterator[Row]:
        for name, (oid, size, array) in NAMED.items():
            yield _type(oid, name, size, _CATEGORY.get(name, "U"), 0, array)
            if array:
                yield _type(array, f"_{name}", -1, "A", oid, 0)

    # ---- information_schema

    def information_schema(self) -> dict[str, list[Row]]:
        schemas = ("information_schema", "pg_catalog", "public", "tidegate")
        found: dict[str, list[Row]] = {
            "schemata": [{"catalog_name": "tidegate", "schema_name": s, "schema_owner": "tidegate"} for s in schemas],
            "tables": [],
            "views": [],
            "columns": [],
            "table_constraints": [],
            "key_column_usage": [],
            "constraint_column_usage": [],
        }
        for _, _, schema, kind, table in self._relations:
            place = {"table_catalog": "tidegate", "table_schema": schema, "table_name": table.name}
            shown = {
                "table_type": "BASE TABLE" if kind == "r" else "VIEW",
                "is_insertable_into": "NO",
                "is_typed": "NO",
            }
            found["tables"].append({**place, **shown})
            if kind == "v":
                found["views"].append(
                    {**place, "is_updatable": "NO", "is_insertable_into": "NO", "check_option": "NONE"}
                )
            for number, column in enumerate(table.columns, 1):
                found["columns"].append({**place, **_information_column(number, *column)})
            for name, columns, unique, primary in _indexes(table):
                if unique:
                    _add_constraint(found, place, name, columns, primary)
        return found


def _add_constraint(
    found: dict[str, list[Row]], place: Row, name: str, columns: tuple[str, ...], primary: bool
) -> None:
    schema = place["table_schema"]
    called = {"constraint_catalog": "tidegate", "constraint_schema": schema, "constraint_name": name}
    kind = "PRIMARY KEY" if primary else "UNIQUE"
    flags = {"is_deferrable": "NO", "initially_deferred": "NO", "enforced": "YES"}
    found["table_constraints"].append({**called, **place, "constraint_type": kind, **flags})
    for number, column in enumerate(columns, 1):
        found["key_column_usage"].append({**called, **place, "column_name": column, "ordinal_position": number})
        found["constraint_column_usage"].append({**called, **place, "column_name": column})


def _information_column(number: int, name: str, sql: str, nullable: bool, default: str | None) -> Row:
    kind = wire_type(sql)
    base = kind.name
    bits = {"int2": 16, "int4": 32, "int8": 64, "float4": 24, "float8": 53}.get(base)
    precision = (kind.modifier - 4) >> 16 if base == "numeric" and kind.modifier > 0 else bits
    scale = (
        (kind.modifier - 4) & 0xFFFF
        if base == "numeric" and kind.modifier > 0
        else 0
        if base.startswith("int")
        else None
    )
    radix = None if precision is None else 10 if base == "numeric" else 2
    return {
        **{"column_name": name, "ordinal_position": number, "column_default": default, "dtd_identifier": str(number)},
        **{"is_nullable": "YES" if nullable else "NO", "udt_catalog": "tidegate", "udt_schema": "pg_catalog"},
        **{"data_type": "ARRAY" if kind.element else FORMATTED.get(base, base), "udt_name": base},
        **{"numeric_precision": precision, "numeric_scale": scale, "numeric_precision_radix": radix},
        **{"datetime_precision": 6 if base in ("time", "timestamp", "timestamptz", "interval") else None},
        **{"is_self_referencing": "NO", "is_identity": "NO", "identity_cycle": "NO", "is_generated": "NEVER"},
        "is_updatable": "NO",
    }


def _indexes(table: Table) -> Iterator[tuple[str, tuple[str, ...], bool, bool]]:
    """(name, columns, unique, primary)"""
    if table.primary_key:
        yield f"{table.name}_pkey", table.primary_key, True, True
    for name, columns, unique in table.indexes:
        yield name, columns, unique, False


def _identifier(name: str) -> str:
    return name if name.isidentifier() and name == name.lower() else quote(name)


def _class(oid: int, name: str, space: int, kind: str, columns: int) -> Row:
    off = ("relisshared", "relhasrules", "relhastriggers", "relhassubclass", "relrowsecurity", "relforcerowsecurity")
    return {
        **dict.fromkeys(off, False),
        **dict.fromkeys(("reltype", "reloftype", "reltablespace", "relpages", "relallvisible", "reltoastrelid"), 0),
        **{"oid": oid, "relname": name, "relnamespace": space, "relowner": OWNER, "relkind": kind, "relnatts": columns},
        **{"relam": HEAP if kind == "r" else 0, "relfilenode": oid, "reltuples": -1.0, "relpersistence": "p"},
        **{"relchecks": 0, "relispopulated": True, "relreplident": "d", "relispartition": False, "relhasindex": False},
        **{"relrewrite": 0, "relfrozenxid": 0, "relminmxid": 0},
    }


def _attribute(table: int, number: int, name: str, kind: WireType, nullable: bool, default: bool) -> Row:
    return {
        **{"attrelid": table, "attname": name, "atttypid": kind.oid, "attlen": kind.size, "attnum": number},
        **{"attndims": int(kind.element is not None), "atttypmod": kind.modifier, "attnotnull": not nullable},
        **{"atthasdef": default, "atthasmissing": False, "attidentity": "", "attgenerated": "", "attisdropped": False},
        **{"attislocal": True, "attinhcount": 0, "attcollation": 0, "attstattarget": -1, "attstorage": "p"},
        **{"attcacheoff": -1, "attbyval": False, "attalign": "i", "attcompression": ""},
    }


def _type(oid: int, name: str, size: int, category: str, element: int, array: int) -> Row:
    return {
        **{"oid": oid, "typname": name, "typnamespace": CATALOG_SPACE, "typowner": OWNER, "typlen": size},
        **{"typbyval": 0 < size <= 8, "typtype": "b", "typcategory": category, "typispreferred": False},
        **{"typisdefined": True, "typdelim": ",", "typrelid": 0, "typelem": element, "typarray": array},
        **{"typinput": "array_in" if element else f"{name}in", "typoutput": "array_out" if element else f"{name}out"},
        **{"typnotnull": False, "typbasetype": 0, "typtypmod": -1, "typndims": 0, "typcollation": 0, "typalign": "i"},
        **{
            "typstorage": "p",
            "typsubscript": "-",
            "typreceive": "-",
            "typsend": "-",
            "typmodin": "-",
            "typmodout": "-",
        },
    }


def _database() -> Row:
    return {
        **{"oid": DATABASE, "datname": "tidegate", "datdba": OWNER, "encoding": 6, "datlocprovider": "c"},
        **{"datistemplate": False, "datallowconn": True, "datconnlimit": -1, "dattablespace": 1663},
        **{"datcollate": "C", "datctype": "C", "datfrozenxid": 0, "datminmxid": 0},
    }


def _role() -> Row:
    off = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
    return {
        **dict.fromkeys(off, False),
        **{"oid": OWNER, "rolname": "tidegate", "rolinherit": True, "rolcanlogin": True, "rolconnlimit": -1},
    }
