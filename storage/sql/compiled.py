"""Statements that address rows by key or by index, or give them as VALUES: compiled to row access, microseconds each.

Every compiled statement is a function ``run(view, values) -> Rows`` that never touches DuckDB. It may raise
:class:`~tidegate.storage.sql.semantics.Fallback` before it has changed anything; the statement is then run by
DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.storage.changes import OnConflict, delete_rows, insert_rows, update_rows
from tidegate.storage.schema import Column, Row, TableSchema
from tidegate.storage.sql.assignments import insert_places, is_default, place_of
from tidegate.storage.sql.batches import compile_batch_insert, compile_batch_select
from tidegate.storage.sql.codes import Code, Fold, NotCompilable, Scope
from tidegate.storage.sql.conflicts import compiled_conflict
from tidegate.storage.sql.lookups import Find, Project, SoleTable, is_decorated, order_all, project_rows
from tidegate.storage.sql.ordering import SortKey, limit_of, offset_of, sort_keys, sorter
from tidegate.storage.sql.parsing import Parsed, function_name, target_table
from tidegate.storage.sql.ranges import MOST, find_by, walk_by
from tidegate.storage.sql.rows import Rows
from tidegate.storage.sql.subqueries import Subqueries
from tidegate.storage.view import View

Run = Callable[[View, tuple[Any, ...]], Rows]

_SELECT_PARTS = {"expressions", "from_", "where"}
_PICKED = ("order", "limit", "offset")


@dataclass(frozen=True)
class Compiled:
    """A statement as row access. ``path``: how it finds its rows. ``columns``: what a SELECT returns, if nothing but
    columns of its table.
    """

    run: Run
    path: str
    columns: tuple[Column, ...] = ()


def compile_select(parsed: Parsed, row_class: Any, fold: Fold) -> Compiled:
    tree = parsed.tree
    source = tree.args.get("from_")
    table = source.this if source is not None else None
    if not isinstance(tree, exp.Select) or not isinstance(table, exp.Table) or is_decorated(table):
        raise NotCompilable
    schema = parsed.tables.get(table.name.removeprefix("tg:"))
    if parsed.relations and (schema is None or tree.args.get("joins")):
        find_all = compile_batch_select(parsed, row_class, fold)
        return Compiled(lambda view, values: Rows(find_all(view, values)), "batch")
    if schema is None or _has_more(tree, {*_SELECT_PARTS, *_PICKED}):
        raise NotCompilable
    sole = SoleTable(parsed, table, schema, fold)
    if len(parsed.tables) == 1 and not parsed.relations:
        return _compile_select(sole, tree, row_class)
    sole.compiler.subqueries = subqueries = Subqueries(parsed, fold)
    compiled = _compile_select(sole, tree, row_class)
    return Compiled(subqueries.bound(compiled.run), compiled.path)


def _compile_select(sole: SoleTable, tree: exp.Expression, row_class: Any) -> Compiled:
    """A SELECT from one table."""
    if _has_more(tree, _SELECT_PARTS):
        return _compile_picked(sole, tree, row_class)
    find, path = find_by(sole, tree.args.get("where"), MOST)
    if all(_counts_rows(node.unalias()) for node in tree.expressions):
        return Compiled(_count(find, row_class, len(tree.expressions)), path)
    project, codes = project_rows(sole, tree.expressions, row_class)
    columns = _plain_columns(sole.schema, codes)
    if path == "primary key":
        return Compiled(_select_one(find, project), path, columns)
    return Compiled(_select_many(find, project or _whole(sole.schema), order_all(codes)), path, columns)


def _compile_picked(sole: SoleTable, tree: exp.Expression, row_class: Any) -> Compiled:
    """A SELECT with ORDER BY, LIMIT or OFFSET."""
    project, codes = project_rows(sole, tree.expressions, row_class)
    make = project or _whole(sole.schema)
    columns = _plain_columns(sole.schema, codes)  # else an expression could fail for a row that is not looked at
    keys = sort_keys(sole, tree, codes)
    sort = sorter(keys, codes)
    limit, offset = limit_of(sole, tree), offset_of(sole, tree)
    pick, path = _picker(sole, tree.args.get("where"), keys, bool(columns) and limit is not None)

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        start = offset(values) if offset is not None else 0
        end = start + limit(values) if limit is not None else None
        rows = pick(view, values, end)
        pairs = [(row, make(row, values)) for row in rows]
        sort(pairs)
        return Rows([made for _, made in pairs[start:end]])

    return Compiled(run, path, columns)


def _picker(
    sole: SoleTable, where: exp.Expression | None, keys: Sequence[SortKey], some: bool
) -> tuple[Callable[[View, tuple[Any, ...], Any], list[Row]], str]:
    """How to get the rows to sort: ``some`` of them are enough, if they come in the order of an index."""
    if some:
        try:
            return walk_by(sole, where, keys), "index order"
        except NotCompilable:
            pass
    find, path = find_by(sole, where, MOST)
    return (lambda view, values, enough: find(view, values)), path


def _has_more(tree: exp.Expression, parts: Collection[str]) -> bool:
    return any(value for key, value in tree.args.items() if key not in parts)


def _plain_columns(schema: TableSchema, codes: Sequence[Code]) -> tuple[Column, ...]:
    """The columns that are returned, if nothing else is."""
    by_text = {f"row[{place}]": column for place, column in enumerate(schema.columns)}
    return tuple(by_text[code.text] for code in codes) if all(code.text in by_text for code in codes) else ()


def _counts_rows(node: exp.Expression) -> bool:
    """Is this ``count(*)``?"""
    return function_name(node) == "count" and [type(argument) for argument in node.expressions] == [exp.Star]


def _select_one(find: Find, project: Project | None) -> Run:
    if project is None:
        return lambda view, values: Rows(find(view, values))
    return lambda view, values: Rows([project(row, values) for row in find(view, values)])


def _select_many(find: Find, project: Project, order: Callable[[Any], Any]) -> Run:
    return lambda view, values: Rows(sorted([project(row, values) for row in find(view, values)], key=order))


def _whole(schema: TableSchema) -> Project:
    """All columns of a row, which may be stored as a plain tuple."""
    named = schema.named
    return lambda row, values: named(row)


def _count(find: Find, row_class: Any, columns: int) -> Run:
    return lambda view, values: Rows([row_class._make([len(find(view, values))] * columns)])


# ---- changing


def compile_update(parsed: Parsed, returning: Any, fold: Fold) -> Compiled:
    tree = parsed.tree
    sole = _changed_table(parsed, fold, {"this", "expressions", "where", "returning"})
    schema, compiler = sole.schema, sole.compiler
    texts = [f"row[{place}]" for place in range(len(schema.columns))]
    for node in tree.expressions:
        place = _assigned_place(schema, node)
        if place in schema.key_indexes:
            raise NotCompilable
        texts[place] = _assigned_value(sole, node.expression, place)
    compiler.namespace["stored"] = schema.named
    renew = compiler.function(f"stored(({', '.join(texts)},))", "row, p, view")
    find, path = find_by(sole, tree.args.get("where"))
    project, bound = _returning(sole, tree, returning), _bound(sole)
    name, key_of = schema.name, schema.key_of

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(name)
        olds = find(view, values)
        if len(olds) == 1:
            old = olds[0]
            new = renew(old, values, view)
            view.put_checked(reader, key_of(old), new, old)
            return Rows((), 1) if project is None else Rows((project(new, values),))
        olds.sort(key=key_of)
        news = [renew(old, values, view) for old in olds]
        update_rows(view, reader, list(zip(olds, news, strict=True)))
        return _affected(news, project, values)

    return Compiled(bound(run), path)


def compile_delete(parsed: Parsed, returning: Any, fold: Fold) -> Compiled:
    sole = _changed_table(parsed, fold, {"this", "where", "returning"})
    find, path = find_by(sole, parsed.tree.args.get("where"))
    project, bound = _returning(sole, parsed.tree, returning), _bound(sole)
    name, key_of = sole.schema.name, sole.schema.key_of

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(name)
        rows = find(view, values)
        if len(rows) > 1:
            rows.sort(key=key_of)
        result = _affected(rows, project, values)
        delete_rows(view, reader, rows)
        return result

    return Compiled(bound(run), path)


def _changed_table(parsed: Parsed, fold: Fold, parts: set[str]) -> SoleTable:
    table = target_table(parsed.tree)
    if parsed.target is None or is_decorated(table) or _has_more(parsed.tree, parts):
        raise NotCompilable
    sole = SoleTable(parsed, table, parsed.target, fold)
    sole.compiler.subqueries = Subqueries(parsed, fold)
    return sole


def _bound(sole: SoleTable) -> Callable[[Run], Run]:
    """What a statement runs with if it has subqueries."""
    subqueries = sole.compiler.subqueries
    assert isinstance(subqueries, Subqueries)
    return subqueries.bound


def _affected(rows: Sequence[Row], project: Project | None, values: tuple[Any, ...]) -> Rows:
    if project is None:
        return Rows((), len(rows))
    return Rows([project(row, values) for row in rows])


def _returning(sole: SoleTable, tree: exp.Expression, row_class: Any) -> Project | None:
    clause = tree.args.get("returning")
    if clause is None:
        return None
    if clause.find(exp.Query) is not None:  # it sees what the statement has changed
        raise NotCompilable
    project, _ = project_rows(sole, clause.expressions, row_class)
    return project or _whole(sole.schema)


def _assigned_place(schema: TableSchema, node: exp.Expression) -> int:
    """The column that ``name = value`` in SET assigns to."""
    if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
        raise NotCompilable
    return place_of(schema, node.this.name)


def _assigned_value(sole: SoleTable, node: exp.Expression, place: int) -> str:
    column = sole.schema.columns[place]
    if is_default(node):
        return f"view.default({sole.compiler.constant(column)})" if column.default is not None else "None"
    return sole.compiler.assigned(node, column, sole.schema)


# ---- inserting


def compile_insert(parsed: Parsed, returning: Any, fold: Fold) -> Compiled:
    """INSERT … VALUES; ``conflict`` may be ON CONFLICT with expressions that compile."""
    tree = parsed.tree
    source = tree.args.get("expression")
    if parsed.relations and parsed.target is not None:
        insert = compile_batch_insert(parsed, fold)
        give_back = _returning(SoleTable(parsed, target_table(tree), parsed.target, fold), tree, returning)
        return Compiled(lambda view, values: _affected(insert(view, values), give_back, values), "batch")
    if (
        not isinstance(source, exp.Values)
        or tree.args.get("with_")
        or tree.args.get("by_name")
        or parsed.target is None
    ):
        raise NotCompilable
    sole = SoleTable(parsed, target_table(tree), parsed.target, fold)
    make = _values_rows(sole, tree, source)
    conflict = compiled_conflict(parsed, fold)
    project = _returning(sole, tree, returning)
    name = sole.schema.name

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(name)
        return _affected(insert_rows(view, reader, make(values, view), conflict, values), project, values)

    if len(source.expressions) == 1:
        if conflict is None:
            return Compiled(_insert_one(name, make, project), "values")
        if not any(i.unique for i in sole.schema.indexes) and conflict.columns <= frozenset(sole.schema.primary_key):
            return Compiled(_upsert_one(sole.schema, make, conflict, project), "values")
    return Compiled(run, "values")


def _insert_one(name: str, make: Any, project: Project | None) -> Run:
    def run(view: View, values: tuple[Any, ...]) -> Rows:
        row = view.insert_stored(view.writable(name), make(values, view)[0])
        return Rows((), 1) if project is None else Rows((project(row, values),))

    return run


def _upsert_one(schema: TableSchema, make: Any, conflict: OnConflict, project: Project | None) -> Run:
    """One row, and only the primary key to conflict with."""
    name, key_of, resolve = schema.name, schema.key_of, conflict.resolve

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(name)
        row = make(values, view)[0]
        schema.check_key(row)
        key = key_of(row)
        old = reader.replaced(view, key)
        if old is not None:
            row = resolve(view, ((old, row),), values)[0] if resolve is not None else None
            if row is None:
                return Rows((), 0)
        view.put_checked(reader, key, row, old)
        return Rows((), 1) if project is None else Rows((project(row, values),))

    return run


def _values_rows(sole: SoleTable, tree: exp.Expression, source: exp.Values) -> Any:
    """The function that makes all rows of VALUES from the parameters, as stored rows."""
    schema, compiler = sole.schema, sole.compiler
    compiler.scope = Scope()
    places = insert_places(tree, schema)
    rows = []
    for item in source.expressions:
        given = dict(zip(places, item.expressions if isinstance(item, exp.Tuple) else [item], strict=True))
        default = exp.Var(this="DEFAULT")
        texts = [_assigned_value(sole, given.get(i, default), i) for i in range(len(schema.columns))]
        rows.append(f"stored(({', '.join(texts)},))")
    compiler.namespace["stored"] = schema.named
    make = compiler.function(f"({', '.join(rows)},)", "p, view")
    compiler.scope = sole.scope
    return make
