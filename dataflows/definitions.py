"""What an app is made of, as frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tidegate.dataflows.keeping import Retention
from tidegate.dataflows.schedules import Idle, Schedule
from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.storage.sql.statements import Statement
from tidegate.streams.windows.declare.declared import Declared

OnFailure = Literal["halt", "dead_letter"]


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream: border (fed from outside) or interior (fed by its one producer), keyed or not.

    A border stream with ``deadline_s`` is *awaited*: a nested transaction that needs its batch stays open until the
    batch arrives or, ``deadline_s`` seconds after the question was asked, ``default`` is pushed for it.
    """

    name: str
    relation: Relation
    border: bool = False
    key: str | None = None
    deadline_s: float | None = None
    default: tuple[dict[str, Any], ...] = ()
    changelog_of: str | None = None  # the table whose committed changes it holds; no procedure emits to it
    idle: Idle | None = None  # event time runs on when it is silent
    schedule: Schedule | None = None  # the clock pushes the times of this schedule
    keep: Retention | None = None  # its batches stay after they have committed
    priority: int = 0  # of the work that its batches cause, where several may run
    capacity: int | None = None  # executions that its batches have caused may be unfinished

    @property
    def awaited(self) -> bool:
        return self.deadline_s is not None


@dataclass(frozen=True)
class Connection:
    """A source of a border stream, or a sink that a stream is delivered to: see :meth:`App.source`, :meth:`App.deliver`.

    ``made``: the source or sink, or a function without parameters that makes it.
    """

    name: str
    stream: str
    made: Any
    options: dict[str, Any]

    def make(self) -> Any:
        """The source or sink; a function is called each time."""
        return self.made if hasattr(self.made, "open") else self.made()


@dataclass(frozen=True)
class TableAccess:
    """Declared access of a procedure to a table: all of it, or only the partitions that are named.

    ``by_key``: the batch's key names one. ``by``: columns of the batch, or parameters of an OLTP procedure, whose values name
    them, in groups with one name for each column that the table is partitioned by.
    """

    table: str
    write: bool = False
    by_key: bool = False
    by: tuple[tuple[str, ...], ...] = ()
    committed: bool = False

    @property
    def restricted(self) -> bool:
        """Only to the partitions that are named?"""
        return self.by_key or bool(self.by)

    def covers(self, other: TableAccess) -> bool:
        """Does it name all partitions that ``other`` names?"""
        return (self.by_key or not other.by_key) and set(other.by) <= set(self.by)

    def __str__(self) -> str:
        if self.committed:
            return f"committed({self.table!r})"
        if not self.restricted:
            return repr(self.table)
        if not self.by:
            return f"partition({self.table!r})"
        groups: list[Any] = [group[0] if len(group) == 1 else group for group in self.by]
        return (
            f"partition({self.table!r}, by={groups[0]!r})"
            if len(groups) == 1
            else f"partition({self.table!r}, by={groups!r})"
        )


@dataclass(frozen=True)
class Partition:
    """See :func:`partition`."""

    table: str
    by: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Committed:
    """See :func:`committed`."""

    table: str


def partition(table: str, by: str | tuple[str, ...] | list[str | tuple[str, ...]] | None = None) -> Partition:
    """In ``reads=`` or ``writes=``: only the rows of some partitions of ``table``.

    Without ``by`` it is the one that the batch's key names. ``by`` names columns of the input batch, or parameters of an OLTP
    procedure: each of their values, in every row, names a partition. NULL names none. A list names the partitions of several
    columns; a tuple has one name for each column that the table is partitioned by::

        partition("accounts", by="account")                                # one column
        partition("accounts", by=["payer", "payee"])                       # the accounts of both
        partition("stock", by=("site", "item"))                            # a table partitioned by site and item
        partition("stock", by=[("from_site", "item"), ("to_site", "item")])

    ``"transfers.payer"`` is a column of the border stream ``transfers`` that the dataflow begins with, for procedures that get
    a batch that was emitted on the way.
    """
    if by is None:
        return Partition(table)
    groups = tuple((name,) if isinstance(name, str) else name for name in (by if isinstance(by, list) else [by]))
    if not groups or not all(
        isinstance(group, tuple) and group and all(isinstance(name, str) for name in group) for group in groups
    ):
        raise DeclarationError(
            f"partition({table!r}, by={by!r}): by= is a name, a tuple with a name for each column that the table is partitioned "
            f"by, or a list of these"
        )
    return Partition(table, groups)


def committed(table: str) -> Committed:
    """In ``reads=``: the newest committed state of ``table``, without waiting for earlier writers.

    Such a read never waits and never holds anyone up; in exchange it is not part of the serial order.
    """
    return Committed(table)


@dataclass(frozen=True)
class Either:
    """See :func:`either`."""

    streams: tuple[str, ...]


def either(*streams: str) -> Either:
    """In ``inputs=``: the procedure runs once for each batch of any of these streams, in the order in which they came in.

    Its function gets one batch per stream as always, empty for the streams that have none. What it emits is numbered by
    the sequence number of the execution, because the batch-ids of its inputs are unrelated.

    >>> either("orders", "payments").streams
    ('orders', 'payments')
    """
    return Either(streams)


@dataclass(frozen=True, eq=False)
class Procedure:
    """A stored procedure: started by batches on ``inputs`` (streaming) or called by clients (OLTP, no inputs).

    ``either``: a batch of one of the inputs starts it; otherwise it needs a batch of the same id on each.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    access: tuple[TableAccess, ...] = ()
    windows: dict[str, Declared] = field(default_factory=dict)
    retries: int = 0
    on_failure: OnFailure = "halt"
    deadline_s: float | None = None
    prefetch: dict[str, str] = field(default_factory=dict)
    either: bool = False
    timers: tuple[str, ...] = ()  # border streams that it sets timers for
    priority: int = 0  # of its calls

    @property
    def internal(self) -> bool:
        """The engine's own procedure, for example to refill tables: clients can't see or call it."""
        return self.name.startswith("tidegate_")

    @property
    def streaming(self) -> bool:
        return bool(self.inputs)


@dataclass(frozen=True)
class Nested:
    """Procedures that commit, abort and are isolated as one unit for each batch."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trigger:
    """An EE trigger: SQL run inside the inserting transaction when ``stream`` gets tuples, or a window slides."""

    statement: Statement
    stream: str | None = None
    window: tuple[str, str] | None = None  # (procedure, window)


def check_identifier(kind: str, name: Any) -> str:
    """A name users will type in SQL and in error messages: an identifier."""
    if not isinstance(name, str) or not name.isidentifier():
        raise DeclarationError(f"{kind} name must be an identifier like 'votes', got {name!r}", name=name)
    if name.lower().startswith("tidegate"):
        raise DeclarationError(
            f"{kind} name {name!r} is reserved: names that start with 'tidegate' belong to the system"
        )
    return name
