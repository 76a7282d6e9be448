"""Statements that read the rows of a batch (or of fired windows) and look up rows of tables, compiled to one loop over them.

::

    SELECT …             FROM batch [JOIN table ON its key = …] [LEFT JOIN …] [WHERE …]
    INSERT INTO table SELECT … the same

For small batches: from ``MANY`` rows on, DuckDB is faster. Whatever the statement, the rows come in the order that DuckDB
would give them, and nothing is changed before all expressions are evaluated, so :class:`Fallback` may be raised anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from tidegate.storage.changes import insert_rows
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Column, Relation, Row, TableSchema, namer
from tidegate.storage.sql.assignments import insert_places
from tidegate.storage.sql.codes import Code, Fold, NotCompilable, Scope, column_code, conjuncts
from tidegate.storage.sql.conflicts import compiled_conflict
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.lookups import is_decorated, order_all
from tidegate.storage.sql.parsing import Parsed
from tidegate.storage.sql.semantics import Fallback
from tidegate.storage.view import View

MANY = 2_000  # rows of a batch

Loop = Callable[[View, tuple[Any, ...]], list[Any]]
_PARTS = {"expressions", "from_", "joins", "where"}


class Source:
    """``FROM batch JOIN …``: the batch is ``r0`` in the generated code, the rows looked up are ``r1``, ``r2`` …"""

    def __init__(self, parsed: Parsed, tree: exp.Expression | None, fold: Fold) -> None:
        if not isinstance(tree, exp.Select) or any(value for key, value in tree.args.items() if key not in _PARTS):
            raise NotCompilable
        self._parsed = parsed
        self._tree = tree
        self._columns: list[tuple[str, list[exp.Column]]] = []
        scope = Scope()
        self.compiler = Compiler(scope, fold, parsed.parameters.count, parsed.draws)
        table = tree.args["from_"].this if tree.args.get("from_") is not None else None
        if not isinstance(table, exp.Table) or is_decorated(table) or len(parsed.relations) != 1:
            raise NotCompilable
        relation = parsed.relations.get(table.name.removeprefix("tg:"))
        if relation is None:
            raise NotCompilable
        self.relation: Relation = relation
        self._add(relation, table)
        self._lines: list[str] = []
        self._tables: list[str] = []
        for join in tree.args.get("joins") or ():
            self._join(join)
        where = conjuncts(tree.args.get("where"))
        if where:
            self._lines.append(f"if not ({self.compiler.predicate(where)}): continue")

    def _add(self, relation: Relation, table: exp.Table) -> None:
        """Name the columns of ``relation``, whose rows are the next variable."""
        alias = table.alias_or_name
        if any(known == alias.lower() for known, _ in self._columns):
            raise NotCompilable
        self.compiler.scope.add(relation, alias, f"r{len(self._columns)}")
        quoted = exp.to_identifier(alias, quoted=True)
        columns = [exp.column(exp.to_identifier(c.name, quoted=True), table=quoted) for c in relation.columns]
        self._columns.append((alias.lower(), columns))

    def _join(self, join: exp.Join) -> None:
        table, side, kind = join.this, join.side.upper(), join.kind.upper()
        plain = {key for key, value in join.args.items() if value} <= {"this", "on", "side", "kind"}
        if not plain or side not in {"", "LEFT"} or kind not in {"", "INNER", "OUTER"} or join.args.get("on") is None:
            raise NotCompilable
        schema = self._parsed.tables.get(table.name.removeprefix("tg:")) if isinstance(table, exp.Table) else None
        if schema is None or is_decorated(table):
            raise NotCompilable
        number, alias = len(self._columns), table.alias_or_name
        key, rest = self._key(schema, alias, conjuncts(join.args["on"]))
        relation: Relation = schema
        if side:
            relation = Relation(schema.name, tuple(replace(column, nullable=True) for column in schema.columns))
        self._add(relation, table)
        self._lines.append(f"r{number} = look_up(view, t{number}, {key})")
        self._tables.append(schema.name)
        absent = f"({'None, ' * len(schema.columns)})"
        matches = self.compiler.predicate(rest) if rest else ""
        if side:
            if matches:
                self._lines.append(f"if r{number} is not None and not ({matches}): r{number} = None")
            self._lines.append(f"if r{number} is None: r{number} = {absent}")
        else:
            self._lines.append(f"if r{number} is None{f' or not ({matches})' if matches else ''}: continue")

    def _key(
        self, schema: TableSchema, alias: str, conditions: Sequence[exp.Expression]
    ) -> tuple[str, list[exp.Expression]]:
        """The primary key that ON asks for, as code over the rows so far, and the other conditions."""
        found: dict[int, tuple[exp.Expression, str]] = {}
        own = Scope().add(schema, alias, "own")
        for condition in conditions:
            if not isinstance(condition, exp.EQ):
                continue
            for column, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
                place = _place(own, column)
                if place is None or place not in schema.key_indexes or place in found:
                    continue
                try:
                    found[place] = condition, self.compiler.key_part(schema.columns[place], other)
                except NotCompilable:
                    continue
                break
        if set(found) != set(schema.key_indexes):
            raise NotCompilable
        parts = [found[place][1] for place in schema.key_indexes]
        used = [condition for condition, _ in found.values()]
        rest = [condition for condition in conditions if not any(condition is each for each in used)]
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})", rest

    # ---- what it gives

    def codes(self) -> list[Code]:
        """The output columns."""
        return [self.compiler.value(node) for node in self.nodes()]

    def nodes(self) -> list[exp.Expression]:
        """The output expressions, ``*`` spelled out."""
        return [each for node in self._tree.expressions for each in self._expanded(node)]

    def _expanded(self, node: exp.Expression) -> Sequence[exp.Expression]:
        star = node.this if isinstance(node, exp.Column) else node
        if not isinstance(star, exp.Star):
            return [node]
        if any(star.args.values()):
            raise NotCompilable
        wanted = node.table.lower() if isinstance(node, exp.Column) else ""
        return [column for alias, columns in self._columns if wanted in {"", alias} for column in columns]

    def loop(self, made: str) -> Loop:
        """The function that gives ``made``, a Python expression, for each row."""
        namespace = self.compiler.namespace
        namespace.update(look_up=look_up, given=given)
        readers = [
            f"    t{number} = view.access.get({table!r}) or view.undeclared({table!r})"
            for number, table in enumerate(self._tables, start=1)
        ]
        lines = [
            "def loop(view, p):",
            f"    rows = given(view, {self.relation.name!r})",
            *readers,
            "    found = []",
            "    for r0 in rows:",
            *(f"        {line}" for line in self._lines),
            f"        found.append({made})",
            "    return found",
        ]
        exec("\n".join(lines), namespace)
        made_loop: Loop = namespace["loop"]
        return made_loop


def _place(own: Scope, node: exp.Expression) -> int | None:
    """The place of a column of the table that is joined; None for any other expression."""
    if not isinstance(node, exp.Column):
        return None
    try:
        return int(own.find(node).text[4:-1])
    except NotCompilable:
        return None


def given(view: View, name: str) -> Sequence[Row]:
    """The rows of the batch, if they are few and in their stored form."""
    _, rows = view.rows_of(name)
    kind = type(rows)
    if (kind is tuple or kind is ColumnRows) and len(rows) < MANY:
        return rows
    raise Fallback


def look_up(view: View, reader: Reader, key: Any) -> Row | None:
    """The row with this key, in its stored form, that ``view`` may see; no row has a key with NULL."""
    if key is None or (type(key) is tuple and None in key):
        return None
    if reader.whole:
        found: Row | None = view.get(reader.name, key)
        return found
    return reader.row(view, key) if reader.inside(view, (key,)) else None


def compile_batch_select(parsed: Parsed, row_class: Any, fold: Fold) -> Callable[[View, tuple[Any, ...]], list[Any]]:
    source = Source(parsed, parsed.tree, fold)
    codes = source.codes()
    if any(code.family == "param" for code in codes):
        raise NotCompilable
    order = order_all(codes)
    source.compiler.namespace["result"] = namer(row_class)
    loop = source.loop(f"result(({''.join(f'{code.text}, ' for code in codes)}))")

    def run(view: View, values: tuple[Any, ...]) -> list[Any]:
        found = loop(view, values)
        if len(found) > 1:
            found.sort(key=order)
        return found

    return run


def compile_batch_insert(parsed: Parsed, fold: Fold) -> Callable[[View, tuple[Any, ...]], list[Row]]:
    """The rows that INSERT … SELECT from a batch has stored."""
    tree, schema = parsed.tree, parsed.target
    assert schema is not None
    if tree.args.get("with_") or tree.args.get("by_name"):
        raise NotCompilable
    source = Source(parsed, tree.args.get("expression"), fold)
    places, nodes = insert_places(tree, schema), source.nodes()
    if len(places) != len(nodes):
        raise NotCompilable
    columns = [schema.columns[place] for place in places]
    cells = [source.compiler.assigned(node, column, schema) for node, column in zip(nodes, columns, strict=True)]
    loop = source.loop(f"({''.join(f'{cell}, ' for cell in cells)})")
    order = order_all([column_code(replace(column, nullable=True), "") for column in columns])
    others = [place for place in range(len(schema.columns)) if place not in places]
    conflict = compiled_conflict(parsed, fold)
    name = schema.name

    def complete(view: View, found: Sequence[Any]) -> Row:
        row: list[Any] = [None] * len(schema.columns)
        for place, value in zip(places, found, strict=True):
            row[place] = value
        for place in others:
            row[place] = _default(view, schema.columns[place])
        made: Row = schema.named(row)
        return made

    def run(view: View, values: tuple[Any, ...]) -> list[Row]:
        reader = view.writable(name)
        found = loop(view, values)
        if len(found) > 1:
            found.sort(key=order)
        return insert_rows(view, reader, [complete(view, cells) for cells in found], conflict, values)

    return run


def _default(view: View, column: Column) -> Any:
    return None if column.default is None else view.default(column)
