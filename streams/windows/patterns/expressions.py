"""Conditions and measures of a pattern: SQL expressions as Python code.

A name without a prefix is a column of the row at hand, ``f.amount`` of the last row bound to ``f`` so far,
``prev(amount)`` of the row that the match took before this one. ``count(*)``, ``count(f)``, ``count``, ``sum``,
``avg``, ``min``, ``max``, ``first`` and ``last`` of an expression over one variable (``sum(f.amount)``) are over
its rows so far. A condition is tried as if the row were bound: in the condition of ``f``, ``count(f)`` counts it.
What was not bound is NULL. A condition holds when it is true, not when it is NULL.

What a condition needs of earlier rows is kept in *slots*, a value for each, brought up to date when a row is bound. So a
condition costs the same however many rows a match has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp

from tidegate.errors import DeclarationError, near
from tidegate.storage.schema import Relation
from tidegate.storage.sql.parameters import for_sqlglot
from tidegate.storage.types import ColumnType, column_type
from tidegate.streams.windows.patterns import values

NUMBERS = ("integer", "decimal", "float")
ORDERED = (*NUMBERS, "text", "timestamp", "date", "time", "uuid", "boolean", "interval", "blob")
_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "==", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_FLOATS = {"==": "float_eq", "!=": "float_ne", "<": "float_lt", "<=": "float_le", ">": "float_gt", ">=": "float_ge"}
_PLAIN = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_ARITHMETIC: dict[type[exp.Expression], tuple[str, str]] = {
    exp.Add: ("+", "add"), exp.Sub: ("-", "sub"), exp.Mul: ("*", "mul"), exp.Mod: ("%", "mod"), exp.Div: ("/", "div"),
    exp.IntDiv: ("//", "intdiv"),
}  # fmt: skip
_AGGREGATES: dict[type[exp.Expression], str] = {
    exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.First: "first", exp.Last: "last",
    exp.FirstValue: "first", exp.LastValue: "last",
}  # fmt: skip
_FUNCTIONS: dict[str, tuple[str, str]] = {  # name: what it takes, what it gives
    "abs": ("number", "same"), "lower": ("text", "text"), "upper": ("text", "text"), "length": ("text", "integer"),
}  # fmt: skip
_SQL = {
    "integer": "BIGINT", "float": "DOUBLE", "text": "VARCHAR", "boolean": "BOOLEAN", "timestamp": "TIMESTAMP",
    "date": "DATE", "interval": "INTERVAL", "decimal": "DECIMAL(38,9)", "null": "VARCHAR",
}  # fmt: skip


class Code(NamedTuple):
    """Python code for a value. ``kind``: the type of a column, where it has one."""

    text: str
    family: str
    nullable: bool = True
    kind: ColumnType | None = None

    @property
    def sql(self) -> str:
        return self.kind.sql if self.kind is not None else _SQL[self.family]


@dataclass
class Slots:
    """What is kept of the rows bound so far. Each has code to begin with, and to take in a row ``r`` of its variable (None: of
    any).
    """

    first: list[str] = field(default_factory=list)
    updates: list[tuple[str | None, str]] = field(default_factory=list)
    known: dict[tuple[str, str | None, str], int] = field(default_factory=dict)

    def number(self, what: str, variable: str | None, argument: str, first: str, update: str) -> int:
        """The slot for this; ``update`` has ``{s}`` where its value stands."""
        place = (what, variable, argument)
        if place not in self.known:
            self.known[place] = len(self.first)
            self.first.append(first)
            self.updates.append((variable, update))
        return self.known[place]

    def code_after(self, number: int) -> str:
        """The slot's value when ``r`` has been taken in."""
        return self.updates[number][1].format(s=f"a[{number}]")

    def update_for(self, variable: str, namespace: dict[str, Any]) -> Callable[[Any, Any], Any] | None:
        """Takes in a row of ``variable``; None: nothing changes."""
        if not any(of in (None, variable) for of, _ in self.updates):
            return None
        told = [
            self.code_after(number) if of in (None, variable) else f"a[{number}]"
            for number, (of, _) in enumerate(self.updates)
        ]
        return eval(f"lambda a, r: ({', '.join(told)},)", namespace)  # type: ignore[no-any-return]

    def begin(self) -> tuple[Any, ...]:
        return tuple(eval(f"[{', '.join(self.first)}]", {}))


class Expressions:
    """Compiles the expressions of one pattern. ``variables``: what rows may be called; ``elements``: and what elements with one
    variable are called.
    """

    def __init__(self, what: str, relation: Relation, variables: Sequence[str], elements: dict[str, str]) -> None:
        self.what = what
        self.relation = relation
        self.variables = tuple(variables)
        self.names = {**elements, **{name: name for name in variables}}
        self.slots = Slots()
        self.namespace: dict[str, Any] = {k: v for k, v in vars(values).items() if not k.startswith("__")}

    # ---- what is asked for

    def parse(self, sql: str, role: str) -> exp.Expression:
        """The syntax tree of an expression."""
        try:
            found = sqlglot.parse_one(for_sqlglot(sql), dialect="duckdb")
        except sqlglot.errors.SqlglotError as error:
            raise DeclarationError(f"{self.what}: {role} is not a valid expression: {sql!r}: {error}") from None
        if isinstance(found, exp.Query):
            raise DeclarationError(f"{self.what}: {role} is a query; it must be an expression over rows: {sql!r}")
        assert isinstance(found, exp.Expression)
        return found

    def conjuncts(self, tree: exp.Expression) -> list[exp.Expression]:
        """The conditions that must all be true."""
        if isinstance(tree, exp.Paren):
            return self.conjuncts(tree.this)
        if isinstance(tree, exp.And):
            return [*self.conjuncts(tree.this), *self.conjuncts(tree.expression)]
        return [tree]

    def condition(self, trees: Sequence[exp.Expression], role: str, current: str) -> str:
        """Code that is true when all of these are; ``current``: what the row at hand would be bound to."""
        told = []
        for tree in trees:
            code = _Compiler(self, role, current).value(tree)
            if code.family not in ("boolean", "null"):
                raise DeclarationError(f"{self.what}: {role} is {code.sql}, not a condition: {tree.sql('duckdb')}")
            told.append(f"({code.text}) is True" if code.nullable else f"({code.text})")
        return " and ".join(told) or "True"

    def local(self, tree: exp.Expression) -> bool:
        """Is it about the row at hand alone?"""
        for node in tree.walk():
            if isinstance(node, (*_AGGREGATES, exp.Count)):
                return False
            if isinstance(node, exp.Anonymous) and node.name.lower() in ("prev", "first", "last"):
                return False
            if isinstance(node, exp.Column) and node.table:
                return False
        return True

    def variables_in(self, tree: exp.Expression) -> set[str]:
        """The variables whose rows it looks at."""
        found = set()
        for node in tree.find_all(exp.Column):
            name = node.table or node.name
            if name in self.names and (node.table or name not in self.relation.index_of):
                found.add(self.names[name])
        return found

    def measure(self, sql: str, role: str) -> Code:
        """The value of a measure, when the last row of a match has been taken in."""
        return _Compiler(self, role, None).value(self.parse(sql, role))

    def value_of(self, tree: exp.Expression, role: str, variable: str) -> Code:
        """The value of an expression over a row ``r`` that is bound to ``variable``."""
        return _Compiler(self, role, None, variable).value(tree)

    def function(self, arguments: str, code: str) -> Any:
        return eval(f"lambda {arguments}: {code}", self.namespace)

    def constant(self, value: Any) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name


class _Compiler:
    """One expression. ``current``: the variable of the row at hand ``r``; None: every row has been taken in."""

    def __init__(self, owner: Expressions, role: str, current: str | None, inside: str | None = None) -> None:
        self.owner = owner
        self.role = role
        self.current = current
        self.inside = inside  # of an aggregate: the variable whose row is r

    def refuse(self, node: exp.Expression, why: str) -> DeclarationError:
        return DeclarationError(f"{self.owner.what}: {self.role}: {node.sql('duckdb')}: {why}")

    def value(self, node: exp.Expression) -> Code:
        if isinstance(node, exp.Paren):
            inner = self.value(node.this)
            return inner._replace(text=f"({inner.text})")
        if type(node) in _COMPARISONS:
            return self.compare(_COMPARISONS[type(node)], self.value(node.this), self.value(node.expression), node)
        if type(node) in _ARITHMETIC:
            return self.arithmetic(node)
        if type(node) in _AGGREGATES or isinstance(node, exp.Count):
            return self.aggregate(node)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refuse(node, "this is not known in patterns; write the condition as a Python function of a row")
        found = method(node)
        assert isinstance(found, Code)
        return found

    # ---- columns

    def _column(self, node: exp.Column) -> Code:
        owner, name = self.owner, node.name
        if not node.table:
            if name not in owner.relation.index_of:
                if name in owner.names:
                    raise self.refuse(
                        node, f"{name} is a row; name one of its columns, as in {name}.{owner.relation.column_names[0]}"
                    )
                raise self.refuse(node, f"no such column; {near(name, owner.relation.index_of, 'it has')}")
            if self.inside is not None:
                raise self.refuse(node, f"of which row? Write {self.inside}.{name}")
            if self.current is None:
                raise self.refuse(node, f"of which row? Write {owner.variables[0]}.{name}")
            return self.column("r", name, False)
        variable = self.variable(node.table, node)
        if name not in owner.relation.index_of:
            raise self.refuse(node, f"no such column; {near(name, owner.relation.index_of, 'it has')}")
        if variable in (self.inside, self.current):
            return self.column("r", name, False)
        slot = self.owner.slots.number("last", variable, "", "None", "r")
        return self.column(f"a[{slot}]", name, True)

    def column(self, row: str, name: str, may_lack: bool) -> Code:
        place = self.owner.relation.index_of[name]
        column = self.owner.relation.columns[place]
        text = f"(None if {row} is None else {row}[{place}])" if may_lack else f"{row}[{place}]"
        return Code(text, column.type.family, may_lack or column.nullable, column.type)

    def variable(self, name: str, node: exp.Expression) -> str:
        if name not in self.owner.names:
            raise self.refuse(node, f"{name} is no row of the pattern; {near(name, self.owner.variables, 'it has')}")
        found = self.owner.names[name]
        if self.inside is not None and found != self.inside:
            raise self.refuse(node, f"an aggregate is over the rows of one variable, not of {self.inside} and {found}")
        return found

    # ---- over rows

    def aggregate(self, node: exp.Expression) -> Code:
        what = "count" if isinstance(node, exp.Count) else _AGGREGATES[type(node)]
        argument = node.this
        if what == "count" and (argument is None or isinstance(argument, exp.Star)):
            return self.slot("count", None, "", "0", "{s} + 1", "integer")
        row = None
        if isinstance(argument, exp.Column):
            star = isinstance(argument.this, exp.Star)
            row = argument.table if star else "" if argument.table else argument.name
        if what == "count" and row and row in self.owner.names:
            return self.slot("count", self.variable(row, node), "", "0", "{s} + 1", "integer")
        return self.over(what, argument, node)

    def over(self, what: str, argument: exp.Expression, node: exp.Expression) -> Code:
        found = self.owner.variables_in(argument)
        if self.inside is not None or len(found) != 1:
            raise self.refuse(node, "an aggregate is over the rows of one variable, as in sum(f.amount)")
        (variable,) = found
        inner = _Compiler(self.owner, self.role, None, variable).value(argument)
        x, told = inner.text, argument.sql("duckdb")
        if what in ("sum", "avg") and inner.family not in NUMBERS:
            raise self.refuse(node, f"{what} is over numbers, not {inner.sql}")
        match what:
            case "count":
                return self.slot("count", variable, told, "0", f"{{s}} + (({x}) is not None)", "integer")
            case "sum":
                kind = inner.kind if inner.family == "decimal" else None
                return self.slot("sum", variable, told, "None", f"added({{s}}, {x})", inner.family, True, kind)
            case "avg":
                total = self.slot("sum", variable, told, "None", f"added({{s}}, {x})", inner.family, True)
                number = self.slot("count", variable, told, "0", f"{{s}} + (({x}) is not None)", "integer")
                return Code(f"mean({total.text}, {number.text})", "float")
            case "min" | "max":
                update = f"{'smaller' if what == 'min' else 'larger'}({{s}}, {x})"
                return self.slot(what, variable, told, "None", update, inner.family, True, inner.kind)
            case "first":
                kept = self.slot("first", variable, told, "None", f"{{s}} if {{s}} is not None else ({x},)", "row")
                return Code(f"only({kept.text})", inner.family, True, inner.kind)
            case _:
                return self.slot("last", variable, told, "None", x, inner.family, True, inner.kind)

    def slot(
        self, what: str, variable: str | None, argument: str, first: str, update: str, family: str,
        nullable: bool = False, kind: ColumnType | None = None,
    ) -> Code:  # fmt: skip
        slots = self.owner.slots
        number = slots.number(what, variable, argument, first, update)
        counts_this = self.current is not None and variable in (None, self.current)
        text = f"({slots.code_after(number)})" if counts_this else f"a[{number}]"
        return Code(text, family, nullable, kind)

    def _anonymous(self, node: exp.Anonymous) -> Code:
        name, arguments = node.name.lower(), node.expressions
        if name == "prev":
            if len(arguments) != 1 or not isinstance(arguments[0], exp.Column) or self.current is None:
                raise self.refuse(node, "prev(column) is of the row before, in a condition")
            column = arguments[0]
            if column.table and self.variable(column.table, node) != self.current:
                raise self.refuse(
                    node, "prev() is of the row that the match took before this one, whatever it was bound to"
                )
            if column.name not in self.owner.relation.index_of:
                raise self.refuse(node, f"no such column; {near(column.name, self.owner.relation.index_of, 'it has')}")
            slot = self.owner.slots.number("prev", None, "", "None", "r")
            return self.column(f"a[{slot}]", column.name, True)
        if name in ("first", "last") and len(arguments) == 1:
            return self.over(name, arguments[0], node)
        return self.called(name, arguments, node)

    # ---- scalar

    def called(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression) -> Code:
        if name not in _FUNCTIONS or len(arguments) != 1:
            known = ", ".join([*_FUNCTIONS, "coalesce"])
            raise self.refuse(
                node, f"patterns know the functions {known}; write the condition as a Python function of a row"
            )
        takes, gives = _FUNCTIONS[name]
        inner = self.value(arguments[0])
        if inner.family not in (NUMBERS if takes == "number" else ("text",)):
            raise self.refuse(node, f"{name} takes a {takes}, not {inner.sql}")
        return Code(f"{name}_({inner.text})", inner.family if gives == "same" else gives, inner.nullable)

    def _abs(self, node: exp.Abs) -> Code:
        return self.called("abs", [node.this], node)

    def _lower(self, node: exp.Lower) -> Code:
        return self.called("lower", [node.this], node)

    def _upper(self, node: exp.Upper) -> Code:
        return self.called("upper", [node.this], node)

    def _length(self, node: exp.Length) -> Code:
        return self.called("length", [node.this], node)

    def _coalesce(self, node: exp.Coalesce) -> Code:
        codes = [self.value(one) for one in (node.this, *node.expressions)]
        family, kind = self.one_family(codes, node)
        told = ", ".join(code.text for code in codes)
        return Code(f"coalesce({told})", family, all(code.nullable for code in codes), kind)

    def _case(self, node: exp.Case) -> Code:
        if node.this is not None:
            raise self.refuse(node, "write CASE WHEN condition THEN value … END")
        results = [self.value(one.args["true"]) for one in node.args["ifs"]]
        other = node.args.get("default")
        results.append(Code("None", "null") if other is None else self.value(other))
        family, kind = self.one_family(results, node)
        text = results[-1].text
        for branch, code in zip(reversed(node.args["ifs"]), reversed(results[:-1]), strict=True):
            text = f"({code.text} if ({self.boolean(branch.this).text}) is True else {text})"
        return Code(text, family, True, kind)

    def one_family(self, codes: Sequence[Code], node: exp.Expression) -> tuple[str, ColumnType | None]:
        families = list(dict.fromkeys(code.family for code in codes if code.family != "null")) or ["null"]
        if len(families) > 1 and set(families) <= set(NUMBERS):
            return max(families, key=NUMBERS.index), None
        if len(families) > 1:
            raise self.refuse(node, f"its values are of different types: {', '.join(code.sql for code in codes)}")
        kinds = {code.kind for code in codes if code.family != "null"}
        return families[0], kinds.pop() if len(kinds) == 1 else None

    def _literal(self, node: exp.Literal) -> Code:
        if node.is_string:
            return Code(repr(node.this), "string", False)
        if node.is_int:
            return Code(str(int(node.this)), "integer", False)
        return Code(repr(float(node.this)), "float", False)

    def _null(self, _: exp.Null) -> Code:
        return Code("None", "null")

    def _boolean(self, node: exp.Boolean) -> Code:
        return Code(str(bool(node.this)), "boolean", False)

    def _interval(self, node: exp.Interval) -> Code:
        told = f"{node.this.name if node.this is not None else ''} {node.args.get('unit') or ''}".strip()
        length = values.interval(told)
        if length is None:
            raise self.refuse(node, "write INTERVAL 5 SECOND, or '5 minutes', up to days or weeks")
        return Code(self.owner.constant(length), "interval", False)

    def _neg(self, node: exp.Neg) -> Code:
        inner = self.value(node.this)
        if inner.family not in (*NUMBERS, "interval"):
            raise self.refuse(node, f"{inner.sql} has no negative")
        return inner._replace(text=f"(-({inner.text}))" if not inner.nullable else f"sub(0, {inner.text})")

    def compare(self, sign: str, a: Code, b: Code, node: exp.Expression) -> Code:
        a, b = self.meet(a, b, node)
        nullable = a.nullable or b.nullable
        if "float" in (a.family, b.family):
            return Code(f"{_FLOATS[sign]}({a.text}, {b.text})", "boolean", nullable)
        if nullable:
            return Code(f"{_PLAIN[sign]}({a.text}, {b.text})", "boolean")
        return Code(f"({a.text} {sign} {b.text})", "boolean", False)

    def meet(self, a: Code, b: Code, node: exp.Expression) -> tuple[Code, Code]:
        """Two values that are compared, in forms that can be."""
        if a.family == "string" and b.family == "string":
            return a._replace(family="text"), b._replace(family="text")
        a, b = self.typed(a, b, node), self.typed(b, a, node)
        families = {a.family, b.family} - {"null"}
        if len(families) > 1 and not families <= set(NUMBERS):
            raise self.refuse(node, f"{a.sql} can't be compared with {b.sql}")
        if not families <= set(ORDERED):
            raise self.refuse(
                node, f"{a.sql} can't be compared here; write the condition as a Python function of a row"
            )
        return a, b

    def typed(self, code: Code, other: Code, node: exp.Expression) -> Code:
        """A text literal takes the type of what it meets."""
        if code.family != "string":
            return code
        if other.family == "text" or other.kind is None or other.family in (*NUMBERS, "null"):
            return code._replace(family="text")
        text = eval(code.text)
        try:
            value = values.literal(other.kind, text)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise self.refuse(node, f"{text!r} is no {other.kind.sql}: {error}") from None
        return Code(self.owner.constant(value), other.family, False, other.kind)

    def arithmetic(self, node: exp.Expression) -> Code:
        sign, name = _ARITHMETIC[type(node)]
        a, b = self.value(node.this), self.value(node.expression)
        nullable = a.nullable or b.nullable or name in ("div", "mod", "intdiv")
        pair = (a.family, b.family)
        family = "float" if name == "div" or "float" in pair else "decimal" if "decimal" in pair else "integer"
        if not set(pair) <= {*NUMBERS, "null"}:
            family = values.MOVED.get((sign, *pair), "")
            if not family:
                raise self.refuse(node, f"{a.sql} {sign} {b.sql} is not defined")
        if ("float" in pair and "decimal" in pair) or name in ("div", "mod", "intdiv"):
            return Code(f"{name}({a.text}, {b.text})", family, nullable)
        return Code(f"{name}({a.text}, {b.text})" if nullable else f"({a.text} {sign} {b.text})", family, nullable)

    def boolean(self, node: exp.Expression) -> Code:
        code = self.value(node)
        if code.family not in ("boolean", "null"):
            raise self.refuse(node, f"is {code.sql}, not a condition")
        return code

    def _and(self, node: exp.And) -> Code:
        return self.logic("and", node)

    def _or(self, node: exp.Or) -> Code:
        return self.logic("or", node)

    def logic(self, word: str, node: exp.Connector) -> Code:
        a, b = self.boolean(node.this), self.boolean(node.expression)
        if a.nullable or b.nullable:
            return Code(f"{word}_({a.text}, {b.text})", "boolean")
        return Code(f"({a.text} {word} {b.text})", "boolean", False)

    def _not(self, node: exp.Not) -> Code:
        code = self.boolean(node.this)
        return Code(f"not_({code.text})" if code.nullable else f"(not {code.text})", "boolean", code.nullable)

    def _is(self, node: exp.Is) -> Code:
        code = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return Code(f"(({code.text}) is None)", "boolean", False)
        if isinstance(node.expression, exp.Boolean) and code.family == "boolean":
            return Code(f"(({code.text}) is {bool(node.expression.this)})", "boolean", False)
        raise self.refuse(node, "IS goes with NULL, TRUE and FALSE")

    def _between(self, node: exp.Between) -> Code:
        this = self.value(node.this)
        low = self.compare(">=", this, self.value(node.args["low"]), node)
        high = self.compare("<=", this, self.value(node.args["high"]), node)
        return Code(f"and_({low.text}, {high.text})", "boolean", low.nullable or high.nullable)

    def _in(self, node: exp.In) -> Code:
        if not node.expressions or node.args.get("query"):
            raise self.refuse(node, "IN takes a list of values")
        this = self.value(node.this)
        pairs = [self.meet(this, self.value(one), node) for one in node.expressions]
        listed = "".join(f"{other.text}, " for _, other in pairs)
        nullable = this.nullable or any(other.nullable for _, other in pairs)
        if nullable or "float" in {this.family, *(other.family for _, other in pairs)}:
            return Code(f"in_({pairs[0][0].text}, ({listed}))", "boolean", True)
        return Code(f"({pairs[0][0].text} in ({listed}))", "boolean", False)

    def _like(self, node: exp.Like) -> Code:
        this, form = self.value(node.this), self.value(node.expression)
        if this.family != "text" or form.family != "string":
            raise self.refuse(node, "LIKE compares text with a form in quotes")
        return Code(
            f"like({this.text}, {self.owner.constant(values.like_form(eval(form.text)))})", "boolean", this.nullable
        )

    def _dpipe(self, node: exp.DPipe) -> Code:
        codes = [self.value(one) for one in (node.this, node.expression)]
        if any(code.family not in ("text", "string", "null") for code in codes):
            raise self.refuse(node, "|| joins text")
        return Code(f"add({codes[0].text}, {codes[1].text})", "text", any(code.nullable for code in codes))


def measure_type(code: Code) -> ColumnType:
    """The type of a result column."""
    return code.kind if code.kind is not None else column_type(_SQL.get(code.family, "VARCHAR"))
