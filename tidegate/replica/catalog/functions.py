"""PostgreSQL's functions about itself, as DuckDB macros with the answers that fit here."""

from __future__ import annotations

from typing import Any

from tidegate.replica.postgres.macros import declare_macros
from tidegate.replica.wire.settings import CHANGEABLE, FIXED, VERSION
from tidegate.replica.wire.types import NAMED

FORMATTED = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "varchar": "character varying",
    "bpchar": "character",
    "char": '"char"',
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}
SETTINGS = {**CHANGEABLE, **FIXED, "default_table_access_method": "heap", "session_authorization": "tidegate"}


def _case(subject: str, answers: dict[Any, str], other: str) -> str:
    parts = " ".join(f"WHEN {when} THEN {_text(then)}" for when, then in answers.items())
    return f"CASE {subject} {parts} ELSE {other} END"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _type_names() -> dict[Any, str]:
    names: dict[Any, str] = {}
    for name, (oid, _, array) in NAMED.items():
        shown = FORMATTED.get(name, name)
        names[oid] = shown
        if array:
            names[array] = f"{shown}[]"
    return names


_NUMERIC = "WHEN t IN (1700, 1231) AND m > 0 THEN 'numeric(' || ((m - 4) >> 16) || ',' || ((m - 4) & 65535) || ')'"
_PRIVILEGE = "upper(p) IN ('SELECT', 'USAGE', 'CONNECT', 'EXECUTE')"
_DEFINITION = "(SELECT any_value(tg_d.definition) FROM {pg}.tg_definitions tg_d WHERE tg_d.oid = o)"
_COLUMN = (
    "(SELECT any_value(tg_a.attname) FROM {pg}.pg_index tg_i JOIN {pg}.pg_attribute tg_a ON tg_a.attrelid = tg_i.indrelid "
    "AND tg_a.attnum = tg_i.indkey[c] WHERE tg_i.indexrelid = o)"
)

# name -> one or more "(parameters) AS expression"; aliases inside must not clash with those of the surrounding query
MACROS: dict[str, tuple[str, ...]] = {
    "version": (f"() AS 'PostgreSQL {VERSION} (tidegate query replica, DuckDB)'",),
    "current_database": ("() AS 'tidegate'",),
    "current_schema": ("() AS 'public'",),
    "current_schemas": ("(implicit) AS CASE WHEN implicit THEN ['pg_catalog', 'public'] ELSE ['public'] END",),
    "current_user_name": ("() AS 'tidegate'",),
    "current_setting": tuple(
        f"{parameters} AS {_case('lower(n)', {_text(k): v for k, v in SETTINGS.items()}, 'NULL')}"
        for parameters in ("(n)", "(n, missing_ok)")
    ),
    "set_config": ("(n, v, l) AS CAST(v AS VARCHAR)",),
    "pg_get_userbyid": ("(o) AS 'tidegate'",),
    "pg_table_is_visible": ("(o) AS o < 1000000",),
    **{
        f"pg_{kind}_is_visible": ("(o) AS true",)
        for kind in (
            "type",
            "function",
            "collation",
            "operator",
            "opclass",
            "conversion",
            "statistics_obj",
            "ts_config",
        )
    },
    "format_type": (
        f"(t, m) AS CASE {_NUMERIC} ELSE {_case('t', _type_names(), _text('???'))} END "
        f"|| CASE WHEN t = 1231 AND m > 0 THEN '[]' ELSE '' END",
    ),
    "pg_get_expr": ("(e, o) AS CAST(e AS VARCHAR)", "(e, o, pretty) AS CAST(e AS VARCHAR)"),
    "pg_get_indexdef": (
        f"(o) AS {_DEFINITION}",
        f"(o, c, pretty) AS CASE WHEN c = 0 THEN {_DEFINITION} ELSE {_COLUMN} END",
    ),
    "pg_get_constraintdef": (f"(o) AS {_DEFINITION}", f"(o, pretty) AS {_DEFINITION}"),
    "pg_get_viewdef": (f"(o) AS {_DEFINITION}", f"(o, pretty) AS {_DEFINITION}"),
    "obj_description": ("(o) AS CAST(NULL AS VARCHAR)", "(o, c) AS CAST(NULL AS VARCHAR)"),
    "shobj_description": ("(o, c) AS CAST(NULL AS VARCHAR)",),
    "col_description": ("(o, c) AS CAST(NULL AS VARCHAR)",),
    **dict.fromkeys(
        (
            "pg_get_partkeydef",
            "pg_get_triggerdef",
            "pg_get_ruledef",
            "pg_get_statisticsobjdef_columns",
            "pg_get_function_identity_arguments",
            "pg_get_function_arguments",
            "pg_get_function_result",
            "pg_get_functiondef",
            "pg_get_serial_sequence",
        ),
        ("(o) AS CAST(NULL AS VARCHAR)", "(o, pretty) AS CAST(NULL AS VARCHAR)"),
    ),
    **dict.fromkeys(
        (
            "pg_relation_size",
            "pg_table_size",
            "pg_total_relation_size",
            "pg_indexes_size",
            "pg_database_size",
            "pg_tablespace_size",
            "pg_stat_get_numscans",
        ),
        ("(o) AS CAST(0 AS BIGINT)", "(o, f) AS CAST(0 AS BIGINT)"),
    ),
    "pg_encoding_to_char": ("(e) AS 'UTF8'",),
    "pg_char_to_encoding": ("(e) AS 6",),
    "pg_client_encoding": ("() AS 'UTF8'",),
    "pg_backend_pid": ("() AS 1",),
    "pg_is_in_recovery": ("() AS true",),
    "pg_is_wal_replay_paused": ("() AS false",),
    "pg_tablespace_location": ("(o) AS ''",),
    "pg_relation_is_publishable": ("(o) AS false",),
    "pg_advisory_unlock_all": ("() AS CAST(NULL AS VARCHAR)",),
    "pg_size_pretty": ("(s) AS format_bytes(CAST(s AS BIGINT))",),
    "pg_my_temp_schema": ("() AS 0",),
    "pg_is_other_temp_schema": ("(o) AS false",),
    "txid_current": ("() AS CAST(0 AS BIGINT)",),
    "inet_server_addr": ("() AS CAST(NULL AS VARCHAR)",),
    "inet_server_port": ("() AS CAST(NULL AS INTEGER)",),
    "pg_has_role": ("(r, p) AS true", "(u, r, p) AS true"),
    **{
        f"has_{kind}_privilege": (f"(o, p) AS {_PRIVILEGE}", f"(u, o, p) AS {_PRIVILEGE}")
        for kind in ("table", "schema", "database", "any_column", "function", "sequence", "tablespace", "language")
    },
    "has_column_privilege": (f"(o, c, p) AS {_PRIVILEGE}", f"(u, o, c, p) AS {_PRIVILEGE}"),
    "quote_ident": ("(i) AS CASE WHEN regexp_full_match(i, '[a-z_][a-z0-9_]*') THEN i ELSE '\"' || i || '\"' END",),
    "parse_ident": (
        "(n) AS list_transform(regexp_extract_all(n, '\"[^\"]+\"|[^.]+'), lambda p: CASE WHEN p LIKE '\"%' THEN trim(p, '\"') "
        "ELSE lower(p) END)",
    ),
    "quote_literal": ("(v) AS '''' || replace(CAST(v AS VARCHAR), '''', '''''') || ''''",),
    "array_upper": ("(a, d) AS CASE WHEN len(a) > 0 THEN len(a) END",),
    "array_lower": ("(a, d) AS CASE WHEN len(a) > 0 THEN 1 END",),
    "to_regclass": ("(n) AS {pg}.tg_class_oid(n)",),
    "to_regtype": ("(n) AS {pg}.tg_type_oid(n)",),
    "tg_class_oid": (
        "(n) AS (SELECT min(tg_c.oid) FROM {pg}.pg_class tg_c JOIN {pg}.pg_namespace tg_s ON tg_s.oid = tg_c.relnamespace WHERE "
        "tg_c.relname = replace(split_part(n, '.', -1), '\"', '') AND (NOT contains(n, '.') OR tg_s.nspname = "
        "replace(split_part(n, '.', 1), '\"', '')))",
    ),
    "tg_class_name": (
        "(o) AS coalesce((SELECT any_value(CASE WHEN tg_c.oid < 1000000 THEN tg_c.relname ELSE 'tidegate.' || tg_c.relname END) "
        "FROM {pg}.pg_class tg_c WHERE tg_c.oid = o), CAST(o AS VARCHAR))",
    ),
    "tg_type_oid": ("(n) AS (SELECT min(tg_t.oid) FROM {pg}.pg_type tg_t WHERE tg_t.typname = lower(n))",),
    "tg_space_name": ("(o) AS (SELECT any_value(tg_s.nspname) FROM {pg}.pg_namespace tg_s WHERE tg_s.oid = o)",),
    "tg_space_oid": ("(n) AS (SELECT min(tg_s.oid) FROM {pg}.pg_namespace tg_s WHERE tg_s.nspname = n)",),
}
TABLE_MACROS = {
    "pg_get_keywords": "() AS TABLE SELECT w AS word, 'U' AS catcode, true AS barelabel, 'unreserved' AS catdesc, "
    "'can be bare label' AS baredesc FROM (VALUES ('abort'), ('analyze'), ('at')) k(w)",
    "pg_listening_channels": "() AS TABLE SELECT '' AS pg_listening_channels WHERE false",
    "pg_timezone_names": "() AS TABLE SELECT 'UTC' AS name, 'UTC' AS abbrev, INTERVAL 0 SECOND AS utc_offset, false AS is_dst",
}
INFORMATION_MACROS = {
    "_pg_expandarray": "(a) AS unnest(list_transform(a, lambda x, i: {'x': x, 'n': i}))",
}


def declare_functions(connection: Any, pg: str, information: str) -> None:
    """Create the macros; they refer to the catalog's tables, which exist."""
    declare_macros(connection)
    order = ["tg_class_oid", "tg_class_name", "tg_type_oid", *MACROS]
    for name in dict.fromkeys(order):
        body = ", ".join(MACROS[name]).replace("{pg}", pg)
        connection.execute(f"CREATE MACRO {pg}.{name}{body}")
    for name, body in TABLE_MACROS.items():
        connection.execute(f"CREATE MACRO {pg}.{name}{body}")
    for name, body in INFORMATION_MACROS.items():
        connection.execute(f"CREATE MACRO {information}.{name}{body}")
