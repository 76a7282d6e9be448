"""Mistakes in the declaration of one procedure, found early and named. Rules of the whole graph are in ``graph``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.dataflows.definitions import Procedure, TableAccess, Trigger, check_identifier
from tidegate.errors import DeclarationError, TidegateError, unknown
from tidegate.storage.sql.statements import Statement
from tidegate.streams.windows import WindowSpec, result_relation
from tidegate.streams.windows.declare.checks import check_columns
from tidegate.streams.windows.declare.joins import JoinSpec, check_join
from tidegate.streams.windows.declare.patterns import check as check_farm
from tidegate.streams.windows.patterns.declare import PatternSpec
from tidegate.streams.windows.patterns.plan import PatternPlan

if TYPE_CHECKING:
    from tidegate.dataflows.app import App


def not_callable(name: str, procedures: Mapping[str, Procedure], oltp: Iterable[str]) -> TidegateError:
    """The error for a call of something that can't be called: a streaming procedure, or an unknown name."""
    if name in procedures:
        return TidegateError(
            f"{name} is a streaming procedure: batches start it, on {', '.join(procedures[name].inputs)}; push there "
            f"instead",
            procedure=name,
        )
    return unknown("call", "procedure", name, oltp)


def check_renames(app: App) -> None:
    """What was renamed has one new name, and nothing else has the old one."""
    declared = {
        "table": set(app.tables),
        "stream": set(app.streams),
        "procedure": set(app.procedures),
        "nested transaction": set(app.nested_groups),
    }
    claims = [(kind, name, old, old in declared[kind]) for (kind, name), old in app.renamed.items()]
    for procedure in app.procedures.values():
        for name, spec in procedure.windows.items():
            if spec.renamed_from is not None:
                owner, _, window = spec.renamed_from.rpartition(".")
                owned = app.procedures.get(owner or procedure.name)
                old = f"{owner or procedure.name}.{window}"
                claims.append(
                    ("window", f"{procedure.name}.{name}", old, owned is not None and window in owned.windows)
                )
    claimed: dict[tuple[str, str], str] = {}
    for kind, name, old, kept in claims:
        if not isinstance(old, str) or kept:
            why = f"the app still has a {kind} {old}" if kept else "that is no name"
            raise DeclarationError(
                f"{kind} {name}: renamed_from={old!r}, but {why}; leave out renamed_from=, or remove the old {kind}",
                name=name,
            )
        other = claimed.setdefault((kind, old), name)
        if other != name:
            raise DeclarationError(
                f"{kind}s {other} and {name} are both renamed_from={old!r}; one of them continues it, the other is new",
                name=name,
            )


def check_inputs(app: App, procedure: Procedure) -> None:
    for name in procedure.inputs:
        if name not in app.streams:
            raise unknown(f"procedure {procedure.name}, inputs", "stream", name, app.streams)
        if app.streams[name].changelog_of is not None:
            raise DeclarationError(
                f"procedure {procedure.name} reads {name}, the changelog of {app.streams[name].changelog_of}: it is an output. "
                f"Declare a border stream with its columns, key='row_key', and deliver the changelog there: "
                f"engine.deliver({name!r}, EngineSink(engine, …))",
                procedure=procedure.name,
                stream=name,
            )
    _no_repeats(procedure, "inputs", procedure.inputs)
    if procedure.either:
        _check_either(app, procedure)
    if procedure.outputs and not procedure.inputs:
        raise DeclarationError(
            f"procedure {procedure.name} has outputs ({', '.join(procedure.outputs)}) but no inputs: only a batch has an id "
            f"to emit under. "
            f"Give it an input stream, or push to a border stream instead",
            procedure=procedure.name,
        )
    if procedure.windows and not procedure.inputs:
        raise DeclarationError(f"procedure {procedure.name} has windows but no input stream", procedure=procedure.name)


def _check_either(app: App, procedure: Procedure) -> None:
    if len(procedure.inputs) < 2:
        raise DeclarationError(
            f"procedure {procedure.name}: either(…) is for two or more streams, got {', '.join(procedure.inputs) or 'none'}; "
            f"with one input, every batch starts it anyway",
            procedure=procedure.name,
        )
    for name in procedure.inputs:
        if app.streams[name].awaited:
            raise DeclarationError(
                f"procedure {procedure.name}: stream {name} has a deadline: it answers questions of nested transactions, and "
                f"either(…) starts a transaction of its own. Declare the stream without deadline_s= and default=",
                procedure=procedure.name,
                stream=name,
            )


def check_outputs(app: App, procedure: Procedure) -> None:
    _no_repeats(procedure, "outputs", procedure.outputs)
    for name in procedure.outputs:
        if name not in app.streams:
            raise unknown(f"procedure {procedure.name}, outputs", "stream", name, app.streams)
        if app.streams[name].border:
            raise DeclarationError(
                f"procedure {procedure.name} emits to border stream {name}, which is fed from outside; "
                f"declare the stream without border=True",
                procedure=procedure.name,
                stream=name,
            )
        if app.streams[name].changelog_of is not None:
            raise DeclarationError(
                f"procedure {procedure.name} emits to {name}, which has the changes of table "
                f"{app.streams[name].changelog_of} and nothing else; change the table instead",
                procedure=procedure.name,
                stream=name,
            )
        for other in app.procedures.values():
            if name in other.outputs:
                raise DeclarationError(
                    f"stream {name} has two producers, {other.name} and {procedure.name}; a stream has one. "
                    f"Give one of them a stream of its own, and read both with inputs=either({name!r}, …)",
                    stream=name,
                )


def check_access(app: App, procedure: Procedure) -> None:
    """What is named by partition fits its table, and the arguments that name partitions exist."""
    for access in procedure.access:
        if access.restricted:
            _check_partitioned(procedure, access, app.tables[access.table].partition_by)
            if not procedure.streaming:
                _check_arguments(procedure, access)


def _check_partitioned(procedure: Procedure, access: TableAccess, columns: tuple[str, ...]) -> None:
    where = f"procedure {procedure.name}: {access}"
    if not columns:
        raise DeclarationError(
            f"{where} needs a partitioned table, but {access.table} is not partitioned; declare it with "
            f"app.table(…, partition_by='column')",
            procedure=procedure.name,
        )
    if access.by_key and len(columns) > 1:
        raise DeclarationError(
            f"{where} needs a table partitioned by one column, but {access.table} is partitioned by several columns "
            f"({', '.join(columns)}); name a value for each: partition({access.table!r}, by={columns!r})",
            procedure=procedure.name,
        )
    for group in access.by:
        if len(group) != len(columns):
            names = [name for one in access.by for name in one]
            form: object = names if len(columns) == 1 else tuple(names[: len(columns)])
            raise DeclarationError(
                f"{where}: {', '.join(group)} is {len(group)} name{'s' if len(group) > 1 else ''}, but {access.table} is "
                f"partitioned by {', '.join(columns)}: a tuple has one name for each of these, and a list names several "
                f"partitions. Perhaps by={form!r}",
                procedure=procedure.name,
            )


def _check_arguments(procedure: Procedure, access: TableAccess) -> None:
    arguments = list(inspect.signature(procedure.function).parameters)[1:]
    missing = [name for group in access.by for name in group if name not in arguments]
    if missing or access.by_key:
        got = missing[0] if missing else None
        raise DeclarationError(
            f"procedure {procedure.name}: {access} needs by= one of its arguments ({', '.join(arguments) or 'none'}), "
            f"got {got!r}",
            procedure=procedure.name,
        )


def check_windows(app: App, procedure: Procedure) -> None:
    for name, spec in procedure.windows.items():
        if not isinstance(spec, (WindowSpec, JoinSpec, PatternSpec)):
            raise DeclarationError(
                f"procedure {procedure.name}: window {name!r} must be tidegate.window(…), join(…) or pattern(…), got {spec!r}",
                procedure=procedure.name,
            )
        for stream in spec.streams:
            if stream not in procedure.inputs:
                raise DeclarationError(
                    f"procedure {procedure.name}: window {name} is over stream {stream!r}, which is not one of its "
                    f"inputs ({', '.join(procedure.inputs)}); a window is private to the procedure that reads the stream",
                    procedure=procedure.name,
                )
        check_identifier(f"procedure {procedure.name}: window", name)
        for taken in [*app.tables, *app.streams, *(other for other in procedure.windows if other != name)]:
            if taken.lower() == name.lower():
                kind = "table" if taken in app.tables else "stream" if taken in app.streams else "window"
                raise DeclarationError(
                    f"procedure {procedure.name}: window name {name!r} is taken by the {kind} {taken}; choose another"
                )
        if isinstance(spec, JoinSpec):
            left, right = (app.streams[stream].relation for stream in spec.streams)
            check_join(spec, left, right, f"procedure {procedure.name}: join {name}")
            continue
        if isinstance(spec, PatternSpec):
            check_pattern(app, procedure, name, spec)
            continue
        relation = app.streams[spec.stream].relation
        check_columns(spec, relation, f"procedure {procedure.name}: window {name}")
        if spec.compute is not None:
            result_relation(spec, relation, name)
            if spec.pattern is not None:
                check_farm(spec.pattern, spec, spec.compute, keyed=app.streams[spec.stream].key is not None)


def check_pattern(app: App, procedure: Procedure, name: str, spec: PatternSpec) -> None:
    """It fits its streams, and a batch of one of them is enough to go on."""
    what = f"procedure {procedure.name}: pattern {name}"
    if len(spec.streams) > 1 and not procedure.either:
        raise DeclarationError(
            f"{what} is over {len(spec.streams)} streams, so it takes in their rows as they come; declare the procedure with "
            f"inputs=either({', '.join(map(repr, procedure.inputs))})",
            procedure=procedure.name,
        )
    PatternPlan(spec, {stream: app.streams[stream].relation for stream in spec.streams}, what)


def check_signature(_: App, procedure: Procedure) -> None:
    """The function can be called the way the engine will call it."""
    tests = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(test(procedure.function) for test in tests):
        raise DeclarationError(
            f"procedure {procedure.name} must be a plain function, not async or a generator: a transaction runs to "
            "its end without yielding",
            procedure=procedure.name,
        )
    parameters = inspect.signature(procedure.function)
    wanted = ["txn", *procedure.inputs]
    try:
        if procedure.streaming:
            parameters.bind(*wanted)
        else:
            parameters.bind_partial(*wanted)
    except TypeError as error:
        raise DeclarationError(
            f"procedure {procedure.name} is called as {procedure.name}({', '.join(wanted)}"
            f"{'' if procedure.streaming else ', …'}), but is defined as "
            f"{procedure.name}{parameters}: {error}",
            procedure=procedure.name,
        ) from None
    if procedure.on_failure not in ("halt", "dead_letter"):
        raise DeclarationError(
            f"procedure {procedure.name}: on_failure is 'halt' or 'dead_letter', got {procedure.on_failure!r}"
        )
    if not isinstance(procedure.retries, int) or procedure.retries < 0:
        raise DeclarationError(f"procedure {procedure.name}: retries is a number from 0, got {procedure.retries!r}")
    if procedure.deadline_s is not None:
        check_deadline(f"procedure {procedure.name}", procedure.deadline_s)


def check_deadline(where: str, deadline_s: object) -> None:
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not deadline_s > 0:
        raise DeclarationError(f"{where}: deadline_s must be a positive number of seconds, got {deadline_s!r}")


def check_prefetch(app: App, procedure: Procedure) -> None:
    declared = {access.table for access in procedure.access}
    columns = {name for stream in procedure.inputs for name in app.streams[stream].relation.index_of}
    for table, column in procedure.prefetch.items():
        if table not in declared:
            raise DeclarationError(
                f"procedure {procedure.name}: prefetch names table {table!r}, which it does not access; "
                f"add reads=[{table!r}] or writes=[{table!r}]"
            )
        if len(app.tables[table].primary_key) != 1:
            raise DeclarationError(f"procedure {procedure.name}: prefetch needs a one-column key; {table} has more")
        if column not in columns:
            raise DeclarationError(
                f"procedure {procedure.name}: prefetch column {column!r} is not in any of its inputs, which have "
                f"{', '.join(sorted(columns))}"
            )


def _no_repeats(procedure: Procedure, what: str, names: tuple[str, ...]) -> None:
    if len(set(names)) != len(names):
        raise DeclarationError(f"procedure {procedure.name}: {what} name a stream twice: {', '.join(names)}")


def clashing(triggers: Mapping[str, Sequence[Statement]]) -> bool:
    """Does the order matter in which the triggers of these windows run: does one write what another reads or writes?"""
    windows = list(triggers)
    return any(
        one.writes & (other.writes | other.reads) or other.writes & one.reads
        for place, name in enumerate(windows)
        for later in windows[place + 1 :]
        for one in triggers[name]
        for other in triggers[later]
    )


def check_turns(app: App, procedure: str, trigger: Trigger) -> None:
    """Triggers on several windows of a procedure that touch the same table run in the order in which the windows were
    completed. Only windows by count over one stream tell which row that was.
    """
    windows = app.procedures[procedure].windows
    found: dict[str, list[Statement]] = {}
    for one in (*app.triggers, trigger):
        if one.window is not None and one.window[0] == procedure:
            found.setdefault(one.window[1], []).append(one.statement)
    if len(found) < 2 or not clashing(found):
        return
    specs = [windows[name] for name in found]
    told = [name for name in found if not (windows[name].plain and windows[name].kind == "count")]
    if told or len({tuple(spec.streams) for spec in specs}) > 1:
        tables = ", ".join(sorted(trigger.statement.writes))
        raise DeclarationError(
            f"triggers on windows {' and '.join(found)} of procedure {procedure} use the same table ({tables}), so their order "
            f"matters; it would depend on how rows are split into batches, unless all of these windows are by count, over "
            f"the same stream, without gaps, by= and compute= ({', '.join(told) or 'they are over several streams'}). Declare "
            f"the windows in two procedures, or let the triggers use two tables",
            procedure=procedure,
        )
