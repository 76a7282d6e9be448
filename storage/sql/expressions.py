"""Scalar SQL expressions as Python source, for statements that address rows directly.

Only what has exactly DuckDB's meaning is compiled; everything else raises :class:`NotCompilable` and is left
to DuckDB. The generated code reads ``row`` (the current row), ``new`` (the row that ON CONFLICT calls
``excluded``) and ``p`` (the parameters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from sqlglot import exp

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Column, Relation
from tidegate.storage.sql import semantics
from tidegate.storage.sql.codes import Code, Fold, NotCompilable, Scope, column_code, is_constant
from tidegate.storage.sql.parsing import function_name
from tidegate.storage.types import ColumnType, column_type

COMPARABLE = {"integer", "decimal", "text", "boolean", "timestamp", "date", "time", "uuid", "blob", "float"}
_INT32 = (-(2**31), 2**31 - 1)
_COMPARISONS: dict[type[exp.Expression], tuple[str, bool]] = {
    exp.EQ: ("eq", False),
    exp.NEQ: ("ne", False),
    exp.LT: ("lt", False),
    exp.LTE: ("le", False),
    exp.GT: ("lt", True),
    exp.GTE: ("le", True),
}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_FIXED = {"SECOND", "MINUTE", "HOUR", "DAY", "WEEK"}  # intervals that are always as long
_ARITHMETIC: dict[type[exp.Expression], str] = {exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul"}
DRAWN = {"now": "timestamp", "today": "date", "time": "time", "random": "float", "uuid": "uuid"}


class Subqueries(Protocol):
    """What compiles the subqueries of a statement: :class:`~.subqueries.Subqueries`."""

    def found(self, query: exp.Expression, subject: Code) -> str: ...
    def scalar(self, query: exp.Expression, outer: Compiler) -> Code: ...


class Compiler:
    """Compiles the expressions of one statement against one scope."""

    def __init__(self, scope: Scope, fold: Fold, parameters: int, draws: Sequence[str] = ()) -> None:
        self.scope = scope
        self.fold = fold
        self.parameters = parameters
        self.draws = draws
        self.subqueries: Subqueries | None = None  # where they may be
        self.namespace: dict[str, Any] = {
            name: value for name, value in vars(semantics).items() if not name.startswith("__")
        }

    # ---- results

    def function(self, body: str, arguments: str = "row, p") -> Any:
        """The function that evaluates ``body``."""
        return eval(f"lambda {arguments}: {body}", self.namespace)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def predicate(self, conditions: Sequence[exp.Expression]) -> str:
        """Python code that is true when every condition is true (not false and not NULL)."""
        codes = [self.value(condition) for condition in conditions]
        if any(code.family != "boolean" for code in codes):
            raise NotCompilable
        return " and ".join(f"({code.text}) is True" if code.nullable else f"({code.text})" for code in codes) or "True"

    def assigned(self, node: exp.Expression, column: Column, relation: Relation) -> str:
        """``node`` as a value for ``column``, in its stored form; a bare parameter is checked like any row's
        value.
        """
        if is_constant(node):
            return self._fold(f"CAST({node.sql('duckdb')} AS {column.type.sql})", column.type).text
        code = self.value(node)
        target = column.type
        if code.family == "param":
            return f"{self.constant(partial(relation.check_value, column))}({code.text})"
        if code.family == target.family and code.sql == target.sql:
            return code.text
        if code.family == target.family or (code.family == "integer" and target.family in {"float", "decimal"}):
            if target.sql == "FLOAT" or target.family in {"list", "json", "interval"}:
                raise NotCompilable
            return f"{self.constant(semantics.guarded(target.coerce))}({code.text})"
        raise NotCompilable

    def key_part(self, column: Column, other: exp.Expression) -> str:
        """The value that ``column = other`` looks up, in the column's stored form; None finds nothing."""
        subject = column_code(column, "")
        (_, code), family = self._same([subject, self.value(other)])
        if code.family not in {family, "null"} or family != column.type.family or family == "float":
            raise NotCompilable
        return f"{self.constant(semantics.exact_part(column.type))}({code.text})"

    def comparable(self, subject: Code, other: exp.Expression) -> str:
        """The value that ``subject`` is compared with, for which Python's order of stored values is that of SQL."""
        (_, code), family = self._same([subject, self.value(other)])
        if code.family not in {family, "null"} or family != subject.family or family == "float":
            raise NotCompilable
        return code.text

    # ---- expressions

    def value(self, node: exp.Expression) -> Code:
        if isinstance(node, (exp.Paren, exp.Alias)):
            return self.value(node.this)
        if isinstance(node, exp.Column):
            return self.scope.find(node)
        if isinstance(node, exp.Placeholder):
            return self._placeholder(node)
        if (simple := self._literal(node)) is not None:
            return simple
        if is_constant(node):
            return self._fold(node.sql("duckdb"), None)
        if type(node) in _COMPARISONS:
            name, swapped = _COMPARISONS[type(node)]
            left, right = (node.expression, node.this) if swapped else (node.this, node.expression)
            return self._compare(name, left, right)
        if isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.expression, exp.Interval):
            return self._moved(node, node.expression)
        if type(node) in _ARITHMETIC:
            return self._arithmetic(_ARITHMETIC[type(node)], self.value(node.this), self.value(node.expression))
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotCompilable
        code = method(node)
        assert isinstance(code, Code)
        return code

    def _literal(self, node: exp.Expression) -> Code | None:
        if isinstance(node, exp.Null):
            return Code("None", "null", True)
        if isinstance(node, exp.Boolean):
            return Code(str(bool(node.this)), "boolean")
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and node.this.is_int:
            return Code(f"-{int(node.this.this)}", "integer")
        if isinstance(node, exp.Literal):
            if node.is_string:
                return Code(repr(node.this), "string", literal=node.sql("duckdb"))
            if node.is_int and int(node.this) <= _INT32[1]:
                return Code(str(int(node.this)), "integer")
        return None

    def _fold(self, sql: str, kind: ColumnType | None) -> Code:
        value, type_name = self.fold(sql)
        if kind is None:
            try:
                kind = column_type(type_name)
            except DeclarationError:
                raise NotCompilable from None
        if value is None:
            return Code("None", "null", True)
        try:
            value = kind.coerce(value)
        except (ValueError, TypeError, OverflowError):
            raise NotCompilable from None
        return replace(column_code(Column("", kind, nullable=False), self.constant(value)))

    def _placeholder(self, node: exp.Placeholder) -> Code:
        place = int(str(node.this)[1:])
        if place >= self.parameters:
            return Code(f"p[{place}]", DRAWN[self.draws[place - self.parameters]])
        return Code(f"p[{place}]", "param", True)

    def _typed(self, code: Code, family: str, sql: str | None) -> Code:
        """``code`` as a value of ``family`` (the type of its neighbour)."""
        if code.family == "null" or code.family == family:
            return code
        if code.family == "param" and family in semantics.PARAMETERS:
            place = self.constant(semantics.PARAMETERS[family])
            return Code(f"{place}({code.text})", family, True, _INT32 if family == "integer" else None)
        if code.family == "string" and family == "text":
            return replace(code, family="text")
        if code.family == "string" and sql is not None:
            return self._fold(f"CAST({code.literal} AS {sql})", column_type(sql))
        if code.family == "integer" and code.bounds is None and family == "decimal":
            return Code(self._fold_decimal(code.text), "decimal")
        if code.family == "integer" and family == "float":
            return Code(f"as_float({code.text})", "float", code.nullable)
        if code.family == "decimal" and family == "float" and not code.nullable and code.text in self.namespace:
            return self._fold(f"CAST({self.namespace[code.text]} AS DOUBLE)", column_type("DOUBLE"))
        raise NotCompilable

    def _fold_decimal(self, text: str) -> str:
        return self.constant(semantics.decimal(int(text)))

    def _same(self, codes: Sequence[Code]) -> tuple[list[Code], str]:
        """All ``codes`` in the one family that DuckDB would cast them to."""
        families = {code.family for code in codes} - {"null", "param", "string"}
        if not families:
            families = {"text"} if any(code.family == "string" for code in codes) else set()
        if "float" in families and families <= {"float", "integer", "decimal"}:
            families = {"float"}
        elif families == {"decimal", "integer"}:
            families = {"decimal"}
        if len(families) != 1 or not families <= COMPARABLE:
            raise NotCompilable
        family = families.pop()
        sql = next((code.sql for code in codes if code.family == family and code.sql), None)
        return [self._typed(code, family, sql) for code in codes], family

    def _compare(self, name: str, left: exp.Expression, right: exp.Expression) -> Code:
        (a, b), family = self._same([self.value(left), self.value(right)])
        nullable = a.nullable or b.nullable
        if family == "float":
            return Code(f"float_{name}({a.text}, {b.text})", "boolean", nullable)
        if nullable:
            return Code(f"{name}({a.text}, {b.text})", "boolean", True)
        return Code(f"({a.text} {_SIGNS[name]} {b.text})", "boolean")

    def _arithmetic(self, name: str, left: Code, right: Code) -> Code:
        if "null" in {left.family, right.family} or "string" in {left.family, right.family}:
            raise NotCompilable
        (a, b), family = self._same([left, right])
        nullable = a.nullable or b.nullable
        if family == "integer":
            low, high = _result_bounds(a, b)
            return Code(f"int_{name}({a.text}, {b.text}, {low}, {high})", "integer", nullable, (low, high))
        if family in {"float", "decimal"}:
            return Code(f"{family}_{name}({a.text}, {b.text})", family, nullable)
        raise NotCompilable

    def _moved(self, node: exp.Add | exp.Sub, by: exp.Interval) -> Code:
        """A TIMESTAMP and a constant interval."""
        moment, unit = self.value(node.this), str(by.args.get("unit") or "").upper().removesuffix("S")
        if moment.family != "timestamp" or unit not in _FIXED or not is_constant(by):
            raise NotCompilable
        delta = self.fold(by.sql("duckdb"))[0]
        if delta is None:
            raise NotCompilable
        length = self.constant(-delta if isinstance(node, exp.Sub) else delta)
        return Code(f"moved({moment.text}, {length})", "timestamp", moment.nullable, sql="TIMESTAMP")

    def _div(self, node: exp.Div) -> Code:
        codes = [self._typed(self.value(side), "float", None) for side in (node.this, node.expression)]
        if any(code.family != "float" for code in codes):
            raise NotCompilable
        a, b = codes
        return Code(f"float_div({a.text}, {b.text})", "float", a.nullable or b.nullable)

    def _neg(self, node: exp.Neg) -> Code:
        return self._arithmetic("sub", Code("0", "integer"), self.value(node.this))

    def _and(self, node: exp.And) -> Code:
        return self._logic("and", node)

    def _or(self, node: exp.Or) -> Code:
        return self._logic("or", node)

    def _logic(self, word: str, node: exp.Connector) -> Code:
        a, b = (self._boolean_operand(side) for side in (node.this, node.expression))
        if a.nullable or b.nullable:
            return Code(f"{word}_({a.text}, {b.text})", "boolean", True)
        return Code(f"({a.text} {word} {b.text})", "boolean")

    def _boolean_operand(self, node: exp.Expression) -> Code:
        code = self._typed(self.value(node), "boolean", None)
        if code.family not in {"boolean", "null"}:
            raise NotCompilable
        return code

    def _not(self, node: exp.Not) -> Code:
        code = self._boolean_operand(node.this)
        return Code(f"not_({code.text})" if code.nullable else f"(not {code.text})", "boolean", code.nullable)

    def _is(self, node: exp.Is) -> Code:
        code = self.value(node.this)
        if not isinstance(node.expression, exp.Null) or code.family in {"param", "string"}:
            raise NotCompilable
        return Code(f"({code.text} is None)", "boolean")

    def _between(self, node: exp.Between) -> Code:
        if node.args.get("symmetric"):
            raise NotCompilable
        low = self._compare("le", node.args["low"], node.this)
        high = self._compare("le", node.this, node.args["high"])
        return Code(f"and_({low.text}, {high.text})", "boolean", low.nullable or high.nullable)

    def _in(self, node: exp.In) -> Code:
        if node.args.get("query") is not None and self.subqueries is not None and not node.expressions:
            subject = self.value(node.this)
            return Code(
                f"in_found({subject.text}, {self.subqueries.found(node.args['query'], subject)})", "boolean", True
            )
        if node.args.get("query") or node.args.get("unnest") or node.args.get("field") or not node.expressions:
            raise NotCompilable
        values = [self.value(item) for item in node.expressions]
        (subject, *items), _ = self._same([self.value(node.this), *values])
        listed = "".join(f"{item.text}, " for item in items)
        return Code(f"in_({subject.text}, ({listed}))", "boolean", any(c.nullable for c in [subject, *items]))

    def _subquery(self, node: exp.Subquery) -> Code:
        if self.subqueries is None or any(value for key, value in node.args.items() if key != "this"):
            raise NotCompilable
        return self.subqueries.scalar(node, self)

    def _anonymous(self, node: exp.Anonymous) -> Code:
        if function_name(node) not in {"coalesce", "ifnull"}:
            raise NotCompilable
        codes, family, bounds = self._branches(node.expressions)
        text = ", ".join(code.text for code in codes)
        return Code(f"coalesce({text})", family, all(code.nullable for code in codes), bounds)

    def _case(self, node: exp.Case) -> Code:
        if node.this is not None:
            raise NotCompilable
        conditions = [self.predicate([branch.this]) for branch in node.args["ifs"]]
        results = [branch.args["true"] for branch in node.args["ifs"]]
        codes, family, bounds = self._branches([*results, node.args.get("default") or exp.Null()])
        text = codes[-1].text
        for condition, code in zip(reversed(conditions), reversed(codes[:-1]), strict=True):
            text = f"({code.text} if {condition} else {text})"
        return Code(text, family, any(code.nullable for code in codes), bounds)

    def _branches(self, nodes: Sequence[exp.Expression]) -> tuple[list[Code], str, tuple[int, int] | None]:
        codes, family = self._same([self.value(node) for node in nodes])
        if family == "decimal" and len({code.sql for code in codes if code.family != "null"}) > 1:
            raise NotCompilable
        bounds = None
        if family == "integer":
            known = [code.bounds or _INT32 for code in codes if code.family != "null"]
            bounds = max(low for low, _ in known), min(high for _, high in known)
        return codes, family, bounds

    def _cast(self, node: exp.Cast) -> Code:
        code = self.value(node.this)
        type_name = self.fold(f"CAST(NULL AS {node.to.sql('duckdb')})")[1]
        try:
            kind = column_type(type_name)
        except DeclarationError:
            raise NotCompilable from None
        if kind.sql == "FLOAT" or kind.family not in COMPARABLE:
            raise NotCompilable
        target = column_code(Column("", kind, nullable=True), code.text)
        if code.sql == kind.sql and code.family != "param":
            return replace(target, nullable=code.nullable)
        if code.family == "param" or (code.family == "integer" and kind.family == "integer"):
            inner = self._typed(code, kind.family, None) if code.family == "param" else code
            return replace(target, text=f"{self.constant(semantics.guarded(kind.coerce))}({inner.text})")
        if code.family == "integer" and kind.family == "float":
            return replace(target, text=f"as_float({code.text})", nullable=code.nullable)
        raise NotCompilable

    def _dpipe(self, node: exp.DPipe) -> Code:
        codes, family = self._same([self.value(node.this), self.value(node.expression)])
        if family != "text":
            raise NotCompilable
        a, b = codes
        return Code(f"concat({a.text}, {b.text})", "text", a.nullable or b.nullable)


def _result_bounds(a: Code, b: Code) -> tuple[int, int]:
    """The range of DuckDB's result type, or a smaller one (leaving it means asking DuckDB)."""
    known = [code.bounds for code in (a, b) if code.bounds is not None]
    if not known:
        return _INT32
    if len({low < 0 for low, _ in known}) > 1:
        raise NotCompilable
    return min(low for low, _ in known), max(high for _, high in known)
