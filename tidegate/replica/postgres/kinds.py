"""What type an expression has: told by DuckDB, which binds it where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.replica import text

Bind = Callable[[str], list[str]]

INTEGERS = ("int2", "int4", "int8")
FLOATS = ("float4", "float8")
EXACT = (*INTEGERS, "numeric")
NUMBERS = (*EXACT, *FLOATS)
TIMES = ("date", "timestamp", "timestamptz")
_KINDS = {
    "TINYINT": "int2",
    "SMALLINT": "int2",
    "UTINYINT": "int2",
    "INTEGER": "int4",
    "USMALLINT": "int4",
    "BIGINT": "int8",
    "UINTEGER": "int8",
    "UBIGINT": "numeric",
    "HUGEINT": "numeric",
    "UHUGEINT": "numeric",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "VARCHAR": "text",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "INTERVAL": "interval",
    "BOOLEAN": "bool",
    "UUID": "uuid",
    "JSON": "json",
    '"NULL"': "null",
    "NULL": "null",
}
MOST = 200  # expressions of a statement whose type is looked up


def words(text: str) -> tuple[str, ...]:
    """Names in one text, for long lists."""
    return tuple(text.split())


def kind_of(duckdb: str) -> str:
    """PostgreSQL's name of a type of DuckDB, as far as the translation tells them apart.

    >>> kind_of("DECIMAL(9,2)"), kind_of("INTEGER"), kind_of("INTEGER[]")
    ('numeric', 'int4', 'other')
    """
    if re.fullmatch(r"DECIMAL\(\d+,\s*\d+\)", duckdb):
        return "numeric"
    return _KINDS.get(duckdb, "other")


class Kinds:
    """Looks types up in the statement that is being translated; what is nested deeper has been translated before."""

    def __init__(self, bind: Bind) -> None:
        """``bind``: the types of the columns of a query, which is checked first."""
        self._bind = bind
        self._count = 0

    def of(self, *operands: exp.Expr) -> list[str]:
        """PostgreSQL's names of the types of expressions that stand in the same SELECT."""
        return [kind_of(kind) for kind in self.duckdb(*operands)]

    def duckdb(self, *operands: exp.Expr) -> list[str]:
        """The same, as DuckDB spells them."""
        plain = [_literal(operand) for operand in operands]
        if all(plain):
            return [kind or "" for kind in plain]
        self._count += 1
        if self._count > MOST:
            raise QueryRefused(
                f"more than {MOST} operations whose types must be known; send a shorter statement", sqlstate="54001"
            )
        told: TidegateError | None = None
        for probe in _probes(list(operands)):
            try:
                return self._bind(text.show_parameters(probe.sql(dialect="duckdb")))
            except (QueryFailed, QueryRefused) as error:
                told = told or error
        shown = ", ".join(operand.sql(dialect="postgres")[:100] for operand in operands)
        raise QueryFailed(
            f"the type of {shown} can't be told: {told}", sqlstate=getattr(told, "sqlstate", None) or "42804"
        )


def _literal(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Literal):
        if node.is_string:
            return "VARCHAR"
        if node.name.isdigit() and int(node.name) < 2**31:
            return "INTEGER"
    return None


def _probes(operands: list[exp.Expr]) -> list[exp.Select]:
    """Queries for just these expressions: over their own SELECT's sources, then over those around it too."""
    scopes = [node for node in _ancestors(operands[0]) if isinstance(node, exp.Select)]
    probes: list[exp.Select] = []
    if not any(operand.find(exp.Column) for operand in operands):
        probes.append(_without_parameters(exp.Select(expressions=[operand.copy() for operand in operands])))
    for depth in range(1, max(len(scopes), 1) + 1):
        probe = exp.Select(expressions=[_alone(operand) for operand in operands])
        for scope in reversed(scopes[:depth]):  # what stands inside may refer to what is around it
            _add_sources(probe, scope, operands[0])
        _add_definitions(probe, operands[0])
        probes.append(_without_parameters(probe))
    return probes


def _alone(operand: exp.Expr) -> exp.Expr:
    """The expression without the GROUP BY around it: columns beside aggregates are any of the group."""
    copy = operand.copy()
    if any(_aggregates(node) for node in copy.find_all(exp.Anonymous)):
        holder = exp.Paren(this=copy)
        for column in list(holder.find_all(exp.Column)):
            if not _inside_aggregate(column, holder):
                column.replace(exp.Anonymous(this="any_value", expressions=[column.copy()]))
        return holder
    return copy


def _aggregates(call: exp.Anonymous) -> bool:
    parent = call.parent
    over = isinstance(parent, exp.Window) or (isinstance(parent, exp.Filter) and isinstance(parent.parent, exp.Window))
    return str(call.this).lower() in AGGREGATES and not over


def _inside_aggregate(node: exp.Expr, top: exp.Expr) -> bool:
    parent = node.parent
    while parent is not None and parent is not top:
        if isinstance(parent, exp.Query):
            return True  # of a subquery of its own
        if isinstance(parent, exp.Anonymous) and _aggregates(parent):
            return True
        parent = parent.parent
    return False


def _add_sources(probe: exp.Select, scope: exp.Select, operand: exp.Expr) -> None:
    sources = [scope.args["from_"].this] if scope.args.get("from_") else []
    joins = [*(scope.args.get("joins") or []), *(scope.args.get("laterals") or [])]
    above = set(map(id, _ancestors(operand)))
    for source in sources:
        if id(source) in above:
            continue
        if probe.args.get("from_") is None:
            probe.set("from_", exp.From(this=source.copy()))
        else:
            probe.append("joins", exp.Join(this=source.copy(), kind="CROSS"))
    for join in joins:
        if id(join.this) in above:
            continue
        copy = join.copy()
        if isinstance(copy, exp.Join) and copy.args.get("on") is not None:
            copy.set("on", exp.true())
        if probe.args.get("from_") is None:
            probe.set("from_", exp.From(this=copy.this))
        else:
            probe.append("joins" if isinstance(copy, exp.Join) else "laterals", copy)
    for window in scope.args.get("windows") or []:
        probe.append("windows", window.copy())


def _ancestors(node: exp.Expr) -> list[exp.Expr]:
    found = []
    parent = node.parent
    while parent is not None:
        found.append(parent)
        parent = parent.parent
    return found


def _add_definitions(probe: exp.Select, operand: exp.Expr) -> None:
    """The WITH clauses that are visible at the expression; the innermost definition of a name counts."""
    definitions: dict[str, exp.CTE] = {}
    recursive = False
    for node in _ancestors(operand):
        clause = node.args.get("with_") if isinstance(node, exp.Query) else None
        if isinstance(clause, exp.With):
            recursive = recursive or bool(clause.args.get("recursive"))
            for cte in reversed(clause.expressions):
                definitions.setdefault(cte.alias.lower(), cte)
    if definitions:
        found = [cte.copy() for cte in reversed(definitions.values())]
        probe.set("with_", exp.With(expressions=found, recursive=recursive))


def _without_parameters(probe: exp.Select) -> exp.Select:
    """Types don't depend on values; a parameter of no known type is a number with digits after the point."""
    for call in list(probe.find_all(exp.Anonymous)):
        if str(call.this).lower() == text.STAND_IN:
            cast = isinstance(call.parent, exp.Cast)
            call.replace(exp.Null() if cast else exp.cast(exp.Null(), "DECIMAL(38,10)"))
    return probe


AGGREGATES = words(
    "any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp every "
    "json_agg json_group_array json_object_agg jsonb_agg max median min mode percentile_cont percentile_disc "
    "quantile_cont regr_count regr_slope regr_intercept regr_r2 regr_avgx regr_avgy regr_sxx regr_syy regr_sxy "
    "stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance approx_count_distinct first last list"
)
