"""Subqueries of statements that are row access: worked out once, before the statement looks at its own rows.

::

    WHERE column IN (SELECT column FROM source WHERE …)                           a set of values
    (SELECT aggregate FROM source WHERE its column = column AND …)                an aggregate for each value of the column

``source`` is a table of which the rest of WHERE finds rows by key or by an index, or a small batch; more than ``MOST`` rows
are left to DuckDB. The statement reads what was found as parameters behind its own. Nothing is changed before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.storage.schema import Relation, Row
from tidegate.storage.sql.batches import given
from tidegate.storage.sql.codes import Code, Fold, NotCompilable, conjuncts
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.lookups import Find, SoleTable, is_decorated
from tidegate.storage.sql.parsing import Parsed, function_name
from tidegate.storage.sql.ranges import MOST, find_by
from tidegate.storage.sql.rows import Rows
from tidegate.storage.sql.semantics import Fallback
from tidegate.storage.view import View

Values = tuple[Any, ...]
Work = Callable[[View, Values], Any]  # what a subquery finds
Reduce = Callable[[list[Any]], Any]

_PARTS = {"expressions", "from_", "where"}
_EXACT = frozenset({"integer", "text", "timestamp", "date", "uuid"})  # equal in SQL where they are equal in Python
_ORDERED = frozenset({"integer", "decimal", "text", "timestamp", "date"})
_INT64, _INT128 = (-(2**63), 2**63 - 1), (-(2**127), 2**127 - 1)


class Subqueries:
    """Those of one statement."""

    def __init__(self, parsed: Parsed, fold: Fold) -> None:
        self._parsed = parsed
        self._fold = fold
        self._first = parsed.parameters.count + len(parsed.draws)
        self._works: list[Work] = []

    def __bool__(self) -> bool:
        return bool(self._works)

    def bound(self, run: Callable[[View, Values], Rows]) -> Callable[[View, Values], Rows]:
        """``run`` with what the subqueries find behind its parameters."""
        works = self._works
        if not works:
            return run
        return lambda view, values: run(view, values + tuple([work(view, values) for work in works]))

    def _placed(self, work: Work) -> str:
        """Have it done before the statement runs; returns where the statement finds the outcome."""
        self._works.append(work)
        return f"p[{self._first + len(self._works) - 1}]"

    def found(self, query: exp.Expression, subject: Code) -> str:
        """Code for the set of the values that ``subject IN (query)`` looks among."""
        source = Source(self._parsed, self._fold, query)
        code = source.compiler.value(source.sole_output())
        if code.family != subject.family or code.family not in _EXACT:
            raise NotCompilable
        value_of, find = source.compiler.function(code.text), source.find(source.conditions)
        return self._placed(lambda view, values: {value_of(row, values) for row in find(view, values)})

    def scalar(self, query: exp.Expression, outer: Compiler) -> Code:
        """An aggregate over the rows whose columns equal those of the statement's row."""
        source = Source(self._parsed, self._fold, query)
        keys, others = source.correlated(outer)
        text, reduce, code = _aggregate(source.compiler, source.sole_output())
        value_of = source.compiler.function(text)
        key_of = source.compiler.function(f"({''.join(f'{inner.text}, ' for inner, _ in keys)})")
        find = source.find(others)

        def work(view: View, values: Values) -> dict[Any, Any]:
            groups: dict[Any, list[Any]] = {}
            for row in find(view, values):
                value = value_of(row, values)
                if value is not None:
                    groups.setdefault(key_of(row, values), []).append(value)
            return {key: reduce(group) for key, group in groups.items() if None not in key}

        mine = f"({''.join(f'{own.text}, ' for _, own in keys)})"
        absent = "None" if code.nullable else "0"
        return Code(f"{self._placed(work)}.get({mine}, {absent})", code.family, code.nullable, code.bounds, code.sql)


class Source:
    """``SELECT one FROM source WHERE …`` inside of a statement."""

    def __init__(self, parsed: Parsed, fold: Fold, query: exp.Expression) -> None:
        select = query.unnest()
        if not isinstance(select, exp.Select) or any(value for key, value in select.args.items() if key not in _PARTS):
            raise NotCompilable
        table = select.args["from_"].this if select.args.get("from_") is not None else None
        if not isinstance(table, exp.Table) or is_decorated(table) or not table.name.startswith("tg:"):
            raise NotCompilable
        name = table.name.removeprefix("tg:")
        relation: Relation | None = parsed.tables.get(name) or parsed.relations.get(name)
        assert relation is not None
        self._select = select
        self._name = name
        self._is_table = name in parsed.tables
        self._sole = SoleTable(parsed, table, relation, fold)  # type: ignore[arg-type]  # of a batch only its columns are named
        self.compiler = self._sole.compiler
        self.conditions = conjuncts(select.args.get("where"))

    def sole_output(self) -> exp.Expression:
        """The only column that it gives."""
        if len(self._select.expressions) != 1:
            raise NotCompilable
        return self._select.expressions[0].unalias()  # type: ignore[no-any-return]

    def correlated(self, outer: Compiler) -> tuple[list[tuple[Code, Code]], list[exp.Expression]]:
        """Its columns that equal columns of the statement's row, with those; and the other conditions."""
        pairs, others = [], []
        for condition in self.conditions:
            pair = None
            if isinstance(condition, exp.EQ):
                one, two = condition.this, condition.expression
                pair = self._pair(one, two, outer) or self._pair(two, one, outer)
            if pair is None:
                others.append(condition)
            else:
                pairs.append(pair)
        return pairs, others

    def _pair(self, mine: exp.Expression, theirs: exp.Expression, outer: Compiler) -> tuple[Code, Code] | None:
        if not isinstance(mine, exp.Column) or not isinstance(theirs, exp.Column) or self._knows(theirs):
            return None
        if not self._knows(mine):
            return None
        inner, own = self.compiler.value(mine), outer.value(theirs)
        if inner.family != own.family or inner.family not in _EXACT:
            raise NotCompilable
        return inner, own

    def _knows(self, column: exp.Column) -> bool:
        try:
            self._sole.scope.find(column)
        except NotCompilable:
            return False
        return True

    def find(self, conditions: Sequence[exp.Expression]) -> Find:
        """How to get the rows that these conditions select."""
        find = self._find_in_table(conditions) if self._is_table else self._find_in_batch(conditions)

        def some(view: View, values: Values) -> list[Row]:
            rows = find(view, values)
            if len(rows) > MOST:
                raise Fallback
            return rows

        return some

    def _find_in_table(self, conditions: Sequence[exp.Expression]) -> Find:
        where = exp.Where(this=exp.and_(*[condition.copy() for condition in conditions])) if conditions else None
        return find_by(self._sole, where, MOST)[0]

    def _find_in_batch(self, conditions: Sequence[exp.Expression]) -> Find:
        name = self._name
        matches = self.compiler.function(self.compiler.predicate(conditions))
        return lambda view, values: [row for row in given(view, name) if matches(row, values)]


def _aggregate(compiler: Compiler, node: exp.Expression) -> tuple[str, Reduce, Code]:
    """What is collected of each row (None: nothing), what becomes of it, and the type of that."""
    name = function_name(node)
    if name not in {"count", "sum", "min", "max"} or len(node.expressions) != 1:
        raise NotCompilable
    if name == "count" and type(node.expressions[0]) is exp.Star:
        return "1", len, Code("", "integer", False, _INT64, "BIGINT")
    code = compiler.value(node.expressions[0])
    if name == "count" and code.family not in {"param", "string", "null"}:
        return code.text, len, Code("", "integer", False, _INT64, "BIGINT")
    if name == "sum" and code.family == "integer" and code.sql not in {None, "HUGEINT", "UHUGEINT"}:
        return code.text, sum, Code("", "integer", True, _INT128, "HUGEINT")
    if name in {"min", "max"} and code.family in _ORDERED and code.sql is not None:
        return code.text, min if name == "min" else max, Code("", code.family, True, code.bounds, code.sql)
    raise NotCompilable
