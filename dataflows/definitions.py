"""What an app is made of, as frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

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

    @property
    def awaited(self) -> bool:
        return self.deadline_s is not None


@dataclass(frozen=True)
class TableAccess:
    """Declared access of a procedure to a table: all of it, or (``by_key``) one partition.

    ``argument``: the parameter of an OLTP procedure that names the partition; for a streaming procedure it is the
    batch's key.
    """

    table: str
    write: bool = False
    by_key: bool = False
    argument: str | None = None
    committed: bool = False

    def __str__(self) -> str:
        if self.committed:
            return f"committed({self.table!r})"
        return f"partition({self.table!r})" if self.by_key else repr(self.table)


@dataclass(frozen=True)
class Partition:
    """See :func:`partition`."""

    table: str
    by: str | None = None


@dataclass(frozen=True)
class Committed:
    """See :func:`committed`."""

    table: str


def partition(table: str, by: str | None = None) -> Partition:
    """In ``reads=`` or ``writes=``: only the rows of one partition of ``table``.

    Which one is the batch's key on a keyed stream, or, for an OLTP procedure, the argument called ``by``.
    """
    return Partition(table, by)


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
