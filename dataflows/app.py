"""Declaring an app: tables, streams, procedures and how they belong together. Nothing runs, nothing is stored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tidegate.dataflows.access import AccessLike, declared_access
from tidegate.dataflows.changelogs import declare_changelog
from tidegate.dataflows.definitions import (
    Connection,
    Either,
    Nested,
    OnFailure,
    Procedure,
    Stream,
    Trigger,
    check_identifier,
)
from tidegate.dataflows.graph import Graph
from tidegate.dataflows.idle import check_idle, declared_idle
from tidegate.dataflows.keeping import declared_retention
from tidegate.dataflows.precedence import check_precedence
from tidegate.dataflows.schedules import Missed, declared_schedule
from tidegate.dataflows.ticks import check_timed, check_timers, declare_ticks
from tidegate.dataflows.validation import (
    check_access,
    check_deadline,
    check_inputs,
    check_outputs,
    check_prefetch,
    check_renames,
    check_signature,
    check_turns,
    check_windows,
)
from tidegate.dataflows.views import PlainView, declare_view, read_through, with_views
from tidegate.errors import DataError, DeclarationError, StatementError, TidegateError, unknown
from tidegate.storage.ddl import Scratch, from_sqlalchemy
from tidegate.storage.expiry import expiring, expiry_indexes
from tidegate.storage.maintained import PREFIX, Changes, Maintained
from tidegate.storage.migration import constant_default
from tidegate.storage.schema import Relation, TableSchema
from tidegate.storage.sql.statements import Statement, prepare
from tidegate.streams.windows.declare.declared import Declared, window_relation
from tidegate.streams.windows.declare.durations import microseconds

if TYPE_CHECKING:
    import sqlalchemy as sa

F = TypeVar("F", bound=Callable[..., Any])
Names = str | Sequence[str]
Recovery = Literal["weak", "strong", "effects"]
CHECKS = (
    check_inputs,
    check_outputs,
    check_access,
    check_windows,
    check_signature,
    check_prefetch,
    check_timers,
)


class App:
    """An application: what runs, on what, in which order. The same app runs in memory, on disk and in simulation.

    ``recovery``: what the log of a durable engine holds. ``"weak"``: accepted batches and calls, re-executed after a
    crash. ``"strong"``: every execution too, re-executed in commit order. ``"effects"``: what every execution wrote and
    emitted, applied without running anything (for procedures that call the outside world).
    ``version``: of the app, for people, and for changes that can't be seen in its code (a model, an installed package):
    another version is another app, see :mod:`tidegate.dataflows.fingerprint`.

    >>> app = App("counter")
    >>> app.table("CREATE TABLE totals (name VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    'totals'
    >>> app.stream("events", "name VARCHAR", border=True)
    'events'
    >>> @app.procedure(inputs="events", writes=["totals"])
    ... def count(txn, events):
    ...     for event in events:
    ...         row = txn.get("totals", event.name)
    ...         txn.upsert("totals", (event.name, 1 if row is None else row.n + 1))
    """

    def __init__(self, name: str = "app", *, recovery: Recovery = "weak", version: str | None = None) -> None:
        self.name = check_identifier("app", name)
        if version is not None and (not isinstance(version, str) or not version):
            raise DeclarationError(f"app {name}: version is text such as '1.4', got {version!r}")
        self.version = version
        if recovery not in ("weak", "strong", "effects"):
            raise DeclarationError(f"app {name}: recovery is 'weak', 'strong' or 'effects', got {recovery!r}")
        self.recovery = recovery
        self.tables: dict[str, TableSchema] = {}
        self.streams: dict[str, Stream] = {}
        self.procedures: dict[str, Procedure] = {}
        self.views: dict[str, PlainView] = {}
        self.maintained: dict[str, Maintained] = {}  # materialized views
        self.view_changes: dict[str, Changes] = {}  # of those whose changes are a stream, by the table with the state
        self.nested_groups: dict[str, Nested] = {}
        self.plans: dict[str, Any] = {}  # of streams declared in SQL, for explain
        self.watermarks: dict[
            str, tuple[str, dt.timedelta | None]
        ] = {}  # of a stream: its time column, how late rows may come
        self.triggers: list[Trigger] = []
        self.renamed: dict[tuple[str, str], str] = {}  # (kind, name) -> the name it had before
        self.sources: dict[str, Connection] = {}
        self.deliveries: dict[str, Connection] = {}
        self.scratch = Scratch()
        self._statements: dict[str | None, dict[Any, Statement]] = {}  # by the procedure whose windows they may read

    # ---- tables and streams

    def table(
        self,
        ddl: str | sa.Table,
        *,
        partition_by: Names = (),
        changelog: bool = False,
        expire: tuple[str, str | dt.timedelta] | None = None,
        renamed_from: str | None = None,
    ) -> str:
        """Declare a table by CREATE TABLE text (CREATE INDEX may follow) or a SQLAlchemy ``Table``; returns its name.

        ``partition_by``: columns whose values name a partition, the smallest unit of locking. ``changelog``: its
        committed changes are the output stream ``<table>_changes``, see :mod:`tidegate.outside.changelog`.
        ``expire``: ``("seen_at", "1h")``: an hour after the time in this TIMESTAMP or DATE column (UTC) a row is due: no
        transaction or query that begins later sees it, and those that write to the table remove it, see
        :mod:`tidegate.storage.expiry`. NULL: never.
        ``renamed_from``: the name it had before; a directory that knows that one hands over its rows.
        """
        if not isinstance(ddl, str) and not hasattr(ddl, "columns"):
            raise DeclarationError(f"app.table takes CREATE TABLE text or a SQLAlchemy Table, got {ddl!r}")
        text = ddl if isinstance(ddl, str) else from_sqlalchemy(ddl)
        with self.scratch.lock, self.scratch.tentatively():
            schema = self.scratch.define_table(text, _names(partition_by))
            schema = schema if expire is None else _expiring(schema, expire)
            self._check_relation("table", schema)
        self.tables[schema.name] = schema
        self._rename("table", schema.name, renamed_from)
        if changelog:
            declare_changelog(self, schema.name)
        return schema.name

    def stream(
        self,
        name: str,
        columns: str,
        *,
        border: bool = False,
        key: str | None = None,
        deadline_s: float | None = None,
        default: Mapping[str, Any] | Iterable[Mapping[str, Any]] = (),
        idle: str | dt.timedelta | tuple[str, str | dt.timedelta] | None = None,
        keep: str | dt.timedelta | None = None,
        priority: int = 0,
        capacity: int | None = None,
        renamed_from: str | None = None,
    ) -> str:
        """Declare a stream with columns as in CREATE TABLE: ``"phone BIGINT, contestant INTEGER"``; returns its name.

        ``border=True``: fed by ``engine.push``. Otherwise exactly one procedure emits to it.
        ``key``: split every push into one batch per value of this column; order, windows and locks are per key. On an interior
        stream: split what its producer emits, so that its consumers run per value of this column.
        ``deadline_s`` and ``default``: for a border stream that a nested transaction waits on (a person's decision).
        ``idle``: after so long a silence, event time runs on with the engine's clock, so that windows fire; ``("ts", "30s")`` if
        it has several TIMESTAMP columns.
        ``keep``: its batches stay after they have committed, ``"7d"`` long, in at most about ``"10GB"``, or ``"forever"``: a
        topic, which a durable subscription may read from any place (``subscribe_durably(…, start=)``).
        ``priority``: of a border stream: where several executions may run, those that its batches caused go first, the
        higher the earlier. Results do not depend on it. ``capacity``: so many of them may be unfinished; then a push waits or
        raises Overloaded, whatever there is room for elsewhere.
        ``renamed_from``: the name it had before; a directory that knows that one hands over what belongs to it.
        """
        check_identifier("stream", name)
        self._name_is_free("stream", name)
        with self.scratch.lock, self.scratch.tentatively():
            relation = self.scratch.define_relation(name, columns)
            self._check_relation("stream", relation)
            relation = replace(relation, fills=self._fills(relation))
            self._check_key(name, relation, key)
            rows = self._default(name, relation, key, border, deadline_s, default)
            silent = declared_idle(relation, idle, border, deadline_s is not None)
            kept = declared_retention(name, keep)
            check_precedence(f"stream {name}", border, priority, capacity)
        self.streams[name] = Stream(
            *(name, relation, border, key, deadline_s, rows),
            idle=silent,
            keep=kept,
            priority=priority,
            capacity=capacity,
        )
        self._rename("stream", name, renamed_from)
        return name

    def view(self, name: str, sql: str) -> str:
        """Declare a plain view over tables and earlier views, for procedures (``reads=`` may name it), ``engine.query`` and the
        SQL endpoint; returns its name.

        Its query is checked here. It is computed whenever it is asked; nothing is stored.
        """
        check_identifier("view", name)
        self._name_is_free("view", name)
        with self.scratch.lock, self.scratch.tentatively():
            self.views[name] = declare_view(self, name, sql)
        return name

    def declare(self, sql: str) -> list[str]:
        """Declare streams, tables and views in SQL, many statements in one text; returns their names.

        ``CREATE STREAM … AS SELECT`` makes a stream and the procedure that feeds it, both of that name, so the procedure can be
        a member of :meth:`nested`. See the reference of the dialect, ``docs/reference/sql.md``.

        >>> app = App("calls")
        >>> app.declare('''
        ...     CREATE STREAM calls (number BIGINT NOT NULL, seconds INTEGER NOT NULL) WITH (border);
        ...     CREATE STREAM long_calls AS SELECT number, seconds / 60.0 AS minutes FROM calls WHERE seconds > 600;
        ... ''')
        ['calls', 'long_calls']
        """
        from tidegate.dataflows.sql.declaring import declare

        return declare(self, sql)

    def explain(self, name: str) -> str:
        """How a stream or a materialized view declared in SQL is made: what it scans, what is compiled, what goes to DuckDB,
        what is held.
        """
        if name in self.plans:
            return str(self.plans[name])
        view = self.views.get(name)
        kept = [one for one in self.maintained.values() if view is not None and one.state.name in view.tables]
        if view is None or not kept:
            known = [*self.plans, *(v.name for v in self.views.values() if any(t.startswith(PREFIX) for t in v.tables))]
            raise unknown("explain", "stream or materialized view declared in SQL", name, known)
        return "\n".join([f"materialized view {name}", *map(str, kept), f"  Shown {view.sql}"])

    def _fills(self, relation: Relation) -> dict[str, Any]:
        """The values of DEFAULT. They must be constant: a row is made at the door, outside of any transaction."""
        fills = {}
        for column in relation.columns:
            if column.default is not None:
                try:
                    fills[column.name] = constant_default(column, self.scratch)
                except (ValueError, TidegateError) as error:
                    raise DeclarationError(
                        f"stream {relation.name}: column {column.name}: {error}, and the DEFAULT of a stream's column must be a "
                        f"constant; give the value when pushing or emitting",
                        stream=relation.name,
                    ) from None
        return fills

    def _rename(self, kind: str, name: str, renamed_from: str | None) -> None:
        if renamed_from is not None:
            self.renamed[kind, name] = renamed_from

    def _check_key(self, name: str, relation: Relation, key: str | None) -> None:
        if key is not None and key not in relation.index_of:
            raise DeclarationError(
                f"stream {name} has no column {key!r} to use as its key; it has {', '.join(relation.index_of)}",
                stream=name,
            )
        if key is not None and not relation.column(key).type.hashable_key:
            raise DeclarationError(
                f"stream {name}: {key} is {relation.column(key).type}, which can't be a key", stream=name
            )

    def _default(
        self,
        name: str,
        relation: Relation,
        key: str | None,
        border: bool,
        deadline_s: float | None,
        default: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    ) -> tuple[dict[str, Any], ...]:
        rows = tuple([default] if isinstance(default, Mapping) else default)
        for row in rows:
            if not isinstance(row, Mapping):
                raise DeclarationError(
                    f"stream {name}: its default must be a dict by column name, or a list of such, got {row!r}",
                    stream=name,
                )
        if (deadline_s is None) != (not rows):
            raise DeclarationError(
                f"stream {name}: deadline_s and default go together: the default is pushed when the deadline passes",
                stream=name,
            )
        if deadline_s is not None and not border:
            raise DeclarationError(f"stream {name}: only a border stream can have a deadline", stream=name)
        if deadline_s is not None:
            check_deadline(f"stream {name}", deadline_s)
        # the key is filled in from the question
        columns = tuple(replace(c, nullable=True) if c.name == key else c for c in relation.columns)
        keyless = Relation(name, columns, fills=relation.fills)
        for row in rows:
            try:
                keyless.conform(row)
            except DataError as error:
                raise DeclarationError(f"stream {name}: its default does not fit: {error}", stream=name) from None
        return tuple(dict(row) for row in rows)

    def _name_is_free(self, kind: str, name: str) -> None:
        for taken in [*self.tables, *self.streams, *self.views]:
            if taken.lower() == name.lower():
                other = "table" if taken in self.tables else "stream" if taken in self.streams else "view"
                raise DeclarationError(
                    f"{kind} {name}: the name is taken by the {other} {taken}; choose another", name=name
                )
        for procedure in self.procedures.values():
            for taken in procedure.windows:
                if taken.lower() == name.lower():
                    raise DeclarationError(
                        f"{kind} {name}: the name is taken by the window {taken} of procedure {procedure.name}; choose another",
                        name=name,
                    )

    def _check_relation(self, kind: str, relation: Relation) -> None:
        check_identifier(kind, relation.name)
        self._name_is_free(kind, relation.name)
        for column in relation.columns:
            if column.name.lower().startswith("tidegate"):
                raise DeclarationError(f"{kind} {relation.name}: column name {column.name!r} is reserved")

    # ---- SQL

    def sql(self, statement: Any) -> Statement:
        """Prepare SQL text or a SQLAlchemy Core statement, so that mistakes show early; run it with ``txn.execute``."""
        return self._prepare(statement, None)

    def statement(self, statement: Any, windows_of: str | None = None) -> Statement:
        """The prepared form of what ``txn.execute`` was given: prepared once, then cached.

        Windows are private to their procedure: two procedures may have windows of the same name with different columns,
        so ``windows_of`` (a procedure that has windows) decides what such a name means.
        """
        if isinstance(statement, Statement):
            return statement
        prepared = self._statements.setdefault(windows_of, {})
        found = prepared.get(statement)
        if found is None:
            found = prepared[statement] = self._prepare(statement, windows_of)
        return found

    def _prepare(self, statement: Any, windows_of: str | None) -> Statement:
        if isinstance(statement, str):
            statement = with_views(statement, self.views)
        windows = self._windows(windows_of)
        relations = {name: stream.relation for name, stream in self.streams.items()}
        relations |= {name: shapes[0] for name, shapes in windows.items()}
        with self.scratch.lock:
            for name in windows:
                self.scratch.define_window(relations[name])
            prepared = prepare(statement, self.tables, relations, self.scratch)
        for name in sorted(prepared.relations & windows.keys()):
            if any(shape.columns != windows[name][0].columns for shape in windows[name]):
                raise StatementError(
                    f"several procedures have a window {name}, with different columns, so this statement is ambiguous: "
                    f"{prepared.sql}\n  pass the text to txn.execute in the procedure, or give the windows different names",
                    sql=prepared.sql,
                )
        return prepared

    def _windows(self, of: str | None) -> dict[str, list[Relation]]:
        """What SQL reads under the name of a window: the windows of one procedure, or of all."""
        streams = {name: stream.relation for name, stream in self.streams.items()}
        found: dict[str, list[Relation]] = {}
        for procedure in self.procedures.values() if of is None else [self.procedures[of]]:
            for name, spec in procedure.windows.items():
                found.setdefault(name, []).append(window_relation(spec, streams, name))
        return found

    # ---- procedures

    def procedure(
        self,
        *bare: Any,
        inputs: Names | Either = (),
        outputs: Names = (),
        reads: Iterable[AccessLike] = (),
        writes: Iterable[AccessLike] = (),
        windows: Mapping[str, Declared] | None = None,
        retries: int = 0,
        on_failure: OnFailure = "halt",
        deadline_s: float | None = None,
        priority: int = 0,
        prefetch: Mapping[str, str] | None = None,
        timers: Names = (),
        every: str | dt.timedelta | None = None,
        cron: str | None = None,
        missed: Missed | None = None,
        renamed_from: str | None = None,
    ) -> Callable[[F], F]:
        """Declare a plain function as a stored procedure: ``@app.procedure(…)``. The function itself stays as it is.

        With ``inputs`` it is a *streaming* procedure, called ``function(txn, batch, …)`` with one batch per input, all
        of the same batch-id; with ``inputs=either(…)`` it runs for each batch of any of them. Without inputs, it is an
        *OLTP* procedure, called ``function(txn, *arguments)`` by ``engine.call``.

        ``reads``/``writes``: tables it touches; ``partition(table)`` narrows to the batch's key, ``partition(table, by=…)`` to
        what values in its rows name. Writing includes reading.
        ``retries`` and ``on_failure``: what happens after an unexpected exception: after so many retries the dataflow
        halts at the batch (``"halt"``) or the batch moves to ``tidegate.dead_letters`` (``"dead_letter"``).
        ``deadline_s``: abort an execution that runs longer. ``math.inf``: it may run on, past the engine's
        ``procedure_deadline_s``.
        ``priority``: of a procedure that clients call, as of a border stream.
        ``prefetch``: ``{table: column}``: the input column with keys of that table, which are fetched ahead in bulk.
        ``timers``: border streams that it sets timers for, with ``txn.after``.
        ``every``, ``cron``: the clock starts it, with the time as a batch on the border stream ``<name>_ticks``, which it gets as
        its input (column ``due``). ``missed``: after times at which nothing could run, ``"skip"`` starts it once (the default),
        ``"catch_up"`` once for each.
        ``renamed_from``: the name it had before; a directory that knows that one hands over its windows and its work.
        """
        if bare:
            raise DeclarationError("write @app.procedure() with parentheses, and everything in them by keyword")

        def declare(function: F) -> F:
            name = self._procedure_name(function)
            ticks = declare_ticks(self, name, inputs, declared_schedule(name, every, cron, missed), renamed_from)
            check_precedence(f"procedure {name}", not (ticks or inputs), priority)
            self._declare(
                Procedure(
                    name=name,
                    function=function,
                    inputs=ticks or (inputs.streams if isinstance(inputs, Either) else _names(inputs)),
                    outputs=_names(outputs),
                    access=declared_access(self.tables, name, read_through(self.views, reads), writes),
                    windows=dict(windows or {}),
                    retries=retries,
                    on_failure=on_failure,
                    deadline_s=deadline_s,
                    priority=priority,
                    prefetch=dict(prefetch or {}),
                    either=isinstance(inputs, Either),
                    timers=_names(timers),
                ),
                ticks,
            )
            self._rename("procedure", name, renamed_from)
            return function

        return declare

    def _procedure_name(self, function: Any) -> str:
        if not callable(function) or not hasattr(function, "__name__"):
            raise DeclarationError(f"procedure {function!r} must be a function declared with def")
        if function.__name__ == "<lambda>":
            raise DeclarationError("procedure <lambda> has no name; declare it with def")
        name = check_identifier("procedure", function.__name__)
        if name in self.nested_groups:
            raise DeclarationError(f"procedure {name!r}: there is a nested transaction of that name; rename one")
        if name in self.procedures:
            raise DeclarationError(f"there are two procedures called {name!r}; rename one", procedure=name)
        return name

    def _declare(self, procedure: Procedure, ticks: tuple[str, ...]) -> None:
        try:
            for check in CHECKS:
                check(self, procedure)
            self.procedures[procedure.name] = procedure
            Graph(self, partial=True)
        except DeclarationError:
            self.procedures.pop(procedure.name, None)
            for stream in ticks:
                del self.streams[stream]
                self.renamed.pop(("stream", stream), None)
            raise

    def nested(
        self, *members: Callable[..., Any] | str, name: str | None = None, renamed_from: str | None = None
    ) -> str:
        """Declare connected procedures as one nested transaction per batch; returns its name.

        A member may be the name of another nested transaction: its procedures become members of this one, and it is no
        longer a transaction of its own.
        ``renamed_from``: the name it had before, under which a directory may hold unfinished work.
        """
        given = tuple(
            member if isinstance(member, str) else str(getattr(member, "__name__", member)) for member in members
        )
        label = name or "+".join(given)
        before = dict(self.nested_groups)
        try:
            self._nest(label, given)
            Graph(self, partial=True)
        except DeclarationError:
            self.nested_groups = before
            raise
        self._rename("nested transaction", label, renamed_from)
        return label

    def _nest(self, label: str, given: tuple[str, ...]) -> None:
        inner = {member: self.nested_groups.pop(member).members for member in given if member in self.nested_groups}
        names = tuple(name for member in given for name in inner.get(member, (member,)))
        if label in self.nested_groups:
            raise DeclarationError(f"there are two nested transactions called {label!r}")
        if len(names) < 2:
            raise DeclarationError(f"nested transaction {label}: needs at least two procedures, got {len(names)}")
        if label in self.procedures:
            raise DeclarationError(f"nested transaction {label!r}: the name is taken by a procedure; choose another")
        if len(set(names)) < len(names):
            raise DeclarationError(f"nested transaction {label} names a procedure twice")
        for member in names:
            if member not in self.procedures:
                raise unknown(f"nested transaction {label}", "procedure", member, self.procedures)
            for other in self.nested_groups.values():
                if member in other.members:
                    raise DeclarationError(
                        f"procedure {member} is in two nested transactions, {other.name} and {label}; to make one of both, "
                        f"name {other.name!r} as a member of {label}"
                    )
        self.nested_groups[label] = Nested(label, names)

    def trigger(self, on: str, sql: Any) -> None:
        """Declare an EE trigger: ``sql`` runs inside the transaction that inserts tuples into stream ``on``, or that
        slides the window ``on`` (written ``"procedure.window"``). In the SQL the new tuples are the relation named
        after the stream. For a window it runs once for each that fires, in order, and the window's name is that one's
        rows (with ``compute``, its results) with ``window_number``, ``window_start`` and ``window_end``.
        """
        if "." in on:
            procedure, _, window_name = on.partition(".")
            if procedure not in self.procedures:
                raise unknown("trigger", "procedure", procedure, self.procedures)
            if window_name not in self.procedures[procedure].windows:
                raise unknown(
                    f"trigger on procedure {procedure}", "window", window_name, self.procedures[procedure].windows
                )
            trigger = Trigger(self._changing(on, sql, procedure), window=(procedure, window_name))
            check_turns(self, procedure, trigger)
            self.triggers.append(trigger)
        elif on in self.streams:
            self.triggers.append(Trigger(self._changing(on, sql), stream=on))
        else:
            raise unknown("trigger", "stream", on, self.streams)

    def _changing(self, on: str, sql: Any, procedure: str | None = None) -> Statement:
        """The statement of a trigger, which changes a table: what a SELECT returned would be lost."""
        statement = self.statement(sql, procedure)
        if statement.kind == "select":
            raise DeclarationError(
                f"trigger on {on}: a trigger changes tables (INSERT, UPDATE, DELETE), but this is a SELECT, whose rows nobody "
                f"would see: {statement.sql}"
            )
        return statement

    def source(self, stream: str, source: Any, *, name: str, **options: Any) -> None:
        """Rows of ``stream`` come from ``source`` while the app is served, or after :meth:`Engine.start`.

        ``source``: one of ``tidegate.connectors``, your own, or a function without parameters that makes it (then
        declaring needs no password). ``name``: its offset is stored under it; do not change it. ``options``: ``size``,
        ``limit`` and ``finish`` of :meth:`Engine.ingest`.
        """
        if stream not in self.streams or not self.streams[stream].border:
            raise unknown("source", "border stream", stream, [s.name for s in self.streams.values() if s.border])
        self.sources[name] = self._connection("source", stream, source, name, options, ("size", "limit", "finish"))

    def deliver(self, stream: str, sink: Any, *, name: str, **options: Any) -> None:
        """Batches of ``stream`` go to ``sink`` while the app is served, or after :meth:`Engine.start`.

        An engine with a directory keeps them from the first time it is opened with this declaration, so none is missed
        while nothing is started. ``sink``, ``name``: as in :meth:`source`. ``options``: ``tries``, ``snapshot``, ``start`` and
        ``on_lag`` of :meth:`Engine.deliver`.
        """
        if stream not in self.streams:
            raise unknown("deliver", "stream", stream, self.streams)
        known = ("tries", "snapshot", "start", "on_lag")
        self.deliveries[name] = self._connection("deliver", stream, sink, name, options, known)

    def _connection(
        self, what: str, stream: str, made: Any, name: str, options: dict[str, Any], known: Sequence[str]
    ) -> Connection:
        for option in options:
            if option not in known:
                raise unknown(f"{what}({stream!r}, …)", "option", option, known)
        if name in self.sources or name in self.deliveries:
            raise DeclarationError(f"{what}({stream!r}, …): there are two connections called {name!r}; rename one")
        if not hasattr(made, "open") and not callable(made):
            raise DeclarationError(
                f"{what}({stream!r}, …) takes a {'source' if what == 'source' else 'sink'}, or a function that makes one; got "
                f"{made!r}"
            )
        return Connection(name, stream, made, dict(options))

    def graph(self) -> Graph:
        """The dataflow graph with every rule checked: what the engine runs."""
        check_renames(self)
        graph = Graph(self)
        check_timed(graph)
        check_idle(graph)
        return graph


def _expiring(schema: TableSchema, given: Any) -> TableSchema:
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
        raise DeclarationError(
            f"table {schema.name}: expire is a column and a duration, such as ('seen_at', '1h'), got {given!r}",
            table=schema.name,
        )
    kinds = {column.name: column.type.family for column in schema.columns}
    try:
        after = dt.timedelta(microseconds=microseconds(given[1]))
    except (DataError, DeclarationError, TypeError, OverflowError) as error:
        raise DeclarationError(f"table {schema.name}: expire: {error}", table=schema.name) from None
    expiry = expiring(schema.name, kinds, given[0], after)
    return replace(schema, expiry=expiry, indexes=(*schema.indexes, *expiry_indexes(schema, expiry)))


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
