"""What an upgrade consists of, as data: each change with a verdict, and what has to be done to the stored state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidegate.storage.migration import Reshape, Trial, is_wider
from tidegate.storage.schema import Column, TableSchema


class Verdict(StrEnum):
    """What becomes of something stored."""

    CARRIED = "carried over"
    ADDED = "added"
    FILLED = "refilled"
    RESTARTED = "restarted"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """A difference between what is stored and what the app declares. ``remedy``: what to do if it is refused."""

    kind: str
    name: str
    what: str
    verdict: Verdict
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.what}" + (f". {self.remedy}" if self.remedy else "")


@dataclass
class Plan:
    """All changes, and the work they cause. Names on the left are those of the stored state."""

    changes: list[Change] = field(default_factory=list)
    reshapes: list[Reshape] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    created: list[TableSchema] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    windows: dict[str, str] = field(default_factory=dict)  # "procedure.window"
    widened: dict[str, list[tuple[Column, Any]]] = field(default_factory=dict)  # new stream -> columns added, values
    reformed: set[str] = field(default_factory=set)  # new streams whose columns changed in any other way
    restarted: set[str] = field(default_factory=set)  # "procedure.window", as it is called now
    forgotten: set[tuple[str, str]] = field(default_factory=set)  # (kind, stored name) of what is dropped

    @property
    def refused(self) -> list[Change]:
        return [change for change in self.changes if change.verdict is Verdict.REFUSED]

    def add(self, kind: str, name: str, what: str, verdict: Verdict, remedy: str = "") -> None:
        self.changes.append(Change(kind, name, what, verdict, remedy))

    def refuse(self, kind: str, name: str, what: str, remedy: str) -> None:
        self.add(kind, name, what, Verdict.REFUSED, remedy)


@dataclass
class Drops:
    """What may be dropped: ``seen``, ``seen.remark``, or with its kind where one name means two things."""

    names: Collection[str]
    used: set[str] = field(default_factory=set)

    def has(self, kind: str, name: str) -> bool:
        found = {name, f"{kind} {name}"} & set(self.names)
        self.used |= found
        return bool(found)

    def unused(self) -> list[str]:
        return [name for name in self.names if name not in self.used]


def drop_or_refuse(plan: Plan, drops: Drops, kind: str, name: str, what: str, else_: str) -> bool:
    """Something stored has no place any more: it is dropped if that was asked for, and otherwise refused."""
    if drops.has(kind, name):
        plan.add(kind, name, what, Verdict.DROPPED)
        plan.forgotten.add((kind, name))
        return True
    plan.refuse(kind, name, what, f"{else_}, or drop it for good with drop=[{name!r}] (--drop {name})")
    return False


def bound(stored: Iterable[str], declared: Collection[str], renamed: dict[str, str]) -> dict[str, str]:
    """Stored name -> declared name: the same one, or the one that says it was renamed."""
    names = list(stored)
    found = {name: name for name in names if name in declared}
    continued = {old: new for new, old in renamed.items() if new not in names and old in names and old not in declared}
    return {**found, **continued}


def same_keys(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Are the keys of a stream, or of a window over it, still what they were? A wider type has equal values."""
    if was.get("key") != now.get("key") or (was["keyed"] is None) != (now["keyed"] is None):
        return False
    return was["keyed"] is None or is_wider(was["keyed"], now["keyed"])


def rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"
