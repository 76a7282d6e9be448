"""What a SELECT, UPDATE or DELETE reads from, and which conditions the rows of each source must meet.

A source is a table, a relation (a batch, stream or window), or a query: a subquery, a view, a WITH entry. Of a query, the
columns are known that are passed on unchanged from something known, so that a condition on them is one on the table behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sqlglot import exp

from tidegate.storage.schema import Column, Relation, TableSchema
from tidegate.storage.sql.codes import conjuncts
from tidegate.storage.sql.parsing import Parsed, target_table

Columns = dict[str, Column]  # by name, in lower case

# a partitioned table, and what its partition columns are called in something that is read from
Partitioned = tuple[TableSchema, dict[str, str]]


class Place(NamedTuple):
    """A column of something that a SELECT reads from."""

    source: str
    column: str


class Outputs(NamedTuple):
    """The columns of a query, those known, by their place; and the partitioned tables behind it."""

    columns: list[Column | None]
    partitioned: list[Partitioned]


class Sources:
    """The sources of one FROM, by the names that its conditions use."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._behind: dict[str, list[Partitioned]] = {}
        self.known: dict[str, Columns] = {}
        self.given: dict[str, Relation] = {}  # those whose rows are known before anything is read
        self.complete = True  # are the columns of all sources known?
        self.conditions: dict[str, list[exp.Expression]] = {}

    def partitioned(self, source: str) -> list[Partitioned]:
        """The partitioned tables that are behind a source, with columns to ask for."""
        return self._behind[source]

    # ---- what there is

    def add(self, node: Any, target: TableSchema | None = None) -> str | None:
        """A source, and what its conditions call it; None if its columns are not known."""
        found = self._found(node, target)
        alias = node.args.get("alias")
        if found is None or not node.alias_or_name or (alias is not None and alias.args.get("columns")):
            self.complete = False
            return None
        source = str(node.alias_or_name).lower()
        self.known[source], self._behind[source] = found
        self.conditions[source] = []
        return source

    def _found(self, node: Any, target: TableSchema | None) -> tuple[Columns, list[Partitioned]] | None:
        if isinstance(node, exp.Subquery):
            return self._of_query(node.this)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            return None
        name = node.name.removeprefix("tg:") if node.name.startswith("tg:") else ""
        table = target or self._parsed.tables.get(name)
        if table is not None:
            return _by_name(table.columns), [(table, {c: c for c in table.partition_by})] if table.partition_by else []
        relation = self._parsed.relations.get(name)
        if relation is None:
            return self._of_query(_entry(node))
        self.given[str(node.alias_or_name).lower()] = relation
        return _by_name(relation.columns), []

    def _of_query(self, query: Any) -> tuple[Columns, list[Partitioned]] | None:
        outputs = _outputs(self._parsed, query)
        return None if outputs is None else (_by_name(c for c in outputs.columns if c is not None), outputs.partitioned)

    def join(self, join: exp.Join) -> None:
        """A joined source, and what its condition says of it and of those before."""
        before = list(self.known)
        name = self.add(join.this)
        conditions = conjuncts(join.args.get("on"))
        if join.args.get("using"):
            self.complete = False  # the star has such a column once
        for column in join.args.get("using") or ():
            left = next((other for other in before if column.name.lower() in self.known[other]), None)
            if left is not None and name is not None:
                conditions.append(exp.EQ(this=_qualified(left, column.name), expression=_qualified(name, column.name)))
        for each in self._restricted(join, before, name):
            self.conditions[each] += conditions

    def _restricted(self, join: exp.Join, before: list[str], name: str | None) -> list[str]:
        """The sources of which only rows that meet the condition of the join take part."""
        side, joined = join.side.upper(), [name] if name is not None else []
        if side == "FULL":
            return []
        if side == "RIGHT":
            return before
        return joined if side == "LEFT" or join.kind.upper() == "ANTI" else [*before, *joined]

    def where(self, where: exp.Expression | None) -> None:
        """The rows of all sources must meet this."""
        for conditions in self.conditions.values():
            conditions += conjuncts(where)

    # ---- what a condition names

    def place(self, node: Any) -> Place | None:
        """The column that ``node`` is."""
        if isinstance(node, exp.Paren):
            return self.place(node.this)
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star) or node.args.get("db"):
            return None
        for name in [node.table.lower()] if node.table else self.known:
            column = self.known.get(name, {}).get(node.name.lower())
            if column is not None:
                return Place(name, column.name)
        return None

    def column(self, place: Place) -> Column:
        return self.known[place.source][place.column.lower()]


def all_sources(parsed: Parsed) -> Iterator[Sources]:
    """The sources of the statement and of every query in it."""
    tree = parsed.tree
    if isinstance(tree, (exp.Update, exp.Delete)):
        sources = Sources(parsed)
        sources.add(target_table(tree), parsed.target)
        source = tree.args.get("from_")
        for node in [source.this] if source is not None else tree.args.get("using") or ():
            sources.add(node)
        sources.where(tree.args.get("where"))
        yield sources
    for select in tree.find_all(exp.Select):
        yield _sources_of(parsed, select)


def _sources_of(parsed: Parsed, select: exp.Select) -> Sources:
    sources, source = Sources(parsed), select.args.get("from_")
    if source is not None:
        sources.add(source.this)
        for join in select.args.get("joins") or ():
            sources.join(join)
        sources.where(select.args.get("where"))
    return sources


# ---- queries as sources


def _entry(table: exp.Table) -> exp.Expression | None:
    """The query of the WITH entry that a name refers to; of a recursive one nothing is known."""
    node: Any = table
    while (node := node.parent) is not None:
        clause = node.args.get("with_")
        for entry in clause.expressions if clause is not None else ():
            if entry.alias.lower() == table.name.lower():
                plain = not clause.args.get("recursive") and not entry.args["alias"].args.get("columns")
                return entry.this if plain and table.find_ancestor(exp.CTE) is not entry else None
    return None


def _outputs(parsed: Parsed, query: Any) -> Outputs | None:
    if isinstance(query, (exp.Paren, exp.Subquery)):
        return _outputs(parsed, query.this)
    if isinstance(query, exp.SetOperation):
        left, right = _outputs(parsed, query.this), _outputs(parsed, query.expression)
        if left is None or right is None or query.args.get("by_name") or len(left.columns) != len(right.columns):
            return None
        names = {r.name: c.name for c, r in zip(left.columns, right.columns, strict=True) if c and r}
        renamed = [
            (schema, {c: names[n] for c, n in called.items() if n in names}) for schema, called in right.partitioned
        ]
        return Outputs(left.columns, [*left.partitioned, *(found for found in renamed if found[1])])
    if not isinstance(query, exp.Select):
        return None
    sources = _sources_of(parsed, query)
    columns: list[Column | None] = []
    called: dict[Place, str] = {}
    for name, place in _passed_on(sources, query):
        columns.append(replace(sources.column(place), name=name) if place is not None else None)
        if place is not None:
            called.setdefault(place, name)
    behind = []
    for source in sources.known:
        for schema, own in sources.partitioned(source):
            passed = {c: called[Place(source, n)] for c, n in own.items() if Place(source, n) in called}
            if passed:
                behind.append((schema, passed))
    return Outputs(columns, behind)


def _passed_on(sources: Sources, query: exp.Select) -> Iterator[tuple[str, Place | None]]:
    """The columns of a query, and what each is a column of, if it is nothing else."""
    for node in query.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            wanted = node.table.lower() if isinstance(node, exp.Column) else ""
            if not any(star.args.values()) and sources.complete:
                for source, columns in sources.known.items():
                    for column in columns.values() if wanted in {"", source} else ():
                        yield column.name, Place(source, column.name)
        else:
            yield node.alias_or_name, sources.place(node.unalias())


def _by_name(columns: Iterable[Column]) -> Columns:
    found: Columns = {}
    for column in columns:
        found.setdefault(column.name.lower(), column)
    return found


def _qualified(source: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(source, quoted=True))
