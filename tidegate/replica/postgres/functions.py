"""Functions that DuckDB and PostgreSQL both have: the same, rewritten, or refused. Those of DuckDB alone stay what they are."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from tidegate.replica.postgres.formats import read_pattern, shown
from tidegate.replica.postgres.kinds import EXACT, FLOATS, NUMBERS, TIMES, Kinds, kind_of, words
from tidegate.replica.postgres.macros import QUOTIENT
from tidegate.replica.postgres.operators import WRITTEN_ALIKE, cast, numeric, ours, part, power, refuse, remainder

# checked against PostgreSQL, see tests/replica/test_postgres_answers.py
SAME = words(
    "abs any_value array_agg array_append array_cat array_prepend array_to_string bool_and bool_or chr coalesce "
    "concat_ws count cume_dist dense_rank exists first_value gen_random_uuid greatest lag last_value lead least "
    "left lower ltrim make_date max md5 min mode now nth_value nullif percent_rank pi rank replace reverse repeat "
    "right regr_count row_number rpad lpad rtrim starts_with string_agg string_to_array transaction_timestamp "
    "translate unnest upper version current_database current_schema current_schemas current_setting "
    "generate_subscripts"
)
INT4 = words(
    "ascii array_length array_position bit_length cardinality char_length character_length length ntile "
    "octet_length position strpos"
)
FLOAT8 = words("acos asin atan atan2 cos cot degrees radians sin tan sinh cosh tanh asinh acosh atanh")
FINITE = words("exp ln log log10 sqrt")
ROUNDED = words("ceil ceiling floor round sign trunc")
STATISTICS = words("stddev stddev_pop stddev_samp var_pop var_samp variance")
PAIRS = words(
    "corr covar_pop covar_samp regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy"
)
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("random", "setseed"), ("every engine has its own sequence", "")),
    **dict.fromkeys(
        ("age", "justify_days", "justify_hours", "justify_interval"),
        ("DuckDB counts months and days in another way", "subtract the times"),
    ),
    **dict.fromkeys(
        (
            "array_to_json",
            "json_each",
            "json_extract_path",
            "json_extract_path_text",
            "json_object",
            "json_strip_nulls",
        ),
        ("DuckDB's works in another way", "use -> and ->>"),
    ),
    **dict.fromkeys(
        ("bit_and", "bit_count", "bit_or", "bit_xor", "get_bit", "set_bit", "decode", "encode", "sha256", "to_hex"),
        ("DuckDB writes bits and bytes in another way", ""),
    ),
    **dict.fromkeys(
        ("enum_first", "enum_last", "enum_range", "factorial", "isfinite", "gcd", "lcm", "like_escape"),
        ("DuckDB's works in another way", ""),
    ),
    **dict.fromkeys(
        ("make_time", "make_timestamp", "make_timestamptz", "overlay", "timezone"),
        ("DuckDB's works in another way", "cast a text"),
    ),
    **dict.fromkeys(
        ("regexp_matches", "regexp_split_to_array", "regexp_split_to_table"),
        ("DuckDB's gives something else", "use ~ or string_to_array"),
    ),
    "initcap": ("DuckDB has no such function", "for one word: upper(left(x, 1)) || lower(substr(x, 2))"),
    "date_bin": ("DuckDB has no such function", "use time_bucket(interval, time, origin)"),
    "to_number": ("DuckDB has no such function", "replace what is no digit, then cast to numeric(p,s)"),
    "make_interval": ("DuckDB has no such function", "write interval '10 days', or n * interval '1 day'"),
    "width_bucket": ("DuckDB has no such function", "use floor((x - low) / width)"),
    "cbrt": ("its last digits differ", "use pow(x, 1.0/3)"),
    "current_query": ("the statement was translated", ""),
    "pg_typeof": ("DuckDB's types have other names", ""),
}


def change(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    """The call as DuckDB should have it."""
    name = str(node.this).lower()
    if name in _SPECIAL:
        return _SPECIAL[name](node, kinds)
    if name in INT4:
        return over(node, "INTEGER")
    if name in FLOAT8:
        return node
    if name in FINITE:
        return _finite(name, node, kinds)
    if name in ROUNDED:
        return _rounded(name, node, kinds)
    if name in STATISTICS:
        return _statistic(name, node, kinds)
    if name in REFUSED:
        raise refuse(f"{name}()", *REFUSED[name])
    return node


WRAPPERS = (exp.Filter, exp.WithinGroup, exp.Window, exp.IgnoreNulls, exp.RespectNulls)


def outermost(node: exp.Expr) -> exp.Expr:
    """The call with its FILTER, ORDER BY and OVER."""
    while isinstance(node.parent, WRAPPERS) and node.parent.this is node:
        node = node.parent
    return node


def over(node: exp.Expr, kind: str) -> exp.Expr:
    """The call in another type; what is around it goes with it."""
    whole = outermost(node)
    whole.replace(cast(whole, kind))
    return node


def _again(whole: exp.Expr, name: str) -> exp.Expr:
    """The same call, with the same FILTER and OVER, of another aggregate."""
    copy = whole.copy()
    call = copy
    while not isinstance(call, exp.Anonymous):
        call = call.this
    call.set("this", name)
    return copy


def _argument(node: exp.Anonymous) -> exp.Expr:
    if not node.expressions:
        raise refuse(f"{node.this}()", "it needs an argument")
    first: exp.Expr = node.expressions[0]
    if isinstance(first, exp.Distinct):
        first = first.expressions[0]
    if isinstance(first, exp.Order):
        first = first.this
    return first


def _sum(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    (kind,) = kinds.of(_argument(node))
    if kind in ("int2", "int4"):
        return over(node, "BIGINT")
    if kind in ("int8", "numeric", "float8", "null"):
        return node
    raise refuse(f"sum of {kind}", "DuckDB adds it in another way", "cast to numeric or float8")


def _average(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    (kind,) = kinds.of(_argument(node))
    if kind in FLOATS:
        return node
    if kind not in EXACT:
        raise refuse(f"avg of {kind}", "only numbers are averaged", "cast to numeric or float8")
    whole = outermost(node)
    total = numeric(_again(whole, "sum"), "int8" if kind != "numeric" else kind)
    whole.replace(ours("tg_average", total, _again(whole, "count")))
    return node


def _statistic(name: str, node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    (kind,) = kinds.of(_argument(node))
    if kind in FLOATS:
        return node
    raise refuse(f"{name} of {kind}", "DuckDB computes it as float8, PostgreSQL as numeric", "cast to float8")


def _finite(name: str, node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    found = kinds.of(*node.expressions)
    if "numeric" in found or len(found) != 1:
        raise refuse(f"{name} of numeric", "DuckDB computes it as float8", "cast to float8")
    return ours("tg_finite", node)


def _rounded(name: str, node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    arguments = node.expressions
    kind = kinds.of(arguments[0])[0]
    if kind not in NUMBERS:
        raise refuse(f"{name} of {kind}", "only numbers are rounded", "cast to numeric or float8")
    if len(arguments) == 2:
        if kind in FLOATS:
            raise refuse(f"{name}({kind}, integer)", "PostgreSQL has it for numeric only", "cast to numeric")
        return exp.Anonymous(this=name, expressions=[numeric(arguments[0], kind), arguments[1].copy()])
    if name == "sign":
        return cast(node, "DECIMAL(38,0)" if kind == "numeric" else "DOUBLE")
    if kind == "numeric":
        return node
    if name == "round":
        return exp.Anonymous(this="round_even", expressions=[cast(arguments[0], "DOUBLE"), exp.Literal.number(0)])
    return exp.Anonymous(this=name, expressions=[cast(arguments[0], "DOUBLE")])


def _date_part(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    field, value = node.expressions
    if not (isinstance(field, exp.Literal) and field.is_string):
        raise refuse("date_part", "its field must be a text in the statement")
    return cast(part(field.name, value, kinds), "DOUBLE")


_UNITS = words("microseconds milliseconds second minute hour day week month quarter year decade century millennium")


def _date_trunc(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    field = node.expressions[0]
    if len(node.expressions) != 2 or (isinstance(field, exp.Literal) and field.name.lower() not in _UNITS):
        raise refuse("date_trunc", "it takes a unit as text and a time", f"the units are {', '.join(_UNITS)}")
    (kind,) = kinds.of(node.expressions[1])
    if kind == "date":
        return cast(node, "TIMESTAMP WITH TIME ZONE")
    if kind not in TIMES:
        raise refuse(f"date_trunc of {kind}", "only times are cut", "cast it to timestamp")
    return node


def _to_char(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    value, pattern = _with_pattern(node)
    (kind,) = kinds.of(value)
    if kind not in TIMES:
        raise refuse(f"to_char of {kind}", "only times are written by a pattern here", "cast to text or round")
    return shown(value, pattern)


def _to_timestamp(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    if len(node.expressions) == 1:
        return exp.Anonymous(this="to_timestamp", expressions=[cast(node.expressions[0], "DOUBLE")])
    value, pattern = _with_pattern(node)
    return cast(_read(value, pattern), "TIMESTAMP WITH TIME ZONE")


def _to_date(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    return cast(_read(*_with_pattern(node)), "DATE")


def _read(value: exp.Expr, pattern: str) -> exp.Expr:
    return exp.Anonymous(this="strptime", expressions=[value.copy(), exp.Literal.string(read_pattern(pattern))])


def _with_pattern(node: exp.Anonymous) -> tuple[exp.Expr, str]:
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Literal):
        raise refuse(f"{str(node.this).lower()}()", "its pattern must be a text in the statement")
    return node.expressions[0], node.expressions[1].name


def _concat(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    _alike(node.expressions, kinds)
    return node


def _alike(values: list[exp.Expr], kinds: Kinds) -> None:
    """Both write these as the same text."""
    for found in kinds.duckdb(*values):
        kind = kind_of(found)
        if kind not in WRITTEN_ALIKE or kind == "bool" or found == QUOTIENT:
            raise refuse(f"concat of {found}", "DuckDB writes it as text in another way", "cast it first")


def _format(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    """``%s`` and ``%I``."""
    pattern, *values = node.expressions
    pieces = re.findall(r"%%|%s|%I|[^%]+|%", pattern.name) if isinstance(pattern, exp.Literal) else ["%"]
    if "%" in pieces or sum(piece in ("%s", "%I") for piece in pieces) != len(values):
        raise refuse("this format()", "only %s and %I are known here", "use concat")
    if values:
        _alike(values, kinds)
    left, parts = iter(values), []
    for piece in pieces:
        if piece == "%s":
            parts.append(next(left).copy())
        elif piece == "%I":
            parts.append(ours("quote_ident", next(left)))
        else:
            parts.append(exp.Literal.string("%" if piece == "%%" else piece))
    return exp.Anonymous(this="concat", expressions=parts)


def _json_agg(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    _json_keeps(node, [_argument(node)], kinds)
    whole = outermost(node)
    whole.replace(ours("tg_json", _again(whole, "array_agg")))
    return node


def _json(name: str) -> Callable[[exp.Anonymous, Kinds], exp.Expr]:
    def changed(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
        _json_keeps(node, node.expressions, kinds)
        return exp.Anonymous(this=name, expressions=[argument.copy() for argument in node.expressions])

    return changed


def _json_keeps(node: exp.Anonymous, arguments: list[exp.Expr], kinds: Kinds) -> None:
    """JSON of times, bytes and long numbers is written in another way by DuckDB."""
    if not arguments:
        return
    for found in kinds.duckdb(*arguments):
        if any(part in found for part in ("TIME", "BLOB", "INTERVAL", "HUGEINT", "DECIMAL", "UBIGINT", "MAP")):
            raise refuse(
                f"{node.this} of {found}", "DuckDB writes it in JSON in another way", "cast it to text or float8"
            )


def _series(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    """Rows, also where it stands in a list of columns."""
    if isinstance(node.parent, exp.Table):
        return node
    found = kinds.of(*node.expressions)
    rows = exp.Anonymous(this="unnest", expressions=[node.copy()])
    return cast(rows, "INTEGER") if set(found) <= {"int2", "int4"} else rows


def _substring(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    return substring(*node.expressions)


def substring(value: exp.Expr, start: exp.Expr, count: exp.Expr | None = None) -> exp.Expr:
    """A start before the first character counts too."""
    if isinstance(start, exp.Literal) and start.is_string:
        raise refuse("substring with a pattern", "DuckDB's regular expressions differ", "use split_part or ~")
    limit = count or exp.Literal.number(2**31)
    return ours("tg_start", value, cast(start, "BIGINT"), cast(limit, "BIGINT"))


def _replaced(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    pattern = node.expressions[1] if len(node.expressions) in (3, 4) else None
    options = node.expressions[3].name if len(node.expressions) == 4 else ""
    plain = isinstance(pattern, exp.Literal) and not any(mark in pattern.name for mark in ("|", "*?", "+?", "??", "}?"))
    if not plain or not set(options) <= set("gi"):
        raise refuse(
            "this regexp_replace", "of several matches DuckDB takes another", "leave out | and lazy repetition"
        )
    arguments = [argument.copy() for argument in node.expressions[:3]]
    return exp.Anonymous(this="regexp_replace", expressions=[*arguments, exp.Literal.string(options + "s")])


def _percentile(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    group = node.parent
    ordered = group.find(exp.Ordered) if isinstance(group, exp.WithinGroup) else None
    if ordered is None or ordered.args.get("desc"):
        raise refuse("this percentile", "it needs WITHIN GROUP (ORDER BY x), ascending")
    (kind,) = kinds.of(ordered.this)
    if kind not in NUMBERS:
        raise refuse(f"a percentile of {kind}", "DuckDB computes it in another way", "cast to float8")
    even = str(node.this).lower() == "percentile_cont"
    value = cast(ordered.this, "DOUBLE") if even else ordered.this.copy()
    call = exp.Anonymous(
        this="quantile_cont" if even else "quantile_disc", expressions=[value, node.expressions[0].copy()]
    )
    assert group is not None
    group.replace(call)
    return node


def _split(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    place = node.expressions[-1]
    if isinstance(place, exp.Literal) and not place.is_string and place.name != "0":
        return node
    raise refuse("split_part", "the place must be a number above 0 in the statement")


def _pow(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    pair = exp.Pow(this=node.expressions[0].copy(), expression=node.expressions[1].copy())
    pair.parent = node.parent
    return power(_in_place(node, pair), kinds)


def _mod(node: exp.Anonymous, kinds: Kinds) -> exp.Expr:
    pair = exp.Mod(
        this=exp.Paren(this=node.expressions[0].copy()), expression=exp.Paren(this=node.expressions[1].copy())
    )
    return remainder(_in_place(node, pair), kinds)


def _in_place(node: exp.Expr, other: exp.Expr) -> exp.Expr:
    node.replace(other)
    return other


_SPECIAL: dict[str, Callable[[exp.Anonymous, Kinds], exp.Expr]] = {
    "sum": _sum,
    "avg": _average,
    "date_part": _date_part,
    "date_trunc": _date_trunc,
    "to_char": _to_char,
    "to_timestamp": _to_timestamp,
    "to_date": _to_date,
    "concat": _concat,
    "format": _format,
    "json_agg": _json_agg,
    "jsonb_agg": _json_agg,
    "json_build_object": _json("json_object"),
    "jsonb_build_object": _json("json_object"),
    "json_build_array": _json("json_array"),
    "jsonb_build_array": _json("json_array"),
    "row_to_json": _json("to_json"),
    "to_json": _json("to_json"),
    "to_jsonb": _json("to_json"),
    "json_array_length": lambda node, kinds: over(node, "INTEGER"),
    "jsonb_array_length": lambda node, kinds: cast(
        exp.Anonymous(this="json_array_length", expressions=[e.copy() for e in node.expressions]), "INTEGER"
    ),
    "every": lambda node, kinds: exp.Anonymous(this="bool_and", expressions=[e.copy() for e in node.expressions]),
    "generate_series": _series,
    "substring": _substring,
    "substr": _substring,
    "regexp_replace": _replaced,
    "percentile_cont": _percentile,
    "percentile_disc": _percentile,
    "split_part": _split,
    "pow": _pow,
    "power": _pow,
    "mod": _mod,
    "btrim": lambda node, kinds: exp.Anonymous(this="trim", expressions=[e.copy() for e in node.expressions]),
}
DECIDED = {*SAME, *INT4, *FLOAT8, *FINITE, *ROUNDED, *STATISTICS, *PAIRS, *REFUSED, *_SPECIAL}
