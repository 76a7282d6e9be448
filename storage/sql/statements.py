"""Prepared statements: SQL in procedures, bound when the app is declared, run on the view of one execution.

A statement that addresses rows by key, by index or by VALUES runs as row access
(:mod:`~tidegate.storage.sql.compiled`); the others run in DuckDB over the base and its overlays
(:mod:`~tidegate.storage.sql.query`, :mod:`~tidegate.storage.dml`). Both give the same answer, and both are
deterministic:

- ``now()``, ``current_date``, ``random()``, ``uuid()`` … are the transaction's: one draw for each place
  where the
  text calls them, per execution of the statement (a DEFAULT draws for each row);
- rows come in the order of ORDER BY, ties and unordered results in the order of the output columns
  (:mod:`~tidegate.storage.sql.determinism` says what is left to the author).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from tidegate.errors import StatementError
from tidegate.storage.arrow import arrow_columns
from tidegate.storage.constraints import folding
from tidegate.storage.ddl import Scratch
from tidegate.storage.schema import Column, Relation, TableSchema, row_class
from tidegate.storage.sql import compiled as row_access
from tidegate.storage.sql import dml
from tidegate.storage.sql.asked import asked_partitions
from tidegate.storage.sql.assignments import insert_places, place_of
from tidegate.storage.sql.batches import MANY
from tidegate.storage.sql.codes import Fold, NotCompilable
from tidegate.storage.sql.compiled import Compiled
from tidegate.storage.sql.draws import draw_all
from tidegate.storage.sql.parsing import Parsed, parse, target_table
from tidegate.storage.sql.query import Query
from tidegate.storage.sql.rows import Rows
from tidegate.storage.sql.semantics import Fallback
from tidegate.storage.view import View

__all__ = ["Rows", "Statement", "prepare"]

Given = Sequence[Any] | Mapping[str, Any]

_OWN_ARROW = {"interval", "list"}  # types that DuckDB gives in another Arrow type than ours


def prepare(
    sql: Any,
    tables: Mapping[str, TableSchema],
    relations: Mapping[str, Relation],
    scratch: Scratch,
    *,
    _compile: bool = True,
) -> Statement:
    """Parse, bind and compile one statement (SQL text or SQLAlchemy Core). ``_compile=False``: DuckDB
    only.
    """
    return Statement(parse(sql, tables, relations, scratch), scratch, _compile)


class Statement:
    """One prepared statement; immutable, shared between threads and engines."""

    def __init__(self, parsed: Parsed, scratch: Scratch, compile_it: bool) -> None:
        self.sql = parsed.sql
        self.kind = parsed.kind
        self.writes = frozenset({parsed.target.name} if parsed.target is not None else ())
        self.reads = frozenset(parsed.tables) | (self.writes if _reads_target(parsed) else frozenset())
        self.relations = frozenset(parsed.relations)
        self._parameters = parsed.parameters
        self._count = parsed.parameters.count if not parsed.parameters.defaults and parsed.parameters.positional else -1
        self._draws = parsed.draws
        _refuse_unfit(parsed, scratch)
        self._assigned = _assigned_parameters(parsed)
        self._names = _result_names(parsed, scratch)
        result = row_class("Result", self._names)
        self._query: Query | None = None
        self._change: dml.Run | None = None
        if parsed.kind == "select":
            self._query = Query(parsed.tree, parsed.tables, parsed.relations, scratch, parsed.sql)
            self._result = result
        else:
            self._change = _PREPARE[parsed.kind](parsed, result, scratch)
        fold = folding(scratch.connection.execute)
        self._asked = asked_partitions(parsed, fold)
        self._partitioned = sorted(
            schema.name for schema in {**parsed.tables, "": parsed.target}.values() if schema and schema.partition_by
        )
        compiled = _compiled(parsed, result, fold) if compile_it else None
        self._fast = compiled.run if compiled is not None else None
        self.path = compiled.path if compiled is not None else "duckdb"
        self._keyed = self.path == "primary key" and all(
            asked.once for asked in self._asked
        )  # row access checks the key
        columns = compiled.columns if compiled is not None and self._query is not None else ()
        self._columns = columns if _OWN_ARROW.isdisjoint(column.type.family for column in columns) else ()

    def run(self, view: View, parameters: Given = ()) -> Rows:
        """Run on ``view``; changes go to its write set, all of the statement's or none."""
        if type(parameters) is not tuple or len(parameters) != self._count:
            parameters = self._parameters.bind(parameters)
        if self._draws:
            parameters = parameters + draw_all(view, self._draws)
        if self._asked and view.partitions and (not self._keyed or None in parameters):
            self._check(view, parameters)
        if self._fast is not None:
            try:
                return self._fast(view, parameters)
            except Fallback:
                if self._keyed:
                    self._check(view, parameters)
        return self._slow(view, parameters)

    def _check(self, view: View, values: tuple[Any, ...]) -> None:
        """Raise AccessError if the conditions name a partition that ``view`` does not work on."""
        for asked in self._asked:
            asked.check(view, values)

    def _slow(self, view: View, values: tuple[Any, ...]) -> Rows:
        if self._query is not None:
            make = self._result._make
            return Rows([make(row) for row in self._query.rows(view, values)])
        for name in self.writes:
            view.writable(name)
        if self._assigned:
            stored = list(values)
            for place, schema, column in self._assigned:
                stored[place] = schema.check_value(column, values[place])
            values = tuple(stored)
        assert self._change is not None
        return self._change(view, values)

    def arrow(self, view: View, parameters: Given = ()) -> pa.Table:
        """The answer of a SELECT as an Arrow table."""
        if self._query is None:
            raise StatementError(f"only a SELECT returns Arrow: {self.sql}", sql=self.sql)
        values = self._parameters.bind(parameters) + draw_all(view, self._draws)
        self._check(view, values)
        if self._columns and self._fast is not None:
            (table,) = self.reads
            if view.access[table].table.complete:  # else DuckDB finds a few rows without loading all
                try:
                    return arrow_columns(self._columns, self._fast(view, values)).rename_columns(self._names)
                except Fallback:
                    pass
        return self._query.arrow(view, values, self._names)

    def explain(self) -> str:
        """How the statement runs, in words."""
        how = {
            "primary key": "row access by primary key",
            "index": "row access by index",
            "index range": "row access by a range of an index",
            "index order": "row access in the order of an index",
            "subquery": "row access by what a subquery finds",
            "values": "row access with the rows given",
            "batch": f"row by row over the batch; DuckDB from {MANY:,} rows on",
            "duckdb": "DuckDB over the base and the changes above it",
        }[self.path]
        touched = [f"reads {', '.join(sorted(self.reads))}"] if self.reads else []
        touched += [f"writes {', '.join(sorted(self.writes))}"] if self.writes else []
        touched += [f"from {', '.join(sorted(self.relations))}"] if self.relations else []
        fixed = {asked.schema.name for asked in self._asked}
        for name in self._partitioned:
            told = f"restricted to the partitions of {name} named by its procedure, if it names any"
            touched.append(f"{told}: another one that it asks for is refused" if name in fixed else told)
        return f"{self.kind}: {how}" + (f" ({'; '.join(touched)})" if touched else "")

    def __repr__(self) -> str:
        return f"<Statement {self.sql!r}: {self.explain()}>"


_PREPARE = {"insert": dml.prepare_insert, "update": dml.prepare_update, "delete": dml.prepare_delete}
_COMPILE = {
    "select": row_access.compile_select,
    "insert": row_access.compile_insert,
    "update": row_access.compile_update,
    "delete": row_access.compile_delete,
}


def _compiled(parsed: Parsed, result: Any, fold: Fold) -> Compiled | None:
    try:
        return _COMPILE[parsed.kind](parsed, result, fold)
    except NotCompilable:
        return None


def _reads_target(parsed: Parsed) -> bool:
    """Does the outcome depend on existing rows? (An INSERT depends only through its keys.)"""
    return parsed.kind in {"update", "delete"} or parsed.tree.args.get("conflict") is not None


def _refuse_unfit(parsed: Parsed, scratch: Scratch) -> None:
    """Raise StatementError where a statement could never store its row: no value for a NOT NULL column, or text that is
    not a value of its column's type.
    """
    schema, tree = parsed.target, parsed.tree
    if schema is None:
        return
    if isinstance(tree.this, exp.Schema) and tree.args.get("conflict") is None and not tree.args.get("by_name"):
        given = insert_places(tree, schema)
        lacking = [schema.columns[i] for i in schema.required if i not in given]
        names = ", ".join(column.name for column in lacking if column.default is None)
        if names:
            raise StatementError(
                f"this INSERT gives no value for {names} of {schema.name}, which is NOT NULL and has no DEFAULT; add it to "
                f"the columns\n  {parsed.sql}",
                sql=parsed.sql,
            )
    for place, node in _assigned(parsed, schema):
        column = schema.columns[place]
        if isinstance(node, exp.Literal) and node.is_string and column.type.family != "text":
            try:
                scratch.connection.execute(f"SELECT CAST({node.sql('duckdb')} AS {column.type.sql})").fetchall()
            except duckdb.Error as error:
                raise StatementError(
                    f"{schema.name}.{column.name} ({column.type}) can't take {node.sql('duckdb')}: "
                    f"{str(error).splitlines()[0]}\n  {parsed.sql}",
                    sql=parsed.sql,
                ) from None


def _assigned(parsed: Parsed, schema: TableSchema) -> list[tuple[int, exp.Expression]]:
    """What VALUES, SELECT, SET and ON CONFLICT assign: (place of the column, expression)."""
    tree = parsed.tree
    pairs: list[tuple[int, exp.Expression]] = []
    source = tree.args.get("expression")
    if isinstance(source, exp.Values):
        places = insert_places(tree, schema)
        for item in source.expressions:
            nodes = item.expressions if isinstance(item, exp.Tuple) else [item]
            pairs += zip(places, nodes, strict=True)
    elif isinstance(source, exp.Select) and parsed.kind == "insert" and not tree.args.get("by_name"):
        places = insert_places(tree, schema)
        if len(places) == len(source.expressions) and not any(node.is_star for node in source.expressions):
            pairs += zip(places, (node.unalias() for node in source.expressions), strict=True)
    conflict = tree.args.get("conflict")
    for node in [
        *(tree.expressions if parsed.kind == "update" else ()),
        *(conflict.expressions if conflict else ()),
    ]:
        if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column):
            pairs.append((place_of(schema, node.this.name), node.expression))
    return pairs


def _assigned_parameters(parsed: Parsed) -> list[tuple[int, TableSchema, Column]]:
    """Parameters given to a column as they are: checked by the column's type, like any row's value."""
    schema = parsed.target
    if schema is None:
        return []
    return [
        (int(str(node.this)[1:]), schema, schema.columns[place])
        for place, node in _assigned(parsed, schema)
        if isinstance(node, exp.Placeholder) and int(str(node.this)[1:]) < parsed.parameters.count
    ]


def _result_names(parsed: Parsed, scratch: Scratch) -> list[str]:
    """The names DuckDB gives the result's columns."""
    if parsed.target is not None:
        clause = parsed.tree.args.get("returning")
        if clause is None:
            return []
        listed = ", ".join(node.sql("duckdb") for node in clause.expressions)
        alias = target_table(parsed.tree).alias_or_name
        sql = f'SELECT {listed} FROM "{parsed.target.name}" AS "{alias}"'
        nodes = clause.expressions
        given: Any = {str(n.this): None for part in nodes for n in part.find_all(exp.Placeholder)}
    else:
        sql = parsed.sql.rstrip().rstrip(";")
        nodes = parsed.tree.expressions if isinstance(parsed.tree, exp.Select) else []
        given = _nothing(parsed)
    try:
        described = scratch.connection.execute(f"SELECT * FROM ({sql}\n) LIMIT 0", given).description
    except duckdb.Error:
        return [node.alias_or_name or f"column{i}" for i, node in enumerate(nodes)]
    return [str(column[0]) for column in described]


def _nothing(parsed: Parsed) -> Any:
    if parsed.parameters.positional:
        return [None] * parsed.parameters.count
    return dict.fromkeys(parsed.parameters.names)
