"""Names of result columns, as PostgreSQL gives them: ``count``, ``?column?``, the name of a type, lower case."""

from __future__ import annotations

from sqlglot import exp

UNNAMED = "?column?"
TYPES = {
    "int": "int4",
    "integer": "int4",
    "bigint": "int8",
    "smallint": "int2",
    "real": "float4",
    "float": "float8",
    "double": "float8",
    "double precision": "float8",
    "decimal": "numeric",
    "boolean": "bool",
    "char": "bpchar",
    "timestamp with time zone": "timestamptz",
    "time with time zone": "timetz",
}
_CALLED: dict[type[exp.Expr], str] = {
    exp.Case: "case",
    exp.Exists: "exists",
    exp.Array: "array",
    exp.Extract: "extract",
    exp.Substring: "substring",
    exp.StrPosition: "position",
    exp.Overlay: "overlay",
    exp.AtTimeZone: "timezone",
    exp.Interval: "interval",
    exp.CurrentDate: "current_date",
    exp.CurrentTime: "current_time",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Localtime: "localtime",
    exp.Localtimestamp: "localtimestamp",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentSchema: "current_schema",
    exp.CurrentRole: "current_role",
}
_WEAK = (exp.Case, exp.Interval)  # a cast around it gives the name


def name_columns(tree: exp.Expr) -> None:
    """Give every column of every SELECT the name it has in PostgreSQL."""
    for alias in tree.find_all(exp.Alias, exp.TableAlias):
        _fold(alias.args.get("alias") if isinstance(alias, exp.Alias) else alias.this)
    for select in tree.find_all(exp.Select):
        if select.args.get("kind") is None:  # SELECT AS STRUCT and the like have no columns of their own
            select.set("expressions", [_named(column) for column in select.expressions])


def _fold(identifier: exp.Expr | None) -> None:
    if isinstance(identifier, exp.Identifier) and not identifier.quoted:
        identifier.set("this", identifier.name.lower())


def _named(column: exp.Expr) -> exp.Expr:
    if isinstance(column, (exp.Alias, exp.Aliases, exp.Star)) or column.is_star:
        return column
    name = name_of(column)
    if isinstance(column, exp.Column) and column.name == name:
        return column
    return exp.Alias(this=column, alias=exp.to_identifier(name, quoted=True))


def name_of(node: exp.Expr) -> str:
    """The name of an unaliased column.

    >>> import sqlglot
    >>> [name_of(e) for e in sqlglot.parse_one("SELECT 1, '2'::int, price, a.b").expressions]
    ['?column?', 'int4', 'price', 'b']
    """
    return _found(node)[0] or UNNAMED


def _found(node: exp.Expr) -> tuple[str, bool]:
    """The name, and whether it is better than that of a cast or CASE around it."""
    if isinstance(node, exp.Column):
        return _identifier(node.this), True
    if isinstance(node, (exp.Paren, exp.Collate, exp.Window, exp.Filter, exp.WithinGroup, exp.Bracket)):
        return _found(node.this)
    if isinstance(node, exp.Dot):
        last = node.expression
        return (_identifier(last), True) if isinstance(last, exp.Identifier) else _found(last)
    if isinstance(node, exp.Cast):
        name, strong = _found(node.this)
        return (name, True) if strong else (type_name(node.to), False)
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        name, strong = _found(default) if default is not None else ("", False)
        return (name, True) if strong else ("case", False)
    if isinstance(node, exp.Trim):
        return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.text("position").upper(), "btrim"), True
    if isinstance(node, exp.Subquery):
        return _of_subquery(node.this)
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower(), True
    called = _CALLED.get(type(node), "")
    return called, bool(called) and not isinstance(node, _WEAK)


def _of_subquery(query: exp.Expr) -> tuple[str, bool]:
    select = query.find(exp.Select)
    if select is None or not select.expressions:
        return "", False
    first = select.expressions[0]
    return (_identifier(first.args["alias"]), True) if isinstance(first, exp.Alias) else _found(first)


def _identifier(node: exp.Expr) -> str:
    quoted = isinstance(node, exp.Identifier) and node.quoted
    return node.name if quoted else node.name.lower()


def type_name(kind: exp.DataType) -> str:
    """PostgreSQL's own name of a type that was written in a statement."""
    while kind.is_type("array") and kind.expressions:
        kind = kind.expressions[0]
    written = kind.sql(dialect="postgres").lower().partition("(")[0].replace('"', "").strip()
    written = written.removeprefix("pg_catalog.")
    return TYPES.get(written, written)
