"""Programs: the app's procedures bound to one engine's tables, ready to run without looking anything up."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import Procedure, TableAccess
from tidegate.dataflows.graph import Graph, Unit
from tidegate.errors import AccessError, DataError
from tidegate.storage.database import Database
from tidegate.storage.readers import CommittedReader, PartitionReader, Reader
from tidegate.storage.schema import Relation
from tidegate.storage.sql.statements import Statement
from tidegate.streams.windows import WindowState
from tidegate.streams.windows.declare.declared import Declared, open_window, window_relation
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.backends import REFERENCE, Evaluation
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.txn.watchdog import user_code


class Program:
    """One procedure bound to one engine.

    ``windows`` holds the procedure's window state, per window and key: it is private to the procedure, and stream order
    means that at most one execution per key uses it at a time.
    """

    def __init__(
        self, app: App, graph: Graph, procedure: Procedure, database: Database, evaluation: Evaluation = REFERENCE
    ) -> None:
        self.procedure = procedure
        self.name = procedure.name
        self.ended: Any = Ended(self)
        self.function: Callable[..., Any] = procedure.function
        self.inputs = {name: app.streams[name].relation for name in procedure.inputs}
        self.either = procedure.either
        self.outputs: dict[str, Relation] = {name: app.streams[name].relation for name in procedure.outputs}
        self.awaited = tuple(s for s in procedure.inputs if app.streams[s].awaited)
        self.plain_input = procedure.inputs[0] if len(procedure.inputs) == 1 and not self.awaited else None
        declared = graph.access_of[procedure.name]
        self.access = {access.table: bind_access(access, database) for access in declared}
        self.by_key = tuple(access.table for access in declared if access.by_key)
        self._pass_on_unchecked()
        self.windows: dict[str, dict[Any, WindowState]] = {name: {} for name in procedure.windows}
        self.windows_of = self.name if procedure.windows else None  # whose windows the names in its SQL mean
        self.window_streams = tuple((name, tuple(spec.streams)) for name, spec in procedure.windows.items())
        single = procedure.inputs[0] if len(procedure.inputs) == 1 else None
        own = not self.either and all(streams == (single,) for _, streams in self.window_streams)
        self.own_windows = [((self.name, name), name, self.windows[name]) for name in self.windows if own]
        self.relations = {name: window_relation(spec, self.inputs, name) for name, spec in procedure.windows.items()}
        self.plans = {
            name: Plan(spec, self.inputs[spec.stream], evaluation.backend_of(spec))
            for name, spec in procedure.windows.items()
            if spec.compute is not None
        }
        in_turn = self.plain_input is not None or self.either  # no other input decides when a batch is processed
        self.ahead: dict[str, LookAhead] = {}
        for name, plan in self.plans.items():
            stream = app.streams[plan.spec.stream]
            ahead = evaluation.ahead_of(plan, stream.relation, known=stream.border and in_turn)
            if ahead is not None:
                self.ahead[name] = ahead
        self.stream_triggers: dict[str, list[Statement]] = {}
        self.window_triggers: dict[str, list[Statement]] = {}
        for trigger in graph.triggers_of(procedure):
            if trigger.window is not None:
                self.window_triggers.setdefault(trigger.window[1], []).append(trigger.statement)
            else:
                self.stream_triggers.setdefault(str(trigger.stream), []).append(trigger.statement)
        self.timed = any(not spec.plain for spec in procedure.windows.values())
        self._signature = inspect.signature(procedure.function)
        self.prepares = bool(self.window_triggers) or any(s in self.stream_triggers for s in self.inputs)

    def _pass_on_unchecked(self) -> None:
        """Rows that the procedure reads are not checked again when it writes them unchanged."""
        tables = [access.table.schema for access in self.access.values()]
        written = [access.table.schema for access in self.access.values() if access.write]
        for target in [*self.outputs.values(), *written]:
            for source in [*self.inputs.values(), *tables]:
                target.trust(source)

    def bind_call(
        self, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], dict[str, tuple[Any, ...]]]:
        """Check a client's arguments against the function, and find the partitions that they name."""
        try:
            bound = self._signature.bind(None, *arguments, **named)
        except TypeError as error:
            wanted = ", ".join(list(self._signature.parameters)[1:])
            raise DataError(f"{self.name}({wanted}) got the wrong arguments: {error}", relation=self.name) from None
        partitions = {}
        if self.by_key:
            bound.apply_defaults()
            for access in self.procedure.access:
                if access.by_key:
                    schema = self.access[access.table].table.schema
                    column = schema.column(schema.partition_by[0])
                    value = schema.check_value(column, bound.arguments[str(access.argument)])
                    if value is None:
                        raise DataError(
                            f"{self.name}: {access.argument} selects the partition of {access.table} by "
                            f"{access.table}.{column.name}, so it can't be NULL",
                            relation=access.table,
                            column=column.name,
                        )
                    partitions[access.table] = (value,)
        return (arguments, named), partitions

    def window_spec(self, name: str) -> Declared:
        return self.procedure.windows[name]

    def window(self, name: str, key: Any) -> WindowState:
        """The state of a window for one key of its stream."""
        states = self.windows[name]
        found = states.get(key)
        if found is None:
            spec = self.procedure.windows[name]
            found = open_window(spec, self.inputs, self.plans.get(name))
            if name in self.ahead:
                found = self.ahead[name].attach(key, found)
            states[key] = found
        return found


class Ended:
    """Takes the place of a transaction's program once its procedure has ended: it has the name, and nothing to work
    with.

    So a ``txn`` that was kept somewhere can't write into what has committed, and no call pays for a check.
    """

    __slots__ = ("access", "ended", "name", "procedure")

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self.procedure = program.procedure
        self.access = _NoAccess(program.name)
        self.ended = self

    def __getattr__(self, name: str) -> NoReturn:
        raise over(self.name)


class _NoAccess:
    """The tables of an ended transaction: every access is refused."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def get(self, table: str) -> NoReturn:
        raise over(self._name)

    def __getitem__(self, table: str) -> NoReturn:
        raise over(self._name)

    def keys(self) -> NoReturn:
        raise over(self._name)


def over(procedure: str) -> AccessError:
    return AccessError(
        f"procedure {procedure} has ended, but something still uses its txn: a thread, a generator or a callback that kept "
        f"it. Read and write before the procedure returns; afterwards push to a border stream, or use engine.query",
        procedure=procedure,
    )


class UnitProgram:
    """A unit of atomicity bound to one engine: its members' programs in rank order.

    ``plain``: every member runs when there is a batch on its only input; none waits or fires EE triggers.
    """

    def __init__(self, unit: Unit, programs: dict[str, Program]) -> None:
        self.unit = unit
        self.name = unit.name
        self.rank = unit.rank
        self.inputs = unit.inputs
        self.only_input = unit.inputs[0] if len(unit.inputs) == 1 else None
        self.members = tuple(programs[procedure.name] for procedure in unit.members)
        self.plain = all(member.plain_input is not None and not member.prepares for member in self.members)
        self.by_key = tuple(dict.fromkeys(table for program in self.members for table in program.by_key))
        self.deadline_s = min((m.deadline_s for m in unit.members if m.deadline_s is not None), default=None)
        if self.deadline_s is not None:
            for member in self.members:
                member.function = user_code(member.function)
        self.committed = any(
            isinstance(reader, CommittedReader) for program in self.members for reader in program.access.values()
        )


def bind_access(access: TableAccess, database: Database) -> Reader:
    table = database.tables[access.table]
    if access.committed:
        return CommittedReader(table)
    return (PartitionReader if access.by_key else Reader)(table, access.write)
