"""A procedure's declared access to a table, bound to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.storage.schema import Change, Key, Row
from tidegate.storage.versions import VersionedTable


def _unknown(key: Key) -> None: ...


@dataclass(frozen=True, slots=True)
class Access:
    """A procedure's declared access to one table.

    ``by_key``: only the rows of one partition, the one in ``View.partitions``. ``committed``: reads see the newest
    committed state instead of the execution's own position, and never wait.

    The rest is what every row access needs of the table, at hand. ``plain``: the newest row may be read straight away, above
    ``table.straight``; ``newest(key)`` is that row if it is in memory, and None without ``plain``. ``free``: and a row whose key
    is new may be written. ``changes``: of columns, by their names, as far as they have come up; none where a row may not be
    changed just like that.
    """

    table: VersionedTable
    write: bool
    by_key: bool = False
    committed: bool = False
    plain: bool = field(init=False, repr=False)
    newest: Callable[[Key], Row | None] = field(init=False, repr=False)
    named: Callable[[Row], Any] = field(init=False, repr=False)
    key_of: Callable[[Row], Key] = field(init=False, repr=False)
    conform: Callable[..., Row] = field(init=False, repr=False)
    changes: Mapping[tuple[str, ...], Change] = field(init=False, repr=False)
    guarded: bool = field(init=False, repr=False)
    free: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema = self.table.schema
        at_hand = {
            "plain": not (self.by_key or self.committed),
            "newest": _unknown if self.by_key or self.committed else self.table.newest_held,
            "named": schema.named,
            "key_of": schema.key_of,
            "conform": schema.conform,
            "changes": schema.changes if self.write and not self.table.guarded else {},
            "guarded": self.table.guarded,
            "free": not (self.by_key or self.committed or self.table.guarded),
        }
        for name, value in at_hand.items():
            object.__setattr__(self, name, value)


class Updating(dict[str, Access]):
    """The access of a function that ``update_each`` calls: not to write to the table that is being updated."""
