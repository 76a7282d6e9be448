"""Partitions that a statement asks for, by its text, its parameters and the rows it is given.

A procedure that works on some partitions of a table sees their rows and no others: to it, the table has no more. But where the
conditions of a statement fix the partition (``WHERE account = ?``, ``JOIN accounts ON account = transfers.payee``) and it is
not one of those named, the answer would be missing, and that is refused, whether DuckDB or row access would give it.

Only what is known without reading the table counts. An error that depended on rows that the procedure has not locked would
tell it something about them, and the next run might not raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation, TableSchema
from tidegate.storage.sql.codes import Fold, NotCompilable, Scope, is_constant
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.parsing import Parsed, function_name
from tidegate.storage.sql.semantics import Fallback
from tidegate.storage.sql.sources import Place, Sources, all_sources
from tidegate.storage.view import View
from tidegate.storage.violations import Wanted, check_asked

# what a column must be equal to; None: that is left to DuckDB
Values = Callable[[View, tuple[Any, ...]], Collection[Any] | None]

_EQUAL = (exp.EQ, exp.NullSafeEQ)
_CONTAINS = {"list_contains", "array_contains", "list_has", "array_has"}


class Given(NamedTuple):
    """The columns of a batch, stream or window that columns of a table must be equal to, and which of its rows take part."""

    relation: Relation
    places: tuple[int, ...]
    matches: Callable[[Any, tuple[Any, ...]], bool] | None

    def rows(self, view: View, values: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
        """The distinct combinations in its rows."""
        _, rows = view.rows_of(self.relation.name)
        if isinstance(rows, pa.Table):
            rows = [row for batch in rows.to_batches() for row in ColumnRows(self.relation, batch)]
        if self.matches is not None:
            try:
                rows = [row for row in rows if self.matches(row, values)]
            except Fallback:
                return None
        if len(self.places) == 1:
            (place,) = self.places
            return [(value,) for value in dict.fromkeys([row[place] for row in rows])]
        return list(dict.fromkeys([tuple([row[place] for place in self.places]) for row in rows]))


@dataclass
class Asked:
    """What one mention of a partitioned table asks for: values of its partition columns, alone or together."""

    schema: TableSchema
    sql: str
    fixed: dict[str, list[Values]] = field(default_factory=dict)
    single: Callable[[tuple[Any, ...]], Any] | None = (
        None  # all that is asked for, if it is one value of the only column
    )
    given: tuple[tuple[str, ...], Given] | None = None

    @property
    def once(self) -> bool:
        """Is each column fixed by one condition?"""
        return all(len(sets) == 1 for sets in self.fixed.values())

    def check(self, view: View, values: tuple[Any, ...]) -> None:
        """Raise AccessError if that is a partition that ``view`` is not restricted to."""
        reader = view.access.get(self.schema.name)
        chosen = reader.partitions(view) if reader is not None else None
        if chosen is None or (self.single is not None and self._is_named(chosen, values)):
            return
        wanted: list[Wanted] = []
        for name, sets in self.fixed.items():
            known = [found for each in sets if (found := each(view, values)) is not None]
            if known:
                wanted.append(((name,), [(value,) for found in known for value in found]))
        if self.given is not None:
            names, given = self.given
            rows = given.rows(view, values)
            if rows is not None:
                wanted.append((names, rows))
        check_asked(view.procedure, self.schema, chosen, wanted, self.sql)

    def _is_named(self, chosen: Collection[Any], values: tuple[Any, ...]) -> bool:
        """Most often it is; if this can't tell, the long way does."""
        assert self.single is not None
        try:
            return self.single(values) in chosen
        except (TypeError, Fallback):  # a list is no value of a column
            return False


def asked_partitions(parsed: Parsed, fold: Fold) -> tuple[Asked, ...]:
    """What the conditions of a statement fix of the partition columns of its tables."""
    if not any(schema.partition_by for schema in (*parsed.tables.values(), parsed.target) if schema is not None):
        return ()
    found = []
    for sources in all_sources(parsed):
        for name in sources.known:
            for schema, columns in sources.partitioned(name):
                found.append(_Conditions(parsed, fold, sources, name).asked(schema, columns))
    return tuple(asked for asked in found if asked.fixed or asked.given)


# ---- what its conditions fix


class _Conditions:
    """The conditions that the rows of one table must meet."""

    def __init__(self, parsed: Parsed, fold: Fold, sources: Sources, name: str) -> None:
        self._parsed = parsed
        self._fold = fold
        self._sources = sources
        self._name = name
        self._conditions = [part for node in sources.conditions[name] for part in _split(node)]

    def asked(self, schema: TableSchema, columns: Mapping[str, str]) -> Asked:
        """``columns``: what the partition columns of the table are called here."""
        asked = Asked(schema, self._parsed.sql)
        given: dict[
            str, dict[str, Place]
        ] = {}  # columns of batches, by source and the column that must be equal to them
        for column, called in columns.items():
            places = self._equal_to(Place(self._name, called))
            sets = [found for node in self._conditions if (found := self._fixed(node, places, schema.column(column)))]
            if sets:
                asked.fixed[column] = sets
                continue
            for place in places:
                if self._is_given(place) and self._comparable(place, schema.column(column)):
                    given.setdefault(place.source, {})[column] = place
        if given:
            source, equal = max(given.items(), key=lambda found: len(found[1]))
            asked.given = self._given(source, equal)
        sets = next(iter(asked.fixed.values()), [])
        if len(schema.partition_by) == len(sets) == 1 and isinstance(sets[0], _One):
            asked.single = sets[0].value_of
        return asked

    def _equal_to(self, start: Place) -> list[Place]:
        """A column, and those that must be equal to it."""
        found = [start]
        for place in found:
            for node in self._conditions:
                if isinstance(node, _EQUAL):
                    sides = self._sources.place(node.this), self._sources.place(node.expression)
                    if place in sides:
                        found += [other for other in sides if other is not None and other not in found]
        return found

    def _is_given(self, place: Place) -> bool:
        return place.source in self._sources.given

    def _comparable(self, place: Place, column: Column) -> bool:
        """Are equal values of both equal in Python?"""
        mine, other = self._sources.column(place).type, column.type
        return mine.sql == other.sql or mine.family == other.family == "integer"

    def _given(self, source: str, columns: Mapping[str, Place]) -> tuple[tuple[str, ...], Given] | None:
        """A batch, with the rows that meet all conditions about it alone."""
        relation = self._sources.given[source]
        alone = [node for node in self._conditions if self._is_about(node, source)]
        scope = Scope().add(relation, source, "row")
        compiler = Compiler(scope, self._fold, self._parsed.parameters.count, self._parsed.draws)
        try:
            matches = compiler.function(compiler.predicate(alone)) if alone else None
        except NotCompilable:
            return None
        places = tuple(relation.index_of[place.column] for place in columns.values())
        return tuple(columns), Given(relation, places, matches)

    def _is_about(self, node: exp.Expression, source: str) -> bool:
        places = [self._sources.place(column) for column in node.find_all(exp.Column)]
        return bool(places) and all(place is not None and place.source == source for place in places)

    def _fixed(self, node: exp.Expression, places: Sequence[Place], column: Column) -> Values | None:
        """The values that a condition leaves to one of the places."""
        if isinstance(node, exp.Paren):
            return self._fixed(node.this, places, column)
        if isinstance(node, exp.Or):
            sides = [self._fixed(side, places, column) for side in (node.this, node.expression)]
            return _union([side for side in sides if side is not None]) if None not in sides else None
        if isinstance(node, _EQUAL):
            for mine, other in ((node.this, node.expression), (node.expression, node.this)):
                if self._sources.place(mine) in places:
                    return self._list(other.this, column) if isinstance(other, exp.Any) else self._one(other, column)
        if isinstance(node, exp.In) and self._sources.place(node.this) in places:
            return self._in(node, column)
        if function_name(node) in _CONTAINS and self._sources.place(node.expressions[-1]) in places:
            return self._list(node.expressions[0], column)
        return None

    def _in(self, node: exp.In, column: Column) -> Values | None:
        if node.args.get("field") is not None:
            return self._list(node.args["field"], column)
        query = node.args.get("query")
        if query is not None:
            return self._selected(query.this, column)
        found = [self._one(item, column) for item in node.expressions]
        return _union([each for each in found if each is not None]) if found and None not in found else None

    def _selected(self, query: exp.Expression, column: Column) -> Values | None:
        """``IN (SELECT unnest(?))`` and ``IN (SELECT payee FROM transfers)``."""
        if not isinstance(query, exp.Select) or len(query.expressions) != 1:
            return None
        (output,) = query.expressions
        if {key for key, value in query.args.items() if value} == {"expressions"} and function_name(output) == "unnest":
            return self._list(output.expressions[0], column)
        if {key for key, value in query.args.items() if value} - {"expressions", "from_", "distinct"}:
            return None
        inner = Sources(self._parsed)
        inner.add(query.args["from_"].this)
        place = inner.place(output.unalias())
        if place is None or place.source not in inner.given:
            return None
        relation = inner.given[place.source]
        if inner.column(place).type.sql != column.type.sql:
            return None
        given = Given(relation, (relation.index_of[place.column],), None)
        return lambda view, values: [value for (value,) in given.rows(view, values) or ()]

    def _one(self, node: exp.Expression, column: Column) -> Values | None:
        """A literal, a parameter, or an expression of such."""
        if any(node.find_all(exp.Column, exp.Query)):
            return None
        if (place := self._parameter(node)) is not None:
            return _One(itemgetter(place), column)
        compiler = Compiler(Scope(), self._fold, self._parsed.parameters.count, self._parsed.draws)
        try:
            value_of = compiler.function(compiler.key_part(column, node), "p")
        except NotCompilable:
            return self._constant(node, column)
        return _One(value_of)

    def _constant(self, node: exp.Expression, column: Column) -> Values | None:
        """A literal of another type than the column's, as in ``account = 3.0``."""
        if not is_constant(node):
            return None
        try:
            value, _ = self._fold(node.sql("duckdb"))
        except NotCompilable:
            return None
        return lambda view, values: _stored([value], column)

    def _list(self, node: exp.Expression, column: Column) -> Values | None:
        """An array that is a parameter."""
        place = self._parameter(node)
        return None if place is None else lambda view, values: _stored(values[place], column)

    def _parameter(self, node: exp.Expression) -> int | None:
        if isinstance(node, exp.Paren):
            return self._parameter(node.this)
        place = int(str(node.this)[1:]) if isinstance(node, exp.Placeholder) else None
        return place if place is not None and place < self._parsed.parameters.count else None


@dataclass(frozen=True)
class _One:
    """One value. ``column``: it is a parameter, which need not be in the form that this column stores."""

    value_of: Callable[[tuple[Any, ...]], Any]
    column: Column | None = None

    def __call__(self, view: View, values: tuple[Any, ...]) -> Collection[Any] | None:
        try:
            found = (self.value_of(values),)
        except Fallback:
            return None
        return found if self.column is None else _stored(found, self.column)


def _split(node: exp.Expression) -> list[exp.Expression]:
    """``(a, b) = (1, 2)`` is two conditions."""
    if isinstance(node, _EQUAL) and isinstance(node.this, exp.Tuple) and isinstance(node.expression, exp.Tuple):
        pairs = zip(node.this.expressions, node.expression.expressions, strict=False)
        return [exp.EQ(this=mine.copy(), expression=other.copy()) for mine, other in pairs]
    return [node]


def _union(sets: Sequence[Values]) -> Values:
    def found(view: View, values: tuple[Any, ...]) -> Collection[Any] | None:
        parts = [each(view, values) for each in sets]
        return None if None in parts else [value for part in parts for value in part or ()]

    return found


def _stored(values: Any, column: Column) -> Collection[Any] | None:
    """Parameters as the column stores them, if these are equal to what was given."""
    whole = column.type.family == "integer"
    try:
        found = [
            int(value)
            if whole and type(value) in (float, Decimal)
            else None
            if value is None
            else column.type.coerce(value)
            for value in values
        ]
    except (ValueError, TypeError, OverflowError):
        return None
    return found if all(a is b or a == b for a, b in zip(found, values, strict=True)) else None
