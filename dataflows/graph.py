"""The dataflow graph: ranks, units of atomicity, and what each border batch can cause.

A *unit* is what commits as one: a procedure, or a nested transaction. Contracting every nested transaction to one node
must leave a DAG (that is what "convex" means: no path leaves a group and returns to it); its topological order gives
the ranks, with the members of a group next to each other. A unit therefore never waits for a later one.

A unit's *ancestors* are the border streams whose batch with the same batch-id it needs before it can be placed in the
order: it gets the sequence number of the last of them to arrive. An awaited stream (one with a deadline) read inside a
nested transaction is not an ancestor: the transaction opens without it and waits.

An interior stream may have a key of its own: what is emitted is split by it when its producer commits. Which keys the
units behind it run for is not known when they are placed: they are *divided* later, and have room for a position for each
key. Their batches are numbered by the sequence number.

An *either*-unit needs only one of its inputs, so any of its ancestors places it. The ids of its inputs are independent of
each other; its own executions, and those of all units downstream, are numbered by the sequence number instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.dataflows.definitions import Procedure, Stream, TableAccess, Trigger
from tidegate.dataflows.partitions import Named, Naming
from tidegate.dataflows.precedence import Precedence
from tidegate.dataflows.rekeying import Rekeyed, Rekeying
from tidegate.dataflows.times import InTime, Times
from tidegate.errors import DeclarationError

if TYPE_CHECKING:
    from tidegate.dataflows.app import App


@dataclass(frozen=True, eq=False)
class Unit(InTime):
    """What commits as one, and where it stands in its dataflow."""

    name: str
    members: tuple[Procedure, ...]  # in rank order
    rank: int  # of the first member
    dataflow: str
    inputs: tuple[str, ...]  # streams that come from outside the unit, awaited ones left out
    awaited: tuple[str, ...]  # awaited border streams read by a member of a nested transaction
    outputs: tuple[str, ...]  # streams its members emit
    ancestors: frozenset[str]
    access: tuple[TableAccess, ...]  # union over its members and their triggers
    either: bool = False  # is a batch on one of its inputs enough?
    numbered_by: str | None = None  # the either-unit that it is or follows: its batch-ids are sequence numbers
    named: tuple[Named, ...] = ()  # how rows name the partitions of tables; empty: only keys do
    wide: frozenset[str] = frozenset()  # tables that are partitioned by several columns
    rekeyed: tuple[Rekeyed, ...] = ()  # outputs with a key of their own
    divided: bool = False  # behind such a stream: its keys are known only when that stream's producer has committed
    room: int = 1  # how many ranks it has; divided: one for itself and one for each key
    together: bool = False  # its dataflow has streams of several keys
    minds: bool = False  # does a member take in watermarks, with rows or without?

    @property
    def nested(self) -> bool:
        return len(self.members) > 1

    @property
    def halts_by_key(self) -> bool:
        """Is only the key halted for which it fails? In front of a stream with its own key, work of every key may lead to each
        of the keys behind it, so all halt.
        """
        return self.divided or not self.together


@dataclass(eq=False)
class Graph:
    """All dataflows of an app, checked. ``partial``: more will be declared, so completeness is not checked yet."""

    app: App
    partial: bool = False
    units: list[Unit] = field(init=False, default_factory=list)
    oltp: dict[str, Unit] = field(init=False, default_factory=dict)
    caused_by: dict[str, list[Unit]] = field(init=False, default_factory=dict)  # border stream -> units, by rank
    consumers: dict[str, list[Unit]] = field(init=False, default_factory=dict)  # stream -> units that read it
    producer_of: dict[str, str] = field(init=False, default_factory=dict)  # interior stream -> the unit that emits it
    keyed: dict[str, str | None] = field(init=False, default_factory=dict)  # stream -> type of its key, as SQL
    access_of: dict[str, tuple[TableAccess, ...]] = field(init=False, default_factory=dict)
    times: Times = field(init=False)
    precedence: Precedence = field(init=False)

    def __post_init__(self) -> None:
        streaming = [p for p in self.app.procedures.values() if p.streaming]
        self._producer = {stream: p.name for p in streaming for stream in p.outputs}
        self._group_of = {member: group.name for group in self.app.nested_groups.values() for member in group.members}
        self._wide = frozenset(name for name, schema in self.app.tables.items() if len(schema.partition_by) > 1)
        self.access_of = {p.name: self._effective_access(p) for p in self.app.procedures.values()}
        if not self.partial:
            self._check_complete()
        self._check_connected()
        nodes = self._topological_order([self._node(p.name) for p in streaming])
        self._infer_keys(nodes)
        self.times = Times(self.app)
        self.precedence = Precedence(self.app.streams, self.app.procedures)
        self._build_units(nodes)
        for procedure in self.app.procedures.values():
            if not procedure.streaming:
                self.oltp[procedure.name] = Unit(
                    procedure.name,
                    (procedure,),
                    0,
                    procedure.name,
                    (),
                    (),
                    (),
                    frozenset(),
                    _union(self._locked(procedure)) if self.app.maintained else self.access_of[procedure.name],
                    wide=self._wide,
                )

    # ---- nodes: procedures, with nested transactions contracted

    def _node(self, procedure: str) -> str:
        return self._group_of.get(procedure, procedure)

    def _members(self, node: str) -> list[Procedure]:
        group = self.app.nested_groups.get(node)
        names = group.members if group is not None else (node,)
        return [self.app.procedures[name] for name in names]

    def _predecessors(self, procedure: Procedure) -> list[str]:
        return [self._producer[stream] for stream in procedure.inputs if stream in self._producer]

    def _topological_order(self, nodes: list[str]) -> list[str]:
        """Nodes with every producer before its consumers, ties broken by declaration order (Kahn)."""
        waiting: dict[str, set[str]] = {node: set() for node in nodes}
        for node in waiting:
            for member in self._members(node):
                waiting[node] |= {self._node(p) for p in self._predecessors(member)} - {node}
                if member.name in self._predecessors(member):
                    loop = ", ".join(stream for stream in member.outputs if stream in member.inputs)
                    raise DeclarationError(
                        f"procedure {member.name} reads {loop}, which it emits to: that is a cycle. Emit to another stream, or "
                        f"keep the state in a table"
                    )
        order: list[str] = []
        while waiting:
            ready = next((node for node, before in waiting.items() if before <= set(order)), None)
            if ready is None:
                raise self._cycle(waiting)
            order.append(ready)
            del waiting[ready]
        return order

    def _cycle(self, waiting: dict[str, set[str]]) -> DeclarationError:
        node = next(iter(waiting))
        path = [node]
        while True:
            node = next(before for before in sorted(waiting[node]) if before in waiting)
            if node in path:
                cycle = [*path[path.index(node) :], node][::-1]
                break
            path.append(node)
        arrows = " → ".join(cycle)
        groups = [name for name in cycle if name in self.app.nested_groups]
        if groups:
            return DeclarationError(
                f"nested transaction {groups[0]} is not convex: a path leaves it and returns to it ({arrows}); "
                f"take the procedures between into it, or split it",
                cycle=cycle,
            )
        return DeclarationError(f"the procedures form a cycle: {arrows}; a dataflow is acyclic", cycle=cycle)

    # ---- units

    def _build_units(self, nodes: list[str]) -> None:
        ancestors: dict[str, frozenset[str]] = {}  # interior stream -> border streams upstream of it
        numbered: dict[str, str | None] = {}  # stream -> the either-unit that numbers its batches
        next_rank: dict[str, int] = {}
        names = self._dataflow_names(nodes)
        rekeying = Rekeying(self.app, {node: self._in_rank_order(node) for node in nodes}, names)
        timed = [node for node in nodes if names[node] not in rekeying.dataflows]
        self.times.add([member for node in timed for member in self._in_rank_order(node)])
        for node in nodes:
            members = self._in_rank_order(node)
            inside = {stream for member in members for stream in member.outputs}
            outside = [s for member in members for s in member.inputs if s not in inside]
            awaited = [s for s in outside if len(members) > 1 and self._stream(s).awaited]
            inputs = [s for s in outside if s not in awaited]
            behind = frozenset().union(
                *(frozenset({s}) if self._stream(s).border else ancestors.get(s, frozenset()) for s in inputs)
            )
            if awaited and not inputs:
                raise DeclarationError(
                    f"nested transaction {node} has no input but {', '.join(awaited)}, which has a deadline and can only "
                    f"answer; declare that stream without deadline_s=, or give the first procedure an input to start it",
                    nested=node,
                )
            if len(members) > 1:
                self._check_waits(node, members, inside, ancestors, behind)
            either = any(member.either for member in members)
            asking = [s for s in inputs if not self._stream(s).awaited]
            number = node if either else self._numbered(node, asking, numbered)
            for stream in awaited:
                self._check_asked_by(node, stream, number, numbered)
            dataflow = names[node]
            rank = next_rank.get(dataflow, 0)
            room = rekeying.room(node)
            next_rank[dataflow] = rank + room
            unit = Unit(
                node,
                tuple(members),
                rank,
                dataflow,
                tuple(dict.fromkeys(inputs)),
                tuple(dict.fromkeys(awaited)),
                tuple(s for member in members for s in member.outputs),
                behind,
                _union(access for member in members for access in self._locked(member)),
                either,
                number,
                self._named(node, members, inputs, behind),
                self._wide,
                rekeying.rekeyed(node),
                node in rekeying.divided,
                room,
                dataflow in rekeying.dataflows,
                any(member.name in self.times.minding for member in members),
            )
            self.units.append(unit)
            if dataflow in rekeying.dataflows:
                self.times.leave_out(members, behind)
            anew = {one.stream for one in unit.rekeyed}
            for stream in unit.outputs:
                ancestors[stream] = behind
                numbered[stream] = number or node if stream in anew else number
                self.producer_of[stream] = node
            for stream in (*unit.inputs, *unit.awaited):
                self.consumers.setdefault(stream, []).append(unit)
            for stream in behind:
                self.caused_by.setdefault(stream, []).append(unit)

    def _named(
        self, node: str, members: list[Procedure], inputs: list[str], behind: frozenset[str]
    ) -> tuple[Named, ...]:
        """How rows name the partitions that the unit works on; unknown while a stream upstream has no producer yet."""
        if any(not self._stream(s).border and s not in self.producer_of for s in inputs) or not behind:
            return ()
        return Naming(self.app, node, behind).of_unit((m, self.access_of[m.name]) for m in members)

    def _numbered(self, node: str, inputs: list[str], numbered: dict[str, str | None]) -> str | None:
        """The either-unit that numbers the batches of these inputs; None: they have the ids of border batches."""
        numbers = {stream: numbered.get(stream) for stream in inputs}
        if len(set(numbers.values())) > 1:
            behind, by = next((s, n) for s, n in numbers.items() if n is not None)
            other = next(s for s, n in numbers.items() if n != by)
            if by not in self.app.procedures or not self.app.procedures[by].either:
                raise DeclarationError(
                    f"{node} needs batches of the same id on {behind} and {other}, but {behind} is behind a stream with a key of "
                    f"its own, which numbers its batches anew: the ids never correspond. Give {node} inputs=either({behind!r}, "
                    f"{other!r}), so that it runs for each of them",
                    procedure=node,
                )
            raise DeclarationError(
                f"{node} needs batches of the same id on {behind} and {other}, but {behind} is behind {by}, which has "
                f"inputs=either(…) and renumbers its batches, and {other} has its ids from "
                f"{numbers[other] or 'border batches'}: the ids never correspond. Give {node} inputs=either(…) too, "
                f"or take both from behind {by}",
                procedure=node,
            )
        return next(iter(numbers.values()), None)

    def _check_asked_by(self, node: str, stream: str, number: str | None, numbered: dict[str, str | None]) -> None:
        """An answer names its question by batch-id: all units that wait on a stream must number batches alike."""
        if numbered.setdefault(stream, number) != number:
            raise DeclarationError(
                f"stream {stream} answers questions of {node} and of others whose batches are numbered differently (by "
                f"{number or numbered[stream]}, which has inputs=either(…)); give each a stream for its answers",
                stream=stream,
            )

    def placed_by(self, unit: Unit, stream: str, placed: Container[str]) -> list[str] | None:
        """For a unit with its own numbering: the inputs that a batch on border ``stream`` may lead to, given that it
        caused executions of the units ``placed``; None when it leads to none.
        """
        if not unit.either:
            return list(unit.inputs) if unit.numbered_by in placed else None
        return [s for s in unit.inputs if s == stream or self.producer_of.get(s) in placed] or None

    def unordered(self) -> set[str]:
        """Streams with a key of their own whose producer has another one: batches of one key come from executions that have
        no order among each other until they have ended. Consumers get them in order; who only listens does not.
        """
        return {
            one.stream
            for unit in self.units
            for one in unit.rekeyed
            if any(self.keyed[stream] is not None for stream in unit.inputs)
        }

    def _in_rank_order(self, node: str) -> list[Procedure]:
        members = self._members(node)
        names = {member.name for member in members}
        order: list[Procedure] = []
        while len(order) < len(members):
            done = {member.name for member in order}
            ready = next((m for m in members if m not in order and set(self._predecessors(m)) & names <= done), None)
            if ready is None:
                raise DeclarationError(f"the procedures of nested transaction {node} form a cycle")
            order.append(ready)
        return order

    def _check_waits(
        self,
        node: str,
        members: list[Procedure],
        inside: set[str],
        ancestors: dict[str, frozenset[str]],
        behind: frozenset[str],
    ) -> None:
        """Every member can start once the unit's first one can, awaited streams aside."""
        first: frozenset[str] | None = None
        within: dict[str, frozenset[str]] = {}
        for member in members:
            needs: frozenset[str] = frozenset()
            for stream in member.inputs:
                if stream in inside:
                    needs |= within[stream]
                elif not self._stream(stream).border:
                    needs |= ancestors.get(stream, frozenset())
                elif not self._stream(stream).awaited:
                    needs |= {stream}
            within.update(dict.fromkeys(member.outputs, needs))
            first = needs if first is None else first
            if needs != first:
                late = ", ".join(sorted((needs | behind) - (needs & first)))
                raise DeclarationError(
                    f"nested transaction {node} would stay open, locks held, while {member.name} waits for outside input "
                    f"({late}); give that border stream deadline_s= and default=, or take {member.name} out",
                    nested=node,
                )

    def _dataflow_names(self, nodes: list[str]) -> dict[str, str]:
        """Connected components, each named after its first node."""
        names = {node: node for node in nodes}
        users: dict[str, list[str]] = {}
        for node in nodes:
            for member in self._members(node):
                for stream in (*member.inputs, *member.outputs):
                    users.setdefault(stream, []).append(node)
        for together in users.values():
            merged = {names[node] for node in together}
            name = min(merged, key=nodes.index)
            names = {node: name if old in merged else old for node, old in names.items()}
        return names

    # ---- rules

    def _stream(self, name: str) -> Stream:
        return self.app.streams[name]

    def _check_complete(self) -> None:
        read = {stream for p in self.app.procedures.values() for stream in p.inputs}
        for stream in self.app.streams.values():
            if stream.border and stream.name not in read:
                raise DeclarationError(
                    f"border stream {stream.name} is read by no procedure: what is pushed to it would be lost. Declare one with "
                    f"inputs={stream.name!r}, or remove the stream",
                    stream=stream.name,
                )
            if not stream.border and stream.name not in self._producer and stream.changelog_of is None:
                raise DeclarationError(
                    f"stream {stream.name} has no producer; name it in some procedure's outputs, or declare it with "
                    f"border=True if it is fed from outside",
                    stream=stream.name,
                )
        for procedure in self.app.procedures.values():
            for name in procedure.inputs:
                if self._stream(name).awaited and procedure.name not in self._group_of:
                    raise DeclarationError(
                        f"stream {name} has a deadline, but {procedure.name}, which reads it, is in no nested transaction "
                        f"that could wait; declare app.nested(…) with it, or the stream without deadline_s= and default=",
                        stream=name,
                    )
        for trigger in self.app.triggers:
            if trigger.stream is not None and trigger.stream not in read | set(self._producer):
                raise DeclarationError(f"the trigger on stream {trigger.stream} can never run: nothing uses the stream")

    def _check_connected(self) -> None:
        for group in self.app.nested_groups.values():
            members = [self.app.procedures[name] for name in group.members]
            for member in members:
                if member.either:
                    self._check_begins(group.name, member, members)
                if not member.streaming:
                    raise DeclarationError(
                        f"nested transaction {group.name}: {member.name} is an OLTP procedure; it is a transaction of its own"
                    )
            reached = {members[0].name}
            while True:
                more = {
                    m.name
                    for m in members
                    for n in members
                    if n.name in reached and (set(m.inputs) & set(n.outputs) or set(n.inputs) & set(m.outputs))
                } - reached
                if not more:
                    break
                reached |= more
            if lost := [name for name in group.members if name not in reached]:
                raise DeclarationError(
                    f"nested transaction {group.name}: {', '.join(lost)} is not connected to {members[0].name} by a stream"
                )

    def _check_begins(self, group: str, member: Procedure, members: list[Procedure]) -> None:
        """An either-procedure numbers the batches of its nested transaction, so all of them come from it."""
        inside = {stream for one in members for stream in one.outputs}
        others = [
            s
            for one in members
            for s in one.inputs
            if s not in inside and not self._stream(s).awaited and (one is not member or s in inside)
        ]
        if others or any(stream in inside for stream in member.inputs):
            more = f"; {', '.join(dict.fromkeys(others))} does not come from it" if others else ""
            raise DeclarationError(
                f"nested transaction {group}: {member.name} has inputs=either(…), so its batches don't have the ids of others; "
                f"in a nested transaction it has to be the first, and the only one with inputs from outside{more}. Take it out "
                f"of the nested transaction, or the others",
                nested=group,
                procedure=member.name,
            )

    def _infer_keys(self, nodes: list[str]) -> None:
        """A procedure's inputs must be keyed alike, and its outputs inherit that key."""
        for stream in self.app.streams.values():
            if stream.border or stream.key is not None:
                self.keyed[stream.name] = None if stream.key is None else stream.relation.column(stream.key).type.sql
        for node in nodes:
            for procedure in self._in_rank_order(node):
                kinds = {stream: self.keyed.get(stream) for stream in procedure.inputs if stream in self.keyed}
                if len(set(kinds.values())) > 1:
                    told = ", ".join(f"{s} by {k or 'nothing'}" for s, k in kinds.items())
                    why = (
                        "a key of one means nothing in the other"
                        if procedure.either
                        else "batches with the same id could not be matched"
                    )
                    raise DeclarationError(
                        f"procedure {procedure.name}: its inputs are keyed differently ({told}); {why}. "
                        f"Key them by columns of the same type",
                        procedure=procedure.name,
                    )
                kind = next(iter(kinds.values()), None)
                self.keyed.update((s, kind) for s in procedure.outputs if self._stream(s).key is None)
                self._check_partitions(procedure, kind)

    def _check_partitions(self, procedure: Procedure, kind: str | None) -> None:
        for access in self.access_of[procedure.name]:
            if not access.by_key:
                continue
            schema = self.app.tables[access.table]
            column = schema.column(schema.partition_by[0])
            if kind is None:
                raise DeclarationError(
                    f"procedure {procedure.name}: {access} needs a keyed input, but its streams are not keyed; "
                    f"declare key= on the border stream, or name columns: partition({access.table!r}, by=…)",
                    procedure=procedure.name,
                )
            if column.type.sql != kind:
                raise DeclarationError(
                    f"procedure {procedure.name}: {access} is partitioned by {column.name} {column.type}, but the stream's "
                    f"key is {kind}: the types don't match",
                    procedure=procedure.name,
                )

    # ---- access

    def triggers_of(self, procedure: Procedure) -> list[Trigger]:
        """The triggers that run inside this procedure's transaction."""
        found = []
        for trigger in self.app.triggers:
            if trigger.window is not None:
                if trigger.window[0] == procedure.name:
                    found.append(trigger)
            elif trigger.stream in procedure.outputs or self._first_reader(str(trigger.stream)) == procedure.name:
                found.append(trigger)
        return found

    def _first_reader(self, stream: str) -> str | None:
        """The procedure in whose transaction a border stream's tuples arrive: the first declared to read it."""
        if not self._stream(stream).border:
            return None
        return next((p.name for p in self.app.procedures.values() if stream in p.inputs), None)

    def _effective_access(self, procedure: Procedure) -> tuple[TableAccess, ...]:
        """What it declared, and what its triggers touch."""
        declared = {access.table: access for access in procedure.access}
        for trigger in self.triggers_of(procedure):
            for table in sorted(trigger.statement.reads | trigger.statement.writes):
                write = table in trigger.statement.writes
                if table not in declared:
                    declared[table] = TableAccess(table, write=write)
                elif write and not declared[table].write:
                    declared[table] = replace(declared[table], write=True)
        return tuple(declared.values())

    def _locked(self, procedure: Procedure) -> Iterator[TableAccess]:
        """What it declared, and what maintaining the views over the tables that it writes takes: the state of each view, and
        the other tables that a join looks up.
        """
        yield from self.access_of[procedure.name]
        written = {access.table for access in self.access_of[procedure.name] if access.write}
        for view in self.app.maintained.values():
            for table in written.intersection(view.reads):
                yield from (TableAccess(other) for other in view.reads if other != table)
                yield from (TableAccess(schema.name, write=True) for schema in view.states)


def _union(accesses: Iterable[TableAccess]) -> tuple[TableAccess, ...]:
    """The widest access to each table."""
    found: dict[str, TableAccess] = {}
    for access in accesses:
        before = found.get(access.table)
        if before is None:
            found[access.table] = access
        else:
            restricted = before.restricted and access.restricted
            found[access.table] = TableAccess(
                access.table,
                write=before.write or access.write,
                by_key=restricted and (before.by_key or access.by_key),
                by=tuple(dict.fromkeys([*before.by, *access.by])) if restricted else (),
                committed=before.committed and access.committed,
            )
    return tuple(found.values())
