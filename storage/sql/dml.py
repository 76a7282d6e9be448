"""DML that is not by key: DuckDB finds the affected rows and their new values, the view stores them.

Rows are applied in key order, all or none. When UPDATE … FROM meets a row several times, the smallest new
values win; RETURNING gives rows in the order in which they were applied (INSERT … VALUES: as written).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.errors import StatementError
from tidegate.storage.changes import OnConflict, delete_rows, insert_rows, update_rows
from tidegate.storage.ddl import Scratch
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Column, Relation, Row, TableSchema
from tidegate.storage.sql.assignments import insert_places, is_default, place_of
from tidegate.storage.sql.conflicts import Clause
from tidegate.storage.sql.parsing import Parsed, rename, target_table
from tidegate.storage.sql.query import Query
from tidegate.storage.sql.rows import Rows
from tidegate.storage.types import column_type
from tidegate.storage.view import View

Run = Callable[[View, tuple[Any, ...]], Rows]

_PLACE = Column("tg:place", column_type("BIGINT"), nullable=False)


class Change:
    """What the three kinds of DML share: their target, its alias, and queries over it."""

    def __init__(self, parsed: Parsed, scratch: Scratch) -> None:
        assert parsed.target is not None
        self.parsed = parsed
        self.schema: TableSchema = parsed.target
        self.scratch = scratch
        self.alias = target_table(parsed.tree).alias_or_name

    def query(self, tree: exp.Expression, relations: Sequence[Relation] = (), target: bool = False) -> Query:
        tables = {**self.parsed.tables, **({self.schema.name: self.schema} if target else {})}
        known = {**self.parsed.relations, **{relation.name: relation for relation in relations}}
        return Query(tree, tables, known, self.scratch, self.parsed.sql, stores=self.schema.name)

    def column(self, name: str, table: str | None = None) -> exp.Column:
        return exp.column(
            exp.to_identifier(name, quoted=True), table=exp.to_identifier(table or self.alias, quoted=True)
        )

    def cast(self, node: exp.Expression, column: Column) -> exp.Expression:
        return exp.Cast(this=node.copy(), to=exp.DataType.build(column.type.sql, dialect="duckdb"))

    def from_target(self, select: exp.Select, others: Sequence[exp.Expression]) -> exp.Select:
        """``FROM target, others…`` with the target's rows as the view sees them."""
        table = target_table(self.parsed.tree).copy()
        rename(table, self.schema.name)
        select.set("from_", exp.From(this=table))
        select.set("joins", [exp.Join(this=other.copy()) for other in others])
        for part in ("where", "with_"):
            if self.parsed.tree.args.get(part) is not None:
                select.set(part, self.parsed.tree.args[part].copy())
        return select

    def old_rows(self, view: View, reader: Reader, keys: Sequence[Any]) -> list[Row]:
        reader.table.fetch(keys)
        rows = [reader.row(view, key) for key in keys]
        return [row for row in rows if row is not None]

    def key(self, found: Sequence[Any]) -> Any:
        """The key in the first columns of a query's row."""
        parts = tuple(found[: len(self.schema.primary_key)])
        return parts[0] if len(parts) == 1 else parts

    def key_columns(self) -> list[exp.Column]:
        return [self.column(name) for name in self.schema.primary_key]

    def stored(self, place: int, value: Any) -> Any:
        return self.schema.check_value(self.schema.columns[place], value)


def numbered(name: str, schema: TableSchema) -> Relation:
    """Rows of ``schema`` as input of a query, with their place as the first column."""
    return Relation(name, (_PLACE, *schema.columns))


def numbered_rows(rows: Sequence[Row]) -> list[Row]:
    return [(place, *row) for place, row in enumerate(rows)]


def returning(change: Change, row_class: Any) -> Callable[[View, Sequence[Row], Sequence[Any]], Rows]:
    """RETURNING, evaluated by DuckDB over the affected rows; without the clause, their number."""
    clause = change.parsed.tree.args.get("returning")
    if clause is None:
        return lambda view, rows, values: Rows((), len(rows))
    relation = numbered("affected", change.schema)
    select = exp.Select(expressions=[part for node in clause.expressions for part in _expanded(change, node)])
    table = exp.to_table("affected")
    rename(table, "affected")
    table.set("alias", exp.TableAlias(this=exp.to_identifier(change.alias, quoted=True)))
    select.set("from_", exp.From(this=table))
    place = exp.column(exp.to_identifier(_PLACE.name, quoted=True))
    select.set("order", exp.Order(expressions=[exp.Ordered(this=place, nulls_first=False)]))
    query = change.query(select, [relation])

    def run(view: View, rows: Sequence[Row], values: Sequence[Any]) -> Rows:
        found = query.rows(view, values, {"affected": (relation, numbered_rows(rows))})
        return Rows([row_class._make(row) for row in found])

    return run


def _expanded(change: Change, node: exp.Expression) -> list[exp.Expression]:
    star = node.this if isinstance(node, exp.Column) else node
    if not isinstance(star, exp.Star):
        return [node.copy()]
    if any(star.args.values()):
        raise StatementError(f"name the columns in RETURNING: {change.parsed.sql}", sql=change.parsed.sql)
    return [change.column(name) for name in change.schema.index_of]


def prepare_update(parsed: Parsed, row_class: Any, scratch: Scratch) -> Run:
    change = Change(parsed, scratch)
    schema = change.schema
    computed: list[int] = []
    defaulted: list[int] = []
    select = exp.Select(expressions=change.key_columns())
    for place, node in _assignments(change):
        if is_default(node):
            defaulted.append(place)
        else:
            computed.append(place)
            select.append("expressions", change.cast(node, schema.columns[place]))
    source = parsed.tree.args.get("from_")
    query = change.query(change.from_target(select, [source.this] if source is not None else []), target=True)
    give_back = returning(change, row_class)

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(schema.name)
        found: dict[Any, Sequence[Any]] = {}
        for row in query.rows(view, values):
            found.setdefault(change.key(row), row[len(schema.primary_key) :])
        pairs = []
        for old, new_values in zip(change.old_rows(view, reader, list(found)), found.values(), strict=True):
            fields = list(old)
            for place, value in zip(computed, new_values, strict=True):
                fields[place] = change.stored(place, value)
            for place in defaulted:
                fields[place] = _default(view, schema.columns[place])
            pairs.append((old, schema.row._make(fields)))
        update_rows(view, reader, pairs)
        return give_back(view, [new for _, new in pairs], values)

    return run


def _default(view: View, column: Column) -> Any:
    return None if column.default is None else view.default(column)


def _assignments(change: Change) -> list[tuple[int, exp.Expression]]:
    """SET clauses as (column's place, value); ``(a, b) = (1, 2)`` is two of them."""
    found = []
    for node in change.parsed.tree.expressions:
        names, values = [node.this], [node.expression]
        if isinstance(node.this, exp.Tuple) and isinstance(node.expression, exp.Tuple):
            names, values = node.this.expressions, node.expression.expressions
        for name, value in zip(names, values, strict=True):
            if not isinstance(name, exp.Column):
                raise StatementError(f"SET needs plain columns on the left: {change.parsed.sql}", sql=change.parsed.sql)
            found.append((place_of(change.schema, name.name), value))
    return found


def prepare_delete(parsed: Parsed, row_class: Any, scratch: Scratch) -> Run:
    change = Change(parsed, scratch)
    select = exp.Select(expressions=change.key_columns())
    query = change.query(change.from_target(select, parsed.tree.args.get("using") or []), target=True)
    give_back = returning(change, row_class)

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(change.schema.name)
        keys = list(dict.fromkeys(change.key(row) for row in query.rows(view, values)))
        rows = change.old_rows(view, reader, keys)
        result = give_back(view, rows, values)
        delete_rows(view, reader, rows)
        return result

    return run


def prepare_insert(parsed: Parsed, row_class: Any, scratch: Scratch) -> Run:
    change = Change(parsed, scratch)
    source = parsed.tree.args.get("expression")
    proposed = _from_values(change, source) if isinstance(source, exp.Values) else _from_query(change, source)
    conflict = _conflict(change)
    give_back = returning(change, row_class)

    def run(view: View, values: tuple[Any, ...]) -> Rows:
        reader = view.writable(change.schema.name)
        return give_back(view, insert_rows(view, reader, proposed(view, values), conflict, values), values)

    return run


Proposed = Callable[[View, Sequence[Any]], list[Row]]


def _complete(change: Change, view: View, given: dict[int, Any]) -> Row:
    """A stored row from the values given by place and the defaults of the others."""
    columns = change.schema.columns
    row: Row = change.schema.row._make(
        [change.stored(i, given[i]) if i in given else _default(view, column) for i, column in enumerate(columns)]
    )
    return row


def _from_values(change: Change, source: exp.Values) -> Proposed:
    """VALUES as a one-row query of all its cells; DEFAULT is filled in per row."""
    places = insert_places(change.parsed.tree, change.schema)
    rows = [item.expressions if isinstance(item, exp.Tuple) else [item] for item in source.expressions]
    cells = [(r, place, node) for r, row in enumerate(rows) for place, node in zip(places, row, strict=True)]
    cells = [(r, place, node) for r, place, node in cells if not is_default(node)]
    select = exp.Select(expressions=[change.cast(node, change.schema.columns[place]) for _, place, node in cells])
    if change.parsed.tree.args.get("with_") is not None:
        select.set("with_", change.parsed.tree.args["with_"].copy())
    query = change.query(select) if cells else None

    def proposed(view: View, values: Sequence[Any]) -> list[Row]:
        given: list[dict[int, Any]] = [{} for _ in rows]
        if query is not None:
            for (r, place, _), value in zip(cells, query.rows(view, values)[0], strict=True):
                given[r][place] = value
        return [_complete(change, view, row) for row in given]

    return proposed


def _from_query(change: Change, source: exp.Expression | None) -> Proposed:
    """INSERT … SELECT (source None: DEFAULT VALUES)."""
    if source is None:
        return lambda view, values: [_complete(change, view, {})]
    tree = change.parsed.tree
    places = insert_places(tree, change.schema)
    if tree.args.get("by_name"):
        places = [place_of(change.schema, name) for name in _output_names(change, source)]
    names = [f"c{i}" for i in range(len(places))]
    inner = exp.Subquery(
        this=source.unnest().copy() if isinstance(source, exp.Subquery) else source.copy(),
        alias=exp.TableAlias(this=exp.to_identifier("q"), columns=[exp.to_identifier(name) for name in names]),
    )
    cells = [
        change.cast(exp.column(name, table="q"), change.schema.columns[place])
        for name, place in zip(names, places, strict=True)
    ]
    select = exp.Select(expressions=cells, from_=exp.From(this=inner))
    if tree.args.get("with_") is not None:
        select.set("with_", tree.args["with_"].copy())
    query = change.query(select)

    def proposed(view: View, values: Sequence[Any]) -> list[Row]:
        found = [_complete(change, view, dict(zip(places, row, strict=True))) for row in query.rows(view, values)]
        return sorted(found, key=change.schema.key_of) if all(_has_key(change, row) for row in found) else found

    return proposed


def _has_key(change: Change, row: Row) -> bool:
    return all(row[place] is not None for place in change.schema.key_indexes)


def _output_names(change: Change, source: exp.Expression) -> list[str]:
    names = [node.alias_or_name for node in source.expressions] if isinstance(source, exp.Select) else []
    if not names or not all(names) or any(node.is_star for node in source.expressions):
        raise StatementError(
            f"INSERT … BY NAME needs a plain SELECT with named columns here: {change.parsed.sql}",
            sql=change.parsed.sql,
        )
    return names


def _conflict(change: Change) -> OnConflict | None:
    """ON CONFLICT with DO UPDATE evaluated by DuckDB over pairs of stored and proposed rows."""
    clause = Clause(change.parsed)
    if not clause.present:
        return None
    if not clause.updates:
        return OnConflict(clause.columns, None)
    schema = change.schema
    stored, proposed = numbered("stored", schema), numbered("proposed", schema)
    cells = [change.cast(_qualified(change, node), schema.columns[place]) for place, node in clause.assignments]
    select = exp.Select(expressions=[change.column(_PLACE.name), *cells])
    tables = []
    for relation, alias in ((stored, change.alias), (proposed, "excluded")):
        table = exp.to_table(relation.name)
        rename(table, relation.name)
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        tables.append(table)
    on = exp.EQ(this=change.column(_PLACE.name), expression=change.column(_PLACE.name, "excluded"))
    select.set("from_", exp.From(this=tables[0]))
    select.set("joins", [exp.Join(this=tables[1], on=on)])
    if clause.where is not None:
        condition = clause.where.this if isinstance(clause.where, exp.Where) else clause.where
        select.set("where", exp.Where(this=_qualified(change, condition)))
    query = change.query(select, [stored, proposed])
    places = [place for place, _ in clause.assignments]

    def resolve(view: View, pairs: Sequence[tuple[Row, Row]], values: Sequence[Any]) -> list[Row | None]:
        olds, news = [old for old, _ in pairs], [new for _, new in pairs]
        given = {"stored": (stored, numbered_rows(olds)), "proposed": (proposed, numbered_rows(news))}
        resolved: list[Row | None] = [None] * len(pairs)
        for number, *cells in query.rows(view, values, given):
            fields = list(olds[number])
            for place, value in zip(places, cells, strict=True):
                fields[place] = change.stored(place, value)
            resolved[number] = schema.row._make(fields)
        return resolved

    return OnConflict(clause.columns, resolve)


def _qualified(change: Change, node: exp.Expression) -> exp.Expression:
    """A column without a table, in ON CONFLICT, is the stored row's."""
    wrapped = exp.Paren(this=node.copy())
    for column in list(wrapped.find_all(exp.Column)):
        inside = column.find_ancestor(exp.Query)
        if not column.table and inside is None and not is_default(column):
            column.set("table", exp.to_identifier(change.alias, quoted=True))
    return wrapped
