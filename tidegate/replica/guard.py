"""What SQL from outside may say: one statement that reads tables, system views and the catalog, and nothing else.

DuckDB's own parser decides what a text means, so that nothing can look harmless here and mean something else there. The
tree it prints is walked: every relation must be one of ours, every table function must only compute, and no function
may reach settings, variables, files or other SQL. What this does not catch is caught by the locked-down database, the
read-only transaction and, in the end, the supervisor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.guard.scopes import matches

QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
SOURCES = {"EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "SHOW_REF", "PIVOT"}
TABLE_FUNCTIONS = {
    "generate_series",
    "generate_subscripts",
    "json_each",
    "json_tree",
    "pg_timezone_names",
    "range",
    "regexp_split_to_table",
    "repeat",
    "repeat_row",
    "unnest",
}
REFUSED_FUNCTIONS = {
    "add_parquet_key",
    "current_setting",
    "currval",
    "getenv",
    "getvariable",
    "json_deserialize_sql",
    "json_execute_serialized_sql",
    "json_serialize_plan",
    "nextval",
    "parse_duckdb_log_message",
    "pg_sleep",
    "query",
    "query_table",
    "setseed",
    "setval",
    "sleep_ms",
    "which_secret",
    "write_log",
}
OWN_SCHEMAS = ("tg_pg", "tg_information", "tg_as_of")  # where rewritten statements lead
OWN_NAMES = ("duckdb_", "pragma_", "sqlite_", "tg_")  # of DuckDB's and the replica's own relations


@dataclass
class Reading:
    """What a statement reads."""

    tables: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Asker:
    """Who queries. ``tables``: patterns of what it may read, system views as ``tidegate.name``; None: everything."""

    user: str
    tables: tuple[str, ...] | None = None

    def check(self, reading: Reading) -> None:
        """QueryRefused when the statement reads something else."""
        if self.tables is None:
            return
        for name in sorted([*reading.tables, *(f"tidegate.{view}" for view in reading.views)]):
            if not matches(self.tables, name):
                raise QueryRefused(
                    f"{self.user!r} may not read {name}; its tables are {', '.join(self.tables) or 'none'}",
                    sqlstate="42501",
                )


class Guard:
    """Checks statements against the existing relations."""

    def __init__(self, tables: dict[str, str], views: dict[str, str]) -> None:
        """``tables``, ``views``: names in lower case -> as declared."""
        self._tables = tables
        self._views = views

    def check(self, cursor: duckdb.DuckDBPyConnection, sql: str, rewritten: bool = False) -> Reading:
        """What the statement reads; QueryRefused when it is not allowed, QueryFailed when it is not SQL.

        ``rewritten``: names of the replica's own schemas in it are ours, not the client's.
        """
        explained = sql.lstrip()
        if explained[:7].lower() == "explain":
            self._only_statement(cursor, sql, duckdb.StatementType.EXPLAIN)
            sql = explained[7:].lstrip()
            if sql[:7].lower() == "analyze":
                sql = sql[7:]
        self._only_statement(cursor, sql, duckdb.StatementType.SELECT)
        try:
            told = cursor.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()[0][0]
        except duckdb.Error as error:
            raise failed(error) from None
        parsed = json.loads(told)
        if parsed["error"] or len(parsed["statements"]) != 1:
            raise QueryRefused(
                "this form of query can't be checked, and so is not answered here; write it as a plain SELECT "
                f"({parsed.get('error_message', 'several statements')})",
                sqlstate="0A000",
                sql=sql,
            )
        return self._walked(parsed["statements"][0], sql, OWN_SCHEMAS if rewritten else ())

    def _only_statement(self, cursor: duckdb.DuckDBPyConnection, sql: str, kind: Any) -> None:
        try:
            statements = cursor.extract_statements(sql)
        except duckdb.Error as error:
            raise failed(error) from None
        if len(statements) != 1:
            raise QueryRefused(
                f"one statement at a time, this text has {len(statements)}; send them one by one",
                sqlstate="42601",
                sql=sql,
            )
        if statements[0].type != kind:
            name = str(statements[0].type).rpartition(".")[2].replace("_", " ")
            raise QueryRefused(
                f"{name} is not allowed here: SQL from outside only reads (SELECT, WITH, VALUES, EXPLAIN). Tables are changed "
                f"by procedures: push a batch or call one",
                sqlstate="25006",
                sql=sql,
            )

    def _walked(self, tree: Any, sql: str, own: tuple[str, ...]) -> Reading:
        nodes = list(walk(tree))
        ctes = {str(entry["key"]).lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
        ctes |= {str(node["cte_name"]).lower() for node in nodes if node.get("cte_name")}
        if taken := [name for name in ctes if name.startswith(OWN_NAMES)]:
            raise QueryRefused(f"a WITH query can't be called {taken[0]!r}; that name is taken", sql=sql)
        reading = Reading()
        for node in nodes:
            kind = str(node.get("type", ""))
            if kind.endswith("_NODE") and kind not in QUERIES:
                what = kind.removesuffix("_NODE").replace("_", " ")
                raise QueryRefused(f"{what} inside a query: SQL from outside only reads", sqlstate="25006", sql=sql)
            if "sample" in node and not kind.endswith("_NODE") and kind not in SOURCES:
                raise QueryRefused(f"{kind} is not a source that can be queried here", sqlstate="0A000", sql=sql)
            if kind == "BASE_TABLE":
                self._relation(node, ctes, own, reading, sql)
            elif kind == "SHOW_REF" and not node.get("query"):
                raise QueryRefused(
                    "SHOW of DuckDB's own lists is not allowed; see information_schema.tables and "
                    "information_schema.columns",
                    sql=sql,
                )
            elif kind == "TABLE_FUNCTION":
                self._table_function(node, own, sql)
            elif node.get("class") == "FUNCTION":
                self._function(node, own, sql)
        return reading

    def _relation(self, node: dict[str, Any], ctes: set[str], own: tuple[str, ...], reading: Reading, sql: str) -> None:
        schema, name = str(node.get("schema_name", "")).lower(), str(node["table_name"]).lower()
        if node.get("catalog_name") or node.get("at_clause"):
            raise QueryRefused(
                f"{node['table_name']}: name tables as table or public.table; an older state is SELECT … AS OF n at the "
                f"end of the statement",
                sqlstate="0A000",
                sql=sql,
            )
        if schema in own or (not schema and name in ctes):
            return
        if schema in ("", "public", "main") and name in self._tables:
            reading.tables.add(self._tables[name])
        elif schema == "tidegate" and name in self._views:
            reading.views.add(self._views[name])
        else:
            shown = f"{schema}.{name}" if schema else name
            known = sorted([*self._tables.values(), *(f"tidegate.{view}" for view in self._views.values())])
            raise QueryFailed(
                f"relation {shown!r} does not exist; there are {', '.join(known)}", sqlstate="42P01", sql=sql
            )

    def _table_function(self, node: dict[str, Any], own: tuple[str, ...], sql: str) -> None:
        function = node["function"]
        name = str(function.get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS and str(function.get("schema", "")) not in own:
            raise QueryRefused(
                f"{name}() can't be queried here: SQL from outside reads tables and tidegate.* views, no files, settings or "
                f"other sources",
                sql=sql,
            )

    def _function(self, node: dict[str, Any], own: tuple[str, ...], sql: str) -> None:
        name = str(node.get("function_name", "")).lower()
        if str(node.get("schema", "")) not in own and (
            name in REFUSED_FUNCTIONS or name.startswith(("__internal", "read_", "pragma_", "duckdb_"))
        ):
            raise QueryRefused(
                f"{name}() is not allowed in SQL from outside: it reaches settings, variables, other SQL or only wastes "
                f"time",
                sql=sql,
            )


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a parsed tree. Not recursive: its depth is up to the author of the SQL."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


SQLSTATES = (
    (duckdb.ParserException, "42601"),
    (duckdb.SyntaxException, "42601"),
    (duckdb.CatalogException, "42P01"),
    (duckdb.BinderException, "42703"),
    (duckdb.ConversionException, "22P02"),
    (duckdb.OutOfRangeException, "22003"),
    (duckdb.InvalidInputException, "22023"),
    (duckdb.PermissionException, "42501"),
    (duckdb.InterruptException, "57014"),
    (duckdb.OutOfMemoryException, "53200"),
    (duckdb.TransactionException, "25006"),
    (duckdb.NotImplementedException, "0A000"),
    (duckdb.NotSupportedError, "0A000"),
)


_MISSING = re.compile(r"Catalog Error: [\w ]*Function with name \"?(\w+)\"? does not exist")


def failed(error: Exception) -> QueryFailed | QueryRefused:
    """DuckDB's error as ours, with a SQLSTATE."""
    told = str(error).strip().split("\n\nLINE ")[0] or type(error).__name__
    state = next((state for kind, state in SQLSTATES if isinstance(error, kind)), "XX000")
    missing = _MISSING.match(told)
    if missing is not None:
        near = re.search(r'Did you mean "(\w+)"', told)
        told = f"function {missing[1]} does not exist here: queries are answered with DuckDB's functions"
        told, state = told + (f"; the nearest name is {near[1]}" if near else ""), "42883"
    if "division by zero" in told.lower():
        told, state = "division by zero", "22012"
    if "input is out of range" in told or "numeric field overflow" in told:
        state = "22003"
    if state == "XX000" and "interrupt" in told.lower():
        state = "57014"
    if isinstance(error, duckdb.PermissionException):
        return QueryRefused(told, sqlstate=state)
    return QueryFailed(told, sqlstate=state)
