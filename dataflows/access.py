"""Access to tables, as a procedure declares it in ``reads=`` and ``writes=``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tidegate.dataflows.definitions import Committed, Partition, TableAccess
from tidegate.errors import DeclarationError, unknown

AccessLike = str | Partition | Committed


def declared_access(
    tables: Collection[str], procedure: str, reads: Iterable[AccessLike], writes: Iterable[AccessLike]
) -> tuple[TableAccess, ...]:
    """What ``reads=`` and ``writes=`` of a procedure declare, one access for each table; raises where they contradict."""
    read = _named_access(tables, procedure, reads, write=False)
    written = _named_access(tables, procedure, writes, write=True)
    for table, access in written.items():
        if table in read and (read[table].committed or read[table].restricted != access.restricted):
            raise _twice(procedure, read[table], access)
        if table in read and not access.covers(read[table]):
            raise DeclarationError(
                f"procedure {procedure} reads {read[table]} and writes {access}: it works on one set of partitions of a "
                f"table. Name all of them in writes=, which includes reading",
                procedure=procedure,
            )
    return tuple({**read, **written}.values())


def _named_access(
    tables: Collection[str], procedure: str, likes: Iterable[AccessLike], write: bool
) -> dict[str, TableAccess]:
    """The access in ``reads=`` or ``writes=``, by table: of a table named several times, all the partitions named."""
    found: dict[str, TableAccess] = {}
    for like in [likes] if isinstance(likes, (str, Partition, Committed)) else likes:
        access = _one_access(tables, procedure, like, write)
        before = found.get(access.table, access)
        if before.restricted and access.restricted:
            by = tuple(dict.fromkeys([*before.by, *access.by]))
            access = replace(access, by_key=before.by_key or access.by_key, by=by)
        elif before != access:
            raise _twice(procedure, before, access)
        found[access.table] = access
    return found


def _one_access(tables: Collection[str], procedure: str, like: AccessLike, write: bool) -> TableAccess:
    if not isinstance(like, (str, Partition, Committed)):
        raise DeclarationError(
            f"procedure {procedure}: reads= and writes= list table names, partition('table') or "
            f"committed('table'), got {like!r}",
            procedure=procedure,
        )
    table = like if isinstance(like, str) else like.table
    if write and isinstance(like, Committed):
        raise DeclarationError(
            f"procedure {procedure}: committed({table!r}) is a way of reading and goes into reads=; a write "
            f"needs its lock, writes=[{table!r}]",
            procedure=procedure,
        )
    if table not in tables:
        raise unknown(f"procedure {procedure}", "table", table, tables)
    by = like.by if isinstance(like, Partition) else ()
    by_key = isinstance(like, Partition) and not by
    return TableAccess(table, write, by_key, by, committed=isinstance(like, Committed))


def _twice(procedure: str, one: TableAccess, other: TableAccess) -> DeclarationError:
    return DeclarationError(
        f"procedure {procedure} declares table {one.table} twice in different ways, {one} and {other}; declare the wider "
        f"access once",
        procedure=procedure,
    )
