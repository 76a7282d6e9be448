"""``CREATE MATERIALIZED VIEW``: from a query over tables to what is kept of it, and to a plain view over what is kept.

The query is cut at its groups. Below: joins, WHERE, the expressions that are grouped by and aggregated, folded in row by row
(:mod:`tidegate.storage.maintained`). Above: HAVING, ORDER BY, LIMIT, window functions and expressions over aggregates, which
are computed from the groups when the view is asked. A query without aggregates is grouped by all of its columns.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.dataflows.changelogs import SNAPSHOT
from tidegate.dataflows.definitions import Procedure, Stream, TableAccess
from tidegate.dataflows.sql.planning import calls
from tidegate.dataflows.sql.text import Piece
from tidegate.dataflows.views import PlainView, with_views
from tidegate.errors import DeclarationError, StatementError, TidegateError
from tidegate.storage.ddl import quote
from tidegate.storage.maintained import (
    CHANGES,
    PREFIX,
    Changes,
    Delta,
    Kept,
    KeptDecimals,
    KeptFloats,
    KeptSum,
    KeptValues,
    Maintained,
    beginner,
    filler,
)
from tidegate.storage.schema import Relation, TableSchema
from tidegate.storage.sql.parsing import function_name, parse, tree_of
from tidegate.storage.sql.statements import prepare

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

FILL = "tidegate_fill_"  # and the name of the view: the call that computes its state from its tables
KNOWN = "count, sum, avg, min, max, bool_and, bool_or, also with DISTINCT or FILTER"
WIDE = {"BIGINT", "UBIGINT"}


@dataclass
class _Aggregate:
    """One aggregate of the query: what is kept for it, and how it is read."""

    name: str
    argument: exp.Expression | None
    distinct: bool
    node: exp.Expression  # what its value takes the place of, FILTER included


@dataclass
class _Query:
    """The query in parts."""

    app: App
    name: str
    piece: Piece
    tree: exp.Select
    groups: list[exp.Expression] = field(default_factory=list)
    aggregates: list[_Aggregate] = field(default_factory=list)
    plain: bool = False  # without groups and aggregates: rows, as often as they are there
    single: bool = False  # aggregates without groups: always one row

    def refused(self, why: str, instead: str = "") -> DeclarationError:
        return self.piece.refused(
            0, f"materialized view {self.name}: {why}",
            instead or f"write CREATE VIEW {self.name} AS …, which is computed when it is asked",
        )  # fmt: skip


@dataclass
class _Block:
    """A SELECT whose groups are maintained, and the query over what is kept of it."""

    query: _Query
    maintained: Maintained
    shown: str


def declare_maintained(app: App, name: str, piece: Piece, changelog: bool = False) -> str:
    """Declare the view: its state as tables, how changes are folded in, and the plain view that shows it."""
    sql = piece.sql()
    blocks: list[_Block] = []
    before = dict(app.tables), dict(app.streams), dict(app.procedures)
    try:
        app._name_is_free("view", name)
        whole = with_views(sql, app.views)
        _refuse_varying(name, piece, parse(whole, app.tables, {}, app.scratch))
        shown = _blocks(app, name, piece, tree_of(whole), blocks)
        changes = _declare_changes(app, blocks, shown) if changelog else None
        for block in blocks:
            app.tables |= {schema.name: schema for schema in block.maintained.states}
        tables = tuple(sorted(parse(shown, app.tables, {}, app.scratch).tables))
        columns = app.scratch.define_view(name, shown)
        if list(columns) != (wanted := app.scratch.shape(whole.rstrip().rstrip(";"))):
            raise piece.refused(
                0, f"materialized view {name}: its columns would be {columns}, not {wanted}", "use CAST"
            )
    except TidegateError as error:
        for lost in [*(app.tables.keys() - before[0].keys()), *(app.streams.keys() - before[1].keys())]:
            app.scratch.forget(lost)
        for block in blocks:
            for schema in block.maintained.states:
                app.scratch.forget(schema.name)
        app.tables, app.streams, app.procedures = before
        if isinstance(error, StatementError):
            told = str(error).splitlines()[0]
            raise piece.refused(0, f"materialized view {name}: {told}", "correct the query") from None
        raise
    app.views[name] = PlainView(name, shown, columns, tables)
    for block in blocks:
        view = block.maintained
        app.maintained[view.name] = view
        access = [TableAccess(t) for t in view.reads] + [TableAccess(s.name, write=True) for s in view.states]
        fill = FILL + view.name
        app.procedures[fill] = Procedure(fill, filler(view, changes), access=tuple(access))
    return name


def _refuse_varying(name: str, piece: Piece, parsed: Any) -> None:
    if parsed.draws or parsed.parameters.names:
        what = "depends on time or chance" if parsed.draws else "has a parameter"
        raise piece.refused(0, f"materialized view {name}: it {what}", "give the value in the query of the view")


def _blocks(app: App, name: str, piece: Piece, tree: exp.Expression, found: list[_Block]) -> str:
    """The query over what is kept: each SELECT that can be maintained reads its state, the rest is computed when it is asked.

    Inside a larger query, only groups are worth keeping: they are fewer than rows.
    """
    refused: DeclarationError | None = None
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, exp.Select):
            try:
                block = _block(
                    app, f"{name}_{len(found) + 1}" if found or node is not tree else name, piece, node, node is tree
                )
            except DeclarationError as error:
                refused = refused or error
            else:
                found.append(block)
                if node is tree:
                    return block.shown
                node.replace(tree_of(block.shown))
                continue
        waiting += list(node.iter_expressions())
    if not found:
        assert refused is not None
        raise refused
    return tree.sql("duckdb")


def _block(app: App, name: str, piece: Piece, tree: exp.Select, whole: bool) -> _Block:
    query = _parts(app, name, piece, tree.copy())
    if not whole and not query.aggregates and query.tree.args.get("group") is None:
        raise query.refused("rows of a subquery are not kept, only groups")
    text = tree.sql("duckdb")
    try:
        return _Block(query, *_plan(query, text))
    except StatementError as error:  # it names columns of the query around it
        raise query.refused(str(error).splitlines()[0], "correct the query") from None


def _declare_changes(app: App, blocks: list[_Block], shown: str) -> Changes:
    """The stream ``<view>_changes``: rows of the view with the weight that each change adds, and the position."""
    query, view = blocks[0].query, blocks[0].maintained
    if shown != blocks[0].shown:
        raise query.refused(
            "what a changed group changes in it is not known: only a part of it is kept", "leave out changelog"
        )
    changes = _changes(query, view.state, shown)
    columns = [f"{quote(name)} {kind}" for name, kind in changes.columns]
    name = app.stream(
        f"{view.name}_changes", ", ".join([*columns, "weight BIGINT NOT NULL", "position BIGINT NOT NULL"])
    )
    app.streams[name] = Stream(name, app.streams[name].relation, changelog_of=view.state.name)
    snapshot = SNAPSHOT + view.state.name
    access = (TableAccess(view.state.name, write=True),)
    app.procedures[snapshot] = Procedure(snapshot, beginner(view.state, changes), access=access)
    app.view_changes[view.state.name] = changes
    return changes


def _changes(query: _Query, state: TableSchema, shown: str) -> Changes:
    """What a row of the state shows: the query over the state with one row in its place."""
    tree = tree_of(shown)
    if any(tree.args.get(part) for part in ("order", "limit", "offset", "qualify")) or tree.find(exp.Window):
        raise query.refused(
            "what a changed group changes in it is not known, because of ORDER BY, LIMIT or a window function",
            "leave out changelog, or these; who follows the changes can order them",
        )  # fmt: skip
    if query.app.recovery == "effects":
        raise query.refused(
            "with recovery='effects' its changes are not found again in a replay", "leave out changelog"
        )
    relation = Relation(f"{CHANGES}_{state.name}", state.columns)
    for table in list(tree.find_all(exp.Table)):
        if table.name == state.name:
            table.replace(exp.to_table(relation.name))
    app = query.app
    app.scratch.define_window(relation)
    text = tree.sql("duckdb")
    types = [(name, "BIGINT" if kind == "HUGEINT" else kind) for name, kind in app.scratch.shape(text)]
    return Changes(relation, prepare(text, {}, {relation.name: relation}, app.scratch), tuple(types))


# ---- the query


def _parts(app: App, name: str, piece: Piece, tree: exp.Select) -> _Query:
    query = _Query(app, name, piece, tree)
    if any(table.name.startswith(PREFIX) for table in tree.find_all(exp.Table)):
        raise query.refused("it reads another materialized view", "write its query over the tables")
    inner = next((n for n in tree.find_all(exp.Query) if n is not tree), None)
    if inner is not None or tree.args.get("with_"):
        raise query.refused("it has a subquery or WITH")
    for table in tree.find_all(exp.Table):
        if not any(name.lower() == table.name.lower() for name in app.tables):
            raise query.refused("it reads something else than tables")
        schema = _table(app, table)
        if schema.expiry is not None:
            raise query.refused(f"rows of {schema.name} expire", "delete them in a procedure with every=")
    _check_joins(query)
    _expand(query)
    _group(query)
    return query


def _table(app: App, table: exp.Table) -> TableSchema:
    return next(schema for name, schema in app.tables.items() if name.lower() == table.name.lower())


def _sources(query: _Query) -> list[exp.Table]:
    top = query.tree.args.get("from_")
    return [part for part in [top.this if top else None, *(j.this for j in query.tree.args.get("joins") or [])] if part]


def _check_joins(query: _Query) -> None:
    sources = _sources(query)
    if not sources or not all(isinstance(one, exp.Table) for one in sources):
        raise query.refused("it reads something else than tables")
    for join in query.tree.args.get("joins") or []:
        plain = {key for key, value in join.args.items() if value} <= {"this", "on", "using", "kind", "side"}
        if not plain or join.side or join.kind.upper() not in {"", "INNER", "CROSS"}:
            raise query.refused(f"{' '.join(filter(None, [join.side, join.kind]))} JOIN is not maintained")
    names = [_table(query.app, one).name for one in sources]
    if len(set(names)) < len(names):
        raise query.refused("it joins a table with itself")


def _expand(query: _Query) -> None:
    """``*`` as columns."""
    found: list[exp.Expression] = []
    for node in query.tree.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if not isinstance(star, exp.Star):
            found.append(node)
            continue
        if any(star.args.values()) or any(j.args.get("using") for j in query.tree.args.get("joins") or []):
            raise query.refused("* is not plain", "name the columns")
        wanted = node.table.lower() if isinstance(node, exp.Column) else ""
        for source in _sources(query):
            if wanted in {"", source.alias_or_name.lower()}:
                found += [
                    exp.column(
                        exp.to_identifier(c.name, quoted=True),
                        table=exp.to_identifier(source.alias_or_name, quoted=True),
                    )
                    for c in _table(query.app, source).columns
                ]
    query.tree.set("expressions", found)


def _group(query: _Query) -> None:
    """The expressions that are grouped by, and the aggregates."""
    tree = query.tree
    found = calls(query.app, tree)
    for call in found:
        query.aggregates.append(_aggregate(query, call))
    group = tree.args.get("group")
    distinct = tree.args.get("distinct")
    inside = {id(call) for call in found}
    bare: list[Any] = [n for n in tree.expressions if not any(id(c) in inside for c in n.find_all(exp.Anonymous))]
    if group is not None:
        if any(value for key, value in group.args.items() if key not in {"expressions", "all"}):
            raise query.refused("ROLLUP, CUBE and GROUPING SETS are not maintained")
        given = bare if group.args.get("all") else group.expressions
        if any(function_name(node) in {"rollup", "cube"} for node in given):
            raise query.refused("ROLLUP, CUBE and GROUPING SETS are not maintained")
        query.groups = [_plainly(_named(query, node)) for node in given]
    elif found or tree.args.get("having"):
        query.single = True
    else:
        over = next(tree.find_all(exp.Window), None)
        if over is not None or tree.args.get("qualify"):
            raise query.refused("window functions over rows are not maintained, only over groups")
        query.groups = [node.unalias().copy() for node in tree.expressions]
        query.plain = distinct is None
    if distinct is not None and (distinct.args.get("on") or found):
        raise query.refused("DISTINCT ON, and DISTINCT of aggregates, are not maintained")


def _plainly(node: exp.Expression) -> exp.Expression:
    found: Any = node.unalias()
    return found.copy()  # type: ignore[no-any-return]


def _named(query: _Query, node: exp.Expression) -> exp.Expression:
    """What GROUP BY 1, or GROUP BY alias, stands for."""
    if isinstance(node, exp.Literal) and node.is_int:
        chosen: exp.Expression = query.tree.expressions[int(node.this) - 1].unalias()
        return chosen
    if isinstance(node, exp.Column) and not node.table:
        columns = {c.lower() for source in _sources(query) for c in _table(query.app, source).index_of}
        if node.name.lower() not in columns:
            for output in query.tree.expressions:
                if isinstance(output, exp.Alias) and output.alias.lower() == node.name.lower():
                    return output.this  # type: ignore[no-any-return]
    return node


def _aggregate(query: _Query, call: exp.Anonymous) -> _Aggregate:
    name = function_name(call)
    name = "avg" if name == "mean" else name
    arguments = list(call.expressions)
    distinct = False
    node: Any = call
    if name not in {"count", "sum", "avg", "min", "max", "bool_and", "bool_or"} or len(arguments) > 1:
        raise query.refused(f"{name}() is not maintained; there are {KNOWN}")
    argument = arguments[0] if arguments else None
    if isinstance(argument, exp.Order):
        raise query.refused(f"{name}() has an ORDER BY", "leave it out")
    if isinstance(argument, exp.Distinct):
        distinct, argument = True, argument.expressions[0]
        if name in {"sum", "avg"}:
            raise query.refused(f"{name}(DISTINCT …) is not maintained")
    if isinstance(argument, exp.Star):
        argument = None
    if isinstance(call.parent, exp.Filter):
        node = call.parent
        condition = node.expression.this
        value = exp.Literal.number(1) if argument is None else argument.copy()
        argument = exp.Case(ifs=[exp.If(this=condition.copy(), true=value)])
    return _Aggregate(name, argument, distinct, node)


# ---- what is kept


def _plan(query: _Query, sql: str) -> tuple[Maintained, str]:
    app = query.app
    arguments: list[exp.Expression] = []
    for one in query.aggregates:
        if one.argument is not None and one.argument not in arguments:
            arguments.append(one.argument)
    selected = [
        *(exp.alias_(g.copy(), f"g{i}") for i, g in enumerate(query.groups)),
        *(exp.alias_(a.copy(), f"a{i}") for i, a in enumerate(arguments)),
    ] or [exp.alias_(exp.Literal.number(1), "one")]
    below = query.tree.copy()
    for part in ("group", "having", "order", "limit", "offset", "distinct", "qualify"):
        below.set(part, None)
    below.set("expressions", selected)
    whole = below.sql("duckdb")
    types = [kind for _, kind in app.scratch.shape(whole)]
    digest = hashlib.blake2b(repr([sql, whole, types]).encode(), digest_size=4).hexdigest()
    base = f"{PREFIX}{query.name}_{digest}"  # another query is another state, which is filled anew
    keeper = _Keeper(query, base, arguments, types[len(query.groups) :], types[: len(query.groups)])
    shown = _shown(query, keeper, base)
    state, values = keeper.tables()
    fill_it = prepare(whole, app.tables, {}, app.scratch)
    found = Maintained(
        query.name, sql, state, len(query.groups), tuple(keeper.kept), tuple(keeper.places), _deltas(query, below),
        values, fill_it,
    )  # fmt: skip
    return found, shown


class _Keeper:
    """Collects what is kept for the aggregates: columns of the state, and tables of values."""

    def __init__(
        self, query: _Query, base: str, arguments: list[exp.Expression], types: list[str], groups: list[str]
    ) -> None:
        self.query = query
        self.base = base
        self.arguments = arguments
        self.types = types
        self.columns = [f"tg_g{i} {kind}" for i, kind in enumerate(groups)]
        self.kept: list[Kept] = []
        self.places: list[int | None] = []
        self._known: dict[tuple[str, int], int] = {}
        self._values: list[TableSchema] = []
        self._groups = len(groups)

    def read(self, one: _Aggregate) -> str:
        """The value of an aggregate, in SQL over the state."""
        if one.argument is None:
            return "tg_n"
        argument = self.arguments.index(one.argument)
        kind = self.types[argument]
        if one.name == "count" and not one.distinct:
            self._keep("count", argument)
            return f"tg_c{argument}"
        if one.name in {"sum", "avg"}:
            self._keep("sum", argument)
            total, n = f"tg_s{argument}", f"tg_m{argument}"
            if one.name == "avg":
                return f"CAST(CASE WHEN {n} > 0 THEN CAST({total} AS DOUBLE) / {n} END AS DOUBLE)"
            ((_, result),) = self.query.app.scratch.shape(f"SELECT sum(CAST(NULL AS {kind})) AS s")
            return f"CAST(CASE WHEN {n} > 0 THEN {total} END AS {result})"
        self._keep("values", argument)
        if one.name == "count":
            return f"tg_d{argument}"
        return f"tg_{'l' if one.name in {'min', 'bool_and'} else 'h'}{argument}"

    def _keep(self, what: str, argument: int) -> None:
        if (what, argument) in self._known:
            return
        kind = self.types[argument]
        place = 2 + len(self.columns)
        self._known[what, argument] = place
        made: Kept
        if what == "count":
            made = Kept(place, 1)
            self.columns.append(f"tg_c{argument} BIGINT NOT NULL")
        elif what == "sum":
            made = self._sum(argument, kind, place)
        else:
            made = self._of_values(argument, kind, place)
        self.kept.append(made)
        self.places.append(self._groups + argument)

    def _sum(self, argument: int, kind: str, place: int) -> Kept:
        n = f"tg_m{argument} BIGINT NOT NULL"
        if kind in {"DOUBLE", "FLOAT"}:
            self.columns += [n, f"tg_s{argument} DOUBLE NOT NULL", f"tg_e{argument} VARCHAR NOT NULL"]
            return KeptFloats(place, 3)
        if kind.startswith("DECIMAL"):
            scale = kind.rstrip(")").rpartition(",")[2]
            self.columns += [n, f"tg_s{argument} DECIMAL(38,{scale}) NOT NULL"]
            return KeptDecimals(place, 2)
        if kind in WIDE:
            self.columns += [n, f"tg_s{argument} DECIMAL(38,0) NOT NULL"]
            return KeptDecimals(place, 2)
        if not kind.endswith(("INT", "INTEGER")) or kind in {"HUGEINT", "UHUGEINT"}:
            raise self.query.refused(
                f"the sum of {self.arguments[argument].sql('duckdb')}, which is {kind}", "use CAST"
            )
        self.columns += [n, f"tg_s{argument} BIGINT NOT NULL"]
        return KeptSum(place, 2)

    def _of_values(self, argument: int, kind: str, place: int) -> Kept:
        app, table = self.query.app, f"{self.base}_{argument}"
        double = kind in {"DOUBLE", "FLOAT"}
        ddl = (
            f"CREATE TABLE {quote(table)} (k VARCHAR NOT NULL, v {'BIGINT' if double else kind} NOT NULL, n BIGINT NOT NULL, "
            f"shown {kind} NOT NULL, PRIMARY KEY (k, v)); CREATE INDEX {quote(table + '_v')} ON {quote(table)} (k, v)"
        )
        with app.scratch.lock, app.scratch.tentatively():
            schema = app.scratch.define_table(ddl)
        self._values.append(schema)
        tables = {**app.tables, table: schema}
        least, greatest = (
            prepare(f"SELECT shown FROM {quote(table)} WHERE k = ? ORDER BY v{order} LIMIT 1", tables, {}, app.scratch)
            for order in ("", " DESC")
        )
        self.columns += [f"tg_d{argument} BIGINT NOT NULL", f"tg_l{argument} {kind}", f"tg_h{argument} {kind}"]
        return KeptValues(place, schema, least, greatest, double)

    def tables(self) -> tuple[TableSchema, tuple[TableSchema, ...]]:
        app = self.query.app
        columns = ", ".join(["tg_k VARCHAR PRIMARY KEY", "tg_n BIGINT NOT NULL", *self.columns])
        with app.scratch.lock, app.scratch.tentatively():
            state = app.scratch.define_table(f"CREATE TABLE {quote(self.base)} ({columns})")
        return state, tuple(self._values)


def _deltas(query: _Query, below: exp.Select) -> tuple[Delta, ...]:
    """For each table, the query with the rows that changed in its place."""
    app = query.app
    names = [_table(app, one).name for one in _sources(query)]
    found = []
    for place, name in enumerate(names):
        tree = below.copy()
        relation = Relation(f"{CHANGES}_{name}", app.tables[name].columns)
        for table in list(tree.find_all(exp.Table)):
            if _table(app, table).name == name:
                alias = table.alias_or_name
                table.replace(exp.alias_(exp.to_table(relation.name), alias, table=True))
        _stream_first(tree, relation.name)
        app.scratch.define_window(relation)
        statement = prepare(tree.sql("duckdb"), app.tables, {relation.name: relation}, app.scratch)
        found.append(Delta(name, relation, statement, frozenset(names[place + 1 :])))
    return tuple(found)


def _stream_first(tree: exp.Select, name: str) -> None:
    """Inner joins with the changed rows first and the conditions in ON, so that the others are looked up by their keys."""
    joins = tree.args.get("joins") or []
    if not joins or any(join.args.get("using") for join in joins):
        return
    conditions = [join.args["on"] for join in joins if join.args.get("on") is not None]
    if tree.args.get("where"):
        conditions.append(tree.args["where"].this)
    sources = [tree.args["from_"].this, *(join.this for join in joins)]
    first = next(one for one in sources if one.name == name)
    rest = [one for one in sources if one is not first]
    condition = exp.and_(*(one.copy() for one in conditions), copy=False) if conditions else None
    tree.set("from_", exp.From(this=first.copy()))
    tree.set("where", None)
    made = [exp.Join(this=one.copy()) for one in rest]
    if condition is not None and len(made) == 1:
        made[0].set("on", condition)
    elif condition is not None:
        tree.set("where", exp.Where(this=condition))
    tree.set("joins", made)


# ---- what is shown


def _shown(query: _Query, keeper: _Keeper, base: str) -> str:
    """The query over the state."""
    tree = query.tree.copy()
    outputs = [name for name, _ in query.app.scratch.shape(query.tree.sql("duckdb"))]
    for place, node in enumerate(tree.expressions):
        if not isinstance(node, exp.Alias):
            node.replace(exp.alias_(node.copy(), outputs[place], quoted=True))
    originals = calls(query.app, tree)
    for call, one in zip(originals, query.aggregates, strict=True):
        aggregate: Any = call.parent if isinstance(call.parent, exp.Filter) else call
        aggregate.replace(tree_of(f"SELECT {keeper.read(one)}").expressions[0])
    for part in ("expressions", "having", "order", "qualify"):
        held = tree.args.get(part)
        for top in held if isinstance(held, list) else [held] if held is not None else []:
            _to_groups(query, top)
    for part in ("group", "where", "distinct", "joins"):
        tree.set(part, None)
    tree.set("from_", exp.From(this=exp.Table(this=exp.to_identifier(base, quoted=True))))
    having = tree.args.get("having")
    tree.set("having", None)
    if having is not None:
        tree.set("where", exp.Where(this=having.this.copy()))
    if query.single:
        return _one_row(tree, base, keeper)
    if query.plain:
        tree.set("joins", [exp.Join(this=tree_of("SELECT 1 FROM range(tg_n)").args["from_"].this)])
    return tree.sql("duckdb")


def _to_groups(query: _Query, top: exp.Expression) -> None:
    """Let the expressions that are grouped by read the columns of the state."""
    texts = {_plain_text(query, group): place for place, group in enumerate(query.groups)}
    waiting: list[Any] = [top]
    while waiting:
        node = waiting.pop()
        place = (
            texts.get(_plain_text(query, node)) if not isinstance(node, (exp.Alias, exp.Ordered, exp.Having)) else None
        )
        if place is not None and node is not top:
            node.replace(exp.column(f"tg_g{place}"))
        elif isinstance(node, exp.Column) and node.table:
            raise query.refused(f"{node.sql('duckdb')} is neither grouped by nor aggregated", "add it to GROUP BY")
        else:
            waiting += [part for part in node.iter_expressions() if not isinstance(part, exp.Identifier)]


def _plain_text(query: _Query, node: exp.Expression) -> str:
    """The expression as text, columns without the names of their tables where those are not needed."""
    copy = node.copy()
    for column in [copy] if isinstance(copy, exp.Column) else list(copy.find_all(exp.Column)):
        owners = [
            s for s in _sources(query) if column.name.lower() in {c.lower() for c in _table(query.app, s).index_of}
        ]
        if len(owners) == 1:
            column.set("table", None)
        column.set("this", exp.to_identifier(column.name.lower(), quoted=True))
        if column.table:
            column.set("table", exp.to_identifier(column.table.lower(), quoted=True))
    return copy.sql("duckdb")


def _one_row(tree: exp.Select, base: str, keeper: _Keeper) -> str:
    """Aggregates without groups: there is a row also when the tables are empty."""
    names = ["tg_n", *(column.split(" ")[0] for column in keeper.columns)]
    zero = [f"coalesce(max({n}), 0) AS {n}" if n[3] in "nmcd" else f"max({n}) AS {n}" for n in names if n[3] != "e"]
    inner = f"(SELECT {', '.join(zero)} FROM {quote(base)}) AS one"
    tree.set("from_", tree_of(f"SELECT 1 FROM {inner}").args["from_"])
    return tree.sql("duckdb")
