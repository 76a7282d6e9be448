"""Mistakes in the declaration of one procedure, found early and named. Rules of the whole graph are in ``graph``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tidegate.dataflows.definitions import Procedure, check_identifier
from tidegate.errors import DeclarationError, TidegateError
from tidegate.streams.windows import WindowSpec, result_relation
from tidegate.streams.windows.declare.checks import check_columns
from tidegate.streams.windows.declare.joins import JoinSpec, check_join
from tidegate.streams.windows.declare.patterns import check as check_pattern

if TYPE_CHECKING:
    from tidegate.dataflows.app import App


def unknown(where: str, kind: str, name: object, known: Iterable[str]) -> DeclarationError:
    """The error for a name that was not declared, with the nearest one that was."""
    names = sorted(known)
    close = get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"declared so far: {', '.join(names) or 'none'}"
    return DeclarationError(f"{where}: there is no {kind} {name!r}; {hint}", name=name)


def not_callable(name: str, procedures: Mapping[str, Procedure], oltp: Iterable[str]) -> TidegateError:
    """The error for a call of something that can't be called: a streaming procedure, or an unknown name."""
    if name in procedures:
        return TidegateError(
            f"{name} is a streaming procedure: batches start it, on {', '.join(procedures[name].inputs)}; push there "
            f"instead",
            procedure=name,
        )
    return unknown("call", "procedure", name, oltp)


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
            f"procedure {procedure.name} has outputs but no inputs: only a batch has an id to emit under. "
            f"Give it an input stream, or push to a border stream instead",
            procedure=procedure.name,
        )
    if procedure.windows and not procedure.inputs:
        raise DeclarationError(f"procedure {procedure.name} has windows but no input stream", procedure=procedure.name)


def _check_either(app: App, procedure: Procedure) -> None:
    if len(procedure.inputs) < 2:
        raise DeclarationError(
            f"procedure {procedure.name}: either(…) is for two or more streams, got {len(procedure.inputs)}; "
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
                    f"Give one of them a stream of its own",
                    stream=name,
                )


def check_access(app: App, procedure: Procedure) -> None:
    for access in procedure.access:
        if not access.by_key:
            continue
        schema = app.tables[access.table]
        if len(schema.partition_by) != 1:
            how = "is not partitioned" if not schema.partition_by else "is partitioned by several columns"
            raise DeclarationError(
                f"procedure {procedure.name}: {access} needs a table partitioned by one column, but {access.table} {how}; "
                f"declare it with app.table(…, partition_by='column')",
                procedure=procedure.name,
            )
        if procedure.streaming and access.argument is not None:
            raise DeclarationError(
                f"procedure {procedure.name}: by={access.argument!r} is for OLTP procedures; a streaming procedure's "
                f"partition is its batch's key",
                procedure=procedure.name,
            )
        arguments = list(inspect.signature(procedure.function).parameters)[1:]
        if not procedure.streaming and access.argument not in arguments:
            raise DeclarationError(
                f"procedure {procedure.name}: {access} needs by= one of its arguments ({', '.join(arguments) or 'none'}), "
                f"got {access.argument!r}",
                procedure=procedure.name,
            )


def check_windows(app: App, procedure: Procedure) -> None:
    for name, spec in procedure.windows.items():
        if not isinstance(spec, (WindowSpec, JoinSpec)):
            raise DeclarationError(
                f"procedure {procedure.name}: window {name!r} must be tidegate.window(…) or tidegate.join(…), got {spec!r}",
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
        relation = app.streams[spec.stream].relation
        check_columns(spec, relation, f"procedure {procedure.name}: window {name}")
        if spec.compute is not None:
            result_relation(spec, relation, name)
            if spec.pattern is not None:
                check_pattern(spec.pattern, spec, spec.compute, keyed=app.streams[spec.stream].key is not None)


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
