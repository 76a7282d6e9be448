"""Programs: the app's procedures bound to one engine's tables, ready to run without looking anything up."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from tidegate.dataflows.app import App
from tidegate.dataflows.arguments import Arguments
from tidegate.dataflows.definitions import Procedure, TableAccess
from tidegate.dataflows.graph import Graph, Unit
from tidegate.dataflows.times import minds
from tidegate.dataflows.validation import clashing
from tidegate.errors import AccessError, DataError
from tidegate.storage.database import Database
from tidegate.storage.expiry import ExpiringReader, remove_due
from tidegate.storage.maintained import Changes, Maintained, maintain, readers_of, told_changes
from tidegate.storage.readers import CommittedReader, CompositeReader, PartitionReader, Reader
from tidegate.storage.schema import Relation
from tidegate.storage.sql.statements import Statement
from tidegate.storage.versions import VersionedTable
from tidegate.storage.view import View
from tidegate.streams.windows import WindowState
from tidegate.streams.windows.declare.declared import Declared, open_window, opener, window_relation
from tidegate.streams.windows.declare.joins import JoinSpec
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.backends import REFERENCE, Evaluation
from tidegate.streams.windows.evaluate.plan import Plan, shared_backend
from tidegate.txn.silence import Silence
from tidegate.txn.timers import Timers
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
        self.restricted = tuple(access.table for access in declared if access.restricted)
        self._pass_on_unchecked()
        self.windows: dict[str, dict[Any, WindowState]] = {name: {} for name in procedure.windows}
        self._openers: dict[str, Callable[[Any], WindowState]] = {}
        self._key_of = {name: app.streams[name].key for name in procedure.inputs}
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
        self.in_turn = clashing(self.window_triggers)
        self.by_column = any(not spec.plain for spec in procedure.windows.values())  # do they work on columns?
        self.timed = any(minds_arrival(spec) for spec in procedure.windows.values())
        self.minds = procedure.name in graph.times.minding
        self.passes: Mapping[str, bool] = graph.times.passes.get(procedure.name, {})
        self.minding = frozenset(name for name, spec in procedure.windows.items() if minds(spec)) if self.minds else ()
        covered = {stream for spec in procedure.windows.values() for stream in spec.streams}
        self.uncovered = tuple(name for name in self.inputs if name not in covered)
        self.marks: dict[Any, dict[str, int]] = {}  # key -> the last watermark on each input; "": passed on
        self.timers = {
            name: (app.streams[name].relation, app.streams[name].key) for name in procedure.timers
        }  # the border streams that it sets timers for, with their keys
        self._signature = inspect.signature(procedure.function)
        self.arguments = Arguments(procedure.name, procedure.function)
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
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], dict[str, Collection[Any]]]:
        """Check a client's arguments against the function, and find the partitions that they name."""
        try:
            bound = self._signature.bind(None, *arguments, **named)
        except TypeError as error:
            wanted = ", ".join(list(self._signature.parameters)[1:])
            raise DataError(f"{self.name}({wanted}) got the wrong arguments: {error}", relation=self.name) from None
        partitions: dict[str, Collection[Any]] = {}
        if self.restricted:
            bound.apply_defaults()
            for access in self.procedure.access:
                if access.restricted:
                    partitions[access.table] = self._named_by(access, bound.arguments)
        return (arguments, named), partitions

    def _named_by(self, access: TableAccess, arguments: Mapping[str, Any]) -> Collection[Any]:
        """The partitions of a table that the arguments of a call name."""
        schema = self.access[access.table].table.schema
        columns = [schema.column(name) for name in schema.partition_by]
        found = []
        for group in access.by:
            values = tuple(schema.check_value(c, arguments[name]) for c, name in zip(columns, group, strict=True))
            if None not in values:
                found.append(values[0] if len(values) == 1 else values)
        if not found:
            names = [name for group in access.by for name in group]
            raise DataError(
                f"{self.name}: {' and '.join(names)} select{'s' if len(names) == 1 else ''} the partition of {access.table} by "
                f"{', '.join(f'{access.table}.{column.name}' for column in columns)}, so it can't be NULL",
                relation=access.table,
                column=columns[0].name,
            )
        return tuple(found) if len(found) == 1 else dict.fromkeys(found)

    def window(self, name: str, key: Any) -> WindowState:
        """The state of a window for one key of its stream."""
        states = self.windows[name]
        found = states.get(key)
        if found is None:
            spec = self.procedure.windows[name]
            if key is None:
                found = open_window(spec, self.inputs, self.plans.get(name))
            else:
                opened = self._openers.get(name)
                if opened is None:  # two threads may get here: one of them wins
                    made = opener(spec, self.inputs, self.plans.get(name), self._key_of.get(spec.streams[0]))
                    opened = self._openers.setdefault(name, made)
                found = opened(key)
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


def minds_arrival(spec: Declared) -> bool:
    """Does the time at which a batch was accepted matter to a window?"""
    if isinstance(spec, JoinSpec):
        return True  # it remembers when it heard of each side
    return (spec.by_time and spec.on is None) or spec.source is not None


def over(procedure: str) -> AccessError:
    return AccessError(
        f"procedure {procedure} has ended, but something still uses its txn: a thread, a generator or a callback that kept "
        f"it. Read and write before the procedure returns; afterwards push to a border stream, or use engine.query",
        procedure=procedure,
    )


class UnitProgram:
    """A unit of atomicity bound to one engine: its members' programs in rank order.

    ``plain``: every member runs when there is a batch on its only input; none waits, fires EE triggers, minds time, or emits
    to a stream with a key of its own. ``timely``: the same but for time, which nobody behind it minds: for batches with
    rows and without a watermark it is plain. ``made``: streams on which it may pass on a watermark. ``hands_on``: consumers
    may get other batches than it emitted. ``deadline_s``: what its members declare. ``unlimited``: the engine's deadline is
    not for it: a member declares ``math.inf``, or has a window that Spark evaluates.
    """

    def __init__(
        self, unit: Unit, programs: dict[str, Program], timers: Timers, maintained: Sequence[Maintained] = ()
    ) -> None:
        self.unit = unit
        self.timers = timers
        self.name = unit.name
        self.rank = unit.rank
        self.numbered = unit.numbered_by is not None  # its executions have the number of the sequence, not of the batch
        self.inputs = unit.inputs
        self.only_input = unit.inputs[0] if len(unit.inputs) == 1 else None
        self.members = tuple(programs[procedure.name] for procedure in unit.members)
        self.rekeyed = unit.rekeyed
        self.minds = unit.minds
        self.made = frozenset(unit.outputs) if unit.minds else frozenset[str]()
        self.hands_on = bool(unit.rekeyed or self.made)
        ready = all(member.plain_input is not None and not member.prepares for member in self.members)
        self.expiring = tuple(
            {
                name: reader
                for member in self.members
                for name, reader in member.access.items()
                if reader.write and isinstance(reader, ExpiringReader)
            }.values()
        )
        written = {name for member in self.members for name, reader in member.access.items() if reader.write}
        self.maintained = tuple(view for view in maintained if written.intersection(view.reads))
        self.states = frozenset(schema.name for view in self.maintained for schema in view.states)
        self.view_readers: dict[str, Reader] = {}
        direct = ready and not unit.rekeyed and not self.expiring and not self.maintained
        self.plain = direct and not unit.minds
        self.timely = direct and unit.minds and not any(m.passes for m in self.members)
        self.named = unit.named
        restricted = dict.fromkeys(table for program in self.members for table in program.restricted)
        self.by_key = tuple(restricted) if not self.named else ()
        deadline_s = min((m.deadline_s for m in unit.members if m.deadline_s is not None), default=None)
        self.deadline_s = None if deadline_s == math.inf else deadline_s
        far = any(plan.backend is not shared_backend() for member in self.members for plan in member.plans.values())
        self.unlimited = deadline_s == math.inf or far
        if self.deadline_s is not None:
            for member in self.members:
                member.function = user_code(member.function)
        readers = [reader for program in self.members for reader in program.access.values()]
        self.committed = any(isinstance(getattr(reader, "inner", reader), CommittedReader) for reader in readers)

    def maintain(self, view: View) -> None:
        """Fold what its procedures have written into the materialized views."""
        if not self.view_readers:
            self.view_readers = readers_of(view.database, self.maintained)
        maintain(view, self.maintained, self.view_readers)

    def tell_views(self, changes: Mapping[str, Changes], txn: Any) -> None:
        """What the transaction changes in views whose changes are a stream: found before it commits, where SQL may still run."""
        txn.view_changes = {
            name: told_changes(txn, changes[name], self.view_readers[name])
            for name in sorted(self.states & changes.keys())
        }

    def remove_due(self, view: View) -> None:
        """At the end of its procedures: delete rows that are due from the tables that it has written to."""
        for reader in self.expiring:
            remove_due(view, reader)


def timers_of(app: App) -> Timers:
    """No timers yet, for the border streams of this app and their schedules."""
    borders = [stream for stream in app.streams.values() if stream.border]
    schedules = {stream.name: stream.schedule for stream in borders if stream.schedule is not None}
    silences = {
        stream.name: Silence(stream.relation.index_of[stream.idle.column], stream.idle.us)
        for stream in borders
        if stream.idle is not None
    }
    return Timers(schedules, {stream.name: stream.relation for stream in borders}, silences)


def bind_access(access: TableAccess, database: Database) -> Reader:
    table = database.tables[access.table]
    reader = _reader(access, table)
    return reader if table.schema.expiry is None else ExpiringReader(reader)


def _reader(access: TableAccess, table: VersionedTable) -> Reader:
    if access.committed:
        return CommittedReader(table)
    if access.restricted:
        return (PartitionReader if len(table.schema.partition_by) == 1 else CompositeReader)(table, access.write)
    return Reader(table, access.write)
