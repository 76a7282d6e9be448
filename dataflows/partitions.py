"""Which partitions of a table a unit works on: the batch's key names one, and so do values in the batch's rows.

``partition("accounts", by=["payer", "payee"])`` names, for every row of the batch, the partitions of two accounts. They are
locked when the batch is admitted, so the rows must be known by then: the columns are those of a border stream, either one that
the procedure reads, or, as ``"transfers.payer"``, one that its dataflow begins with. NULL names no partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.dataflows.definitions import Procedure, TableAccess
from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation, TableSchema
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

# of each table: values of its partition column, or tuples of them if it has several such columns
Partitions = Mapping[str, Collection[Any]]
NO_PARTITIONS: Partitions = MappingProxyType({})


class Columns(NamedTuple):
    """Columns of a border stream, one for each column that a table is partitioned by."""

    stream: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Named:
    """How the partitions of a table are named: by the batch's key, by values in its rows, or by both."""

    table: str
    by_key: bool
    columns: tuple[Columns, ...]

    def values(self, key: Any, batches: Mapping[str, Batch]) -> Collection[Any]:
        """Each named partition once, in the order in which the rows name them."""
        found: dict[Any, None] = {key: None} if self.by_key else {}
        for stream, places in self.columns:
            batch = batches.get(stream)
            if batch is None:
                continue
            if len(places) == 1:
                (place,) = places
                found.update(dict.fromkeys([row[place] for row in batch.rows]))
                found.pop(None, None)
            else:
                parts = [tuple([row[place] for place in places]) for row in batch.rows]
                found.update(dict.fromkeys([part for part in parts if None not in part]))
        return found

    def columns_only(self) -> Named:
        """Without the key."""
        return replace(self, by_key=False)


def partitions_of(named: Iterable[Named], key: Any, batches: Mapping[str, Batch]) -> Partitions:
    """The partitions that these batches name."""
    return {one.table: one.values(key, batches) for one in named}


class Naming:
    """Finds out what the names in ``partition(…, by=…)`` stand for, in the procedures of one unit."""

    def __init__(self, app: App, node: str, ancestors: Collection[str]) -> None:
        self._app = app
        self._node = node
        self._ancestors = ancestors

    def of_unit(self, accesses: Iterable[tuple[Procedure, tuple[TableAccess, ...]]]) -> tuple[Named, ...]:
        """How the partitions of each table are named by the unit's members together; empty if only keys name any."""
        found: dict[str, Named] = {}
        for procedure, declared in accesses:
            for access in declared:
                if access.restricted:
                    columns = [c for group in access.by for c in self._columns(procedure, access, group)]
                    before = found.get(access.table, Named(access.table, False, ()))
                    both = tuple(dict.fromkeys([*before.columns, *columns]))
                    found[access.table] = Named(access.table, before.by_key or access.by_key, both)
        return tuple(found.values()) if any(named.columns for named in found.values()) else ()

    def _columns(self, procedure: Procedure, access: TableAccess, group: tuple[str, ...]) -> list[Columns]:
        streams = {name.rpartition(".")[0] for name in group}
        if len(streams) > 1:
            raise self._wrong(procedure, access, f"{told(group)} mixes columns of different streams")
        names = [name.rpartition(".")[2] for name in group]
        (stream,) = streams
        found = [stream] if stream else self._streams_with(procedure, access, names)
        if stream:
            self._check_known(procedure, access, stream)
        return [self._bound(procedure, access, name, names) for name in found]

    def _streams_with(self, procedure: Procedure, access: TableAccess, names: list[str]) -> list[str]:
        """The inputs that have these columns."""
        having = [s for s in procedure.inputs if all(n in self._app.streams[s].relation.index_of for n in names)]
        if not having:
            columns = {s: ", ".join(self._app.streams[s].relation.index_of) for s in procedure.inputs}
            known = "; ".join(f"{s} has {c}" for s, c in columns.items())
            raise self._wrong(procedure, access, f"no input has {' and '.join(names)} ({known})")
        known_early = [s for s in having if s in self._ancestors]
        if not known_early:
            raise self._late(procedure, access, having[0], names)
        if len(known_early) > 1 and not procedure.either:
            choices = " or ".join(repr(f"{s}.{names[0]}") for s in known_early)
            raise self._wrong(procedure, access, f"several inputs have {' and '.join(names)}; say which: {choices}")
        return known_early

    def _late(self, procedure: Procedure, access: TableAccess, stream: str, names: list[str]) -> DeclarationError:
        what = "is awaited" if self._app.streams[stream].awaited else "is emitted inside the dataflow"
        begins = sorted(self._ancestors)
        having = [s for s in begins if all(n in self._app.streams[s].relation.index_of for n in names)]
        example = f"{having[0] if having else begins[0] if begins else 'border'}.{names[0]}"
        return self._wrong(
            procedure,
            access,
            f"{stream} {what}, so its rows are not known when the locks are taken, which is before anything runs. Name columns "
            f"of the border stream that the dataflow begins with ({', '.join(begins)}), like by={example!r}, or declare the "
            f"whole table",
        )

    def _check_known(self, procedure: Procedure, access: TableAccess, stream: str) -> None:
        if stream not in self._app.streams:
            raise self._wrong(procedure, access, f"there is no stream {stream!r}")
        if stream not in self._ancestors:
            raise self._wrong(
                procedure,
                access,
                f"the rows of {stream} are not known when {self._node} takes its locks; those of "
                f"{', '.join(sorted(self._ancestors)) or 'no stream'} are",
            )

    def _bound(self, procedure: Procedure, access: TableAccess, stream: str, names: list[str]) -> Columns:
        relation: Relation = self._app.streams[stream].relation
        schema: TableSchema = self._app.tables[access.table]
        for name, column in zip(names, schema.partition_by, strict=True):
            if name not in relation.index_of:
                raise self._wrong(
                    procedure, access, f"stream {stream} has no column {name!r}; it has {', '.join(relation.index_of)}"
                )
            mine, wanted = relation.column(name).type, schema.column(column).type
            if mine.sql != wanted.sql:
                raise self._wrong(
                    procedure,
                    access,
                    f"{stream}.{name} is {mine}, but {access.table} is partitioned by {column} {wanted}: the types don't match",
                )
        return Columns(stream, tuple(relation.index_of[name] for name in names))

    def _wrong(self, procedure: Procedure, access: TableAccess, why: str) -> DeclarationError:
        return DeclarationError(f"procedure {procedure.name}: {access}: {why}", procedure=procedure.name)


def told(group: tuple[str, ...]) -> str:
    """A group of names as it is written in ``by=``."""
    return repr(group[0] if len(group) == 1 else group)
