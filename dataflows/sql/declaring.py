"""``app.declare(sql)``: statements in order, each as the Python declaration that it stands for.

===========================================  ==========================================================
``CREATE STREAM s (…) WITH (border, …)``     :meth:`App.stream`
``CREATE STREAM s [WITH …] AS SELECT …``     a stream and the procedure that feeds it, both called ``s``
``CREATE TABLE …``, ``CREATE INDEX …``       :meth:`App.table`
``CREATE [MATERIALIZED] VIEW v AS SELECT …`` :meth:`App.view`
===========================================  ==========================================================

A change of a statement is a change of the app: ``tidegate upgrade`` plans it, as it does for Python. So CREATE OR REPLACE means
CREATE, and what is no longer wanted is removed from the text instead of dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.access import declared_access
from tidegate.dataflows.definitions import Procedure
from tidegate.dataflows.sql.maintaining import declare_maintained
from tidegate.dataflows.sql.planning import Plan, plan_stream
from tidegate.dataflows.sql.running import runs, runs_with_last
from tidegate.dataflows.sql.text import Piece, Text, TokenType, name_at, statements
from tidegate.dataflows.sql.windows import length
from tidegate.errors import DeclarationError, TidegateError, near
from tidegate.storage.schema import Relation

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

Options = dict[str, str | None]
STREAM_OPTIONS: dict[str, str | None] = {"border": None, "key": "'column'", "idle": "'30s'"}
TABLE_OPTIONS: dict[str, str | None] = {"partition_by": "'column'", "changelog": None, "expire": "'seen_at 1h'"}
VIEW_OPTIONS: dict[str, str | None] = {"changelog": None}
ELSEWHERE = {
    "SOURCE": "bring rows in with app.source(…) in Python, or push them to a stream: CREATE STREAM … WITH (border)",
    "SINK": "deliver a stream with app.deliver(…) in Python, or subscribe to it",
    "FUNCTION": "register a function in Python",
    "TRIGGER": "declare a trigger in Python: app.trigger(stream, sql)",
    "SCHEMA": "an app has one set of names; leave the schema out",
}
NOT_HERE = {
    "INSERT": "declare a procedure in Python, which changes tables: @app.procedure(inputs=…, writes=…)",
    "UPDATE": "declare a procedure in Python, which changes tables: @app.procedure(inputs=…, writes=…)",
    "DELETE": "declare a procedure in Python, which changes tables: @app.procedure(inputs=…, writes=…)",
    "SELECT": "give it a name: CREATE STREAM name AS SELECT …, or CREATE VIEW name AS SELECT …",
    "ALTER": "change the CREATE statement; tidegate upgrade says what becomes of the stored rows",
    "SET": "open the engine with these settings",
}


def declare(app: App, sql: str, file: str | None = None) -> list[str]:
    """Declare everything in the text; returns the names, in order."""
    if not isinstance(sql, str):
        raise DeclarationError(f"app.declare takes SQL text, got {sql!r}")
    pieces = list(statements(Text(sql, file)))
    indexes = {id(piece): _indexed(piece) for piece in pieces}
    found: list[str] = []
    for piece in pieces:
        if indexes[id(piece)] is None:
            own = [one for one in pieces if (indexes[id(one)] or "").lower() == _table_name(piece)]
            found.append(_declare(app, piece, own))
    for piece in pieces:
        table = indexes[id(piece)]
        if table is not None and not any(table.lower() == _table_name(one) for one in pieces):
            raise piece.refused(0, f"there is no CREATE TABLE {table} in this text", "write its indexes beside it")
    return found


def _indexed(piece: Piece) -> str | None:
    """The table of CREATE INDEX."""
    if not (piece.says(0, "CREATE", "INDEX") or piece.says(0, "CREATE", "UNIQUE", "INDEX")):
        return None
    at = piece.find("ON")
    return piece.tokens[at + 1].text if at is not None else ""


def _table_name(piece: Piece) -> str | None:
    at = _after_create(piece)
    return piece.tokens[at + 1].text.lower() if piece.says(at, "TABLE") and at + 1 < len(piece.tokens) else None


def _after_create(piece: Piece) -> int:
    return 3 if piece.says(0, "CREATE", "OR", "REPLACE") else 1


def _declare(app: App, piece: Piece, indexes: list[Piece]) -> str:
    first = piece.words(0)[0]
    if first == "DROP":
        raise piece.refused(
            0,
            "DROP is not needed",
            "remove the CREATE statement from the text; tidegate upgrade says what becomes of its rows",
        )
    if first != "CREATE":
        raise piece.refused(
            0,
            f"{first} declares nothing",
            NOT_HERE.get(first, "begin with CREATE STREAM, TABLE, VIEW or MATERIALIZED VIEW"),
        )
    at = _after_create(piece)
    if at >= len(piece.tokens):
        raise piece.refused(
            0, "here it ends", "write CREATE STREAM, TABLE, INDEX, VIEW or MATERIALIZED VIEW and a name"
        )
    if piece.says(at, "IF") or piece.says(at + 1, "IF"):
        raise piece.refused(at, "IF NOT EXISTS is not needed: an app declares each thing once", "leave it out")
    words = piece.words(at, 2)
    declare_it: Callable[[App, Piece, int], str]
    if words[0] == "STREAM":
        declare_it, at = _stream, at + 1
    elif words[0] == "TABLE":
        return _told(piece, lambda: _table(app, piece, at + 1, indexes))
    elif words[0] == "VIEW":
        declare_it, at = _view, at + 1
    elif words == ("MATERIALIZED", "VIEW"):
        declare_it, at = _maintained, at + 2
    else:
        kind = words[0] if words else ""
        raise piece.refused(
            at, f"CREATE {kind} is not supported",
            ELSEWHERE.get(kind, "write CREATE STREAM, TABLE, INDEX, VIEW or MATERIALIZED VIEW"),
        )  # fmt: skip
    return _told(piece, lambda: declare_it(app, piece, at))


def _told(piece: Piece, declared: Callable[[], str]) -> str:
    """An error of the declaration behind a statement says where the statement is."""
    try:
        return declared()
    except DeclarationError as error:
        if hasattr(error, "offset"):
            raise
        facts = {name: value for name, value in vars(error).items() if name != "message"}
        raise DeclarationError(f"{piece.text.place(piece.start)}: {error}", **facts, offset=piece.start) from None


# ---- options


def _options(piece: Piece, low: int, high: int, known: dict[str, str | None]) -> Options:
    """``WITH (border, key = 'device_id')``, of which the parentheses are at ``low`` and ``high``."""
    found: Options = {}
    for begin, end in piece.split(low + 1, high):
        name = piece.tokens[begin].text.lower()
        if name not in known:
            raise piece.refused(begin, f"there is no option {name}", near(name, known, "there are"))
        takes = known[name]
        if takes is None:
            if end - begin != 1:
                raise piece.refused(begin, f"{name} takes no value", f"write WITH ({name})")
            found[name] = None
        else:
            if end - begin != 3 or piece.tokens[begin + 2].token_type is not TokenType.STRING:
                raise piece.refused(begin, f"{name} takes a text", f"write {name} = {takes}")
            found[name] = piece.tokens[begin + 2].text
    return found


def _with_options(piece: Piece, at: int, known: dict[str, str | None]) -> tuple[Options, int, int]:
    """The options at this place, if there are any, and the places before and after them."""
    if not piece.says(at, "WITH") or at + 1 >= len(piece.tokens):
        return {}, at, at
    closed = piece.matching(at + 1)
    return _options(piece, at + 1, closed, known), at, closed + 1


def _ends(piece: Piece, at: int) -> None:
    if at < len(piece.tokens):
        raise piece.refused(at, f"{piece.tokens[at].text} is not understood here", "end the statement with ';'")


# ---- tables


def _table(app: App, piece: Piece, at: int, indexes: list[Piece]) -> str:
    name_at(piece, at, "table")
    where = piece.find("WITH", low=at)
    options: Options = {}
    end = len(piece.tokens)
    if where is not None:
        options, end, after = _with_options(piece, where, TABLE_OPTIONS)
        _ends(piece, after)
    if piece.says(0, "CREATE", "OR", "REPLACE"):
        piece.replace(0, 3, "CREATE")
    ddl = "; ".join([piece.sql(0, end), *(one.sql() for one in indexes)])
    expire: Any = None
    if options.get("expire"):
        column, _, after_text = str(options["expire"]).partition(" ")
        expire = (column, after_text.strip())
    by = tuple(part.strip() for part in str(options["partition_by"]).split(",")) if "partition_by" in options else ()
    return app.table(ddl, partition_by=by, changelog="changelog" in options, expire=expire)


# ---- streams


def _stream(app: App, piece: Piece, at: int) -> str:
    name = name_at(piece, at, "stream")
    at += 1
    if at < len(piece.tokens) and piece.tokens[at].token_type is TokenType.L_PAREN:
        return _border(app, piece, name, at)
    options, _, at = _with_options(piece, at, STREAM_OPTIONS)
    if not piece.says(at, "AS"):
        raise piece.refused(
            at, f"here the columns or the query of stream {name} are missing",
            f"write CREATE STREAM {name} (ts TIMESTAMP NOT NULL, …) WITH (border), or CREATE STREAM {name} AS SELECT …",
        )  # fmt: skip
    if at + 1 >= len(piece.tokens):
        raise piece.refused(at, f"here the query of {name} is missing", f"write CREATE STREAM {name} AS SELECT …")
    if "border" in options:
        raise piece.refused(at, f"{name} is made by its query, so nobody else can push to it", "leave out border")
    plan = plan_stream(app, name, piece.part(at + 1, len(piece.tokens)))
    return _made(app, plan, options)


def _border(app: App, piece: Piece, name: str, at: int) -> str:
    closed = piece.matching(at)
    options, _, after = _with_options(piece, closed + 1, STREAM_OPTIONS)
    if piece.says(after, "AS"):
        raise piece.refused(
            at, "the columns of a stream with a query follow from the query", "leave them out, use AS and CAST"
        )
    _ends(piece, after)
    if "border" not in options:
        raise piece.refused(
            at, f"stream {name} has columns, but nothing feeds it",
            f"write CREATE STREAM {name} (…) WITH (border) if rows are pushed to it, or declare its query with AS SELECT",
        )  # fmt: skip
    parts = piece.split(at + 1, closed)
    marks = [part for part in parts if piece.says(part[0], "WATERMARK")]
    columns = ", ".join(piece.sql(*part) for part in parts if part not in marks)
    watermark = _watermark(app, piece, marks[0], name) if marks else None
    if len(marks) > 1:
        raise piece.refused(marks[1][0], "a stream has one WATERMARK", "leave out the second")
    idle: Any = options.get("idle")
    if idle is not None and watermark is not None:
        idle = (watermark[0], idle)
    app.stream(name, columns, border=True, key=options.get("key"), idle=idle)
    if watermark is not None:
        column = next((c for c in app.streams[name].relation.columns if c.name.lower() == watermark[0].lower()), None)
        if column is None or column.nullable or column.type.family not in {"timestamp", "date", "integer"}:
            told = (
                "is no column of it"
                if column is None
                else f"is {column.type}{' and may be NULL' if column.nullable else ''}"
            )
            del app.streams[name]
            app.scratch.forget(name)
            raise piece.refused(
                marks[0][0], f"WATERMARK FOR {watermark[0]}: it {told}", f"declare {watermark[0]} TIMESTAMP NOT NULL"
            )
        app.watermarks[name] = (column.name, watermark[1])
    return name


def _watermark(app: App, piece: Piece, part: tuple[int, int], stream: str) -> tuple[str, Any]:
    """``WATERMARK FOR ts AS ts - INTERVAL '5' SECOND``: the column, and how late rows may come."""
    low, high = part
    example = "write WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
    if not piece.says(low + 1, "FOR") or low + 4 >= high:
        raise piece.refused(low, "this WATERMARK is not understood", example)
    column = piece.tokens[low + 2].text
    if not piece.says(low + 3, "AS") or piece.tokens[low + 4].text.lower() != column.lower():
        raise piece.refused(low, f"the watermark of {stream} follows its column {column}", example)
    if high == low + 5:
        return column, None
    if not piece.says(low + 5, "-"):
        raise piece.refused(low + 5, "a watermark stays behind by a constant", example)
    return column, length(app, piece, low + 6, high) or None


def _made(app: App, plan: Plan, options: Options) -> str:
    columns = ", ".join(f'"{name}" {kind}{"" if null else " NOT NULL"}' for name, kind, null in plan.columns)
    before = dict(app.streams)
    app.stream(plan.name, columns, key=options.get("key"))
    try:
        name = plan.name
        if name in app.procedures or name in app.nested_groups:
            raise DeclarationError(
                f"stream {name}: there is a procedure of that name, and its query needs it; rename one"
            )
        app._declare(
            Procedure(
                name=name,
                function=_function(app, plan),
                inputs=plan.inputs,
                outputs=(name,),
                access=declared_access(app.tables, name, plan.reads, ()),
                windows=plan.windows,
                either=len(plan.inputs) > 1,
            ),
            (),
        )
    except TidegateError:
        app.streams = before
        app.scratch.forget(plan.name)
        raise
    if plan.watermark is not None:
        app.watermarks[plan.name] = plan.watermark
    app.plans[plan.name] = plan
    return plan.name


def _function(app: App, plan: Plan) -> Callable[..., None]:
    window = next(iter(plan.windows), None)
    if plan.driver is None or window is None:
        return runs(plan.statement, plan.name, len(plan.inputs), window)
    relation = Relation(window, app.streams[plan.windows[window].streams[0]].relation.columns)
    return runs_with_last(plan.statement, plan.name, plan.driver, window, relation)


# ---- views


def _view(app: App, piece: Piece, at: int) -> str:
    name = name_at(piece, at, "view")
    return app.view(name, _query_of(piece, at + 1, name))


def _maintained(app: App, piece: Piece, at: int) -> str:
    name = name_at(piece, at, "materialized view")
    options, _, after = _with_options(piece, at + 1, VIEW_OPTIONS)
    _query_of(piece, after, name)
    return declare_maintained(app, name, piece.part(after + 1, len(piece.tokens)), "changelog" in options)


def _query_of(piece: Piece, at: int, name: str) -> str:
    if not piece.says(at, "AS") or at + 1 >= len(piece.tokens):
        raise piece.refused(at, f"here the query of {name} is missing", f"write CREATE VIEW {name} AS SELECT …")
    return piece.part(at + 1, len(piece.tokens)).sql()
