"""Operators, casts and clauses whose answers differ: rewritten by the types of their operands, or refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from sqlglot import exp

from tidegate.errors import QueryRefused
from tidegate.replica.postgres.kinds import EXACT, FLOATS, INTEGERS, NUMBERS, TIMES, Kinds, words
from tidegate.replica.postgres.macros import QUOTIENT

WRITTEN_ALIKE = (*EXACT, "text", "bool", "date", "timestamp", "timestamptz", "time", "uuid", "json", "null")


def refuse(what: str, why: str, instead: str = "") -> QueryRefused:
    """The refusal of a form that DuckDB would answer differently."""
    return QueryRefused(f"{what} is not answered here: {why}{f'; {instead}' if instead else ''}", sqlstate="0A000")


def ours(name: str, *arguments: exp.Expr) -> exp.Expr:
    """A call of one of our macros."""
    call = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    return exp.Dot(this=exp.to_identifier("tg_pg"), expression=call)


def cast(node: exp.Expr, kind: str) -> exp.Expr:
    return exp.Cast(this=node.copy(), to=exp.DataType.build(kind, dialect="duckdb"))


def numeric(node: exp.Expr, kind: str) -> exp.Expr:
    """An operand of numeric arithmetic; HUGEINT and integers as they are."""
    return cast(node, "DECIMAL(38,0)") if kind in INTEGERS else node


def divide(node: exp.Div, kinds: Kinds) -> exp.Expr:
    left, right = kinds.of(node.left, node.right)
    if left in INTEGERS and right in INTEGERS:
        return ours("tg_quotient", node.left, node.right)
    if left in EXACT and right in EXACT:
        return ours("tg_numeric_quotient", numeric(node.left, left), numeric(node.right, right))
    if left in NUMBERS and right in NUMBERS:
        single = left == right == "float4"
        sides = [side if single else cast(side, "DOUBLE") for side in (node.left, node.right)]
        return ours("tg_float_quotient", *sides)
    raise refuse(f"{left} / {right}", "only numbers are divided", "cast the operands to numbers")


def remainder(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    left, right = kinds.of(node.this, node.expression)
    if left in EXACT and right in EXACT:
        return ours("tg_remainder", node.this, node.expression)
    raise refuse(f"{left} % {right}", "PostgreSQL has it for integers and numeric", "cast the operands")


def subtract(node: exp.Sub, kinds: Kinds) -> exp.Expr:
    if isinstance(node.left, exp.Literal) or isinstance(node.right, (exp.Literal, exp.Interval)):
        return node
    left, right = kinds.of(node.left, node.right)
    if left == right == "date":
        return cast(exp.Paren(this=node.copy()), "INTEGER")
    if left == right == "time":
        raise refuse("time - time", "DuckDB does not subtract times", "cast them to interval")
    return node


def power(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    left, right = kinds.of(node.this, node.expression)
    if "numeric" in (left, right) and not {left, right} & set(FLOATS):
        raise refuse("a power of numeric", "DuckDB computes it as float8", "cast to float8")
    return ours("tg_finite", exp.Anonymous(this="pow", expressions=[node.this.copy(), node.expression.copy()]))


def concatenate(node: exp.DPipe, kinds: Kinds) -> exp.Expr:
    told = kinds.duckdb(node.left, node.right)
    if all(kind.endswith("]") for kind in told):
        return node
    for kind, found in zip(kinds.of(node.left, node.right), told, strict=True):
        if kind not in WRITTEN_ALIKE or found == QUOTIENT:
            raise refuse(f"|| with {found}", "DuckDB writes it as text in another way", "round it or cast it first")
    return node


def convert(node: exp.Cast, kinds: Kinds) -> exp.Expr:
    target = node.to
    written = target.sql(dialect="postgres").lower()
    if target.is_type("decimal"):
        return _to_numeric(node, target, kinds)
    if target.is_type("jsonb"):
        return cast(node.this, "JSON")
    if target.is_type("char", "nchar", "bpchar") or written.startswith(("bit", "money", "xml")):
        raise refuse(f"a cast to {written}", "DuckDB has no such type", "cast to text")
    if target.is_type("varchar", "text", "nvarchar", "name"):
        return _to_text(node, target, kinds)
    if target.is_type("timestamp", "timestamptz", "time", "timetz", "interval") and target.expressions:
        raise refuse(f"a cast to {written}", "times have microseconds here", "leave the precision out")
    return node


def _to_numeric(node: exp.Cast, target: exp.DataType, kinds: Kinds) -> exp.Expr:
    (kind,) = kinds.of(node.this)
    text = isinstance(node.this, exp.Literal) and node.this.is_string
    if target.expressions:
        if kind in FLOATS:
            shown = exp.Anonymous(this="printf", expressions=[exp.Literal.string("%.15g"), cast(node.this, "DOUBLE")])
            return exp.Cast(this=shown, to=target.copy())
        return node
    if kind in INTEGERS:
        return cast(node.this, "DECIMAL(38,0)")
    if kind == "numeric":
        return exp.Paren(this=node.this.copy())
    if kind in FLOATS:
        return ours("tg_float_numeric", node.this)
    if kind == "null":
        return cast(node.this, "DECIMAL(38,0)")
    if text and node.this.name.strip().lstrip("+-").replace(".", "", 1).isdigit():
        return cast(node.this, f"DECIMAL(38,{len(node.this.name.strip().partition('.')[2])})")
    raise refuse(f"a cast of {kind} to numeric", "it needs its digits here", "write numeric(p,s)")


def _to_text(node: exp.Cast, target: exp.DataType, kinds: Kinds) -> exp.Expr:
    ((kind,), (found,)) = (kinds.of(node.this), kinds.duckdb(node.this))
    if kind not in WRITTEN_ALIKE or found == QUOTIENT:
        raise refuse(f"a cast of {found} to text", "DuckDB writes it in another way", "round it or cast it first")
    plain = cast(node.this, "VARCHAR")
    if not target.expressions:
        return plain
    return exp.Anonymous(this="left", expressions=[plain, exp.Literal.number(target.expressions[0].name)])


def extract(node: exp.Extract, kinds: Kinds) -> exp.Expr:
    return part(node.this.name, node.expression, kinds)


_PARTS = words("year month day hour minute quarter week dow isodow doy isoyear decade century millennium")


def part(field: str, value: exp.Expr, kinds: Kinds) -> exp.Expr:
    """A field of a time, as numeric."""
    field = field.lower()
    (kind,) = kinds.of(value)
    if kind not in (*TIMES, "time", "interval"):
        raise refuse(f"{field} of {kind}", "it is no time", "cast it to timestamp")
    if field == "epoch":
        if kind == "date":
            value = cast(value, "TIMESTAMP")
        return ours("tg_epoch", exp.Anonymous(this="epoch_us", expressions=[value.copy()]))
    if kind == "date" and field in ("hour", "minute", "second", "milliseconds", "microseconds"):
        raise refuse(f"{field} of a date", "a date has none", "cast it to timestamp")
    if field in ("second", "seconds", "milliseconds", "millisecond", "microseconds", "microsecond"):
        us = exp.Anonymous(this="date_part", expressions=[exp.Literal.string("microseconds"), value.copy()])
        unit = {"s": "0.000001", "m": "0.001"}["s" if field.startswith("s") else "m"]
        if field.startswith("micro"):
            return cast(us, "DECIMAL(38,0)")
        return exp.Paren(this=exp.Mul(this=cast(us, "DECIMAL(18,0)"), expression=exp.Literal.number(unit)))
    if field not in _PARTS or (kind == "interval" and field in ("dow", "isodow", "doy", "week", "isoyear")):
        raise refuse(f"extract({field} …)", "DuckDB counts it in another way", f"there are {', '.join(_PARTS)}, epoch")
    call = exp.Anonymous(this="date_part", expressions=[exp.Literal.string(field), value.copy()])
    return cast(call, "DECIMAL(38,0)")


def matches(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    """``~``: a match anywhere in the text; a dot stands for a line break too."""
    options = exp.Literal.string("is" if isinstance(node, exp.RegexpILike) else "s")
    return exp.Anonymous(this="regexp_matches", expressions=[node.this.copy(), node.expression.copy(), options])


def like(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    """The escape character is a backslash unless another is given."""
    pattern = node.expression
    plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
    if plain or isinstance(node.parent, exp.Escape):
        return node
    if isinstance(pattern, (exp.Any, exp.All)):
        raise refuse("LIKE ANY", "DuckDB does not compare with an array", "write x LIKE 'a' OR x LIKE 'b'")
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


def in_zone(node: exp.AtTimeZone, kinds: Kinds) -> exp.Expr:
    (kind,) = kinds.of(node.this)
    if kind in ("timestamp", "timestamptz"):
        return node
    raise refuse(f"{kind} AT TIME ZONE", "only timestamps have a zone", "cast it to timestamp")


def exact_literal(node: exp.Literal, kinds: Kinds) -> exp.Expr:
    """``1e3`` is numeric in PostgreSQL."""
    if node.is_string or "e" not in node.name.lower() or node.name.lower().startswith("0x"):
        return node
    digits = f"{Decimal(node.name):f}"
    return exp.Literal.number(digits if "." in digits else f"{digits}.0")


def similar(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    raise refuse("SIMILAR TO", "DuckDB takes the pattern for a regular expression", "use LIKE or ~")


def locking(node: exp.Lock, kinds: Kinds) -> exp.Expr:
    raise QueryRefused("FOR UPDATE and FOR SHARE can't be used: SQL from outside only reads", sqlstate="25006")


def overlay(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    raise refuse("overlay", "DuckDB has no such function", "put the text together with left, substring and ||")


def zoned_time(node: exp.Expr, kinds: Kinds) -> exp.Expr:
    raise refuse("current_time", "DuckDB's has no zone", "use localtime or current_timestamp")


CHANGES: dict[type[exp.Expr], Callable[..., exp.Expr]] = {
    exp.Div: divide,
    exp.IntDiv: lambda node, kinds: node,
    exp.Mod: remainder,
    exp.Sub: subtract,
    exp.Pow: power,
    exp.DPipe: concatenate,
    exp.Cast: convert,
    exp.Extract: extract,
    exp.RegexpLike: matches,
    exp.RegexpILike: matches,
    exp.Like: like,
    exp.ILike: like,
    exp.AtTimeZone: in_zone,
    exp.SimilarTo: similar,
    exp.Lock: locking,
    exp.Literal: exact_literal,
    exp.CurrentTime: zoned_time,
    exp.Overlay: overlay,
}
