"""Queries of PostgreSQL's catalog, rewritten to our relations and functions."""

from __future__ import annotations

import re
from collections.abc import Callable

import sqlglot
from sqlglot import exp

from tidegate.errors import QueryFailed
from tidegate.replica import text
from tidegate.replica.catalog.columns import INFORMATION_SCHEMA, PG_CATALOG, relations
from tidegate.replica.catalog.functions import INFORMATION_MACROS, MACROS, TABLE_MACROS

PG, INFORMATION = "tg_pg", "tg_information"
PG_RELATIONS = frozenset(relations(PG_CATALOG))
INFORMATION_RELATIONS = frozenset(relations(INFORMATION_SCHEMA))
_FUNCTIONS = frozenset(MACROS) - {"current_user_name"}
_BARE = ("current_user", "session_user", "current_role", "current_catalog", "current_schema")
_REG = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regoper", "regoperator", "regrole")
_PLAIN_TYPES = {"name": "TEXT", "oid": "UINT", "xid": "BIGINT", "cid": "INT", "char": "TEXT", "int2vector": "INT[]"}


def mentions_catalog(sql: str) -> bool:
    """True when a query uses names of PostgreSQL's catalog."""
    found = [(kind, sql[begin:end].lower()) for kind, begin, end in text.tokens(sql) if kind != "space"]
    for place, (kind, word) in enumerate(found):
        following = found[place + 1][1] if place + 1 < len(found) else ""
        if kind == "name":
            word = word[1:-1]
        elif kind != "word":
            continue
        if word in ("pg_catalog", "information_schema") and following == ".":
            return True
        if word in PG_RELATIONS or (kind == "word" and (word in _BARE or word in _REG)):
            return True
        if following == "(" and (word in _FUNCTIONS or word in TABLE_MACROS):
            return True
    return False


def catalog_text(sql: str) -> str:
    """The text without what only PostgreSQL's own parser reads."""
    sql = plain_types(sql)
    # psql qualifies operators with their schema, which no other dialect does
    sql = re.sub(r"operator\s*\(\s*pg_catalog\s*\.\s*([~!*=<>|@#&+/-]+)\s*\)", r" \1 ", sql, flags=re.IGNORECASE)
    return re.sub(r"\bcollate\s+(?:pg_catalog\s*\.\s*)?\"?default\"?", " ", sql, flags=re.IGNORECASE)


def plain_types(sql: str) -> str:
    """Arrays of PostgreSQL's own types as arrays of plain ones: the parser knows only those."""
    for names, plain in (("oid|regclass|regtype|xid", "int"), ('name|"char"', "text")):
        sql = re.sub(rf"((?:::|\bas)\s*)(?:pg_catalog\s*\.\s*)?(?:{names})\s*\[\s*\]", rf"\1{plain}[]", sql, flags=re.I)
    return sql


def at_catalog(tree: exp.Expr) -> exp.Expr:
    """The statement over our catalog: every node, innermost first."""
    for node in reversed(list(tree.bfs())):
        change = next((change for kind, change in _CHANGES.items() if isinstance(node, kind)), None)
        changed = node if change is None else change(node)
        if changed is not node:
            if node is tree:
                return changed
            node.replace(changed)
    return tree


def _table(node: exp.Table) -> exp.Expr:
    schema, name = node.db.lower(), node.name.lower()
    if schema.startswith("tg_"):
        raise QueryFailed(f"relation {schema}.{name} does not exist", sqlstate="42P01")
    if node.catalog.lower() not in ("", "tidegate"):
        return node
    called = node.this
    if isinstance(called, exp.Func):
        function = _function_name(called)
        if function in TABLE_MACROS and schema in ("", "pg_catalog"):
            node.set("db", exp.to_identifier(PG))
        elif schema == "pg_catalog":
            node.set("db", None)
        return node
    if name in PG_RELATIONS and schema in ("", "pg_catalog"):
        node.set("db", exp.to_identifier(PG))
        node.set("catalog", None)
    elif name in INFORMATION_RELATIONS and schema == "information_schema":
        node.set("db", exp.to_identifier(INFORMATION))
        node.set("catalog", None)
    return node


def _column(node: exp.Column) -> exp.Expr:
    """``pg_catalog.pg_class.oid`` as ``pg_class.oid``; names that are functions without parentheses."""
    if node.text("db").lower() in ("pg_catalog", "information_schema"):
        node.set("db", None)
        node.set("catalog", None)
    if not node.table and not node.this.args.get("quoted"):
        name = node.name.lower()
        if name in ("current_user", "session_user", "current_role", "user"):
            return exp.Literal.string("tidegate")
        if name == "current_catalog":
            return exp.Literal.string("tidegate")
        if name == "current_schema":
            return exp.Literal.string("public")
    return node


def _dot(node: exp.Dot) -> exp.Expr:
    """``pg_catalog.f(…)`` and ``information_schema.f(…)``."""
    schema = node.this.name.lower() if isinstance(node.this, (exp.Identifier, exp.Column)) else ""
    if isinstance(node.expression, exp.Func):
        if schema == "pg_catalog":
            return _answered(node.expression)
        if schema == "information_schema" and _function_name(node.expression) in INFORMATION_MACROS:
            return exp.Dot(this=exp.to_identifier(INFORMATION), expression=node.expression)
    return node


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _function(node: exp.Expr) -> exp.Expr:
    parent = node.parent
    if isinstance(parent, (exp.Dot, exp.Table)) and node in (parent.expression, parent.this):
        return node  # it is handled together with its schema
    return _answered(node)


def _answered(node: exp.Expr) -> exp.Expr:
    """A PostgreSQL function as one of ours, where there is one."""
    name = _function_name(node)
    if isinstance(node, (exp.CurrentUser, exp.SessionUser)) or name in ("current_role", "current_user", "session_user"):
        return exp.Literal.string("tidegate")
    if isinstance(node, exp.CurrentSchema) or name == "current_schema":
        return exp.Literal.string("public")
    if name in ("current_catalog", "current_database"):
        return exp.Literal.string("tidegate")
    if isinstance(node, exp.Anonymous):
        if name in _FUNCTIONS:
            return _ours(name, node.expressions)
    elif name in _FUNCTIONS:
        return _ours(name, list(node.iter_expressions()))
    return node


def _ours(name: str, arguments: list[exp.Expr]) -> exp.Expr:
    return exp.Dot(this=exp.to_identifier(PG), expression=exp.Anonymous(this=name, expressions=arguments))


def _cast(node: exp.Cast) -> exp.Expr:
    target = node.to
    kind = target.sql(dialect="postgres").lower().replace('"', "").removeprefix("pg_catalog.")
    if kind in _REG:
        return _registered(node.this, kind)
    if kind.endswith("[]") and isinstance(node.this, exp.Literal) and node.this.name.startswith("{"):
        node.set("this", exp.Literal.string(f"[{node.this.name[1:-1]}]"))  # how DuckDB writes a list
    if kind in _PLAIN_TYPES:
        return exp.Cast(this=node.this, to=exp.DataType.build(_PLAIN_TYPES[kind]))
    if target.this == exp.DataType.Type.USERDEFINED or "pg_catalog." in target.sql(dialect="postgres").lower():
        try:
            return exp.Cast(this=node.this, to=exp.DataType.build(kind, dialect="postgres"))
        except sqlglot.errors.SqlglotError:
            return node
    return node


def _registered(value: exp.Expr, kind: str) -> exp.Expr:
    """A cast to a reg… type: a name becomes a number, a number becomes a name."""
    if kind in ("regproc", "regprocedure", "regoper", "regoperator"):
        if isinstance(value, exp.Literal):
            return exp.Literal.string(value.name.removeprefix("pg_catalog."))
        return exp.Cast(this=value, to=exp.DataType.build("TEXT"))
    if kind == "regrole":
        return exp.Literal.string("tidegate")
    names = {"regclass": "class", "regtype": "type", "regnamespace": "space"}[kind]
    if _is_text(value):
        return _ours(f"tg_{names}_oid", [value])
    if kind == "regtype":
        return _ours("format_type", [value, exp.Null()])
    return _ours(f"tg_{names}_name", [value])


def _is_text(value: exp.Expr) -> bool:
    if isinstance(value, exp.Paren):
        return _is_text(value.this)
    if isinstance(value, exp.Cast):
        return value.to.is_type(*exp.DataType.TEXT_TYPES)
    if isinstance(value, exp.Dot):
        called = _function_name(value.expression)
        return called.startswith("pg_get") or called in ("quote_ident", "format_type", "tg_class_name")
    if isinstance(value, exp.Literal):
        return value.is_string
    return isinstance(value, (exp.Placeholder, exp.DPipe, exp.Concat)) or _function_name(value) in (
        text.STAND_IN,
        "format",
    )


_CHANGES: dict[type[exp.Expr], Callable[..., exp.Expr]] = {
    exp.Table: _table,
    exp.Column: _column,
    exp.Dot: _dot,
    exp.Cast: _cast,
    exp.Collate: lambda node: node.this,
    exp.Func: _function,
}
