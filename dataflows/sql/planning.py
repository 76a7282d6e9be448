"""From ``SELECT`` over a stream to what one procedure does: its inputs, window, reads, and the SQL that runs on each batch.

A query over a window is evaluated for each window on its own: what SQL reads are the rows of all windows that fired, so
grouping, ORDER BY … LIMIT and window functions get the window's columns in addition.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.dataflows.definitions import Partition
from tidegate.dataflows.sql.joins import join_of
from tidegate.dataflows.sql.panes import in_panes
from tidegate.dataflows.sql.text import Piece
from tidegate.dataflows.sql.windows import Windowed, length, take_windows
from tidegate.dataflows.views import with_views
from tidegate.errors import DeclarationError, StatementError, TidegateError
from tidegate.storage.schema import Relation
from tidegate.storage.sql.codes import conjuncts
from tidegate.storage.sql.parsing import function_name, tree_of
from tidegate.storage.sql.statements import Statement, prepare
from tidegate.streams.windows.declare.declared import Declared, window_relation
from tidegate.streams.windows.declare.durations import described
from tidegate.streams.windows.declare.kinds import FINAL, LABELS

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

ORDERED = {"first", "last", "list", "array_agg", "string_agg", "group_concat", "listagg", "arbitrary"}


@dataclass
class Plan:
    """What a declared stream is: the procedure that makes it, and how that is told."""

    name: str
    sql: str  # as written
    statement: Statement
    columns: tuple[tuple[str, str, bool], ...]  # name, type, may it be NULL?
    inputs: tuple[str, ...]
    windows: dict[str, Declared] = field(default_factory=dict)
    reads: tuple[str | Partition, ...] = ()
    watermark: tuple[str, Any] | None = None
    steps: tuple[str, ...] = ()
    driver: str | None = None  # of a join with the last rows of a window: the stream whose rows are joined with them

    def __str__(self) -> str:
        columns = ", ".join(f"{name} {kind}{'' if null else ' NOT NULL'}" for name, kind, null in self.columns)
        return "\n".join([f"stream {self.name} ({columns})", *(f"  {step}" for step in self.steps)])


class Sources:
    """What stands in FROM: aliases of streams, windows and tables, with the relations they read."""

    def __init__(self, app: App, piece: Piece, tree: exp.Select, windows: Mapping[str, Windowed]) -> None:
        self.streams: dict[str, str] = {}  # alias -> stream
        self.windows: dict[str, Windowed] = {}  # alias -> window
        self.tables: dict[str, str] = {}
        self.relations: dict[str, Relation] = {}  # by alias
        self.nullable: set[str] = set()  # aliases on the optional side of an outer join
        self.nodes: dict[str, exp.Table] = {}
        top = tree.args.get("from_")
        nodes = [top.this] if top is not None else []
        joins = tree.args.get("joins") or []
        for join in joins:
            if join.side.upper() in {"LEFT", "FULL"} and isinstance(join.this, exp.Table):
                self.nullable.add(join.this.alias_or_name.lower())
            nodes.append(join.this)
        for node in nodes:
            if isinstance(node, exp.Table):
                self._add(app, node, windows)
        for node in tree.find_all(exp.Table):
            if not any(node is known for known in nodes) and _named(node.name, [*app.streams, *windows]):
                raise _refused(
                    piece, node.name, f"{node.name} is read in a subquery, and a subquery can't run on a stream",
                    "declare the inner query with CREATE STREAM and read that",
                )  # fmt: skip

    def _add(self, app: App, node: exp.Table, windows: Mapping[str, Windowed]) -> None:
        alias = node.alias_or_name.lower()
        self.nodes[alias] = node
        if (name := _named(node.name, windows)) is not None:
            found = windows[name]
            self.windows[alias] = found
            self.relations[alias] = window_relation(found.spec, _relations(app), name)
        elif (name := _named(node.name, app.streams)) is not None:
            self.streams[alias] = name
            self.relations[alias] = app.streams[name].relation
        elif (name := _named(node.name, app.tables)) is not None:
            self.tables[alias] = name
            self.relations[alias] = app.tables[name]

    def owner(self, column: exp.Column) -> str | None:
        """The alias of the source that has this column, if it is clear."""
        if column.table:
            return column.table.lower() if column.table.lower() in self.relations else None
        owners = [a for a, relation in self.relations.items() if _named(column.name, relation.index_of)]
        return owners[0] if len(owners) == 1 else None


def _relations(app: App) -> dict[str, Relation]:
    return {name: stream.relation for name, stream in app.streams.items()}


def _named(name: str, known: Any) -> str | None:
    return next((one for one in known if one.lower() == name.lower()), None)


def _refused(piece: Piece, word: str, why: str, instead: str) -> DeclarationError:
    """At the place of a word of the statement."""
    at = next((i for i, token in enumerate(piece.tokens) if token.text.lower() == word.lower()), 0)
    return piece.refused(at, why, instead)


# ---- planning


def plan_stream(app: App, name: str, piece: Piece) -> Plan:
    """The plan of ``CREATE STREAM name AS …``; ``piece`` is the query."""
    written = piece.text.sql[piece.start : piece.end]
    piece, every = _without_emit(app, piece)
    windows = {found.name: found for found in take_windows(app, piece)}
    _take_system_time(piece)
    tree = _parsed(app, piece, windows)
    sources = Sources(app, piece, tree, windows)
    _expand_stars(tree, sources)
    fed = [*sources.streams, *sources.windows]
    if every is not None and not windows:
        raise piece.refused(
            0, "EMIT EVERY is about windows", "read FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL …)"
        )
    if not fed:
        raise piece.refused(
            0, f"the query of {name} reads no stream", f"for a query over tables write CREATE VIEW {name} AS …"
        )
    if len(fed) > 2:
        raise piece.refused(0, f"the query of {name} joins {len(fed)} streams", "join two in a stream, then the third")
    nullable = [_may_be_null(node, sources) for node in tree.expressions]
    last = _last_rows(app, piece, sources) if len(fed) == 2 and sources.windows else None
    joined = join_of(app, piece, tree, sources) if len(fed) == 2 and last is None else None
    shown: dict[str, tuple[Declared, Relation]] = {}
    steps = [
        f"Scan {', '.join(dict.fromkeys([*sources.streams.values(), *(w.stream for w in sources.windows.values())]))}"
    ]
    watermark = _watermark(app, tree, sources, joined)
    if joined is not None:
        shown[joined.name] = joined.spec, window_relation(joined.spec, _relations(app), joined.name)
        steps.append(f"Join {joined.spec}")
        tree = joined.tree
        nullable = [one or joined.outer for one in nullable]
        _refuse_unwindowed(app, piece, tree)
    elif last is not None:
        shown[last.name] = last.spec, sources.relations[next(iter(sources.windows))]
        steps.append(f"Join with the last {last.spec.size:,} rows of {last.stream}, for each row of the other stream")
        _refuse_unwindowed(app, piece, tree)
    elif sources.windows:
        alias, one = next(iter(sources.windows.items()))
        spec, tree, told = _windowed(app, piece, tree, alias, one, sources, every)
        nullable += [False] * (len(tree.expressions) - len(nullable))  # final
        shown[one.name] = spec, window_relation(spec, _relations(app), one.name)
        steps += [f"Window {spec}", *told]
    else:
        _refuse_unwindowed(app, piece, tree)
    _check_table_joins(piece, tree, sources)
    statement, columns = _prepared(app, piece, tree, {n: r for n, (_, r) in shown.items()}, nullable)
    reads = tuple(_read(app, table, sources, tree) for table in sorted(statement.reads))
    if reads:
        steps.append(f"Lookup {', '.join(str(r if isinstance(r, str) else f'partition of {r.table}') for r in reads)}")
    steps += [f"Emit {statement.explain()}"]
    inputs = joined.inputs if joined else (*sources.streams.values(), *(w.stream for w in sources.windows.values()))
    return Plan(
        name, written, statement, columns, tuple(dict.fromkeys(inputs)), {n: s for n, (s, _) in shown.items()}, reads,
        watermark, tuple(steps), None if last is None else next(iter(sources.streams.values())),
    )  # fmt: skip


def _last_rows(app: App, piece: Piece, sources: Sources) -> Windowed | None:
    """``FROM messages <SLICES 1 ROW>, sensor <VISIBLE 1000 ROWS ADVANCE 1 ROW>``: each row of a stream, with those that came last
    on another. The window of one row is the stream.
    """
    for alias, one in list(sources.windows.items()):
        if one.spec.kind == "count" and one.spec.size == one.spec.slide == 1 and not one.spec.by:
            del sources.windows[alias]
            sources.streams[alias] = one.stream
            sources.relations[alias] = app.streams[one.stream].relation
            node = sources.nodes[alias]
            node.set("this", exp.to_identifier(one.stream, quoted=True))
    if len(sources.streams) != 1 or len(sources.windows) != 1:
        return None
    alias, one = next(iter(sources.windows.items()))
    if one.spec.kind != "count" or one.spec.slide != 1 or one.spec.by:
        return None
    if one.stream in sources.streams.values():
        raise piece.refused(0, "a stream can't be joined with its own last rows", "declare a second stream from it")
    sources.relations[alias] = Relation(one.name, app.streams[one.stream].relation.columns)
    return one


def _without_emit(app: App, piece: Piece) -> tuple[Piece, int | None]:
    """The query without EMIT, and how far apart early results are, in microseconds."""
    at = piece.find("EMIT")
    if at is None:
        return piece, None
    if piece.words(at + 1, 3) == ("ON", "WINDOW", "CLOSE"):
        return piece.part(0, at), None
    if piece.says(at + 1, "EVERY") and at + 2 < len(piece.tokens):
        every = length(app, piece, at + 2, len(piece.tokens))
        if isinstance(every, dt.timedelta) and every > dt.timedelta(0):
            return piece.part(0, at), every // dt.timedelta(microseconds=1)
    raise piece.refused(
        at, f"EMIT {' '.join(piece.words(at + 1, 2))} is not supported",
        "write EMIT EVERY INTERVAL '10' SECOND for early results, or leave it out: results come when a window closes, which is "
        "EMIT ON WINDOW CLOSE",
    )  # fmt: skip


def _emitting(piece: Piece, spec: Any, tree: exp.Select, every: int, compiled: bool, label: Any) -> Any:
    """The window that gives early results, too; the query says with ``final`` which they are not."""
    if not compiled or spec.kind != "time" or tree.args.get("limit") or tree.args.get("offset"):
        raise _refused(
            piece, "SELECT",
            "early results are of TUMBLE and HOP, and of aggregates that are kept in panes: of columns, without WHERE, FILTER, "
            "LIMIT", "filter in a stream of its own, and read that: CREATE STREAM filtered AS SELECT … WHERE …",
        )  # fmt: skip
    if spec.size % every or spec.slide % every:
        raise _refused(
            piece, "SELECT", "early results come at boundaries of time that divide the window and its slide",
            f"the window is {described(spec.size)}, its slide {described(spec.slide)}: choose an interval that divides both",
        )  # fmt: skip
    if not any(node.alias_or_name.lower() == FINAL for node in tree.expressions):
        tree.append("expressions", label(FINAL))
    return replace(spec, emit_every=every)


def _take_system_time(piece: Piece) -> None:
    """``FOR SYSTEM_TIME AS OF o.proctime``: a table as it is at the batch's position, which is what a join reads anyway."""
    for at in range(len(piece.tokens)):
        if piece.says(at, "FOR", "SYSTEM_TIME", "AS", "OF"):
            end = at + 5
            while end + 1 < len(piece.tokens) and piece.says(end, "."):
                end += 2
            last = piece.tokens[end - 1].text.upper()
            if piece.says(end, "("):
                end = piece.matching(end) + 1
            if last != "PROCTIME":
                raise piece.refused(
                    at, "a table is read as it is at the batch's position, not as of a time in a column",
                    "write FOR SYSTEM_TIME AS OF PROCTIME(), or leave it out",
                )  # fmt: skip
            piece.replace(at, end, "")


def _parsed(app: App, piece: Piece, windows: Mapping[str, Windowed]) -> exp.Select:
    sql = with_views(piece.sql(), app.views)
    try:
        tree = tree_of(sql)
    except StatementError as error:
        raise piece.refused(0, f"this query can't be read ({error})".replace(f"\n  {sql}", ""), "correct it") from None
    if isinstance(tree, exp.SetOperation):
        raise piece.refused(
            0, f"{tree.key.upper()} of streams is not supported",
            "declare each SELECT as a stream, and let a procedure with inputs=either(…) read both",
        )  # fmt: skip
    if not isinstance(tree, exp.Select):
        raise piece.refused(0, "a stream is declared AS SELECT …", "write SELECT columns FROM stream")
    if tree.args.get("with_"):
        raise piece.refused(
            0, "WITH can't stand in the query of a stream", "declare the inner query with CREATE STREAM"
        )
    for call in list(tree.find_all(exp.Anonymous)):
        if function_name(call) in {"window_close", "cq_close"}:
            if not windows:
                raise _refused(piece, str(call.this), f"{call.this}() needs a window", "read FROM TUMBLE(TABLE …)")
            call.replace(exp.column("window_end"))
    for parameter in tree.find_all(exp.Placeholder, exp.Parameter):
        raise piece.refused(
            0, f"the query has a parameter, {parameter.sql()}", "write its value, or keep it in a table"
        )
    return tree


def _expand_stars(tree: exp.Select, sources: Sources) -> None:
    found: list[exp.Expression] = []
    for node in tree.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if not isinstance(star, exp.Star) or any(star.args.values()):
            found.append(node)
            continue
        wanted = node.table.lower() if isinstance(node, exp.Column) else ""
        for alias in sources.relations:
            if wanted in {"", alias}:
                shown = sources.nodes[alias].alias_or_name
                found += [
                    exp.column(exp.to_identifier(c.name, quoted=True), table=exp.to_identifier(shown, quoted=True))
                    for c in sources.relations[alias].columns
                ]
    tree.set("expressions", found)


def _may_be_null(node: exp.Expression, sources: Sources) -> bool:
    inner: Any = node.unalias()
    if isinstance(inner, exp.Column):
        owner = sources.owner(inner)
        if owner is None:
            return inner.name.lower() not in LABELS
        name = _named(inner.name, sources.relations[owner].index_of)
        return name is None or owner in sources.nullable or sources.relations[owner].column(name).nullable
    if isinstance(inner, exp.Literal):
        return False
    return function_name(inner) != "count"


def _watermark(app: App, tree: exp.Select, sources: Sources, joined: Any) -> tuple[str, Any] | None:
    """The time column of what a filter passes on, with the disorder of its stream."""
    if (sources.windows and not sources.streams) or joined is not None:
        return None
    for node in tree.expressions:
        inner = node.unalias()
        if isinstance(inner, exp.Column) and (owner := sources.owner(inner)) in sources.streams:
            known = app.watermarks.get(sources.streams[str(owner)])
            if known is not None and known[0].lower() == inner.name.lower():
                return node.alias_or_name, known[1]
    return None


# ---- without a window, and with one


def calls(app: App, tree: exp.Select) -> list[exp.Anonymous]:
    """The aggregates of this SELECT, those of its subqueries left out."""
    known = app.scratch.aggregates
    return [
        call
        for call in tree.find_all(exp.Anonymous)
        if function_name(call) in known
        and call.find_ancestor(exp.Select) is tree
        and not isinstance(call.parent, exp.Window)
        and not (isinstance(call.parent, exp.Filter) and isinstance(call.parent.parent, exp.Window))
    ]


def _refuse_unwindowed(app: App, piece: Piece, tree: exp.Select) -> None:
    """Whatever looks at several rows needs a window: over a batch, it would depend on how rows were split into batches."""
    found = calls(app, tree)
    window = next((w for w in tree.find_all(exp.Window) if w.find_ancestor(exp.Select) is tree), None)
    for what, word, there in (
        ("GROUP BY", "GROUP BY", tree.args.get("group")),
        ("DISTINCT", "DISTINCT", tree.args.get("distinct")),
        ("LIMIT", "LIMIT", tree.args.get("limit") or tree.args.get("offset")),
        ("ORDER BY", "ORDER BY", tree.args.get("order")),
        ("a window function", "OVER", window or tree.args.get("qualify")),
        (f"{function_name(found[0])}()" if found else "", function_name(found[0]) if found else "", bool(found)),
    ):
        if there:
            raise _refused(
                piece, word, f"{what} over a stream needs a window: what it gives would depend on how rows come in batches",
                "read FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '1' MINUTE), or keep the rows in a table and declare "
                "a materialized view",
            )  # fmt: skip


def _windowed(
    app: App, piece: Piece, tree: exp.Select, alias: str, one: Windowed, sources: Sources, every: int | None
) -> tuple[Declared, exp.Select, list[str]]:
    """The window's specification, and the query over the rows (or results) of all windows that fired."""
    told: list[str] = []
    if tree.args.get("where"):
        told.append(f"Mask {tree.args['where'].this.sql('duckdb')} (filtered rows still move time)")
    qualifier = exp.to_identifier(sources.nodes[alias].alias_or_name, quoted=True)

    def label(name: str) -> exp.Column:
        return exp.column(exp.to_identifier(name, quoted=True), table=qualifier.copy())

    by = [label(name) for name in one.spec.by]
    labels = [*(label(name) for name in LABELS), *by]
    for over in tree.find_all(exp.Window):
        over.set("partition_by", [*(part.copy() for part in labels), *(over.args.get("partition_by") or [])])
    found = calls(app, tree)
    grouped = bool(found or tree.args.get("group") or tree.args.get("having"))
    if tree.args.get("distinct"):
        if grouped or tree.args["distinct"].args.get("on"):
            raise _refused(piece, "DISTINCT", "DISTINCT of aggregates is not supported", "group by the columns instead")
        tree.set("distinct", None)
        tree.set("group", exp.Group(expressions=[node.unalias().copy() for node in tree.expressions]))
        grouped = True
    outputs = [node.alias_or_name or node.sql("duckdb") for node in tree.expressions]
    spec = one.spec
    if grouped:
        compiled = in_panes(app, one, tree, found)
        if compiled is not None:
            spec, tree = compiled
            told.append("Aggregate in panes, as rows arrive")
        else:
            _order_in_time(piece, found, spec, label)
            _group_by_labels(tree, found, labels)
            told.append("Aggregate in DuckDB, when a window closes; its rows are held until then")
    if every is not None:
        spec = _emitting(piece, spec, tree, every, spec is not one.spec, label)
        told.append(f"Emit every {described(every)}, and when a window closes (final)")
    if tree.args.get("limit") or tree.args.get("offset"):
        told.append(f"TopK {tree.args['limit'].expression.sql() if tree.args.get('limit') else ''} of each window")
        tree = _limited(piece, tree, labels, outputs)
    else:
        tree.set("order", None)  # rows of a batch have no order
    return spec, tree, told


def _order_in_time(piece: Piece, found: list[exp.Anonymous], spec: Any, label: Any) -> None:
    """first, last, list …: of rows in the order of time."""
    for call in found:
        if function_name(call) not in ORDERED or not call.expressions:
            continue
        if any(isinstance(argument, exp.Order) for argument in call.expressions):
            continue
        if spec.on is None:
            raise _refused(
                piece, str(call.this), f"{call.this} over rows without a time column: their order is not known",
                f"write {call.this}(x ORDER BY column)",
            )  # fmt: skip
        last = call.expressions[-1]
        order = exp.Order(this=last.copy(), expressions=[exp.Ordered(this=label(spec.on), nulls_first=False)])
        call.set("expressions", [*call.expressions[:-1], order])


def _group_by_labels(tree: exp.Select, found: list[exp.Anonymous], labels: list[exp.Column]) -> None:
    group = tree.args.get("group") or exp.Group(expressions=[])
    given = list(group.expressions)
    if group.args.get("all"):
        inside = {id(call) for call in found}
        given = [
            n.unalias().copy() for n in tree.expressions if not any(id(c) in inside for c in n.find_all(exp.Anonymous))
        ]
        group.set("all", None)
    group.set("expressions", [*given, *(part.copy() for part in labels)])
    tree.set("group", group)


def _limited(piece: Piece, tree: exp.Select, labels: list[exp.Column], outputs: list[str]) -> exp.Select:
    """ORDER BY … LIMIT of each window: ties go to the smaller rows, so that the answer is one."""
    order = tree.args.get("order")
    hidden = [exp.alias_(part.copy(), f"tg_w{i}", quoted=True) for i, part in enumerate(labels)]
    keys: list[exp.Ordered] = []
    for place, item in enumerate(order.expressions if order else ()):
        inner = item.this
        if isinstance(inner, exp.Literal) and inner.is_int:
            inner = exp.column(exp.to_identifier(outputs[int(inner.this) - 1], quoted=True))
        hidden.append(exp.alias_(inner.copy(), f"tg_o{place}", quoted=True))
        key = item.copy()
        key.set("this", exp.column(exp.to_identifier(f"tg_o{place}", quoted=True)))
        keys.append(key)
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    for part in (limit, offset):
        if part is not None and not (isinstance(part.expression, exp.Literal) and part.expression.is_int):
            raise _refused(piece, "LIMIT", "LIMIT takes a whole number", "write LIMIT 10")
    inner_tree = tree.copy()
    for name in ("order", "limit", "offset"):
        inner_tree.set(name, None)
    inner_tree.set("expressions", [*inner_tree.expressions, *hidden])
    named = [exp.column(exp.to_identifier(name, quoted=True)) for name in outputs]
    keys += [exp.Ordered(this=name.copy(), nulls_first=False) for name in named]
    by = ", ".join(f'"tg_w{i}"' for i in range(len(labels)))
    number = f"row_number() OVER (PARTITION BY {by} ORDER BY {', '.join(key.sql('duckdb') for key in keys)})"
    low = int(offset.expression.this) if offset is not None else 0
    bounds = [f"{number} > {low}"] if low else []
    bounds += [f"{number} <= {low + int(limit.expression.this)}"] if limit is not None else []
    text = (
        f"SELECT {', '.join(name.sql('duckdb') for name in named)} FROM ({inner_tree.sql('duckdb')}) AS q "
        f"QUALIFY {' AND '.join(bounds)}"
    )
    found = tree_of(text)
    assert isinstance(found, exp.Select)
    return found


# ---- tables


def _check_table_joins(piece: Piece, tree: exp.Select, sources: Sources) -> None:
    first = tree.args.get("from_")
    of_stream = first is None or not (
        isinstance(first.this, exp.Table) and first.this.alias_or_name.lower() in sources.tables
    )
    for join in tree.args.get("joins") or []:
        if join.side.upper() in {"RIGHT", "FULL"} or (join.side and not of_stream):
            raise _refused(
                piece, join.side, f"{join.side.upper()} JOIN would give rows of a table that no row of the stream matches, "
                "for each batch anew", "write the stream first: FROM stream LEFT JOIN table",
            )  # fmt: skip


def _read(app: App, table: str, sources: Sources, tree: exp.Select) -> str | Partition:
    """The lock on a table that is looked up: of one partition, if the key of the stream names it."""
    columns = app.tables[table].partition_by
    aliases = [alias for alias, name in sources.tables.items() if name == table]
    keyed = {alias: app.streams[stream].key for alias, stream in sources.streams.items()}
    if len(columns) != 1 or len(aliases) != 1 or len([*tree.find_all(exp.Table)]) != len(sources.relations):
        return table
    conditions = [*(join.args.get("on") for join in tree.args.get("joins") or []), tree.args.get("where")]
    for condition in conditions:
        for equal in conjuncts(condition) if condition is not None else ():
            if not isinstance(equal, exp.EQ) or not isinstance(equal.this, exp.Column):
                continue
            pair = [equal.this, equal.expression]
            for mine, other in (pair, pair[::-1]):
                if not isinstance(mine, exp.Column) or not isinstance(other, exp.Column):
                    continue
                owner = sources.owner(other)
                if (sources.owner(mine), mine.name) == (aliases[0], columns[0]) and keyed.get(str(owner)) == other.name:
                    return Partition(table)
    return table


# ---- the statement


def _prepared(
    app: App, piece: Piece, tree: exp.Select, windows: Mapping[str, Relation], nullable: list[bool]
) -> tuple[Statement, tuple[tuple[str, str, bool], ...]]:
    sql = tree.sql("duckdb")
    relations = {**_relations(app), **windows}
    with app.scratch.lock:
        try:
            for relation in windows.values():
                app.scratch.define_window(relation)
            shape = app.scratch.shape(sql)
            names, types = [name for name, _ in shape], [kind for _, kind in shape]
            if "HUGEINT" in types:
                parts = [
                    f'CAST("{n}" AS BIGINT) AS "{n}"' if kind == "HUGEINT" else f'"{n}"'
                    for n, kind in zip(names, types, strict=True)
                ]
                sql = f"SELECT {', '.join(parts)} FROM ({sql}) AS whole"
                types = ["BIGINT" if kind == "HUGEINT" else kind for kind in types]
            statement = prepare(sql, app.tables, relations, app.scratch)
        except TidegateError as error:
            raise _unbound(piece, error) from None
    for name in names:
        if not name.isidentifier():
            raise _refused(piece, name.partition("(")[0], f"a column would be called {name!r}", "name it with AS")
        if names.count(name) > 1:
            raise _refused(piece, name, f"two columns are called {name}", "name one with AS")
    if len(nullable) != len(names):
        nullable = [True] * len(names)
    return statement, tuple(zip(names, types, nullable, strict=True))


def _unbound(piece: Piece, error: Exception) -> DeclarationError:
    """DuckDB's error, at the word it names if that is in the text."""
    message = str(error).partition("\n\nLINE")[0].partition("\n  SELECT")[0].split("\n")[0]
    quoted = [part for part in message.replace("'", '"').split('"')[1::2] if part]
    where = next((word for word in quoted if any(t.text.lower() == word.lower() for t in piece.tokens)), "SELECT")
    return _refused(piece, where, message, "correct the query")


__all__ = ["Plan", "calls", "plan_stream"]
