"""From SQL text to a tree whose tables are known: one statement, of an allowed kind and with allowed functions.

DuckDB decides what is valid (it parses and binds the text in the scratch database); sqlglot gives us the
tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from tidegate.errors import StatementError
from tidegate.storage.ddl import Scratch
from tidegate.storage.schema import Relation, TableSchema
from tidegate.storage.sql.parameters import Parameters, for_sqlglot, in_text_order, number_parameters

_DuckDBParser: Any = DuckDB.Parser


class Verbatim(DuckDB):
    """DuckDB's dialect with function calls left as they are.

    sqlglot's own reading of them is made for translating between databases, and changes some of them
    (``log2(x)`` comes back as ``log(2, x)``, ``left(s, -1)`` as ``''``).
    """

    class Parser(_DuckDBParser):  # type: ignore[misc]
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in _DuckDBParser.FUNCTION_PARSERS.items()
            if name in {"CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "OVERLAY"}
        }

    def to_json_path(self, path: Any) -> Any:
        return path


KINDS = {
    "SELECT": "select",
    "INSERT": "insert",
    "UPDATE": "update",
    "DELETE": "delete",
}

# SQL functions of time and chance, and what replaces them
_MOMENTS = {
    "now": "now",
    "current_timestamp": "now",
    "localtimestamp": "now",
    "current_date": "today",
    "current_time": "time",
    "localtime": "time",
    "get_current_timestamp": "now",
    "transaction_timestamp": "now",
    "current_localtimestamp": "now",
    "today": "today",
    "get_current_time": "time",
    "current_localtime": "time",
    "random": "random",
    "uuid": "uuid",
    "uuidv4": "uuid",
    "gen_random_uuid": "uuid",
}
_MOMENT_NODES: dict[type[exp.Expression], str] = {
    exp.CurrentTimestamp: "now",
    exp.Localtimestamp: "now",
    exp.CurrentDatetime: "now",
    exp.CurrentDate: "today",
    exp.CurrentTime: "time",
    exp.Localtime: "time",
}
TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "json_each", "json_tree"}
REFUSED_FUNCTIONS = {
    "getenv", "current_setting", "getvariable", "nextval", "currval", "setval", "setseed", "txid_current",
    "current_transaction_id", "current_query", "current_query_id", "current_connection_id", "write_log",
    "sleep_ms", "uuidv7", "current_user", "session_user", "user", "version", "in_search_path",
    "current_schemas", "stats", "vector_type", "current_database", "current_schema", "now", "today",
    "random", "uuid", "gen_random_uuid", "uuidv4", "get_current_timestamp", "transaction_timestamp",
    "get_current_time", "current_date", "current_localtimestamp", "current_localtime", "read_text",
    "read_blob", "query", "query_table",
}  # fmt: skip


@dataclass
class Parsed:
    """One statement: its tree (placeholders numbered, time and chance replaced by placeholders) and what it touches.

    ``draws``: kinds of the placeholders that follow the user's parameters: now, today, time, random, uuid.
    """

    sql: str
    kind: str
    tree: exp.Expression
    parameters: Parameters
    draws: tuple[str, ...]
    target: TableSchema | None
    tables: dict[str, TableSchema] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)


def parse(
    statement: Any, tables: Mapping[str, TableSchema], relations: Mapping[str, Relation], scratch: Scratch
) -> Parsed:
    sql, core_names, defaults = (statement, None, None) if isinstance(statement, str) else _from_core(statement)
    kind = _kind(sql, scratch.connection)
    tree = tree_of(sql)
    _refuse_shapes(tree, kind, sql)
    names, positional = number_parameters(tree, sql)
    if core_names is not None:
        names, positional = core_names, True
    draws = _replace_moments(tree, len(names))
    target = _target(tree, tables, relations, sql)
    parsed = Parsed(sql, kind, tree, Parameters(sql, names, positional, defaults), draws, target)
    _resolve_tables(parsed, tables, relations)
    _refuse_functions(tree, sql)
    _bind(sql, scratch.connection)
    return parsed


def parse_expression(text: str, sql: str) -> tuple[exp.Expression, tuple[str, ...]]:
    """A CHECK or DEFAULT expression as a tree, and its draws."""
    tree = tree_of(f"SELECT {text}")
    draws = _replace_moments(tree, 0)
    if tree.find(exp.Query, exp.Subquery) not in (None, tree):
        raise StatementError(f"a subquery can't stand in {sql}", sql=sql)
    found = tree.expressions[0]
    assert isinstance(found, exp.Expression)
    return found, draws


def _from_core(statement: Any) -> tuple[str, list[str] | None, dict[str, Any] | None]:
    """The text of a SQLAlchemy Core statement, its parameters by place, and the values bound to them."""
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.engine.interfaces import BindTyping
    from sqlalchemy.sql import ClauseElement

    if not isinstance(statement, ClauseElement):
        raise StatementError(f"a statement is SQL text or SQLAlchemy Core, got {type(statement).__name__}")
    dialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    dialect.bind_typing = BindTyping.NONE
    compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    names = list(compiled.positiontup or [])
    required = {bind.key for bind in compiled.binds.values() if bind.required}
    defaults = {name: value for name, value in compiled.params.items() if name not in required}
    return str(compiled), names, defaults


def _kind(sql: str, connection: duckdb.DuckDBPyConnection) -> str:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise StatementError(f"{error}\n  {sql}", sql=sql) from None
    if len(statements) != 1:
        raise StatementError(
            f"expected one statement, got {len(statements)}: {sql!r}; prepare each on its own", sql=sql
        )
    found = str(statements[0].type).rpartition(".")[2]
    if found not in KINDS:
        remedy = (
            "write INSERT ... ON CONFLICT DO UPDATE, and DELETE for the rest"
            if found == "MERGE_INTO"
            else "declare tables in the app; change the engine's settings where it is opened"
        )
        raise StatementError(
            f"{found.replace('_', ' ')} can't run in a procedure (only SELECT, INSERT, UPDATE, DELETE): "
            f"{remedy}\n  {sql}",
            sql=sql,
        )
    return KINDS[found]


def tree_of(sql: str) -> exp.Expression:
    try:
        tree = sqlglot.parse_one(for_sqlglot(in_text_order(sql)), dialect=Verbatim)
    except sqlglot.errors.SqlglotError as error:
        raise StatementError(
            f"this SQL is valid for DuckDB, but tidegate can't analyse it: {error}. If a name in it is a word of SQL, too, "
            f"write it in double quotes\n  {sql}",
            sql=sql,
        ) from None
    assert isinstance(tree, exp.Expression)
    return tree


def _bind(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Unknown columns and mismatched types are errors now, not when the first batch arrives."""
    try:
        connection.execute(f"PREPARE tidegate_check AS {sql.rstrip().rstrip(';')}")
        connection.execute("DEALLOCATE tidegate_check")
    except duckdb.Error as error:
        message = str(error).partition("\n\nLINE")[0]
        raise StatementError(f"{message}\n  {sql}", sql=sql) from None


def _refuse_functions(tree: exp.Expression, sql: str) -> None:
    """Functions that read files or the engine's own state, before DuckDB gets to see them."""
    for node in tree.find_all(exp.Table):
        if not isinstance(node.this, exp.Identifier):
            name = node.this.sql("duckdb").partition("(")[0].lower()
            if name not in TABLE_FUNCTIONS:
                raise refused_source(name, sql)
    for call in tree.find_all(exp.Anonymous):
        if function_name(call) in REFUSED_FUNCTIONS:
            raise refused_function(function_name(call), sql)


def function_name(node: exp.Expression) -> str:
    """The name of the function that ``node`` calls, in lower case; empty when it is not a call."""
    return str(node.this).lower() if isinstance(node, exp.Anonymous) else ""


def refused_source(name: str, sql: str) -> StatementError:
    return StatementError(
        f"{name}() can't be read from in a procedure, only tables, streams and windows; "
        f"bring other data in through a stream\n  {sql}",
        sql=sql,
    )


def refused_function(name: str, sql: str) -> StatementError:
    return StatementError(
        f"{name}() can't be used in a procedure: its result would differ when the batch is replayed; "
        f"pass the value as a parameter\n  {sql}",
        sql=sql,
    )


def _refuse_shapes(tree: exp.Expression, kind: str, sql: str) -> None:
    expected: dict[str, tuple[type, ...]] = {
        "select": (exp.Query, exp.Values),
        "insert": (exp.Insert,),
        "update": (exp.Update,),
        "delete": (exp.Delete,),
    }
    if not isinstance(tree, expected[kind]):
        raise StatementError(
            f"this form of {kind.upper()} can't run in a procedure; write a plain {kind.upper()}\n  {sql}",
            sql=sql,
        )
    for node in tree.find_all(exp.DML, exp.Merge, exp.TableSample, exp.IgnoreNulls):
        if isinstance(node, exp.TableSample):
            raise StatementError(f"a sample is not deterministic; choose rows by a predicate instead: {sql}", sql=sql)
        if isinstance(node, exp.IgnoreNulls):
            if node.find_ancestor(exp.Window) is None:
                raise StatementError(f"write any_value(x) instead of first(x IGNORE NULLS): {sql}", sql=sql)
            continue
        if node is not tree:
            raise StatementError(
                f"one statement changes one table: move the inner {node.key.upper()} into a statement of its own: "
                f"{sql}",
                sql=sql,
            )


def _replace_moments(tree: exp.Expression, first: int) -> tuple[str, ...]:
    """Put a placeholder for every ``now()``, ``random()``, ``uuid()``...: one draw per place in the text."""
    draws: list[str] = []
    calls: list[Any] = list(tree.find_all(exp.Func, bfs=False))
    for node in calls:
        kind = _MOMENT_NODES.get(type(node))
        if kind is None and not node.expressions:
            kind = _MOMENTS.get(function_name(node))
        if kind is not None:
            node.replace(exp.Placeholder(this=f"p{first + len(draws)}"))
            draws.append(kind)
    return tuple(draws)


def _target(
    tree: exp.Expression, tables: Mapping[str, TableSchema], relations: Mapping[str, Relation], sql: str
) -> TableSchema | None:
    if not isinstance(tree, exp.DML):
        return None
    table = target_table(tree)
    _refuse_qualified(table, sql)
    schema: TableSchema | None = _by_name(tables, table.name)
    if schema is None:
        stream = _by_name(relations, table.name)
        what = "a stream or window; emit to streams with txn.emit" if stream else "no table of the app"
        raise StatementError(f"{table.name} can't be changed by SQL: it is {what}\n  {sql}", sql=sql)
    return schema


def target_table(tree: exp.Expression) -> exp.Table:
    """The table a DML statement changes."""
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    assert isinstance(target, exp.Table)
    return target


def _resolve_tables(parsed: Parsed, tables: Mapping[str, TableSchema], relations: Mapping[str, Relation]) -> None:
    """Find every table and relation read, and rename it to what the overlay will define (``"tg:name"``)."""
    target = target_table(parsed.tree) if parsed.target else None
    for node in list(parsed.tree.find_all(exp.Table)):
        if node is target or not isinstance(node.this, exp.Identifier):
            continue
        _refuse_qualified(node, parsed.sql)
        if _is_cte(node):
            continue
        if (schema := _by_name(tables, node.name)) is not None:
            parsed.tables[schema.name] = schema
            rename(node, schema.name)
        elif (relation := _by_name(relations, node.name)) is not None:
            parsed.relations[relation.name] = relation
            rename(node, relation.name)
        else:
            known = ", ".join(sorted([*tables, *relations]))
            raise StatementError(
                f"{node.name!r} is not a table or stream of this app (it has {known or 'none'})\n  {parsed.sql}",
                sql=parsed.sql,
            )


def rename(node: exp.Table, name: str) -> None:
    """Point a table reference at ``"tg:name"``; columns may still be qualified by the original name."""
    if not node.alias:
        node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
    node.set("this", exp.to_identifier(f"tg:{name}", quoted=True))


def _refuse_qualified(table: exp.Table, sql: str) -> None:
    if table.args.get("db") or table.args.get("catalog"):
        raise StatementError(
            f"{table.sql('duckdb')}: only the app's own tables and streams can be used, by plain names\n  {sql}",
            sql=sql,
        )


def _by_name(known: Mapping[str, Any], name: str) -> Any:
    if name in known:
        return known[name]
    return next((value for key, value in known.items() if key.lower() == name.lower()), None)


def _is_cte(table: exp.Table) -> bool:
    """Does the name refer to a WITH entry visible here? (An entry does not see itself unless RECURSIVE.)"""
    name = table.name.lower()
    node: Any = table
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.With):
            entries = parent.expressions
            visible = entries if parent.args.get("recursive") else entries[: _place(entries, node)]
        else:
            clause = parent.args.get("with_")
            visible = clause.expressions if clause is not None and clause is not node else []
        if any(entry.alias.lower() == name for entry in visible):
            return True
        node = parent
    return False


def _place(entries: list[exp.Expression], node: exp.Expression) -> int:
    return next(i for i, entry in enumerate(entries) if entry is node)
