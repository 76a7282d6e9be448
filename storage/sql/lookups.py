"""How a compiled statement finds its rows (by primary key, by index) and makes its result rows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.storage.schema import Row, TableSchema, namer
from tidegate.storage.sql.codes import Code, Fold, NotCompilable, Scope, conjuncts
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.parsing import Parsed
from tidegate.storage.view import View

Find = Callable[[View, tuple[Any, ...]], list[Row]]
Project = Callable[[Row, tuple[Any, ...]], Any]

_UNSORTABLE = {"list"}


class SoleTable:
    """The one table of a statement, and a compiler for expressions over its rows."""

    def __init__(self, parsed: Parsed, table: exp.Table, schema: TableSchema, fold: Fold) -> None:
        self.schema = schema
        self.scope = Scope().add(schema, table.alias_or_name, "row")
        self.compiler = Compiler(self.scope, fold, parsed.parameters.count, parsed.draws)


def is_decorated(table: exp.Table) -> bool:
    """Does the table reference carry anything but a name and an alias?"""
    alias = table.args.get("alias")
    extra = {key for key, value in table.args.items() if value} - {"this", "alias"}
    return bool(extra) or not isinstance(table.this, exp.Identifier) or bool(alias and alias.args.get("columns"))


# ---- finding rows


def find_rows(sole: SoleTable, where: exp.Expression | None) -> tuple[Find, str]:
    """How to get the rows that ``where`` selects: through the primary key, or through an index."""
    conditions = conjuncts(where)
    wanted = equalities(sole, conditions)
    schema, compiler = sole.schema, sole.compiler
    candidates = [("primary key", -1, schema.key_indexes)]
    for number, index in enumerate(schema.indexes):
        candidates.append(("index", number, tuple(schema.index_of[name] for name in index.columns)))
    for path, number, places in candidates:
        if set(places) <= set(wanted):
            parts = [compiler.key_part(schema.columns[place], wanted[place][1]) for place in places]
            used = [wanted[place][0] for place in places]
            rest = [condition for condition in conditions if not any(condition is u for u in used)]
            matches = compiler.function(compiler.predicate(rest)) if rest else None
            if path == "primary key":
                text = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
                return _by_key(schema.name, compiler.function(text, "p"), len(parts) > 1, matches), path
            values = compiler.function(f"({', '.join(parts)},)", "p")
            return _by_index(schema.name, number, values, matches), path
    raise NotCompilable


def find_among(sole: SoleTable, conditions: Sequence[exp.Expression]) -> Find:
    """How to get the rows that ``conditions`` select, of which one is that a key, or an indexed column, is among the values
    that a subquery finds.
    """
    schema, compiler = sole.schema, sole.compiler
    for condition in conditions:
        query = condition.args.get("query") if isinstance(condition, exp.In) else None
        if query is None or not isinstance(condition.this, exp.Column) or compiler.subqueries is None:
            continue
        subject = sole.scope.find(condition.this)
        index = next((i for i, known in enumerate(schema.indexes) if _is_of(sole, known.columns, subject)), None)
        if not _is_of(sole, schema.primary_key, subject) and index is None:
            continue
        rest = [other for other in conditions if other is not condition]
        values = compiler.function(compiler.subqueries.found(query, subject), "p")
        matches = compiler.function(compiler.predicate(rest)) if rest else None
        by_key = _is_of(sole, schema.primary_key, subject)
        return _by_found(schema.name, None if by_key else index, values, matches)
    raise NotCompilable


def _is_of(sole: SoleTable, columns: Sequence[str], subject: Code) -> bool:
    """Is this the only one of the columns?"""
    return [f"row[{sole.schema.index_of[name]}]" for name in columns] == [subject.text]


def equalities(
    sole: SoleTable, conditions: Sequence[exp.Expression]
) -> dict[int, tuple[exp.Expression, exp.Expression]]:
    """``column = something without columns`` among the conditions: column's place → (condition,
    something).
    """
    found: dict[int, tuple[exp.Expression, exp.Expression]] = {}
    for condition in conditions:
        if not isinstance(condition, exp.EQ):
            continue
        for column, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
            if isinstance(column, exp.Column) and not any(other.find_all(exp.Column, exp.Query)):
                place = int(sole.scope.find(column).text[4:-1])
                found.setdefault(place, (condition, other))
                break
    return found


def _by_key(table: str, key_of: Callable[[Any], Any], wide: bool, matches: Any) -> Find:
    def find(view: View, values: tuple[Any, ...]) -> list[Row]:
        key = key_of(values)
        if key is None or (wide and None in key):
            return []
        row = view.get(table, key)
        if row is None or (matches is not None and not matches(row, values)):
            return []
        return [row]

    return find


def _by_index(table: str, number: int, values_of: Any, matches: Any) -> Find:
    def find(view: View, values: tuple[Any, ...]) -> list[Row]:
        reader = view.access.get(table) or view.undeclared(table)
        wanted = values_of(values)
        if None in wanted:
            return []
        index = reader.table.indexes[number]
        looked_up = wanted if len(wanted) > 1 else wanted[0]
        rows = [
            row
            for row in view.visible(reader, reader.inside(view, view.index_keys(reader, index, wanted)))
            if index.value_of(row) == looked_up
        ]
        return rows if matches is None else [row for row in rows if matches(row, values)]

    return find


def _by_found(table: str, number: int | None, values_of: Any, matches: Any) -> Find:
    """The rows whose key, or the value they have in an index, is among some values."""

    def find(view: View, values: tuple[Any, ...]) -> list[Row]:
        reader = view.access.get(table) or view.undeclared(table)
        keys = wanted = [value for value in values_of(values) if value is not None]
        if number is not None:
            index = reader.table.indexes[number]
            keys = list(dict.fromkeys(key for value in wanted for key in view.index_keys(reader, index, (value,))))
        keys = list(reader.inside(view, keys))
        reader.table.fetch(keys)
        rows = view.visible(reader, keys)
        if number is not None:
            among = set(wanted)
            rows = [row for row in rows if index.value_of(row) in among]
        return rows if matches is None else [row for row in rows if matches(row, values)]

    return find


# ---- projecting


def project_rows(sole: SoleTable, nodes: Sequence[exp.Expression], row_class: Any) -> tuple[Project | None, list[Code]]:
    """The function that makes a result row (None: the stored row is the result), and its columns' codes."""
    codes: list[Code] = []
    for node in nodes:
        codes += _columns(sole, node)
    if [code.text for code in codes] == [f"row[{i}]" for i in range(len(sole.schema.columns))] and (
        row_class._fields == sole.schema.row._fields
    ):
        return None, codes
    sole.compiler.namespace["result"] = namer(row_class)
    text = "".join(f"{code.text}, " for code in codes)
    return sole.compiler.function(f"result(({text}))"), codes


def _columns(sole: SoleTable, node: exp.Expression) -> list[Code]:
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        if any(star.args.values()):
            raise NotCompilable
        qualifier = node.table if isinstance(node, exp.Column) else ""
        return [
            sole.scope.find(exp.column(exp.to_identifier(column.name), table=qualifier or None))
            for column in sole.schema.columns
        ]
    code = sole.compiler.value(node)
    if code.family == "param":
        raise NotCompilable
    return [code]


def order_all(codes: Sequence[Code]) -> Callable[[Any], Any]:
    """Sort key of ORDER BY ALL: column by column, NULL last, NaN above every number."""
    parts = []
    for place, code in enumerate(codes):
        if code.family in _UNSORTABLE:
            raise NotCompilable
        nan = f"r[{place}] != r[{place}], " if code.family in {"float", "single"} else ""
        parts.append(f"r[{place}] is None, {nan}r[{place}]")
    order: Callable[[Any], Any] = eval(f"lambda r: ({', '.join(parts)},)")
    return order
